"""Calls a function again whenever an object that a report shows has changed, and now and then.

What happens in other namespaces changes positions and the usage of ClusterQueues without an event
here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import GoneError, TransportError
from rackgate.runtime.tasks import spawn
from rackgate_cli.errors import first_error

# Least time between two calls: each reads whole lists.
PAUSE_S: Final = 1.0
# Most time between two calls.
REFRESH_S: Final = 15.0
_WATCHED: Final = {"queues": kinds.LOCAL_QUEUES, "workloads": kinds.WORKLOADS}


async def call_on_changes(
    client: Client, report: str, namespace: str | None, act: Callable[[], Awaitable[None]]
) -> None:
    """Call `act` after changes, and at least every `REFRESH_S`, without end.

    Args:
        client: only reads.
        report: `queues` or `workloads`.
        namespace: None for all.
        act: reads the report and prints what has changed.

    Raises:
        CommandError: `act` raised it.
        KubeError: the objects cannot be watched, or `act` raised it.
    """
    changed = asyncio.Event()
    path = _WATCHED[report].path(namespace)

    async def watch() -> None:
        while True:
            try:
                # Without a version it begins with what is stored: nothing is missed.
                async with aclosing(client.watch_batches(path)) as batches:
                    async for lines in batches:
                        if lines:
                            changed.set()
            except (TransportError, GoneError):
                changed.set()
            await asyncio.sleep(PAUSE_S)

    try:
        async with asyncio.TaskGroup() as group:
            spawn(group, watch(), f"watch {report}")
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH_S):
                        await changed.wait()
                changed.clear()
                await act()
                await asyncio.sleep(PAUSE_S)
    except BaseExceptionGroup as errors:
        raise first_error(errors) from errors
