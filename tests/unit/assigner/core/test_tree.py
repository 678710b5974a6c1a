"""Which nodes take part, and how they form domains."""

from __future__ import annotations

from weakref import WeakSet

import numpy as np
import pytest

from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.nodes import STALE_LIMIT
from rackgate_assigner.topology.tree import AMOUNT_LIMIT, TopologyTree, takes_part
from rackgate_assigner.topology.update import update_tree
from tests.unit.assigner.core.clusters import BLOCK, HOST, LEVELS, RACK, node


@pytest.mark.requirement("TAS-04")
@pytest.mark.field_note("C18", "C9")
@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (node("b1/r1/x1", ready=False), "not ready"),
        (node("b1/r1/x1", unschedulable=True), "unschedulable"),
        (
            NodeInfo("x1", {BLOCK: "b1", HOST: "x1", "pool": "tas"}, {}),
            'level label "rack" is missing',
        ),
        (
            node("b1/r1/x1", labels={"pool": "web"}),
            'label "pool" is "web", the flavor requires "tas"',
        ),
        (node("b1/r1/x1"), 'label "pool" is missing, the flavor requires "tas"'),
    ],
)
def test_a_node_left_out_is_named_with_its_reason(facts: NodeInfo, reason: str) -> None:
    tree = TopologyTree.build(LEVELS, [facts], node_labels={"pool": "tas"})
    assert tree.skipped == {"x1": reason}
    assert tree.leaf_count == 0
    assert not takes_part(facts, {"pool": "tas"}, LEVELS)


@pytest.mark.requirement("TAS-05")
@pytest.mark.field_note("C14")
def test_equal_values_under_different_parents_are_different_domains() -> None:
    tree = TopologyTree.build(LEVELS, [node("b1/r1/x1"), node("b2/r1/x2"), node("b2/b1/x3")])
    assert tree.paths[1] == [("b1", "r1"), ("b2", "b1"), ("b2", "r1")]
    assert tree.parents[1].tolist() == [0, 1, 1]


@pytest.mark.field_note("C14")
def test_joined_paths_that_read_the_same_stay_apart() -> None:
    levels = (BLOCK, RACK)
    nodes = [
        NodeInfo("x1", {BLOCK: "a,b", RACK: "c"}, {}),
        NodeInfo("x2", {BLOCK: "a", RACK: "b,c"}, {}),
    ]
    assert TopologyTree.build(levels, nodes).leaf_count == 2


def test_children_and_leaves_of_a_domain_are_one_run() -> None:
    hosts = ["b2/r1/x5", "b1/r2/x1", "b1/r1/x9", "b1/r1/x3"]
    tree = TopologyTree.build(LEVELS, [node(path) for path in hosts])
    assert [path[-1] for path in tree.paths[2]] == ["x3", "x9", "x1", "x5"]
    assert tree.children[0].tolist() == [0, 2, 3]
    assert tree.children[1].tolist() == [0, 2, 3, 4]
    assert tree.leaf_ranges[0].tolist() == [0, 3, 4]
    assert [tree.domain_of_leaf(leaf, 0) for leaf in range(4)] == [0, 0, 0, 1]


@pytest.mark.requirement("TAS-13")
def test_a_host_is_found_by_its_own_value_and_a_rack_by_its_whole_path() -> None:
    nodes = [node("b1/r1/x1", name="node-1"), node("b2/r1/x2", name="node-2")]
    hosts = TopologyTree.build(LEVELS, nodes)
    assert hosts.leaf_of_values(("x2",)) == hosts.leaf_of_node("node-2") == 1
    assert hosts.leaf_of_values(()) is None
    assert hosts.assignment_levels == (HOST,)
    assert hosts.values_of_leaf(1) == ("x2",)
    racks = TopologyTree.build(LEVELS[:2], nodes)
    assert racks.leaf_of_values(("b2", "r1")) == racks.leaf_of_host("x2") == 1
    assert racks.leaf_of_values(("r1",)) is None
    assert racks.assignment_levels == (BLOCK, RACK)


def test_of_two_nodes_with_one_hostname_only_the_first_counts_and_the_other_is_reported() -> None:
    nodes = [node("b1/r1/x1", name="n-b"), node("b2/r1/x1", name="n-a")]
    for order in (nodes, nodes[::-1]):
        tree = TopologyTree.build(LEVELS, order)
        assert tree.paths[2] == [("b2", "r1", "x1")]
        assert tree.skipped == {"n-b": 'hostname "x1" belongs to node "n-a" already'}


@pytest.mark.requirement("CAP-06")
def test_nodes_of_one_rack_are_summed_where_the_rack_is_lowest() -> None:
    nodes = [node(f"b1/r1/x{i}", offers={"cpu": 3}) for i in range(4)]
    tree = TopologyTree.build(LEVELS[:2], nodes)
    assert tree.resources == ("cpu", "pods")
    assert tree.allocatable.tolist() == [[12], [440]]


@pytest.mark.field_note("C16")
def test_absurd_amounts_are_clamped_so_that_sums_stay_whole() -> None:
    nodes = [node(f"b1/r1/x{i}", offers={"cpu": 2**200}) for i in range(8)]
    assert TopologyTree.build(LEVELS[:2], nodes).allocatable[0].tolist() == [8 * AMOUNT_LIMIT]


def test_a_tree_without_nodes_has_no_domains() -> None:
    tree = TopologyTree.build(LEVELS, [])
    assert [len(paths) for paths in tree.paths] == [0, 0, 0]
    assert Capacity(tree).free.shape == (0, 1)


def test_a_topology_without_levels_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one level"):
        TopologyTree.build((), [])


@pytest.mark.requirement("TAS-31")
@pytest.mark.parametrize("depth", [1, 2, 3, 8, 16])
def test_any_depth_of_levels_builds(depth: int) -> None:
    levels = tuple(f"level-{i}" for i in range(depth))
    nodes = [
        NodeInfo(f"n{i}", {key: f"v{i >> (depth - 1 - at)}" for at, key in enumerate(levels)}, {})
        for i in range(4)
    ]
    tree = TopologyTree.build(levels, nodes)
    assert tree.leaf_count == 4
    assert np.array_equal(tree.leaf_ranges[0], [0, *np.cumsum(np.diff(tree.leaf_ranges[0]))])


class Host(str):
    """A hostname of which one can tell whether anything still holds it."""


def test_hostnames_that_no_node_of_a_rack_has_any_more_are_forgotten() -> None:
    hosts: WeakSet[Host] = WeakSet()
    tree = TopologyTree.build((BLOCK, RACK), [])
    for number in range(2 * STALE_LIMIT):
        host = Host(f"x{number}")
        hosts.add(host)
        tree = update_tree(tree, {"n": NodeInfo("n", {BLOCK: "b", RACK: "r", HOST: host}, {})}).tree
    assert tree.leaf_of_host(f"x{2 * STALE_LIMIT - 1}") == 0
    assert len(hosts) < STALE_LIMIT + 10
