"""The summary of a Workload of gangs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.api.gang import WorkloadStatus as Schema
from rackgate.gang.expand import expand
from rackgate.gang.topology_requests import GangPodSet, Rejected, RejectedReason, Requests
from rackgate.wire.core import Condition, Meta
from rackgate.wire.kueue import Admission, RequeueState, Workload, WorkloadStatus
from rackgate_assigner.gangs.gang_workload import GangWorkload
from rackgate_assigner.gangs.holds import Hold, HoldReason
from rackgate_assigner.gangs.status import Summary, Use, summarize

ONE = (GangPodSet("main", 4, {}),)


def gang(spec: Any = None) -> GangWorkload:
    spec = spec or {"gangGroups": [{"name": "gg", "minCount": 4}]}
    return GangWorkload(Meta(name="w", generation=3), spec, expand(spec))


def admitted(*more: Condition) -> Workload:
    at = Condition("Admitted", "True", last_transition_time="2026-08-01T12:00:00Z")
    status = WorkloadStatus(conditions=(at, *more), admission=Admission("cq"))
    return Workload(metadata=Meta(name="k", uid="u"), status=status)


def conditions(found: Summary) -> dict[str, tuple[str, str]]:
    return {change.type: (change.status, str(change.reason)) for change in found.changes}


def scheduled(use: Use | None, spec: Any = None) -> tuple[str, str]:
    return conditions(summarize(gang(spec), use))["GangScheduled"]


def test_the_reasons_of_gang_scheduled() -> None:
    assert scheduled(None) == ("False", "PodsMissing")
    assert scheduled(Use("train", None, ONE)) == ("False", "WaitingForQuota")
    assert scheduled(Use("train", Workload(), ONE)) == ("False", "WaitingForQuota")
    hold = Hold(HoldReason.UNSATISFIABLE, "too few")
    assert scheduled(Use("train", Workload(), ONE, hold=hold)) == ("False", "Unsatisfiable")
    status = WorkloadStatus(requeue_state=RequeueState(1, "2026-08-01T12:00:00Z"))
    assert scheduled(Use("train", Workload(status=status), ONE)) == ("False", "BackingOff")
    assert scheduled(Use("train", admitted(), ONE, {"main": 3})) == ("False", "NotBound")
    assert scheduled(Use("train", admitted(), ONE, {"main": 4})) == ("True", "Running")
    off = {"gangGroups": [{"name": "gg", "minCount": 0}]}
    assert scheduled(Use("train", admitted(), ONE), off) == ("True", "NoGang")


def test_an_evicted_job_says_why() -> None:
    evicted = Condition("Evicted", "True", "GangTimeout", "3 of 4 pods are bound")
    found = summarize(gang(), Use("train", admitted(evicted), ONE, {"main": 3}))
    assert found.fields["phase"] == "GivingWay"
    assert found.changes[-1].message == "GangTimeout: 3 of 4 pods are bound"


def test_a_topology_that_has_no_effect_is_shown() -> None:
    topology = Requests(not_enforced=("spec.topologySpread",))
    found = conditions(summarize(gang(), Use("train", None, ONE, topology=topology)))
    assert found["TopologyRequestValid"] == ("True", "Valid")
    assert found["TopologyEnforced"] == ("False", "NotSupported")
    wrong = Rejected(RejectedReason.NOT_NARROWER, "no", "spec.topologyRequest")
    found = conditions(summarize(gang(), Use("train", None, ONE, topology=wrong)))
    assert found["TopologyRequestValid"] == ("False", "NotNarrower")


@pytest.mark.requirement("GNG-08")
def test_pods_that_no_group_takes_are_shown() -> None:
    groups = [{"name": "a", "minCount": 1, "selector": {"key": "role", "values": ["a"]}}]
    podsets = (GangPodSet("one", 1, {"role": "a"}), GangPodSet("two", 1, {"role": "b"}))
    found = summarize(gang({"gangGroups": groups}), Use("train", admitted(), podsets, {"one": 1}))
    assert conditions(found)["PodsMatched"] == ("False", "NoPart")
    assert "PodSets two" in found.changes[0].message


def test_the_status_is_small_at_any_number_of_gangs_and_fits_the_schema() -> None:
    groups = [
        {
            "name": f"{'g' * 60}-{index:02}",
            "minCount": 1_000_000,
            "selector": {"key": "role", "values": [str(index)]},
        }
        for index in range(18)
    ]
    podsets = tuple(GangPodSet(str(n), 2_000, {"role": str(n)}) for n in range(18))
    bound = {str(n): 1_999 for n in range(18)}
    found = summarize(gang({"gangGroups": groups}), Use("j" * 200, admitted(), podsets, bound))
    listed = [
        {
            "type": change.type,
            "status": change.status,
            "reason": str(change.reason),
            "message": change.message,
            "lastTransitionTime": "2026-08-01T12:00:00Z",
            "observedGeneration": 3,
        }
        for change in found.changes
    ]
    whole = {**found.fields, "conditions": listed}
    assert len(msgspec.json.encode(whole)) < 10_000
    Schema.model_validate(whole)
