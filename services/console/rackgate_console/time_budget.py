"""Limits how much time of the process the answers of each viewer take, and those of all. Pure.

Most answers are computed at once, and streams wait meanwhile; others take a core from them. So each
viewer has some seconds, which come back as time passes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from rackgate_console.responses import RejectedError

# Part of the time that comes back, and the most seconds: of one viewer, and of all together. All
# have more, so that one viewer who has used up their seconds leaves some.
SHARE_OF_ONE: Final = 0.2
SHARE_OF_ALL: Final = 0.5
BURST_S: Final = 5.0
BURST_OF_ALL_S: Final = 20.0
MAX_KEPT: Final = 4096
_ALL: Final = ""


class TimeBudget:
    """Seconds that are left."""

    def __init__(self) -> None:
        # By identity of the viewer: seconds, and when they were counted. The oldest first.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, identity: str, now: float) -> None:
        """Return if an answer may be computed.

        Args:
            identity: of the viewer, not empty.
            now: monotonic time in seconds.

        Raises:
            RejectedError: the last answers took too long (429).
        """
        for key in (_ALL, identity):
            if self._count(key, now) <= 0.0:
                raise RejectedError(
                    429, "the last answers took long; try again in some seconds", retry_after_s=5
                )

    def spend(self, identity: str, used_s: float, now: float) -> None:
        """An answer took so many seconds."""
        for key in (_ALL, identity):
            self._left[key] = self._count(key, now) - used_s, now
            self._left.move_to_end(key)
        while len(self._left) > MAX_KEPT:
            self._left.popitem(last=False)

    def _count(self, key: str, now: float) -> float:
        share, most = (SHARE_OF_ONE, BURST_S) if key else (SHARE_OF_ALL, BURST_OF_ALL_S)
        left, counted = self._left.get(key, (most, now))
        return min(most, left + (now - counted) * share)
