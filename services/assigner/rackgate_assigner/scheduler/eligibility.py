"""Whether a pending Workload may be admitted at all, regardless of quota and capacity.

Checked in this order: its backoff, its LocalQueue and ClusterQueue, its parent if it is a slice,
its own requests, and the topologies that its queue offers.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from rackgate.api.names import EvictionReason, PendingReason
from rackgate.features import GANG_NESTED_PLACEMENT, Features
from rackgate.gang.nesting import PATH as NESTING_PATH
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.quota.active import Activity, cluster_queue_activity
from rackgate_assigner.quota.queues import ClusterQueueInfo, selects
from rackgate_assigner.scheduler.local_queue_order import STICKY
from rackgate_assigner.scheduler.nomination.offer import Offer
from rackgate_assigner.scheduler.nomination.request_validation import (
    conflicting_requests,
    misordered_levels,
    missing_requests,
    unknown_levels,
)
from rackgate_assigner.scheduler.requeue import requeue, requeue_after_error
from rackgate_assigner.workload.conditions import backoff_reason, truncate
from rackgate_assigner.workload.decisions import Deactivate, Inadmissible, Requeue
from rackgate_assigner.workload.info import WorkloadInfo
from rackgate_assigner.workload_slices.admission import (
    parent_inadmissible,
    queue_with_parent_flavors,
)
from rackgate_assigner.workload_slices.families import SliceFamily


@dataclass(frozen=True, slots=True)
class Eligible:
    """A Workload that may be admitted by its ClusterQueue.

    Attributes:
        queue: for a slice, with only the flavors of its parent.
        family: of a slice.
    """

    info: WorkloadInfo
    queue: ClusterQueueInfo
    family: SliceFamily | None = None


def shape_of(info: WorkloadInfo, *, by_usage: bool = False) -> Hashable:
    """Equal for Workloads of a ClusterQueue that get the same result from the same state.

    Args:
        info: a pending Workload.
        by_usage: usage orders the LocalQueues of its ClusterQueue, so the shapes of each are apart.
    """
    if info.parent or info.reclaimable or info.hold:
        return info.key
    shape = (info.priority, info.priority_class, info.shape)
    return (info.queue, info.pending_reason in STICKY, shape) if by_usage else shape


CheckedWorkload: TypeAlias = Eligible | Requeue | Deactivate


class Eligibility:
    """The checks, for one state of queues, flavors and namespaces."""

    def __init__(
        self, snapshot: Snapshot, features: Features, being_evicted: frozenset[str]
    ) -> None:
        """Prepare.

        Args:
            snapshot: not changed.
            features: feature gates.
            being_evicted: keys of Workloads that are being evicted: their slices wait.
        """
        self._snapshot, self._features = snapshot, features
        self._being_evicted = being_evicted
        self._activities: dict[str, Activity] = {}
        # The ClusterQueue of a LocalQueue (`namespace/name`).
        self._queues: dict[str, ClusterQueueInfo | Inadmissible] = {}

    def check(self, info: WorkloadInfo) -> CheckedWorkload:
        """Check one Workload; an internal error affects this Workload alone."""
        try:
            return self._check(info)
        except Exception as error:  # noqa: BLE001 - reported by the requeue, logged by the cycle
            return requeue_after_error(info, error)

    def _check(self, info: WorkloadInfo) -> CheckedWorkload:
        if info.requeue_at:
            pause = backoff_reason(info.requeue_at, info.evicted_reason)
            return requeue(info, Inadmissible(*pause))
        queue = self._queues.get(info.queue)
        if queue is None:
            queue = self._queues[info.queue] = self._cluster_queue_of(info)
        if isinstance(queue, Inadmissible):
            return requeue(info, queue)
        family = self._snapshot.families.get(info.parent, SliceFamily()) if info.parent else None
        offered = self._offered(info, queue, family)
        if isinstance(offered, Inadmissible):
            return requeue(info, offered)
        problem = self._problem(info)
        if problem:
            # A Workload that only its owner can fix must not block the queue.
            return requeue(info, Inadmissible(PendingReason.MISCONFIGURED, problem))
        if info.hold:
            return requeue(info, Inadmissible(PendingReason.GANG_NOT_READY, info.hold))
        invalid = self._invalid_request(info, Offer(offered, self._snapshot.flavors))
        if not invalid:
            return Eligible(info, offered, family)
        # A slice has the request of its parent, which is running.
        if self._features.deactivate_invalid_topology and not info.parent:
            reason = EvictionReason.DEACTIVATED_INVALID_TOPOLOGY
            return Deactivate(info.key, reason, truncate(invalid))
        return requeue(info, Inadmissible(PendingReason.NO_MATCHING_FLAVOR, invalid))

    def _cluster_queue_of(self, info: WorkloadInfo) -> ClusterQueueInfo | Inadmissible:
        """The active ClusterQueue of the Workload, or why there is none."""
        local = self._snapshot.local_queues.get(info.queue)
        if local is None:
            name = info.queue.partition("/")[2]
            text = f"LocalQueue {name} doesn't exist" if name else "no LocalQueue is named"
            return Inadmissible(PendingReason.MISCONFIGURED, text)
        if local.stop_policy != "None" or local.deleting:
            name = info.queue.partition("/")[2]
            return Inadmissible(PendingReason.SUSPENDED, f"LocalQueue {name} is inactive")
        queue = self._snapshot.cluster_queues.get(local.cluster_queue)
        if queue is None:
            text = f"ClusterQueue {local.cluster_queue} doesn't exist"
            return Inadmissible(PendingReason.MISCONFIGURED, text)
        activity = self._activity(queue)
        if not activity.active:
            stopped = activity.stopped_only
            reason = PendingReason.SUSPENDED if stopped else PendingReason.MISCONFIGURED
            return Inadmissible(reason, f"ClusterQueue {queue.name} is inactive")
        if not selects(queue.selector, self._snapshot.namespaces.get(info.namespace, {})):
            text = "workload namespace doesn't match ClusterQueue selector"
            return Inadmissible(PendingReason.MISCONFIGURED, text)
        return queue

    def _activity(self, queue: ClusterQueueInfo) -> Activity:
        found = self._activities.get(queue.name)
        if found is None:
            snapshot = self._snapshot
            found = cluster_queue_activity(
                queue, snapshot.flavors, snapshot.checks, self._features, snapshot.cohorts
            )
            self._activities[queue.name] = found
        return found

    def _offered(
        self, info: WorkloadInfo, queue: ClusterQueueInfo, family: SliceFamily | None
    ) -> ClusterQueueInfo | Inadmissible:
        """The queue; for a slice with only its parent's flavors, or why its parent holds it up."""
        if family is None:
            return queue
        enabled = self._features.elastic_jobs
        inadmissible = parent_inadmissible(info, family, self._being_evicted, enabled=enabled)
        if inadmissible is not None or family.parent is None:
            return inadmissible or queue
        return queue_with_parent_flavors(info, family.parent, queue)

    def _problem(self, info: WorkloadInfo) -> str:
        """What is wrong with the Workload in any queue; empty if nothing is."""
        problems = [podset.problem for podset in info.podsets if podset.problem]
        if info.nesting and not self._features.gang_nested_placement:
            problems.append(f"{NESTING_PATH}: needs the feature gate {GANG_NESTED_PLACEMENT}")
        podsets = [podset.request for podset in info.podsets]
        both_levels = self._features.required_and_preferred
        return "; ".join(problems or conflicting_requests(podsets, both_levels=both_levels))

    def _invalid_request(self, info: WorkloadInfo, offer: Offer) -> str:
        """What no topology of the queue can ever satisfy; empty if there is nothing."""
        podsets = [podset.request for podset in info.podsets]
        errors = unknown_levels(offer, podsets) + misordered_levels(offer, podsets)
        if self._features.topology_on_all_podsets:
            errors += missing_requests(podsets)
        return "; ".join(errors)
