"""Leaders by their own rules, refusals that name them, and nodes below leaves."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.topology.tree import TopologyTree
from tests.unit.assigner.core.clusters import (
    BLOCK,
    LEVELS,
    RACK,
    ask,
    capacity,
    node,
    podset,
    refusal,
    spots,
)

RULES = {"RackgateLeaderRules": True}
WORDS = {"RackgateLeaderRefusals": True}
NODES = {"RackgateNodesBelowLeaves": True}
GPU_TAINT = (Taint("gpu", "", "NoSchedule"),)
GPU_POD: dict[str, Any] = {"tolerations": (Toleration(key="gpu", operator="Exists"),)}
RACKS = (BLOCK, RACK)


def group(count: int, *, cpu: int = 1, lead_cpu: int = 1, **workers: Any) -> list[PodSetRequest]:
    """Workers of a required rack and a leader without any rule of its own."""
    rule = workers.pop("leader", {})
    asked: dict[str, Any] = {"required": RACK, "group": "g"}
    return [
        podset(count, name="w", cpu=cpu, **asked, **workers),
        podset(1, name="l", cpu=lead_cpu, **asked, **rule),
    ]


def gpus_and_head(**head: Any) -> Capacity:
    """Rack r1: two tainted hosts, and one without taint."""
    nodes = [
        node("b1/r1/g1", taints=GPU_TAINT),
        node("b1/r1/g2", taints=GPU_TAINT),
        node("b1/r1/head", **head),
    ]
    return Capacity(TopologyTree.build(LEVELS, nodes))


@pytest.mark.field_note("P2")
def test_a_leader_that_does_not_tolerate_the_workers_nodes_takes_its_own_host() -> None:
    wants = group(8, **GPU_POD, node_selector={"kind": "gpu"})
    room = Capacity(
        TopologyTree.build(
            LEVELS,
            [
                node("b1/r1/g1", taints=GPU_TAINT, labels={"kind": "gpu"}, offers={"cpu": 5}),
                node("b1/r1/g2", taints=GPU_TAINT, labels={"kind": "gpu"}, offers={"cpu": 4}),
                node("b1/r1/head"),
            ],
        )
    )
    # The default puts it where it can never start.
    assert spots(ask(room, *wants), "l") == {"g1": 1}
    answer = ask(room, *wants, gates=RULES)
    assert spots(answer, "l") == {"head": 1}
    assert sum(spots(answer, "w").values()) == 8
    assert set(spots(answer, "w")) == {"g1", "g2"}


@pytest.mark.field_note("P2")
def test_a_leader_with_a_selector_of_its_own_may_sit_beside_workers() -> None:
    room = gpus_and_head(labels={"role": "head"}, offers={"cpu": 3})
    wants = group(9, **GPU_POD, leader={"node_selector": {"role": "head"}})
    assert spots(ask(room, *wants), "l") != {"head": 1}
    answer = ask(room, *wants, gates=RULES)
    assert spots(answer, "l") == {"head": 1}
    assert spots(answer, "w")["head"] <= 2
    nowhere = group(2, **GPU_POD, leader={"node_selector": {"role": "none"}})
    assert ask(room, *nowhere).failure is None
    assert ask(room, *nowhere, gates=RULES).failure is not None


@pytest.mark.field_note("P2")
def test_a_required_affinity_of_the_leader_counts_in_a_fence_of_slices_too() -> None:
    room = gpus_and_head(labels={"role": "head"})
    term = {"matchExpressions": [{"key": "role", "operator": "Exists"}]}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    wants = group(6, **GPU_POD, slices={LEVELS[-1]: 2}, leader={"node_affinity": rule})
    answer = ask(room, *wants, gates=RULES | {"RackgateFewestDomains": True})
    assert spots(answer, "l") == {"head": 1}
    assert all(count % 2 == 0 for count in spots(answer, "w").values())


def test_without_rules_of_its_own_a_leader_is_placed_as_ever() -> None:
    for count in range(1, 12):
        wants = group(count)
        room = capacity({"b1/r1/x1": 4, "b1/r1/x2": 3, "b1/r2/x3": 9})
        assert ask(room, *wants, gates=RULES) == ask(room, *wants)


def test_a_rejection_says_that_the_leader_fits_nowhere() -> None:
    room = capacity({"b1/r1/x1": 6, "b1/r1/x2": 6})
    wants = group(4, lead_cpu=7)
    assert refusal(ask(room, *wants)) == 'topology "t" allows to fit only 12 out of 4 pod(s)'
    text = refusal(ask(room, *wants, gates=WORDS))
    assert text == (
        'topology "t" doesn\'t allow to fit leader podset "l". '
        'Total nodes: 2; excluded: resource "cpu": 2'
    )


def test_a_rejection_counts_what_fits_beside_the_leader() -> None:
    room = capacity({"b1/r1/x1": 6, "b1/r2/x2": 3})
    wants = group(6, lead_cpu=2)
    assert refusal(ask(room, *wants)) == 'topology "t" allows to fit only 6 out of 6 pod(s)'
    assert refusal(ask(room, *wants, gates=WORDS)) == (
        'topology "t" allows to fit only 4 out of 6 pod(s) together with leader podset "l"'
    )
    spread = [podset(9, name="w", group="g", preferred=RACK), podset(1, name="l", group="g")]
    assert refusal(ask(room, *spread, gates=WORDS)) == (
        'topology "t" allows to fit only 8 out of 9 pod(s) together with leader podset "l"'
    )
    alone = podset(7, required=RACK)
    assert ask(room, alone, gates=WORDS) == ask(room, alone)


def racks(*nodes: tuple[str, dict[str, Any]]) -> Capacity:
    """Racks as lowest level, nodes by `block/rack`."""
    made = [
        node(path, levels=RACKS, name=f"n{number}", **facts)
        for number, (path, facts) in enumerate(nodes)
    ]
    return Capacity(TopologyTree.build(RACKS, made))


@pytest.mark.requirement("STR-04")
@pytest.mark.field_note("C9")
def test_without_a_host_level_a_pod_must_fit_on_one_node() -> None:
    room = racks(*[("b1/r1", {"offers": {"cpu": 4}})] * 3, ("b1/r2", {"offers": {"cpu": 6}}))
    assert spots(ask(room, podset(2, cpu=6, required=RACK))) == {"r1": 2}
    assert spots(ask(room, podset(1, cpu=6, required=RACK), gates=NODES)) == {"r2": 1}
    # Three nodes of 4 cpu take three pods of 3 cpu, not four.
    assert spots(ask(room, podset(4, cpu=3, required=RACK))) == {"r1": 4}
    text = refusal(ask(room, podset(4, cpu=3, required=RACK), gates=NODES))
    assert text == 'topology "t" allows to fit only 3 out of 4 pod(s)'
    large = refusal(ask(room, podset(1, cpu=7, required=RACK), gates=NODES))
    assert large.endswith('Total nodes: 4; excluded: resource "cpu": 4')


@pytest.mark.requirement("STR-04")
@pytest.mark.field_note("C9")
def test_without_a_host_level_taints_selectors_and_affinity_are_judged_by_node() -> None:
    gpu = {"labels": {"kind": "gpu"}, "offers": {"cpu": 4}}
    room = racks(("b1/r1", {"taints": GPU_TAINT}), ("b1/r1", {}), ("b1/r2", gpu), ("b1/r2", gpu))
    assert spots(ask(room, podset(8, required=RACK))) == {"r1": 8}
    assert spots(ask(room, podset(8, required=RACK), gates=NODES)) == {"r2": 8}
    tolerant = podset(8, required=RACK, **GPU_POD)
    assert spots(ask(room, tolerant, gates=NODES)) == {"r1": 8}
    chosen = podset(5, required=RACK, node_selector={"kind": "gpu"})
    assert spots(ask(room, chosen)) == {"r1": 5}
    assert spots(ask(room, chosen, gates=NODES)) == {"r2": 5}
    text = refusal(ask(room, podset(9, required=RACK, node_selector={"kind": "x"}), gates=NODES))
    assert text.endswith('Total nodes: 4; excluded: nodeSelector: 3, taint "gpu:NoSchedule": 1')


@pytest.mark.field_note("C9")
def test_without_a_host_level_what_is_in_use_still_bounds_the_leaf() -> None:
    room = racks(("b1/r1", {}), ("b1/r1", {"taints": GPU_TAINT}))
    room.charge(0, {"cpu": 3}, 1)
    # 5 of 8 cpu are free, and the one node that can be used has 4.
    assert spots(ask(room, podset(4, required=RACK), gates=NODES)) == {"r1": 4}
    room.charge(0, {"cpu": 2}, 1)
    assert spots(ask(room, podset(3, required=RACK), gates=NODES)) == {"r1": 3}
    assert ask(room, podset(4, required=RACK), gates=NODES).failure is not None
    assert ask(room, podset(4, required=RACK), gates=NODES, simulate_empty=True).failure is None


def test_without_a_host_level_a_leader_needs_a_node_of_its_own_size() -> None:
    room = racks(("b1/r1", {}), ("b1/r1", {}))
    wants = group(4, lead_cpu=5)
    assert ask(room, *group(3, lead_cpu=5)).failure is None
    assert ask(room, *wants, gates=NODES).failure is not None
    # On nodes of 4 a leader of 3 leaves 1: five fit beside it, although 5 of 8 cpu are too few
    # for the pairs that workers of 2 come in.
    assert spots(ask(room, *group(5, lead_cpu=3), gates=NODES), "w") == {"r1": 5}
    assert ask(room, *group(3, cpu=2, lead_cpu=3), gates=NODES).failure is not None
    head: dict[str, Any] = {"node_selector": {"role": "head"}}
    with_head = racks(("b1/r1", {}), ("b1/r1", {"labels": {"role": "head"}, "offers": {"cpu": 1}}))
    both = NODES | RULES
    assert spots(ask(with_head, *group(4, leader=head), gates=both), "w") == {"r1": 4}
    assert ask(with_head, *group(5, leader=head), gates=both).failure is not None


def test_with_a_host_level_nodes_are_judged_already() -> None:
    room = gpus_and_head()
    for wants in (podset(4, required=RACK), podset(9, required=RACK)):
        assert ask(room, wants, gates=NODES) == ask(room, wants)
