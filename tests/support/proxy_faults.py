"""What a proxy does to requests, and when: plain data and seeded dice, no I/O.

faults = Faults("seed 7, assigner-0")
faults.open(Kind.LOSE, start=clock(), seconds=5, rate=0.1)
faults.drawn(Kind.LOSE, now, "PATCH")    # the window that strikes this request, or None
faults.trap = Trap(3, "before", kill)     # at the third write from now on
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

When = Literal["before", "after"]


class Kind(StrEnum):
    """What can happen to one request."""

    LATENCY = "latency"  # it arrives late, and so does every event of a watch
    DROP = "drop"  # the connection breaks before it was applied
    LOSE = "lose"  # the connection breaks after it was applied
    HANG = "hang"  # it is applied, and the answer never comes
    CONFLICT = "conflict"  # 409 is answered, nothing was applied
    TOUCH = "touch"  # another writer changes the object first
    THROTTLE = "throttle"  # 429 with Retry-After
    FAIL = "fail"  # 500, nothing was applied


# Verbs that a kind strikes; all others are passed on untouched.
STRIKES: dict[Kind, frozenset[str]] = {
    Kind.LATENCY: frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"}),
    Kind.DROP: frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"}),
    Kind.LOSE: frozenset({"POST", "PUT", "PATCH", "DELETE"}),
    Kind.HANG: frozenset({"POST", "PUT", "PATCH", "DELETE"}),
    Kind.CONFLICT: frozenset({"PUT", "PATCH"}),
    Kind.TOUCH: frozenset({"PUT", "PATCH"}),
    Kind.THROTTLE: frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"}),
    Kind.FAIL: frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"}),
}


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which one kind of fault strikes.

    Attributes:
        start, end: monotonic seconds.
        rate: share of the requests that are struck.
        value: seconds, for latency, hanging and Retry-After.
    """

    kind: Kind
    start: float
    end: float
    rate: float = 1.0
    value: float = 0.0


@dataclass
class Trap:
    """Something that happens at exactly one write.

    Attributes:
        number: which write from now on; 1 is the next one.
        when: before it is applied, or after it was and before the answer.
        action: called in the proxy's thread.
        breaks: whether the connection breaks there, as it does when the sender died.
        triggered: set once it has happened.
    """

    number: int
    when: When
    action: Callable[[], None]
    breaks: bool = True
    triggered: threading.Event = field(default_factory=threading.Event)


class Faults:
    """The faults of one listener. Changed by the harness, asked by the proxy's thread.

    Attributes:
        counts: how many requests each kind struck; may be shared between listeners.
    """

    def __init__(self, seed: str, counts: Counter[str] | None = None) -> None:
        self._dice = random.Random(seed)
        self._windows: tuple[Window, ...] = ()
        self._traps: tuple[Trap, ...] = ()
        self.counts = Counter() if counts is None else counts

    def open(
        self, kind: Kind, *, start: float, seconds: float, rate: float = 1.0, value: float = 0.0
    ) -> None:
        """Add a window of `seconds` from `start`."""
        self._windows = (*self._windows, Window(kind, start, start + seconds, rate, value))

    def clear(self) -> None:
        """No faults any more."""
        self._windows, self._traps = (), ()

    def set_trap(self, trap: Trap) -> None:
        """Wait for that trap's write; others go on waiting for theirs."""
        self._traps = (*self._traps, trap)

    def drop_trap(self, trap: Trap) -> None:
        """Wait for it no longer."""
        self._traps = tuple(other for other in self._traps if other is not trap)

    def active(self, kind: Kind, now: float) -> Window | None:
        """The window of that kind that is open now, if any."""
        for window in self._windows:
            if window.kind is kind and window.start <= now < window.end:
                return window
        return None

    def drawn(self, kind: Kind, now: float, verb: str) -> Window | None:
        """The window that strikes this request; counts it."""
        window = self.active(kind, now)
        if window is None or verb not in STRIKES[kind] or self._dice.random() >= window.rate:
            return None
        self.counts[kind.value] += 1
        return window

    def reached(self) -> Trap | None:
        """Count one write down; a trap whose write it is."""
        found = None
        for trap in self._traps:
            trap.number -= 1
            if trap.number <= 0 and found is None:
                found = trap
        if found is not None:
            self.drop_trap(found)
        return found


def status_answer(code: int, reason: str, message: str) -> bytes:
    """A Status object as the API server answers it."""
    return json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "reason": reason,
            "message": message,
            "code": code,
        }
    ).encode()


REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError"}


def error_event(code: int) -> bytes:
    """The line of a watch that ends it with an error."""
    status = status_answer(code, REASONS.get(code, ""), "injected")
    return b'{"type":"ERROR","object":' + status + b"}\n"
