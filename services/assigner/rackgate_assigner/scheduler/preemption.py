"""Which Workloads of a ClusterQueue give way to another: `conformance/quota`, sections 7 and 8.

Whole Workloads alone are chosen, each with what its slices hold. Whoever may be a victim is lower
than its preemptor in one fixed order, by priority and then by age, so no two take turns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from rackgate_assigner.quota.queues import NEVER, ClusterQueueRow, FlavorResource, FlavorRow
from rackgate_assigner.scheduler.order import priority_of
from rackgate_assigner.workload.info import WorkloadRow

LOWER: Final = "LowerPriority"
LOWER_OR_NEWER: Final = "LowerOrNewerEqualPriority"

Amounts = Mapping[FlavorResource, int]


@dataclass(frozen=True, slots=True)
class Running:
    """A Workload that holds quota of a ClusterQueue.

    Attributes:
        row: the Workload, never a slice.
        quota: what it and its slices hold.
        leaving: it gives its quota back already, or is about to.
    """

    row: WorkloadRow
    quota: Amounts
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """The Workload that others may have to give way to."""

    key: str
    parent: str
    priority: int
    age: str


def may_preempt(policy: str, waiting: Waiting, priority: int, age: str) -> bool:
    """Whether a policy lets a Workload take the quota of one with this priority and age.

    Of equal priorities only a younger one gives way: two of the same age never do.
    """
    if priority < waiting.priority:
        return policy in (LOWER, LOWER_OR_NEWER)
    return policy == LOWER_OR_NEWER and priority == waiting.priority and age > waiting.age


def victims(
    candidates: Iterable[Running],
    request: Amounts,
    short: AbstractSet[FlavorResource],
    room: Amounts,
) -> list[Running]:
    """Candidates without which a request fits, none of them for nothing; empty when none do.

    Args:
        candidates: in the order in which they are to give way.
        request: what is asked for.
        short: pairs of the request that there is too little of: who holds none of them stays.
        room: what is free of each pair of the request; negative where more is promised than is.
    """
    left = dict(room)
    chosen: list[Running] = []
    for candidate in candidates:
        if short.isdisjoint(candidate.quota):
            continue
        _add(left, candidate.quota, 1)
        chosen.append(candidate)
        if fits(request, left):
            break
    else:
        return []
    # The last one made it fit. Those before may turn out not to be needed: the highest first.
    for index in range(len(chosen) - 2, -1, -1):
        _add(left, chosen[index].quota, -1)
        if fits(request, left):
            del chosen[index]
        else:
            _add(left, chosen[index].quota, 1)
    return chosen


def fits(request: Amounts, room: Amounts) -> bool:
    """Whether there is room for every amount of a request."""
    return all(amount <= room.get(pair, 0) for pair, amount in request.items() if amount > 0)


def _add(total: dict[FlavorResource, int], part: Amounts, sign: int) -> None:
    for pair, amount in part.items():
        total[pair] = total.get(pair, 0) + sign * amount


@dataclass(frozen=True, slots=True)
class _Sums:
    """What those of a ClusterQueue hold that one of some priority comes before.

    Attributes:
        lower: of lower priorities, all together.
        ages: of those with the same priority, sorted.
        newer: what these hold together: all of them, all but the oldest, ..., none of them.
    """

    lower: dict[FlavorResource, int]
    ages: list[str]
    newer: list[Amounts]


class Preemption:
    """Who gives way in one cycle; what earlier ones were promised is not promised again."""

    def __init__(
        self,
        running: Mapping[str, Sequence[Running]],
        priorities: Mapping[str, int],
        flavors: Mapping[str, FlavorRow],
        leaving: AbstractSet[str],
    ) -> None:
        """Prepare.

        Args:
            running: by ClusterQueue, those that hold quota there.
            priorities: WorkloadPriorityClass name to value.
            flavors: all flavors there are.
            leaving: keys of further Workloads that are about to give their quota back.
        """
        self._running, self._priorities = running, priorities
        self._flavors, self._leaving = flavors, leaving
        self._ordered: dict[str, list[Running]] = {}
        self._sums: dict[tuple[str, int], _Sums] = {}
        # Quota of those chosen in this cycle, by ClusterQueue.
        self._freed: dict[str, dict[FlavorResource, int]] = {}
        self.taken: set[str] = set()

    def supports(self, queue: ClusterQueueRow) -> bool:
        """Whether Workloads of a queue may take quota of others of the same queue.

        Where flavors have a topology, who has to go is also a question of places: not yet asked.
        """
        if queue.within == NEVER:
            return False
        found = (self._flavors.get(name) for name in queue.flavors)
        return not any(flavor is not None and flavor.topology for flavor in found)

    def yields(self, queue: ClusterQueueRow, waiting: Waiting) -> dict[FlavorResource, int]:
        """What would be free in addition, once all had gone that may have to, by pair.

        Asked for everyone that waits, so it is added up once for each priority. Of a slice its
        parent is among them: that this one is left alone is for `choose` to see.
        """
        if not self.supports(queue):
            return {}
        known = self._sums.get((queue.name, waiting.priority))
        if known is None:
            known = self._sums[queue.name, waiting.priority] = self._sum(queue.name, waiting)
        total = dict(self._freed.get(queue.name, {}))
        _add(total, known.lower, 1)
        if queue.within == LOWER_OR_NEWER:
            _add(total, known.newer[bisect_right(known.ages, waiting.age)], 1)
        return total

    def _sum(self, name: str, waiting: Waiting) -> _Sums:
        lower: dict[FlavorResource, int] = {}
        equal: list[Running] = []
        for running in self._running.get(name, ()):
            if running.row.key in self.taken:
                continue
            priority = self._priority(running)
            if priority < waiting.priority:
                _add(lower, running.quota, 1)
            elif priority == waiting.priority:
                equal.append(running)
        equal.sort(key=lambda running: running.row.age)
        newer: list[Amounts] = [{}]
        for running in reversed(equal):
            total = dict(newer[-1])
            _add(total, running.quota, 1)
            newer.append(total)
        return _Sums(lower, [running.row.age for running in equal], newer[::-1])

    def choose(
        self,
        queue: ClusterQueueRow,
        waiting: Waiting,
        request: Amounts,
        short: AbstractSet[FlavorResource],
        room: Amounts,
    ) -> list[Running] | None:
        """Who gives way, and from now on is nobody else's; none if those of others will do.

        Args:
            queue: the ClusterQueue.
            waiting: who asks.
            request: what it asks for.
            short: pairs of that which others hold too much of.
            room: what is free now, by pair.

        Returns:
            None if it would not even fit without all that may have to give way.
        """
        freed = self._freed.setdefault(queue.name, {})
        later = dict(room)
        _add(later, freed, 1)
        if fits(request, later):
            return []
        chosen = victims(self._candidates(queue, waiting), request, short, later)
        for victim in chosen:
            self.taken.add(victim.row.key)
            _add(freed, victim.quota, 1)
            self._forget(queue.name, victim)
        return chosen or None

    def _forget(self, name: str, victim: Running) -> None:
        """One more of a ClusterQueue is nobody's candidate any more."""
        self._ordered[name].remove(victim)
        priority = self._priority(victim)
        for queue, above in list(self._sums):
            if queue == name and above == priority:
                del self._sums[queue, above]
            elif queue == name and above > priority:
                _add(self._sums[queue, above].lower, victim.quota, -1)

    def is_leaving(self, running: Running) -> bool:
        """Whether a Workload gives its quota back without being asked again."""
        return running.leaving or running.row.key in self._leaving

    def _candidates(self, queue: ClusterQueueRow, waiting: Waiting) -> Iterator[Running]:
        for running in self._in_order(queue.name):
            priority, row = self._priority(running), running.row
            if row.key != waiting.parent and may_preempt(queue.within, waiting, priority, row.age):
                yield running

    def _in_order(self, name: str) -> Sequence[Running]:
        """Those that leave anyway, then the lowest priority, then the newest reservation."""
        found = self._ordered.get(name)
        if found is None:
            found = sorted(self._running.get(name, ()), key=lambda one: (one.row.uid, one.row.key))
            # One whose reservation the watch has not shown yet is the newest of all.
            found.sort(key=lambda one: one.row.reserved_at or "~", reverse=True)
            found.sort(key=lambda one: (not self.is_leaving(one), self._priority(one)))
            self._ordered[name] = found
        return found

    def _priority(self, running: Running) -> int:
        return priority_of(running.row, self._priorities)
