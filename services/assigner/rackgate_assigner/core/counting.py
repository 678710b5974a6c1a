"""Phase 1: how many pods and podset slices fit into every domain (conformance text, section 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rackgate_assigner.core.asking import Question
from rackgate_assigner.core.capacity import CHARGE_LIMIT, Capacity
from rackgate_assigner.core.tree import IntVector, TopologyTree

# What a requested 0 allows.
NO_LIMIT = 2**31 - 1
_FAR = 2**62


@dataclass(frozen=True, slots=True)
class Assumed:
    """Pods placed earlier in the same walk: taken from the room of later PodSets.

    Attributes:
        leaves: distinct leaf ids.
        counts: pods per leaf.
        amounts: of one pod, with its 1 of `pods`.
    """

    leaves: IntVector
    counts: IntVector
    amounts: Mapping[str, int]


class Room:
    """Free room of one walk: the capacity less what was assumed so far. Never writes to it."""

    __slots__ = ("assumed", "capacity", "simulate_empty")

    def __init__(self, capacity: Capacity, *, simulate_empty: bool) -> None:
        self.capacity = capacity
        self.simulate_empty = simulate_empty
        self.assumed: list[Assumed] = []

    def assume(self, leaves: Sequence[int], counts: Sequence[int], amounts: dict[str, int]) -> None:
        """Take pods on distinct leaves; `amounts` are of one pod with its 1 of `pods`."""
        if leaves:
            self.assumed.append(
                Assumed(
                    np.array(leaves, dtype=np.int64),
                    np.array([min(count, CHARGE_LIMIT) for count in counts], dtype=np.int64),
                    amounts,
                )
            )

    def of(self, resource: str) -> IntVector | None:
        """Free amount of a resource over all leaves, not to be written to; None: no such one."""
        row = self.capacity.rows.get(resource)
        if row is None:
            return None
        free = self.capacity.free_row(row, simulate_empty=self.simulate_empty)
        if self.assumed and any(assumed.amounts.get(resource) for assumed in self.assumed):
            free = free if self.simulate_empty else free.copy()
            for assumed in self.assumed:
                amount = assumed.amounts.get(resource, 0)
                if amount:
                    counts = np.minimum(assumed.counts, CHARGE_LIMIT // amount)
                    free[assumed.leaves] -= counts * amount
        return free


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
    amounts: Mapping[str, int],
    room: Room,
    *,
    less: tuple[Mapping[str, int], IntVector] | None = None,
) -> IntVector:
    """Pods of one shape that every leaf can still take.

    Args:
        amounts: of one pod, with its 1 of `pods`.
        room: free amounts.
        less: amounts taken beforehand, times 0 or 1 per leaf (the leader where it fits).

    Returns:
        Shape (leaves,), never negative.
    """
    leaf_count = room.capacity.tree.leaf_count
    best: IntVector | None = None
    for resource, amount in amounts.items():
        free = room.of(resource)
        if less is not None and free is not None and less[0].get(resource):
            free = free - less[1] * less[0][resource]
        fits = pods_that_fit(amount, free, leaf_count)
        best = fits if best is None else np.minimum(best, fits)
    return np.maximum(best, 0) if best is not None else np.zeros(leaf_count, dtype=np.int64)


@dataclass(slots=True)
class LevelCounts:
    """The numbers of all domains of one level, each of shape (domains,).

    Attributes:
        pods: workers that fit.
        slices: podset slices that fit; 0 below the slice level.
        pods_led: as `pods`, if the leader also sits in this domain. The same array without leader.
        slices_led: as `slices`, likewise.
        lead: 1 where the leader fits; None without a leader.
        score: soft preference; None when it does not count.
    """

    pods: IntVector
    slices: IntVector
    pods_led: IntVector
    slices_led: IntVector
    lead: IntVector | None = None
    score: IntVector | None = None


class Counts:
    """Phase 1 of one question, summed up level by level on demand."""

    __slots__ = ("_levels", "led", "question", "tree")

    def __init__(self, tree: TopologyTree, question: Question, leaves: LevelCounts) -> None:
        self.tree = tree
        self.question = question
        self.led = leaves.lead is not None
        self._levels: list[LevelCounts | None] = [None] * len(tree.levels)
        self._levels[-1] = leaves

    def level(self, index: int) -> LevelCounts:
        """Numbers of the domains of one level."""
        counts = self._levels[index]
        if counts is None:
            counts = sum_up(self.tree, self.question, index, self.level(index + 1))
            self._levels[index] = counts
        return counts

    def put(self, index: int, counts: LevelCounts) -> None:
        """Set the numbers of one level, instead of summing them up."""
        self._levels[index] = counts


def count_leaves(
    question: Question,
    room: Room,
    worker: Mapping[str, int],
    leader: Mapping[str, int] | None,
    *,
    blocked: npt.NDArray[np.bool_] | None,
    score: IntVector | None,
) -> LevelCounts:
    """Numbers of the leaves.

    Args:
        question: what is asked.
        room: free amounts.
        worker: amounts of one worker, with its 1 of `pods`.
        leader: the same of the leader, or None.
        blocked: leaves that take nothing, or None.
        score: soft preference per leaf, or None.
    """
    pods = fit(worker, room)
    if blocked is not None:
        pods[blocked] = 0
    if leader is None:
        slices = _leaf_slices(question, pods)
        return LevelCounts(pods, slices, pods, slices, None, score)
    lead = (fit(leader, room) > 0).astype(np.int64)
    if blocked is not None:
        lead[blocked] = 0
    pods_led = fit(worker, room, less=(leader, lead))
    if blocked is not None:
        pods_led[blocked] = 0
    return LevelCounts(
        pods,
        _leaf_slices(question, pods),
        pods_led,
        _leaf_slices(question, pods_led),
        lead,
        score,
    )


def sum_up(
    tree: TopologyTree, question: Question, level: int, below: LevelCounts, *, plain: bool = False
) -> LevelCounts:
    """Numbers of a level from those of the level below.

    Args:
        tree: the domains.
        question: slice level, size and units.
        level: level to fill.
        below: numbers of the next level.
        plain: ignore the units of inner layers.
    """
    starts = tree.children[level][:-1]
    unit = 1 if plain else question.units[level + 1]
    child_pods = below.pods if unit == 1 else below.pods // unit * unit
    pods = _sums(child_pods, starts)
    score = None if below.score is None else _sums(below.score, starts)
    above_slices = level < question.slice_level
    one_kind = below.slices is below.pods and above_slices and unit == 1
    if level == question.slice_level:
        slices = pods if question.size == 1 else pods // question.size
    elif one_kind:
        slices = pods
    else:
        slices = _sums(below.slices, starts)
    if below.lead is None:
        return LevelCounts(pods, slices, pods, slices, None, score)
    child_led = below.pods_led if unit == 1 else below.pods_led // unit * unit
    hosts = below.lead == 1
    lead = np.maximum.reduceat(below.lead, starts) if len(starts) else below.lead
    pods_led = _less_leader(pods, child_pods - child_led, hosts, lead, starts)
    if level == question.slice_level:
        slices_led = pods_led // question.size
    else:
        loss = below.slices - below.slices_led
        slices_led = _less_leader(slices, loss, hosts, lead, starts)
    return LevelCounts(pods, slices, pods_led, slices_led, lead, score)


def _leaf_slices(question: Question, pods: IntVector) -> IntVector:
    if question.slice_level != len(question.units) - 1:
        return np.zeros_like(pods)
    return pods if question.size == 1 else pods // question.size


def _sums(values: IntVector, starts: IntVector) -> IntVector:
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    sums: IntVector = np.add.reduceat(values, starts)
    return sums


def _less_leader(
    total: IntVector,
    loss: IntVector,
    hosts: npt.NDArray[np.bool_],
    lead: IntVector,
    starts: IntVector,
) -> IntVector:
    """Totals less the smallest loss among the children that can host the leader; 0 without one."""
    if not len(starts):
        return total
    least = np.minimum.reduceat(np.where(hosts, loss, _FAR), starts)
    return np.where(lead == 1, total - least, 0)
