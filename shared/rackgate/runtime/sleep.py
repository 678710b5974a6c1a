"""Waiting that ends early when there is nothing left to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rackgate.runtime import clock

# How soon it is noticed that a deadline was brought forward: nothing tells of that.
RECHECK_S: Final = 0.25


async def sleep_until(wait_s: float, deadline: Callable[[], float] | None = None) -> None:
    """Let time pass, but no longer than until a deadline.

    Args:
        wait_s: seconds.
        deadline: monotonic seconds after which waiting is no use; asked again and again, as it
            may come closer. None for no such limit.
    """
    until = clock.monotonic() + wait_s
    while (left_s := until - clock.monotonic()) > 0:
        if deadline is None:
            await asyncio.sleep(left_s)
        elif (deadline_in_s := deadline() - clock.monotonic()) <= 0:
            return
        else:
            await asyncio.sleep(min(left_s, deadline_in_s, RECHECK_S))
