"""Trees kept event by event are the trees built from scratch, in every array and every answer.

Events come in bursts, as between two cycles, so that what is noted is taken in together. Nodes
share hostnames, lose labels, get new resources and move between flavors that share them.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.consistency import rebuild_into
from rackgate_assigner.cache.flavor_topologies import FlavorTopologies, FlavorTopology
from rackgate_assigner.topology.capacity import (
    FreeCapacitySummary,
    LevelFreeCapacity,
    summarize_free_capacity,
)
from rackgate_assigner.topology.model import (
    NodeInfo,
    Placement,
    PodSetRequest,
    SliceLayer,
    TopologyRequest,
)
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from tests.support.naive_tree import members, picture, said
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    cluster_queue,
    flavor,
    local_queue,
    namespace,
    pod,
    podset,
    rebuild_matches,
    topology,
    workload,
)

VALUES = ("a", "a-b", "a/b", "a,b")
NAMES = ("a", "b", "a/b", "n-4", "z")
LEVELS = {
    "hosts": (BLOCK, RACK, HOST),
    "racks": (BLOCK, RACK),
    "blocks": (BLOCK,),
}
OTHER_LEVELS = {"hosts": (RACK, HOST), "racks": (RACK, BLOCK), "blocks": (BLOCK, RACK)}
FLAVORS = {
    "all": ({"pool": "gpu"}, "hosts"),
    "some": ({"kind": "x"}, "hosts"),
    "rack-all": ({"pool": "gpu"}, "racks"),
    "rack-some": ({"kind": "x"}, "racks"),
    "block-all": ({}, "blocks"),
}
TAINT = Taint(key="k", value="v", effect="NoSchedule")
BEARS = (Toleration(key="k", operator="Exists"),)
IN_KIND_X = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kind", "operator": "In", "values": ["x"]}]}
        ]
    }
}
REQUESTS = (
    PodSetRequest("main", 2, {"cpu": 1000}, TopologyRequest(required=RACK)),
    PodSetRequest("main", 3, {"cpu": 500}, TopologyRequest(preferred=BLOCK), tolerations=BEARS),
    PodSetRequest("main", 1, {"gpu": 1, "cpu": 500}),
    PodSetRequest("main", 2, {"cpu": 500}, node_selector={"kind": "x"}, tolerations=BEARS),
    PodSetRequest("main", 9, {"cpu": 2000}, node_affinity=IN_KIND_X),
    PodSetRequest(
        "main", 4, {"cpu": 500}, TopologyRequest(preferred=BLOCK, slices=(SliceLayer(RACK, 2),))
    ),
    PodSetRequest("main", 1, {}, TopologyRequest(required=HOST)),
)

# One number stands for all that is random about an event: drawing every label would leave most of
# an example's budget to strategies, and few events to the machine.
seeds = st.integers(min_value=0, max_value=2**32)


def some_facts(rng: Random) -> NodeInfo:
    """A node that mostly takes part in most flavors."""
    labels = {
        BLOCK: rng.choice(VALUES[:2]),
        RACK: rng.choice(VALUES[:3]),
        HOST: rng.choice(VALUES),
        "pool": "gpu",
        "kind": rng.choice("xxy"),
    }
    if rng.random() < 0.1:
        del labels[rng.choice(sorted(labels))]
    offers = {"cpu": rng.choice([1500, 4000]), "pods": 10}
    if rng.random() < 0.2:
        offers["gpu"] = rng.choice([0, 2])
    return NodeInfo(
        rng.choice(NAMES),
        labels,
        offers,
        (TAINT,) if rng.random() < 0.2 else (),
        unschedulable=rng.random() < 0.1,
        ready=rng.random() > 0.1,
    )


def answers(flavor_topology: FlavorTopology) -> list[Placement]:
    """What the engine says to each request, with and without what is placed already."""
    return [
        place(
            flavor_topology.tree,
            flavor_topology.capacity,
            [asked],
            topology_name="t",
            simulate_empty=empty,
        )
        for asked in REQUESTS
        for empty in (False, True)
    ]


def counted_room(flavor_topology: FlavorTopology) -> FreeCapacitySummary:
    """The room of all domains, put together leaf by leaf."""
    tree, capacity = flavor_topology.tree, flavor_topology.capacity
    free = {
        leaf: {name: max(0, int(capacity.free[leaf, row])) for name, row in capacity.rows.items()}
        for leaf in range(tree.leaf_count)
    }
    placed = {leaf: int(capacity.usage[leaf, capacity.rows["pods"]]) for leaf in free}
    levels = []
    for level, key in enumerate(tree.levels):
        domains: dict[Domain, list[int]] = {}
        for leaf in free:
            domains.setdefault(tree.paths[-1][leaf][: level + 1], []).append(leaf)
        largest = {
            name: max(sum(free[leaf][name] for leaf in leaves) for leaves in domains.values())
            for name in (capacity.resources if domains else ())
        }
        used = [leaves for leaves in domains.values() if any(placed[leaf] for leaf in leaves)]
        idle = len(domains) - len(used)
        fragmented = {
            name: sum(free[leaf][name] for leaves in used for leaf in leaves)
            for name in (capacity.resources if domains else ())
        }
        levels.append(LevelFreeCapacity(key, len(domains), idle, largest, fragmented))
    whole = {name: sum(rooms[name] for rooms in free.values()) for name in capacity.resources}
    return FreeCapacitySummary(tuple(levels), whole)


def words(flavor_topologies: FlavorTopologies) -> dict[str, Any]:
    """All that a snapshot says."""
    return {
        name: (
            said(flavor_topology.tree, NAMES, VALUES),
            flavor_topology.tree.skipped,
            flavor_topology.capacity.free.tolist(),
            flavor_topology.capacity.usage.tolist(),
            answers(flavor_topology),
        )
        for name, flavor_topology in flavor_topologies.by_flavor.items()
    }


class TreesMachine(RuleBasedStateMachine):
    """Nodes, pods, Workloads, flavors and Topologies of a small cluster, in bursts."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()
        self.version = 0
        self.snapshots: list[tuple[FlavorTopologies, dict[str, Any]]] = []
        self.cache.set_namespace(namespace())
        self.cache.set_cluster_queue(cluster_queue("cq", {key: {"cpu": "99"} for key in FLAVORS}))
        self.cache.set_local_queue(local_queue())
        for name, levels in LEVELS.items():
            self.cache.set_topology(topology(name, levels))
        for name in FLAVORS:
            self.flavor_is_there(name)
        for name, host in zip(NAMES, VALUES, strict=False):
            labels = {BLOCK: "a", RACK: "a", HOST: host, "pool": "gpu", "kind": "x"}
            self.cache.put_node(NodeInfo(name, labels, {"cpu": 4000, "pods": 10}))

    @rule(seed=seeds)
    def nodes_change(self, seed: float) -> None:
        """Some nodes are set, others are deleted."""
        rng = Random(seed)
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.2:
                self.cache.drop_node(rng.choice(NAMES))
            else:
                self.cache.put_node(some_facts(rng))

    @precondition(lambda self: self.cache.nodes)
    @rule(seed=seeds)
    def one_thing_flips(self, seed: float) -> None:
        """What happens to a node most often: its path and name stay."""
        rng = Random(seed)
        of = rng.choice(["ready", "cordon", "taint", "label", "gpu"])
        node = self.cache.nodes[rng.choice(sorted(self.cache.nodes))]
        labels, offers = dict(node.labels), dict(node.allocatable)
        if of == "label":
            labels["kind"] = "y" if labels.get("kind") == "x" else "x"
        if of == "gpu" and not offers.pop("gpu", 0):
            offers["gpu"] = 1
        self.cache.put_node(
            NodeInfo(
                node.name,
                labels,
                offers,
                (() if node.taints else (TAINT,)) if of == "taint" else node.taints,
                node.unschedulable != (of == "cordon"),
                node.ready != (of == "ready"),
            )
        )

    @rule(seed=seeds)
    def pods_come_and_go(self, seed: float) -> None:
        """Foreign ones, and some that say they are of a Workload."""
        rng = Random(seed)
        for _ in range(rng.randint(1, 3)):
            name, on = rng.choice("pqrs"), rng.choice(NAMES)
            if rng.random() < 0.3:
                self.cache.drop_pod(f"team/{name}")
            else:
                of = rng.choice([None, "v", "w"])
                self.cache.set_pod(pod(name, on, cpu=rng.choice(["1", "500m"]), workload=of))

    @rule(seed=seeds)
    def a_workload_is_admitted(self, seed: float) -> None:
        """Wherever it says; its domains need not exist, and its flavor may have other levels."""
        rng = Random(seed)
        levels = rng.choice([(HOST,), (BLOCK, RACK), (BLOCK, RACK), (BLOCK,), (BLOCK, RACK, HOST)])
        spots = {BLOCK: VALUES[:2], RACK: VALUES[:3], HOST: VALUES}
        domains = {
            tuple(rng.choice(spots[level]) for level in levels): rng.randint(1, 3)
            for _ in range(rng.randint(1, 3))
        }
        total = sum(domains.values())
        requests = {"cpu": "1", **({"gpu": "1"} if rng.random() < 0.5 else {})}
        found = TopologyAssignment(levels, tuple(sorted(domains.items())))
        of = rng.choice([*FLAVORS, "unknown"])
        part = PodSetAssignment("main", {"cpu": of}, {"cpu": 1000 * total}, total, found)
        self.version += 1
        self.cache.set_workload(
            workload(
                rng.choice("uvw"),
                [podset("main", total, requests)],
                version=str(self.version),
                generation=0,
                assignment=Assignment("cq", (part,)),
            )
        )

    @rule(name=st.sampled_from("uvw"))
    def a_workload_goes(self, name: str) -> None:
        self.cache.drop_workload(f"team/{name}")

    def flavor_is_there(self, name: str) -> None:
        """As it was at first."""
        labels, topology_name = FLAVORS[name]
        self.cache.set_flavor(flavor(name, topology_name, labels))

    @rule(
        name=st.sampled_from([*FLAVORS]),
        how=st.sampled_from(["gone", "there", "there", "labels", "tolerations"]),
    )
    def a_flavor_changes(self, name: str, how: str) -> None:
        labels, topology_name = FLAVORS[name]
        if how == "there":
            self.flavor_is_there(name)
        elif how == "gone":
            self.cache.drop_flavor(name)
        elif how == "labels":
            self.cache.set_flavor(flavor(name, topology_name, {**labels, "kind": "y"}))
        else:
            self.cache.set_flavor(
                flavor(name, topology_name, labels, tolerations=[{"operator": "Exists"}])
            )

    @rule(name=st.sampled_from([*LEVELS]), how=st.sampled_from(["gone", "there", "there", "other"]))
    def a_topology_changes(self, name: str, how: str) -> None:
        if how == "gone":
            self.cache.drop_topology(name)
        else:
            levels = (LEVELS if how == "there" else OTHER_LEVELS)[name]
            self.cache.set_topology(topology(name, levels))

    @rule()
    def a_snapshot_is_taken(self) -> None:
        """Some plan or question holds on to it from now on."""
        taken = self.cache.flavor_topologies().copy()
        self.snapshots = [*self.snapshots[-2:], (taken, words(taken))]

    @rule()
    def a_cycle_looks(self) -> None:
        """Until then, changes pile up."""
        self.check()

    def check(self) -> None:
        """Compare everything."""
        assert rebuild_matches(self.cache) == []
        fresh = rebuild_into(self.cache, Cache()).flavor_topologies()
        assert words(self.cache.flavor_topologies()) == words(fresh)
        nodes = self.cache.nodes
        for flavor_topology in self.cache.flavor_topologies().by_flavor.values():
            row = flavor_topology.flavor
            taking = members(nodes.values(), row.levels, row.node_labels)
            assert said(flavor_topology.tree, NAMES, VALUES) == picture(taking, row.levels)
            assert summarize_free_capacity(
                flavor_topology.tree, flavor_topology.capacity
            ) == counted_room(flavor_topology)

    def teardown(self) -> None:
        self.check()
        for flavor_topologies, before in self.snapshots:
            assert words(flavor_topologies) == before


