"""Numbers derived from a capacity, kept with the leaves that were charged since."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np

from rackgate_assigner.topology.tree import IntVector

T = TypeVar("T")

# Shapes come from users; what is kept for one is a few vectors over the leaves.
CACHE_SIZE: Final = 8
# Leaves charged since; who lags further behind is forgotten.
CHANGES_LIMIT: Final = 8_192


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    seen: int


class CapacityCache(Generic[T]):
    """Values by key for one capacity; the ones used least lately go first.

    Nothing is noted while nothing is kept, so a capacity that nobody asks pays nothing.
    """

    __slots__ = ("_changed", "_entries")

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry[T]] = {}
        self._changed: list[int] = []

    def __len__(self) -> int:
        return len(self._entries)

    def mark_changed(self, leaves: Iterable[int]) -> None:
        """These leaves were charged."""
        if self._entries:
            self._changed.extend(leaves)
            if len(self._changed) > CHANGES_LIMIT:
                self._trim()

    def clear(self) -> None:
        """Everything may have changed."""
        self._entries.clear()
        self._changed.clear()

    def pop(self, key: Hashable) -> tuple[T, IntVector] | None:
        """Take out the value under `key`, with the leaves charged since it was put, ascending.

        The caller brings it up to date and puts it back: what fails halfway is not kept.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        changed = self._changed[entry.seen :]
        return entry.value, np.array(sorted(set(changed)), dtype=np.int64)

    def put(self, key: Hashable, value: T) -> None:
        """Keep a value that is right at this moment."""
        self._entries.pop(key, None)
        if len(self._entries) >= CACHE_SIZE:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = _Entry(value, len(self._changed))

    def _trim(self) -> None:
        cut = len(self._changed) // 2
        self._entries = {key: one for key, one in self._entries.items() if one.seen >= cut}
        for entry in self._entries.values():
            entry.seen -= cut
        del self._changed[:cut]
