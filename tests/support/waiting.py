"""Waiting for conditions, never for fixed times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    """Return as soon as `condition` holds.

    Raises:
        AssertionError: not within `within_s` seconds.
    """
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {within_s} s")
        await asyncio.sleep(0.002)
