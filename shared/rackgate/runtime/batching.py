"""Batch events: the first event opens a time window, its end closes the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Batcher(Generic[K]):
    """Collect keys for `window_s` seconds, starting with the first one.

    Keys are unique within a batch, in the order of their first addition. Only one task may `take`.
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._keys: dict[K, None] = {}
        self._opened_at = 0.0
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: K) -> None:
        """Add `key` to the open batch, or open one. Only on the loop's thread."""
        if not self._keys:
            self._opened_at = asyncio.get_running_loop().time()
            self._filled.set()
        self._keys[key] = None

    async def take(self) -> list[K]:
        """Wait for a key, then for the end of its window; return the batch, never empty."""
        await self._filled.wait()
        # A batch whose window is over, as the taker was busy, is returned immediately.
        left_s = self._opened_at + self.window_s - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.sleep(left_s)
        batch = list(self._keys)
        self._keys.clear()
        self._filled.clear()
        return batch
