"""Backfill: Workloads that are admitted ahead of the head of a StrictFIFO queue.

1. `expected_start` computes when the head starts if every Workload runs as long as it may: those
   with a maximum execution time are removed from the state in the order of their ends, until the
   head can be admitted. Those without one never end.
2. A Workload behind the head that fits now is admitted if it ends before that time, with the time
   that its pods may take to terminate. Otherwise it is added to the state of that time: it is
   admitted if the head still starts with as many pods and no more targets of preemption.

Without an expected start nothing is admitted ahead of the head.

Time alone admits nothing, so no plan is needed for it: the expected start does not move, and what
must end before it has less time left. Only a change may: a Workload that ends, or a new one. A
Workload that runs on after its maximum moves the expected start; it is being stopped, and its end
is such a change.

Inputs: a state, which is the same when a call returns; whoever admits a Workload adds it to the
state before the next one is decided about. `now` in seconds.
Invariant: what is admitted does not change the expected start of the head.
Complexity: 2 log2 of the ends in nominations for the head, at most; one for each candidate, two if
it may run until the head starts. One that is like a candidate that was not admitted costs nothing.
Source: EASY backfilling (D. Lifka, The ANL/IBM SP scheduling system, 1995); ADR 46.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from math import ceil, inf
from typing import Final

from rackgate.api.timestamps import rfc3339
from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.nomination.nominate_head import is_good, nominate_head
from rackgate_assigner.scheduler.nomination.nomination import (
    FlavorAssignmentMode,
    Nomination,
    PendingWorkload,
)
from rackgate_assigner.scheduler.nomination.topology_assignment import checks_of
from rackgate_assigner.workload.conditions import MAX_MESSAGE, truncate

# Seconds for the writes of an admission and of an eviction, and to stop a job.
MARGIN_S: Final = 30.0
# Ends that are tried one after another for a head that may fit with less and not with more.
MAX_ENDS: Final = 32
# Workloads whose end is considered. Removing that many and adding them again takes 0.2 s.
MAX_ENDED: Final = 2000
# Candidates of different shapes that are tried in vain before the others are left out.
MAX_TRIES: Final = 32
# Workloads behind the head that one plan looks at.
MAX_CANDIDATES: Final = 1000


class Denial(StrEnum):
    """Why a Workload is not admitted ahead of the head."""

    NO_EXPECTED_START = "the start of the first one cannot be predicted"
    NO_LIMIT = (
        "it has no maximum execution time (label kueue.x-k8s.io/max-exec-time-seconds) and would "
        "delay the first one"
    )
    TOO_LONG = "it may run until after the expected start of the first one, and would delay it"
    DOES_NOT_FIT = "it does not fit now"
    WAITS_FOR_CHECKS = "it would have to pass admission checks"


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """When the head starts at the latest, as far as maximum execution times say.

    Attributes:
        at: seconds.
        ended: number of Workloads that have ended by then.
        nomination: what the head gets; None if `at` is only a time before which it does not start.
    """

    at: float
    ended: int
    nomination: Nomination | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A Workload behind the head.

    Attributes:
        lasts_s: seconds that it may run; inf without a maximum.
        grace_s: seconds that its pods may take to terminate.
    """

    workload: PendingWorkload
    lasts_s: float
    grace_s: float


def expected_start(state: QuotaState, head: PendingWorkload, now: float) -> ExpectedStart | None:
    """When the head of a queue starts, if nothing else is admitted; None if that is unknown.

    Args:
        state: the same when the call returns.
        head: it does not fit now.
        now: in seconds.
    """
    found = ((workload.end(now), workload) for workload in _sharing(state, head))
    ends = sorted(
        ((end, workload) for end, workload in found if end < inf),
        key=lambda one: (one[0], one[1].key),
    )
    times = sorted({end for end, _ in ends})
    tried = times
    if len(ends) > MAX_ENDED:
        tried = tried[: bisect_left(times, ends[MAX_ENDED][0])]
    is_monotone = _is_monotone(state, head)
    tried = tried if is_monotone else tried[:MAX_ENDS]
    future = _Future(state, ends)
    try:
        start = (_search if is_monotone else _walk)(future, head, tried)
    finally:
        future.undo()
    if start is None and len(tried) == len(times):
        return None
    at, nomination = (times[len(tried)], None) if start is None else start
    return ExpectedStart(at, sum(end <= at for end, _ in ends), nomination)


