"""Phase 1: how many pods and podset slices fit into every domain (conformance text, section 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rackgate_assigner.topology.capacity import CHARGE_LIMIT, Capacity
from rackgate_assigner.topology.placement.request import PlacementRequest
from rackgate_assigner.topology.tree import IntVector, TopologyTree

# What a requested 0 allows.
NO_LIMIT = 2**31 - 1
_UNREACHABLE = 2**62


@dataclass(frozen=True, slots=True)
class AssumedUsage:
    """Pods placed earlier in the same walk: taken from the room of later PodSets.

    Attributes:
        leaves: distinct leaf ids.
        counts: pods per leaf.
        amounts: of one pod, with its 1 of `pods`.
    """

    leaves: IntVector
    counts: IntVector
    amounts: Mapping[str, int]


class FreeCapacity:
    """Free room of one walk: the capacity less what was assumed so far. Never writes to it."""

    __slots__ = ("assumed", "capacity", "simulate_empty")

    def __init__(self, capacity: Capacity, *, simulate_empty: bool) -> None:
        self.capacity = capacity
        self.simulate_empty = simulate_empty
        self.assumed: list[AssumedUsage] = []

    def without_assumed(self) -> FreeCapacity:
        """What is free by the capacity alone."""
        return (
            FreeCapacity(self.capacity, simulate_empty=self.simulate_empty)
            if self.assumed
            else self
        )

    def assume(self, leaves: Sequence[int], counts: Sequence[int], amounts: dict[str, int]) -> None:
        """Take pods on distinct leaves; `amounts` are of one pod with its 1 of `pods`."""
        if leaves:
            self.assumed.append(
                AssumedUsage(
                    np.array(leaves, dtype=np.int64),
                    np.array([min(count, CHARGE_LIMIT) for count in counts], dtype=np.int64),
                    amounts,
                )
            )

    def free_amounts(self, resource: str, at: IntVector | None = None) -> IntVector | None:
        """Free amount of a resource, not to be written to; None: no such one.

        Args:
            resource: name.
            at: ids of the leaves that are asked about, ascending; None: all.
        """
        row = self.capacity.rows.get(resource)
        if row is None:
            return None
        free = self.capacity.free_row(row, simulate_empty=self.simulate_empty)
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
                places, found = _places(one.leaves, at)
                free[places] -= taken[found]
        return free


def _places(leaves: IntVector, among: IntVector) -> tuple[IntVector, npt.NDArray[np.bool_]]:
    """Positions in `among` (ascending) of those `leaves` that are there, and which these are."""
    places = among.searchsorted(leaves)
    found = places < len(among)
    found[found] = among[places[found]] == leaves[found]
    return places[found], found


def pods_that_fit(amount: int, free: IntVector | None, leaf_count: int) -> IntVector:
    """Whole pods by one resource over all leaves; may be negative where over-committed."""
    if amount == 0:
        return np.full(leaf_count, NO_LIMIT, dtype=np.int64)
    if free is None:
        return np.zeros(leaf_count, dtype=np.int64)
    if amount == 1:
        return free
    fits: IntVector = free // amount
    return fits


def fit(
    amounts: Mapping[str, int], room: FreeCapacity, *, at: IntVector | None = None
) -> IntVector:
    """Pods of one shape that leaves can still take.

    Args:
        amounts: of one pod, with its 1 of `pods`.
        room: free amounts.
        at: ids of the leaves that are asked about; None: all.

    Returns:
        Shape (leaves asked about,), never negative, the caller's own.
    """
    leaf_count = room.capacity.tree.leaf_count if at is None else len(at)
    best: IntVector | None = None
    for resource, amount in amounts.items():
        free = room.free_amounts(resource, at)
        fits = pods_that_fit(amount, free, leaf_count)
        if best is None:
            best = fits.copy() if fits is free else fits
        else:
            np.minimum(best, fits, out=best)
    return np.maximum(best, 0, out=best) if best is not None else np.zeros(leaf_count, np.int64)


def any_pod_fits(
    amounts: Mapping[str, int], room: FreeCapacity, *, at: IntVector | None = None
) -> npt.NDArray[np.bool_]:
    """Where at least one pod of a shape fits; as `fit(...) > 0`, without dividing."""
    fits = np.ones(room.capacity.tree.leaf_count if at is None else len(at), dtype=np.bool_)
    for resource, amount in amounts.items():
        if amount:
            free = room.free_amounts(resource, at)
            fits &= False if free is None else free >= amount
    return fits


def _fit_with_leader(
    leader: Mapping[str, int],
    worker: Mapping[str, int],
    pods: IntVector,
    leader_fits: IntVector,
    room: FreeCapacity,
    *,
    at: IntVector | None,
) -> IntVector:
    """Workers that fit where the leader sits as well; `pods` where it does not fit.

    Only what the leader takes can leave less room than `pods` says, and only where the workers
    spare too little of it: mostly few leaves, or none.
    """
    best = pods.copy()
    for resource, amount in worker.items():
        taken = leader.get(resource, 0)
        free = room.free_amounts(resource, at) if taken and amount else None
        if free is None:
            continue
        short = free - pods * amount < taken
        number = np.count_nonzero(short)
        if number * 8 > len(short):
            np.minimum(best, np.maximum(free - leader_fits * taken, 0) // amount, out=best)
        elif number:
            few = short.nonzero()[0]
            left = np.maximum(free[few] - leader_fits[few] * taken, 0)
            best[few] = np.minimum(best[few], left // amount)
    return best


@dataclass(slots=True)
class LevelCounts:
    """The numbers of all domains of one level, each of shape (domains,).

    Attributes:
        pods: workers that fit.
        slices: podset slices that fit; 0 below the slice level.
        pods_with_leader: as `pods`, if the leader also sits in this domain. The same array without
            leader.
        slices_with_leader: as `slices`, likewise.
        leader_fits: 1 where the leader fits; None without a leader.
        score: soft preference; None when it does not count.
    """

    pods: IntVector
    slices: IntVector
    pods_with_leader: IntVector
    slices_with_leader: IntVector
    leader_fits: IntVector | None = None
    score: IntVector | None = None

    def map(self, change: Callable[[IntVector], IntVector]) -> LevelCounts:
        """Every vector mapped, for example picked from or copied; what is one stays one."""
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

    def write(self, ids: IntVector, numbers: LevelCounts) -> None:
        """Put the numbers of some domains in their places; scores stay."""
        self.pods[ids] = numbers.pods
        if self.slices is not self.pods:
            self.slices[ids] = numbers.slices
        if self.pods_with_leader is not self.pods:
            self.pods_with_leader[ids] = numbers.pods_with_leader
        if (
            self.slices_with_leader is not self.slices
            and self.slices_with_leader is not self.pods_with_leader
        ):
            self.slices_with_leader[ids] = numbers.slices_with_leader
        if self.leader_fits is not None and numbers.leader_fits is not None:
            self.leader_fits[ids] = numbers.leader_fits


class DomainCounts:
    """Phase 1 of one request, summed up level by level on demand.

    Attributes:
        has_leader: whether a leader is placed as well.
        levels: per level the numbers, None where they are not summed up yet.
    """

    __slots__ = ("has_leader", "levels", "request", "tree")

    def __init__(
        self,
        tree: TopologyTree,
        request: PlacementRequest,
        leaves: LevelCounts,
        levels: list[LevelCounts | None] | None = None,
    ) -> None:
        """Start from the leaves.

        Args:
            tree: the domains.
            request: slice level, size and units.
            leaves: numbers of the lowest level.
            levels: per level what is summed up already; what is summed up later is put there.
        """
        self.tree = tree
        self.request = request
        self.has_leader = leaves.leader_fits is not None
        self.levels = [*[None] * (len(tree.levels) - 1), leaves] if levels is None else levels

    def level(self, index: int) -> LevelCounts:
        """Numbers of the domains of one level."""
        counts = self.levels[index]
        if counts is None:
            counts = sum_up(self.tree, self.request, index, self.level(index + 1))
            self.levels[index] = counts
        return counts

    def for_request(self, request: PlacementRequest) -> DomainCounts:
        """The same numbers, shared, for a request that differs in nothing they depend on."""
        return DomainCounts(self.tree, request, self.level(-1), self.levels)

    def copy(self) -> DomainCounts:
        """The same numbers, to be written to."""
        own = [one and one.map(np.copy) for one in self.levels]
        return DomainCounts(self.tree, self.request, self.level(-1), own)

    def put(self, index: int, counts: LevelCounts) -> None:
        """Set the numbers of one level, instead of summing them up."""
        self.levels[index] = counts


def count_leaves(
    request: PlacementRequest,
    room: FreeCapacity,
    worker: Mapping[str, int],
    leader: Mapping[str, int] | None,
    *,
    blocked: npt.NDArray[np.bool_] | None,
    score: IntVector | None,
    at: IntVector | None = None,
) -> LevelCounts:
    """Numbers of the leaves.

    Args:
        request: what is asked.
        room: free amounts.
        worker: amounts of one worker, with its 1 of `pods`.
        leader: the same of the leader, or None.
        blocked: leaves that take nothing, or None.
        score: soft preference per leaf, or None.
        at: ids of the leaves to count; None: all.
    """
    if at is not None:
        blocked = None if blocked is None else blocked[at]
        score = None if score is None else score[at]
    pods = fit(worker, room, at=at)
    if blocked is not None:
        pods *= ~blocked  # a product takes a tenth of the time of writing zeros under a mask
    if leader is None:
        slices = _leaf_slices(request, pods)
        return LevelCounts(pods, slices, pods, slices, None, score)
    fits_leader = any_pod_fits(leader, room, at=at)
    if blocked is not None:
        fits_leader &= ~blocked
    leader_fits = fits_leader.astype(np.int64)
    pods_with_leader = _fit_with_leader(leader, worker, pods, leader_fits, room, at=at)
    return LevelCounts(
        pods,
        _leaf_slices(request, pods),
        pods_with_leader,
        _leaf_slices(request, pods_with_leader),
        leader_fits,
        score,
    )


def sum_up(
    tree: TopologyTree,
    request: PlacementRequest,
    level: int,
    below: LevelCounts,
    *,
    ignore_units: bool = False,
) -> LevelCounts:
    """Numbers of a level from those of the level below.

    Args:
        tree: the domains.
        request: slice level, size and units.
        level: level to fill.
        below: numbers of the next level.
        ignore_units: ignore the units of inner layers.
    """
    return sum_children(request, level, below, tree.children[level][:-1], ignore_units=ignore_units)


def sum_children(
    request: PlacementRequest,
    level: int,
    below: LevelCounts,
    starts: IntVector,
    *,
    ignore_units: bool = False,
) -> LevelCounts:
    """Numbers of some domains of a level from those of their children.

    Args:
        request: slice level, size and units.
        level: of the domains.
        below: numbers of all children, domain by domain.
        starts: where each domain's children begin in `below`.
        ignore_units: ignore the units of inner layers.
    """
    unit = 1 if ignore_units else request.units[level + 1]
    child_pods = below.pods if unit == 1 else below.pods // unit * unit
    pods = _sums(child_pods, starts)
    score = None if below.score is None else _sums(below.score, starts)
    above_slices = level < request.slice_level
    same_array = below.slices is below.pods and above_slices and unit == 1
    if level == request.slice_level:
        slices = pods if request.size == 1 else pods // request.size
    elif same_array:
        slices = pods
    elif above_slices:
        slices = _sums(below.slices, starts)
    else:
        slices = np.zeros(len(starts), dtype=np.int64)
    if below.leader_fits is None:
        return LevelCounts(pods, slices, pods, slices, None, score)
    child_pods_with_leader = (
        below.pods_with_leader if unit == 1 else below.pods_with_leader // unit * unit
    )
    without = (below.leader_fits - 1) & _UNREACHABLE  # far away where the leader does not fit
    least = _minimums(child_pods - child_pods_with_leader + without, starts)
    leader_fits = (least < _UNREACHABLE).astype(np.int64)
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
        least = _minimums(below.slices - below.slices_with_leader + without, starts)
        slices_with_leader = (slices - least) * leader_fits
    return LevelCounts(pods, slices, pods_with_leader, slices_with_leader, leader_fits, score)


def _leaf_slices(request: PlacementRequest, pods: IntVector) -> IntVector:
    if request.slice_level != len(request.units) - 1:
        return np.zeros_like(pods)
    return pods if request.size == 1 else pods // request.size


def _sums(values: IntVector, starts: IntVector) -> IntVector:
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    sums: IntVector = np.add.reduceat(values, starts)
    return sums


def _minimums(values: IntVector, starts: IntVector) -> IntVector:
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    least: IntVector = np.minimum.reduceat(values, starts)
    return least
