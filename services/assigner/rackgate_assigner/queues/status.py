"""Desired status of queues, complete, in the v1beta2 spelling; conditions without timestamps."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

from rackgate.features import Features
from rackgate.resources.quantity import format_amount
from rackgate.wire.kueue import CohortStatus, QueueStatus
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.stored_usage import usage_status, usage_status_differs
from rackgate_assigner.cache.usage import QueueTotals
from rackgate_assigner.quota.active import Activity, cluster_queue_activity, local_queue_activity
from rackgate_assigner.quota.fair_sharing import share_of
from rackgate_assigner.quota.queues import ClusterQueueInfo, FlavorResource, ResourceGroupInfo
from rackgate_assigner.quota.tree import QuotaNode
from rackgate_assigner.workload.conditions import Change, condition_list, differs

MAX_INT64: Final = 2**63 - 1  # the share of a node that borrows with weight 0, as Kueue writes it


def _condition(activity: Activity, generation: int) -> dict[str, Any]:
    condition: dict[str, Any] = {
        "type": "Active",
        "status": "True" if activity.active else "False",
        "reason": str(activity.reason),
        "message": activity.message,
    }
    if generation:
        condition["observedGeneration"] = generation
    return condition


def _usage(
    queue: ClusterQueueInfo | None,
    used: Mapping[FlavorResource, int],
    *,
    borrowed: bool,
) -> list[dict[str, Any]]:
    """Usage of every flavor and resource of a queue, zeros included, in the queue's order.

    Args:
        queue: None for a LocalQueue without a ClusterQueue.
        used: amounts in use.
        borrowed: show the usage beyond nominal quota as well.
    """

    def amounts(group: ResourceGroupInfo, flavor: str, resource: str) -> dict[str, str]:
        pair = (flavor, resource)
        total = used.get(pair, 0)
        shown = {"name": resource, "total": format_amount(resource, total)}
        if borrowed:
            over = max(0, total - group.nominal.get(pair, 0)) if queue and queue.cohort else 0
            shown["borrowed"] = format_amount(resource, over)
        return shown

    return [
        {
            "name": flavor,
            "resources": [amounts(group, flavor, resource) for resource in group.covered],
        }
        for group in (queue.groups if queue else ())
        for flavor in group.flavors
    ]


def _status(
    queue: ClusterQueueInfo | None,
    totals: QueueTotals,
    pending: int,
    condition: Mapping[str, Any],
    *,
    borrowed: bool,
) -> dict[str, Any]:
    return {
        "conditions": [dict(condition)],
        "pendingWorkloads": pending,
        "reservingWorkloads": totals.reserving,
        "admittedWorkloads": totals.admitted,
        "flavorsReservation": _usage(queue, totals.reserved_quota, borrowed=borrowed),
        "flavorsUsage": _usage(queue, totals.admitted_quota, borrowed=borrowed),
    }


def _activity(cache: Cache, name: str, features: Features) -> Activity | None:
    queue = cache.cluster_queues.get(name)
    if queue is None:
        return None
    return cluster_queue_activity(queue, cache.flavors, cache.checks, features, cache.cohorts)


def cluster_queue_status(
    cache: Cache, name: str, features: Features, *, fair_sharing: bool = False
) -> dict[str, Any]:
    """Status of a ClusterQueue; with its share if fair sharing is on.

    Raises:
        KeyError: no such ClusterQueue.
    """
    queue = cache.cluster_queues[name]
    pending = sum(
        cache.totals.local_queues[local.key].pending
        for local in cache.local_queues.values()
        if local.cluster_queue == name and local.key in cache.totals.local_queues
    )
    activity = cluster_queue_activity(queue, cache.flavors, cache.checks, features, cache.cohorts)
    status = _status(
        queue,
        cache.totals.cluster_queues.get(name, QueueTotals()),
        pending,
        _condition(activity, queue.generation),
        borrowed=True,
    )
    if fair_sharing:
        status |= _fair_sharing(cache.quota_usage().tree.queues[name])
    return status


def cohort_status(cache: Cache, name: str) -> dict[str, Any]:
    """Status of a Cohort with fair sharing.

    Raises:
        KeyError: no such Cohort.
    """
    return _fair_sharing(cache.quota_usage().tree.cohorts[name])


def _fair_sharing(node: QuotaNode) -> dict[str, Any]:
    unbounded, share = share_of(node)
    return {"fairSharing": {"weightedShare": MAX_INT64 if unbounded else ceil(share)}}


def local_queue_status(cache: Cache, key: str, features: Features) -> dict[str, Any]:
    """Status of a LocalQueue; with what it consumed if admission fair sharing is on.

    Raises:
        KeyError: no such LocalQueue.
    """
    queue = cache.local_queues[key]
    totals = cache.totals.local_queues.get(key, QueueTotals())
    activity = local_queue_activity(queue, _activity(cache, queue.cluster_queue, features))
    status = _status(
        cache.cluster_queues.get(queue.cluster_queue),
        totals,
        totals.pending,
        _condition(activity, queue.generation),
        borrowed=False,
    )
    if cache.usage_history is not None and key in cache.usage_history:
        status["fairSharing"] = usage_status(*cache.usage_history.consumed(key))
    return status


def share_differs(
    present: QueueStatus | CohortStatus, wanted: Mapping[str, Any], *, dropped: bool
) -> bool:
    """Whether the share of fair sharing differs.

    Args:
        present: as stored.
        wanted: the desired status; without a share if fair sharing is off.
        dropped: a share of this service was removed before, so one that is there is of another
            field manager.
    """
    share = wanted.get("fairSharing")
    return present.fair_sharing != share and not (share is None and dropped)


def status_differs(
    present: QueueStatus, wanted: Mapping[str, Any], *, share_dropped: bool = False
) -> bool:
    """Whether the desired status differs from the present one; see `share_differs`."""
    if conditions_differ(present, wanted):
        return True
    counted = {
        "pendingWorkloads": present.pending_workloads,
        "reservingWorkloads": present.reserving_workloads,
        "admittedWorkloads": present.admitted_workloads,
        "flavorsReservation": list(present.flavors_reservation),
        "flavorsUsage": list(present.flavors_usage),
    }
    if share_differs(present, wanted, dropped=share_dropped) and usage_status_differs(
        present.fair_sharing, wanted.get("fairSharing")
    ):
        return True
    return any(counted.get(name) != wanted[name] for name in counted if name in wanted)


def conditions_differ(present: QueueStatus, wanted: Mapping[str, Any]) -> bool:
    """Whether conditions differ, or are those of an older spec, for which clients wait."""
    observed = {found.type: found.observed_generation for found in present.conditions}
    return differs(present.conditions, status_changes(wanted)) or any(
        observed[found["type"]] != found.get("observedGeneration", 0)
        for found in wanted["conditions"]
    )


def status_body(
    present: QueueStatus, wanted: Mapping[str, Any], generation: int, now: str
) -> dict[str, Any]:
    """The desired status as written: its conditions get their times."""
    changes = status_changes(wanted)
    listed = condition_list(
        present.conditions,
        [change.type for change in changes],
        changes,
        now=now,
        generation=generation,
    )
    return {**wanted, "conditions": listed}


def status_changes(wanted: Mapping[str, Any]) -> list[Change]:
    """The conditions of a desired status."""
    return [
        Change(item["type"], item["status"], item["reason"], item["message"])
        for item in wanted["conditions"]
    ]
