"""Targets of a preemptor, by fair sharing or without."""

from __future__ import annotations

from rackgate_assigner.preemption import classical, fair_sharing
from rackgate_assigner.preemption.targets import Preemptor, Target, qualifying, queues_below
from rackgate_assigner.quota.queues import NEVER
from rackgate_assigner.quota.state import QuotaState


def may_have_targets(state: QuotaState, preemptor: Preemptor) -> bool:
    """Whether there may be targets; if not, there are none for certain."""
    queue = preemptor.queue
    node, needed = state.tree.queues[queue.name], preemptor.needed
    policies = {queue.name: queue.within_cluster_queue}
    if node.parent is not None and queue.reclaim_within_cohort != NEVER:
        policies |= {
            other.name: queue.reclaim_within_cohort
            for other in queues_below(node.root)
            if other is not node and not other.within_nominal(needed)
        }
    return any(
        next(qualifying(state, preemptor, name, policy), None) is not None
        for name, policy in policies.items()
    )


def find_targets(state: QuotaState, preemptor: Preemptor) -> tuple[Target, ...]:
    """Workloads to preempt so that the preemptor fits; empty if there are none.

    Args:
        state: the same when the call returns.
        preemptor: what needs quota.
    """
    if state.fair_sharing is None:
        return classical.find_targets(state, preemptor)
    return fair_sharing.find_targets(state, preemptor, state.fair_sharing)
