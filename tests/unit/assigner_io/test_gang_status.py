"""The summary of a Workload of gangs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from rackgate.api.gang import WorkloadStatus as Schema
from rackgate.gang.forms.expand import expand
from rackgate.gang.pod_shapes import pod_shape
from rackgate.gang.topology_requests import GangPodSet, Rejected, RejectedReason, Requests
from rackgate.runtime import clock
from rackgate.wire.batch import Job
from rackgate.wire.core import Condition, Meta
from rackgate.wire.kueue import Admission, RequeueState, Workload, WorkloadStatus
from rackgate_assigner.gangs.bound_pods import BoundPods
from rackgate_assigner.gangs.gang_workload import GangWorkload, decode_gang_workload
from rackgate_assigner.gangs.holds import Hold, HoldReason
from rackgate_assigner.gangs.index import JobKey
from rackgate_assigner.gangs.status.controller import LONGEST_WAIT, GangStatusController
from rackgate_assigner.gangs.status.gang_status import Summary, Use, is_starting, summarize

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


def matched(use: Use, spec: Any) -> tuple[str, str, str]:
    raw = msgspec.json.encode({"metadata": {"name": "w"}, "spec": spec})
    change = summarize(decode_gang_workload(raw), use).changes[0]
    return change.status, str(change.reason), change.message


def pod_of(cpu: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {"spec": {"containers": [container], **spec}}


def shaped(template: dict[str, Any]) -> Use:
    shape = pod_shape(template)
    assert shape is not None
    return Use("train", admitted(), ONE, shapes={"main": shape})


@pytest.mark.requirement("GNG-43", "GNG-08")
@pytest.mark.parametrize(
    ("cpu", "most", "message"),
    [
        ("2", None, ""),
        ("2000m", None, ""),
        ("1", None, "requests cpu 1, not 2"),
        ("3", None, "requests cpu 3, not 2"),
        ("3", "4", ""),
        ("1", "4", ""),
        ("5", "4", "requests cpu 5, not at most 4"),
    ],
)
def test_pods_of_another_shape_than_their_eq_group_are_shown(
    cpu: str, most: str | None, message: str
) -> None:
    group: dict[str, Any] = {"name": "big", "count": 4, "template": pod_of("2")}
    if most is not None:
        group["maxTemplate"] = {"resources": {"requests": {"cpu": most}}}
    spec = {"gangGroups": [{"name": "gg", "minCount": 4, "eqGroups": [group]}]}
    found = matched(shaped(pod_of(cpu)), spec)
    if message:
        assert found == ("False", "ShapeDiffers", f"PodSet main differs from big: {message}")
    else:
        assert found[:2] == ("True", "AllMatched")


@pytest.mark.requirement("GNG-43")
def test_claims_and_empty_dirs_are_part_of_the_shape_and_other_fields_are_not() -> None:
    def of(claim: str, size: str, image: str) -> dict[str, Any]:
        found = pod_of(
            "2",
            resourceClaims=[{"name": "net", "resourceClaimTemplateName": claim}],
            volumes=[
                {"name": "scratch", "emptyDir": {"sizeLimit": size}},
                {"name": image, "configMap": {"name": image}},
            ],
        )
        found["spec"]["containers"][0] |= {"image": image, "env": [{"name": image}]}
        return found

    def text(template: dict[str, Any]) -> str:
        group = {"name": "big", "template": of("block", "1Gi", "a")}
        spec = {"gangGroups": [{"name": "gg", "minCount": 4, "eqGroups": [group]}]}
        status, _, message = matched(shaped(template), spec)
        return "" if status == "True" else message.partition(": ")[2]

    assert text(of("block", "1024Mi", "b")) == ""
    assert text(of("rack", "1Gi", "a")) == "claims rack, not block"
    assert text(of("block", "2Gi", "a")) == "emptyDir scratch 2Gi, not 1Gi"
    assert text(pod_of("2")) == "claims none, not block; emptyDir scratch 0, not 1Gi"


def test_what_a_template_leaves_out_is_not_compared() -> None:
    group = {"name": "big", "template": {"metadata": {"labels": {"a": "b"}}}}
    spec = {"gangGroups": [{"name": "gg", "minCount": 4, "eqGroups": [group]}]}
    assert matched(shaped(pod_of("7")), spec)[0] == "True"


@pytest.mark.requirement("GNG-08")
def test_pods_that_rackgate_did_not_hold_are_shown() -> None:
    spec = {"gangGroups": [{"name": "gg", "minCount": 4}]}
    use = Use("train", admitted(), ONE, {"main": 4}, not_held=[f"p{n}" for n in range(4)])
    message = "pods that Rackgate did not hold and release: p0, p1, p2 and 1 more"
    assert matched(use, spec) == ("False", "NotHeld", message)


@pytest.mark.requirement("GNG-08")
def test_more_pods_than_a_gang_may_have_and_groups_that_nothing_tells_apart_are_shown() -> None:
    few = {"gangGroups": [{"name": "gg", "minCount": 2, "maxCount": 3}]}
    assert matched(Use("train", admitted(), ONE), few)[1] == "TooManyPods"
    ranked = [{"name": "a"}, {"name": "b"}]
    twins = {"gangGroups": [{"name": "gg", "minCount": 4, "rankedGroups": ranked}]}
    assert matched(Use("train", admitted(), ONE), twins)[1] == "Ambiguous"
    for index, group in enumerate(ranked):
        group["selector"] = {"key": "index", "values": [str(index)]}  # type: ignore[assignment]  # JSON
    assert matched(Use("train", admitted(), ONE), twins)[1] == "AllMatched"


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
    whole = written(found)
    assert len(found.fields["gangGroups"]) == 18
    assert len(msgspec.json.encode(whole)) < 10_000
    Schema.model_validate(whole)


REPLICA_KEY = "leaderworkerset.sigs.k8s.io/group-key"


@pytest.mark.requirement("GNG-46")
@pytest.mark.parametrize("replicas", [16, 1_000])
@pytest.mark.parametrize("template", [False, True])
def test_the_object_is_small_at_any_number_of_replicas(replicas: int, template: bool) -> None:
    """All gangs wait, everything has the longest name, and every condition a long message."""
    group: Any = {"name": "g" * 63, "minCount": 1_000_000, "scheduleTimeoutSeconds": 86_400}
    if template:
        resources = {"requests": {"cpu": "64", "memory": "2Ti", "nvidia.com/gpu": "8"}}
        group["eqGroups"] = [{"name": "e" * 63, "count": 4, "template": {"resources": resources}}]
    spec = {"replicaMode": "ReplicatedGangs", "replicaKey": REPLICA_KEY, "gangGroups": [group]}
    podsets = tuple(
        GangPodSet(f"{'p' * 58}-{n:04}", 4, {REPLICA_KEY: f"{n:063}"}) for n in range(replicas)
    )
    hold = Hold(HoldReason.UNSATISFIABLE, "m" * 32_768)
    topology = Rejected(RejectedReason.NOT_NARROWER, "m" * 32_768, "spec.topologyRequest")
    use = Use("j" * 253, admitted(), podsets, topology=topology, shared_with="k" * 253, hold=hold)
    found = summarize(gang(spec), use)
    assert len(found.fields["gangs"]) == 16, "some of the waiting ones are shown"
    whole = {"spec": spec, "status": written(found)}
    assert len(msgspec.json.encode(whole)) + METADATA_BYTES < 10_000
    Schema.model_validate(whole["status"])


# Names of 253 characters, an owner, labels, and managed fields of three writers.
METADATA_BYTES = 3_000


def written(found: Summary) -> dict[str, Any]:
    """The status as it is stored."""
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
    return {**found.fields, "conditions": listed}


@pytest.mark.parametrize(
    ("use", "starting"),
    [
        (Use("train", Workload(), ONE), False),
        (Use("train", admitted(), ONE), True),
        (Use("train", admitted(), ONE, {"main": 3}), True),
        (Use("train", admitted(), ONE, {"main": 3}, ["train-0"]), False),
        (Use("train", admitted(Condition("Evicted", "True", "Preempted")), ONE), False),
        (Use("train", admitted(), ONE, {"main": 4}), False),
        (None, False),
    ],
)
def test_a_gang_is_starting_while_its_pods_are_on_their_way(
    use: Use | None, starting: bool
) -> None:
    assert is_starting(summarize(gang(), use)) == starting


class Unused:
    """An index that knows no job."""

    def users(self, _gang: str) -> list[Any]:
        return []

    def last_user(self, _gang: str) -> None:
        return None


class Used:
    """An index with one job, which waits for its pods."""

    job = Job(metadata=Meta(name="train", namespace="team", uid="u"))

    def users(self, _gang: str) -> list[JobKey]:
        return [JobKey("Job", "team/train")]

    def choice(self, _job: Job) -> None:
        return None

    def podsets(self, _job: Job) -> tuple[GangPodSet, ...]:
        return ONE

    def workload_key(self, _job: Job) -> str:
        return "team/k"

    def topology(self, *_: Any) -> Requests:
        return Requests()

    def hold(self, _job: Job) -> None:
        return None


class Recorder:
    """A writer that keeps the times of its writes."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.phases: list[str] = []

    async def write_status(self, _meta: Meta, status: Any) -> None:
        self.at.append(clock.monotonic())
        self.phases.append(status["phase"])


