"""How long this machine stood still, as far as a process sees it: how late its own loop was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tests.support.reviewed import PATIENCE_S

EVERY_S: Final = 0.1
# Less is a busy machine, which is no excuse.
LEAST_S: Final = 0.5


class Standstills:
    """Times at which the loop was late, and by how much; see `standstills`."""

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []

    def excuse(self, begun: float) -> bool:
        """Whether a call sent at loop time `begun` may have failed just now for that alone.

        Whoever reviews gives up after a while, and a machine that stands still for so long gives
        nobody the time to answer.
        """
        return sum(late for at, late in self._late if at >= begun) >= PATIENCE_S

    async def follow(self) -> None:
        """Take notes until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(EVERY_S)
            late = loop.time() - before - EVERY_S
            if late > LEAST_S:
                self._late.append((loop.time(), late))


@asynccontextmanager
async def standstills() -> AsyncIterator[Standstills]:
    """Take notes while the block runs."""
    seen = Standstills()
    following = asyncio.create_task(seen.follow())
    try:
        yield seen
    finally:
        following.cancel()
