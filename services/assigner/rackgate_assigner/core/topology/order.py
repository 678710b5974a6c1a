"""The moves of a sorted sequence that loses and gains members, in blocks where it can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from rackgate_assigner.core.topology.structure import IntVector

T = TypeVar("T")

# With more blocks than this one gather is faster than copying them one by one.
MANY_BLOCKS = 256


class Order:
    """Where every member of the new sequence was before.

    Attributes:
        old: shape (members,): old position, -1 for what was not there before.
        seams: positions whose predecessor is another one than before, ascending, with 0.
    """

    __slots__ = ("_blocks", "old", "seams")

    def __init__(self, old: IntVector) -> None:
        self.old = old
        broken = np.ones(len(old), dtype=np.bool_)
        broken[1:] = (old[1:] != old[:-1] + 1) | (old[:-1] < 0)
        self.seams: list[int] = broken.nonzero()[0].tolist()
        edges = pairwise([*self.seams, len(old)])
        self._blocks = [(start, end, int(old[start])) for start, end in edges]

    @classmethod
    def after(cls, count: int, gone: Sequence[int], at: Sequence[int]) -> Order:
        """The order after members left and others came.

        Args:
            count: members before.
            gone: old positions that leave, ascending.
            at: old positions before which the new members go, ascending.
        """
        leaving = np.array(gone, dtype=np.int64)
        kept = np.delete(np.arange(count, dtype=np.int64), leaving)
        where = np.array(at, dtype=np.int64)
        return cls(np.insert(kept, where - np.searchsorted(leaving, where), -1))

    def __len__(self) -> int:
        return len(self.old)

    @property
    def fresh(self) -> list[int]:
        """New positions of what was not there before, ascending."""
        places: list[int] = (self.old < 0).nonzero()[0].tolist()
        return places

    def places(self, count: int) -> IntVector:
        """New position of each of the `count` members before; -1 where it left."""
        found = np.full(count, -1, dtype=np.int64)
        stayed = self.old >= 0
        found[self.old[stayed]] = stayed.nonzero()[0]
        return found

    def items(self, items: Sequence[T], fresh: Sequence[T]) -> list[T]:
        """A list in its new order; what was not there before is taken from `fresh`, in turn."""
        found: list[T] = []
        new = iter(fresh)
        for start, end, old in self._blocks:
            if old < 0:
                found.append(next(new))
            else:
                found += items[old : old + end - start]
        return found

    def numbers(self, numbers: IntVector) -> IntVector:
        """An array whose last axis is in its new order; a copy. What is new is 0.

        Args:
            numbers: shape (..., members before).
        """
        if len(self._blocks) > MANY_BLOCKS and numbers.shape[-1]:
            taken: IntVector = numbers.take(self.old, axis=-1)
            taken[..., self.old < 0] = 0
            return taken
        found = np.empty((*numbers.shape[:-1], len(self.old)), dtype=np.int64)
        for start, end, old in self._blocks:
            found[..., start:end] = 0 if old < 0 else numbers[..., old : old + end - start]
        return found