@pytest.mark.requirement("TAS-04", "CAP-02", "CAP-07", "CAP-09", "OPS-07")
@pytest.mark.field_note("C2", "C3", "C13", "C14", "C15")
def test_trees_are_right_after_any_events() -> None:
    run_state_machine_as_test(
        TreesMachine,
        settings=settings(max_examples=15, stateful_step_count=25, deadline=None),
    )


@pytest.mark.requirement("TAS-04", "CAP-02", "CAP-07", "CAP-09", "OPS-07")
@pytest.mark.field_note("C2", "C3", "C13", "C14", "C15")
@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_trees_are_right_all_through_a_long_life(seed: float) -> None:
    machine, rng = TreesMachine(), Random(seed)
    for _ in range(60):
        match rng.choice("nnnoooppwwxft"):
            case "n":
                machine.nodes_change(rng.random())
            case "o" if machine.cache.nodes:
                machine.one_thing_flips(rng.random())
            case "w":
                machine.a_workload_is_admitted(rng.random())
            case "x":
                machine.a_workload_goes(rng.choice("uvw"))
            case "f":
                how = rng.choice(["gone", "there", "there", "labels", "tolerations"])
                machine.a_flavor_changes(rng.choice([*FLAVORS]), how)
            case "t":
                how = rng.choice(["gone", "there", "there", "other"])
                machine.a_topology_changes(rng.choice([*LEVELS]), how)
            case _:
                machine.pods_come_and_go(rng.random())
        if rng.random() < 0.1:
            machine.a_snapshot_is_taken()
        if rng.random() < 0.4:
            machine.check()
    machine.teardown()
