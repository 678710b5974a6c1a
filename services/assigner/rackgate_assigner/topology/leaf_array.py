"""Numbers over leaves that move: what happened to the leaves is taken in when somebody reads.

Copying all numbers for one node that came would take longer than all the rest. Moves and changed
columns are noted instead, many of them as one, and a reader finds them done.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rackgate_assigner.topology.reordering import Reordering

# So many leaves may have come, gone or changed before the numbers are copied unasked.
PENDING_LIMIT: Final = 32

Numbers = npt.NDArray[np.int64]


class LeafArray:
    """Numbers of shape (..., leaves). Reading settles what is noted, which changes no number.

    Attributes:
        has_pending: something is; what `array` gives after that, no other block has.
    """

    __slots__ = ("_columns", "_numbers", "_reordering", "has_pending")

    def __init__(self, numbers: Numbers, order: Reordering | None = None) -> None:
        """Prepare.

        Args:
            numbers: over the leaves as they were; not copied.
            order: what happened to the leaves since; None: nothing.
        """
        self._numbers, self._reordering = numbers, order
        self._columns: dict[int, Numbers] = {}
        self.has_pending = order is not None

    def array(self) -> Numbers:
        """The numbers over the leaves as they are now: not a copy."""
        if self.has_pending:
            numbers = self._numbers
            numbers = (
                numbers.copy()
                if self._reordering is None
                else self._reordering.reorder_array(numbers)
            )
            for leaf, column in self._columns.items():
                numbers[..., leaf] = column
            self._numbers, self._reordering, self._columns = numbers, None, {}
            self.has_pending = False
        return self._numbers

    def column(self, leaf: int) -> Numbers:
        """The numbers of one leaf, not to be written to."""
        if leaf in self._columns:
            return self._columns[leaf]
        at = leaf if self._reordering is None else self._reordering.old_index(leaf)
        if at is None:
            return np.zeros(self._numbers.shape[:-1], dtype=np.int64)
        found: Numbers = self._numbers[..., at]
        return found

    def reorder(self, order: Reordering) -> LeafArray:
        """The same numbers over the leaves in their new order; what is new is 0. This one stays."""
        if not self.has_pending:
            return LeafArray(self._numbers, order)
        whole = order if self._reordering is None else self._reordering.compose(order)
        places = {leaf: order.new_index(leaf) for leaf in self._columns}
        if len(whole.removed) + len(whole.insertions) + len(places) > PENDING_LIMIT:
            return LeafArray(self.array(), order)
        clone = LeafArray(self._numbers, whole)
        clone._columns = {
            place: self._columns[leaf] for leaf, place in places.items() if place is not None
        }
        return clone

    def with_column(self, leaf: int, column: Numbers) -> LeafArray:
        """The same numbers but for one leaf. This one stays."""
        clone = LeafArray(self._numbers, self._reordering)
        clone._columns = {**self._columns, leaf: column}
        clone.has_pending = True
        return clone

    @property
    def is_pending_full(self) -> bool:
        """Whether so much is noted that one write into the numbers is better than one note more."""
        return len(self._columns) >= PENDING_LIMIT
