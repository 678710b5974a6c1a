"""An elastic cluster that does everything right is never accused, however it is resized."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rackgate_invariants.cluster_state import ClusterState
from rackgate_invariants.judge import breaches, judge
from rackgate_invariants.rules.workload_slices import check_growth
from tests.property.slices_world import Resizing

ACTS = 150
QUEUES = ("queue-counts", "local-queue-counts", "uncharged")


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), topology=st.booleans())
def test_a_correct_resize_shows_no_breach(seed: int, topology: bool) -> None:
    world = Resizing(random.Random(seed), topology)
    story = []
    for _ in range(ACTS):
        before, slices = world.parent, {one.uid: one for one in world.slices.values()}
        story.append(world.act())
        assert breaches(world.cluster()) == [], story
        assert list(check_growth(before, world.parent, slices)) == [], story


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), topology=st.booleans())
def test_at_rest_nothing_is_left_to_be_patient_about(seed: int, topology: bool) -> None:
    world = Resizing(random.Random(seed), topology)
    for _ in range(60):
        world.act()
    world.come_to_rest()
    left = [one for one in judge(world.cluster()) if one.rule not in QUEUES]
    assert left == []
    assert not world.parent.merged_slices


@pytest.mark.parametrize("topology", [True, False])
def test_the_correct_resize_does_all_that_it_can_do(topology: bool) -> None:
    """Otherwise the tests above would prove nothing."""
    world, seen = Resizing(random.Random(7), topology), Counter[str]()
    for _ in range(3000):
        before = world.cluster()
        parent = world.parent
        act = world.act()
        after = world.cluster()
        same = list(before.pods) == list(after.pods) and before.rayclusters == after.rayclusters
        seen[act] += not same or list(before.workloads) != list(after.workloads)
        had, now = (one.podsets[1].admitted_count for one in (parent, world.parent))
        if parent.reserved and world.parent.reserved:
            seen["grew"] += now > had
            seen["shrank"] += now < had
        live = sum(not pod.gates for pod in world.pods.values() if pod.podset == "w")
        seen["more than granted"] += live > now + len(world.slices) and world.parent.may_ungate
        seen["settled and there"] += any(
            one.uid in dict(world.parent.merged_slices) for one in world.slices.values()
        )
    assert all(seen[act.__name__] for act in Resizing.ACTS), seen
    assert all(
        seen[what] for what in ("grew", "shrank", "more than granted", "settled and there")
    ), seen


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), topology=st.booleans())
def test_a_resize_followed_or_read_at_once_shows_the_same(seed: int, topology: bool) -> None:
    correct, followed = Resizing(random.Random(seed), topology), ClusterState()
    dice = random.Random(seed)
    for _ in range(60):
        correct.act()
        _spoil(correct, dice)
        _follow(followed, correct, dice)
        read = followed.cluster(correct.now)
        assert followed.judge(correct.now) == judge(read) == judge(correct.cluster())


def _spoil(world: Resizing, dice: random.Random) -> None:
    """Break something now and then, so that there is something to show."""
    if world.pods and dice.random() < 0.2:
        name = dice.choice(sorted(world.pods))
        world.pods[name] = replace(world.pods[name], gates=(), ungater_wrote_at=world.now + 5)
    if dice.random() < 0.1:
        world.parent = replace(world.parent, elastic=not world.parent.elastic)


def _follow(followed: ClusterState, correct: Resizing, dice: random.Random) -> None:
    cluster = correct.cluster()
    attributes = ["nodes", "topologies", "flavors", "pods", "workloads", "rayclusters"]
    attributes.append("cluster_queues")
    dice.shuffle(attributes)
    for attribute in attributes:
        rows = {getattr(row, "key", "") or row.name: row for row in getattr(cluster, attribute)}
        known = followed.rows.get(attribute, {})
        for key in [key for key in known if key not in rows]:
            followed.drop(attribute, key)
        for key, row in rows.items():
            if followed.rows.get(attribute, {}).get(key) != row:
                followed.put(attribute, key, row)
