"""Why the Workloads that hold what a pending Workload needs are not preempted for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rackgate.api.names import PendingReason
from rackgate_assigner.cache.quota_usage import seconds
from rackgate_assigner.explain.explanation import FlavorView, Holder, NotPreempted, QuotaLine
from rackgate_assigner.explain.summary import not_fitting_views, short_of_quota
from rackgate_assigner.preemption.why_not import Missing, why_not_preempted
from rackgate_assigner.quota.queues import FlavorResource, without_topologies
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.nomination.flavor_fungibility import preemptor_of
from rackgate_assigner.scheduler.nomination.nominate_head import nominate_head
from rackgate_assigner.scheduler.nomination.nomination import (
    FlavorAssignmentMode,
    PendingPodSet,
    PendingWorkload,
)
from rackgate_assigner.topology.tree import PODS
from rackgate_assigner.workload.info import WorkloadInfo, priority_of

if TYPE_CHECKING:
    from rackgate_assigner.cache.cache import Cache


def not_preempted(
    cache: Cache,
    row: WorkloadInfo,
    cluster_queue: str,
    quota: tuple[QuotaLine, ...],
    flavors: Sequence[FlavorView],
    *,
    fair_sharing: tuple[str, ...] | None,
) -> tuple[tuple[NotPreempted, ...], int]:
    """Those that hold the missing quota or, if none is missing, the domain that comes closest.

    Args:
        cache: the cluster, not changed.
        row: a pending Workload that is not admitted now, and no slice.
        cluster_queue: where it is pending.
        quota: its lines.
        flavors: its views.
        fair_sharing: strategies of preemption in their order; None: fair sharing is off.

    Returns:
        The first few, and how many more hold it. Empty if something is preempted, or nothing helps.
    """
    holders, more = _holders(quota, flavors)
    if not holders:
        return (), 0
    snapshot = cache.snapshot()
    usage = snapshot.quota_usage
    placed = cache.features.topology_aware_scheduling
    state = QuotaState(
        usage.tree,
        snapshot.cluster_queues,
        snapshot.flavors if placed else without_topologies(snapshot.flavors),
        snapshot.flavor_topologies,
        usage.running,
        fair_sharing=fair_sharing,
        features=cache.features,
    )
    head = _pending(cache, row, cluster_queue)
    queue, nomination = state.queues[cluster_queue], nominate_head(state, head)
    missing = Missing.QUOTA if nomination.mode_by_topology is None else Missing.DOMAIN
    request, needed = nomination.usage, nomination.needed
    if nomination.mode is FlavorAssignmentMode.NO_FIT:
        if nomination.no_fit_reason(queue) != PendingReason.WAITING_FOR_QUOTA:
            return (), 0
        missing, request = Missing.NOMINAL_QUOTA, _missing_pairs(row, quota)
        needed = frozenset(request)
    elif nomination.mode is not FlavorAssignmentMode.PREEMPT or nomination.targets:
        return (), 0
    request = {pair: amount for pair, amount in request.items() if amount}
    preemptor = preemptor_of(head, queue, request, needed)
    found: dict[str, NotPreempted] = {}
    for holder in holders:
        key = cache.families.parent_or_self(holder.name)
        workload = state.running.get(key)
        if workload is None:
            continue  # pods whose Workload is gone
        why = why_not_preempted(state, preemptor, workload, missing)
        found[key] = NotPreempted(
            workload=key,
            cluster_queue=workload.cluster_queue,
            priority=workload.priority,
            reason=why.reason.value,
            text=why.text,
        )
    return tuple(found.values()), more if found else 0


def _holders(
    quota: tuple[QuotaLine, ...], flavors: Sequence[FlavorView]
) -> tuple[list[Holder], int]:
    for line in short_of_quota(quota):
        if not line.problem:
            return list(line.holders), line.more_holders
    if any(view.fits and not view.problem for view in flavors):
        return [], 0
    for view in not_fitting_views(flavors):
        asked = next((level for level in view.levels if level.asked and level.best), None)
        if asked is not None:
            best = asked.best[0]
            return [one for one in best.holders if one.kind == "Workload"], best.more_holders
    return [], 0


def _missing_pairs(row: WorkloadInfo, quota: tuple[QuotaLine, ...]) -> dict[FlavorResource, int]:
    """What the Workload requests of the pairs that are missing."""
    found: dict[FlavorResource, int] = {}
    for line in short_of_quota(quota):
        requests = (
            podset.request.count * {**podset.request.requests, PODS: 1}.get(line.resource, 0)
            for podset in row.podsets
        )
        found[line.flavor, line.resource] = sum(requests)
    return found


def _pending(cache: Cache, row: WorkloadInfo, cluster_queue: str) -> PendingWorkload:
    return PendingWorkload(
        key=row.key,
        uid=row.uid,
        namespace=row.namespace,
        cluster_queue=cluster_queue,
        priority=priority_of(row, cache.priorities),
        queue_timestamp=seconds(row.queue_timestamp),
        podsets=tuple(
            PendingPodSet(
                podset.request, podset.min_count, row.reclaimable.get(podset.request.name, 0)
            )
            for podset in row.podsets
        ),
        shape=row.shape,
    )
