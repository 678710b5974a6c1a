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

from rackgate_assigner.topology.kept import Kept
from rackgate_assigner.topology.placement.count import (
    Counts,
    LevelCounts,
    Room,
    count_leaves,
    sum_children,
)
from rackgate_assigner.topology.placement.node_matching import Eligibility
from rackgate_assigner.topology.placement.request import Question
from rackgate_assigner.topology.tree import IntVector, TopologyTree

# Counting some leaves takes as long as counting this many at least, and then 8 for each.
# Nothing is kept for smaller trees.
LEAST_LEAVES: Final = 6_000
PER_LEAF: Final = 8
_NO_LEAVES: Final[IntVector] = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is counted over the leaves.

    Attributes:
        worker: amounts of one worker, with its 1 of `pods`.
        leader: the same of the leader, or None.
        judged: which leaves are blocked, and the soft preference.
        fenced: shape (leaves,), leaves blocked besides; None: none. Nothing is kept with a
            leaf_range.
    """

    worker: Mapping[str, int]
    leader: Mapping[str, int] | None
    judged: Eligibility
    fenced: npt.NDArray[np.bool_] | None = None

    def blocked(self) -> npt.NDArray[np.bool_] | None:
        """Leaves that take nothing, or None."""
        if self.fenced is None or self.judged.blocked is None:
            return self.judged.blocked if self.fenced is None else self.fenced
        joined: npt.NDArray[np.bool_] = self.judged.blocked | self.fenced
        return joined

    def score(self) -> IntVector | None:
        """Soft preference per leaf, 0 where blocked, or None."""
        if self.judged.scores is None or self.fenced is None:
            return self.judged.scores
        return np.where(self.fenced, 0, self.judged.scores)


def count_domains(tree: TopologyTree, question: Question, room: Room, shape: Shape) -> Counts:
    """Phase 1 of a question; what is kept with the capacity is brought up to date and used.

    The numbers are lent: they change when the capacity is charged and asked again.
    """
    assumed = _leaves_assumed(room)
    if room.simulate_empty or shape.fenced is not None or not _worthwhile(tree, len(assumed)):
        return _count_all(tree, question, room, shape)
    kept: Kept[Counts] = room.capacity.kept
    key = _key(question, shape)
    found = kept.take(key)
    if found is not None and _worthwhile(tree, len(found[1])):
        counts = found[0].asked(question)
        _recount(counts, found[1], room.unassumed(), shape)
    else:
        counts = _count_all(tree, question, room.unassumed(), shape)
    kept.put(key, counts)
    if not len(assumed):
        return counts
    counts = counts.copied()
    _recount(counts, assumed, room, shape)
    return counts


def _key(question: Question, shape: Shape) -> Hashable:
    """All that the numbers depend on, but for the capacity."""
    leader = None if shape.leader is None else tuple(shape.leader.items())
    worker = tuple(shape.worker.items())
    return worker, leader, shape.judged, question.size, question.slice_level, question.units


def _leaves_assumed(room: Room) -> IntVector:
    if not room.assumed:
        return _NO_LEAVES
    return np.unique(np.concatenate([one.leaves for one in room.assumed]))


def _worthwhile(tree: TopologyTree, leaves: int) -> bool:
    """Whether to count some leaves again, rather than all; never in a small tree."""
    return LEAST_LEAVES + PER_LEAF * leaves < tree.leaf_count


def _count_all(tree: TopologyTree, question: Question, room: Room, shape: Shape) -> Counts:
    return Counts(tree, question, _count_leaves(question, room, shape, None))


def _count_leaves(
    question: Question, room: Room, shape: Shape, at: IntVector | None
) -> LevelCounts:
    return count_leaves(
        question,
        room,
        shape.worker,
        shape.leader,
        blocked=shape.blocked(),
        score=shape.score(),
        at=at,
    )


def _recount(counts: Counts, leaves: IntVector, room: Room, shape: Shape) -> None:
    """Count some leaves (ascending) again, and the domains above as far as they were counted."""
    if not len(leaves):
        return
    ids, numbers = leaves, _count_leaves(counts.question, room, shape, leaves)
    for level in range(len(counts.levels) - 1, -1, -1):
        at = counts.levels[level]
        if at is None:
            return
        if level < len(counts.levels) - 1:
            ids, numbers = _above(counts, level, ids)
        at.write(ids, numbers)


def _above(counts: Counts, level: int, below: IntVector) -> tuple[IntVector, LevelCounts]:
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
    return ids, sum_children(counts.question, level, some, starts)
