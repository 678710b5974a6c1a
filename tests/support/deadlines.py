"""Waiting for what a cluster is to show, up to a generous limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 90.0


class WaitedTooLongError(AssertionError):
    """A condition that a test waits for did not come true in time."""


async def until(
    what: str,
    probe: Callable[[], Awaitable[T]],
    timeout_s: float = DEADLINE_S,
    seen: Callable[[], object] | None = None,
    every_s: float = 0.1,
) -> T:
    """Poll `probe` until it returns something true, and return that.

    Args:
        what: what is waited for, in words.
        probe: asked again and again.
        timeout_s: seconds until it is given up.
        seen: what to tell then, where the last value of `probe` says too little.
        every_s: seconds between two questions.

    Raises:
        WaitedTooLongError: with what was seen last.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while True:
        value = await probe()
        if value:
            return value
        if loop.time() > end:
            last = value if seen is None else seen()
            raise WaitedTooLongError(f"{what}: not within {timeout_s:g} s; last seen: {last!r}")
        await asyncio.sleep(every_s)
