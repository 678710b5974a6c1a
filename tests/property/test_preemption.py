"""Lives of a ClusterQueue with preemption, in which nobody takes turns for ever."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Admit, Assignment, Preempt
from tests.unit.assigner.builders import (
    cache_with,
    cluster_queue,
    flavor,
    plan_cycle,
    podset,
    workload,
)

CPU = ("plain", "cpu")
POLICIES = ("LowerPriority", "LowerOrNewerEqualPriority")
AGES = tuple(f"2026-08-01T12:00:0{second}Z" for second in range(4))


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
