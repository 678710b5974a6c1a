"""One plan: a decision about every pending Workload of a snapshot.

1. Evictions: reservations that a deactivation or a stop policy clears.
   Then placements of Workloads that have quota and passed their admission checks.
2. Which pending Workloads may be admitted at all (`eligibility`), in their order: by priority, then
   queue timestamp, then key.
3. Scheduling cycles over the heads of all ClusterQueues (`scheduling_cycles`), until one changes
   nothing.

What is admitted is charged to the snapshot at once, so no two share quota or capacity. The same
snapshot gives the same decisions.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

from rackgate.api.names import EvictionReason
from rackgate.features import Features
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.quota.queues import (
    DRAIN,
    ClusterQueueInfo,
    LocalQueueInfo,
    without_topologies,
)
from rackgate_assigner.quota.state import QuotaState, Timing, no_timing
from rackgate_assigner.scheduler.admission_phases import place_after_checks
from rackgate_assigner.scheduler.eligibility import Eligibility, Eligible
from rackgate_assigner.scheduler.pending_queues import PendingQueues
from rackgate_assigner.scheduler.requeue import requeue_after_error
from rackgate_assigner.scheduler.scheduling_cycles import SchedulingCycles, quota_state
from rackgate_assigner.workload.conditions import truncate
from rackgate_assigner.workload.decisions import (
    Assignment,
    AssignTopology,
    Decision,
    Evict,
    Requeue,
)
from rackgate_assigner.workload.info import WorkloadInfo, priority_of

# Heads that one plan decides about, so that it ends soon; the next plan goes on with the rest.
MAX_HEADS: Final = 500


def plan(
    snapshot: Snapshot,
    features: Features,
    timing: Timing = no_timing,
    fair_sharing: tuple[str, ...] | None = None,
    queues: PendingQueues | None = None,
    *,
    now: float | None = None,
) -> list[Decision]:
    """Decide about every Workload that is due; the same state gives the same decisions.

    Admissions are charged to the snapshot's own copies at once, so no two share capacity.

    Args:
        snapshot: its free amounts are changed, so do not use it again.
        features: feature gates.
        timing: measures each placement; decisions do not depend on it.
        fair_sharing: strategies of preemption in their order; None: fair sharing is off.
        queues: the pending Workloads of earlier plans, without those of the snapshot; None: there
            are no others.
        now: wall-clock time in seconds; None: nothing is admitted ahead of the head of a
            StrictFIFO queue.

    Returns:
        Evictions by key, placements after admission checks, then admissions, deactivations and
        requeues; preemptions come before the requeue of their preemptor. Without `queues`, a
        requeue that the Workload's condition already shows is omitted, unless it has an internal
        error.
    """
    if not features.topology_aware_scheduling:
        snapshot.flavors = without_topologies(snapshot.flavors)
    evicted = evictions(
        snapshot.eviction_candidates, snapshot.local_queues, snapshot.cluster_queues
    )
    being_evicted = snapshot.being_evicted.union(evict.workload for evict in evicted)
    state = quota_state(snapshot, features, fair_sharing, timing)
    decisions: list[Decision] = [*evicted]
    to_place = (info for info in snapshot.to_place if info.key not in being_evicted)
    placed = (_place(snapshot, state, info) for info in cycle_order(to_place, snapshot.priorities))
    decisions += filter(None, placed)
    eligibility = Eligibility(snapshot, features, being_evicted)
    pending = pending_queues(snapshot) if queues is None else queues
    for info in cycle_order(snapshot.pending, snapshot.priorities):
        checked = eligibility.check(info)
        answer = pending.put(info, checked)
        decisions += filter(None, (answer if isinstance(checked, Eligible) else checked,))
    cycles = SchedulingCycles(snapshot, state, being_evicted=being_evicted, now=now)
    decisions += cycles.plan(pending, MAX_HEADS if queues is not None else sys.maxsize)
    if queues is not None:
        return decisions
    return [decision for decision in decisions if _is_new(pending, decision)]


def pending_queues(snapshot: Snapshot) -> PendingQueues:
    """Queues without any pending Workload, for the ClusterQueues of a snapshot."""
    tree, priorities = snapshot.quota_usage.tree, snapshot.priorities
    flavors = snapshot.flavors

    def root_of(name: str) -> Hashable:
        node = tree.queues.get(name)
        return (True, name) if node is None else (node.root.is_queue, node.root.name)

    def flavors_of(name: str) -> list[str]:
        found = snapshot.cluster_queues[name].flavors
        return [one for one in found if one in flavors and flavors[one].topology is not None]

    def is_by_usage(name: str) -> bool:
        has_usage = snapshot.local_queue_usage is not None
        return has_usage and snapshot.cluster_queues[name].usage_based

    return PendingQueues(lambda info: cycle_key(info, priorities), root_of, flavors_of, is_by_usage)


def cycle_order(infos: Iterable[WorkloadInfo], classes: Mapping[str, int]) -> list[WorkloadInfo]:
    """Highest priority first, then the oldest, then by key: never at random (C19).

    Args:
        infos: pending Workloads.
        classes: WorkloadPriorityClass name to value.
    """
    return sorted(infos, key=lambda info: cycle_key(info, classes))


def cycle_key(info: WorkloadInfo, classes: Mapping[str, int]) -> tuple[int, str, str]:
    """The sort key of the cycle order; no two Workloads have the same."""
    return -priority_of(info, classes), info.queue_timestamp, info.key


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
        return _deactivation(info)
    cluster_queue = cluster_queues.get(info.reserved.cluster_queue)
    if cluster_queue is not None and _cancels(cluster_queue.stop_policy, info):
        return Evict(info.key, EvictionReason.CLUSTER_QUEUE_STOPPED, "The ClusterQueue is stopped")
    local_queue = local_queues.get(info.queue)
    if local_queue is not None and _cancels(local_queue.stop_policy, info):
        return Evict(info.key, EvictionReason.LOCAL_QUEUE_STOPPED, "The LocalQueue is stopped")
    return None


def _cancels(stop_policy: str, info: WorkloadInfo) -> bool:
    """Whether a stop policy clears a reservation: `Hold` does until the Workload is admitted."""
    return stop_policy == DRAIN or (stop_policy != "None" and not info.admitted)


def _deactivation(info: WorkloadInfo) -> Evict:
    reason, message = str(EvictionReason.DEACTIVATED), "The workload is deactivated"
    if not info.deactivation_cause:
        return Evict(info.key, reason, message)
    cause = info.deactivation_cause
    message = truncate(f"{message} due to {info.deactivation_message}")
    return Evict(info.key, f"{reason}DueTo{cause}", message, cause)


def evictions(
    infos: Sequence[WorkloadInfo],
    local_queues: Mapping[str, LocalQueueInfo],
    cluster_queues: Mapping[str, ClusterQueueInfo],
) -> list[Evict]:
    """Evictions of reservations by deactivation or a stop policy, by key."""
    found = (_eviction(info, local_queues, cluster_queues) for info in infos)
    return sorted((evict for evict in found if evict), key=lambda evict: evict.workload)


def _is_new(pending: PendingQueues, decision: Decision) -> bool:
    """Whether it is more than the condition of a pending Workload shows already."""
    info = pending.info(decision.workload) if isinstance(decision, Requeue) else None
    if info is None or not isinstance(decision, Requeue) or decision.error:
        return True
    shown = (info.pending_reason, info.pending_message)
    return shown != (decision.reason, decision.message)


def _place(snapshot: Snapshot, state: QuotaState, info: WorkloadInfo) -> Decision | None:
    """As `_place_after_checks`; an internal error affects this Workload alone."""
    try:
        return _place_after_checks(snapshot, state, info)
    except Exception as error:  # noqa: BLE001 - logged by the cycle; it keeps its quota
        return requeue_after_error(info, error)


def _place_after_checks(
    snapshot: Snapshot, state: QuotaState, info: WorkloadInfo
) -> AssignTopology | Evict | None:
    """Place a Workload that reserved quota before its admission checks, or evict it.

    None keeps its quota: nodes that a ProvisioningRequest provides may not be ready yet.
    """
    held = info.reserved
    if held is None or not info.active or info.evicted:
        return None
    queue = snapshot.cluster_queues.get(held.cluster_queue)
    if queue is None:
        return None
    found = place_after_checks(state, info, held, queue)
    if isinstance(found, Assignment):
        return AssignTopology(info.key, found)
    if state.provisions_nodes(queue):
        return None
    message = f"no placement after the admission checks: {found.message}"
    return Evict(info.key, EvictionReason.ADMISSION_CHECK, truncate(message))
