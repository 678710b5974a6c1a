"""Every task has an owner, a name, and somebody who hears when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

from rackgate.runtime.backoff import Backoff

T = TypeVar("T")

log = structlog.get_logger()


def spawn(group: asyncio.TaskGroup, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start `coro` as a named task of `group`; its failure ends the whole group."""
    return group.create_task(coro, name=name)


def start(coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start `coro` as a named task that the caller itself awaits or cancels.

    Prefer `spawn`: here a failure is heard only by who awaits the task.
    """
    return asyncio.create_task(coro, name=name)


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waits = [start(event.wait(), "event") for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def supervise(
    name: str, work: Callable[[], Awaitable[None]], *, backoff: Backoff | None = None
) -> None:
    """Run `work` again and again when it fails, waiting longer each time.

    For loops whose failure must not end the service. Ends when `work` returns, or when the
    task is cancelled.
    """
    pause = backoff or Backoff(base_s=0.5, cap_s=30.0)
    while True:
        started = asyncio.get_running_loop().time()
        try:
            await work()
        except Exception:
            # A long healthy run is not the same failure again.
            if asyncio.get_running_loop().time() - started > pause.cap_s:
                pause.reset()
            wait_s = pause.next()
            log.exception("task_failed", task=name, retry_in_s=round(wait_s, 3))
            await asyncio.sleep(wait_s)
        else:
            return
