"""One cycle: who is admitted, who waits with which words, who is deactivated or evicted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.features import Features
from rackgate.wire import kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Admit, Deactivate, Requeue
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    admissions,
    cache_with,
    cluster_queue,
    domains,
    flavor,
    fx_a,
    local_queue,
    namespace,
    node,
    plan_cycle,
    podset,
    topology,
    workload,
)

IN_RACK = {"required": RACK}


def racked(count: int, cpu: str = "4", **more: Any) -> list[dict[str, Any]]:
    return [podset(count=count, requests={"cpu": cpu}, topology=IN_RACK, **more)]


def racks_of(hosts: dict[str, int]) -> set[str]:
    return {host.rpartition("-")[0] for host in hosts}


@pytest.mark.requirement("TAS-16", "TAS-20", "USR-01", "TST-02")
def test_a_job_that_needs_a_rack_is_admitted_quota_and_one_rack_together() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", racked(4)))
    (decision,) = plan_cycle(cache)
    assert isinstance(decision, Admit)
    assert decision.assignment.cluster_queue == "cq"
    placed = domains(decision.assignment)
    assert sum(placed.values()) == 4
    assert len(racks_of(placed)) == 1


@pytest.mark.requirement("TAS-32")
def test_a_workload_that_pauses_is_passed_over_until_the_pause_is_ended() -> None:
    """It takes no room, and holds up nobody behind it in a StrictFIFO queue."""
    cache = cache_with(fx_a())
    cache.set_cluster_queue(cluster_queue(queueingStrategy="StrictFIFO"))
    first = workload("a", racked(4), created="2020-01-01T00:00:00Z")
    pause = kueue.RequeueState(1, "2026-08-01T12:10:00Z")
    status = msgspec.structs.replace(first.status, requeue_state=pause)
    cache.set_workload(msgspec.structs.replace(first, status=status))
    cache.set_workload(workload("b", racked(4)))
    held, behind = plan_cycle(cache)
    told = "not all of its pods were ready in time: queued again at 2026-08-01T12:10:00Z"
    assert held == Requeue("team/a", "PendingEvaluation", told)
    assert isinstance(behind, Admit)
    before = cache.epoch
    over = msgspec.structs.replace(status, requeue_state=kueue.RequeueState(1))
    cache.set_workload(msgspec.structs.replace(first, status=over))
    assert cache.epoch > before
    assert isinstance(plan_cycle(cache)[0], Admit)


@pytest.mark.requirement("TAS-17", "TAS-20", "USR-01", "TST-03")
def test_a_job_no_rack_can_hold_waits_in_the_fields_own_words() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", racked(5)))
    assert plan_cycle(cache) == [
        Requeue(
            "team/w",
            "TopologyPlacementFailed",
            "couldn't assign flavors to pod set main: "
            'topology "default" allows to fit only 4 out of 5 pod(s)',
        )
    ]


@pytest.mark.requirement("TST-01", "USR-01", "CAP-07")
def test_a_node_that_joins_a_rack_lets_the_job_in_wholly_there() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", racked(5)))
    assert isinstance(plan_cycle(cache)[0], Requeue)
    cache.set_node(node("b1-r2-3", "b1/r2", cpu="8"))
    (decision,) = plan_cycle(cache)
    assert isinstance(decision, Admit)
    placed = domains(decision.assignment)
    assert sum(placed.values()) == 5
    assert racks_of(placed) == {"b1-r2"}


@pytest.mark.requirement("TAS-20", "CAP-11")
def test_quota_that_others_hold_is_waited_for() -> None:
    cache = cache_with(fx_a(), queue=cluster_queue("cq", {"tas": {"cpu": "16"}}))
    cache.set_workload(workload("w1", racked(3)))
    cache.set_workload(workload("w2", racked(2)))
    admit, hold = plan_cycle(cache)
    assert isinstance(admit, Admit)
    assert isinstance(hold, Requeue)
    assert (hold.workload, hold.reason) == ("team/w2", "WaitingForQuota")


@pytest.mark.requirement("TAS-20")
def test_room_without_quota_is_not_enough() -> None:
    cache = cache_with(fx_a(), queue=cluster_queue("cq", {"tas": {"cpu": "12"}}))
    cache.set_workload(workload("w", racked(4)))
    (hold,) = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    assert hold.reason == "ExceedsMaxQuota"


@pytest.mark.requirement("CAP-11", "USR-03")
@pytest.mark.field_note("C11")
def test_two_admissions_of_one_cycle_never_share_room() -> None:
    cache = cache_with(fx_a())
    for index in range(6):
        cache.set_workload(workload(f"w{index}", racked(4)))
    granted = admissions(plan_cycle(cache))
    used = [host for assignment in granted.values() for host in domains(assignment)]
    assert len(granted) == 4
    assert len(used) == len(set(used)) == 8


@pytest.mark.requirement("CAP-11")
@pytest.mark.field_note("C11")
def test_two_queues_with_one_flavor_share_its_room_in_a_cycle() -> None:
    cache = cache_with([node("a", cpu="4")])
    cache.set_cluster_queue(cluster_queue("other"))
    cache.set_local_queue(local_queue("lq2", "other"))
    cache.set_workload(workload("w1", [podset(count=3)]))
    cache.set_workload(workload("w2", [podset(count=3)], queue="lq2"))
    assert list(admissions(plan_cycle(cache))) == ["w1"]


@pytest.mark.field_note("C13")
def test_two_flavors_on_the_same_node_share_its_room_in_a_cycle() -> None:
    cache = cache_with([node("a", cpu="4")], queue=cluster_queue("cq", {"tas": {"cpu": "99"}}))
    cache.set_flavor(flavor("twin"))
    cache.set_cluster_queue(cluster_queue("other", {"twin": {"cpu": "99"}}))
    cache.set_local_queue(local_queue("lq2", "other"))
    cache.set_workload(workload("w1", [podset(count=3)]))
    cache.set_workload(workload("w2", [podset(count=3)], queue="lq2"))
    assert list(admissions(plan_cycle(cache))) == ["w1"]


@pytest.mark.requirement("TAS-21")
@pytest.mark.field_note("C10")
def test_podsets_of_one_workload_share_the_room_also_over_two_flavors() -> None:
    cache = cache_with(
        [node("a", cpu="4")], queue=cluster_queue("cq", {"tas": {"cpu": "3"}, "twin": {"cpu": "9"}})
    )
    cache.set_flavor(flavor("twin"))
    cache.set_workload(workload("w", [podset("one", 3), podset("two", 2)]))
    (hold,) = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    assert "pod set two" in hold.message
    cache.set_workload(workload("w", [podset("one", 3), podset("two", 1)], generation=2))
    (admit,) = plan_cycle(cache)
    assert isinstance(admit, Admit)
    assert [part.flavors["cpu"] for part in admit.assignment.podsets] == ["tas", "twin"]


@pytest.mark.requirement("TAS-21")
def test_a_rejected_workload_leaves_no_charge_behind() -> None:
    cache = cache_with(
        [node("a", cpu="4")], queue=cluster_queue("cq", {"tas": {"cpu": "3"}, "twin": {"cpu": "9"}})
    )
    cache.set_flavor(flavor("twin"))
    cache.set_workload(workload("big", [podset("one", 3), podset("two", 2)], priority=9))
    cache.set_workload(workload("small", [podset(count=4)]))
    assert list(admissions(plan_cycle(cache))) == ["small"]


@pytest.mark.field_note("C17")
def test_a_podset_without_pods_is_admitted_and_takes_nothing() -> None:
    cache = cache_with(fx_a())
    podsets = [podset("head", 1, topology=IN_RACK), podset("none", 0, topology=IN_RACK)]
    cache.set_workload(workload("w", podsets))
    (admit,) = plan_cycle(cache)
    assert isinstance(admit, Admit)
    head, none = admit.assignment.podsets
    assert head.topology is not None
    assert (none.count, none.topology, none.usage) == (0, None, {"cpu": 0})


@pytest.mark.requirement("TAS-12")
@pytest.mark.field_note("U5", "P5")
def test_slices_that_do_not_divide_the_pods_are_rejected_whole() -> None:
    sliced = {"podSetSliceRequiredTopology": HOST, "podSetSliceSize": 2, "required": RACK}
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", [podset(count=7, topology=sliced)]))
    (hold,) = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    assert hold.reason == "Misconfigured"
    assert hold.message == (
        "spec.podSets[0].topologyRequest.podSetSliceSize: slices of 2 pods do not divide the "
        "podset's 7 pods; use a size that divides the count"
    )


@pytest.mark.requirement("TAS-22")
@pytest.mark.field_note("C19")
def test_the_order_of_events_does_not_change_the_plan() -> None:
    nodes = fx_a()
    works = [workload(f"w{index}", racked(3)) for index in range(5)]
    forward, backward = cache_with(nodes), cache_with(nodes[::-1])
    for found in works:
        forward.set_workload(found)
    for found in works[::-1]:
        backward.set_workload(found)
    assert plan_cycle(forward) == plan_cycle(backward) == plan_cycle(forward)


def test_priority_comes_first_then_age_then_name() -> None:
    cache = cache_with([node("a", cpu="1")])
    cache.set_workload(workload("b-old", created="2026-01-01T00:00:00Z"))
    cache.set_workload(workload("a-new", created="2026-01-02T00:00:00Z"))
    cache.set_workload(workload("c-old", created="2026-01-01T00:00:00Z"))
    assert list(admissions(plan_cycle(cache))) == ["b-old"]
    cache.set_workload(workload("z", priority=5, created="2026-01-03T00:00:00Z"))
    assert list(admissions(plan_cycle(cache))) == ["z"]


def test_best_effort_fifo_passes_over_what_does_not_fit() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("big", racked(5), priority=1))
    cache.set_workload(workload("small", racked(2)))
    assert list(admissions(plan_cycle(cache))) == ["small"]


STRICT_BEHIND = "waiting for the workloads ahead in StrictFIFO ClusterQueue cq"


def strict(quota: str = "1000", *, full: bool = False) -> Cache:
    """FX-A behind a StrictFIFO queue; `full`: one Workload has all racks but half of one."""
    queue = cluster_queue(quotas={"tas": {"cpu": quota}}, queueingStrategy="StrictFIFO")
    cache = cache_with(fx_a(), queue=queue)
    if full:
        cache.set_workload(workload("fills", [podset(count=14, requests={"cpu": "4"})]))
        (admit,) = plan_cycle(cache)
        assert isinstance(admit, Admit)
        holds = [podset(count=14, requests={"cpu": "4"})]
        cache.set_workload(workload("fills", holds, assignment=admit.assignment, version="2"))
    return cache


def test_strict_fifo_waits_behind_its_head() -> None:
    cache = strict(full=True)
    cache.set_workload(workload("big", racked(4), priority=1))
    cache.set_workload(workload("small", racked(2)))
    head, behind = plan_cycle(cache)
    assert isinstance(head, Requeue)
    assert head.workload == "team/big"
    assert behind == Requeue("team/small", "PendingEvaluation", STRICT_BEHIND)


NOWHERE = {"nodeSelector": {"no": "node"}}


@pytest.mark.requirement("TAS-20")
@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (racked(3), "ExceedsMaxQuota"),
        (racked(5, cpu="1", **NOWHERE), "TopologyPlacementFailed"),
        (racked(2, cpu="5"), "TopologyPlacementFailed"),
        ([podset(requests={"example.com/fpga": "1"})], "NoMatchingFlavor"),
    ],
    ids=["beyond the quota", "on no node", "on too few hosts", "of no flavor"],
)
def test_what_can_never_be_admitted_does_not_hold_the_head_of_a_strict_queue(
    head: list[dict[str, Any]], reason: str
) -> None:
    cache = strict("10")
    for second_of_rack in ("b1-r1-2", "b1-r2-2", "b2-r1-2", "b2-r3-2"):
        cache.drop_node(second_of_rack)
    cache.set_workload(workload("a-head", head, priority=1))
    cache.set_workload(workload("b-same", head, priority=1))
    cache.set_workload(workload("small", racked(1)))
    admit, first, second = plan_cycle(cache)
    assert isinstance(first, Requeue)
    assert isinstance(second, Requeue)
    assert (first.workload, first.reason) == ("team/a-head", reason)
    assert (second.workload, second.reason) == ("team/b-same", reason)
    assert isinstance(admit, Admit)
    off = plan_cycle(cache, features=Features.of({"RackgateStrictFIFOSkipsImpossible": False}))
    assert [found.reason for found in off if isinstance(found, Requeue)] == [
        reason,
        "PendingEvaluation",
        "PendingEvaluation",
    ]
    assert admissions(off) == {}


def test_a_head_that_only_waits_holds_a_strict_queue_behind_one_that_is_passed_over() -> None:
    cache = strict("58", full=True)
    cache.set_workload(workload("a-never", racked(15), priority=9))
    cache.set_workload(workload("b-waits", racked(1), priority=8))
    cache.set_workload(workload("c-small", racked(1, cpu="1")))
    assert [
        (found.workload, found.reason) for found in plan_cycle(cache) if isinstance(found, Requeue)
    ] == [
        ("team/a-never", "ExceedsMaxQuota"),
        ("team/b-waits", "WaitingForQuota"),
        ("team/c-small", "PendingEvaluation"),
    ]


def test_what_was_passed_over_is_the_head_again_when_the_quota_suffices() -> None:
    cache = strict("10")
    cache.set_workload(workload("big", racked(3), priority=1))
    cache.set_workload(workload("small", racked(1)))
    assert list(admissions(plan_cycle(cache))) == ["small"]
    grown = cluster_queue(quotas={"tas": {"cpu": "12"}}, queueingStrategy="StrictFIFO")
    cache.set_cluster_queue(grown)
    decisions = plan_cycle(cache)
    assert list(admissions(decisions)) == ["big"]
    assert [found.reason for found in decisions if isinstance(found, Requeue)] == [
        "WaitingForQuota"
    ]


def test_a_template_only_its_owner_can_fix_does_not_block_strict_fifo() -> None:
    cache = cache_with(fx_a(), queue=cluster_queue(queueingStrategy="StrictFIFO"))
    cache.set_workload(workload("bad", [podset(requests={"cpu": "many"})], priority=1))
    cache.set_workload(workload("good", racked(2)))
    hold, admit = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    assert hold.reason == "Misconfigured"
    assert "is not a quantity" in hold.message
    assert isinstance(admit, Admit)


def test_equal_shapes_are_rejected_with_one_placement() -> None:
    cache = cache_with(fx_a())
    for index in range(4):
        cache.set_workload(workload(f"w{index}", racked(5)))
    holds = plan_cycle(cache)
    assert len({hold.message for hold in holds if isinstance(hold, Requeue)}) == 1
    assert len(holds) == 4


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ("no local queue", "Misconfigured", "LocalQueue lq doesn't exist"),
        ("no cluster queue", "Misconfigured", "ClusterQueue cq doesn't exist"),
        ("local hold", "Suspended", "LocalQueue lq is inactive"),
        ("cluster hold", "Suspended", "ClusterQueue cq is inactive"),
        (
            "other namespace",
            "Misconfigured",
            "workload namespace doesn't match ClusterQueue selector",
        ),
    ],
)
def test_what_is_in_the_way_of_a_queue_is_reported(change: str, reason: str, message: str) -> None:
    cache = cache_with(fx_a())
    match change:
        case "no local queue":
            cache.drop_local_queue("team/lq")
        case "no cluster queue":
            cache.drop_cluster_queue("cq")
        case "local hold":
            cache.set_local_queue(local_queue(stopPolicy="Hold"))
        case "cluster hold":
            cache.set_cluster_queue(cluster_queue(stopPolicy="Hold"))
        case _:
            cache.set_cluster_queue(cluster_queue(namespaceSelector={"matchLabels": {"a": "b"}}))
    cache.set_workload(workload("w"))
    assert plan_cycle(cache) == [Requeue("team/w", reason, message)]


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        (None, False),
        ({"matchLabels": {"tier": "gold"}}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["tin"]}]}, False),
        ({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Gt", "values": ["1"]}]}, False),
    ],
)
def test_namespaces_are_matched_by_the_queues_selector(selector: Any, matches: bool) -> None:
    cache = cache_with(fx_a(), queue=cluster_queue(namespaceSelector=selector))
    cache.set_namespace(namespace("team", tier="gold"))
    cache.set_workload(workload("w"))
    assert isinstance(plan_cycle(cache)[0], Admit) is matches


def test_a_hold_that_stands_already_is_not_repeated() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", racked(5)))
    (hold,) = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    told = {"QuotaReserved": ("False", hold.reason, hold.message)}
    cache.set_workload(workload("w", racked(5), version="2", conditions=told))
    assert plan_cycle(cache) == []
    cache.set_node(node("extra", "b1/r1", cpu="2"))
    cache.set_node(node("more", "b1/r1", cpu="4"))
    assert list(admissions(plan_cycle(cache))) == ["w"]


def test_messages_are_cut_at_the_limit_of_a_condition() -> None:
    names = [f"flavor-{index:03}" for index in range(40)]
    cache = cache_with(queue=cluster_queue("cq", {name: {"cpu": "1"} for name in names}))
    for name in names:
        cache.set_flavor(flavor(name, None, {}))
    cache.set_workload(workload("w", [podset(count=2)]))
    (hold,) = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    assert len(hold.message) == 1024


@pytest.mark.requirement("VAL-02", "VAL-03")
@pytest.mark.parametrize("kind", ["required", "preferred"])
def test_a_level_that_no_offered_flavor_has_deactivates(kind: str) -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", [podset(topology={kind: "rak"})]))
    assert plan_cycle(cache) == [
        Deactivate(
            "team/w",
            "DeactivatedDueToInvalidTopology",
            f'spec.podSets[0].topologyRequest.{kind}: level "rak" is not in topology "default" '
            f"(levels: {BLOCK}, {RACK}, {HOST})",
        )
    ]


@pytest.mark.requirement("VAL-02")
def test_with_the_gate_off_an_unknown_level_waits_with_the_same_words() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", [podset(topology={"required": "rak"})]))
    (deactivate,) = plan_cycle(cache)
    (hold,) = plan_cycle(cache, features=Features.of({"DeactivateInvalidTopology": False}))
    assert isinstance(deactivate, Deactivate)
    assert isinstance(hold, Requeue)
    assert hold.message == deactivate.message


@pytest.mark.requirement("VAL-13")
def test_a_deactivated_workload_is_left_alone_until_it_is_switched_on_again() -> None:
    cache = cache_with(fx_a())
    podsets = [podset(topology={"required": "zone"})]
    cache.set_workload(workload("w", podsets, active=False))
    assert plan_cycle(cache) == []
    cache.set_topology(topology(levels=("zone", HOST)))
    for found in fx_a():
        labels = {**found.metadata.labels, "zone": "z1"}
        cache.set_node(node(found.metadata.name, cpu="8", labels=labels))
    cache.set_workload(workload("w", podsets, version="2", generation=2))
    assert list(admissions(plan_cycle(cache))) == ["w"]


@pytest.mark.requirement("VAL-04")
def test_one_annotated_template_demands_all_only_behind_its_gate() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", [podset("a", topology=IN_RACK), podset("b")]))
    assert isinstance(plan_cycle(cache)[0], Admit)
    (decision,) = plan_cycle(cache, features=Features.of({"RequireTopologyOnAllPodSets": True}))
    assert isinstance(decision, Deactivate)
    assert decision.message == (
        "spec.podSets[1].topologyRequest: a required or preferred level is missing, while "
        "spec.podSets[0] names one"
    )


@pytest.mark.parametrize(
    "found",
    [
        workload("w", active=False),
        workload("w", conditions={"Finished": ("True", "Succeeded", "")}),
        workload("w", deleting=True),
    ],
)
def test_who_does_not_ask_is_not_answered(found: Any) -> None:
    cache = cache_with(fx_a())
    cache.set_workload(found)
    assert plan_cycle(cache) == []
