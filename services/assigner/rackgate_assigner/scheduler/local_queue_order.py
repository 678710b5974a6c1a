"""The order of LocalQueues within a ClusterQueue with admission fair sharing.

The pending Workload of the LocalQueue with the least usage is the head; within a LocalQueue, and
among LocalQueues of equal usage, the cycle order decides. An admission adds to the usage of its
LocalQueue, so the head may be one of another LocalQueue then (`pending_queues`).

Source: KEP-4136 of Kueue; ADR 44.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rackgate.api.names import PendingReason
from rackgate.features import Features
from rackgate_assigner.quota.admission_fair_sharing import LocalQueueUsage
from rackgate_assigner.quota.queues import ClusterQueueInfo, LocalQueueInfo
from rackgate_assigner.workload.info import WorkloadInfo

# A head that others were preempted for, also while it waits for pods of others (`blockAdmission`).
STICKY: Final = frozenset(
    {PendingReason.WAITING_FOR_PREEMPTED, PendingReason.WAITING_FOR_PODS_READY}
)
# Smaller than any usage.
BEFORE_ALL: Final = -1.0


def local_queue_rank(
    info: WorkloadInfo,
    queue: ClusterQueueInfo | None,
    usage: LocalQueueUsage | None,
    features: Features,
) -> float:
    """What orders a pending Workload within its ClusterQueue before its priority and its age.

    Args:
        info: the Workload.
        queue: its ClusterQueue, if there is one.
        usage: None: admission fair sharing is off.
        features: with `sticky_preemptors`, a Workload that others were preempted for comes first:
            these have less usage now, and would take the quota back.
    """
    if usage is None or queue is None or not queue.usage_based:
        return 0.0
    if is_sticky(info, features):
        return BEFORE_ALL
    return usage.of(info.queue)


def pending_ranks(
    local_queues: Mapping[str, LocalQueueInfo],
    cluster_queues: Mapping[str, ClusterQueueInfo],
    usage: LocalQueueUsage | None,
    features: Features,
) -> Callable[[WorkloadInfo], float]:
    """`local_queue_rank` of any pending Workload; queues are by key."""

    def rank_of(info: WorkloadInfo) -> float:
        local = local_queues.get(info.queue)
        queue = None if local is None else cluster_queues.get(local.cluster_queue)
        return local_queue_rank(info, queue, usage, features)

    return rank_of


def is_sticky(info: WorkloadInfo, features: Features) -> bool:
    """Whether others were preempted for a Workload, and it waits for their quota."""
    return features.sticky_preemptors and info.pending_reason in STICKY
