"""When which Workload is due: one time per key, the earliest wins. Pure: `now` is an argument.

The first event of a Workload opens its batch; later ones fall into it, or close it earlier
(`batches.py`). Retries and waking times are entries of the same kind.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K")


class DelayQueue(Generic[K]):
    """Keys with the monotonic time, in seconds, at which they are due."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: K, at: float) -> bool:
        """Make `key` due at `at` unless it is due earlier; returns whether it changed."""
        known = self._due.get(key)
        if known is not None and known <= at:
            return False
        self._due[key] = at
        self._count += 1  # breaks ties, so that keys are never compared
        heappush(self._heap, (at, self._count, key))
        return True

    def next_at(self) -> float | None:
        """When the next key is due; None when nothing is."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._due.get(key) == at:
                return at
            heappop(self._heap)  # replaced by an earlier entry, or taken already
        return None

    def pop_due(self, now: float) -> K | None:
        """Take out the key that is due first; None when none is due yet."""
        at = self.next_at()
        if at is None or at > now:
            return None
        key = heappop(self._heap)[2]
        del self._due[key]
        return key
