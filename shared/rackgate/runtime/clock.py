"""The one place that reads clocks. Pure code takes `now` as an argument.

Clocks of different machines never agree. So limits and order go by the monotonic clock and by
resourceVersions; `shift` moves this process's wall clock to prove that nothing else is needed.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

_offset = timedelta()


def shift(offset_s: float) -> None:
    """Move this process's wall clock: `now` is `offset_s` seconds ahead of the machine's.

    The monotonic clock stays as it is. A later call replaces an earlier one.
    """
    global _offset  # noqa: PLW0603 - the process has one clock, and this is its only state
    _offset = timedelta(seconds=offset_s)


def monotonic() -> float:
    """Seconds on this machine's monotonic clock: for limits and durations."""
    return time.monotonic()


def now() -> datetime:
    """The wall clock, aware, in UTC: for timestamps in objects only."""
    return datetime.now(UTC) + _offset