class _Future:
    """A state from which Workloads are removed in the order of their ends."""

    def __init__(self, state: QuotaState, ends: Sequence[tuple[float, RunningWorkload]]) -> None:
        self._state, self._ends, self._ended = state, ends, 0

    def nominate(self, head: PendingWorkload, time: float) -> Nomination | None:
        """What the head gets at a time; None if it does not start then."""
        while self._ended < len(self._ends) and self._ends[self._ended][0] <= time:
            self._state.remove(self._ends[self._ended][1].key)
            self._ended += 1
        while self._ended and self._ends[self._ended - 1][0] > time:
            self._restore_last()
        found = nominate_head(self._state, head)
        return found if is_good(found) else None

    def undo(self) -> None:
        """Leave the state as it was."""
        while self._ended:
            self._restore_last()

    def _restore_last(self) -> None:
        self._ended -= 1
        self._state.add(self._ends[self._ended][1])


def _search(
    future: _Future, head: PendingWorkload, times: Sequence[float]
) -> tuple[float, Nomination] | None:
    """The first time at which the head starts, if it then starts at all later times, too.

    Steps that double come first: Workloads that end long after the head starts are not removed.
    """
    low, high = 0, 0
    while high < len(times) and (best := future.nominate(head, times[high])) is None:
        low, high = high + 1, min(2 * high + 1, max(high + 1, len(times) - 1))
    if high >= len(times):
        return None
    while low < high:
        middle = (low + high) // 2
        found = future.nominate(head, times[middle])
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle
    return (times[high], best) if best is not None else None


def _walk(
    future: _Future, head: PendingWorkload, times: Sequence[float]
) -> tuple[float, Nomination] | None:
    """The same for any head."""
    for time in times:
        found = future.nominate(head, time)
        if found is not None:
            return time, found
    return None


def _sharing(state: QuotaState, head: PendingWorkload) -> list[RunningWorkload]:
    """Workloads whose end may let the head start: they share its quota tree or its nodes."""
    queues, root = state.tree.queues, state.tree.queues[head.cluster_queue].root
    uses_nodes = _has_topology(state, head)
    return [
        workload
        for workload in state.running
        if workload.cluster_queue in queues
        and ((uses_nodes and workload.charges) or state.node_of(workload).root is root)
    ]


def _has_topology(state: QuotaState, head: PendingWorkload) -> bool:
    flavors = state.queues[head.cluster_queue].flavors
    return any(name in state.topologies.by_flavor for name in flavors)


def _is_monotone(state: QuotaState, head: PendingWorkload) -> bool:
    """Whether the head surely starts with more free, wherever it starts with less.

    What a PodSet takes depends on what is free, and so does what is left for the next one. The
    first flavor with quota is taken, even if its domains do not suffice. What may be preempted
    depends on who borrows.
    """
    queue = state.queues[head.cluster_queue]
    one_flavor = all(len(group.flavors) == 1 for group in queue.groups)
    return (
        len(head.podsets) == 1
        and head.podsets[0].min_count is None
        and not queue.preempts
        and (one_flavor or not _has_topology(state, head))
    )


