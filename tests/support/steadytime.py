"""An event loop whose clock leaves out the times in which this process did not run.

Where server, clients and test live in one process, nothing happens while the machine stalls; yet
on the real clock Leases and timeouts run out meanwhile. This clock advances while the loop waits
for a timer, and otherwise by `STALL_S` at most between two looks at it: durations mean what they
say, on any machine. The wall clock leaves out the same stalls (`steady`). Mark a test with
`steady_clock`; it may not start processes that share its times.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

# Longest time between two looks that counts as work of ours.
STALL_S: Final = 0.02


class SteadyClock:
    """Seconds that never run back, without stalls."""

    def __init__(self) -> None:
        self._seen = time.monotonic()
        self._skipped_s = 0.0

    def read(self, allowed_s: float = 0.0) -> float:
        """The time now; up to `allowed_s` since the last look were waited for."""
        now = time.monotonic()
        self._skipped_s += max(0.0, now - self._seen - allowed_s - STALL_S)
        self._seen = now
        return now - self._skipped_s

    @property
    def skipped_s(self) -> float:
        """Seconds of stalls until the last look."""
        return self._skipped_s


# One for the process: loops follow one another, and times of one are never below the last one's.
CLOCK: Final = SteadyClock()


def monotonic() -> float:
    """The clock of a `SteadyLoop`; takes the place of `rackgate.runtime.clock.monotonic`."""
    return CLOCK.read()


def steady(wall_clock: Callable[[], datetime]) -> Callable[[], datetime]:
    """The same wall clock without the stalls from now on; for `rackgate.runtime.clock.now`."""
    CLOCK.read()
    before_s = CLOCK.skipped_s

    def now() -> datetime:
        CLOCK.read()
        return wall_clock() - timedelta(seconds=CLOCK.skipped_s - before_s)

    return now


class _Selector(selectors.DefaultSelector):
    """Tells the clock how long was waited for on purpose."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        CLOCK.read()
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        CLOCK.read(float("inf") if timeout is None else max(0.0, timeout))
        return ready


class SteadyLoop(asyncio.SelectorEventLoop):
    """Runs on the steady clock."""

    def __init__(self) -> None:
        super().__init__(_Selector())

    def time(self) -> float:
        return monotonic()
