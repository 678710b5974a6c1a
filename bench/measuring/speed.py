"""How fast the machine is meanwhile: a virtual one may lose a third of its speed in a minute."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Final

_ITERATIONS: Final = 20_000
_INTERVAL_S: Final = 2.0


def loop_ms() -> float:
    """CPU milliseconds of a loop that is always the same."""
    began = time.process_time()
    total = 0
    for number in range(_ITERATIONS):
        total += number * number
    return (time.process_time() - began) * 1000


class Speed:
    """Times the loop until cancelled; it takes a fifth of a percent of a core."""

    def __init__(self) -> None:
        self._found: list[float] = []

    @property
    def mean_ms(self) -> float:
        """Mean CPU milliseconds of the loop so far; 0 before the first."""
        return statistics.fmean(self._found) if self._found else 0.0

    async def run(self) -> None:
        """Time the loop again and again."""
        while True:
            self._found.append(loop_ms())
            await asyncio.sleep(_INTERVAL_S)
