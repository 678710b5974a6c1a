"""Node properties as columns of small integers: a rule is judged once per distinct value."""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rackgate_assigner.core.topology.order import Order

T = TypeVar("T")

# Shapes and label keys come from users: what is kept for them is bounded.
MEMO_LIMIT = 64
# So many values of no node may stay in an amended column, and as many more as it has nodes.
SPARE_VALUES = 64


class Column:
    """One property over all nodes.

    Attributes:
        codes: shape (nodes,): index into `values`.
        values: distinct values; None means absent. Shared with the columns this one was amended
            from and to, and only ever added to: some may be those of no node of this one.
    """

    __slots__ = ("_index", "codes", "values")

    def __init__(
        self, codes: npt.NDArray[np.int64], values: list[Any], index: dict[Hashable, int]
    ) -> None:
        self.codes, self.values, self._index = codes, values, index

    @classmethod
    def of(cls, items: Iterable[Hashable]) -> Column:
        """Number the distinct values of `items`."""
        index: dict[Hashable, int] = {}
        codes = [index.setdefault(item, len(index)) for item in items]
        return cls(np.array(codes, dtype=np.int64), list(index), index)

    def where(self, rule: Callable[[Any], bool]) -> npt.NDArray[np.bool_]:
        """Judge every node: shape (nodes,), `rule` called once per distinct value."""
        table = np.fromiter(map(rule, self.values), dtype=np.bool_, count=len(self.values))
        return table[self.codes]

    def map(self, number: Callable[[Any], int]) -> npt.NDArray[np.int64]:
        """Number every node: shape (nodes,), `number` called once per distinct value."""
        table = np.fromiter(map(number, self.values), dtype=np.int64, count=len(self.values))
        return table[self.codes]

    def amended(self, order: Order | None, items: Mapping[int, Hashable]) -> Column | None:
        """The column after nodes came, went or changed; None when making it anew is better.

        Args:
            order: of the nodes; None: all stay where they are.
            items: values of nodes that are new or changed, by new position.
        """
        if order is None and all(self.values[self.codes[at]] == v for at, v in items.items()):
            return self
        codes = self.codes.copy() if order is None else order.numbers(self.codes)
        for at, value in items.items():
            code = self._index.setdefault(value, len(self.values))
            if code == len(self.values):
                self.values.append(value)
            codes[at] = code
        full = len(self.values) > 2 * len(codes) + SPARE_VALUES
        return None if full else Column(codes, self.values, self._index)


class Memo:
    """Results that depend only on an (immutable) tree and a key; forgets all when full."""

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

    def put(self, key: Hashable, result: object) -> None:
        """Keep a result that was come by elsewhere."""
        self._results[key] = result

    def kept(self) -> ItemsView[Hashable, Any]:
        """Everything that is kept, with its key."""
        return self._results.items()


class Overlay:
    """Texts by name, for versions that differ in a few of them: those share all the others."""

    __slots__ = ("_base", "_patch")

    # So many differences are kept apart before they are merged.
    LIMIT = 256

    def __init__(
        self, base: Mapping[str, str], patch: Mapping[str, str | None] | None = None
    ) -> None:
        self._base, self._patch = base, patch or {}

    def amended(self, changes: Mapping[str, str | None]) -> Overlay:
        """The next version; None takes a text away."""
        patch = {**self._patch, **changes}
        if len(patch) <= self.LIMIT:
            return Overlay(self._base, patch)
        return Overlay(Overlay(self._base, patch).whole())

    def get(self, name: str) -> str | None:
        """The text of a name, if there is one."""
        return self._patch[name] if name in self._patch else self._base.get(name)

    def whole(self) -> dict[str, str]:
        """All texts by name."""
        found: dict[str, str | None] = {**self._base, **self._patch}
        return {name: text for name, text in found.items() if text is not None}
