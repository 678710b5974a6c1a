"""How often writes about one key are sent while it keeps changing.

`Spacing` is for counts: the first change after a quiet time is written at once, and each further
one waits twice as long as the previous one, up to a limit.

`MessageRateLimiter` is for messages. Whenever free capacity changes, the pending message of every
inadmissible Workload is recomputed ("fits 3 of 4 pods"). A new reason is written at once; a new
message with the same reason may be delayed, longer if more Workloads are pending. Otherwise
thousands of writes without news would delay those that admit and release.

`pause_after_cycle_s` is for scheduling cycles. Each one handles all changes since the one before,
and nothing else runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# After a scheduling cycle, this many times as long is left for watches and writes, up to a limit.
PAUSE_FACTOR: Final = 3.0
LONGEST_PAUSE_S: Final = 1.0
SHORTEST_PAUSE_S: Final = 0.01
# After a quiet time of this many intervals, a key starts over.
QUIET_GAPS = 2


def pause_after_cycle_s(spent_s: float, min_interval_s: float) -> float:
    """Seconds from the end of a scheduling cycle to the start of the next one.

    Args:
        spent_s: of the cycle.
        min_interval_s: minimum time between the starts of two cycles.
    """
    pause_s = min(PAUSE_FACTOR * spent_s, LONGEST_PAUSE_S)
    return max(min_interval_s - spent_s, pause_s, SHORTEST_PAUSE_S)


class Spacing(Generic[K]):
    """When a key may be written again.

    Args:
        first_s: seconds between the first two writes.
        most_s: maximum seconds between two writes.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, max(first_s, most_s)
        self._written: dict[K, tuple[float, float]] = {}

    def wait_s(self, key: K, now: float) -> float:
        """Seconds until a key may be written, 0 for at once."""
        at, gap_s = self._written.get(key, (now, 0.0))
        return max(0.0, at + gap_s - now)

    def written(self, key: K, now: float) -> None:
        """A key was written, at this monotonic time."""
        at, gap_s = self._written.get(key, (now, 0.0))
        busy = key in self._written and now - at < QUIET_GAPS * gap_s
        self._written[key] = now, min(2 * gap_s, self._most_s) if busy else self._first_s

    def forget(self, key: K) -> None:
        """The key is gone."""
        self._written.pop(key, None)


MESSAGES_PER_S: Final = 20.0
BURST_S: Final = 1.0


class MessageRateLimiter:
    """When a message about a key may be written.

    Args:
        interval_s: between two writes about one key with one reason.
        per_s: writes per second about all keys together whose reason does not change; after a quiet
            time, writes of `BURST_S` seconds are allowed at once.
    """

    def __init__(self, interval_s: float, per_s: float = MESSAGES_PER_S) -> None:
        self._interval_s, self._gap_s = interval_s, 1.0 / per_s
        self._written: dict[str, tuple[str, float]] = {}
        self._slots: dict[str, float] = {}
        self._next_slot = 0.0

    def wait_s(self, key: str, reason: str, now: float) -> float:
        """Seconds to wait before a message about a key; 0 if the reason has changed.

        A key that must wait gets a slot and keeps it until it is written: first come, first
        served.
        """
        written = self._written.get(key)
        if written is None or written[0] != reason:
            return 0.0
        slot = self._slots.get(key)
        if slot is None:
            shared = max(self._next_slot, now - BURST_S)
            self._next_slot = shared + self._gap_s
            slot = self._slots[key] = max(written[1] + self._interval_s, shared)
        return max(0.0, slot - now)

    def record_written(self, key: str, reason: str, now: float) -> None:
        """A message about a key was written, at this monotonic time."""
        self._written[key] = (reason, now)
        self._slots.pop(key, None)

    def forget(self, key: str) -> None:
        """The next message about a key is new."""
        self._written.pop(key, None)
        self._slots.pop(key, None)
