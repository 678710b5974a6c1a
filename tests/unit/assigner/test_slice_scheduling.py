"""Slices in a cycle: which parents they wait for, which flavors and places they may have."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Admit, Assignment, PodSetAssignment, Requeue
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    admissions,
    cache_with,
    cluster_queue,
    domains,
    explanation_of,
    flavor,
    fx_a,
    local_queue,
    plan_cycle,
    podset,
    topology,
    workload,
)

GATE = {"ElasticJobsViaWorkloadSlices": True}
TWO = {"plain": {"cpu": "4"}, "other": {"cpu": "4"}}
TAS = {"tas": {"cpu": "64"}}


def world(quotas: Any = None, **queue: Any) -> Cache:
    cache = cache_with(fx_a(), queue=cluster_queue("cq", quotas or TWO, **queue), features=GATE)
    for name in ("plain", "other"):
        cache.set_flavor(flavor(name, None, {}))
    return cache


def parent(cache: Cache, count: int = 1, *, of: str = "plain", **more: Any) -> None:
    assignment = Assignment(
        "cq", (PodSetAssignment("main", {"cpu": of}, {"cpu": 1000 * count}, count),)
    )
    given = {"version": "2", "elastic": True, "assignment": assignment, **more}
    cache.set_workload(workload("ray", [podset(count=count)], **given))


def placed(cache: Cache, wish: dict[str, Any] | None, **hosts: int) -> None:
    """A parent with pods of 4 cpu on these hosts."""
    total = sum(hosts.values())
    spots = tuple(((name.replace("_", "-"),), count) for name, count in hosts.items())
    found = TopologyAssignment((HOST,), spots) if total else None
    part = PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 4000 * total}, total, found)
    podsets = [podset(count=total, requests={"cpu": "4"}, topology=wish)]
    cache.set_workload(
        workload("ray", podsets, version="2", elastic=True, assignment=Assignment("cq", (part,)))
    )


def slice_of(cache: Cache, name: str = "s1", cpu: str = "1", **more: Any) -> None:
    wish = more.pop("wish", None)
    podsets = more.pop("podsets", [podset(requests={"cpu": cpu}, topology=wish)])
    cache.set_workload(workload(name, podsets, parent="ray", **more))


def waits_for(cache: Cache, name: str = "s1") -> Requeue:
    found = [d for d in plan_cycle(cache) if d.workload == f"team/{name}"]
    assert isinstance(found[0], Requeue)
    return found[0]


@pytest.mark.requirement("SLC-07", "SLC-30")
def test_a_slice_is_admitted_like_any_other_workload() -> None:
    cache = world()
    parent(cache)
    slice_of(cache)
    (admit,) = plan_cycle(cache)
    assert isinstance(admit, Admit)
    assert admit.assignment.podsets[0].flavors == {"cpu": "plain"}


@pytest.mark.requirement("SLC-09")
def test_a_slice_waits_for_its_parents_flavor_though_another_has_room() -> None:
    cache = world()
    parent(cache, 4)
    slice_of(cache)
    hold = waits_for(cache)
    assert hold.reason == "WaitingForQuota"
    assert hold.message == (
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor "
        "plain, 1 more needed; a slice uses the flavors of its parent Workload ray: plain"
    )
    parent(cache, 2, of="other", version="3")
    assert admissions(plan_cycle(cache))["s1"].podsets[0].flavors == {"cpu": "other"}


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"assignment": None}, "is not admitted"),
        ({"conditions": {"Admitted": ("False", "x", "")}}, "is not admitted"),
        ({"conditions": {"Evicted": ("True", "Preempted", "")}}, "is evicted"),
        ({"active": False}, "is evicted"),
        ({"conditions": {"Finished": ("True", "Succeeded", "")}}, "is finished"),
        ({"deleting": True}, "is being deleted"),
        ({"elastic": False}, "is not elastic"),
    ],
)
@pytest.mark.requirement("SLC-31", "SLC-32")
def test_a_slice_waits_while_its_parent_does_not_run(state: dict[str, Any], problem: str) -> None:
    cache = world()
    parent(cache, **state)
    slice_of(cache)
    text = f"the slice is pending: its parent Workload ray {problem}"
    assert waits_for(cache) == Requeue("team/s1", "OnHold", text)


@pytest.mark.requirement("SLC-32")
def test_a_slice_without_parent_or_of_a_namesake_is_not_admitted() -> None:
    cache = world()
    slice_of(cache, owner="uid-of-old")
    text = "the slice is pending: its parent Workload ray does not exist"
    assert waits_for(cache).message == text
    parent(cache)
    assert waits_for(cache).message == text
    found = explanation_of(cache, "team/s1")
    assert found is not None
    assert found.summary == f"{text[0].upper()}{text[1:]}."


@pytest.mark.requirement("SLC-01")
def test_no_slice_is_admitted_while_the_gate_is_off() -> None:
    cache = world()
    parent(cache)
    slice_of(cache)
    (hold,) = plan_cycle(cache, features=Features.of({}))
    assert isinstance(hold, Requeue)
    assert "feature gate ElasticJobsViaWorkloadSlices is off" in hold.message


@pytest.mark.requirement("SLC-08")
def test_a_slice_that_asks_for_something_else_than_its_parent_is_rejected() -> None:
    cache = world()
    parent(cache)
    slice_of(cache, cpu="2")
    assert waits_for(cache).message == "pod set main differs from that of its parent Workload ray"
    slice_of(cache, podsets=[podset("else")], generation=2)
    assert waits_for(cache).message == "its parent Workload ray has no pod set else"
    slice_of(cache, podsets=[podset(), podset("two")], generation=3)
    assert waits_for(cache).message == "a slice has one pod set"


def test_a_slice_keeps_to_the_queue_and_the_flavors_its_parent_was_admitted_by() -> None:
    cache = world()
    parent(cache, of="gone")
    slice_of(cache)
    hold = waits_for(cache)
    assert hold.reason == "NoMatchingFlavor"
    assert "uses flavor gone, which ClusterQueue cq does not offer any more" in hold.message
    parent(cache, version="3")
    cache.set_cluster_queue(cluster_queue("else", TWO))
    cache.set_local_queue(local_queue(queue="else"))
    assert waits_for(cache).message == "its parent Workload ray is admitted by ClusterQueue cq"


def test_a_slice_that_waits_for_its_parent_holds_up_no_one() -> None:
    cache = world(queueingStrategy="StrictFIFO")
    parent(cache, assignment=None, priority=1, queue="nowhere")
    slice_of(cache, priority=9)
    cache.set_workload(workload("w", [podset()]))
    assert list(admissions(plan_cycle(cache))) == ["w"]


@pytest.mark.requirement("SLC-36")
@pytest.mark.parametrize("cohort", [None, "all"])
def test_a_required_rack_stays_the_rack_of_the_parent(cohort: str | None) -> None:
    cache = world(TAS, cohortName=cohort)
    placed(cache, {"required": RACK}, b1_r2_1=1)
    for index in range(4):
        slice_of(cache, f"s{index}", cpu="4", wish={"required": RACK})
    decisions = plan_cycle(cache)
    hosts = [next(iter(domains(assignment))) for assignment in admissions(decisions).values()]
    assert sorted(hosts) == ["b1-r2-1", "b1-r2-2", "b1-r2-2"]
    (hold,) = [d for d in decisions if isinstance(d, Requeue)]
    assert hold.reason == "TopologyPlacementFailed"
    assert "excluded:" in hold.message
    assert "topologyDomain: 6" in hold.message


@pytest.mark.requirement("SLC-36")
def test_slices_not_folded_yet_say_where_the_pods_of_an_empty_group_are() -> None:
    cache = world(TAS)
    placed(cache, {"required": RACK})
    slice_of(cache, "s0", cpu="4", wish={"required": RACK})
    slice_of(cache, "s1", cpu="4", wish={"required": RACK})
    granted = admissions(plan_cycle(cache))
    first, second = (next(iter(domains(granted[name]))) for name in ("s0", "s1"))
    assert first.rpartition("-")[0] == second.rpartition("-")[0]
    podsets = [podset(requests={"cpu": "4"}, topology={"required": RACK})]
    cache.set_workload(workload("s0", podsets, parent="ray", version="2", assignment=granted["s0"]))
    again = admissions(plan_cycle(cache))
    assert next(iter(domains(again["s1"]))) == second


@pytest.mark.requirement("SLC-36")
@pytest.mark.parametrize("cohort", [None, "all"])
def test_a_preferred_rack_is_tried_first_and_left_when_it_is_full(cohort: str | None) -> None:
    cache = world(TAS, cohortName=cohort)
    placed(cache, {"preferred": RACK}, b2_r3_1=2, b2_r3_2=1)
    slice_of(cache, "s0", cpu="4", wish={"preferred": RACK})
    slice_of(cache, "s1", cpu="4", wish={"preferred": RACK})
    granted = admissions(plan_cycle(cache))
    assert domains(granted["s0"]) == {"b2-r3-2": 1}
    assert set(domains(granted["s1"])).isdisjoint({"b2-r3-1", "b2-r3-2"})


def test_a_second_preferred_rack_with_room_comes_before_a_third() -> None:
    cache = world(TAS)
    placed(cache, {"preferred": RACK}, b1_r1_1=2, b1_r1_2=2, b2_r1_1=1)
    slice_of(cache, "s0", cpu="4", wish={"preferred": RACK})
    assert set(domains(admissions(plan_cycle(cache))["s0"])) <= {"b2-r1-1", "b2-r1-2"}


@pytest.mark.requirement("SLC-36")
def test_a_slice_waits_when_no_node_tells_which_block_its_parent_is_in() -> None:
    cache = world(TAS)
    placed(cache, {"required": BLOCK}, b1_r1_1=1)
    cache.drop_node("b1-r1-1")
    slice_of(cache, cpu="4", wish={"required": BLOCK})
    assert "so the block of these pods is not known" in waits_for(cache).message


def test_a_leader_in_one_rack_keeps_the_workers_there() -> None:
    cache = world(TAS)
    wish = {"required": RACK, "podSetGroupName": "g"}
    podsets = [
        podset("head", requests={"cpu": "4"}, topology=wish),
        podset("main", 0, requests={"cpu": "4"}, topology=wish),
    ]
    spot = TopologyAssignment((HOST,), ((("b2-r3-2",), 1),))
    assignment = Assignment(
        "cq",
        (
            PodSetAssignment("head", {"cpu": "tas"}, {"cpu": 4000}, 1, spot),
            PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 0}, 0),
        ),
    )
    cache.set_workload(workload("ray", podsets, version="2", elastic=True, assignment=assignment))
    slice_of(cache, cpu="4", wish=wish)
    assert set(domains(admissions(plan_cycle(cache))["s1"])) <= {"b2-r3-1", "b2-r3-2"}


@pytest.mark.requirement("SLC-31")
def test_a_slice_is_never_evicted_alone() -> None:
    cache = world(stopPolicy="HoldAndDrain")
    parent(cache)
    assignment = Assignment("cq", (PodSetAssignment("main", {"cpu": "plain"}, {"cpu": 1000}, 1),))
    slice_of(cache, assignment=assignment, version="2")
    slice_of(cache, "s2", assignment=assignment, version="2", active=False, unhealthy=["a"])
    assert [decision.workload for decision in plan_cycle(cache)] == ["team/ray"]
    assert cache.snapshot().with_unhealthy_nodes == []


def test_a_slice_is_not_deactivated_for_a_level_that_is_gone() -> None:
    cache = world(TAS)
    placed(cache, {"required": RACK}, b1_r1_1=1)
    cache.set_topology(topology(levels=(BLOCK, HOST)))
    slice_of(cache, cpu="4", wish={"required": RACK})
    assert waits_for(cache).reason == "NoMatchingFlavor"


def without_places(cache: Cache) -> None:
    parent(cache, of="tas")


def on_a_host(cache: Cache) -> None:
    placed(cache, {"preferred": RACK}, b1_r1_1=1)


def on_some_host(cache: Cache) -> None:
    placed(cache, None, b1_r1_1=1)


@pytest.mark.parametrize(
    ("given", "levels", "gates"),
    [
        (without_places, (BLOCK, RACK, HOST), {}),
        (on_a_host, (BLOCK, RACK), {}),
        (on_some_host, (BLOCK, RACK, HOST), {"TopologyAwareScheduling": False}),
    ],
    ids=["topology is new", "other levels", "topology is gone"],
)
@pytest.mark.requirement("SLC-14", "SLC-36")
def test_a_slice_that_could_not_be_counted_with_its_parent_is_not_admitted(
    given: Any, levels: tuple[str, ...], gates: dict[str, bool]
) -> None:
    """It would hold quota for good: nobody is granted anything by it. Others are not held up."""
    cache = world(TAS, queueingStrategy="StrictFIFO")
    given(cache)
    cache.set_topology(topology(levels=levels))
    request = cache.workloads["team/ray"].podsets[0].request
    wish = {"preferred": RACK} if request.topology is not None else None
    slice_of(cache, cpu=f"{request.requests['cpu'] // 1000}", wish=wish)
    cache.set_workload(workload("behind", [podset(requests={"cpu": "1"})], created="9"))
    decisions = plan_cycle(cache, features=Features.of({**GATE, **gates}))
    (hold,) = (found for found in decisions if isinstance(found, Requeue))
    assert (hold.workload, hold.reason) == ("team/s1", "Misconfigured")
    assert "the job can scale up again after it was requeued" in hold.message
    assert list(admissions(decisions)) == ["behind"]


def test_what_is_no_slice_is_not_touched_by_its_rules() -> None:
    cache = world()
    found = workload("w", [podset()], parent="ray")
    found.metadata.annotations.clear()
    cache.set_workload(found)
    assert list(admissions(plan_cycle(cache, features=Features.of({})))) == ["w"]
