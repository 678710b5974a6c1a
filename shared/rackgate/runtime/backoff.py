"""Waiting: exponential backoff with jitter, and sleeping with a deadline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable
from typing import Final

from rackgate.runtime import clock

# No signal is sent when a deadline moves to an earlier time, so a sleep checks it this often.
DEADLINE_CHECK_S: Final = 0.25


class Backoff:
    """Exponential backoff per key.

    The n-th wait of a key is random between half of and the full `base_s * 2**n`, capped at
    `cap_s`. The jitter keeps clients from retrying together; no wait is close to zero.
    """

    def __init__(
        self, base_s: float = 0.2, cap_s: float = 30.0, rng: random.Random | None = None
    ) -> None:
        self.base_s, self.cap_s = base_s, cap_s
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._failures: dict[Hashable, int] = {}

    def next(self, key: Hashable = None) -> float:
        """Count one more failure of `key`; return the seconds to wait."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # The exponent is capped: a float overflows after a few hundred failures.
        full = min(self.cap_s, self.base_s * 2.0 ** min(failures, 64))
        return full * (0.5 + self._rng.random() / 2)

    def failures(self, key: Hashable = None) -> int:
        """Failures of `key` since its last success."""
        return self._failures.get(key, 0)

    def reset(self, key: Hashable = None) -> None:
        """Start over with `key`, after a success or its deletion."""
        self._failures.pop(key, None)


async def sleep_until(wait_s: float, deadline: Callable[[], float] | None = None) -> None:
    """Sleep for `wait_s` seconds, but not beyond a deadline.

    `deadline` returns monotonic seconds. It is called repeatedly, as a deadline may move.
    """
    until = clock.monotonic() + wait_s
    while (left_s := until - clock.monotonic()) > 0:
        if deadline is None:
            await asyncio.sleep(left_s)
        elif (deadline_in_s := deadline() - clock.monotonic()) <= 0:
            return
        else:
            await asyncio.sleep(min(left_s, deadline_in_s, DEADLINE_CHECK_S))
