"""Fencing: a timer of the kernel ends a process at the deadline of its Lease.

Otherwise a process that was stopped or stalled could write after its Lease expired, with any safety
margin. The timer also runs while the process is stopped: SIGALRM with its default action ends the
process when it is continued, before it executes any code.
"""

from __future__ import annotations

import signal
from typing import Final, Protocol

from rackgate.runtime import clock

# Timer and clock are read one after the other; smaller differences do not mean a stop.
TOLERANCE_S: Final = 0.001
SHORTEST_S: Final = 1e-6


class Fence(Protocol):
    """Enforces the deadlines of Leases."""

    def arm(self, name: str, deadline: float) -> None:
        """End the process at `deadline` (monotonic seconds) of Lease `name`, unless re-armed."""

    def disarm(self, name: str) -> None:
        """Remove the deadline of Lease `name`, which is no longer held."""


class KernelTimer:
    """The real fence: one ITIMER_REAL, set to the earliest deadline of all Leases.

    Main thread only. No other code of the process may use SIGALRM or ITIMER_REAL.
    """

    def __init__(self) -> None:
        self._deadlines: dict[str, float] = {}

    def arm(self, name: str, deadline: float) -> None:
        """Set the deadline of `name`; one in the past ends the process here."""
        if not self._deadlines:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        self._deadlines[name] = deadline
        self._set_timer()

    def disarm(self, name: str) -> None:
        """Remove the deadline of `name`; without any deadline the timer stops."""
        if self._deadlines.pop(name, None) is not None:
            self._set_timer()

    def _set_timer(self) -> None:
        if not self._deadlines:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            return
        deadline = min(self._deadlines.values())
        while True:
            # Zero would disable the timer, so a deadline in the past becomes the shortest time.
            left_s = max(deadline - clock.monotonic(), SHORTEST_S)
            signal.setitimer(signal.ITIMER_REAL, left_s)
            # If the process was stopped between the two lines above, the timer is late. It is read
            # before the clock, so that a stop between these two reads makes it look late as well.
            remaining_s, _ = signal.getitimer(signal.ITIMER_REAL)
            if clock.monotonic() + remaining_s <= deadline + TOLERANCE_S:
                return


PROCESS_FENCE: Final = KernelTimer()
