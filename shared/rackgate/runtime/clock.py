"""The only module that reads clocks. Pure code takes `now` as an argument.

Wall clocks of machines differ, so deadlines use the monotonic clock and order uses
resourceVersions. `shift` moves the wall clock of this process to test that.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

_offset = timedelta()


def shift(offset_s: float) -> None:
    """Move the wall clock of this process `offset_s` seconds ahead of the machine's."""
    global _offset  # noqa: PLW0603 - a process has one clock
    _offset = timedelta(seconds=offset_s)


def monotonic() -> float:
    """Seconds of the monotonic clock, for deadlines and durations."""
    return time.monotonic()


def now() -> datetime:
    """The wall clock, aware, in UTC; only for timestamps in objects."""
    return datetime.now(UTC) + _offset
