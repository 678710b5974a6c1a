"""Admission of workload slices: with the flavors of the parent, near its pods.

A slice is one more replica of a running Workload. It is queued as any other Workload, but stays
pending while its parent is not admitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from rackgate.api.names import PendingReason
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.quota.queues import ClusterQueueInfo, restrict_to_flavors
from rackgate_assigner.topology.capacity import leaf_of_assigned_domain, single_pod_requests
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.workload.decisions import Inadmissible
from rackgate_assigner.workload.info import WorkloadInfo
from rackgate_assigner.workload_slices.families import SliceFamily

# First and last leaf (exclusive) that limit the pods.
LeafRange: TypeAlias = tuple[int, int]


def parent_inadmissible(
    row: WorkloadInfo, family: SliceFamily, leaving: AbstractSet[str], *, enabled: bool
) -> Inadmissible | None:
    """Why a slice cannot be admitted now, None if its parent runs.

    Args:
        row: of the slice.
        family: its parent.
        leaving: keys of Workloads that are evicted or preempted in this cycle.
        enabled: state of the feature gate.
    """
    name = row.parent.partition("/")[2]
    if not enabled:
        gate = "feature gate ElasticJobsViaWorkloadSlices is off"
        text = f"{gate}: no slice of Workload {name} is admitted"
        return Inadmissible(PendingReason.ON_HOLD, text)
    problem = _parent_problem(row, family.parent, leaving)
    if not problem:
        return None
    text = f"the slice is pending: its parent Workload {name} {problem}"
    return Inadmissible(PendingReason.ON_HOLD, text)


def _parent_problem(
    row: WorkloadInfo, parent: WorkloadInfo | None, leaving: AbstractSet[str]
) -> str:
    if parent is None or parent.uid != row.owner_uid:
        return "does not exist"
    states = (
        (parent.deleting, "is being deleted"),
        (parent.finished, "is finished"),
        (parent.evicted or not parent.active or parent.key in leaving, "is evicted"),
        (parent.admission_error is not None, "has an admission that cannot be read"),
        (parent.reserved is None or not parent.admitted, "is not admitted"),
        (not parent.elastic, "is not elastic"),
    )
    return next((text for applies, text in states if applies), "")


def queue_with_parent_flavors(
    row: WorkloadInfo, parent: WorkloadInfo, queue: ClusterQueueInfo
) -> ClusterQueueInfo | Inadmissible:
    """The queue with only the parent's flavors (SLC-09), or why the slice does not fit it."""
    held, name = parent.reserved, parent.name
    if held is None or held.cluster_queue != queue.name:
        where = held.cluster_queue if held is not None else ""
        text = f"its parent Workload {name} is admitted by ClusterQueue {where}"
        return Inadmissible(PendingReason.MISCONFIGURED, text)
    if len(row.podsets) != 1:
        return Inadmissible(PendingReason.MISCONFIGURED, "a slice has one pod set")
    asked = {podset.request.name: podset.request for podset in parent.podsets}
    given = {part.name: part.flavors for part in held.podsets}
    flavors: dict[str, str] = {}
    for podset in row.podsets:
        request = podset.request
        there = asked.get(request.name)
        if there is None or request.name not in given:
            text = f"its parent Workload {name} has no pod set {request.name}"
            return Inadmissible(PendingReason.MISCONFIGURED, text)
        if replace(request, count=there.count) != there:
            text = f"pod set {request.name} differs from that of its parent Workload {name}"
            return Inadmissible(PendingReason.MISCONFIGURED, text)
        flavors.update(given[request.name])
    gone = sorted(set(flavors.values()) - set(queue.flavors))
    if gone:
        text = (
            f"its parent Workload {name} uses flavor {gone[0]}, which ClusterQueue {queue.name} "
            "does not offer any more"
        )
        return Inadmissible(PendingReason.NO_MATCHING_FLAVOR, text)
    return restrict_to_flavors(queue, flavors)


def with_parent_flavors_text(message: str, parent: WorkloadInfo, podsets: Sequence[str]) -> str:
    """The message, with the reason why no other flavor was tried."""
    held = parent.reserved.podsets if parent.reserved is not None else ()
    flavors = {name for part in held if part.name in podsets for name in part.flavors.values()}
    taken = ", ".join(sorted(flavors))
    return f"{message}; a slice uses the flavors of its parent Workload {parent.name}: {taken}"


