"""Start tasks: every task has a name, and an owner that sees its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def spawn(group: asyncio.TaskGroup, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start `coro` as a named task of `group`; a failure cancels the whole group."""
    return group.create_task(coro, name=name)


def start(coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start `coro` as a named task that the caller itself awaits or cancels.

    Prefer `spawn`: here only the caller that awaits the task sees a failure.
    """
    return asyncio.create_task(coro, name=name)


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended.

    A caller that is cancelled meanwhile ends as cancelled. `await task` under
    `suppress(CancelledError)` would swallow that, and the caller would go on for ever.

    Raises:
        Exception: the task's own failure.
    """
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waits = [start(event.wait(), "event") for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
