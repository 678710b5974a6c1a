"""Each kind of event, taken in by trees that are there already; snapshots never see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest

from rackgate.wire import core
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.flavor_topologies import FlavorTopologies, FlavorTopology
from rackgate_assigner.topology.model import NodeInfo, PodSetRequest, TopologyRequest
from rackgate_assigner.topology.placement.place import place
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    admissions,
    cache_with,
    cluster_queue,
    flavor,
    node,
    plan_cycle,
    pod,
    podset,
    rebuild_matches,
    topology,
    workload,
)

TAINT = {"key": "k", "effect": "NoSchedule"}


@pytest.fixture
def cache() -> Cache:
    """Three nodes in two racks, four pods of 1 cpu of one Workload and one foreign pod on them."""
    cache = cache_with([node("a"), node("b"), node("c", "b1/r2")])
    cache.set_workload(workload("w", [podset(count=4)]))
    assignment = admissions(plan_cycle(cache))["w"]
    cache.set_workload(workload("w", [podset(count=4)], version="2", assignment=assignment))
    cache.set_pod(pod("foreign", "b"))
    cache.flavor_topologies()
    return cache


def flavor_topology(cache: Cache, name: str = "tas") -> FlavorTopology:
    return cache.flavor_topologies().by_flavor[name]


def free(cache: Cache, resource: str = "cpu", name: str = "tas") -> dict[str, int]:
    """Free amount of each leaf, by the last value of its path."""
    found = flavor_topology(cache, name)
    row = found.capacity.rows[resource]
    leaves = enumerate(found.tree.paths[-1])
    return {path[-1]: int(found.capacity.free[leaf, row]) for leaf, path in leaves}


def refusal(found: FlavorTopology, **asked: Any) -> str:
    """Why so much never fits."""
    request = PodSetRequest("main", 99, {"cpu": 4000}, TopologyRequest(**asked))
    refused = place(found.tree, found.capacity, [request], topology_name="t").failure
    assert refused is not None
    return refused.message


def picture(flavor_topologies: FlavorTopologies) -> dict[str, Any]:
    """What a snapshot says."""
    return {
        name: (
            [one.name for one in found.tree.nodes],
            [list(paths) for paths in found.tree.paths],
            found.tree.skipped,
            found.capacity.free.tolist(),
            found.capacity.usage.tolist(),
            found.tree.leaf_of_node("new"),
            found.tree.leaf_of_host("c"),
            refusal(found, required=RACK),
        )
        for name, found in flavor_topologies.by_flavor.items()
    }


GONE: list[Callable[[Cache], Any]] = [
    lambda cache: cache.set_node(node("c", "b1/r2", ready=False)),
    lambda cache: cache.set_node(node("c", "b1/r2", unschedulable=True)),
    lambda cache: cache.set_node(node("c", "b1/r2", labels={"pool": "web"})),
    lambda cache: cache.drop_node("c"),
]
CHANGES: list[Callable[[Cache], Any]] = [
    *GONE,
    lambda cache: cache.set_node(node("new", "b2/r1")),
    lambda cache: cache.set_node(node("a", "b0/r0")),
    lambda cache: cache.set_node(node("a", cpu="9")),
    lambda cache: cache.set_node(node("a", taints=[TAINT])),
    lambda cache: cache.set_node(node("a", labels={"other": "label"})),
    lambda cache: cache.set_node(node("z", host="c")),
    lambda cache: cache.set_node(node("0", host="c")),
    lambda cache: cache.drop_workload("team/w"),
    lambda cache: cache.set_pod(pod("more", "a")),
    lambda cache: cache.set_flavor(flavor(node_labels={"pool": "gpu", HOST: "a"})),
    lambda cache: cache.drop_topology("default"),
]


@pytest.mark.requirement("TAS-04", "CAP-07")
@pytest.mark.parametrize("change", CHANGES)
def test_an_old_snapshot_stays_as_it_was_and_the_cache_is_right(
    cache: Cache, change: Callable[[Cache], Any]
) -> None:
    flavor_topology(cache).tree.column(None)
    snapshot = cache.flavor_topologies().copy()
    before = picture(snapshot)
    change(cache)
    assert rebuild_matches(cache) == []
    assert picture(snapshot) == before
    change(cache)
    assert rebuild_matches(cache) == []


@pytest.mark.requirement("TAS-04")
@pytest.mark.parametrize("change", GONE)
def test_a_node_that_takes_no_part_any_more_is_in_no_answer(
    cache: Cache, change: Callable[[Cache], Any]
) -> None:
    assert "Total nodes: 3;" in refusal(flavor_topology(cache), required=RACK)
    change(cache)
    found = flavor_topology(cache)
    assert found.tree.paths == ([("b1",)], [("b1", "r1")], [("b1", "r1", "a"), ("b1", "r1", "b")])
    assert "Total nodes: 2; excluded" in refusal(found, required=RACK)
    assert found.tree.leaf_of_node("c") is None


@pytest.mark.requirement("TAS-04")
def test_without_any_node_left_no_level_has_domains_and_nodes_may_come_back(cache: Cache) -> None:
    for name in "abc":
        cache.drop_node(name)
    assert refusal(flavor_topology(cache), required=RACK) == f"no topology domains at level: {RACK}"
    cache.set_node(node("a"))
    assert (free(cache), rebuild_matches(cache)) == ({"a": 0}, [])


def test_only_what_changed_is_made_again(cache: Cache) -> None:
    before = flavor_topology(cache).tree
    cache.set_node(node("a", cpu="9"))
    after = flavor_topology(cache).tree
    assert after is not before
    assert after.paths is before.paths
    assert after.memo is before.memo
    assert flavor_topology(cache).tree is after


@pytest.mark.requirement("CAP-07")
def test_judgements_of_taints_and_selectors_follow_the_node(cache: Cache) -> None:
    request = PodSetRequest("main", 1, {"cpu": 4000}, node_selector={"disk": "ssd"})

    def placed() -> bool:
        found = flavor_topology(cache)
        return place(found.tree, found.capacity, [request], topology_name="t").failure is None

    assert not placed()
    cache.set_node(node("c", "b1/r2", labels={"disk": "ssd"}))
    assert placed()
    cache.set_node(node("c", "b1/r2", labels={"disk": "ssd"}, taints=[TAINT]))
    assert not placed()


@pytest.mark.field_note("C2")
@pytest.mark.requirement("CAP-02", "CAP-03", "TAS-23")
def test_a_node_made_again_elsewhere_has_its_pods_and_assignments_at_once(cache: Cache) -> None:
    before = free(cache)
    assert sorted(before.values()) == [0, 3000, 4000]
    for name in "ab":
        cache.drop_node(name)
        cache.set_node(node(name, "b7/r7"))
    assert free(cache) == before
    assert rebuild_matches(cache) == []


@pytest.mark.requirement("CAP-01")
def test_a_resource_that_appears_late_knows_who_uses_it_already(cache: Cache) -> None:
    cache.set_workload(workload("g", [podset(requests={"cpu": "1"})]))
    assignment = admissions(plan_cycle(cache))["g"]
    wants = [podset(requests={"cpu": "1", "example.com/gpu": "2"})]
    cache.set_workload(workload("g", wants, version="2", generation=2, assignment=assignment))
    (host,) = assignment.podsets[0].topology.domains[0][0]  # type: ignore[union-attr]  # it has one
    assert "example.com/gpu" not in flavor_topology(cache).capacity.rows
    for name in "abc":
        found = node(name, "b1/r2" if name == "c" else "b1/r1")
        found.status.allocatable["example.com/gpu"] = "8"
        cache.set_node(found)
        left = free(cache, "example.com/gpu")
        assert left[host] == (6 if host <= name else -2)
        assert rebuild_matches(cache) == []
    for name in "abc":
        cache.set_node(node(name, "b1/r2" if name == "c" else "b1/r1"))
    assert "example.com/gpu" not in flavor_topology(cache).capacity.rows


@pytest.mark.field_note("C15")
def test_of_nodes_with_one_hostname_the_next_one_takes_over(cache: Cache) -> None:
    cache.set_node(node("x", "b3/r3", host="c"))
    assert flavor_topology(cache).tree.skipped == {"x": 'hostname "c" belongs to node "c" already'}
    cache.drop_node("c")
    assert flavor_topology(cache).tree.skipped == {}
    assert flavor_topology(cache).tree.paths[2][-1] == ("b3", "r3", "c")
    cache.set_node(node("c", "b1/r2"))
    assert flavor_topology(cache).tree.leaf_of_node("x") is None
    assert rebuild_matches(cache) == []


@pytest.mark.field_note("C15")
def test_in_a_rack_the_last_node_with_a_hostname_takes_what_is_placed_on_it() -> None:
    cache = cache_with([node("a", "b1/r1", host="h"), node("b", "b1/r2", host="h")])
    cache.set_topology(topology("racks", (BLOCK, RACK)))
    cache.set_flavor(flavor("by-rack", "racks"))
    cache.set_workload(workload("w", [podset(count=3)]))
    assignment = admissions(plan_cycle(cache))["w"]
    cache.set_workload(workload("w", [podset(count=3)], version="2", assignment=assignment))
    assert free(cache, name="by-rack") == {"r1": 4000, "r2": 1000}
    cache.set_node(node("b", "b1/r2", host="h", ready=False))
    assert free(cache, name="by-rack") == {"r1": 1000}
    cache.set_node(node("b", "b1/r2", host="h"))
    assert free(cache, name="by-rack") == {"r1": 4000, "r2": 1000}


@pytest.mark.field_note("C13")
def test_a_rack_is_shared_from_the_moment_two_flavors_have_a_node_of_it() -> None:
    cache = cache_with(
        [node("a", labels={"kind": "x"}), node("b", labels={"kind": "y"})],
        queue=cluster_queue("cq", {"x": {"cpu": "9"}}),
    )
    cache.set_topology(topology("racks", (BLOCK, RACK)))
    for kind in "xy":
        cache.set_flavor(flavor(kind, "racks", {"kind": kind}))
    cache.set_workload(workload("w", [podset(count=3)]))
    assignment = admissions(plan_cycle(cache))["w"]
    cache.set_workload(workload("w", [podset(count=3)], version="2", assignment=assignment))
    assert (free(cache, name="x"), free(cache, name="y")) == ({"r1": 1000}, {"r1": 4000})
    cache.set_flavor(flavor("y", "racks", {"pool": "gpu"}))
    assert free(cache, name="y") == {"r1": 5000}
    cache.set_node(node("a", labels={"kind": "z"}))
    assert free(cache, name="y") == {"r1": 8000}
    cache.drop_flavor("x")
    assert free(cache, name="y") == {"r1": 5000}
    assert rebuild_matches(cache) == []


def test_a_flavor_that_only_tolerates_more_keeps_its_tree(cache: Cache) -> None:
    before = flavor_topology(cache).tree
    cache.set_flavor(flavor(tolerations=[{"operator": "Exists"}]))
    assert flavor_topology(cache).tree is before
    assert flavor_topology(cache).flavor.tolerations != ()


def test_very_many_changes_at_once_are_right_as_well(cache: Cache) -> None:
    for index in range(200):
        cache.set_node(node(f"n{index}", f"b{index % 3}/r{index % 7}"))
    cache.flavor_topologies()
    found: list[core.Node] = [
        node(f"n{index}", f"b{index % 4}/r{index % 7}", ready=bool(index % 5))
        for index in range(0, 200, 2)
    ]
    for one in found[:40]:
        cache.set_node(one)
    assert rebuild_matches(cache) == []
    for one in found:
        cache.set_node(one)
    assert rebuild_matches(cache) == []


class Name(str):
    """A name of which one can tell whether anything still holds it."""


@pytest.mark.parametrize("asked", [False, True])
def test_names_of_nodes_that_are_gone_are_forgotten_also_where_no_one_asks(asked: bool) -> None:
    cache = cache_with([])
    if asked:
        cache.flavor_topologies()
    names: WeakSet[Name] = WeakSet()
    for number in range(500):
        name, host = Name(f"node-{number}"), Name(f"host-{number}")
        names.update((name, host))
        cache.put_node(NodeInfo(name, {BLOCK: "b", RACK: "r", HOST: host, "pool": "gpu"}, {}))
        cache.drop_node(name)
        del name, host
    assert len(names) < 150
    cache.put_node(NodeInfo("a", {BLOCK: "b", RACK: "r", HOST: "a", "pool": "gpu"}, {}))
    assert flavor_topology(cache).tree.leaf_of_node("a") == 0
    assert rebuild_matches(cache) == []


@pytest.mark.requirement("CAP-07", "CAP-09")
def test_should_taking_in_fail_the_next_question_plants_from_scratch(cache: Cache) -> None:
    with pytest.MonkeyPatch.context() as planted:
        planted.delattr(
            "rackgate_assigner.cache.flavor_topologies.update_tree"
        )  # a defect, planted
        cache.set_node(node("d", "b1/r2"))
        with pytest.raises(NameError):
            cache.flavor_topologies()
    cache.drop_pod("team/foreign")
    assert "d" in free(cache)
    assert rebuild_matches(cache) == []
