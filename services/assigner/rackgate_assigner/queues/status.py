"""Desired status of queues, complete, in the v1beta2 spelling; conditions without timestamps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rackgate.features import Features
from rackgate.resources.quantity import format_amount
from rackgate.wire.kueue import QueueStatus
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.usage import QueueTotals
from rackgate_assigner.quota.active import Activity, cluster_queue_activity, local_queue_activity
from rackgate_assigner.quota.queues import ClusterQueueInfo, FlavorResource
from rackgate_assigner.workload.conditions import Change, condition_list, differs


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
    queue: ClusterQueueInfo | None, used: Mapping[FlavorResource, int], extra: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Usage of every flavor and resource of a queue, zeros included, in the queue's order."""
    return [
        {
            "name": flavor,
            "resources": [
                {
                    "name": resource,
                    "total": format_amount(resource, used.get((flavor, resource), 0)),
                    **extra,
                }
                for resource in group.covered
            ],
        }
        for group in (queue.groups if queue else ())
        for flavor in group.flavors
    ]


def _status(
    queue: ClusterQueueInfo | None,
    totals: QueueTotals,
    pending: int,
    condition: Mapping[str, Any],
    extra: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "conditions": [dict(condition)],
        "pendingWorkloads": pending,
        "reservingWorkloads": totals.reserving,
        "admittedWorkloads": totals.admitted,
        "flavorsReservation": _usage(queue, totals.reserved_quota, extra),
        "flavorsUsage": _usage(queue, totals.admitted_quota, extra),
    }


def _activity(cache: Cache, name: str, features: Features) -> Activity | None:
    queue = cache.cluster_queues.get(name)
    if queue is None:
        return None
    return cluster_queue_activity(queue, cache.flavors, cache.checks, features)


def cluster_queue_status(cache: Cache, name: str, features: Features) -> dict[str, Any]:
    """Status of a ClusterQueue.

    Raises:
        KeyError: no such ClusterQueue.
    """
    queue = cache.cluster_queues[name]
    pending = sum(
        cache.totals.local_queues[local.key].pending
        for local in cache.local_queues.values()
        if local.cluster_queue == name and local.key in cache.totals.local_queues
    )
    activity = cluster_queue_activity(queue, cache.flavors, cache.checks, features)
    return _status(
        queue,
        cache.totals.cluster_queues.get(name, QueueTotals()),
        pending,
        _condition(activity, queue.generation),
        {"borrowed": "0"},
    )


def local_queue_status(cache: Cache, key: str, features: Features) -> dict[str, Any]:
    """Status of a LocalQueue.

    Raises:
        KeyError: no such LocalQueue.
    """
    queue = cache.local_queues[key]
    totals = cache.totals.local_queues.get(key, QueueTotals())
    activity = local_queue_activity(queue, _activity(cache, queue.cluster_queue, features))
    return _status(
        cache.cluster_queues.get(queue.cluster_queue),
        totals,
        totals.pending,
        _condition(activity, queue.generation),
        {},
    )


def status_differs(present: QueueStatus, wanted: Mapping[str, Any]) -> bool:
    """Whether the desired status differs from the present one."""
    if differs(present.conditions, status_changes(wanted)):
        return True
    counted = {
        "pendingWorkloads": present.pending_workloads,
        "reservingWorkloads": present.reserving_workloads,
        "admittedWorkloads": present.admitted_workloads,
        "flavorsReservation": list(present.flavors_reservation),
        "flavorsUsage": list(present.flavors_usage),
    }
    return any(counted.get(name) != wanted[name] for name in counted if name in wanted)


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
