"""The moves of a sorted sequence that loses and gains members, in blocks where it can be."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

# With more blocks than this one gather is faster than copying them one by one.
MANY_BLOCKS = 256
# So many steps are taken over all numbers, one after another, before a table of them is made.
FEW_STEPS = 3


class Reordering:
    """What happened to the places of a sorted sequence.

    Everything but `reorder_array` and `map_indices` takes time by what came and went, not by how
    many members there are.

    Attributes:
        count: members before.
        removed: old places that are left, ascending.
        insertions: old places before which something new stands, ascending.
        inserted: new places of what was not there before, ascending; one for each of `insertions`.
    """

    __slots__ = ("_blocks", "_length", "count", "inserted", "insertions", "removed")

    def __init__(self, count: int, removed: Sequence[int], insertions: Sequence[int]) -> None:
        self.count, self.removed, self.insertions = count, removed, insertions
        self.inserted: list[int] = []
        # Of members that stay together: new place, how many, old place.
        self._blocks: list[tuple[int, int, int]] = []
        old = new = 0
        # What is new at an old place stands before it, whether or not that one leaves.
        events = sorted(
            [*((place, True) for place in removed), *((place, False) for place in insertions)]
        )
        for place, leaves in events:
            if place > old:
                self._blocks.append((new, place - old, old))
                new, old = new + place - old, place
            if leaves:
                old += 1
            else:
                self.inserted.append(new)
                new += 1
        if count > old:
            self._blocks.append((new, count - old, old))
        self._length = new + count - old

    def __len__(self) -> int:
        return self._length

    def new_index(self, old: int) -> int | None:
        """New place of a member, or None when it is gone."""
        index = bisect_right(self._blocks, old, key=lambda block: block[2]) - 1
        if index < 0:
            return None
        new, length, start = self._blocks[index]
        return new + old - start if old < start + length else None

    def old_index(self, new: int) -> int | None:
        """Old place of a member, or None when it was not there before."""
        index = bisect_right(self._blocks, new, key=lambda block: block[0]) - 1
        if index < 0:
            return None
        start, length, old = self._blocks[index]
        return old + new - start if new < start + length else None

    def compose(self, after: Reordering) -> Reordering:
        """Both as one: this order, and what happened to its members after it."""
        removed, insertions = (
            list(self.removed),
            dict(zip(self.inserted, self.insertions, strict=True)),
        )
        more = [self._old_index_before(place) for place in after.insertions]
        for place in after.removed:
            old = self.old_index(place)
            if old is None:
                del insertions[place]
            else:
                removed.append(old)
        return Reordering(self.count, sorted(removed), sorted([*insertions.values(), *more]))

    def _old_index_before(self, new: int) -> int:
        """An old place before which something new stands when it stands before this new place."""
        if new == len(self):
            return self.count
        old = self.old_index(new)
        return self.insertions[bisect_left(self.inserted, new)] if old is None else old

    def reorder_items(self, items: Sequence[T], inserted: Sequence[T]) -> list[T]:
        """A list in its new order; what was not there before is taken from `inserted`, in turn."""
        found: list[T] = []
        filled = 0
        for new, length, old in self._blocks:
            more = new - len(found)
            found += inserted[filled : filled + more]
            filled += more
            found += items[old : old + length]
        found += inserted[filled:]
        return found

    def reorder_array(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """An array whose last axis is in its new order; a copy. What is new is 0.

        Args:
            numbers: shape (..., members before).
        """
        found = np.empty((*numbers.shape[:-1], self._length), dtype=np.int64)
        if len(self._blocks) > MANY_BLOCKS:
            stayed = np.delete(np.arange(self.count), self.removed)
            places = np.delete(np.arange(self._length), self.inserted)
            found[..., places] = numbers[..., stayed]
        else:
            for new, length, old in self._blocks:
                found[..., new : new + length] = numbers[..., old : old + length]
        found[..., self.inserted] = 0
        return found

    def map_indices(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Old places as new ones, a copy; -1 stays. What a place that is left becomes is open."""
        if len(self.removed) + len(self.insertions) > FEW_STEPS:
            table = np.full(self.count + 1, -1, dtype=np.int64)
            for new, length, old in self._blocks:
                table[old : old + length] = np.arange(new, new + length)
            moved: npt.NDArray[np.int64] = table.take(places)  # the last one stands for -1
            return moved
        found = places.copy()
        for place in self.insertions:
            found += places >= place
        for place in self.removed:
            found -= places > place
        return found
