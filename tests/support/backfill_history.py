"""Queues over hours of simulated time: Workloads arrive, are admitted, and end.

Decisions are those of the scheduling cycle and, if asked for, of backfill. Nothing is preempted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.backfill import (
    Backfill,
    Candidate,
    Denial,
    ExpectedStart,
    expected_start,
)
from rackgate_assigner.scheduler.nomination.nomination import PendingWorkload
from rackgate_assigner.scheduler.quota_cycle import HeadAdmission, run_cycle
from rackgate_assigner.workload.decisions import Assignment
from rackgate_assigner.workload.info import Charge, quota_usage


@dataclass(frozen=True, slots=True)
class Run:
    """A Workload: when it arrives, how long it may run, and how long it does.

    Attributes:
        lasts_s: its maximum execution time; inf without one.
        takes_s: not more than that; inf if it never ends.
    """

    workload: PendingWorkload
    lasts_s: float
    takes_s: float
    arrives: float = 0.0


def start(state: QuotaState, run: Run, assignment: Assignment, now: float) -> None:
    """A Workload holds quota and domains from now on."""
    requests = {podset.request.name: podset.request.requests for podset in run.workload.podsets}
    charges = tuple(
        Charge(min(part.flavors.values()), requests[part.name], part.topology)
        for part in assignment.podsets
        if part.topology is not None
    )
    workload = run.workload
    state.add(
        RunningWorkload(
            workload.key,
            workload.uid,
            workload.cluster_queue,
            workload.priority,
            workload.queue_timestamp,
            now,
            False,
            quota_usage(assignment),
            charges,
            now + run.lasts_s,
            run.lasts_s,
        )
    )


@dataclass
class History:
    """One history; `run` makes it.

    Attributes:
        with_backfill: whether Workloads are admitted ahead of the heads of StrictFIFO queues.
        grace_s: seconds that pods may take to terminate.
        checks: whether what is admitted must leave the expected start as it was.
        admitted: when each Workload was admitted.
        backfilled: those that were admitted ahead of a head.
        expected: by head of a StrictFIFO queue, each time it did not fit, and its expected start.
    """

    state: QuotaState
    with_backfill: bool
    grace_s: float = 0.0
    checks: bool = True
    admitted: dict[str, float] = field(default_factory=dict)
    backfilled: set[str] = field(default_factory=set)
    expected: dict[str, list[tuple[float, ExpectedStart | None]]] = field(default_factory=dict)
    _runs: dict[str, Run] = field(default_factory=dict)
    _pending: dict[str, list[PendingWorkload]] = field(default_factory=dict)
    _events: list[tuple[float, int, str]] = field(default_factory=list)

    def run(self, runs: Iterable[Run]) -> None:
        """Until nothing more happens."""
        for one in runs:
            self._runs[one.workload.key] = one
            heappush(self._events, (one.arrives, 1, one.workload.key))
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                _, arrives, key = heappop(self._events)
                workload = self._runs[key].workload
                if arrives:
                    self._pending.setdefault(workload.cluster_queue, []).append(workload)
                else:
                    self.state.remove(key)
            for waiting in self._pending.values():
                waiting.sort(key=lambda one: one.order)
            self._schedule(now)

    def _schedule(self, now: float) -> None:
        aside: set[str] = set()
        staying: dict[str, PendingWorkload] = {}
        progress = True
        while progress:
            progress = False
            heads = {
                name: head
                for name, waiting in self._pending.items()
                if (head := next((one for one in waiting if one.key not in aside), None))
            }
            for result in run_cycle(self.state, heads.values(), {"ns": {}}):
                head = result.head
                if isinstance(result, HeadAdmission):
                    self._admit(head, result.assignment, now)
                    progress = True
                elif self.state.queues[head.cluster_queue].is_strict:
                    staying[head.cluster_queue] = head
                else:
                    aside.add(head.key)
                    progress = True
        for head in staying.values():
            if head.key not in self.admitted:
                self.backfill(head, now)

    def backfill(self, head: PendingWorkload, now: float) -> None:
        """Admit Workloads behind a head that does not fit."""
        if not self.with_backfill:
            self.expected.setdefault(head.key, [])
            return
        backfill = Backfill(self.state, head, now)
        self.expected.setdefault(head.key, []).append((now, backfill.start))
        for workload in list(self._pending[head.cluster_queue]):
            if workload is head or backfill.is_over:
                continue
            lasts_s = self._runs[workload.key].lasts_s
            found = backfill.decide(Candidate(workload, lasts_s, self.grace_s))
            if not isinstance(found, Denial):
                self.backfilled.add(workload.key)
                self._admit(workload, found.assignment(workload.cluster_queue), now)
        if self.checks:
            self._check(head, backfill, now)

    def _check(self, head: PendingWorkload, backfill: Backfill, now: float) -> None:
        """What was admitted has not changed the expected start."""
        if backfill.start is not None and backfill.start.nomination is not None:
            after = expected_start(self.state, head, now)
            assert after is not None
            assert after.at <= backfill.start.at

    def _admit(self, workload: PendingWorkload, assignment: Assignment, now: float) -> None:
        run = self._runs[workload.key]
        self._pending[workload.cluster_queue].remove(workload)
        self.admitted[workload.key] = now
        start(self.state, run, assignment, now)
        if run.takes_s < float("inf"):
            heappush(self._events, (now + run.takes_s, 0, workload.key))
