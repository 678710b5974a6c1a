"""A world for the ungater, and replicas that end with their test.

Modules about other services have fixtures of the same names for theirs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.apiserver import FakeApiServer
from tests.wire.ungater_world import Replica, World

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
