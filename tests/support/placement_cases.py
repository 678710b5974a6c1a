"""Random clusters and PodSets, small enough to look at, hostile enough to matter."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.model import (
    NodeInfo,
    Placement,
    PodSetRequest,
    SliceLayer,
    TopologyRequest,
)
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.topology.tree import TopologyTree
from tests.support.placement_oracle import HOST, Cluster

ZONE, BLOCK, RACK = "topo/zone", "topo/block", "topo/rack"
LADDERS = ([HOST], [RACK], [RACK, HOST], [BLOCK, RACK], [BLOCK, RACK, HOST], [ZONE, BLOCK, RACK])
# Equal under different parents, numeric, upper case, prefixes of one another.
VALUES = ("r1", "r10", "r2", "R1", "a", "a-b", "a.b", "1")
TAINTS = (Taint("spot", "true", "NoSchedule"), Taint("maint", "", "NoExecute"))


@dataclass(frozen=True)
class Case:
    cluster: Cluster
    podsets: list[PodSetRequest]


def amounts(largest: int) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(
        {"cpu": st.integers(0, largest)}, optional={"gpu": st.integers(0, largest)}
    )


@st.composite
def nodes(draw: st.DrawFn, levels: list[str]) -> list[NodeInfo]:
    """Up to a dozen nodes; some lack a label, are cordoned, not ready or tainted."""
    found = []
    for number in range(draw(st.integers(0, 12) | st.integers(6, 12))):
        labels = {
            level: draw(st.sampled_from(VALUES[: draw(st.integers(1, len(VALUES)))]))
            for level in levels
        }
        labels["pool"] = draw(st.sampled_from(["tas", "tas", "tas", "other"]))
        labels["gen"] = draw(st.sampled_from(["1", "2"]))
        if HOST in levels:
            labels[HOST] = f"x{number}"
        if draw(st.integers(0, 15)) == 0:
            del labels[draw(st.sampled_from(levels))]
        found.append(
            NodeInfo(
                name=f"node-{number}",
                labels=labels,
                allocatable={
                    # Mostly roomy: what nothing can hold says little about where things go.
                    "cpu": draw(st.sampled_from([0, 1, 2, 3, 4, 4, 6, 8, 8, 12])),
                    "gpu": draw(st.sampled_from([0, 1, 4, 4, 8])),
                    "pods": draw(st.sampled_from([0, 2, 5, 110, 110, 110])),
                },
                taints=tuple(draw(st.lists(st.sampled_from(TAINTS), max_size=1))),
                unschedulable=draw(st.integers(0, 15)) == 0,
                ready=draw(st.integers(0, 15)) != 0,
            )
        )
    return found


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    levels = draw(st.sampled_from(LADDERS))
    found = draw(nodes(levels))
    names = [node.name for node in found]
    paths = [tuple(node.labels.get(level, "") for level in levels) for node in found]
    if levels[-1] == HOST:
        paths = [path[-1:] for path in paths]
    usage: list[Any] = []
    pods: list[Any] = []
    if found:
        usage = draw(
            st.lists(st.tuples(st.sampled_from(paths), amounts(3), st.integers(1, 3)), max_size=4)
        )
        pods = draw(st.lists(st.tuples(st.sampled_from(names), amounts(3)), max_size=3))
    return Cluster(
        levels=levels,
        nodes=found,
        node_labels=draw(st.sampled_from([{}, {"pool": "tas"}])),
        tolerations=draw(st.sampled_from([(), (Toleration("maint", "Exists"),)])),
        usage=usage,
        pods=pods,
        simulate_empty=draw(st.integers(0, 3)) == 0,
    )


@st.composite
def topology_requests(draw: st.DrawFn, levels: list[str]) -> TopologyRequest | None:
    known = st.sampled_from([*levels, *levels, *levels, "topo/none"])
    kinds = ["implied", "required", "required", "preferred", "preferred", "unconstrained", "bare"]
    kind = draw(st.sampled_from(kinds))
    if kind == "implied":
        return None
    layers: list[SliceLayer] = []
    if draw(st.booleans()):
        size = draw(st.sampled_from([1, 2, 2, 4]))
        layers.append(SliceLayer(draw(known), size))
        if draw(st.integers(0, 2)) == 0:
            layers.append(SliceLayer(draw(known), draw(st.sampled_from([1, 2, 3]))))
    return TopologyRequest(
        required=draw(known) if kind == "required" else None,
        preferred=draw(known) if kind == "preferred" else None,
        unconstrained=kind == "unconstrained",
        slices=tuple(layers),
    )


@st.composite
def podsets_of(draw: st.DrawFn, levels: list[str]) -> list[PodSetRequest]:
    """One to three units; a unit may be workers with a leader, in either order."""
    found: list[PodSetRequest] = []
    for number in range(draw(st.integers(1, 3))):
        request = draw(topology_requests(levels))
        size = request.slices[0].size if request and request.slices else 1
        workers = PodSetRequest(
            name=f"ps{number}",
            count=size * draw(st.integers(0, 6)),
            requests=draw(amounts(2)),
            topology=request,
            group=draw(st.sampled_from([None, f"g{number}"])),
            node_selector=draw(st.sampled_from([{}, {}, {}, {}, {"gen": "1"}])),
            tolerations=tuple(
                draw(st.lists(st.just(Toleration("spot", "Equal", "true")), max_size=1))
            ),
        )
        members = [workers]
        if workers.group and workers.count:
            leader = PodSetRequest(
                f"lead{number}", 1, draw(amounts(4)), request, group=workers.group
            )
            members = draw(st.sampled_from([[workers, leader], [leader, workers]]))
        found += members
    return found


@st.composite
def cases(draw: st.DrawFn) -> Case:
    cluster = draw(clusters())
    return Case(cluster, draw(podsets_of(list(cluster.levels))))


@st.composite
def large_cases(draw: st.DrawFn) -> Case:
    """Hundreds of hosts, where the engine sorts only the first few."""
    chance = random.Random(draw(st.integers(0, 2**32 - 1)))
    levels = draw(st.sampled_from([[HOST], [RACK, HOST], [BLOCK, RACK, HOST]]))
    spread = draw(st.integers(1, 60))
    found = [
        NodeInfo(
            name=f"node-{number}",
            labels={
                BLOCK: f"b{number % 3}",
                RACK: f"r{number // 3 % spread}",
                HOST: f"x{number}",
            },
            allocatable={
                "cpu": chance.randint(0, 8),
                "gpu": chance.randint(0, 3),
                "pods": 110,
            },
        )
        for number in range(chance.randint(520, 800))
    ]
    podsets = draw(podsets_of(levels))
    podsets = [
        podset if podset.count == 1 else replace(podset, count=podset.count * 25)
        for podset in podsets
    ]
    return Case(Cluster(levels, found), podsets)


def dense_case(seed: int) -> Case:
    """Many small hosts and one or two questions that need several of them, but not all."""
    chance = random.Random(seed)
    levels = chance.choice(([RACK, HOST], [BLOCK, RACK, HOST], [BLOCK, RACK, HOST], [ZONE, RACK]))
    found = [
        NodeInfo(
            name=f"node-{number}",
            labels={
                ZONE: f"z{chance.randrange(2)}",
                BLOCK: f"b{chance.randrange(2)}",
                RACK: f"r{chance.randrange(3)}",
                HOST: f"x{number}",
            },
            allocatable={"cpu": chance.choice([0, 1, 2, 2, 3, 4]), "gpu": 2, "pods": 110},
        )
        for number in range(chance.randint(6, 14))
    ]
    podsets = []
    for number in range(chance.randint(1, 2)):
        level = chance.choice(levels)
        required, preferred = chance.choice([(level, None), (None, level)])
        size = chance.choice([1, 1, 2])
        slices = (SliceLayer(chance.choice(levels), size),) if size > 1 else ()
        podsets.append(
            PodSetRequest(
                name=f"ps{number}",
                count=size * chance.randint(1, 6),
                requests=chance.choice([{"cpu": 1}, {"cpu": 1, "gpu": 1}, {"cpu": 2}]),
                topology=TopologyRequest(required, preferred, False, slices),
            )
        )
    return Case(Cluster(levels, found), podsets)


def capacity_of(cluster: Cluster) -> Capacity:
    """The engine's view of a cluster, charged."""
    tree = TopologyTree.build(cluster.levels, cluster.nodes, node_labels=cluster.node_labels)
    capacity = Capacity(tree)
    for name, requests in cluster.pods:
        leaf = tree.leaf_of_node(name)
        if leaf is not None:
            capacity.charge_other(leaf, requests)
    for values, requests, count in cluster.usage:
        leaf = tree.leaf_of_values(values)
        if leaf is not None:
            capacity.charge(leaf, requests, count)
    return capacity


def placed(case: Case, capacity: Capacity | None = None) -> Placement:
    """The engine's answer."""
    capacity = capacity or capacity_of(case.cluster)
    return place(
        capacity.tree,
        capacity,
        case.podsets,
        topology_name=case.cluster.topology,
        flavor_tolerations=case.cluster.tolerations,
        simulate_empty=case.cluster.simulate_empty,
    )


def plain(placement: Placement) -> dict[str, Any]:
    """As the oracle answers: lists of (values, count), or the refusal's text."""
    result: dict[str, Any] = {
        name: list(assignment.domains) for name, assignment in placement.assignments.items()
    }
    if placement.failure is not None:
        for name in placement.failure.members:
            result[name] = placement.failure.message
    return result


def paths_of(capacity: Capacity, assignment: TopologyAssignment) -> list[tuple[str, ...]]:
    """Whole paths of an assignment's domains, in its order."""
    tree = capacity.tree
    leaves = [tree.leaf_of_values(values) for values, _ in assignment.domains]
    return [tree.paths[-1][leaf] for leaf in leaves if leaf is not None]
