"""Node properties as columns of small integers: a rule is judged once per distinct value."""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterable, Mapping, Sequence
from itertools import islice
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
        values: distinct values; None means absent. Only ever added to, and shared: some may be
            those of no node of this tree.
    """

    __slots__ = ("codes", "values")

    def __init__(self, codes: npt.NDArray[np.int64], values: list[Any]) -> None:
        self.codes, self.values = codes, values

    def where(self, rule: Callable[[Any], bool]) -> npt.NDArray[np.bool_]:
        """Judge every node: shape (nodes,), `rule` called once per distinct value."""
        table = np.fromiter(map(rule, self.values), dtype=np.bool_, count=len(self.values))
        return table[self.codes]

    def map(self, number: Callable[[Any], int]) -> npt.NDArray[np.int64]:
        """Number every node: shape (nodes,), `number` called once per distinct value."""
        table = np.fromiter(map(number, self.values), dtype=np.int64, count=len(self.values))
        return table[self.codes]


class EncodedValues:
    """Values as small integers, for a list that only grows.

    Attributes:
        values: distinct values, by code.
    """

    __slots__ = ("_block", "_count", "_index", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._index: dict[Hashable, int] = {}
        self._block = np.zeros(0, dtype=np.int64)
        self._count = 0

    @classmethod
    def of(cls, codes: npt.NDArray[np.int64], values: Sequence[Any]) -> EncodedValues:
        """Values that have codes already; those that nothing has are dropped."""
        found = cls()
        used, found._block = np.unique(codes, return_inverse=True)
        found._count = len(codes)
        found.values = [values[code] for code in used.tolist()]
        found._index = {value: code for code, value in enumerate(found.values)}
        return found

    def __len__(self) -> int:
        return self._count

    @property
    def codes(self) -> npt.NDArray[np.int64]:
        """Index into `values` of every member, not to be written to."""
        return self._block[: self._count]

    def extend(self, items: Iterable[Hashable]) -> None:
        """Add members at the end."""
        index = self._index
        more = [index.setdefault(item, len(index)) for item in items]
        self.values.extend(islice(index, len(self.values), None))
        count = self._count + len(more)
        if count > len(self._block):
            block = np.zeros(count + count // 8, dtype=np.int64)
            block[: self._count] = self._block[: self._count]
            self._block = block
        self._block[self._count : count] = more
        self._count = count


class Memo:
    """Results that depend only on an (immutable) tree and a key; forgets all when full."""

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: dict[Hashable, Any] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The result kept under `key`, made on first use."""
        try:
            result: T = self._results[key]
        except KeyError:
            if len(self._results) >= MEMO_LIMIT:
                self._results.clear()
            result = self._results[key] = compute()
        return result

    def put(self, key: Hashable, result: object) -> None:
        """Keep a result that was come by elsewhere."""
        self._results[key] = result

    def items(self) -> ItemsView[Hashable, Any]:
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

    def with_changes(self, changes: Mapping[str, str | None]) -> Overlay:
        """The next version; None takes a text away."""
        patch = {**self._patch, **changes}
        if len(patch) <= self.LIMIT:
            return Overlay(self._base, patch)
        return Overlay(Overlay(self._base, patch).to_dict())

    def get(self, name: str) -> str | None:
        """The text of a name, if there is one."""
        return self._patch[name] if name in self._patch else self._base.get(name)

    def to_dict(self) -> dict[str, str]:
        """All texts by name."""
        found: dict[str, str | None] = {**self._base, **self._patch}
        return {name: text for name, text in found.items() if text is not None}
