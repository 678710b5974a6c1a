"""Preemption without fair sharing: by priority, and for quota that others borrow.

1. `_candidates` collects the Workloads that may be preempted, in three lists: those of Cohorts in
   which the preemptor would use its own quota (hierarchy), those of other ClusterQueues (priority),
   and those of its own ClusterQueue (same).
2. `_runs` says whether the preemptor may borrow: with borrowing, without, or one after the other.
3. A run removes the candidates one after another until the preemptor fits (`TargetSearch`).

Inputs: a state that is as before when the search ends.
Invariants: a ClusterQueue or Cohort within its nominal quota loses nothing to others; of the
targets, none but the last can be restored alone.
Complexity: O(ClusterQueues of the tree) to collect, then two looks at quota for each candidate.
Source: conformance/quota, section 8; `classical` of Kueue's preemption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rackgate.api.names import PreemptedReason
from rackgate_assigner.preemption.smallest_disruption import smallest_disruption
from rackgate_assigner.preemption.targets import (
    Preemptor,
    Target,
    TargetSearch,
    by_local_queue_usage,
    qualifying,
)
from rackgate_assigner.quota.queues import NEVER, FlavorResource
from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota.tree import QuotaNode


class _Candidate(NamedTuple):
    """A Workload that may be preempted.

    Attributes:
        common: for one of another ClusterQueue the Cohort that it shares with the preemptor.
        only_without_borrowing: it is not preempted so that the preemptor can borrow.
    """

    workload: RunningWorkload
    reason: PreemptedReason
    common: QuotaNode | None = None
    only_without_borrowing: bool = False


@dataclass(frozen=True, slots=True)
class _Candidates:
    hierarchy: list[_Candidate]
    priority: list[_Candidate]
    same: list[_Candidate]

    def __bool__(self) -> bool:
        return bool(self.hierarchy or self.priority or self.same)

    def in_order(self, state: QuotaState) -> list[_Candidate]:
        lists = [
            by_local_queue_usage(
                state,
                sorted(found, key=lambda candidate: candidate.workload.candidate_order),
                lambda candidate: candidate.workload,
            )
            for found in (self.hierarchy, self.priority, self.same)
        ]
        return [
            candidate
            for evicted in (True, False)
            for found in lists
            for candidate in found
            if candidate.workload.evicted is evicted
        ]


def find_targets(state: QuotaState, preemptor: Preemptor) -> tuple[Target, ...]:
    """Workloads to preempt so that the preemptor fits; empty if there are none."""
    candidates = _candidates(state, preemptor)
    if not candidates:
        return ()
    search = TargetSearch(state, preemptor)
    ordered = candidates.in_order(state)
    for allow_borrowing in _runs(preemptor, search.node, candidates):
        if found := _search(search, ordered, allow_borrowing):
            return _smallest(search, ordered, allow_borrowing, found)
    return ()


def _search(
    search: TargetSearch, candidates: Sequence[_Candidate], allow_borrowing: bool
) -> tuple[Target, ...]:
    """Targets among some candidates; empty if they are not enough."""
    try:
        if _run(search, candidates, allow_borrowing):
            search.restore_unneeded(allow_borrowing=allow_borrowing)
            return search.reset()
        return ()
    finally:
        search.reset()


def _smallest(
    search: TargetSearch,
    candidates: Sequence[_Candidate],
    allow_borrowing: bool,
    found: tuple[Target, ...],
) -> tuple[Target, ...]:
    """The smallest disruption, if it is searched; else the targets that were found."""
    placement = search.preemptor.placement
    if placement is None or placement.domains is None:
        return found
    by_key = {candidate.workload.key: candidate for candidate in candidates}

    def among(workloads: Sequence[RunningWorkload]) -> tuple[Target, ...]:
        return _search(search, [by_key[one.key] for one in workloads], allow_borrowing)

    workloads = [candidate.workload for candidate in candidates]
    return smallest_disruption(found, workloads, placement.domains, among)


def _run(search: TargetSearch, candidates: Sequence[_Candidate], allow_borrowing: bool) -> bool:
    """Preempt candidates until the preemptor fits; whether it does."""
    for candidate in candidates:
        if _may_be_preempted(search, candidate, allow_borrowing):
            search.preempt(Target(candidate.workload, candidate.reason))
            if search.is_enough(allow_borrowing=allow_borrowing):
                return True
    return search.is_enough_at_last()


def _candidates(state: QuotaState, preemptor: Preemptor) -> _Candidates:
    queue = preemptor.queue
    node = state.tree.queues[queue.name]
    found = _Candidates([], [], [])
    found.same.extend(
        _Candidate(workload, PreemptedReason.IN_CLUSTER_QUEUE)
        for workload in qualifying(state, preemptor, queue.name, queue.within_cluster_queue)
    )
    if node.parent is None or queue.reclaim_within_cohort == NEVER:
        return found
    for cohort, below, advantage in _subtrees(node, preemptor.request):
        for other in _borrowing_queues(cohort, below, preemptor):
            for workload in qualifying(state, preemptor, other.name, queue.reclaim_within_cohort):
                if advantage:
                    reason = PreemptedReason.IN_COHORT_RECLAMATION
                    found.hierarchy.append(_Candidate(workload, reason, cohort))
                else:
                    found.priority.append(_by_priority(workload, preemptor, cohort))
    return found


def _by_priority(workload: RunningWorkload, preemptor: Preemptor, common: QuotaNode) -> _Candidate:
    policy = preemptor.queue.borrow_within_cohort
    threshold = policy.max_priority_threshold
    if (
        policy.policy == NEVER
        or workload.priority >= preemptor.priority
        or (threshold is not None and workload.priority > threshold)
    ):
        reason = PreemptedReason.IN_COHORT_RECLAMATION
        return _Candidate(workload, reason, common, only_without_borrowing=True)
    return _Candidate(workload, PreemptedReason.IN_COHORT_RECLAIM_WHILE_BORROWING, common)


def _subtrees(
    node: QuotaNode, request: Mapping[FlavorResource, int]
) -> Iterator[tuple[QuotaNode, QuotaNode, bool]]:
    """Each Cohort above, its child on the way, and whether the request is within quota below it."""
    advantage = not any(node.borrows(pair, amount) for pair, amount in request.items())
    rest = {pair: max(0, amount - node.local_free(pair)) for pair, amount in request.items()}
    below = node
    for cohort in node.path[1:]:
        yield cohort, below, advantage
        advantage = advantage or not any(
            cohort.borrows(pair, amount) for pair, amount in rest.items()
        )
        rest = {pair: max(0, amount - cohort.local_free(pair)) for pair, amount in rest.items()}
        below = cohort


def _borrowing_queues(
    cohort: QuotaNode, excluded: QuotaNode, preemptor: Preemptor
) -> Iterator[QuotaNode]:
    """ClusterQueues below a Cohort that borrow, as all Cohorts between do."""
    pending = [cohort]
    while pending:
        above = pending.pop()
        for queue in above.queues:
            if queue is not excluded and not queue.within_nominal(preemptor.needed):
                yield queue
        pending += [
            child
            for child in above.cohorts
            if child is not excluded and not child.within_nominal(preemptor.needed)
        ]


def _runs(preemptor: Preemptor, node: QuotaNode, candidates: _Candidates) -> tuple[bool, ...]:
    """Whether borrowing is allowed, for each run."""
    never_while_borrowing = preemptor.queue.borrow_within_cohort.policy == NEVER
    if not (candidates.hierarchy or candidates.priority):
        return (True,)
    if never_while_borrowing and not all(
        node.usage.get(pair, 0) < node.nominal.get(pair, 0) for pair in preemptor.needed
    ):
        return (True,)
    if never_while_borrowing and not candidates.hierarchy:
        return (False, True)
    return (True, False)


def _may_be_preempted(search: TargetSearch, candidate: _Candidate, allow_borrowing: bool) -> bool:
    """Whether a candidate may be preempted in this run, with the usage that is left."""
    if candidate.common is None:
        return True
    if allow_borrowing and candidate.only_without_borrowing:
        return False
    for node in search.state.node_of(candidate.workload).path:
        if node is candidate.common:
            break
        if node.within_nominal(search.preemptor.needed):
            return False
    return True
