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


def rfc3339(moment: datetime) -> str:
    """`moment` as Kubernetes writes metav1.Time: UTC, whole seconds, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """`moment` as Kubernetes writes metav1.MicroTime: UTC, six decimals, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> datetime:
    """Read any RFC 3339 timestamp; the result is aware, in UTC.

    Raises:
        ValueError: not a timestamp, or one without an offset.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"timestamp {text!r} has no offset")
    return moment.astimezone(UTC)
