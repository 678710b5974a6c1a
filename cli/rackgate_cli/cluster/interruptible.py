"""Run a command's conversation with a cluster until it ends or somebody presses Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does: an interrupt cancels it, a second one ends it at once.

    The signal handler of `asyncio.run` cancels in the middle of whatever runs. That can be a
    callback of the event loop that is about to set the result of what is then cancelled: the
    callback fails, and the user reads a traceback. Here the loop cancels, between two callbacks.

    Raises:
        KeyboardInterrupt: the work was interrupted.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return asyncio.run(work)  # the owner of the signal handles it
    tasks: list[asyncio.Task[Any]] = []
    interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        if interrupted or not tasks:
            raise KeyboardInterrupt
        interrupted = True
        task = tasks[0]
        if not task.done():  # else the loop is about to be closed
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def interruptible() -> T:
        task = asyncio.get_running_loop().create_task(work)
        tasks.append(task)
        return await task

    signal.signal(signal.SIGINT, interrupt)
    try:
        result = asyncio.run(interruptible())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:  # when nothing was left to be cancelled: what would follow must not happen
        raise KeyboardInterrupt
    return result
