"""Victims against every subset there is, and lives in which nobody takes turns for ever."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.snapshot import AdmittedWorkload
from rackgate_assigner.quota.queues import cluster_queue_info
from rackgate_assigner.scheduler.preemption import (
    Preemption,
    Preemptor,
    fits,
    may_preempt,
    preemption_targets,
)
from rackgate_assigner.workload.decisions import Admit, Assignment, Preempt
from rackgate_assigner.workload.info import workload_info
from tests.unit.assigner.builders import (
    cache_with,
    cluster_queue,
    flavor,
    plan_cycle,
    podset,
    workload,
)

CPU, GPU = ("plain", "cpu"), ("plain", "gpu")
POLICIES = ("LowerPriority", "LowerOrNewerEqualPriority")
AGES = tuple(f"2026-08-01T12:00:0{second}Z" for second in range(4))
Pair = tuple[str, str]

amounts = st.fixed_dictionaries({}, optional={CPU: st.integers(0, 4), GPU: st.integers(0, 2)})


def one(
    index: int, quota: dict[Pair, int], priority: int, age: str, leaving: bool
) -> AdmittedWorkload:
    row = workload_info(
        workload(f"w{index}", priority=priority, created=age, reserved_at=AGES[-1 - index % 4])
    )
    return AdmittedWorkload(row, quota, leaving)


candidate_lists = st.lists(
    st.tuples(amounts, st.integers(0, 2), st.sampled_from(AGES), st.booleans()), max_size=6
).map(lambda found: [one(index, *each) for index, each in enumerate(found)])


def freed(chosen: tuple[AdmittedWorkload, ...], room: dict[Pair, int]) -> dict[Pair, int]:
    return {
        pair: amount + sum(running.quota.get(pair, 0) for running in chosen)
        for pair, amount in room.items()
    }


@pytest.mark.requirement("SLC-31")
@settings(max_examples=300, deadline=None)
@given(
    found=candidate_lists,
    request=st.fixed_dictionaries({CPU: st.integers(0, 8), GPU: st.integers(0, 4)}),
    room=st.fixed_dictionaries({CPU: st.integers(-4, 4), GPU: st.integers(-2, 2)}),
    priority=st.integers(0, 2),
    age=st.sampled_from(AGES),
    policy=st.sampled_from(POLICIES),
)
def test_victims_are_enough_all_needed_allowed_and_as_low_as_can_be(
    *,
    found: list[AdmittedWorkload],
    request: dict[Pair, int],
    room: dict[Pair, int],
    priority: int,
    age: str,
    policy: str,
) -> None:
    queue = cluster_queue_info(
        cluster_queue("cq", {"plain": {"cpu": "9"}}, preemption={"withinClusterQueue": policy})
    )
    waiting = Preemptor("team/p", "", priority, age)
    short = {pair for pair, amount in request.items() if amount > room[pair]}
    chosen = Preemption({"cq": found}, {}, {}, frozenset()).find_targets(
        queue, waiting, request, short, room
    )
    again = Preemption({"cq": found[::-1]}, {}, {}, frozenset()).find_targets(
        queue, waiting, request, short, room
    )
    assert again == chosen
    allowed = [
        running
        for running in found
        if may_preempt(policy, waiting, running.info.priority or 0, running.info.queue_timestamp)
    ]
    solutions = [
        subset
        for size in range(len(allowed) + 1)
        for subset in combinations(allowed, size)
        if fits(request, freed(subset, room))
    ]
    sums = Preemption({"cq": found}, {}, {}, frozenset()).preemptible_quota(queue, waiting)
    most = freed(tuple(allowed), dict.fromkeys(room, 0))
    assert {pair: sums.get(pair, 0) for pair in room} == most
    if not solutions:
        assert chosen is None
        return
    assert chosen is not None
    taken = tuple(chosen)
    assert fits(request, freed(taken, room))
    assert all(running in allowed for running in taken)
    for left_out in taken:
        rest = tuple(running for running in taken if running is not left_out)
        assert not fits(request, freed(rest, room)), "nobody gives way for nothing"
    worst = min(_highest(subset) for subset in solutions)
    assert _highest(taken) == worst, "nobody higher gives way where lower ones would do"


def _highest(subset: tuple[AdmittedWorkload, ...]) -> int:
    """Highest priority that is evicted for it; of those that leave anyway, none."""
    return max(
        (running.info.priority or 0 for running in subset if not running.being_evicted), default=-1
    )


@given(found=candidate_lists, cpu=st.integers(1, 9))
def test_a_search_changes_nothing_of_what_it_was_given(
    found: list[AdmittedWorkload], cpu: int
) -> None:
    before = [dict(running.quota) for running in found]
    room = {CPU: 0}
    preemption_targets(found, {CPU: cpu}, {CPU}, room)
    assert room == {CPU: 0}
    assert [dict(running.quota) for running in found] == before


class Life:
    """Workloads of one queue that come, run, are evicted, stop late and wait again."""

    def __init__(self, rng: random.Random, policy: str) -> None:
        self.rng, self.version = rng, 1
        queue = cluster_queue(
            "cq", {"plain": {"cpu": "10"}}, preemption={"withinClusterQueue": policy}
        )
        self.cache: Cache = cache_with(queue=queue)
        self.cache.set_flavor(flavor("plain", None, {}))
        self.facts: dict[str, tuple[int, int, str]] = {}
        self.running: dict[str, Assignment] = {}
        self.stopping: set[str] = set()
        self.evictions: list[tuple[str, str]] = []

    def show(self, name: str) -> None:
        """The watch shows a Workload as it is now."""
        self.version += 1
        cpu, priority, age = self.facts[name]
        told = {"Evicted": ("True", "Preempted", "")} if name in self.stopping else {}
        self.cache.set_workload(
            workload(
                name,
                [podset(count=cpu)],
                version=str(self.version),
                created=age,
                priority=priority,
                assignment=self.running.get(name),
                conditions=told,
            )
        )

    def arrive(self, name: str) -> None:
        cpu, priority = self.rng.randint(1, 8), self.rng.randint(0, 2)
        self.facts[name] = (cpu, priority, self.rng.choice(AGES))
        self.show(name)

    def finish(self, name: str) -> None:
        del self.facts[name], self.running[name]
        self.stopping.discard(name)
        self.cache.drop_workload(f"team/{name}")

    def stopped(self, name: str) -> None:
        """Its job has stopped: it waits again, at the size it had."""
        self.stopping.discard(name)
        del self.running[name]
        self.show(name)

    def cycle(self) -> int:
        """One cycle, every write of it seen at once; how many verdicts there were."""
        verdicts = 0
        for decision in plan_cycle(self.cache):
            name = decision.workload.partition("/")[2]
            if isinstance(decision, Admit):
                self.running[name] = decision.assignment
            elif isinstance(decision, Preempt):
                by = decision.by.partition("/")[2]
                assert name in self.running
                assert name not in self.stopping
                assert self._lower(name, by)
                self.stopping.add(name)
                self.evictions.append((name, by))
            else:
                continue
            verdicts += 1
            self.show(name)
        used = self.cache.totals.used().get("cq", {}).get(CPU, 0)
        assert used <= 10_000
        return verdicts

    def _lower(self, name: str, by: str) -> bool:
        (_, low, low_age), (_, high, high_age) = self.facts[name], self.facts[by]
        return low < high or (low == high and low_age > high_age)


@pytest.mark.requirement("SLC-31")
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(min_value=0, max_value=2**32), policy=st.sampled_from(POLICIES))
def test_in_no_life_do_two_workloads_take_turns(seed: int, policy: str) -> None:
    rng = random.Random(seed)
    life = Life(rng, policy)
    for step in range(25):
        match rng.choice("aaascf"):
            case "a":
                life.arrive(f"w{step}")
            case "s" if life.stopping:
                life.stopped(rng.choice(sorted(life.stopping)))
            case "f" if life.running:
                life.finish(rng.choice(sorted(life.running)))
            case _:
                life.cycle()
    quiet, before = 0, len(life.evictions)
    while quiet < 2:
        quiet = 0 if life.cycle() else quiet + 1
        while life.stopping:
            quiet = 0
            life.stopped(min(life.stopping))
            life.cycle()
        assert len(life.evictions) - before <= len(life.facts) ** 2, "it never comes to rest"
    # In the end nobody waits whom lower ones could make room for.
    assert not any(isinstance(decision, Preempt) for decision in plan_cycle(life.cache))
