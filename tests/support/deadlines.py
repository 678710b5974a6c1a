"""Waiting for what a cluster is to show, up to a generous limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rackgate.kube.errors import NotFoundError

T = TypeVar("T")
DEADLINE_S = 90.0
NOT_YET = (LookupError, TypeError, ValueError, NotFoundError)
"""What a probe raises that reads a field, or an object, which is not there yet."""


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

    A probe reads what others write. An object without the field yet (LookupError, or a TypeError or
    ValueError of what is read from it), or no object yet, is an answer like any other that is not
    true: it is asked again. If it is still so at the end, the error tells what the probe raised.

    Args:
        what: what is waited for, in words.
        probe: asked again and again.
        timeout_s: seconds until it is given up.
        seen: what to tell then, where the last value of `probe` says too little.
        every_s: seconds between two questions.

    Raises:
        WaitedTooLongError: with what was seen last.
        Exception: any other error of `probe`, at once.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while True:
        last: object
        cause = None
        try:
            value = await probe()
            if value:
                return value
            last = value
        except NOT_YET as error:
            last = cause = error
        if loop.time() > end:
            last = last if seen is None else seen()
            raise WaitedTooLongError(
                f"{what}: not within {timeout_s:g} s; last seen: {last!r}"
            ) from cause
        await asyncio.sleep(every_s)
