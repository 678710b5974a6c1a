"""Time of one call, measured so that another program's turn on the core does not count."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Final

ROUNDS: Final = 5


def best_us(calls: Mapping[str, Callable[[], object]], number: int) -> dict[str, float]:
    """CPU microseconds of one turn of each call, the best of several rounds.

    The calls take turns, so that a slow moment of the machine falls on all of them.

    Args:
        calls: by name; each does its work `number` times.
        number: what the time is divided by.
    """
    best = dict.fromkeys(calls, float("inf"))
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for name, call in calls.items():
                before = time.process_time()
                call()
                best[name] = min(best[name], (time.process_time() - before) / number * 1e6)
                gc.collect()
    finally:
        gc.enable()
    return best
