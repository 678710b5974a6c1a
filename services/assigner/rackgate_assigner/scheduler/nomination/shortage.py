"""Whether a Workload still waits for the same quota, without another nomination.

A nomination that is short of quota depends on what it read of the quota tree, and on what may be
preempted. Everything else that it depends on is the same until queues, flavors or the Workload
change.

Invariant: where a Workload is still short, `nominate_head` gives the same answer as before.
Complexity: O(depth) for each pair of flavor and resource, and O(ClusterQueues of the tree).
"""

from __future__ import annotations

from dataclasses import dataclass

from rackgate_assigner.preemption.preemption import may_have_targets
from rackgate_assigner.quota.queues import ANY, FlavorResource
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.nomination.flavor_fungibility import preemptor_of, quota_look
from rackgate_assigner.scheduler.nomination.nomination import (
    Nomination,
    PendingWorkload,
    QuotaLook,
)


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a nomination read of quota that was not enough; nothing could be preempted.

    Attributes:
        looks: with their pairs of flavor and resource, and amounts.
        keeps_room: the head keeps others in its cycle from what it waits for.
    """

    looks: tuple[tuple[FlavorResource, int, QuotaLook], ...]
    keeps_room: bool


def shortage_of(
    state: QuotaState, head: PendingWorkload, nomination: Nomination
) -> Shortage | None:
    """The shortage of a head that fits in no flavor; None if its answer depends on more."""
    queue = state.queues[head.cluster_queue]
    depends_on_domains = (
        nomination.mode_by_topology is not None
        or bool(head.rejected)
        or state.always_asks_empty
        or queue.is_strict
    )
    if (
        depends_on_domains
        or nomination.after_others
        or not nomination.short_of_quota
        or any(nomination.searched.values())
        or any(podset.min_count is not None for podset in head.podsets)
    ):
        return None
    looks = tuple((*asked, look) for asked, look in nomination.looks.items())
    return Shortage(looks, nomination.waits and queue.reclaim_within_cohort != ANY)


def is_still_short(state: QuotaState, head: PendingWorkload, shortage: Shortage) -> bool:
    """Whether a head gets the same answer now as an earlier one of its shape.

    Args:
        state: not changed.
        head: of the same ClusterQueue and shape.
        shortage: of the earlier one.
    """
    queue = state.queues[head.cluster_queue]
    node = state.tree.queues[queue.name]
    if head.rejected or any(
        quota_look(node, pair, amount) != look for pair, amount, look in shortage.looks
    ):
        return False
    needed = frozenset(pair for pair, _, _ in shortage.looks)
    return not may_have_targets(state, preemptor_of(head, queue, {}, needed))
