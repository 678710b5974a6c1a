"""Workloads that hold quota, by ClusterQueue, in the order in which they are preempted.

For each ClusterQueue and pair of flavor and resource there is a sorted list, so that the candidates
of a preemption are found without reading the Workloads that do not qualify: within a list, those of
lower priority come first.

Complexity: a change costs O(log n) comparisons and one move in each list of the Workload.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from rackgate_assigner.quota.queues import FlavorResource, Quota
from rackgate_assigner.workload.info import Charge

# Not evicted, priority, newest reservation first, uid, key.
CandidateOrder: TypeAlias = tuple[bool, int, float, str, str]


@dataclass(frozen=True, slots=True, eq=False)
class RunningWorkload:
    """A Workload that holds quota.

    Attributes:
        key: `namespace/name`.
        cluster_queue: name of the ClusterQueue whose quota it uses.
        local_queue: `namespace/name`.
        queue_timestamp: seconds; orders equal priorities, larger is newer.
        reserved_at: seconds; when its quota was reserved.
        evicted: it is being stopped; its quota is still in use.
        usage: of every assigned pair, also if the amount is 0.
        charges: what it uses of topologies.
        ends_at: seconds; when its execution time is over, inf if that is not known.
        lasts_s: seconds from its admission until then, inf without a maximum.
        pods: that its end stops.
        was_preempted: it was preempted before, and admitted again.
        across: the Workload of gangs with whose other Workloads it shares a domain; "" for none.
    """

    key: str
    uid: str
    cluster_queue: str
    priority: int
    queue_timestamp: float
    reserved_at: float
    evicted: bool
    usage: Quota
    charges: tuple[Charge, ...] = ()
    ends_at: float = inf
    lasts_s: float = inf
    pods: int = 0
    local_queue: str = ""
    was_preempted: bool = False
    across: str = ""

    def end(self, now: float) -> float:
        """When it has ended at the latest, in seconds, not before `now`; inf if it may run on.

        One whose admission is not visible yet counts as admitted now, and so does one that was
        admitted in the future, by a clock that is ahead.
        """
        return now if self.evicted else max(now, min(self.ends_at, now + self.lasts_s))

    @property
    def candidate_order(self) -> CandidateOrder:
        """The order among candidates of one kind."""
        return (not self.evicted, self.priority, -self.reserved_at, self.uid, self.key)


_Entries: TypeAlias = list[tuple[CandidateOrder, RunningWorkload]]


class RunningWorkloads:
    """The index."""

    __slots__ = ("_across", "_by_key", "_by_queue")

    def __init__(self) -> None:
        self._by_key: dict[str, RunningWorkload] = {}
        self._by_queue: dict[str, dict[FlavorResource, _Entries]] = {}
        self._across: dict[str, dict[str, RunningWorkload]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[RunningWorkload]:
        return iter(self._by_key.values())

    def get(self, key: str) -> RunningWorkload | None:
        """The one of a key; None if there is none."""
        return self._by_key.get(key)

    def add(self, workload: RunningWorkload) -> None:
        """Add one; its key is new.

        Raises:
            ValueError: there is one of that key.
        """
        if workload.key in self._by_key:
            raise ValueError(f'Workload "{workload.key}" holds quota already')
        self._by_key[workload.key] = workload
        if workload.across:
            self._across.setdefault(workload.across, {})[workload.key] = workload
        entry = (workload.candidate_order, workload)
        by_pair = self._by_queue.setdefault(workload.cluster_queue, {})
        for pair in workload.usage:
            insort(by_pair.setdefault(pair, []), entry, key=lambda found: found[0])

    def remove(self, key: str) -> RunningWorkload:
        """Remove the one of a key.

        Raises:
            KeyError: there is none.
        """
        workload = self._by_key.pop(key)
        if workload.across:
            sharing = self._across[workload.across]
            del sharing[key]
            if not sharing:
                del self._across[workload.across]
        order = workload.candidate_order
        by_pair = self._by_queue[workload.cluster_queue]
        for pair in workload.usage:
            entries = by_pair[pair]
            del entries[bisect_left(entries, order, key=lambda found: found[0])]
            if not entries:
                del by_pair[pair]
        return workload

    def sharing(self, across: str) -> list[RunningWorkload]:
        """Those that share a domain across Workloads, the oldest first."""
        found = self._across.get(across, {}).values()
        return sorted(found, key=lambda one: (one.reserved_at, one.key))

    def of_lower_priority(
        self, queue: str, pairs: Collection[FlavorResource], below: int | None
    ) -> Iterator[RunningWorkload]:
        """Those with a flavor for one of the pairs, each once, in no certain order.

        Args:
            queue: name of the ClusterQueue.
            pairs: of flavor and resource.
            below: end of the priorities, exclusive; None: all.
        """
        by_pair = self._by_queue.get(queue)
        if not by_pair:
            return
        several = len(pairs) > 1
        seen: set[str] = set()
        for pair in pairs:
            for workload in _of_lower_priority(by_pair.get(pair, []), below):
                if several:
                    if workload.key in seen:
                        continue
                    seen.add(workload.key)
                yield workload


def _of_lower_priority(entries: _Entries, below: int | None) -> Iterator[RunningWorkload]:
    if below is None:
        yield from (workload for _, workload in entries)
        return
    first_running = bisect_left(entries, (True,), key=lambda entry: entry[0][:1])
    for start, end in ((0, first_running), (first_running, len(entries))):
        for index in range(start, end):
            order, workload = entries[index]
            if order[1] >= below:
                break
            yield workload
