"""How often the same news is told: why a Workload waits, in ever new words. Pure.

Each change of free room words the reasons of all that wait anew ("fits 3 of 4 pods"). What waits
is told apart by reason at once; the words alone may be a little old.
"""

from __future__ import annotations


class Pace:
    """When words about a key may be written anew.

    Args:
        interval_s: between two writes about one key with one reason.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._told: dict[str, tuple[str, float]] = {}

    def wait_s(self, key: str, reason: str, now: float) -> float:
        """Seconds to wait before news about a key; 0 for another reason than last told."""
        told = self._told.get(key)
        if told is None or told[0] != reason:
            return 0.0
        return max(0.0, told[1] + self._interval_s - now)

    def told(self, key: str, reason: str, now: float) -> None:
        """News about a key was written, at this monotonic time."""
        self._told[key] = (reason, now)

    def forget(self, key: str) -> None:
        """The next news about a key is new."""
        self._told.pop(key, None)
