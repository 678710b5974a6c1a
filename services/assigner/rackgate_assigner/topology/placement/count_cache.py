"""Phase 1 without counting everything anew: many Workloads of a cycle ask with one shape.

Between two of them only the leaves of one placement change. Their numbers and those of the
domains above are counted again by the very functions that count all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rackgate_assigner.topology.capacity_cache import CapacityCache
from rackgate_assigner.topology.placement.count import (
    DomainCounts,
    FreeCapacity,
    LevelCounts,
    count_leaves,
    sum_children,
)
from rackgate_assigner.topology.placement.node_matching import Eligibility
from rackgate_assigner.topology.placement.request import PlacementRequest
from rackgate_assigner.topology.tree import IntVector, TopologyTree

# Counting some leaves takes as long as counting this many at least, and then 8 for each.
# Nothing is kept for smaller trees.
MIN_LEAVES: Final = 6_000
COST_PER_LEAF: Final = 8
_NO_LEAVES: Final[IntVector] = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class GroupShape:
    """What is counted over the leaves.

    Attributes:
        worker: amounts of one worker, with its 1 of `pods`.
        leader: the same of the leader, or None.
        eligibility: which leaves are blocked, and the soft preference.
        outside_leaf_range: shape (leaves,), leaves blocked as well; None: none. Nothing is kept
            with a leaf_range.
    """

    worker: Mapping[str, int]
    leader: Mapping[str, int] | None
    eligibility: Eligibility
    outside_leaf_range: npt.NDArray[np.bool_] | None = None

    def blocked(self) -> npt.NDArray[np.bool_] | None:
        """Leaves that take nothing, or None."""
        if self.outside_leaf_range is None or self.eligibility.blocked is None:
            return (
                self.eligibility.blocked
                if self.outside_leaf_range is None
                else self.outside_leaf_range
            )
        blocked: npt.NDArray[np.bool_] = self.eligibility.blocked | self.outside_leaf_range
        return blocked

    def score(self) -> IntVector | None:
        """Soft preference per leaf, 0 where blocked, or None."""
        if self.eligibility.scores is None or self.outside_leaf_range is None:
            return self.eligibility.scores
        return np.where(self.outside_leaf_range, 0, self.eligibility.scores)


def count_domains(
    tree: TopologyTree, request: PlacementRequest, room: FreeCapacity, shape: GroupShape
) -> DomainCounts:
    """Phase 1 of a request; what is kept with the capacity is brought up to date and used.

    The numbers are lent: they change when the capacity is charged and asked again.
    """
    assumed = _assumed_leaves(room)
    if (
        room.simulate_empty
        or shape.outside_leaf_range is not None
        or not _is_recount_cheaper(tree, len(assumed))
    ):
        return _count_all(tree, request, room, shape)
    cache: CapacityCache[DomainCounts] = room.capacity.cache
    key = _key(request, shape)
    found = cache.pop(key)
    if found is not None and _is_recount_cheaper(tree, len(found[1])):
        counts = found[0].for_request(request)
        _recount(counts, found[1], room.without_assumed(), shape)
    else:
        counts = _count_all(tree, request, room.without_assumed(), shape)
    cache.put(key, counts)
    if not len(assumed):
        return counts
    counts = counts.copy()
    _recount(counts, assumed, room, shape)
    return counts


def _key(request: PlacementRequest, shape: GroupShape) -> Hashable:
    """All that the numbers depend on, but for the capacity."""
    leader = None if shape.leader is None else tuple(shape.leader.items())
    worker = tuple(shape.worker.items())
    return worker, leader, shape.eligibility, request.size, request.slice_level, request.units


def _assumed_leaves(room: FreeCapacity) -> IntVector:
    if not room.assumed:
        return _NO_LEAVES
    return np.unique(np.concatenate([one.leaves for one in room.assumed]))


def _is_recount_cheaper(tree: TopologyTree, leaves: int) -> bool:
    """Whether to count some leaves again, rather than all; never in a small tree."""
    return MIN_LEAVES + COST_PER_LEAF * leaves < tree.leaf_count


def _count_all(
    tree: TopologyTree, request: PlacementRequest, room: FreeCapacity, shape: GroupShape
) -> DomainCounts:
    return DomainCounts(tree, request, _count_leaves(request, room, shape, None))


def _count_leaves(
    request: PlacementRequest, room: FreeCapacity, shape: GroupShape, at: IntVector | None
) -> LevelCounts:
    return count_leaves(
        request,
        room,
        shape.worker,
        shape.leader,
        blocked=shape.blocked(),
        score=shape.score(),
        at=at,
    )


def _recount(
    counts: DomainCounts, leaves: IntVector, room: FreeCapacity, shape: GroupShape
) -> None:
    """Count some leaves (ascending) again, and the domains above as far as they were counted."""
    if not len(leaves):
        return
    ids, numbers = leaves, _count_leaves(counts.request, room, shape, leaves)
    for level in range(len(counts.levels) - 1, -1, -1):
        at = counts.levels[level]
        if at is None:
            return
        if level < len(counts.levels) - 1:
            ids, numbers = _count_parents(counts, level, ids)
        at.write(ids, numbers)


def _count_parents(
    counts: DomainCounts, level: int, below: IntVector
) -> tuple[IntVector, LevelCounts]:
    """Domains of a level that hold some of the level below, and their numbers."""
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
