"""Is what was kept incrementally equal to what a rebuild from the same rows gives?"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rackgate_assigner.cache.fold import Cache

Value = TypeVar("Value")


def rebuilt(cache: Cache, fresh: Cache) -> Cache:
    """Fill an empty cache with the rows of another, in an order of its own."""
    for row in cache.workloads.values():
        fresh.put_workload(row)
    for key, assumed in cache.assumed.items():
        fresh.assume(key, assumed.grant)
    for name in sorted(cache.pods.rows, reverse=True):
        fresh.pods.set(cache.pods.rows[name])
    for name in sorted(cache.nodes):
        fresh.put_node(cache.nodes[name])
    for name, levels in cache.topologies.items():
        fresh.put_topology(name, levels)
    for flavor in cache.flavors.values():
        fresh.put_flavor(flavor)
    return fresh


def differences(cache: Cache, fresh: Cache) -> list[str]:
    """What the two do not agree on, sorted."""
    groves, fresh_groves = cache.forest().groves, fresh.forest().groves
    found = _unequal("clusterQueue", cache.totals.cluster_queues, fresh.totals.cluster_queues)
    found += _unequal("localQueue", cache.totals.local_queues, fresh.totals.local_queues)
    found += _unequal("node", cache.pods.charged, fresh.pods.charged)
    for name in sorted({*groves, *fresh_groves}):
        if name not in groves or name not in fresh_groves:
            found.append(f"flavor {name}: tree")
        else:
            parts = groves[name].differences(fresh_groves[name])
            found += [f"flavor {name}: {part}" for part in parts]
    return found


def _unequal(kind: str, kept: dict[str, Value], fresh: dict[str, Value]) -> list[str]:
    return [
        f"{kind} {name}" for name in sorted({*kept, *fresh}) if kept.get(name) != fresh.get(name)
    ]
