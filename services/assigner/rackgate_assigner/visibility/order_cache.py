"""Builds the order of pending Workloads on demand, for all requests of a short time together."""

from __future__ import annotations

import asyncio
from typing import Final

from rackgate.runtime import clock
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.visibility.pending_order import PendingOrder, order_of_cache

KEPT_S: Final = 1.0
# So requests use at most this part of the time of the process, however many are sent.
MAX_LOAD: Final = 0.1


class OrderCache:
    """The order of pending Workloads, at most some seconds old."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._lock = asyncio.Lock()
        self._order = PendingOrder()
        self._kept_until = 0.0

    async def order(self) -> PendingOrder:
        """The order; it is built if the last one is too old."""
        async with self._lock:
            if clock.monotonic() >= self._kept_until:
                self._order = await self._build()
        return self._order

    async def _build(self) -> PendingOrder:
        steps = order_of_cache(self._cache)
        used_s, started = 0.0, clock.monotonic()
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                used_s += clock.monotonic() - started
                self._kept_until = clock.monotonic() + max(KEPT_S, used_s / MAX_LOAD)
                order: PendingOrder = finished.value
                return order
            used_s += clock.monotonic() - started
            await asyncio.sleep(0)
            started = clock.monotonic()
