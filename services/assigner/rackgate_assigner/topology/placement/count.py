"""Phase 1 of placement: how many pods and PodSet slices fit into every domain.

1. `count_leaves` divides the free capacity of each leaf by the requests of one pod, resource by
   resource. Blocked leaves count 0.
2. `sum_children` adds the leaves up to their parents. A level is summed up when phase 2 reads it.
3. `count_domains` caches the counts with the capacity, because many Workloads of one scheduling
   cycle have the same request. Between two of them only the leaves of one placement change. Those
   leaves and the domains above them are counted again, by the functions that count all of them.

Input: the capacity of a snapshot, minus the assignments of earlier PodSets of the same Workload.
Invariants: counts are never negative; a domain's `pods_with_leader` is at most its `pods`;
without a leader the two are the same array, as are `pods` and `slices` without slices.
Complexity: O(leaves x resources), or O(changed leaves x resources) with cached counts.
Source: conformance/tas, section 7; `fillInCounts` of Kueue's tas_flavor_snapshot.go.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from rackgate_assigner.topology.capacity import (
    CHARGE_LIMIT,
    Capacity,
    CapacityCache,
    single_pod_requests,
)
from rackgate_assigner.topology.model import BoolVector, IntVector, PlacementRequest
from rackgate_assigner.topology.placement.node_matching import Eligibility
from rackgate_assigner.topology.tree import TopologyTree

# Pods that fit if a pod requests 0 of a resource.
NO_LIMIT: Final = 2**31 - 1
UNREACHABLE: Final = 2**62
# Counting a few leaves takes as long as counting this many, and 8 more for each of them.
# For smaller trees nothing is cached.
MIN_LEAVES: Final = 6_000
COST_PER_LEAF: Final = 8
_NO_LEAVES: Final[IntVector] = np.zeros(0, dtype=np.int64)


# Free capacity.


class AssumedUsage(NamedTuple):
    """Pods that are assigned to an earlier PodSet of the Workload.

    Attributes:
        leaves: distinct leaf ids.
        counts: pods per leaf.
        amounts: requests of one pod, with its 1 of `pods`.
    """

    leaves: IntVector
    counts: IntVector
    amounts: Mapping[str, int]


class FreeCapacity:
    """Free capacity for the next PodSet: the capacity minus the assumed usage. Read-only."""

    __slots__ = ("_free", "_usage", "assumed", "capacity", "simulate_empty")

    def __init__(self, capacity: Capacity, *, simulate_empty: bool) -> None:
        self.capacity = capacity
        self.simulate_empty = simulate_empty
        self.assumed: list[AssumedUsage] = []
        self._free, self._usage = capacity.free_and_usage()

    def without_assumed(self) -> FreeCapacity:
        """The free capacity before any PodSet of this Workload."""
        if not self.assumed:
            return self
        return FreeCapacity(self.capacity, simulate_empty=self.simulate_empty)

    def assume(self, pods_by_leaf: Mapping[int, int], requests: Mapping[str, int]) -> None:
        """Subtract pods; `requests` are per pod, without the implied 1 of `pods`."""
        if pods_by_leaf:
            counts = [min(count, CHARGE_LIMIT) for count in pods_by_leaf.values()]
            leaves, amounts = np.array(list(pods_by_leaf)), single_pod_requests(requests)
            self.assumed.append(AssumedUsage(leaves, np.array(counts), amounts))

    def free_amounts(self, resource: str, at: IntVector | None = None) -> IntVector | None:
        """Free amount of a resource, read-only; None when no node offers it.

        Of all leaves, shape (leaves,), or of the ids `at` (ascending), shape (len(at),).
        """
        row = self.capacity.rows.get(resource)
        if row is None:
            return None
        free: IntVector = self._free[row]
        if self.simulate_empty:
            free = free + self._usage[row]
        taking = [one for one in self.assumed if one.amounts.get(resource)]
        if at is not None:
            free = free[at]
        elif taking and not self.simulate_empty:
            free = free.copy()
        for one in taking:
            amount = one.amounts[resource]
            taken = np.minimum(one.counts, CHARGE_LIMIT // amount) * amount
            if at is None:
                free[one.leaves] -= taken
            else:
                positions, found = _positions(one.leaves, at)
                free[positions] -= taken[found]
        return free


def _positions(leaves: IntVector, among: IntVector) -> tuple[IntVector, BoolVector]:
    """Positions in `among` (ascending) of the `leaves` that it contains, and these leaves."""
    positions = among.searchsorted(leaves)
    found = positions < len(among)
    found[found] = among[positions[found]] == leaves[found]
    return positions[found], found


def pods_that_fit(amount: int, free: IntVector | None, leaf_count: int) -> IntVector:
    """Whole pods by one resource, shape (leaf_count,); negative where a leaf is over-committed."""
    if amount == 0:
        return np.full(leaf_count, NO_LIMIT, dtype=np.int64)
    if free is None:
        return np.zeros(leaf_count, dtype=np.int64)
    if amount == 1:
        return free
    fits: IntVector = free // amount
    return fits


def fit(
    amounts: Mapping[str, int], free: FreeCapacity, *, at: IntVector | None = None
) -> IntVector:
    """Pods that still fit on all leaves, or on those of the ids `at`.

    `amounts` are the requests of one pod, with its 1 of `pods`. Shape (leaves,) or (len(at),),
    never negative; the caller may write to it.
    """
    leaf_count = free.capacity.tree.leaf_count if at is None else len(at)
    best: IntVector | None = None
    for resource, amount in amounts.items():
        free_amounts = free.free_amounts(resource, at)
        fits = pods_that_fit(amount, free_amounts, leaf_count)
        if best is None:
            best = fits.copy() if fits is free_amounts else fits
        else:
            np.minimum(best, fits, out=best)
    return np.maximum(best, 0, out=best) if best is not None else np.zeros(leaf_count, np.int64)


def any_pod_fits(
    amounts: Mapping[str, int], free: FreeCapacity, *, at: IntVector | None = None
) -> BoolVector:
    """As `fit(...) > 0`, without dividing."""
    fits = np.ones(free.capacity.tree.leaf_count if at is None else len(at), dtype=np.bool_)
    for resource, amount in amounts.items():
        if amount:
            free_amounts = free.free_amounts(resource, at)
            fits &= False if free_amounts is None else free_amounts >= amount
    return fits


def fit_with_leader(
    worker: Mapping[str, int],
    leader: Mapping[str, int],
    pods: IntVector,
    leader_fits: IntVector,
    free: FreeCapacity,
    *,
    at: IntVector | None = None,
) -> IntVector:
    """Workers that fit together with the leader; `pods` where the leader does not fit.

    Only resources of the leader can reduce `pods`, and only where the workers leave too
    little of them: usually on few leaves, or none.
    """
    best = pods.copy()
    for resource, amount in worker.items():
        taken = leader.get(resource, 0)
        free_amounts = free.free_amounts(resource, at) if taken and amount else None
        if free_amounts is None:
            continue
        short = free_amounts - pods * amount < taken
        number = np.count_nonzero(short)
        if number * 8 > len(short):
            left = np.maximum(free_amounts - leader_fits * taken, 0)
            np.minimum(best, left // amount, out=best)
        elif number:
            few = short.nonzero()[0]
            left = np.maximum(free_amounts[few] - leader_fits[few] * taken, 0)
            best[few] = np.minimum(best[few], left // amount)
    return best


# Counts of domains.


@dataclass(slots=True)
class LevelCounts:
    """Counts of all domains of one level; each array has shape (domains,).

    Attributes:
        pods: workers that fit.
        slices: PodSet slices that fit; 0 below the slice level.
        pods_with_leader: as `pods`, if the leader is in this domain. The same array without
            leader.
        slices_with_leader: as `slices`, likewise.
        leader_fits: 1 where the leader fits; None without a leader.
        score: preferred node affinity; None when it does not count.
    """

    pods: IntVector
    slices: IntVector
    pods_with_leader: IntVector
    slices_with_leader: IntVector
    leader_fits: IntVector | None = None
    score: IntVector | None = None

    def map(self, change: Callable[[IntVector], IntVector]) -> LevelCounts:
        """Every array changed, for example sliced or copied; shared arrays stay shared."""
        mapped: dict[int, IntVector] = {}

        def once(values: IntVector) -> IntVector:
            if id(values) not in mapped:
                mapped[id(values)] = change(values)
            return mapped[id(values)]

        return LevelCounts(
            once(self.pods),
            once(self.slices),
            once(self.pods_with_leader),
            once(self.slices_with_leader),
            None if self.leader_fits is None else once(self.leader_fits),
            None if self.score is None else once(self.score),
        )

    def write(self, ids: IntVector | slice, counts: LevelCounts) -> None:
        """Set the counts of some domains; scores stay."""
        self.pods[ids] = counts.pods
        if self.slices is not self.pods:
            self.slices[ids] = counts.slices
        if self.pods_with_leader is not self.pods:
            self.pods_with_leader[ids] = counts.pods_with_leader
        if (
            self.slices_with_leader is not self.slices
            and self.slices_with_leader is not self.pods_with_leader
        ):
            self.slices_with_leader[ids] = counts.slices_with_leader
        if self.leader_fits is not None and counts.leader_fits is not None:
            self.leader_fits[ids] = counts.leader_fits


class DomainCounts:
    """Counts of all levels for one request.

    Attributes:
        has_leader: whether a leader is placed with the workers.
        levels: counts per level; None where they are not summed up yet.
    """

    __slots__ = ("has_leader", "levels", "request", "tree")

    def __init__(
        self,
        tree: TopologyTree,
        request: PlacementRequest,
        leaves: LevelCounts,
        levels: list[LevelCounts | None] | None = None,
    ) -> None:
        """Start from the leaves, or from `levels`, a list to which later sums are added."""
        self.tree = tree
        self.request = request
        self.has_leader = leaves.leader_fits is not None
        self.levels = [*[None] * (len(tree.levels) - 1), leaves] if levels is None else levels

    def level(self, index: int) -> LevelCounts:
        """Counts of one level."""
        counts = self.levels[index]
        if counts is None:
            starts = self.tree.children[index][:-1]
            counts = sum_children(self.request, index, self.level(index + 1), starts)
            self.levels[index] = counts
        return counts

    def for_request(self, request: PlacementRequest) -> DomainCounts:
        """The same counts, shared, for a request that differs only in fields without influence."""
        return DomainCounts(self.tree, request, self.level(-1), self.levels)

    def copy(self) -> DomainCounts:
        """The same counts; the caller may write to them."""
        levels = [one and one.map(np.copy) for one in self.levels]
        return DomainCounts(self.tree, self.request, self.level(-1), levels)


@dataclass(frozen=True, slots=True)
class GroupShape:
    """What the counts of the leaves depend on in addition to request and capacity.

    Attributes:
        worker: requests of one worker, with its 1 of `pods`.
        leader: the same of the leader, or None.
        eligibility: blocked leaves and preferred node affinity.
        outside_leaf_range: shape (leaves,), additional blocked leaves, or None.
    """

    worker: Mapping[str, int]
    leader: Mapping[str, int] | None
    eligibility: Eligibility
    outside_leaf_range: BoolVector | None = None


def count_leaves(
    request: PlacementRequest, free: FreeCapacity, shape: GroupShape, at: IntVector | None = None
) -> LevelCounts:
    """Count all leaves, or those of the ids `at`."""
    blocked, score, outside = (
        shape.eligibility.blocked,
        shape.eligibility.scores,
        shape.outside_leaf_range,
    )
    if outside is not None:
        blocked = outside if blocked is None else blocked | outside
        score = None if score is None else np.where(outside, 0, score)
    if at is not None:
        blocked = None if blocked is None else blocked[at]
        score = None if score is None else score[at]
    pods = fit(shape.worker, free, at=at)
    if blocked is not None:
        pods *= ~blocked  # a product takes a tenth of the time of writing zeros under a mask
    slices = slices_of_leaves(request, pods)
    if shape.leader is None:
        return LevelCounts(pods, slices, pods, slices, None, score)
    fits = any_pod_fits(shape.leader, free, at=at)
    if blocked is not None:
        fits &= ~blocked
    leader_fits = fits.astype(np.int64)
    with_leader = fit_with_leader(shape.worker, shape.leader, pods, leader_fits, free, at=at)
    slices_with_leader = slices_of_leaves(request, with_leader)
    return LevelCounts(pods, slices, with_leader, slices_with_leader, leader_fits, score)


def slices_of_leaves(request: PlacementRequest, pods: IntVector) -> IntVector:
    """PodSet slices of leaves that `pods` fit into; 0 when the slice level is a higher one."""
    if request.slice_level != len(request.units) - 1:
        return np.zeros_like(pods)
    return pods if request.size == 1 else pods // request.size


def sum_children(
    request: PlacementRequest,
    level: int,
    below: LevelCounts,
    starts: IntVector,
    *,
    ignore_units: bool = False,
) -> LevelCounts:
    """Counts of some domains of a level from those of their children.

    `below` has the counts of all children, domain by domain, and `starts` the first child of each
    domain. Units are those of inner slice layers.
    """
    unit = 1 if ignore_units else request.units[level + 1]
    child_pods = below.pods if unit == 1 else below.pods // unit * unit
    pods = _reduce(np.add, child_pods, starts)
    score = None if below.score is None else _reduce(np.add, below.score, starts)
    above_slices = level < request.slice_level
    same_array = below.slices is below.pods and above_slices and unit == 1
    if level == request.slice_level:
        slices = pods if request.size == 1 else pods // request.size
    elif same_array:
        slices = pods
    elif above_slices:
        slices = _reduce(np.add, below.slices, starts)
    else:
        slices = np.zeros(len(starts), dtype=np.int64)
    if below.leader_fits is None:
        return LevelCounts(pods, slices, pods, slices, None, score)
    child_pods_with_leader = (
        below.pods_with_leader if unit == 1 else below.pods_with_leader // unit * unit
    )
    # The leader goes to the child where it costs least; a child where it does not fit costs most.
    without = (below.leader_fits - 1) & UNREACHABLE
    least = _reduce(np.minimum, child_pods - child_pods_with_leader + without, starts)
    leader_fits = (least < UNREACHABLE).astype(np.int64)
    pods_with_leader = (pods - least) * leader_fits
    if level == request.slice_level:
        slices_with_leader = (
            pods_with_leader if request.size == 1 else pods_with_leader // request.size
        )
    elif same_array and below.slices_with_leader is below.pods_with_leader:
        slices_with_leader = pods_with_leader
    elif not above_slices:
        slices_with_leader = slices
    else:
        least = _reduce(np.minimum, below.slices - below.slices_with_leader + without, starts)
        slices_with_leader = (slices - least) * leader_fits
    return LevelCounts(pods, slices, pods_with_leader, slices_with_leader, leader_fits, score)


def _reduce(function: np.ufunc, values: IntVector, starts: IntVector) -> IntVector:
    """`function.reduceat`, also without any domain."""
    reduced: IntVector = function.reduceat(values, starts) if len(starts) else _NO_LEAVES.copy()
    return reduced


# The count cache.


def count_domains(request: PlacementRequest, free: FreeCapacity, shape: GroupShape) -> DomainCounts:
    """Count all domains; cached counts of the same shape are updated and reused.

    The result is shared: it changes when the capacity is charged and counted again.
    """
    tree = free.capacity.tree
    assumed = _NO_LEAVES
    if free.assumed:
        assumed = np.unique(np.concatenate([one.leaves for one in free.assumed]))
    if (
        free.simulate_empty
        or shape.outside_leaf_range is not None
        or not _is_recount_cheaper(tree, len(assumed))
    ):
        return DomainCounts(tree, request, count_leaves(request, free, shape))
    cache: CapacityCache[DomainCounts] = free.capacity.cache
    key = _key(request, shape)
    kept = cache.pop(key)
    if kept is not None and _is_recount_cheaper(tree, len(kept[1])):
        counts = kept[0].for_request(request)
        _recount(counts, kept[1], free.without_assumed(), shape)
    else:
        leaves = count_leaves(request, free.without_assumed(), shape)
        counts = DomainCounts(tree, request, leaves)
    cache.put(key, counts)
    if not len(assumed):
        return counts
    counts = counts.copy()
    _recount(counts, assumed, free, shape)
    return counts


def _key(request: PlacementRequest, shape: GroupShape) -> Hashable:
    """Everything that the counts depend on, except for the capacity."""
    leader = None if shape.leader is None else tuple(shape.leader.items())
    worker = tuple(shape.worker.items())
    return worker, leader, shape.eligibility, request.size, request.slice_level, request.units


def _is_recount_cheaper(tree: TopologyTree, leaves: int) -> bool:
    """Whether to count some leaves again, instead of all; never in a small tree."""
    return MIN_LEAVES + COST_PER_LEAF * leaves < tree.leaf_count


def _recount(
    counts: DomainCounts, leaves: IntVector, free: FreeCapacity, shape: GroupShape
) -> None:
    """Count some leaves (ascending) again, and the domains above that are summed up already."""
    if not len(leaves):
        return
    ids, some = leaves, count_leaves(counts.request, free, shape, leaves)
    for level in range(len(counts.levels) - 1, -1, -1):
        at = counts.levels[level]
        if at is None:
            return
        if level < len(counts.levels) - 1:
            ids, some = _count_parents(counts, level, ids)
        at.write(ids, some)


def _count_parents(
    counts: DomainCounts, level: int, below: IntVector
) -> tuple[IntVector, LevelCounts]:
    """Domains of a level that contain some of the level below, and their counts."""
    tree, children = counts.tree, counts.level(level + 1)
    ids = np.array(sorted(set(tree.parents[level + 1][below].tolist())), dtype=np.int64)
    offsets = tree.children[level]
    first, sizes = offsets[ids], offsets[ids + 1] - offsets[ids]
    starts = np.cumsum(sizes) - sizes
    picked: IntVector | slice = slice(int(first[0]), int(first[0] + sizes[0]))
    if len(ids) > 1:
        picked = np.arange(sizes.sum()) + np.repeat(first - starts, sizes)
    some = children.map(lambda values: values[picked])
    return ids, sum_children(counts.request, level, some, starts)


# Why leaves count 0.


def exclusion_text(
    free: FreeCapacity,
    worker: Mapping[str, int],
    eligibility: Eligibility,
    outside_leaf_range: BoolVector | None,
) -> str:
    """`. Total nodes: T; excluded: ...`; empty when every leaf takes at least one pod.

    The message is Kueue's (conformance/tas, section 10).
    """
    leaf_count = free.capacity.tree.leaf_count
    excluded: dict[str, int] = {}
    left = np.ones(leaf_count, dtype=np.bool_)
    if eligibility.blocked is not None:
        excluded.update(zip(eligibility.reasons, eligibility.numbers, strict=True))
        left &= ~eligibility.blocked
    if outside_leaf_range is not None:
        excluded["topologyDomain"] = int(np.count_nonzero(left & outside_leaf_range))
        left &= ~outside_leaf_range
    # A leaf counts for the first resource, by name, of which it has too little for one pod.
    for resource in sorted(worker):
        if not worker[resource]:
            continue
        free_amounts = free.free_amounts(resource)
        short = left if free_amounts is None else left & (free_amounts < worker[resource])
        excluded[f'resource "{resource}"'] = int(np.count_nonzero(short))
        left ^= short
    return format_exclusions(leaf_count, excluded)


def format_exclusions(total: int, excluded: Mapping[str, int]) -> str:
    """Numbers by reason; zeros are omitted."""
    parts: Sequence[str] = sorted(f"{reason}: {n}" for reason, n in excluded.items() if n)
    return f". Total nodes: {total}; excluded: {', '.join(parts)}" if parts else ""
