"""Which reservations have to be given back, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rackgate.api.names import EvictionReason
from rackgate_assigner.quota.queues import ClusterQueueRow, LocalQueueRow
from rackgate_assigner.workload.decisions import Evict
from rackgate_assigner.workload.info import WorkloadRow

DRAIN = "HoldAndDrain"


def _eviction(
    row: WorkloadRow,
    local_queues: Mapping[str, LocalQueueRow],
    cluster_queues: Mapping[str, ClusterQueueRow],
) -> Evict | None:
    if row.reserved is None or not row.holds or row.evicted or row.deleting:
        return None
    if row.parent:
        return None  # a slice goes with its parent, never alone
    if not row.active:
        return Evict(row.key, EvictionReason.DEACTIVATED, "The workload is deactivated")
    cluster_queue = cluster_queues.get(row.reserved.cluster_queue)
    if cluster_queue is not None and cluster_queue.stop_policy == DRAIN:
        return Evict(row.key, EvictionReason.CLUSTER_QUEUE_STOPPED, "The ClusterQueue is stopped")
    local_queue = local_queues.get(row.queue)
    if local_queue is not None and local_queue.stop_policy == DRAIN:
        return Evict(row.key, EvictionReason.LOCAL_QUEUE_STOPPED, "The LocalQueue is stopped")
    return None


def evictions(
    rows: Sequence[WorkloadRow],
    local_queues: Mapping[str, LocalQueueRow],
    cluster_queues: Mapping[str, ClusterQueueRow],
) -> list[Evict]:
    """Workloads whose reservation must be taken back, by key; one under eviction is left alone."""
    found = (_eviction(row, local_queues, cluster_queues) for row in rows)
    return sorted((evict for evict in found if evict), key=lambda evict: evict.workload)
