"""Client-side budgets: a rate with a burst, and a bound on requests under way."""

from __future__ import annotations

import asyncio


class Budget:
    """How fast and how many at once. One purpose, one budget.

    The rate is kept as the moment when the bucket is full again, so waiting requests are
    served in the order in which they came. `qps <= 0` is no limit.
    """

    def __init__(self, qps: float, burst: int, concurrency: int | None = None) -> None:
        if qps > 0 and burst < 1:
            raise ValueError(f"burst must be at least 1, found {burst}")
        self._interval_s = 1.0 / qps if qps > 0 else 0.0
        self._slack_s = self._interval_s * (burst - 1)
        self._full_at = 0.0
        self._slots = asyncio.Semaphore(concurrency) if concurrency else None

    async def __aenter__(self) -> None:
        """Wait for a slot, then for a token. The slot is held until the exit."""
        if self._slots is not None:
            await self._slots.acquire()
        try:
            await self.acquire_token()
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Give the slot back."""
        if self._slots is not None:
            self._slots.release()

    async def acquire_token(self) -> None:
        """Wait for a token alone: for streams, which would hold a slot for ever."""
        if not self._interval_s:
            return
        now = asyncio.get_running_loop().time()
        self._full_at = max(self._full_at, now) + self._interval_s
        wait_s = self._full_at - self._interval_s - self._slack_s - now
        if wait_s > 0:
            await asyncio.sleep(wait_s)
