"""Compares the cache with a rebuild from scratch, on SIGUSR1 or periodically.

A mismatch is a defect. It is logged and counted, and all derived state is built again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from typing import Final

import structlog

from rackgate.runtime import clock
from rackgate_assigner import metrics
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.consistency import Mismatch, mismatches

SIGNAL: Final = signal.SIGUSR1
# The first few of a long list are enough.
SHOWN: Final = 20

log = structlog.get_logger()


def verify(cache: Cache) -> list[Mismatch]:
    """Compare once; count the result, and log and repair a mismatch.

    No other code runs meanwhile, so the result is consistent.
    """
    started = clock.monotonic()
    found = mismatches(cache)
    metrics.CACHE_VERIFICATIONS.labels(result="mismatch" if found else "match").inc()
    if found:
        for mismatch in found:
            metrics.CACHE_MISMATCHES.labels(what=mismatch.what).inc()
        cache.rebuild_derived_state()
        log.error(
            "cache_mismatch",
            mismatches=len(found),
            rows=[str(mismatch) for mismatch in found[:SHOWN]],
            duration_s=round(clock.monotonic() - started, 4),
        )
    return found


class Verification:
    """Verifies a cache on SIGUSR1, and periodically if a period is set."""

    def __init__(
        self, cache: Cache, on_repaired: Callable[[], None], *, period_s: float = 0
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            cache: the cache to verify.
            on_repaired: called after a mismatch was repaired.
            period_s: seconds between two verifications; 0: only on SIGUSR1.
        """
        self._cache, self._on_repaired = cache, on_repaired
        self._period_s = period_s
        self._requested = asyncio.Event()

    async def run(self) -> None:
        """Verify on the signal and when due, until cancelled."""
        loop = asyncio.get_running_loop()
        # Only the main thread can handle signals; other threads verify periodically.
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(SIGNAL, self._requested.set)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._period_s or None):
                        await self._requested.wait()
                self._requested.clear()
                self._verify()
        finally:
            loop.remove_signal_handler(SIGNAL)

    def _verify(self) -> None:
        started = clock.monotonic()
        try:
            found = verify(self._cache)
        except Exception:
            metrics.CACHE_VERIFICATIONS.labels(result="failed").inc()
            log.exception("cache_verification_failed")
            return
        if found:
            self._on_repaired()
        else:
            spent_s = round(clock.monotonic() - started, 4)
            log.info("cache_verified", nodes=len(self._cache.nodes), duration_s=spent_s)
