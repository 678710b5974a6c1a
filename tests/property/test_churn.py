"""Nodes that come, go, flip and move all day: trees stay right, old ones stay, nothing grows."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.flavor_topologies import FlavorTopologies
from rackgate_assigner.cache.usage import WorkloadUsage
from rackgate_assigner.quota.queues import FlavorInfo
from rackgate_assigner.topology import nodes as node_numbers
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.tree import TopologyTree
from rackgate_assigner.topology.update import update_tree
from rackgate_assigner.workload.info import Charge, PodInfo

BLOCK, RACK, HOST = "block", "rack", "kubernetes.io/hostname"
LEVELS = {"hosts": (BLOCK, RACK, HOST), "racks": (BLOCK, RACK)}
NODES = 260
# Bursts of every size: few steps, many steps, more than a list of blocks is for.
BURSTS = (1, 1, 1, 2, 5, 40, 120)
STEPS = 90


def facts(number: int, rng: random.Random) -> NodeInfo:
    """One node somewhere; every third has a hostname that is not its name."""
    rack = rng.randrange(40)
    host = f"n{number:03}" if number % 3 else f"host-{number:03}"
    offers = {"cpu": rng.choice((8_000, 16_000)), "pods": 110}
    if not rng.randrange(30):
        offers["example.com/rare"] = 2
    labels = {BLOCK: f"b{rack // 8}", RACK: f"r{rack:02}", HOST: host, "kind": rng.choice("xy")}
    return NodeInfo(f"n{number:03}", labels, offers)


def happen(cache: Cache, number: int, rng: random.Random) -> None:
    """Something happens to a node."""
    name = f"n{number:03}"
    known = cache.nodes.get(name)
    what = rng.randrange(6)
    if known is None or what == 0:
        cache.put_node(facts(number, rng))
    elif what == 1:
        cache.drop_node(name)
    elif what in (2, 3):
        cache.put_node(replace(known, ready=not known.ready))
    elif what == 4:
        cache.put_node(replace(known, labels={**known.labels, RACK: f"r{rng.randrange(60):02}"}))
    else:
        cache.put_node(replace(known, allocatable={**known.allocatable, "cpu": rng.randrange(9)}))


def seen(flavor_topologies: FlavorTopologies) -> list[object]:
    """All that a snapshot says."""
    return [
        part
        for name, flavor_topology in flavor_topologies.by_flavor.items()
        for part in (
            name,
            [node.name for node in flavor_topology.tree.nodes],
            [list(paths) for paths in flavor_topology.tree.paths],
            flavor_topology.tree.allocatable.tolist(),
            flavor_topology.capacity.free.tolist(),
            flavor_topology.capacity.usage.tolist(),
            [flavor_topology.tree.leaf_of_node(f"n{number:03}") for number in range(NODES)],
            [flavor_topology.tree.leaf_of_host(f"host-{number:03}") for number in range(NODES)],
            flavor_topology.tree.column("kind").where("x".__eq__).tolist(),
        )
    ]


@pytest.mark.requirement("CAP-07", "CAP-09", "TAS-04", "TAS-05")
@pytest.mark.field_note("C14")
@pytest.mark.parametrize("seed", [1, 2])
def test_trees_under_churn_are_those_of_a_rebuild_and_snapshots_stay(seed: int) -> None:
    rng = random.Random(seed)
    cache = Cache()
    for name, levels in LEVELS.items():
        cache.put_topology(name, levels)
        cache.put_flavor(FlavorInfo(name, {}, topology=name, levels=levels))
    for number in range(NODES):
        cache.put_node(facts(number, rng))
        cache.pods.set(PodInfo(f"d/{number}", f"n{number:03}", "", "", "", (("cpu", 100),)))
    held: list[tuple[FlavorTopologies, list[object]]] = []
    for step in range(STEPS):
        for _ in range(rng.choice(BURSTS)):
            happen(cache, rng.randrange(NODES), rng)
        flavor_topologies = cache.flavor_topologies()
        if rng.randrange(2):
            host = rng.choice(flavor_topologies.by_flavor["hosts"].tree.nodes).labels[HOST]
            charge = Charge("hosts", {"cpu": 500}, TopologyAssignment((HOST,), (((host,), 1),)))
            cache.usages[f"team/w{step}"] = WorkloadUsage("team/lq", "cq", charges=(charge,))
            cache.trees.charge(charge, 1)
        if rng.randrange(3):
            snapshot = flavor_topologies.copy()
            if rng.randrange(2):
                leaf = rng.randrange(snapshot.by_flavor["hosts"].tree.leaf_count)
                snapshot.by_flavor["hosts"].capacity.charge(leaf, {"cpu": 1}, 1)
            if not rng.randrange(4):
                held = [*held[-3:], (snapshot, seen(snapshot))]
        for old, words in held if not step % 15 else ():
            assert seen(old) == words
        if not step % 6:
            fresh = Cache()
            for node in cache.nodes.values():
                fresh.put_node(node)
            for name, levels in LEVELS.items():
                fresh.put_topology(name, levels)
                fresh.put_flavor(FlavorInfo(name, {}, topology=name, levels=levels))
            for row in cache.pods.rows.values():
                fresh.pods.set(row)
            fresh.usages.update(cache.usages)
            for kept, built in zip(
                seen(flavor_topologies), seen(fresh.flavor_topologies()), strict=True
            ):
                assert kept == built


def test_a_node_that_never_stays_as_it_is_takes_no_more_room_in_the_end() -> None:
    rng = random.Random(3)
    nodes = {f"n{number:03}": facts(number, rng) for number in range(NODES)}
    tree = TopologyTree.build(LEVELS["hosts"], nodes.values())
    registers = []
    for number in range(3 * node_numbers.STALE_LIMIT):
        name = f"n{rng.randrange(NODES):03}"
        labels = {**nodes[name].labels, "version": str(number)}
        nodes[name] = replace(nodes[name], labels=labels)
        tree = update_tree(tree, {name: nodes[name]}).tree
        tree.column("version")
        registers.append(len(tree.registry.nodes))
    most = NODES + NODES // node_numbers.STALE_SHARE + node_numbers.STALE_LIMIT
    assert max(registers) == most
    assert len(tree.column("version").values) <= most
    assert list(tree.nodes) == list(TopologyTree.build(LEVELS["hosts"], nodes.values()).nodes)


def test_names_of_nodes_that_come_once_and_never_again_are_forgotten() -> None:
    tree = TopologyTree.build(LEVELS["hosts"], [facts(0, random.Random(4))])
    for number in range(2 * node_numbers.STALE_LIMIT):
        node = NodeInfo(f"x{number}", {BLOCK: "b", RACK: "r", HOST: f"y{number}"}, {})
        tree = update_tree(tree, {node.name: node}).tree
        assert tree.leaf_of_node(node.name) is not None
        assert tree.leaf_of_host(f"y{number}") == tree.leaf_of_node(node.name)
        tree = update_tree(tree, {node.name: None}).tree
    for kept in (tree.node_name_index, tree.hostname_index):
        assert len(kept) <= 2 + node_numbers.STALE_LIMIT + 1
    assert len(tree.registry.nodes) <= 1 + node_numbers.STALE_LIMIT + 1
