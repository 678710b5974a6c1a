"""A world for the ungater, replicas that end with their test, and a server that knows the webhook.

Modules about other services have fixtures of the same names for theirs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from rackgate.kube.client import Client
from tests.support.apiserver import FakeApiServer
from tests.wire.ungater_world import Replica, World
from tests.wire.webhook_world import register

Start = Callable[..., Replica]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with FakeApiServer() as server:
        yield World(server)


@pytest.fixture
async def start(world: World) -> AsyncIterator[Start]:
    replicas: list[Replica] = []

    def started(*, lead: bool = True, **settings: Any) -> Replica:
        replicas.append(Replica(world.server, **settings))
        if lead:
            replicas[-1].lead()
        return replicas[-1]

    yield started
    for replica in replicas:
        await replica.kill()


@pytest_asyncio.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    """With the registrations of the webhook, which nobody has filled in."""
    async with FakeApiServer() as running:
        register(running)
        yield running


@pytest_asyncio.fixture
async def client(api: FakeApiServer) -> AsyncIterator[Client]:
    running = api.client()
    yield running
    await running.close()
