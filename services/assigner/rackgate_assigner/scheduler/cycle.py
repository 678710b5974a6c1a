"""One scheduling cycle: a decision about every pending Workload of a snapshot.

1. Evictions: reservations that a deactivation or a stop policy clears.
2. Order: pending Workloads by priority, then queue timestamp, then key.
3. For each, in that order: its active ClusterQueue, validation of its requests, flavors by quota
   and a topology assignment in them (`nominate`), and preemption targets if others hold the quota
   (`preemption`).

Admissions are charged to the snapshot at once, so no two share quota or capacity. Within a cycle
both only decrease: a shape that is inadmissible in a queue stays inadmissible, and is not tried
again. The same snapshot gives the same decisions.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from rackgate.api.names import EvictionReason, PendingReason, PreemptedReason
from rackgate.features import Features
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.quota.active import Activity, cluster_queue_activity
from rackgate_assigner.quota.queues import (
    DRAIN,
    ClusterQueueInfo,
    FlavorResource,
    LocalQueueInfo,
    selects,
    without_topologies,
)
from rackgate_assigner.scheduler.flavor_assigner import FlavorPlan, Inadmissible, Offer
from rackgate_assigner.scheduler.nominate import Nominator, Timing, no_timing
from rackgate_assigner.scheduler.preemption import Preemption, Preemptor
from rackgate_assigner.scheduler.request_validation import (
    conflicting_requests,
    misordered_levels,
    missing_requests,
    unknown_levels,
)
from rackgate_assigner.workload.conditions import backoff_reason, truncate
from rackgate_assigner.workload.decisions import (
    Admit,
    Assignment,
    Deactivate,
    Decision,
    Evict,
    Preempt,
    Requeue,
)
from rackgate_assigner.workload.info import WorkloadInfo, priority_of
from rackgate_assigner.workload_slices.admission import (
    parent_inadmissible,
    queue_with_parent_flavors,
    with_parent_flavors_text,
)
from rackgate_assigner.workload_slices.families import SliceFamily

OVERLAPPING: Final = (
    "Workload has overlapping preemption targets with another workload, but will fit after these "
    "preemptions complete"
)


def plan(snapshot: Snapshot, features: Features, timing: Timing = no_timing) -> list[Decision]:
    """Decide about every Workload of the snapshot; the same snapshot gives the same decisions.

    Admissions are charged to the snapshot's own copies at once, so no two share capacity.

    Args:
        snapshot: its free amounts are changed, so do not use it again.
        features: feature gates.
        timing: measures each placement; decisions do not depend on it.

    Returns:
        Evictions by key, then admissions, deactivations and requeues in cycle order; preemptions
        come before the requeue of their preemptor. A requeue that the Workload's condition already
        shows is omitted, unless it has an internal error.
    """
    if not features.topology_aware_scheduling:
        snapshot.flavors = without_topologies(snapshot.flavors)
    being_evicted = evictions(
        snapshot.eviction_candidates, snapshot.local_queues, snapshot.cluster_queues
    )
    decisions: list[Decision] = [*being_evicted]
    cycle = _Cycle(snapshot, features, timing, being_evicted)
    for info in cycle_order(snapshot.pending, snapshot.priorities):
        decision = cycle.decide_or_requeue(info)
        decisions += cycle.pop_new_preemptions()
        if not isinstance(decision, Requeue) or _message_changed(info, decision):
            decisions.append(decision)
    return decisions


def cycle_order(infos: Iterable[WorkloadInfo], classes: Mapping[str, int]) -> list[WorkloadInfo]:
    """Highest priority first, then the oldest, then by key: never at random (C19).

    Args:
        infos: pending Workloads.
        classes: WorkloadPriorityClass name to value.
    """
    return sorted(
        infos, key=lambda info: (-priority_of(info, classes), info.queue_timestamp, info.key)
    )


def _eviction(
    info: WorkloadInfo,
    local_queues: Mapping[str, LocalQueueInfo],
    cluster_queues: Mapping[str, ClusterQueueInfo],
) -> Evict | None:
    if info.reserved is None or not info.holds_quota or info.evicted or info.deleting:
        return None
    if info.parent:
        return None  # a slice is evicted with its parent, never alone
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
    """Evictions of reservations by deactivation or a stop policy, by key."""
    found = (_eviction(info, local_queues, cluster_queues) for info in infos)
    return sorted((evict for evict in found if evict), key=lambda evict: evict.workload)


def _message_changed(info: WorkloadInfo, requeue: Requeue) -> bool:
    reported = (info.pending_reason, info.pending_message) == (requeue.reason, requeue.message)
    return not reported or bool(requeue.error)


def _requeue(info: WorkloadInfo, inadmissible_reason: Inadmissible) -> Requeue:
    return Requeue(
        info.key,
        inadmissible_reason.reason,
        truncate(inadmissible_reason.message),
        inadmissible_reason.rejected_flavors,
    )


def _requeue_after_error(info: WorkloadInfo, error: Exception) -> Requeue:
    """The requeue of a Workload whose decision failed with an internal error."""
    text = " ".join(str(error).split())[:200]
    message = (
        f"internal error while deciding about this workload: {type(error).__name__}: {text}; "
        "other workloads are not affected, the assigner's log has the details"
    )
    lines = "".join(traceback.format_exception(error))
    return Requeue(info.key, PendingReason.INTERNAL_ERROR, message, error=lines)


def _problem(info: WorkloadInfo, *, both_levels: bool) -> str:
    """What is wrong with the Workload in any queue; empty if nothing is."""
    problems = [podset.problem for podset in info.podsets if podset.problem]
    podsets = [podset.request for podset in info.podsets]
    return "; ".join(problems or conflicting_requests(podsets, both_levels=both_levels))


class _Cycle:
    """State of one cycle: what is inadmissible, and which StrictFIFO queues are blocked."""

    def __init__(
        self,
        snapshot: Snapshot,
        features: Features,
        timing: Timing,
        evicted: Sequence[Evict],
    ) -> None:
        self.snapshot, self.features = snapshot, features
        self.being_evicted = snapshot.being_evicted.union(evict.workload for evict in evicted)
        self.preemption = Preemption(
            snapshot.running, snapshot.priorities, snapshot.flavors, self.being_evicted
        )
        self._preempted: list[Preempt] = []
        self.nominator = Nominator(snapshot, features, timing)
        self.activities: dict[str, Activity] = {}
        # The ClusterQueue of a LocalQueue (`namespace/name`).
        self.cluster_queue_by_local_queue: dict[str, ClusterQueueInfo | Inadmissible] = {}
        # Capacity and quota only decrease within a cycle: inadmissible stays inadmissible.
        self.inadmissible: dict[tuple[str, Hashable], Inadmissible] = {}
        self.blocked_queues: set[str] = set()
        # Inadmissible heads of StrictFIFO queues, each with the check whether it can ever be
        # admitted: that costs a placement, and only a Workload behind it needs the answer.
        self.inadmissible_heads: dict[str, Callable[[], bool]] = {}

    def pop_new_preemptions(self) -> list[Preempt]:
        """Preemptions chosen since the last call."""
        reported, self._preempted = self._preempted, []
        return reported

    def decide_or_requeue(self, info: WorkloadInfo) -> Decision:
        """As `decide`; an internal error affects this Workload alone."""
        try:
            return self.decide(info)
        except Exception as error:  # noqa: BLE001 - reported by the requeue, logged by the cycle
            return _requeue_after_error(info, error)

    def decide(self, info: WorkloadInfo) -> Decision:
        """Admit, requeue or deactivate one Workload."""
        if info.requeue_at:
            return _requeue(info, Inadmissible(*backoff_reason(info.requeue_at)))
        queue = self.cluster_queue_by_local_queue.get(info.queue)
        if queue is None:
            queue = self.cluster_queue_by_local_queue[info.queue] = self._cluster_queue_of(info)
        if isinstance(queue, Inadmissible):
            return _requeue(info, queue)
        family = self.snapshot.families.get(info.parent, SliceFamily()) if info.parent else None
        parent_inadmissible_reason = self._parent_inadmissible(info, family)
        if parent_inadmissible_reason is not None:
            return _requeue(info, parent_inadmissible_reason)
        known = self.inadmissible.get((queue.name, info.shape))
        if known is not None and not self._behind_head(queue.name):
            return _requeue(info, known)
        both_levels = self.features.required_and_preferred
        problem = _problem(info, both_levels=both_levels)
        if problem:
            # A Workload that only its owner can fix must not block the queue.
            return _requeue(info, Inadmissible(PendingReason.MISCONFIGURED, problem))
        offer = self._offer(info, queue, family)
        if isinstance(offer, Inadmissible):
            return _requeue(info, offer)
        invalid = self._invalid_request(info, offer)
        if invalid is not None:
            # A slice has the request of its parent, which is running.
            if self.features.deactivate_invalid_topology and not info.parent:
                reason = EvictionReason.DEACTIVATED_INVALID_TOPOLOGY
                return Deactivate(info.key, reason, truncate(invalid.message))
            return _requeue(info, invalid)
        if self._behind_head(queue.name):
            text = f"waiting for the workloads ahead in StrictFIFO ClusterQueue {queue.name}"
            return _requeue(info, Inadmissible(PendingReason.PENDING_EVALUATION, text))
        podsets = [podset.request for podset in info.podsets]
        tried = self.nominator.nominate(offer, podsets, info.size, family)
        if isinstance(tried, Assignment):
            return Admit(info.key, tried)
        tried = self._final_reason(info, queue, offer, family, tried)
        if tried.preemption_plan is None:
            self.inadmissible[queue.name, info.shape] = tried
        # A Workload that only its owner can fix must not block the queue.
        if queue.strategy == "StrictFIFO" and tried.reason != PendingReason.MISCONFIGURED:
            self.inadmissible_heads[queue.name] = partial(
                self.nominator.could_ever_fit, offer, podsets, family
            )
        return _requeue(info, tried)

    def _behind_head(self, queue: str) -> bool:
        """Whether a StrictFIFO queue is blocked by an inadmissible head.

        A head that does not fit even in an empty queue and on empty nodes would block it forever,
        so it is skipped until the queue or the nodes change (ADR 13).
        """
        head = self.inadmissible_heads.pop(queue, None)
        if head is not None and (not self.features.strict_fifo_skips_impossible or head()):
            self.blocked_queues.add(queue)
        return queue in self.blocked_queues

    def _parent_inadmissible(
        self, info: WorkloadInfo, family: SliceFamily | None
    ) -> Inadmissible | None:
        """Why a slice cannot be admitted now; None for any other Workload."""
        if family is None:
            return None
        enabled = self.features.elastic_jobs
        return parent_inadmissible(
            info, family, self.being_evicted | self.preemption.target_keys, enabled=enabled
        )

    def _offer(
        self, info: WorkloadInfo, queue: ClusterQueueInfo, family: SliceFamily | None
    ) -> Offer | Inadmissible:
        """Flavors and quota for this Workload; for a slice, only its parent's flavors."""
        offered: ClusterQueueInfo | Inadmissible = queue
        if family is not None and family.parent is not None:
            offered = queue_with_parent_flavors(info, family.parent, queue)
        if isinstance(offered, Inadmissible):
            return offered
        used: Mapping[FlavorResource, int] = self.snapshot.used.setdefault(queue.name, {})
        if family is not None:
            used = family.used_by_others(used)
        preemptible = self.preemption.preemptible_quota(queue, self._preemptor(info))
        return Offer(offered, self.snapshot.flavors, used, preemptible)

    def _preemptor(self, info: WorkloadInfo) -> Preemptor:
        return Preemptor(
            info.key, info.parent, priority_of(info, self.snapshot.priorities), info.queue_timestamp
        )

    def _final_reason(
        self,
        info: WorkloadInfo,
        queue: ClusterQueueInfo,
        offer: Offer,
        family: SliceFamily | None,
        tried: Inadmissible,
    ) -> Inadmissible:
        """Why a Workload is inadmissible, after its preemption candidates are known."""
        if tried.preemption_plan is not None:
            tried = self._find_preemption(info, queue, offer, tried, tried.preemption_plan)
        if family is not None and family.parent is not None and offer.queue != queue:
            podsets = [podset.request.name for podset in info.podsets]
            tried = replace(
                tried, message=with_parent_flavors_text(tried.message, family.parent, podsets)
            )
        return tried

    def _find_preemption(
        self,
        info: WorkloadInfo,
        queue: ClusterQueueInfo,
        offer: Offer,
        tried: Inadmissible,
        flavors: FlavorPlan,
    ) -> Inadmissible:
        """Choose preemption targets, and reserve their quota for this Workload."""
        used, nominal = self.snapshot.used[queue.name], queue.nominal
        room = {pair: nominal.get(pair, 0) - used.get(pair, 0) for pair in flavors.request}
        chosen = self.preemption.find_targets(
            queue, self._preemptor(info), flavors.request, flavors.preemption_needed, room
        )
        if chosen is None:
            return replace(tried, preemption_plan=None)
        text = (
            "Preempted to accommodate a workload "
            f"(UID: {info.uid}, JobUID: {info.owner_uid}) due to prioritization in the ClusterQueue"
        )
        self._preempted += [
            Preempt(target.info.key, info.key, PreemptedReason.IN_CLUSTER_QUEUE, text)
            for target in chosen
            if not self.preemption.is_being_evicted(target)
        ]
        for pair, amount in flavors.request.items():
            used[pair] = used.get(pair, 0) + amount
        message = f"{tried.message}. Pending the preemption of {len(chosen)} workload(s)"
        if not chosen:
            message = OVERLAPPING
        return replace(tried, reason=PendingReason.WAITING_FOR_PREEMPTED, message=message)

    def _cluster_queue_of(self, info: WorkloadInfo) -> ClusterQueueInfo | Inadmissible:
        """The active ClusterQueue of the Workload, or why there is none."""
        local = self.snapshot.local_queues.get(info.queue)
        if local is None:
            name = info.queue.partition("/")[2]
            text = f"LocalQueue {name} doesn't exist" if name else "no LocalQueue is named"
            return Inadmissible(PendingReason.MISCONFIGURED, text)
        if local.stop_policy != "None" or local.deleting:
            name = info.queue.partition("/")[2]
            return Inadmissible(PendingReason.SUSPENDED, f"LocalQueue {name} is inactive")
        queue = self.snapshot.cluster_queues.get(local.cluster_queue)
        if queue is None:
            text = f"ClusterQueue {local.cluster_queue} doesn't exist"
            return Inadmissible(PendingReason.MISCONFIGURED, text)
        activity = self._activity(queue)
        if not activity.active:
            stopped = activity.stopped_only
            reason = PendingReason.SUSPENDED if stopped else PendingReason.MISCONFIGURED
            return Inadmissible(reason, f"ClusterQueue {queue.name} is inactive")
        if not selects(queue.selector, self.snapshot.namespaces.get(info.namespace, {})):
            text = "workload namespace doesn't match ClusterQueue selector"
            return Inadmissible(PendingReason.MISCONFIGURED, text)
        return queue

    def _activity(self, queue: ClusterQueueInfo) -> Activity:
        found = self.activities.get(queue.name)
        if found is None:
            snapshot = self.snapshot
            found = cluster_queue_activity(queue, snapshot.flavors, snapshot.checks, self.features)
            self.activities[queue.name] = found
        return found

    def _invalid_request(self, info: WorkloadInfo, offer: Offer) -> Inadmissible | None:
        podsets = [podset.request for podset in info.podsets]
        errors = unknown_levels(offer, podsets) + misordered_levels(offer, podsets)
        if self.features.topology_on_all_podsets:
            errors += missing_requests(podsets)
        if not errors:
            return None
        return Inadmissible(PendingReason.NO_MATCHING_FLAVOR, "; ".join(errors))
