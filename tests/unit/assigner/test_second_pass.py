"""Running Workloads get other places for what was on broken nodes, and keep the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.hosts import Hosts
from rackgate_assigner.node_replacement.second_pass import _NodeReplacement, second_pass
from rackgate_assigner.workload.decisions import (
    Assignment,
    ClearUnhealthyNodes,
    Evict,
    PodSetAssignment,
    ReplacementFailed,
    ReplaceNode,
    SecondPassDecision,
)
from rackgate_assigner.workload.info import HOST_LEVELS
from tests.unit.assigner.builders import (
    HOST,
    RACK,
    cache_with,
    cluster_queue,
    domains,
    node,
    pod,
    podset,
    rebuild_matches,
    workload,
)

REQUIRED = {"required": RACK}
WAIT = {"TASFailedNodeReplacementFailFast": False}


def nodes(**racks: str) -> list[Any]:
    """`r1="a b c!"`: nodes of 2 cpu by rack of block b1; `!` marks one that is not ready."""
    return [
        node(name.rstrip("!"), f"b1/{rack}", cpu="2", ready=not name.endswith("!"))
        for rack, names in racks.items()
        for name in names.split()
    ]


class Scene:
    """A cache with one running Workload `team/w`, and what the second pass says."""

    def __init__(self, found: Sequence[Any], **queue: Any) -> None:
        self.cache = cache_with(found, queue=cluster_queue(**queue) if queue else None)
        self.hosts = Hosts()
        for facts in self.cache.nodes.values():
            self.hosts.put(facts)

    def runs(
        self,
        *parts: tuple[str, Mapping[str, int], Mapping[str, Any] | None],
        unhealthy: Sequence[str] = (),
        name: str = "w",
        **more: Any,
    ) -> Scene:
        """An admitted Workload of PodSets (name, pods by host, topology request), 1 cpu each."""
        grants, podsets = [], []
        for part, at, asked in parts:
            total = sum(at.values())
            topology = TopologyAssignment(HOST_LEVELS, tuple(((h,), n) for h, n in at.items()))
            grants.append(
                PodSetAssignment(part, {"cpu": "tas"}, {"cpu": 1000 * total}, total, topology)
            )
            podsets.append(podset(part, total, topology=asked))
        made = workload(
            name, podsets, assignment=Assignment("cq", tuple(grants)), unhealthy=unhealthy, **more
        )
        self.cache.set_workload(made)
        return self

    def repairs(
        self, features: Mapping[str, bool] | None = None, asked: Sequence[str] = ()
    ) -> list[SecondPassDecision]:
        wanted = {"team/w": frozenset(asked)}
        return second_pass(self.cache.snapshot(), self.hosts, wanted, Features.of(features))

    def moved(self, **options: Any) -> dict[str, int]:
        """Pods by host of PodSet main after the one repair, which must be a move."""
        (repair,) = self.repairs(**options)
        assert isinstance(repair, ReplaceNode), repair
        return domains(repair.assignment)


def one(
    found: Sequence[Any],
    at: Mapping[str, int],
    *unhealthy: str,
    asked: Mapping[str, Any] | None = REQUIRED,
) -> Scene:
    return Scene(found).runs(("main", at, asked), unhealthy=unhealthy)


@pytest.mark.field_note("N8")
@pytest.mark.requirement("STR-05")
def test_pods_of_a_broken_node_move_within_their_rack_and_the_others_stay() -> None:
    scene = one(nodes(r1="a! b c", r2="d e"), {"a": 2, "b": 2}, "a")
    (repair,) = scene.repairs()
    assert isinstance(repair, ReplaceNode)
    assert domains(repair.assignment) == {"b": 2, "c": 2}
    assert repair.replaced == ("a",)


@pytest.mark.field_note("C20")
def test_nothing_but_assignments_of_the_admission_changes() -> None:
    scene = one(nodes(r1="a! b c"), {"a": 1, "b": 1}, "a")
    (repair,) = scene.repairs()
    assert isinstance(repair, ReplaceNode)
    before = scene.cache.workloads["team/w"].reserved
    assert before is not None
    assert repair.assignment.cluster_queue == before.cluster_queue
    for old, new in zip(before.podsets, repair.assignment.podsets, strict=True):
        assert (old.name, old.flavors, old.usage, old.count) == (
            new.name,
            new.flavors,
            new.usage,
            new.count,
        )


@pytest.mark.field_note("N7")
def test_two_broken_nodes_are_replaced_at_once_and_the_third_stays() -> None:
    scene = one(nodes(r1="a! c d e"), {"a": 2, "b": 2, "c": 2}, "a", "b")
    assert scene.moved() == {"c": 2, "d": 2, "e": 2}


@pytest.mark.field_note("N7")
def test_a_second_node_that_fails_before_its_pods_end_does_not_stop_the_first_swap() -> None:
    scene = one(nodes(r1="a! b! c d"), {"a": 2, "b": 2, "c": 2}, "a")
    assert scene.moved() == {"b": 2, "c": 2, "d": 2}


@pytest.mark.field_note("N7", "N8")
def test_where_only_unseen_nodes_hold_the_rest_their_labels_say_which_rack_it_is() -> None:
    scene = one(nodes(r1="c d", r2="a! b! e"), {"a": 2, "b": 2}, "a")
    assert scene.moved() == {"b": 2, "e": 2}


def test_when_all_nodes_are_gone_the_whole_podset_finds_one_new_rack() -> None:
    scene = one(nodes(r1="c", r2="d e"), {"a": 2, "b": 2}, "a", "b")
    assert scene.moved() == {"d": 2, "e": 2}


@pytest.mark.field_note("N7", "N8")
def test_a_slice_that_lost_two_hosts_is_fixed_in_its_rack() -> None:
    sliced = {"unconstrained": True, **_slices(4)}
    scene = one(
        nodes(r1="c! d e", r2="f g h"),
        {"a": 1, "b": 1, "d": 2, "f": 2, "g": 2},
        "a",
        "b",
        asked=sliced,
    )
    assert scene.moved() == {"d": 2, "e": 2, "f": 2, "g": 2}


@pytest.mark.field_note("N7", "N8")
def test_slices_that_lost_one_host_each_are_fixed_each_in_its_rack() -> None:
    at = {"a": 1, "d": 3, "b": 1, "f": 3}
    wide = [node(name, path, cpu="4") for name, path in (("d", "b1/r1"), ("f", "b1/r2"))]
    scene = Scene([*wide, *nodes(r3="x y")]).runs(
        ("main", at, {"unconstrained": True, **_slices(4)}), unhealthy=["a", "b"]
    )
    assert scene.moved() == {"d": 4, "f": 4}


def _slices(size: int) -> dict[str, Any]:
    return {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": size}


def test_a_slice_that_is_gone_as_a_whole_finds_a_new_rack() -> None:
    sliced = {"unconstrained": True, **_slices(2)}
    scene = one(nodes(r1="x", r2="c d"), {"a": 1, "b": 1, "x": 2}, "a", "b", asked=sliced)
    assert sum(scene.moved()[host] for host in ("c", "d") if host in scene.moved()) == 2


def test_without_a_place_the_workload_is_evicted_and_nothing_stays_charged() -> None:
    scene = one(nodes(r1="a! b", r2="d e"), {"a": 2, "b": 2}, "a")
    snapshot = scene.cache.snapshot()
    before = snapshot.flavor_topologies.by_flavor["tas"].capacity.free.copy()
    (repair,) = second_pass(snapshot, scene.hosts, {}, Features())
    assert isinstance(repair, Evict)
    assert repair.reason == "NodeFailures"
    assert "no replacement for a failed node: a; pod set main: " in repair.message
    assert (snapshot.flavor_topologies.by_flavor["tas"].capacity.free == before).all()


def test_with_fail_fast_off_it_keeps_what_it_has_and_says_what_is_missing() -> None:
    scene = one(nodes(r1="a! b! c", r2="d e"), {"a": 2, "b": 1, "c": 1}, "a", "b")
    stuck, move = scene.repairs(WAIT)
    assert isinstance(stuck, ReplacementFailed)
    assert stuck.message.startswith("no replacement found for a: pod set main: topology")
    assert isinstance(move, ReplaceNode)
    assert (domains(move.assignment), move.replaced) == ({"a": 2, "c": 2}, ("b",))
    (evicted,) = scene.repairs()
    assert isinstance(evicted, Evict), "by default half a repair is none"


@pytest.mark.field_note("C2", "C22")
def test_without_its_topology_no_one_is_evicted_for_want_of_a_place() -> None:
    scene = one(nodes(r1="a! b c"), {"a": 2, "b": 2}, "a")
    scene.cache.drop_topology("default")
    (repair,) = scene.repairs()
    assert isinstance(repair, ReplacementFailed)
    assert 'flavor "tas" has no topology with hosts now' in repair.message


@pytest.mark.field_note("N3")
def test_a_named_node_that_is_healthy_is_left_to_the_judgement_of_its_pods() -> None:
    assert one(nodes(r1="a b c"), {"a": 2, "b": 2}, "a").repairs() == []


def test_a_healthy_node_that_is_asked_for_is_replaced_and_not_chosen_again() -> None:
    scene = one(nodes(r1="a b c"), {"a": 1, "b": 1}, "a")
    assert scene.moved(asked=["a"]) == {"b": 2}


def test_a_healthy_node_without_another_place_keeps_its_pods() -> None:
    (repair,) = one(nodes(r1="a b", r2="c d"), {"a": 2, "b": 2}, "a").repairs(asked=["a"])
    assert isinstance(repair, ClearUnhealthyNodes)
    assert repair.names == ("a",)


@pytest.mark.field_note("C15")
def test_a_name_may_be_that_of_the_node_whose_hostname_label_differs() -> None:
    found = [node("machine-7", "b1/r1", host="a", ready=False), *nodes(r1="b c")]
    assert one(found, {"a": 1, "b": 1}, "machine-7").moved() == {"b": 2}


@pytest.mark.field_note("N4")
def test_a_workload_of_a_single_pod_keeps_its_assignment() -> None:
    scene = one(nodes(r1="a! b"), {"a": 1}, "a")
    row = scene.cache.workloads["team/w"]
    scene.cache.put_workload(replace(row, owned_by_pod=True))
    assert scene.repairs() == []


def test_podsets_on_one_broken_node_move_together_or_not_at_all() -> None:
    parts = (("main", {"a": 1, "b": 1}, REQUIRED), ("ps", {"a": 1}, {"required": HOST}))
    scene = Scene(nodes(r1="a! b c")).runs(*parts, unhealthy=["a"])
    (repair,) = scene.repairs()
    assert isinstance(repair, ReplaceNode)
    assert sum(domains(repair.assignment).values()) == 2
    assert "a" not in {*domains(repair.assignment), *domains(repair.assignment, "ps")}
    crowded = Scene(nodes(r1="a! b")).runs(*parts, unhealthy=["a"])
    assert isinstance(crowded.repairs()[0], Evict)


@pytest.mark.requirement("STR-05")
@pytest.mark.field_note("C11", "N7")
def test_two_workloads_on_one_broken_node_do_not_share_the_spare_one() -> None:
    scene = Scene(nodes(r1="a! c"))
    for name in ("v", "w"):
        scene.runs(("main", {"a": 2}, REQUIRED), unhealthy=["a"], name=name)
    kinds = [type(repair) for repair in scene.repairs()]
    assert kinds == [ReplaceNode, Evict]


@pytest.mark.requirement("STR-05")
@pytest.mark.field_note("C4", "C11", "N7")
def test_a_host_whose_pods_may_still_run_is_given_to_no_one_in_the_same_cycle() -> None:
    found = [node("a", "b1/r1", cpu="2"), node("c", "b1/r2", cpu="2")]
    found.append(node("b", "b1/r1", cpu="2", ready=False))
    scene = Scene(found)
    scene.runs(("main", {"a": 2}, None), unhealthy=["a"], name="v")
    scene.runs(("main", {"b": 2}, None), unhealthy=["b"], name="w")
    snapshot = scene.cache.snapshot()
    first, second = second_pass(
        snapshot, scene.hosts, {"team/v": frozenset({"a"})}, Features.of(WAIT)
    )
    assert isinstance(first, ReplaceNode)
    assert domains(first.assignment) == {"c": 2}
    assert isinstance(second, ReplacementFailed), (
        "the pods of the first sit on the host that it gave up"
    )
    capacity = snapshot.flavor_topologies.by_flavor["tas"].capacity
    assert capacity.free[capacity.tree.leaf_of_host("a"), capacity.rows["cpu"]] == 0


def test_a_defect_of_ours_stops_one_workload_alone() -> None:
    scene = Scene(nodes(r1="a b! c d"))
    scene.runs(("main", {"a": 1}, None), unhealthy=["a"], name="v")
    scene.runs(("main", {"b": 1}, None), unhealthy=["b"], name="w")
    nonsense: Any = {"team/v": None}
    stuck, moved = second_pass(scene.cache.snapshot(), scene.hosts, nonsense, Features())
    assert isinstance(stuck, ReplacementFailed)
    assert "internal error" in stuck.message
    assert isinstance(moved, ReplaceNode)


def groups(found: Sequence[Any], at: Mapping[str, int], *unhealthy: str) -> list[int]:
    """Sizes of the groups of hosts that a Workload of rack-wide slices of 4 is mended by."""
    scene = one(found, at, *unhealthy, asked={"unconstrained": True, **_slices(4)})
    row, snapshot = scene.cache.workloads["team/w"], scene.cache.snapshot()
    replacement_plan = _NodeReplacement(row, snapshot, scene.hosts, frozenset(), Features())
    return [len(group) for group in replacement_plan._groups_of_hosts(unhealthy)]


@pytest.mark.field_note("N7")
def test_hosts_that_are_as_good_as_each_other_are_tried_once() -> None:
    racks = range(8)
    found = [node(f"n{r}-{i}", f"b1/r{r}") for r in racks for i in range(1, 4)]
    at = {f"n{r}-{i}": 1 for r in racks for i in range(4)}
    lost = [f"n{r}-0" for r in racks]
    assert groups(found, at, *lost) == [1, 2, 3, 4, 5, 6, 7, 8]
    down = [node(name, f"b1/r{r}", ready=False) for r, name in enumerate(lost)]
    sizes = groups([*found, *down], at, *lost)
    assert (sizes[:8], len(sizes), sizes[-1]) == ([1] * 8, 65, 8)
    wide = at | {f"m{number}": 1 for number in range(10_000)}
    assert groups([*found, *down], wide, *lost)[8:] == [2, 2, 2, 2, 2, 8]


@pytest.mark.parametrize(
    "more",
    [
        {"conditions": {"Evicted": ("True", "Preempted", "")}},
        {"conditions": {"Finished": ("True", "Succeeded", "")}},
        {"active": False},
        {"deleting": True},
    ],
)
def test_who_is_leaving_gets_no_new_place(more: dict[str, Any]) -> None:
    scene = Scene(nodes(r1="a! b c")).runs(("main", {"a": 1}, None), unhealthy=["a"], **more)
    assert scene.repairs() == []


def test_who_is_drained_with_his_queue_gets_no_new_place() -> None:
    scene = Scene(nodes(r1="a! b c"), stopPolicy="HoldAndDrain")
    assert scene.runs(("main", {"a": 1}, None), unhealthy=["a"]).repairs() == []


@pytest.mark.field_note("C4", "C11", "N7")
def test_after_a_swap_the_old_pod_holds_its_host_and_the_new_place_is_taken() -> None:
    scene = one(nodes(r1="a b c"), {"a": 2, "b": 2}, "a")
    cache: Cache = scene.cache
    for number, host in enumerate("aabb"):
        cache.set_pod(pod(f"p{number}", host, workload="w"))
    (repair,) = scene.repairs(asked=["a"])
    assert isinstance(repair, ReplaceNode)
    cache.assume("team/w", repair.assignment, replace_existing=True)
    assert cache.snapshot().with_unhealthy_nodes == [], "decided already"
    _expect_free(cache, {"a": 0, "b": 0, "c": 0})
    assert rebuild_matches(cache) == []
    made = workload(
        "w", [podset(count=4, topology=REQUIRED)], version="2", assignment=repair.assignment
    )
    cache.set_workload(made)
    assert cache.assumed == {}
    _expect_free(cache, {"a": 0, "b": 0, "c": 0})
    for number in (0, 1):
        cache.drop_pod(f"team/p{number}")
    _expect_free(cache, {"a": 2000, "b": 0, "c": 0})
    assert rebuild_matches(cache) == []


def test_a_swap_that_is_rejected_gives_its_place_back() -> None:
    scene = one(nodes(r1="a! b c"), {"a": 2, "b": 2}, "a")
    (repair,) = scene.repairs()
    assert isinstance(repair, ReplaceNode)
    scene.cache.assume("team/w", repair.assignment, replace_existing=True)
    _expect_free(scene.cache, {"b": 0, "c": 0})
    scene.cache.forget("team/w")
    _expect_free(scene.cache, {"b": 0, "c": 2000})
    assert rebuild_matches(scene.cache) == []


def _expect_free(cache: Cache, cpu: Mapping[str, int]) -> None:
    capacity = cache.flavor_topologies().by_flavor["tas"].capacity
    row = capacity.rows["cpu"]
    found = {host: int(capacity.free[capacity.tree.leaf_of_host(host), row]) for host in cpu}
    assert found == dict(cpu)


def test_a_name_in_the_status_wakes_the_cycle() -> None:
    scene = one(nodes(r1="a! b c"), {"a": 1})
    epoch = scene.cache.epoch
    scene.runs(("main", {"a": 1}, REQUIRED), unhealthy=["a"], version="2")
    assert scene.cache.epoch > epoch
