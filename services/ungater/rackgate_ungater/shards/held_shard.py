"""One shard while a replica acts on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rackgate.runtime.tasks import start


@dataclass(frozen=True, eq=False, slots=True)
class HeldShard:
    """How long and under which deadline a replica acts on the Workloads of a shard.

    Attributes:
        task_group: reconciles its Workloads; ended together with the tenure.
        deadline: monotonic second until which requests may be sent.
        leave: set when nothing new may begin.
    """

    task_group: asyncio.TaskGroup
    deadline: Callable[[], float]
    leave: asyncio.Event


async def run_unless(leave: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Wait for `work`, or until `leave` is set: False then, and the work is given up."""
    working, leaving = start(work, "before leading"), start(leave.wait(), "leave")
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not leave.is_set():
            working.result()
        return not leave.is_set()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait((working, leaving))
