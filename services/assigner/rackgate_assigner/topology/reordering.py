"""How a sorted sequence moves when members are removed and inserted, in whole blocks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

# With more blocks than this one gather is faster than copying them one by one.
MANY_BLOCKS = 256
# With more steps than this, a table of all positions is faster than one pass for each step.
FEW_STEPS = 3


class Reordering:
    """Old and new positions of the members.

    Complexity: `reorder_array`, `reorder_items` and `map_indices` are O(members), everything else
    is O(removed + inserted).

    Attributes:
        count: members before.
        removed: old positions, ascending.
        insertions: old positions before which a new member is inserted, ascending.
        inserted: new positions of the new members, ascending; one for each of `insertions`.
    """

    __slots__ = ("_blocks", "_length", "count", "inserted", "insertions", "removed")

    def __init__(self, count: int, removed: Sequence[int], insertions: Sequence[int]) -> None:
        self.count, self.removed, self.insertions = count, removed, insertions
        self.inserted: list[int] = []
        # Members that stay together: new position, number, old position.
        self._blocks: list[tuple[int, int, int]] = []
        old = new = 0
        # A new member is before the old position, whether or not that member is removed.
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
        """New position of a member, or None if it is removed."""
        index = bisect_right(self._blocks, old, key=lambda block: block[2]) - 1
        if index < 0:
            return None
        new, length, start = self._blocks[index]
        return new + old - start if old < start + length else None

    def old_index(self, new: int) -> int | None:
        """Old position of a member, or None if it is new."""
        index = bisect_right(self._blocks, new, key=lambda block: block[0]) - 1
        if index < 0:
            return None
        start, length, old = self._blocks[index]
        return old + new - start if new < start + length else None

    def compose(self, after: Reordering) -> Reordering:
        """This reordering, and then the next one, as one."""
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
        """The old position before which a member at this new position was inserted."""
        if new == len(self):
            return self.count
        old = self.old_index(new)
        return self.insertions[bisect_left(self.inserted, new)] if old is None else old

    def reorder_items(self, items: Sequence[T], inserted: Sequence[T]) -> list[T]:
        """A list in its new order, with the new members from `inserted`."""
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
        """A copy of an array with its last axis in the new order; 0 for new members.

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
        """Old positions as new ones; -1 stays, and removed positions become undefined."""
        if len(self.removed) + len(self.insertions) > FEW_STEPS:
            table = np.full(self.count + 1, -1, dtype=np.int64)
            for new, length, old in self._blocks:
                table[old : old + length] = np.arange(new, new + length)
            moved: npt.NDArray[np.int64] = table.take(places)  # the last one is for -1
            return moved
        found = places.copy()
        for place in self.insertions:
            found += places >= place
        for place in self.removed:
            found -= places > place
        return found