def levels_differ(
    family: SliceFamily, levels: Mapping[str, tuple[str, ...] | None], flavor: str
) -> Inadmissible | None:
    """Why a slice's pods could not be counted with those of its parent, None if they can.

    The quota of such a slice would be wasted: pods are released by domains of the same levels.

    Args:
        family: of the slice.
        levels: by PodSet, of the slice's new domains; None: no topology.
        flavor: the flavor of the domains.
    """
    parent = family.parent
    held = parent.reserved if parent is not None else None
    for part in held.podsets if held is not None else ():
        before = part.topology.levels if part.topology is not None else None
        if part.count and levels.get(part.name, before) != before:
            name = parent.name if parent is not None else ""
            text = (
                f"the topology of flavor {flavor} is not the one of the assignment of its parent "
                f"Workload {name}: the job can scale up again after it was requeued"
            )
            return Inadmissible(PendingReason.MISCONFIGURED, text)
    return None


def leaf_ranges_near_parent(
    flavor_topology: FlavorTopology, request: PodSetRequest, near: Sequence[TopologyAssignment]
) -> list[LeafRange | None] | str:
    """Leaf ranges for a slice's pods, best first; None: anywhere.

    Args:
        flavor_topology: the tree of its flavor.
        request: its PodSet, which is its parent's.
        near: assignments of the parent and of slices that are not merged yet.

    Returns:
        Leaf ranges to try one after another, or why there is none.
    """
    asked, tree = request.topology, flavor_topology.tree
    pods: dict[int, int] = {}
    for assignment in near:
        for values, count in assignment.domains:
            leaf = leaf_of_assigned_domain(tree, assignment.levels, values)
            if leaf is not None and count > 0:
                pods[leaf] = pods.get(leaf, 0) + count
    if asked is None or not any(assignment.domains for assignment in near):
        return [None]
    outer: LeafRange | None = None
    if asked.required is not None and asked.required in tree.levels:
        if not pods:
            return (
                f'topology "{flavor_topology.flavor.topology}": '
                "no node with pods of its parent is available "
                f"now, so the {asked.required} of these pods is not known"
            )
        outer = _ranked_leaf_ranges(flavor_topology, asked.required, pods)[0]
    inner: list[LeafRange] = []
    if asked.preferred is not None and asked.preferred in tree.levels:
        inner = [
            leaf_range
            for leaf_range in _ranked_leaf_ranges(flavor_topology, asked.preferred, pods)
            if _within(leaf_range, outer) and _has_room(flavor_topology, request, leaf_range)
        ]
    return [*inner, outer]


def _ranked_leaf_ranges(
    flavor_topology: FlavorTopology, level_key: str, pods: Mapping[int, int]
) -> list[LeafRange]:
    """Domains of a level with pods, those with the most first."""
    tree, level = flavor_topology.tree, flavor_topology.tree.levels.index(level_key)
    found: dict[int, int] = {}
    for leaf, count in pods.items():
        domain = tree.domain_of_leaf(leaf, level)
        found[domain] = found.get(domain, 0) + count
    offsets = tree.leaf_ranges[level]
    order = sorted(found, key=lambda domain: (-found[domain], domain))
    return [(int(offsets[domain]), int(offsets[domain + 1])) for domain in order]


def _within(leaf_range: LeafRange, outer: LeafRange | None) -> bool:
    return outer is None or (outer[0] <= leaf_range[0] and leaf_range[1] <= outer[1])


def _has_room(
    flavor_topology: FlavorTopology, request: PodSetRequest, leaf_range: LeafRange
) -> bool:
    """Whether all pods fit into the leaves, ignoring taints and selectors; a cheap check."""
    start, end = leaf_range
    most = np.full(end - start, request.count, dtype=np.int64)
    for resource, amount in single_pod_requests(request.requests).items():
        if amount <= 0:
            continue
        row = flavor_topology.capacity.rows.get(resource)
        if row is None:
            return False
        free = flavor_topology.capacity.free_row(row)[start:end]
        most = np.minimum(most, np.maximum(free, 0) // amount)
    return int(most.sum()) >= request.count
