"""How often the same news is written: why a Workload waits, in ever new words. Pure.

Each change of free room words the reasons of all that wait anew ("fits 3 of 4 pods"). What waits
is told apart by reason at once; the words alone may be a little old, the more so the more wait:
thousands of writes that say nothing new would take the API server from those that admit and free.
"""

from __future__ import annotations

from typing import Final

MESSAGES_PER_S: Final = 20.0
BURST_S: Final = 1.0


class MessageRateLimiter:
    """When words about a key may be written anew.

    Args:
        interval_s: between two writes about one key with one reason.
        per_s: writes in a second about all keys together whose reason stays; after a quiet time
            those of `BURST_S` seconds come at once.
    """

    def __init__(self, interval_s: float, per_s: float = MESSAGES_PER_S) -> None:
        self._interval_s, self._gap_s = interval_s, 1.0 / per_s
        self._written: dict[str, tuple[str, float]] = {}
        self._slots: dict[str, float] = {}
        self._next_slot = 0.0

    def wait_s(self, key: str, reason: str, now: float) -> float:
        """Seconds to wait before news about a key; 0 for another reason than last written.

        A key that has to wait gets a slot, and keeps it until it is written: who asks first is
        written first.
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
        """News about a key was written, at this monotonic time."""
        self._written[key] = (reason, now)
        self._slots.pop(key, None)

    def forget(self, key: str) -> None:
        """The next news about a key is new."""
        self._written.pop(key, None)
        self._slots.pop(key, None)