def described(written: Any, interval_s: float) -> GangStatusController:
    """A controller that finds a change at each look: it never sees its own writes."""
    stored = replace(gang(), conditions=(Condition("GangScheduled", "True"),))
    found: Any = Unused()
    return GangStatusController(
        found,
        {},
        {},
        {"team/w": stored},
        written,
        reporter=found,
        bound_pods=lambda _uid: BoundPods({}),
        interval_s=interval_s,
    )


async def test_what_changes_all_the_time_is_written_further_and_further_apart() -> None:
    interval_s = 0.02
    written: Any = Recorder()
    controller = described(written, interval_s)
    running = asyncio.create_task(controller.run())
    while len(written.at) < 4:
        controller.mark("team/w")
        await asyncio.sleep(0.001)
    running.cancel()
    gaps = [after - before for before, after in pairwise(written.at)]
    assert [gap >= times * interval_s for gap, times in zip(gaps, (2, 4, 6), strict=True)] == [
        True
    ] * 3


@pytest.mark.requirement("GNG-08")
async def test_a_change_is_written_once_it_rests_or_after_a_few_intervals() -> None:
    interval_s = 0.2
    written: Any = Recorder()
    controller = described(written, interval_s)
    running = asyncio.create_task(controller.run())
    while not written.at:
        await asyncio.sleep(0)  # what there is at the start is described at once
    first = last = clock.monotonic()
    while len(written.at) < 2 and last < first + 1.5 * interval_s:
        controller.mark("team/w")
        last = clock.monotonic()
        await asyncio.sleep(0.01)
    rested = len(written.at) < 2
    while len(written.at) < 2:
        await asyncio.sleep(0.01)
    running.cancel()
    late = written.at[1] >= first + LONGEST_WAIT * interval_s
    assert (rested and written.at[1] >= last + interval_s) or late


