"""The condition NativeGang of a Workload of gangs."""

from __future__ import annotations

import pytest

from rackgate.gang.forms.expand import expand
from rackgate.gang.native import v1alpha2, v1beta1
from rackgate.gang.native.adapter import Adapter
from rackgate.gang.native.model import ObservedPodGroup
from rackgate.gang.topology_requests import GangPodSet
from rackgate.wire.core import Condition, Meta
from rackgate.wire.kueue import Admission, Workload, WorkloadStatus
from rackgate_assigner.gangs.gang_workload import GangWorkload
from rackgate_assigner.gangs.native import NativeUse
from rackgate_assigner.gangs.reactions import admission_run
from rackgate_assigner.gangs.status.gang_status import Use, summarize

SPEC = {"gangGroups": [{"name": "gg", "minCount": 4}]}
GANG = GangWorkload(Meta(name="w", namespace="team"), SPEC, expand(SPEC))
AT = Condition("Admitted", "True", last_transition_time="2026-08-01T12:00:00Z")
ADMITTED = Workload(
    metadata=Meta(name="k", namespace="team", uid="k"),
    status=WorkloadStatus(conditions=(AT,), admission=Admission("cq")),
)
RUN = admission_run(ADMITTED)


def pod_group(
    *, owner: str = "k", run: str = RUN, least: int = 4, scheduled: bool | None = True
) -> ObservedPodGroup:
    return ObservedPodGroup(
        "team", "w-gg", "uid", owner_uid=owner, run=run, min_count=least, scheduled=scheduled
    )


def native_gang(
    *groups: ObservedPodGroup,
    bound: int = 4,
    adapter: Adapter | None = v1alpha2.ADAPTER,
    workload: Workload | None = ADMITTED,
) -> tuple[str, str, str] | None:
    native = NativeUse(adapter, {group.key: group for group in groups})
    podsets = (GangPodSet("main", 4, {}),)
    use = Use("train", workload, podsets, {"main": bound}, native=native)
    for change in summarize(GANG, use).changes:
        if change.type == "NativeGang":
            return change.status, str(change.reason), change.message
    return None


def test_a_gang_with_its_pod_group_is_bound_by_kube_scheduler() -> None:
    found = native_gang(pod_group())
    assert found is not None
    assert found[:2] == ("True", "InUse")
    assert "not run live" not in found[2]
    assert native_gang(pod_group(scheduled=None), bound=3) == found, "it is still under way"


def test_a_generation_that_no_test_runs_is_named() -> None:
    found = native_gang(pod_group(), adapter=v1beta1.ADAPTER)
    assert found is not None
    assert found[:2] == ("True", "InUse")
    assert "v1beta1, not run live" in found[2]


def test_all_are_bound_and_kube_scheduler_has_said_nothing() -> None:
    """It does not know PodGroups: its own feature gate cannot be seen."""
    found = native_gang(pod_group(scheduled=None))
    assert found is not None
    assert found[:2] == ("Unknown", "Unknown")
    assert "GangScheduling" in found[2]


def test_a_group_that_binds_one_by_one_is_shown() -> None:
    found = native_gang(pod_group(least=0))
    assert found is not None
    assert found[:2] == ("False", "Basic")


@pytest.mark.parametrize("group", [pod_group(owner="other"), pod_group(owner="", run="")])
def test_a_group_of_another_owner_is_unknown(group: ObservedPodGroup) -> None:
    found = native_gang(group)
    assert found is not None
    assert found[:2] == ("Unknown", "Unknown")


def test_no_group_is_said_once_a_pod_is_bound() -> None:
    assert native_gang(bound=0) is None, "it is made just before"
    found = native_gang(bound=1)
    assert found is not None
    assert found[:2] == ("False", "Absent")
    # That of the last run is about to be replaced.
    assert native_gang(pod_group(run="earlier"), bound=0) is None


def test_a_cluster_without_the_api_is_said_at_once() -> None:
    found = native_gang(adapter=None, bound=0)
    assert found is not None
    assert found[:2] == ("False", "Absent")
    assert native_gang(workload=None) is None
    assert native_gang(pod_group(), workload=Workload()) is None


def test_without_the_gate_nothing_is_said() -> None:
    use = Use("train", ADMITTED, (GangPodSet("main", 4, {}),), {"main": 4})
    assert "NativeGang" not in {change.type for change in summarize(GANG, use).changes}
