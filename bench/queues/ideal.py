"""Times to admission of somebody who decides without any delay: what remains is the writes. Pure.

The load is played in simulated time. A Workload that is created or has ended is known at once, and
a decision takes no time. Each Workload needs three writes: its creation, its admission and its end.
The API server makes all writes one after the other, in the order in which they are sent, and each
takes the same time.

By priority: in a cohort, nothing is admitted before what has a higher priority. So nothing is ever
preempted.

This is a model, not a bound: a creation is cheaper than an admission, above all than one with
topology, so where many are created at once, a real API server admits earlier.
"""

from __future__ import annotations

import heapq
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.queues.kueue_load import (
    COHORTS,
    NOMINAL_CPU,
    QUEUES_PER_COHORT,
    Stream,
    WorkloadClass,
)

WRITES_PER_WORKLOAD: Final = 3


def ideal_to_admission(parts: Sequence[Stream], writes_per_s: float) -> dict[str, float]:
    """Mean seconds from creation to admission, by size of Workloads.

    Args:
        parts: what every queue gets.
        writes_per_s: of Workloads, that the API server makes.
    """
    return _Simulation(parts, writes_per_s).play()


@dataclass(slots=True)
class _Waiting:
    of: WorkloadClass
    created: float


class _Simulation:
    """Everything happens at `_now`, in order of time; times are seconds from the start."""

    def __init__(self, parts: Sequence[Stream], writes_per_s: float) -> None:
        self._parts, self._write_s = parts, 1 / writes_per_s
        self._now = self._free_at = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._waits: dict[str, list[float]] = defaultdict(list)
        priorities = sorted({-part.of.priority for part in parts})
        # By cohort: its free quota, and by falling priority, who waits.
        self._quota = [float(NOMINAL_CPU * QUEUES_PER_COHORT)] * COHORTS
        self._waiting: list[dict[int, deque[_Waiting]]] = [
            {-priority: deque() for priority in priorities} for _ in range(COHORTS)
        ]

    def play(self) -> dict[str, float]:
        for queue in range(COHORTS * QUEUES_PER_COHORT):
            for part in self._parts:
                self._create(queue % COHORTS, part, 0)
        while self._events:
            self._now, _, act = heapq.heappop(self._events)
            act()
        return {size: statistics.fmean(waits) for size, waits in self._waits.items()}

    def _at(self, time: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, act))

    def _write(self, then: Callable[[], None]) -> None:
        self._free_at = max(self._free_at, self._now) + self._write_s
        self._at(self._free_at, then)

    def _create(self, cohort: int, part: Stream, number: int) -> None:
        """One Workload after each interval; one that is late delays the rest of its stream."""

        def created() -> None:
            one = _Waiting(part.of, self._now)
            self._waiting[cohort][part.of.priority].append(one)
            if number + 1 < part.count:
                self._create(cohort, part, number + 1)
            self._admit(cohort)

        due = max(self._now, (number + 1) * part.interval_s)
        self._at(due, lambda: self._write(created))

    def _admit(self, cohort: int) -> None:
        for waiting in self._waiting[cohort].values():
            while waiting and waiting[0].of.cpu <= self._quota[cohort]:
                self._start(cohort, waiting.popleft())
            if waiting:
                return

    def _start(self, cohort: int, one: _Waiting) -> None:
        self._quota[cohort] -= one.of.cpu

        def admitted() -> None:
            self._waits[one.of.name.partition("-")[0]].append(self._now - one.created)
            self._at(self._now + one.of.run_s, lambda: self._write(ended))

        def ended() -> None:
            self._quota[cohort] += one.of.cpu
            self._admit(cohort)

        self._write(admitted)
