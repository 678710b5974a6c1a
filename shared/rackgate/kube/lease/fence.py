"""The dead-man timer: a process that outlives its lease dies before its next instruction.

A stopped or stalled process would otherwise write late whatever the margins are. The kernel
counts while the process is stopped, and SIGALRM at its default action ends it when it is
continued, before any code of its own runs.
"""

from __future__ import annotations

import signal
from typing import Final, Protocol

from rackgate.runtime import clock

# Timer and clock are read apart; differences below this are the reading, not a stop.
TOLERANCE_S: Final = 0.001
SHORTEST_S: Final = 1e-6


class Fence(Protocol):
    """What enforces the end of leases."""

    def arm(self, name: str, deadline: float) -> None:
        """The process may live on under lease `name` until `deadline`, monotonic seconds."""

    def disarm(self, name: str) -> None:
        """Lease `name` is not held any more, and nothing acts under it."""


class DeadManTimer:
    """The real fence: one ITIMER_REAL, set to the earliest deadline of all leases.

    Main thread only. The process must leave SIGALRM and ITIMER_REAL alone.
    """

    def __init__(self) -> None:
        self._deadlines: dict[str, float] = {}

    def arm(self, name: str, deadline: float) -> None:
        """Set or move the deadline of `name`; one in the past ends the process here."""
        if not self._deadlines:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        self._deadlines[name] = deadline
        self._set_timer()

    def disarm(self, name: str) -> None:
        """Forget the deadline of `name`; without any other the timer stops."""
        if self._deadlines.pop(name, None) is not None:
            self._set_timer()

    def _set_timer(self) -> None:
        if not self._deadlines:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            return
        deadline = min(self._deadlines.values())
        while True:
            # Zero would switch the timer off, so a deadline in the past becomes "at once".
            left_s = max(deadline - clock.monotonic(), SHORTEST_S)
            signal.setitimer(signal.ITIMER_REAL, left_s)
            # A stop between the two lines above makes the timer late. The timer is read
            # before the clock: a stop between these two makes it look late, never in time.
            remaining_s, _ = signal.getitimer(signal.ITIMER_REAL)
            if clock.monotonic() + remaining_s <= deadline + TOLERANCE_S:
                return


PROCESS_FENCE: Final = DeadManTimer()
