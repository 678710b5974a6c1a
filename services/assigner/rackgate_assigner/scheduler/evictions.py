"""Which reservations have to be given back, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rackgate.api.names import EvictionReason
from rackgate_assigner.quota.queues import ClusterQueueInfo, LocalQueueInfo
from rackgate_assigner.workload.decisions import Evict
from rackgate_assigner.workload.info import WorkloadInfo

DRAIN = "HoldAndDrain"


def _eviction(
    info: WorkloadInfo,
    local_queues: Mapping[str, LocalQueueInfo],
    cluster_queues: Mapping[str, ClusterQueueInfo],
) -> Evict | None:
    if info.reserved is None or not info.holds_quota or info.evicted or info.deleting:
        return None
    if info.parent:
        return None  # a slice goes with its parent, never alone
    if not info.active:
        return Evict(info.key, EvictionReason.DEACTIVATED, "The workload is deactivated")
    cluster_queue = cluster_queues.get(info.reserved.cluster_queue)
    if cluster_queue is not None and cluster_queue.stop_policy == DRAIN:
        return Evict(info.key, EvictionReason.CLUSTER_QUEUE_STOPPED, "The ClusterQueue is stopped")
    local_queue = local_queues.get(info.queue)
    if local_queue is not None and local_queue.stop_policy == DRAIN:
        return Evict(info.key, EvictionReason.LOCAL_QUEUE_STOPPED, "The LocalQueue is stopped")
    return None


def evictions(
    infos: Sequence[WorkloadInfo],
    local_queues: Mapping[str, LocalQueueInfo],
    cluster_queues: Mapping[str, ClusterQueueInfo],
) -> list[Evict]:
    """Workloads whose reservation must be taken back, by key; one under eviction is left alone."""
    found = (_eviction(info, local_queues, cluster_queues) for info in infos)
    return sorted((evict for evict in found if evict), key=lambda evict: evict.workload)
