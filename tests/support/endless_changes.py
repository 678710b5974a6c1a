"""Changes of objects by their user that do not end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.errors import KubeError
from tests.support.cluster import Cluster, until

# Clients that write at the same time: the API server has always one more change at hand.
CLIENTS = 16
CHANGED = "example.com/changed"

Named = tuple[Resource, str]


@asynccontextmanager
async def changed_without_end(
    tenant: Cluster, find: Callable[[], Awaitable[Iterable[Named]]]
) -> AsyncIterator[None]:
    """Change the annotations of objects, and of the templates in them, until the end."""
    count = itertools.count()
    changes = 0

    async def change() -> None:
        nonlocal changes
        while True:
            note = {"metadata": {"annotations": {CHANGED: str(next(count))}}}
            for kind, name in await find():
                with suppress(KubeError):
                    await tenant.merge(kind, name, note)
                    changes += 1
                if kind is kinds.JOBS:  # as long as it does not run, the template, too
                    with suppress(KubeError):
                        await tenant.merge(kind, name, {"spec": {"template": note}})

    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(change()) for _ in range(CLIENTS)]

        async def many() -> bool:
            return changes > CLIENTS

        await until("the objects are changed", many)
        before = changes
        yield
        assert changes > before
        for client in clients:
            client.cancel()
