"""Explain a Workload: its state, the reason, and what would help.

1. `decide` runs a scheduling cycle for this Workload alone: reason and message are those that the
   scheduler would write. If others are ahead of it, a second cycle includes them (`in_turn`).
2. `queue_position` reads its queues and quota, `flavor_views` its flavors with a topology.
3. `summary` states the cause in a sentence or two, and lists what would help.

The cache is read-only. Complexity: two cycles over the pending Workloads ahead, and one view per
flavor with a topology.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from rackgate.api.names import PendingReason
from rackgate.features import Features
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.explain.explanation import (
    Explanation,
    FlavorView,
    NotPreempted,
    PodSetStatus,
    QuotaLine,
    State,
)
from rackgate_assigner.explain.flavor_nodes import missing_levels as missing_levels_of
from rackgate_assigner.explain.flavor_views import FlavorExplainer
from rackgate_assigner.explain.not_preempted import not_preempted
from rackgate_assigner.explain.placement import podset_placement
from rackgate_assigner.explain.queue_position import (
    covered_resources,
    offer_of,
    pending_order,
    queue_position,
    quota_lines,
)
from rackgate_assigner.explain.summary import changes_of, inactive_explanation, summary_of
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.workload.decisions import Admit, Deactivate, Decision, Requeue
from rackgate_assigner.workload.info import WorkloadInfo, priority_of

if TYPE_CHECKING:
    from rackgate_assigner.cache.cache import Cache

SHOWN = 3


def explain(
    cache: Cache,
    key: str,
    features: Features,
    top: int = SHOWN,
    *,
    fair_sharing: tuple[str, ...] | None = None,
) -> Explanation | None:
    """Why a Workload is pending, or its usage; None if it does not exist.

    Args:
        cache: the cluster, not changed.
        key: `namespace/name`.
        features: state of feature gates.
        top: maximum number of domains, holders and names in each list.
        fair_sharing: strategies of preemption in their order; None: fair sharing is off.
    """
    row, holding = cache.workloads.get(key), cache.usages.get(key)
    if row is None or holding is None:
        return None
    if holding.pending:
        if row.pending_reason == PendingReason.GANG_NOT_READY:
            # Only the assigner watches Workloads of gangs: what it wrote last is repeated.
            row = replace(row, hold=row.pending_message)
        return explain_row(cache, row, "waiting", features, top, fair_sharing=fair_sharing)
    state = _state(row, bool(holding.cluster_queue))
    if state == "inactive":
        active = replace(row, active=True, requeue_at="")
        again = explain_row(cache, active, state, features, top, fair_sharing=fair_sharing)
        return inactive_explanation(row, again, queue_position(cache, row, features, top))
    return Explanation(
        workload=key,
        state=state,
        summary=summary_of(state, row, live_pods=cache.live_pod_count(row.job_uid).total),
        priority=priority_of(row, cache.priorities),
        message=row.admission_error or "",
        queue=queue_position(cache, row, features, top),
        podsets=_admitted_podsets(row),
    )


def explain_row(
    cache: Cache,
    row: WorkloadInfo,
    state: State,
    features: Features,
    top: int = SHOWN,
    *,
    fair_sharing: tuple[str, ...] | None = None,
) -> Explanation:
    """As `explain`, for a Workload that is pending or not submitted.

    Args:
        cache: the cluster.
        row: the Workload; need not be in the cache.
        state: `waiting` or `notSubmitted`; `inactive` for what happens after reactivation.
        features: state of feature gates.
        top: as in `explain`.
        fair_sharing: as in `explain`.
    """
    row = replace(row, reserved=None)
    alone = decide(cache, [row], row.key, features, fair_sharing)
    position = queue_position(cache, row, features, top)
    quota: tuple[QuotaLine, ...] = ()
    flavors: tuple[FlavorView, ...] = ()
    covered: Sequence[str] = ()
    queue = cache.cluster_queues.get(position.cluster_queue)
    if queue is not None:
        offer = offer_of(cache, row, queue, features)
        quota = quota_lines(cache, row, offer.queue, offer, top)
        covered = covered_resources(offer.queue)
        flavors = FlavorExplainer(cache, offer, features, top).views(row, alone)
    reason, message = _reason_and_message(alone)
    kept: tuple[NotPreempted, ...] = ()
    more_kept = 0
    if isinstance(alone, Requeue) and not row.parent and not position.problems:
        name = position.cluster_queue
        kept, more_kept = not_preempted(cache, row, name, quota, flavors, fair_sharing=fair_sharing)
    found = Explanation(
        workload=row.key,
        state=state,
        summary="",
        priority=priority_of(row, cache.priorities),
        fits=isinstance(alone, Admit),
        reason=reason,
        message=message,
        in_turn=_in_turn(cache, row, alone, features, fair_sharing),
        told=row.pending_message,
        queue=position,
        quota=quota,
        flavors=flavors,
        not_preempted=kept,
        more_not_preempted=more_kept,
    )
    changes = changes_of(found, covered)
    summary = summary_of(state, row, found)
    return msgspec.structs.replace(found, summary=summary, changes=changes)


def decide(
    cache: Cache,
    rows: Sequence[WorkloadInfo],
    key: str,
    features: Features,
    fair_sharing: tuple[str, ...] | None = None,
) -> Decision | None:
    """What a cycle with these rows alone decides about one of them."""
    snapshot: Snapshot = cache.snapshot()
    snapshot.pending = [replace(row, pending_reason="", pending_message="") for row in rows]
    snapshot.eviction_candidates = []
    decisions = plan(snapshot, features, fair_sharing=fair_sharing)
    return next((found for found in decisions if found.workload == key), None)


def _state(row: WorkloadInfo, holds: bool) -> State:
    if row.finished:
        return "finished"
    if row.admission_error:
        return "unreadable"
    if holds:
        if row.evicted:
            return "evicted"
        return "admitted" if row.admitted else "reserved"
    return "deleting" if row.deleting else "inactive"


def _reason_and_message(decision: Decision | None) -> tuple[str, str]:
    if isinstance(decision, Requeue | Deactivate):
        return str(decision.reason), decision.message
    return "", ""


def _in_turn(
    cache: Cache,
    row: WorkloadInfo,
    alone: Decision | None,
    features: Features,
    fair_sharing: tuple[str, ...] | None,
) -> str:
    """The message of the next cycle, if the Workloads ahead make a difference."""
    if not isinstance(alone, Admit):
        return ""
    line = pending_order(cache, row)
    place = next(at for at, other in enumerate(line) if other.key == row.key)
    if not place:
        return ""
    decision = decide(cache, line[: place + 1], row.key, features, fair_sharing)
    return _reason_and_message(decision)[1]


def _admitted_podsets(row: WorkloadInfo) -> tuple[PodSetStatus, ...]:
    if row.reserved is None:
        return ()
    return tuple(
        PodSetStatus(
            podset=podset.name,
            flavors=dict(podset.flavors),
            granted=podset.count,
            places=podset_placement(podset.name, podset.topology, SHOWN)
            if podset.topology
            else None,
        )
        for podset in row.reserved.podsets
    )


def missing_levels(cache: Cache, flavor: str) -> dict[str, tuple[str, ...]]:
    """The level labels that nodes of a flavor lack, by node name (C18)."""
    row = cache.flavors.get(flavor)
    if row is None:
        return {}
    wanted = row.node_labels.items()
    matching = {
        node.name: missing_levels_of(node, row)
        for node in cache.nodes.values()
        if wanted <= node.labels.items()
    }
    return {name: missing for name, missing in sorted(matching.items()) if missing}


def overlaps(cache: Cache) -> list[tuple[str, str, int]]:
    """Pairs of flavors with a topology that share nodes, and how many (TAS-33)."""
    flavor_topologies = cache.flavor_topologies()
    names = list(flavor_topologies.by_flavor)
    return [
        (first, second, shared)
        for index, first in enumerate(names)
        for second in names[index + 1 :]
        if (shared := flavor_topologies.shared_nodes(first, second))
    ]
