"""Rows of Cohorts, ClusterQueues and LocalQueues, as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, Final

import msgspec

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.usage import QueueTotals
from rackgate_assigner.quota.active import Activity, cluster_queue_activity, local_queue_activity
from rackgate_assigner.quota.fair_sharing import share_of
from rackgate_assigner.quota.queues import FlavorResource
from rackgate_assigner.quota.tree import QuotaNode
from rackgate_console.feed import Row

CLUSTER_QUEUE: Final = "ClusterQueue"
COHORT: Final = "Cohort"
LOCAL_QUEUE: Final = "LocalQueue"

_encode: Final = msgspec.json.Encoder().encode
_NO_TOTALS: Final = QueueTotals()


def queue_rows(cache: Cache, *, fair_sharing: bool) -> dict[str, Row]:
    """All rows, by `kind/name` or `kind/namespace/name`.

    Args:
        cache: filled.
        fair_sharing: whether shares count.
    """
    tree = cache.quota_usage().tree
    pending = _pending_by_queue(cache)
    rows: dict[str, Row] = {}
    for cohort in tree.cohorts.values():
        key = f"{COHORT}/{cohort.name}"
        rows[key] = Row(_encode(_cohort(cohort, fair_sharing=fair_sharing)))
    activities: dict[str, Activity] = {}
    for name, queue in cache.cluster_queues.items():
        activity = activities[name] = cluster_queue_activity(
            queue, cache.flavors, cache.checks, cache.features, cache.cohorts
        )
        totals = cache.totals.cluster_queues.get(name, _NO_TOTALS)
        node = tree.queues[name]
        found = {
            "kind": CLUSTER_QUEUE,
            "name": name,
            "ns": "",
            "parent": f"{COHORT}/{queue.cohort}" if queue.cohort else "",
            **_counts(activity, totals, pending.get(name, 0)),
            **_sharing(node, fair_sharing=fair_sharing),
            "quotas": [
                _quota(node, (flavor, resource))
                for group in queue.groups
                for flavor in group.flavors
                for resource in group.covered
            ],
        }
        rows[f"{CLUSTER_QUEUE}/{name}"] = Row(_encode(found))
    for key, local in cache.local_queues.items():
        namespace, _, name = key.partition("/")
        totals = cache.totals.local_queues.get(key, _NO_TOTALS)
        found = {
            "kind": LOCAL_QUEUE,
            "name": name,
            "ns": namespace,
            "parent": f"{CLUSTER_QUEUE}/{local.cluster_queue}",
            **_counts(
                local_queue_activity(local, activities.get(local.cluster_queue)),
                totals,
                totals.pending,
            ),
            "share": None,
            "weight": _number(local.fair_weight),
            "quotas": [
                {"flavor": flavor, "resource": resource, "used": amount}
                for (flavor, resource), amount in _in_order(
                    totals.reserved_quota, tree.queues.get(local.cluster_queue)
                )
            ],
        }
        rows[f"{LOCAL_QUEUE}/{key}"] = Row(_encode(found), namespace)
    return rows


def _in_order(
    amounts: Mapping[FlavorResource, int], node: QuotaNode | None
) -> list[tuple[FlavorResource, int]]:
    """Amounts in the order of the ClusterQueue's quotas."""
    order = list(node.nominal) if node is not None else []
    places = {pair: at for at, pair in enumerate(order)}
    return sorted(amounts.items(), key=lambda item: (places.get(item[0], len(order)), item[0]))


def _pending_by_queue(cache: Cache) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, local in cache.local_queues.items():
        totals = cache.totals.local_queues.get(key)
        if totals is not None:
            found[local.cluster_queue] = found.get(local.cluster_queue, 0) + totals.pending
    return found


def _counts(activity: Activity, totals: QueueTotals, pending: int) -> dict[str, Any]:
    return {
        "active": activity.active,
        "reason": str(activity.reason),
        "message": activity.message,
        "pending": pending,
        "reserving": totals.reserving,
        "admitted": totals.admitted,
    }


def _cohort(node: QuotaNode, *, fair_sharing: bool) -> dict[str, Any]:
    below = _queues_below(node)
    pairs = dict.fromkeys(pair for one in (node, *below) for pair in one.nominal)
    return {
        "kind": COHORT,
        "name": node.name,
        "ns": "",
        "parent": f"{COHORT}/{node.parent.name}" if node.parent is not None else "",
        "active": True,
        "reason": "",
        "message": "",
        "pending": 0,
        "reserving": 0,
        "admitted": 0,
        **_sharing(node, fair_sharing=fair_sharing),
        "quotas": [_cohort_quota(node, below, pair) for pair in pairs],
    }


def _queues_below(node: QuotaNode) -> list[QuotaNode]:
    found = list(node.queues)
    cohorts = list(node.cohorts)
    for cohort in cohorts:  # the list grows while it is read
        found += cohort.queues
        cohorts += cohort.cohorts
    return found


def _cohort_quota(
    node: QuotaNode, below: Iterable[QuotaNode], pair: FlavorResource
) -> dict[str, Any]:
    """The quota of a Cohort and all below it, what its ClusterQueues use, and what it lends them.

    The quota does not say whose it was before it was lent, so `lent` is a number of the Cohort.
    """
    own = node.nominal.get(pair, 0)
    nominal = node.subtree.get(pair, 0)
    used = sum(queue.usage.get(pair, 0) for queue in below)
    return {
        "flavor": pair[0],
        "resource": pair[1],
        "own": own,
        "nominal": nominal,
        "used": used,
        **_limits(node, pair),
        "borrowed": max(0, node.usage.get(pair, 0) - nominal) if node.parent is not None else 0,
        "lent": sum(
            max(0, child.usage.get(pair, 0) - child.subtree.get(pair, 0))
            for child in (*node.queues, *node.cohorts)
        ),
    }


def _quota(node: QuotaNode, pair: FlavorResource) -> dict[str, Any]:
    nominal, used = node.nominal.get(pair, 0), node.usage.get(pair, 0)
    return {
        "flavor": pair[0],
        "resource": pair[1],
        "nominal": nominal,
        "used": used,
        "borrowed": max(0, used - nominal) if node.parent is not None else 0,
        "lent": 0,
        **_limits(node, pair),
    }


def _limits(node: QuotaNode, pair: FlavorResource) -> Mapping[str, int | None]:
    return {
        "borrowingLimit": node.borrowing_limit.get(pair),
        "lendingLimit": node.lending_limit.get(pair),
    }


def _sharing(node: QuotaNode, *, fair_sharing: bool) -> dict[str, Any]:
    share: int | None = None
    if fair_sharing:
        unbounded, value = share_of(node)
        share = -1 if unbounded else ceil(value)
    return {"share": share, "weight": _number(node.fair_weight)}


def _number(value: float) -> str:
    return f"{value:g}"
