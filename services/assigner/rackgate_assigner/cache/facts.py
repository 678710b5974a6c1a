"""Facts for people: where a Workload stands, which nodes lack labels, which flavors overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rackgate_assigner.core.admit import plan
from rackgate_assigner.core.decisions import Admit, Grant, Hold
from rackgate_assigner.core.nearest import nearest
from rackgate_assigner.core.ordering import cycle_order, priority_of
from rackgate_assigner.core.rows import WorkloadRow

if TYPE_CHECKING:
    from rackgate_assigner.cache.fold import Cache

SHOWN_NODES = 10


def _state(row: WorkloadRow, holds: bool) -> str:
    if row.finished:
        return "finished"
    if row.broken:
        return "unreadable"
    if holds:
        return "evicted" if row.evicted else "admitted"
    return "waiting" if row.waiting else "inactive"


def explain(cache: Cache, key: str, features: Mapping[str, bool]) -> dict[str, Any]:
    """What a Workload holds, or what a cycle would say if it came first."""
    row, holding = cache.workloads.get(key), cache.holdings.get(key)
    if row is None or holding is None:
        return {}
    local = cache.local_queues.get(row.queue)
    found: dict[str, Any] = {
        "workload": key,
        "state": _state(row, bool(holding.cluster_queue)),
        "localQueue": row.queue,
        "clusterQueue": holding.cluster_queue or (local.cluster_queue if local else ""),
        "priority": priority_of(row, cache.priorities),
    }
    if row.broken:
        found["message"] = row.broken
    if holding.waiting:
        found |= _verdict(cache, row, found["clusterQueue"], features)
    return found


def _verdict(
    cache: Cache, row: WorkloadRow, cluster_queue: str, features: Mapping[str, bool]
) -> dict[str, Any]:
    snapshot = cache.freeze()
    line = [
        other.key
        for other in cycle_order(snapshot.waiting, snapshot.priorities)
        if other.queue == row.queue
    ]
    snapshot.waiting = [replace(row, pending_reason="", pending_message="")]
    snapshot.holding = []
    decision = plan(snapshot, features)[0]
    found: dict[str, Any] = {"positionInLocalQueue": line.index(row.key)}
    if isinstance(decision, Admit):
        return {**found, "fits": True, "flavors": _flavors(decision.grant)}
    found |= {"fits": False, "reason": decision.reason, "message": decision.message}
    if isinstance(decision, Hold):
        unlabelled = {name: missing_levels(cache, name) for name in cache.flavors}
        lacking = {
            name: dict(sorted(nodes.items())[:SHOWN_NODES])
            for name, nodes in unlabelled.items()
            if nodes
        }
        if lacking:
            found["nodesWithoutLevels"] = lacking
        found["nearest"] = _nearest(cache, row, cluster_queue)
    return found


def _nearest(cache: Cache, row: WorkloadRow, cluster_queue: str) -> dict[str, Any]:
    """By flavor and PodSet, the domain of each level that comes closest: an upper bound each."""
    queue = cache.cluster_queues.get(cluster_queue)
    groves = cache.forest().groves
    return {
        name: {
            podset.request.name: [
                {
                    "level": best.level,
                    "domain": list(best.domain),
                    "fits": best.fits,
                    "asked": podset.request.count,
                    "domains": best.domains,
                }
                for best in nearest(groves[name], podset.request)
            ]
            for podset in row.podsets
        }
        for name in (queue.flavors if queue else ())
        if name in groves
    }


def _flavors(grant: Grant) -> dict[str, dict[str, str]]:
    return {part.name: dict(part.flavors) for part in grant.podsets}


def missing_levels(cache: Cache, flavor: str) -> dict[str, tuple[str, ...]]:
    """Nodes that match a flavor's labels but lack level labels, each with the keys it lacks."""
    row = cache.flavors.get(flavor)
    if row is None:
        return {}
    wanted = row.node_labels.items()
    matching = {
        node.name: tuple(level for level in row.levels if level not in node.labels)
        for node in cache.nodes.values()
        if wanted <= node.labels.items()
    }
    return {name: missing for name, missing in sorted(matching.items()) if missing}


def overlaps(cache: Cache) -> list[tuple[str, str, int]]:
    """Pairs of flavors with a topology that have nodes in common, and how many."""
    forest = cache.forest()
    names = list(forest.groves)
    return [
        (first, second, shared)
        for index, first in enumerate(names)
        for second in names[index + 1 :]
        if (shared := forest.shared_nodes(first, second))
    ]
