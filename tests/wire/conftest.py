"""A world for the ungater, replicas that end with their test, and a server that knows the webhook.

Modules about other services have fixtures of the same names for theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from rackgate.kube.client import Client
from rackgate.runtime import clock
from tests.support import steadytime
from tests.support.apiserver import FakeApiServer
from tests.wire.ungater_world import Replica, World
from tests.wire.webhook_world import register

Start = Callable[..., Replica]


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests about Leases or timeouts of some seconds run on clocks that leave out stalls."""
    if item.get_closest_marker("steady_clock"):
        return {"steady": steadytime.SteadyLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _steady(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("steady_clock"):
        monkeypatch.setattr(clock, "monotonic", steadytime.monotonic)
        monkeypatch.setattr(clock, "now", steadytime.steady(clock.now))


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
