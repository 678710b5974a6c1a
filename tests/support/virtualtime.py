"""An event loop whose clock jumps to the next timer: tests of time take none."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Never waits; tells the loop how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everything waits, and no timer runs")
        if not ready and timeout:
            self.passed_s += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        # Far from zero and from the real clock: mixed clocks show.
        self._offset_s = 1_000_000.0
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._offset_s + self._jumping.passed_s


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Run `coro` on a virtual clock that starts at a million seconds."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(coro)