class Backfill:
    """The Workloads behind one head, in one cycle.

    Attributes:
        start: of the head; None if it is unknown.
    """

    def __init__(self, state: QuotaState, head: PendingWorkload, now: float) -> None:
        self._state, self._head, self._now = state, head, now
        self.start = expected_start(state, head, now)
        # Capacity only decreases within a cycle: what was denied stays denied.
        self._denied: dict[Hashable, Denial] = {}

    @property
    def is_over(self) -> bool:
        """Whether no other Workload is tried in this cycle."""
        return len(self._denied) >= MAX_TRIES

    def decide(self, candidate: Candidate) -> Nomination | Denial:
        """What a Workload gets ahead of the head, or why nothing."""
        if self.start is None:
            return Denial.NO_EXPECTED_START
        alike = _alike(candidate)
        known = self._denied.get(alike)
        if known is not None:
            return known
        found = self._decide(candidate, self.start)
        if isinstance(found, Denial):
            self._denied[alike] = found
        return found

    def _decide(self, candidate: Candidate, start: ExpectedStart) -> Nomination | Denial:
        ends_at = self._now + candidate.lasts_s + candidate.grace_s + MARGIN_S
        too_long = Denial.NO_LIMIT if candidate.lasts_s == inf else Denial.TOO_LONG
        if ends_at > start.at and start.nomination is None:
            return too_long
        found = nominate_head(self._state, candidate.workload)
        if found.mode is not FlavorAssignmentMode.FIT:
            return Denial.DOES_NOT_FIT
        if checks_of(self._state.queues[candidate.workload.cluster_queue], found):
            return Denial.WAITS_FOR_CHECKS  # its time starts when it has passed them
        if ends_at <= start.at or self._keeps_start(start, candidate, found):
            return found
        return too_long

    def _keeps_start(self, start: ExpectedStart, candidate: Candidate, found: Nomination) -> bool:
        """Whether the head gets the same at its expected start if the candidate runs by then."""
        if start.nomination is None:
            return False
        sharing = _sharing(self._state, self._head)
        node = self._state.tree.queues[candidate.workload.cluster_queue]
        with self._state.without(one for one in sharing if one.end(self._now) <= start.at):
            # It does not become a Workload that holds quota: the head must not preempt it.
            node.add(found.usage)
            self._state.charge(found.charges, 1)
            try:
                again = nominate_head(self._state, self._head)
            finally:
                self._state.charge(found.charges, -1)
                node.remove(found.usage)
        return is_good(again) and _is_as_good(again, start.nomination)


def _alike(candidate: Candidate) -> Hashable:
    """Equal for candidates that get the same answer from the same state."""
    workload = candidate.workload
    done = tuple(podset.reclaimable for podset in workload.podsets)
    shape = workload.key if workload.shape is None else workload.shape
    return workload.priority, shape, done, candidate.lasts_s, candidate.grace_s


def _is_as_good(found: Nomination, before: Nomination) -> bool:
    """Whether a nomination has as many pods as another, and preempts no others."""
    pods = [podset.request.count for podset in before.podsets]
    known = {target.workload.key for target in before.targets}
    return [podset.request.count for podset in found.podsets] == pods and all(
        target.workload.key in known for target in found.targets
    )


@dataclass(frozen=True, slots=True)
class StartTime:
    """The expected start that a message says.

    Attributes:
        at: RFC 3339.
        by: it starts then or earlier; false: not before then.
    """

    at: str
    by: bool


_STARTS_BY: Final = "Expected to start by"
_NOT_BEFORE: Final = "Not expected before"
_START: Final = re.compile(rf"\. ({_STARTS_BY}|{_NOT_BEFORE}) (\S+Z), when \d+ workloads? ")


def read_expected_start(message: str) -> StartTime | None:
    """What `with_expected_start` wrote into a message; None if it says no time."""
    found = _START.search(message)
    return None if found is None else StartTime(found[2], found[1] == _STARTS_BY)


def with_expected_start(message: str, start: ExpectedStart | None, now: float) -> str:
    """The message of a head, with its expected start."""
    if start is None:
        text = (
            "Its start cannot be predicted: workloads without a maximum execution time use what it "
            "needs"
        )
    elif start.at <= now:
        text = "Expected to start when the workloads that are being stopped are gone"
    else:
        # In whole seconds, as the API server stores times.
        at = rfc3339(datetime.fromtimestamp(ceil(start.at), UTC))
        verb = _STARTS_BY if start.nomination is not None else _NOT_BEFORE
        many = start.ended != 1
        ended = (
            f"{start.ended} workloads have reached their" if many else "1 workload has reached its"
        )
        text = f"{verb} {at}, when {ended} maximum execution time"
    return f"{truncate(message, MAX_MESSAGE - len(text) - 2)}. {text}"
