"""A store that was restored from a backup: the ungater as a process ends, and starts anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rackgate_cli.controlplane import ports
from rackgate_ungater.shards import SHARDS
from tests.support.apiserver import FakeApiServer
from tests.support.waiting import until
from tests.wire.test_ungater_process import config, holders, run
from tests.wire.ungater_world import R1, World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with FakeApiServer() as server:
        yield World(server)


@pytest.fixture
def port() -> Iterator[int]:
    with ports.reserved({"health": None}) as held:
        yield held["health"]


@pytest.mark.requirement("UNG-18")
async def test_pods_that_a_backup_gates_again_are_released_again_by_who_remembers_nothing(
    world: World, tmp_path: Path, port: int
) -> None:
    """Whoever remembers their release by its version would wait for a newer one for ever."""
    path = config(tmp_path, world, port)
    world.workload({R1: 1})
    world.pod(0)
    backup = world.server.backup()
    soon = "--set=leaderElection.leaseDuration=7"  # silence is noticed after twice that
    first = await run("--config", path, soon)
    second = None
    try:
        await world.released(1)
        await until(lambda: holders(world) == {f"replica-{port}"})
        for _ in range(10_000):  # as a cluster does in minutes: not made up for at once
            world.server.compact()
        world.server.bookmark()
        asked = len(world.server.requests)
        await until(lambda: len(world.server.requests) > asked + 2 * SHARDS)  # it has read that
        await world.server.stop()
        world.server.restore(backup)
        await world.server.start()
        # Leases are renewed all the time: their silence is noticed first.
        _, log = await asyncio.wait_for(first.communicate(), 120)
        assert first.returncode == 1
        assert b"restored from a backup" in log.splitlines()[-1]
        second = await run("--config", path, soon)
        await world.released(1)
    finally:
        for process in filter(None, (first, second)):
            if process.returncode is None:
                process.kill()
                await process.communicate()
