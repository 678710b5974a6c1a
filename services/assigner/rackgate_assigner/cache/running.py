"""Who holds the quota of queues in which some may have to give way, and the families of slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rackgate_assigner.quota.queues import NEVER, FlavorResource
from rackgate_assigner.scheduler.preemption import Running
from rackgate_assigner.workload_slices.admission import Family

if TYPE_CHECKING:
    from rackgate_assigner.cache.cache import Cache


def running_in(cache: Cache) -> dict[str, list[Running]]:
    """By ClusterQueue, Workloads with all that their slices hold; slices are not among them."""
    names = {name for name, queue in cache.cluster_queues.items() if queue.within != NEVER}
    found: dict[str, list[Running]] = {name: [] for name in names}
    if not names:
        return found
    for key, holding in cache.holdings.items():
        row = cache.workloads[key]
        if holding.cluster_queue not in names or row.parent:
            continue
        quota: dict[FlavorResource, int] = dict(holding.quota)
        for other in cache.families.slices_of(key):
            for pair, amount in cache.holdings[other].quota.items():
                quota[pair] = quota.get(pair, 0) + amount
        leaving = row.evicted or row.deleting
        found[holding.cluster_queue].append(Running(row, quota, leaving))
    return found


def families_of(cache: Cache, keys: set[str]) -> dict[str, Family]:
    """The parents of these keys, each with what it and its slices hold of topologies."""
    return {key: _family(cache, key) for key in keys}


def _family(cache: Cache, key: str) -> Family:
    excess = dict(cache.excesses.of_workload(key))
    family = Family(cache.workloads.get(key), excess=excess)
    for member in (key, *cache.families.slices_of(key)):
        holding = cache.holdings.get(member)
        for podset, assignment in (holding.assignments if holding else {}).items():
            family.places.setdefault(podset, []).append(assignment)
    return family