@pytest.mark.requirement("GNG-08")
async def test_a_start_is_described_after_a_few_intervals() -> None:
    interval_s = 0.2
    written: Any = Recorder()
    index: Any = Used()
    bound = {"main": 1}
    controller = GangStatusController(
        index,
        {"Job": {"team/train": index.job}},
        {"team/k": admitted()},
        {"team/w": gang()},
        written,
        reporter=index,
        bound_pods=lambda _uid: BoundPods(bound),
        interval_s=interval_s,
    )
    first = clock.monotonic()
    running = asyncio.create_task(controller.run())
    async with asyncio.timeout(60):
        while not written.at:
            await asyncio.sleep(0.01)
        bound["main"] = 4
        controller.mark("team/w")
        while len(written.at) < 2:
            await asyncio.sleep(0.01)
    running.cancel()
    assert written.at[0] >= first + LONGEST_WAIT * interval_s
    assert written.phases == ["Releasing", "Running"]


@pytest.mark.requirement("GNG-08")
async def test_a_change_while_another_replica_leads_is_described_when_this_one_does() -> None:
    interval_s = 0.02
    written: Any = Recorder()
    controller = described(written, interval_s)
    controller.mark("team/w")
    running = asyncio.create_task(controller.run())
    async with asyncio.timeout(10):
        while not written.at:
            await asyncio.sleep(0)
        controller.mark("team/w")
        while len(written.at) < 2:
            await asyncio.sleep(0.001)
    running.cancel()
