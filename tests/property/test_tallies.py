"""What is kept between the questions of a cycle gives the answers of a count of everything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest

from rackgate.wire.core import Taint
from rackgate_assigner.topology.capacity import Capacity, charge_assignment
from rackgate_assigner.topology.model import (
    NodeInfo,
    Placement,
    PodSetRequest,
    SliceLayer,
    TopologyRequest,
)
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.topology.tree import TopologyTree

BLOCK, RACK, HOST = "block", "rack", "kubernetes.io/hostname"
# Enough leaves for a part of them to be worth counting alone.
HOSTS, PER_RACK, PER_BLOCK = 8_192, 8, 64
SHAPES = ({"cpu": 1}, {"cpu": 1, "gpu": 1}, {"cpu": 3, "memory": 2})
REQUESTS = (
    None,
    TopologyRequest(required=RACK),
    TopologyRequest(preferred=RACK),
    TopologyRequest(required=BLOCK, slices=(SliceLayer(RACK, 4),)),
    TopologyRequest(slices=(SliceLayer(RACK, 4), SliceLayer(HOST, 2))),
    TopologyRequest(required=BLOCK),
)


@pytest.fixture(scope="module")
def tree() -> TopologyTree:
    nodes = []
    for number in range(HOSTS):
        labels = {
            BLOCK: f"b{number // PER_BLOCK:03}",
            RACK: f"r{number // PER_RACK:04}",
            HOST: f"n{number:04}",
            "pool": "a" if number % 3 else "b",
        }
        offers = {"cpu": 16, "memory": 16, "gpu": number % 5, "pods": 20}
        taints = (Taint(key="reserved", effect="NoSchedule"),) if number % 7 == 0 else ()
        nodes.append(NodeInfo(labels[HOST], labels, offers, taints))
    return TopologyTree.build((BLOCK, RACK, HOST), nodes)


def asked(chance: random.Random) -> list[PodSetRequest]:
    """One or two PodSets: alone, after each other, or workers and leader."""
    podset = PodSetRequest(
        "main",
        chance.choice((4, 8, 16, 64)),
        chance.choice(SHAPES),
        chance.choice(REQUESTS),
        node_selector=chance.choice(({}, {"pool": "a"})),
    )
    more = chance.randrange(3)
    if more == 0:
        return [podset]
    if more == 1:
        return [podset, replace(podset, name="more")]
    led = replace(podset, group="g")
    return [replace(led, name="leader", count=1, requests={"cpu": 2, "gpu": 1}), led]


def answer(capacity: Capacity, podsets: Sequence[PodSetRequest]) -> Placement:
    return place(capacity.tree, capacity, podsets, topology_name="t")


@pytest.mark.requirement("TAS-21", "CAP-11")
@pytest.mark.parametrize("seed", range(4))
def test_kept_counts_answer_like_a_count_of_everything(tree: TopologyTree, seed: int) -> None:
    chance = random.Random(seed)
    capacity = Capacity(tree)
    for leaf in range(HOSTS):
        capacity.charge(leaf, {"cpu": chance.randrange(12)}, 1)
    pool = list(islice(iter(lambda: asked(chance), None), 5))
    placed: list[tuple[PodSetRequest, Placement]] = []
    for step in range(120):
        podsets = chance.choice(pool)
        found = answer(capacity, podsets)
        assert found == answer(capacity.copy(), podsets), f"step {step}"
        for podset in podsets:
            if podset.name in found.assignments:
                charge_assignment(capacity, podset.requests, found.assignments[podset.name])
                placed.append((podset, found))
        if placed and chance.random() < 0.3:
            podset, before = placed.pop(chance.randrange(len(placed)))
            charge_assignment(capacity, podset.requests, before.assignments[podset.name], -1)
        if chance.random() < 0.2:
            capacity.charge_other(chance.randrange(HOSTS), {"cpu": 4, "gpu": 1})


def test_a_snapshot_and_the_one_it_was_taken_from_do_not_see_each_others_charges(
    tree: TopologyTree,
) -> None:
    capacity = Capacity(tree)
    rack = [PodSetRequest("main", 96, {"cpu": 1}, TopologyRequest(required=RACK))]
    before = answer(capacity, rack)
    twin = capacity.copy()
    charge_assignment(twin, {"cpu": 1}, before.assignments["main"])
    assert answer(twin, rack) != before
    assert answer(capacity, rack) == before
    charge_assignment(capacity, {"cpu": 1}, before.assignments["main"])
    assert answer(capacity, rack) == answer(twin, rack)


def test_answers_stay_right_when_more_was_charged_than_is_noted(tree: TopologyTree) -> None:
    capacity = Capacity(tree)
    rack = [PodSetRequest("main", 96, {"cpu": 1}, TopologyRequest(required=RACK))]
    host = [PodSetRequest("main", 1, {"cpu": 1})]
    first = answer(capacity, rack)
    for _ in range(3):
        for leaf in range(0, HOSTS, 2):
            capacity.charge(leaf, {"cpu": 1}, 1)
        answer(capacity, host)
    assert answer(capacity, rack) != first
    assert answer(capacity, rack) == answer(capacity.copy(), rack)
