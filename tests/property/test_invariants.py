"""A cluster that does everything right is never accused, whatever happens in whatever order."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rackgate_invariants.cluster_state import ClusterState
from rackgate_invariants.judge import breaches, judge
from rackgate_invariants.rows.rows import Counts, JobRow, PodRow, PodSetRow, WorkloadRow
from tests.property.invariants_world import QUEUE, Correct, Life
from tests.support.sound_cluster import OF_STATUS

ACTS = 150


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), hosts=st.booleans())
def test_a_correct_cluster_shows_no_breach(seed: int, hosts: bool) -> None:
    world = Correct(random.Random(seed), hosts=hosts)
    story = []
    for _ in range(ACTS):
        story.append(world.act())
        assert breaches(world.cluster()) == [], story
        shown = [one for one in judge(world.cluster()) if one.rule in OF_STATUS]
        assert shown == [], "a queue that charges what lives counts right"


def _forge(world: Correct) -> None:
    """A Job that names a JobSet that is nowhere."""
    forged = JobRow("team", "forged", "forged", has_queue_label=True, managed=True, queue=QUEUE)
    forged = replace(
        forged, parent_uid="nobody", parent_kind="JobSet", parent_name="nobody", count=1
    )
    world.lives["forged"] = Life(forged, _workload("forged"))
    _bind(world, "forged", owner="forged", owner_kind="Job", owner_name="forged")


def _leave(world: Correct) -> None:
    """A pod without a controller that names somebody's Workload."""
    life = world.dice.choice([life for life in world.lives.values() if life.pods])
    _bind(world, life.job.name, workload=life.workload.name, podset="main")


def _stray(world: Correct) -> None:
    """A pod of an invented controller that names somebody's Workload."""
    life = world.dice.choice([life for life in world.lives.values() if life.pods])
    invented = {"owner": "nobody", "owner_kind": "Job", "owner_name": "nobody"}
    _bind(world, life.job.name, workload=life.workload.name, podset="main", **invented)


def _strip(world: Correct) -> None:
    """A Workload that holds quota loses its owner."""
    life = world.dice.choice([life for life in world.lives.values() if life.workload.holds])
    life.workload = replace(life.workload, owner="", owner_kind="", owner_name="")


def _bury(world: Correct) -> None:
    """A Job is gone, and so are its pods; its Workload holds on."""
    life = world.dice.choice([life for life in world.lives.values() if life.workload.holds])
    life.pods = {}
    life.job = replace(life.job, deleting=True)


def _bind(world: Correct, life: str, **claims: Any) -> None:
    node = world.dice.choice(list(world.nodes))
    made = PodRow(
        *("team", "planted", "planted"),
        node=node,
        requests=(("cpu", 100),),
        created_at=world.now,
        scheduled_at=world.now + 60,
        **claims,
    )
    world.lives[life].pods["planted"] = made


def _workload(name: str) -> WorkloadRow:
    podset = PodSetRow("main", 1, requests=(("cpu", 100),))
    return WorkloadRow("team", f"job-{name}", f"w-{name}", podsets=(podset,), active=False)


PLANTED = {
    _forge: {"forged-owner", "not-stopped"},
    _leave: {"left-behind"},
    _stray: {"stray-marks"},
    _strip: {"strange-owner"},
    _bury: {"held-after-end"},
}


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), hosts=st.booleans())
def test_what_somebody_plants_beside_a_correct_cluster_is_found(seed: int, hosts: bool) -> None:
    for build_flavor_topology, rules in PLANTED.items():
        world = Correct(random.Random(seed), hosts=hosts)
        for _ in range(4000):
            world.act()
            if any(one.workload.may_ungate and one.pods for one in world.lives.values()):
                break
        before = {one.rule for one in judge(world.cluster())}
        assert before.isdisjoint(rules - {"not-stopped"})
        build_flavor_topology(world)
        assert rules <= {one.rule for one in judge(world.cluster())}, build_flavor_topology.__name__
        if build_flavor_topology in (_forge, _leave):
            (queue,) = world.cluster().cluster_queues
            silent = replace(queue, counts=Counts())
            cluster = dataclasses.replace(world.cluster(), cluster_queues=[silent])
            assert "uncharged" in {one.rule for one in judge(cluster)}, (
                build_flavor_topology.__name__
            )


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
    correct, followed = Correct(random.Random(seed), hosts=hosts), ClusterState()
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


def _follow(followed: ClusterState, correct: Correct) -> None:
    cluster = correct.cluster()
    for attribute in (
        *("nodes", "topologies", "flavors", "pods", "workloads", "jobs"),
        *("cluster_queues", "local_queues"),
    ):
        rows = {getattr(row, "key", "") or row.name: row for row in getattr(cluster, attribute)}
        known = followed.rows.get(attribute, {})
        for key in [key for key in known if key not in rows]:
            followed.drop(attribute, key)
        for key, row in rows.items():
            if followed.rows.get(attribute, {}).get(key) != row:
                followed.put(attribute, key, row)
