"""How long ago a timestamp of an object was, whatever happens to the wall clock meanwhile.

The API server stores wall-clock times, so the first look at a timestamp compares it with the wall
clock: a restart or a new leader neither loses nor restarts a timeout. From then on the monotonic
clock counts. Otherwise a wall clock that is set an hour ahead would end all timeouts at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rackgate.api.timestamps import parse_rfc3339

# Timestamps of one object that are remembered: those that start or end a timeout, and some more.
_PER_OBJECT: Final = 8


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment by two clocks: the wall clock, and seconds of the monotonic clock."""

    wall: datetime
    monotonic: float


class Elapsed:
    """Seconds since and until the timestamps of one object, at one moment."""

    def __init__(self, now: Moment, first: dict[str, tuple[float, float]] | None = None) -> None:
        """Take the moment, and what is known of earlier looks: see `ElapsedTimes`."""
        self.now = now
        self._first = {} if first is None else first

    def since(self, timestamp: str | None) -> float | None:
        """Seconds since an RFC 3339 timestamp; None if it is not one.

        One in the future comes from a clock that is ahead: the time starts with the first look.
        """
        found = self._look(timestamp or "")
        return None if found is None else max(0.0, found[0]) + found[1]

    def until(self, timestamp: str | None) -> float | None:
        """Seconds until an RFC 3339 timestamp, at least 0; None if it is not one."""
        found = self._look(timestamp or "")
        return None if found is None else max(0.0, -found[0] - found[1])

    def _look(self, timestamp: str) -> tuple[float, float] | None:
        """Seconds since a timestamp at the first look, and seconds since that look."""
        first = self._first.pop(timestamp, None)
        if first is None:
            try:
                elapsed_s = (self.now.wall - parse_rfc3339(timestamp)).total_seconds()
            except ValueError:
                return None
            first = elapsed_s, self.now.monotonic
        self._first[timestamp] = first  # the one that was used last comes last
        if len(self._first) > _PER_OBJECT:
            del self._first[next(iter(self._first))]
        return first[0], self.now.monotonic - first[1]


class ElapsedTimes:
    """Remembers when timestamps of objects were first looked at."""

    def __init__(self) -> None:
        # By object and timestamp: seconds since it, and the monotonic time when this was so.
        self._first: dict[str, dict[str, tuple[float, float]]] = {}

    def at(self, key: str, now: Moment) -> Elapsed:
        """The times of one object, at `now`."""
        return Elapsed(now, self._first.setdefault(key, {}))

    def forget(self, key: str) -> None:
        """The object is gone."""
        self._first.pop(key, None)
