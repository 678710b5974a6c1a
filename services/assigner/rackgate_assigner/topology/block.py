"""Numbers over leaves that move: what happened to the leaves is taken in when somebody reads.

Copying all numbers for one node that came would take longer than all the rest. Moves and changed
columns are noted instead, many of them as one, and a reader finds them done.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rackgate_assigner.topology.order import Order

# So many leaves may have come, gone or changed before the numbers are copied unasked.
NOTED_LIMIT: Final = 32

Numbers = npt.NDArray[np.int64]


class Block:
    """Numbers of shape (..., leaves). Reading settles what is noted, which changes no number.

    Attributes:
        noted: something is; what `array` gives after that, no other block has.
    """

    __slots__ = ("_columns", "_numbers", "_order", "noted")

    def __init__(self, numbers: Numbers, order: Order | None = None) -> None:
        """Prepare.

        Args:
            numbers: over the leaves as they were; not copied.
            order: what happened to the leaves since; None: nothing.
        """
        self._numbers, self._order = numbers, order
        self._columns: dict[int, Numbers] = {}
        self.noted = order is not None

    def array(self) -> Numbers:
        """The numbers over the leaves as they are now: not a copy."""
        if self.noted:
            numbers = self._numbers
            numbers = numbers.copy() if self._order is None else self._order.numbers(numbers)
            for leaf, column in self._columns.items():
                numbers[..., leaf] = column
            self._numbers, self._order, self._columns = numbers, None, {}
            self.noted = False
        return self._numbers

    def column(self, leaf: int) -> Numbers:
        """The numbers of one leaf, not to be written to."""
        if leaf in self._columns:
            return self._columns[leaf]
        at = leaf if self._order is None else self._order.old_place(leaf)
        if at is None:
            return np.zeros(self._numbers.shape[:-1], dtype=np.int64)
        found: Numbers = self._numbers[..., at]
        return found

    def moved(self, order: Order) -> Block:
        """The same numbers over the leaves in their new order; what is new is 0. This one stays."""
        if not self.noted:
            return Block(self._numbers, order)
        whole = order if self._order is None else self._order.then(order)
        places = {leaf: order.place(leaf) for leaf in self._columns}
        if len(whole.gone) + len(whole.at) + len(places) > NOTED_LIMIT:
            return Block(self.array(), order)
        twin = Block(self._numbers, whole)
        twin._columns = {
            place: self._columns[leaf] for leaf, place in places.items() if place is not None
        }
        return twin

    def put(self, leaf: int, column: Numbers) -> Block:
        """The same numbers but for one leaf. This one stays."""
        twin = Block(self._numbers, self._order)
        twin._columns = {**self._columns, leaf: column}
        twin.noted = True
        return twin

    @property
    def full(self) -> bool:
        """Whether so much is noted that one write into the numbers is better than one note more."""
        return len(self._columns) >= NOTED_LIMIT
