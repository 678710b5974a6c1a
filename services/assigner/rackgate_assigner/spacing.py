"""How far apart writes about one key are while it goes on changing. Pure.

The first change after a quiet time is written at once. Each further write waits twice as long as
the one before, up to a limit: whoever changes a thousand times a minute is told of a few times.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# A key that was left alone for so many of its gaps starts over.
QUIET_GAPS = 2


class Spacing(Generic[K]):
    """When a key may be written again.

    Args:
        first_s: seconds between the first two writes.
        most_s: seconds between two writes at most.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, max(first_s, most_s)
        self._written: dict[K, tuple[float, float]] = {}

    def wait_s(self, key: K, now: float) -> float:
        """Seconds until a key may be written, 0 for at once."""
        at, gap_s = self._written.get(key, (now, 0.0))
        return max(0.0, at + gap_s - now)

    def written(self, key: K, now: float) -> None:
        """A key was written, at this monotonic time."""
        at, gap_s = self._written.get(key, (now, 0.0))
        busy = key in self._written and now - at < QUIET_GAPS * gap_s
        self._written[key] = now, min(2 * gap_s, self._most_s) if busy else self._first_s

    def forget(self, key: K) -> None:
        """The key is gone."""
        self._written.pop(key, None)
