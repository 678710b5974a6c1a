"""Which domains come closest to holding a PodSet, and what each of them lacks.

Counted by the functions that placement itself counts with, so the numbers are those of its
refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rackgate.features import Features
from rackgate.wire.core import Toleration
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.explain.explanation import (
    DomainCapacity,
    Holder,
    LevelCapacity,
    ResourceCapacity,
)
from rackgate_assigner.quota.quota import quantity
from rackgate_assigner.topology.capacity import Capacity, single_pod_requests
from rackgate_assigner.topology.experimental.packing import changes_packing, pack_shares
from rackgate_assigner.topology.experimental.refined_counts import (
    count_refined,
    needs_refined_counts,
)
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.topology.placement.assign import Shortfall, find_fit_domains
from rackgate_assigner.topology.placement.count import (
    NO_LIMIT,
    DomainCounts,
    FreeCapacity,
    pods_that_fit,
)
from rackgate_assigner.topology.placement.count_cache import GroupShape, count_domains
from rackgate_assigner.topology.placement.distribute import sort_domains_with_leader
from rackgate_assigner.topology.placement.node_matching import Eligibility, match_nodes
from rackgate_assigner.topology.placement.request import PlacementRequest, read_placement_request
from rackgate_assigner.topology.tree import IntVector, TopologyTree


@dataclass(frozen=True, slots=True)
class Occupant:
    """Pods on one leaf that take room of it.

    Attributes:
        kind: Workload or Pod.
        name: `namespace/name`.
        requests: per pod, without the implied 1 of `pods`.
    """

    kind: str
    name: str
    pods: int
    requests: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """One unit of PodSets before the leaves of a tree, counted as they are and as if empty.

    Attributes:
        worker: amounts of one worker, with its 1 of `pods`.
        free: by resource that is asked for, shape (leaves,); earlier PodSets are taken out.
        usable: shape (leaves,), where taints, selectors and affinity let pods be.
        shortfall: where the search ends without a place, None when there is one.
    """

    tree: TopologyTree
    request: PlacementRequest
    eligibility: Eligibility
    worker: Mapping[str, int]
    leader: Mapping[str, int] | None
    free: Mapping[str, IntVector]
    usable: npt.NDArray[np.bool_]
    counts: DomainCounts
    empty: DomainCounts
    shortfall: Shortfall | None


def count_group(
    flavor_topology: FlavorTopology,
    podset_group: tuple[PodSetRequest, PodSetRequest | None],
    features: Features,
    before: Sequence[tuple[Mapping[int, int], PodSetRequest]] = (),
) -> GroupCounts:
    """Count one unit.

    Args:
        flavor_topology: tree, numbers and flavor.
        podset_group: workers, and a leader or None.
        features: feature gates.
        before: earlier PodSets of the Workload, each with its pods by leaf.

    Raises:
        RequestError: the request cannot be met on these levels, whatever the room.
    """
    tree, (workers, leader) = flavor_topology.tree, podset_group
    request = read_placement_request(
        tree.levels,
        workers,
        workers.count,
        workers.topology.slices if workers.topology else (),
        mixed_profile=features.profile_mixed,
        both_levels=features.required_and_preferred,
    )
    eligibility = match_nodes(
        tree,
        workers,
        flavor_topology.flavor.tolerations,
        soft_affinity=features.node_affinity_preferred,
    )
    shape = GroupShape(
        single_pod_requests(workers.requests),
        single_pod_requests(leader.requests) if leader is not None and leader.count else None,
        eligibility,
    )
    room, empty = (
        _free_capacity(flavor_topology.capacity, before, simulate_empty=flag)
        for flag in (False, True)
    )
    count = _count_with_gates(
        request, podset_group, shape, flavor_topology.flavor.tolerations, features
    )
    counts = count(room)
    usable = np.ones(tree.leaf_count, dtype=np.bool_)
    if eligibility.blocked is not None:
        usable = ~eligibility.blocked
    return GroupCounts(
        tree,
        request,
        eligibility,
        shape.worker,
        shape.leader,
        _free_amounts(room, shape.worker),
        usable,
        counts,
        count(empty),
        _shortfall(counts, room, features),
    )


def _count_with_gates(
    request: PlacementRequest,
    podset_group: tuple[PodSetRequest, PodSetRequest | None],
    shape: GroupShape,
    tolerations: Sequence[Toleration],
    features: Features,
) -> Callable[[FreeCapacity], DomainCounts]:
    """Phase 1, counted as the search counts it."""
    workers = podset_group[0]
    leader = podset_group[1] if shape.leader is not None else None

    def count(room: FreeCapacity) -> DomainCounts:
        if not needs_refined_counts(features, room, leader):
            return count_domains(room.capacity.tree, request, room, shape)
        return count_refined(
            request,
            room,
            workers,
            leader,
            flavor_tolerations=tolerations,
            leaf_range=None,
            features=features,
        ).counts

    return count


def _shortfall(counts: DomainCounts, room: FreeCapacity, features: Features) -> Shortfall | None:
    found = (
        pack_shares(counts, room, features)
        if changes_packing(features)
        else find_fit_domains(counts)
    )
    return found if isinstance(found, Shortfall) else None


def _free_amounts(room: FreeCapacity, worker: Mapping[str, int]) -> dict[str, IntVector]:
    """Free amounts of what is asked for, over the leaves; a resource that is nowhere is 0."""
    nothing = np.zeros(room.capacity.tree.leaf_count, dtype=np.int64)
    found = {
        resource: room.free_amounts(resource) for resource in sorted(worker) if worker[resource]
    }
    return {resource: nothing if free is None else free for resource, free in found.items()}


def _free_capacity(
    capacity: Capacity,
    before: Sequence[tuple[Mapping[int, int], PodSetRequest]],
    *,
    simulate_empty: bool,
) -> FreeCapacity:
    room = FreeCapacity(capacity, simulate_empty=simulate_empty)
    for pods_by_leaf, podset in before:
        room.assume(
            list(pods_by_leaf), list(pods_by_leaf.values()), single_pod_requests(podset.requests)
        )
    return room


def level_capacities(
    group_counts: GroupCounts, occupants: Mapping[int, Sequence[Occupant]], top: int
) -> tuple[LevelCapacity, ...]:
    """Every level with its best domains, coarsest first.

    Args:
        group_counts: what was counted.
        occupants: who takes room, by leaf.
        top: domains per level and holders per domain to name.
    """
    if not group_counts.tree.leaf_count:
        return ()
    found = []
    wanted = group_counts.request.count
    for index, level in enumerate(group_counts.tree.levels):
        pods = group_counts.counts.level(index).pods
        total = int(pods.sum())
        found.append(
            LevelCapacity(
                level=level,
                asked=index == group_counts.request.level,
                domains=len(pods),
                pods=total,
                best=tuple(
                    _domain_capacity(group_counts, index, domain, occupants, top)
                    for domain in best_domains(group_counts, index, top)
                ),
                fragmented=total >= wanted > int(pods.max(initial=0)),
            )
        )
    return tuple(found)


def best_domains(group_counts: GroupCounts, level: int, top: int) -> list[int]:
    """The domains that hold most, best first; ties go to the first path.

    Placement's own order where a leader or a score counts, so that the first is the one whose
    number a refusal of a required level names.
    """
    numbers = group_counts.counts.level(level)
    ids = np.arange(len(numbers.pods), dtype=np.int64)
    if numbers.leader_fits is not None or numbers.score is not None:
        ordered = sort_domains_with_leader(numbers, ids, least_free=False)
    else:
        ordered = np.lexsort([-numbers.pods, -numbers.slices])
    best: list[int] = ordered[:top].tolist()
    return best


def _domain_capacity(
    group_counts: GroupCounts,
    level: int,
    domain: int,
    occupants: Mapping[int, Sequence[Occupant]],
    top: int,
) -> DomainCapacity:
    numbers, empty = group_counts.counts.level(level), group_counts.empty.level(level)
    start, end = group_counts.tree.leaf_ranges[level][domain : domain + 2].tolist()
    resources = resource_capacities(group_counts, start, end)
    pods, wanted = int(numbers.pods[domain]), group_counts.request.count
    nodes = slice(*np.searchsorted(group_counts.tree.node_leaves, (start, end)).tolist())
    inside = group_counts.usable[group_counts.tree.node_leaves[nodes]]
    held = holders_of(
        [found for leaf in range(start, end) for found in occupants.get(leaf, ())],
        group_counts.worker,
    )
    leader_fits = numbers.leader_fits is not None and bool(numbers.leader_fits[domain])
    enough = all(found.missing == "0" for found in resources)
    tightest = min(resources, key=lambda found: found.pods, default=None)
    return DomainCapacity(
        domain=group_counts.tree.paths[level][domain],
        pods=pods,
        pods_when_empty=int(empty.pods[domain]),
        slices=int(numbers.slices[domain]),
        pods_with_leader=int(numbers.pods_with_leader[domain]) if leader_fits else None,
        nodes=len(inside),
        usable_nodes=int(inside.sum()),
        tightest=tightest.resource if tightest is not None and inside.any() else "",
        fragmented=enough and pods < wanted,
        resources=resources,
        holders=tuple(held[:top]),
        more_holders=max(0, len(held) - top),
    )


def resource_capacities(
    group_counts: GroupCounts, start: int, end: int
) -> tuple[ResourceCapacity, ...]:
    """Resources that are asked for, over the usable leaves from `start` to before `end`."""
    mask = group_counts.usable[start:end]
    found = []
    for resource, over_all in group_counts.free.items():
        amount = group_counts.worker[resource]
        here = np.maximum(over_all[start:end][mask], 0)
        free, fits = int(here.sum()), int(pods_that_fit(amount, here, len(here)).sum())
        wanted = amount * group_counts.request.count
        if group_counts.leader is not None:
            wanted += group_counts.leader.get(resource, 0)
        found.append(
            ResourceCapacity(
                resource=resource,
                per_pod=quantity(resource, amount),
                wanted=quantity(resource, wanted),
                free=quantity(resource, free),
                pods=min(fits, NO_LIMIT),
                missing=quantity(resource, max(0, wanted - free)),
                stranded=quantity(resource, free - fits * amount),
            )
        )
    return tuple(found)


def holders_of(found: Sequence[Occupant], resources: Mapping[str, int]) -> list[Holder]:
    """Occupants added up by who they are, most pods first; amounts of `resources` alone."""
    pods: dict[tuple[str, str], int] = {}
    amounts: dict[tuple[str, str], dict[str, int]] = {}
    for one in found:
        who = (one.kind, one.name)
        pods[who] = pods.get(who, 0) + one.pods
        total = amounts.setdefault(who, {})
        for resource, amount in one.requests.items():
            if resource in resources:
                total[resource] = total.get(resource, 0) + amount * one.pods
    return [
        Holder(
            kind="Workload" if kind == "Workload" else "Pod",
            name=name,
            pods=pods[kind, name],
            amounts={r: quantity(r, value) for r, value in sorted(amounts[kind, name].items())},
        )
        for kind, name in sorted(pods, key=lambda who: (-pods[who], who))
    ]
