"""Who holds the quota of queues in which some may have to give way, and the families of slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rackgate_assigner.quota.queues import NEVER, FlavorResource
from rackgate_assigner.scheduler.preemption import AdmittedWorkload
from rackgate_assigner.workload_slices.admission import SliceFamily

if TYPE_CHECKING:
    from rackgate_assigner.cache.cache import Cache


def admitted_by_cluster_queue(cache: Cache) -> dict[str, list[AdmittedWorkload]]:
    """By ClusterQueue, Workloads with all that their slices hold; slices are not among them."""
    names = {
        name for name, queue in cache.cluster_queues.items() if queue.within_cluster_queue != NEVER
    }
    found: dict[str, list[AdmittedWorkload]] = {name: [] for name in names}
    if not names:
        return found
    for key, usage in cache.usages.items():
        info = cache.workloads[key]
        if usage.cluster_queue not in names or info.parent:
            continue
        quota: dict[FlavorResource, int] = dict(usage.quota)
        for other in cache.families.slices_of(key):
            for pair, amount in cache.usages[other].quota.items():
                quota[pair] = quota.get(pair, 0) + amount
        being_evicted = info.evicted or info.deleting
        found[usage.cluster_queue].append(AdmittedWorkload(info, quota, being_evicted))
    return found


def slice_families(cache: Cache, keys: set[str]) -> dict[str, SliceFamily]:
    """The parents of these keys, each with what it and its slices hold of topologies."""
    return {key: _family(cache, key) for key in keys}


def _family(cache: Cache, key: str) -> SliceFamily:
    excess = dict(cache.excess_usage.excess_of_workload(key))
    family = SliceFamily(cache.workloads.get(key), excess=excess)
    for member in (key, *cache.families.slices_of(key)):
        usage = cache.usages.get(member)
        for podset, assignment in (usage.assignments if usage else {}).items():
            family.assignments.setdefault(podset, []).append(assignment)
    return family
