"""Node properties as columns of small integers: a rule is judged once per distinct value."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

# Shapes and label keys come from users: what is kept for them is bounded.
MEMO_LIMIT = 64


class Column:
    """One property over all nodes.

    Attributes:
        codes: shape (nodes,): index into `values`.
        values: distinct values in order of appearance; None means absent.
    """

    __slots__ = ("codes", "values")

    def __init__(self, codes: npt.NDArray[np.int64], values: list[Any]) -> None:
        self.codes = codes
        self.values = values

    @classmethod
    def of(cls, items: Iterable[Hashable]) -> Column:
        """Number the distinct values of `items`."""
        index: dict[Hashable, int] = {}
        codes = [index.setdefault(item, len(index)) for item in items]
        return cls(np.array(codes, dtype=np.int64), list(index))

    def where(self, rule: Callable[[Any], bool]) -> npt.NDArray[np.bool_]:
        """Judge every node: shape (nodes,), `rule` called once per distinct value."""
        table = np.fromiter(map(rule, self.values), dtype=np.bool_, count=len(self.values))
        return table[self.codes]

    def map(self, number: Callable[[Any], int]) -> npt.NDArray[np.int64]:
        """Number every node: shape (nodes,), `number` called once per distinct value."""
        table = np.fromiter(map(number, self.values), dtype=np.int64, count=len(self.values))
        return table[self.codes]


class Memo:
    """Results that depend only on the (immutable) tree and a key; forgets all when full."""

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result kept under `key`, made on first use."""
        try:
            result: T = self._results[key]
        except KeyError:
            if len(self._results) >= MEMO_LIMIT:
                self._results.clear()
            result = self._results[key] = make()
        return result
