"""Preemption with fair sharing: from those that borrow most to those that borrow less.

1. Candidates are the Workloads of the own ClusterQueue, and those of all ClusterQueues of the tree
   that borrow what is needed.
2. `_Tournament` chooses the next ClusterQueue: from the root down, the child with the largest
   share.
3. The first strategy decides, candidate by candidate, whether shares would be fairer: compared are
   the nodes right below the lowest common Cohort. The second strategy tries once more what the
   first left out.
4. With `RackgateNoMutualPreemption`, targets that may preempt the preemptor in turn are left out
   (`unfair`), and the search starts over (ADR 50).

While shares are computed, the request of the preemptor counts as usage of its ClusterQueue.
Inputs: a state that is as before when the search ends.
Invariant: the own ClusterQueue within its nominal quota may always reclaim.
Complexity: each target costs one tournament, O(nodes of the tree); shares are computed again only
where usage changed.
Source: conformance/quota, section 10; `fairsharing` of Kueue's preemption.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rackgate.api.names import PreemptedReason
from rackgate_assigner.preemption.smallest_disruption import smallest_disruption
from rackgate_assigner.preemption.targets import (
    Preemptor,
    Target,
    TargetSearch,
    by_local_queue_usage,
    qualifying,
    queues_below,
)
from rackgate_assigner.quota.fair_sharing import NO_SHARE, Share, borrowed_pairs, share_of
from rackgate_assigner.quota.queues import ANY, LOWER, NEVER
from rackgate_assigner.quota.running import CandidateOrder, RunningWorkload
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota.tree import QuotaNode

FINAL_SHARE: Final = "LessThanOrEqualToFinalShare"
INITIAL_SHARE: Final = "LessThanInitialShare"
STRATEGIES: Final = (FINAL_SHARE, INITIAL_SHARE)


def find_targets(
    state: QuotaState, preemptor: Preemptor, strategies: tuple[str, ...]
) -> tuple[Target, ...]:
    """Workloads to preempt so that the preemptor fits; empty if there are none."""
    candidates = _FairSearch(state, preemptor).candidates()

    def among(workloads: Sequence[RunningWorkload]) -> tuple[Target, ...]:
        search = _FairSearch(state, preemptor)
        try:
            while workloads and search.run(workloads, strategies):
                search.restore_unneeded()
                unfair = search.unfair(strategies)
                found = search.reset()
                if not unfair:
                    return found
                workloads = [one for one in workloads if one.key not in unfair]
            return ()
        finally:
            search.reset()

    found = among(candidates) if candidates else ()
    placement = preemptor.placement
    if not found or placement is None or placement.domains is None:
        return found
    return smallest_disruption(found, candidates, placement.domains, among)


def is_fairer(state: QuotaState, preemptor: Preemptor, workload: RunningWorkload) -> bool:
    """Whether some strategy allows to preempt this one Workload first.

    Args:
        state: the same when the call returns.
        preemptor: of another ClusterQueue of the same tree.
        workload: one whose ClusterQueue borrows.
    """
    node, queue = state.tree.queues[preemptor.queue.name], state.node_of(workload)
    strategies = state.fair_sharing or ()
    node.add(preemptor.request)
    try:
        if node.within_nominal(preemptor.needed):
            return True
        own, other = below_common_cohort(node, queue)
        if INITIAL_SHARE in strategies and share_of(own) < share_of(other):
            return True
        return FINAL_SHARE in strategies and share_of(own) <= _share_without(queue, other, workload)
    finally:
        node.remove(preemptor.request)


def _share_without(queue: QuotaNode, node: QuotaNode, workload: RunningWorkload) -> Share:
    """The share of a node without a Workload of a ClusterQueue at or below it."""
    queue.remove(workload.usage)
    try:
        return share_of(node)
    finally:
        queue.add(workload.usage)


class _FairSearch(TargetSearch):
    """A search that leaves out candidates at first, and remembers them."""

    def __init__(self, state: QuotaState, preemptor: Preemptor) -> None:
        super().__init__(state, preemptor)
        self._retry: list[RunningWorkload] = []

    def candidates(self) -> list[RunningWorkload]:
        """All candidates, in the order in which a ClusterQueue loses them."""
        preemptor, node = self.preemptor, self.node
        queue = preemptor.queue
        found = list(qualifying(self.state, preemptor, queue.name, queue.within_cluster_queue))
        if node.parent is not None and queue.reclaim_within_cohort != NEVER:
            for other in queues_below(node.root):
                if other is not node and not other.within_nominal(preemptor.needed):
                    policy = queue.reclaim_within_cohort
                    found += qualifying(self.state, preemptor, other.name, policy)
        return by_local_queue_usage(self.state, sorted(found, key=self._order), lambda one: one)

    def _order(self, workload: RunningWorkload) -> tuple[bool, bool, CandidateOrder]:
        own = workload.cluster_queue == self.node.name
        return not workload.evicted, own, workload.candidate_order

    def run(self, candidates: Iterable[RunningWorkload], strategies: tuple[str, ...]) -> bool:
        """Preempt by the strategies in turn; whether the preemptor fits then."""
        self.node.add(self.preemptor.request)
        try:
            return self._run_first(candidates, strategies[0]) or (
                len(strategies) > 1 and self._run_second()
            )
        finally:
            self.node.remove(self.preemptor.request)

    def _run_first(self, candidates: Iterable[RunningWorkload], strategy: str) -> bool:
        """Preempt by the first strategy; whether the preemptor fits then."""
        tournament = _Tournament(self.state, self.node, candidates, self._order)
        # The request counts as usage here.
        within_nominal = self.node.within_nominal(self.preemptor.needed)
        while (queue := tournament.next_queue()) is not None:
            if queue is self.node:
                preempted = tournament.pop(queue)
                reason = PreemptedReason.IN_CLUSTER_QUEUE
            elif within_nominal:
                preempted = tournament.pop(queue)
                reason = PreemptedReason.IN_COHORT_RECLAMATION
            else:
                found = self._first_fairer(queue, tournament, strategy)
                if found is None:
                    continue
                preempted, reason = found, PreemptedReason.IN_COHORT_FAIR_SHARING
            self.preempt(Target(preempted, reason))
            tournament.update(queue)
            if self._is_enough():
                return True
        return self.is_enough_at_last()

    def _run_second(self) -> bool:
        """Preempt what was left out, one of each ClusterQueue; whether the preemptor fits then."""
        tournament = _Tournament(self.state, self.node, self._retry, self._order)
        while (queue := tournament.next_queue()) is not None:
            workload = tournament.pop(queue)
            tournament.drop(queue)
            own, other = below_common_cohort(self.node, queue)
            if share_of(own) >= share_of(other):
                continue
            self.preempt(Target(workload, PreemptedReason.IN_COHORT_FAIR_SHARING))
            tournament.update(queue)
            if self._is_enough():
                return True
        return self.is_enough_at_last()

    def _first_fairer(
        self, queue: QuotaNode, tournament: _Tournament, strategy: str
    ) -> RunningWorkload | None:
        """The first candidate of a ClusterQueue that the strategy allows to preempt."""
        own, other = below_common_cohort(self.node, queue)
        new, old = share_of(own), share_of(other)
        while tournament.has_candidates(queue):
            workload = tournament.pop(queue)
            if strategy == INITIAL_SHARE:
                fairer = new < old
            else:
                fairer = new <= _share_without(queue, other, workload)
            if fairer:
                return workload
            self._retry.append(workload)
        return None

    def unfair(self, strategies: tuple[str, ...]) -> set[str]:
        """Targets that may come back and preempt the preemptor in turn: keys.

        The search compares shares while targets are removed that are not needed in the end, and
        may be restored. Here shares are compared as they will be.
        """
        if not self.state.features.no_mutual_preemption:
            return set()
        by_share = [
            target.workload
            for target in self.targets
            if target.reason is PreemptedReason.IN_COHORT_FAIR_SHARING
        ]
        self.node.add(self.preemptor.request)
        try:
            return {
                one.key
                for one in by_share
                if self._could_reclaim(one) or not self._is_fair(one, strategies)
            }
        finally:
            self.node.remove(self.preemptor.request)

    def _is_fair(self, workload: RunningWorkload, strategies: tuple[str, ...]) -> bool:
        """Whether shares allow to preempt this target, in addition to the others.

        A Workload that was preempted before is only preempted if that makes the larger share
        smaller. So Workloads do not preempt each other for ever.
        """
        own, other = below_common_cohort(self.node, self.state.node_of(workload))
        new, final = share_of(own), share_of(other)
        if FINAL_SHARE in strategies and (
            new < final or (new == final and not workload.was_preempted)
        ):
            return True
        if INITIAL_SHARE not in strategies or workload.was_preempted:
            return False
        for target in self.targets:
            self.state.node_of(target.workload).add(target.workload.usage)
        try:
            return new < share_of(other)
        finally:
            for target in self.targets:
                self.state.node_of(target.workload).remove(target.workload.usage)

    def _could_reclaim(self, workload: RunningWorkload) -> bool:
        """Whether it would be within nominal quota, and may preempt the preemptor then."""
        policy = self.state.queues[workload.cluster_queue].reclaim_within_cohort
        if policy != ANY and not (policy == LOWER and self.preemptor.priority < workload.priority):
            return False
        node = self.state.node_of(workload)
        needed = [pair for pair, amount in workload.usage.items() if node.available(pair) < amount]
        return bool(needed) and not any(node.borrows(pair, workload.usage[pair]) for pair in needed)

    def _is_enough(self) -> bool:
        self.node.remove(self.preemptor.request)
        try:
            return self.is_enough()
        finally:
            self.node.add(self.preemptor.request)


class _Tournament:
    """Chooses the ClusterQueue that loses a Workload next."""

    def __init__(
        self,
        state: QuotaState,
        own: QuotaNode,
        candidates: Iterable[RunningWorkload],
        order: Callable[[RunningWorkload], tuple[bool, bool, CandidateOrder]],
    ) -> None:
        self._own, self._order = own, order
        self._candidates: dict[QuotaNode, deque[RunningWorkload]] = {}
        for workload in candidates:
            self._candidates.setdefault(state.node_of(workload), deque()).append(workload)
        self._dropped: set[QuotaNode] = set()
        # Whether a node borrows, and its share.
        self._shares: dict[QuotaNode, tuple[bool, Share]] = {}

    def has_candidates(self, queue: QuotaNode) -> bool:
        """Whether a ClusterQueue has candidates left."""
        return bool(self._candidates.get(queue))

    def pop(self, queue: QuotaNode) -> RunningWorkload:
        """Remove the first candidate of a ClusterQueue."""
        return self._candidates[queue].popleft()

    def drop(self, queue: QuotaNode) -> None:
        """Do not choose a ClusterQueue again."""
        self._dropped.add(queue)

    def update(self, queue: QuotaNode) -> None:
        """The usage of a ClusterQueue changed."""
        for node in queue.path:
            self._shares.pop(node, None)

    def next_queue(self) -> QuotaNode | None:
        """The ClusterQueue to take a candidate from; None: there is none."""
        root = self._own.root
        if root.is_queue:
            return self._own if self.has_candidates(self._own) else None
        cohort = root
        while root not in self._dropped:
            queue, queue_share = self._largest_queue(cohort)
            child, child_share = self._largest_cohort(cohort)
            if queue is None and child is None:
                self._dropped.add(cohort)
                cohort = root
            elif child is not None and child_share >= queue_share:
                cohort = child
            else:
                return queue
        return None

    def _largest_queue(self, cohort: QuotaNode) -> tuple[QuotaNode | None, Share]:
        best: QuotaNode | None = None
        share = NO_SHARE
        for queue in cohort.queues:
            if queue in self._dropped:
                continue
            borrows, found = self._share(queue)
            if not ((borrows or queue is self._own) and self.has_candidates(queue)):
                self._dropped.add(queue)
                continue
            if best is None or found > share or (found == share and self._is_before(queue, best)):
                best, share = queue, found
        return best, share

    def _largest_cohort(self, cohort: QuotaNode) -> tuple[QuotaNode | None, Share]:
        best: QuotaNode | None = None
        share = NO_SHARE
        for child in cohort.cohorts:
            if child in self._dropped:
                continue
            borrows, found = self._share(child)
            if not (borrows or child in self._own.path):
                self._dropped.add(child)
                continue
            if best is None or found > share:
                best, share = child, found
        return best, share

    def _share(self, node: QuotaNode) -> tuple[bool, Share]:
        found = self._shares.get(node)
        if found is None:
            found = self._shares[node] = (bool(borrowed_pairs(node)), share_of(node))
        return found

    def _is_before(self, queue: QuotaNode, other: QuotaNode) -> bool:
        first, second = self._candidates[queue][0], self._candidates[other][0]
        return self._order(first) < self._order(second)


def below_common_cohort(own: QuotaNode, other: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
    """The nodes right below the lowest common Cohort, on either side; both are of one tree."""
    own_path, other_path = own.path, other.path
    depth = 1
    while own_path[-depth - 1] is other_path[-depth - 1]:
        depth += 1
    return own_path[-depth - 1], other_path[-depth - 1]
