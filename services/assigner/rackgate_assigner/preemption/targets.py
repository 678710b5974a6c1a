"""What a preemption is: its preemptor, its candidates, its targets, and when it is enough.

`TargetSearch` is the part that the kinds of preemption share. It removes candidates from the
state one after another until the preemptor fits, restores those that are not needed, and leaves
the state as it was.

A placement costs more than a look at quota, so it is tried only where the quota fits. Where more
room never makes a placement fail (`PlacementTest.monotone`), it is tried for whole batches of
candidates, of growing size: the first candidate that is enough, and the targets that are not
needed, are then found by binary search.

Invariant: the targets are those that a test after each candidate would find.
Complexity: a test for each candidate; of placement O(targets x log candidates) if it is monotone.
Source: conformance/quota, sections 8 and 10; `preemption.go` of Kueue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

from rackgate.api.names import PreemptedReason
from rackgate_assigner.quota.queues import (
    ANY,
    LOWER,
    LOWER_OR_NEWER,
    ClusterQueueInfo,
    FlavorResource,
)
from rackgate_assigner.quota.running import CandidateOrder, RunningWorkload
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota.tree import QuotaNode
from rackgate_assigner.workload.info import Charge

Candidate = TypeVar("Candidate")


@dataclass(frozen=True, slots=True)
class DomainNeeds:
    """The domains that a preemptor may take, by number.

    Attributes:
        missing: what a domain lacks for certain, by resource; it may lack more.
        used_by: what charges use of each domain, by resource.
    """

    missing: Callable[[int], Mapping[str, int]]
    used_by: Callable[[Iterable[Charge]], Mapping[int, Mapping[str, int]]]


@dataclass(frozen=True, slots=True)
class PlacementTest:
    """Whether the pods of a preemptor fit into the topologies as they are now.

    Attributes:
        passes: places the pods; nothing stays charged.
        monotone: if it passes, it also passes with more free capacity.
        domains: None: the pods need no common domain, or the smallest disruption is not searched.
    """

    passes: Callable[[], bool]
    monotone: bool
    domains: DomainNeeds | None = None


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pending Workload that needs quota.

    Attributes:
        queue_timestamp: seconds; larger is newer.
        request: usage by pair, without zeros.
        needed: pairs of the request that do not fit without preemption.
        placement: None: its pods are not placed by topology.
    """

    key: str
    priority: int
    queue_timestamp: float
    queue: ClusterQueueInfo
    request: Mapping[FlavorResource, int]
    needed: AbstractSet[FlavorResource]
    placement: PlacementTest | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A Workload to preempt, and why."""

    workload: RunningWorkload
    reason: PreemptedReason


def qualifying(
    state: QuotaState, preemptor: Preemptor, queue: str, policy: str
) -> Iterator[RunningWorkload]:
    """Workloads of a ClusterQueue that have a needed flavor and that the policy allows."""
    priority = preemptor.priority
    if policy == ANY:
        yield from state.running.of_lower_priority(queue, preemptor.needed, None)
    elif policy == LOWER:
        yield from state.running.of_lower_priority(queue, preemptor.needed, priority)
    elif policy == LOWER_OR_NEWER:
        for workload in state.running.of_lower_priority(queue, preemptor.needed, priority + 1):
            newer = workload.queue_timestamp > preemptor.queue_timestamp
            if workload.priority < priority or newer:
                yield workload


def queues_below(cohort: QuotaNode) -> Iterator[QuotaNode]:
    """All ClusterQueues of a tree, from its root."""
    pending = [cohort]
    while pending:
        above = pending.pop()
        yield from above.queues
        pending += above.cohorts


def by_local_queue_usage(
    state: QuotaState,
    ordered: Sequence[Candidate],
    workload_of: Callable[[Candidate], RunningWorkload],
) -> list[Candidate]:
    """The candidates, with those of each ClusterQueue in the order of admission fair sharing.

    Workloads of the LocalQueue with the most usage come first. Usage of different ClusterQueues is
    not compared: each ClusterQueue keeps its places in the order.
    """
    usage = state.local_queue_usage
    if usage is None:
        return list(ordered)

    def order(candidate: Candidate) -> tuple[bool, float, CandidateOrder]:
        workload = workload_of(candidate)
        return not workload.evicted, -usage.of(workload.local_queue), workload.candidate_order

    by_queue: dict[str, list[Candidate]] = {}
    for candidate in ordered:
        by_queue.setdefault(workload_of(candidate).cluster_queue, []).append(candidate)
    turns = {
        name: iter(sorted(found, key=order) if state.queues[name].usage_based else found)
        for name, found in by_queue.items()
    }
    return [next(turns[workload_of(candidate).cluster_queue]) for candidate in ordered]


class TargetSearch:
    """Targets of one preemptor so far; their usage is removed from the state.

    Attributes:
        node: the ClusterQueue of the preemptor.
        targets: in the order in which they were removed.
    """

    def __init__(self, state: QuotaState, preemptor: Preemptor) -> None:
        self.state, self.preemptor = state, preemptor
        self.node: QuotaNode = state.tree.queues[preemptor.queue.name]
        self.targets: list[Target] = []
        self._released: dict[str, RunningWorkload] = {}
        # Of a monotone placement: number of targets that is not enough, tests left out since,
        # and after how many the next one follows.
        self._not_enough, self._untested, self._stride = 0, 0, 1

    def preempt(self, target: Target) -> None:
        """Remove the usage of one more target."""
        self._release(target.workload)
        self.targets.append(target)

    def is_enough(self, *, allow_borrowing: bool = True) -> bool:
        """Whether the preemptor fits now; if so, targets beyond the first that is enough are gone.

        Tests of a monotone placement may be left out: call `is_enough_at_last` in the end.
        """
        if not self._quota_fits(allow_borrowing):
            self._not_enough = len(self.targets)
            return False
        placement = self.preemptor.placement
        if placement is None or not placement.monotone:
            return placement is None or placement.passes()
        self._untested += 1
        return self._untested >= self._stride and self._placement_fits(placement)

    def is_enough_at_last(self) -> bool:
        """`is_enough` for the tests that were left out."""
        placement = self.preemptor.placement
        return bool(self._untested) and placement is not None and self._placement_fits(placement)

    def restore_unneeded(self, *, allow_borrowing: bool = True) -> None:
        """Restore targets without which the preemptor still fits, from the last but one on."""
        *others, last = self.targets
        others.reverse()
        placement = self.preemptor.placement
        kept: list[int] = []
        start, stride = 0, 1
        while start < len(others):
            # Indexes of targets that were restored, and are not tested yet.
            batch: list[int] = []
            index = start
            while index < len(others) and len(batch) < stride:
                self._restore(others[index].workload)
                if self._quota_fits(allow_borrowing):
                    batch.append(index)
                else:
                    self._release(others[index].workload)
                    kept.append(index)
                index += 1
            if placement is None or not batch or placement.passes():
                start = index
                stride = stride * 2 if placement is None or placement.monotone else 1
                continue
            needed = self._first_needed([others[found].workload for found in batch], placement)
            start, stride = batch[needed] + 1, 1
            kept = [found for found in kept if found < batch[needed]]
            kept.append(batch[needed])
        self.targets = [*(others[index] for index in reversed(kept)), last]

    def reset(self) -> tuple[Target, ...]:
        """Restore all usage, and return the targets; call it also after an error."""
        found = tuple(self.targets)
        for workload in reversed(list(self._released.values())):
            self._restore(workload)
        self.targets = []
        self._not_enough, self._untested, self._stride = 0, 0, 1
        return found

    def _quota_fits(self, allow_borrowing: bool) -> bool:
        node, request = self.node, self.preemptor.request
        if not self.state.has_room(node, request):
            return False
        return allow_borrowing or not any(
            node.borrows(pair, amount) for pair, amount in request.items()
        )

    def _placement_fits(self, placement: PlacementTest) -> bool:
        """Test the placement; if it fits, restore the targets beyond the first that is enough."""
        self._untested = 0
        if not placement.passes():
            self._not_enough = len(self.targets)
            self._stride *= 2
            return False
        enough, removed = len(self.targets), len(self.targets)
        while enough - self._not_enough > 1:
            middle = (enough + self._not_enough) // 2
            self._remove_first(middle, removed)
            removed = middle
            if placement.passes():
                enough = middle
            else:
                self._not_enough = middle
        self._remove_first(enough, removed)
        del self.targets[enough:]
        return True

    def _remove_first(self, count: int, before: int) -> None:
        """Have the usage of so many targets removed; before, it was that of so many others."""
        for target in reversed(self.targets[count:before]):
            self._restore(target.workload)
        for target in self.targets[before:count]:
            self._release(target.workload)

    def _first_needed(self, restored: Sequence[RunningWorkload], placement: PlacementTest) -> int:
        """The first of the restored Workloads with which the placement fails.

        The usage of that one and of those after it is removed again.
        """
        fits, fails, now = 0, len(restored), len(restored)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            for workload in restored[middle:now]:
                self._release(workload)
            for workload in restored[now:middle]:
                self._restore(workload)
            now = middle
            if placement.passes():
                fits = middle
            else:
                fails = middle
        for workload in restored[fits:now]:
            self._release(workload)
        for workload in restored[now:fits]:
            self._restore(workload)
        return fits

    def _release(self, workload: RunningWorkload) -> None:
        self._released[workload.key] = workload
        if self.preemptor.placement is None:
            self.state.node_of(workload).remove(workload.usage)
        else:
            self.state.release(workload)

    def _restore(self, workload: RunningWorkload) -> None:
        del self._released[workload.key]
        if self.preemptor.placement is None:
            self.state.node_of(workload).add(workload.usage)
        else:
            self.state.restore(workload)
