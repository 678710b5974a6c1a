"""A cluster that does everything right is never accused, whatever happens in whatever order."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rackgate_cli.checker.world import World
from rackgate_cli.invariants import breaches, judge
from tests.property.invariants_world import Correct

ACTS = 150


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), hosts=st.booleans())
def test_a_correct_cluster_shows_no_breach(seed: int, hosts: bool) -> None:
    world = Correct(random.Random(seed), hosts=hosts)
    story = []
    for _ in range(ACTS):
        story.append(world.act())
        assert breaches(world.cluster()) == [], story


def test_the_correct_cluster_does_all_that_it_can_do() -> None:
    """Otherwise the test above would prove nothing."""
    world, seen = Correct(random.Random(7), hosts=True), Counter[str]()
    for _ in range(2000):
        before = world.cluster()
        act = world.act()
        after = world.cluster()
        same = (list(before.pods), list(before.workloads), list(before.jobs))
        seen[act] += same != (list(after.pods), list(after.workloads), list(after.jobs))
        leftover = [
            pod
            for life in world.lives.values()
            for pod in life.pods.values()
            if not pod.gates and pod.domain(world.levels) not in dict(life.places)
        ]
        seen["terminating on a host given up"] += any(pod.terminating for pod in leftover)
        seen["running on a host given up"] += any(not pod.terminating for pod in leftover)
    assert all(seen[act.__name__] for act in Correct.ACTS), seen
    assert seen["terminating on a host given up"], seen
    assert seen["running on a host given up"], seen


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), hosts=st.booleans())
def test_followed_event_by_event_or_read_at_once_shows_the_same(seed: int, hosts: bool) -> None:
    correct, followed = Correct(random.Random(seed), hosts=hosts), World()
    dice = random.Random(seed)
    for _ in range(60):
        correct.act()
        _spoil(correct, dice)
        _follow(followed, correct)
        read = followed.cluster(correct.now)
        assert followed.judge(correct.now) == judge(read)
        assert judge(read) == judge(correct.cluster())


def _spoil(world: Correct, dice: random.Random) -> None:
    """Break something now and then, so that there is something to show."""
    pods = [(life, pod) for life in world.lives.values() for pod in life.pods.values()]
    if pods and dice.random() < 0.3:
        life, pod = dice.choice(pods)
        elsewhere = dict.fromkeys(world.levels, dice.choice(list(world.nodes)))
        life.pods[pod.name] = replace(pod, gates=(), selector=elsewhere)


def _follow(followed: World, correct: Correct) -> None:
    cluster = correct.cluster()
    for attribute in (
        *("nodes", "topologies", "flavors", "pods", "workloads", "jobs"),
        "cluster_queues",
    ):
        rows = {getattr(row, "key", "") or row.name: row for row in getattr(cluster, attribute)}
        known = followed.rows.get(attribute, {})
        for key in [key for key in known if key not in rows]:
            followed.drop(attribute, key)
        for key, row in rows.items():
            if followed.rows.get(attribute, {}).get(key) != row:
                followed.put(attribute, key, row)
