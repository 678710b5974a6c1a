"""A store that was restored from a backup: the ungater as a process ends, and starts anew."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rackgate.api.resources import WORKLOADS
from rackgate.kube.errors import RewoundError
from rackgate_cli.controlplane import ports
from rackgate_ungater.shards.handover import SHARDS
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until
from tests.wire.test_ungater_process import DURATION_S, config, holders, run
from tests.wire.ungater_world import R1, Replica, World


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
    first = await run("--config", path)
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
        back = time.monotonic()
        _, log = await asyncio.wait_for(first.communicate(), 120)
        assert time.monotonic() - back < DURATION_S, "before a watch counts as dead"
        assert first.returncode == 1
        assert b"restored from a backup" in log.splitlines()[-1]
        second = await run("--config", path)
        await world.released(1)
    finally:
        for process in filter(None, (first, second)):
            if process.returncode is None:
                process.kill()
                await process.communicate()


@pytest.mark.requirement("UNG-11", "UNG-18")
async def test_a_live_read_of_an_older_workload_releases_nothing_ever_after(
    world: World, start: Callable[..., Replica]
) -> None:
    """No stream breaks where the connections end at a balancer."""
    admitted = world.workload({R1: 3})
    world.pods(0, 1)
    read = asyncio.Event()

    async def of_the_older_store(_: web.Request, handle: Any) -> web.StreamResponse:
        await read.wait()
        return await handle()  # type: ignore[no-any-return]  # as the fake server made it

    look = Fault(of_the_older_store, method="GET", path="/workloads/")
    world.server.faults.append(look)
    waiting = json.loads(json.dumps(admitted))
    waiting["status"] = {}
    world.server.put(WORKLOADS, waiting)
    backup = world.server.backup()
    world.workload({R1: 3})
    replica = start(batch_window=1)
    await replica.knows(2)
    await until(lambda: replica.leads)
    await until(lambda: not look.times)
    looked = len(world.asked("GET", "/workloads/"))
    world.server.restore(backup)
    read.set()
    async with asyncio.timeout(20):
        with pytest.raises(RewoundError):
            await replica.client.versions.wait_rewound()
    assert len(world.asked("GET", "/workloads/")) == looked
    assert not world.asked("PATCH")
    assert not world.domains()


@pytest.mark.requirement("UNG-18")
async def test_while_the_store_is_in_question_no_pod_is_released(
    world: World, start: Callable[..., Replica]
) -> None:
    """An API server that was away may come back with another store."""
    world.workload({R1: 2})
    replica = start()
    await replica.synced()
    await until(lambda: replica.leads)
    world.pods(0)
    await world.released(1)
    await replica.has_no_open_requests()
    answer = asyncio.Event()

    async def when_told(_: web.Request, handle: Any) -> web.StreamResponse:
        await answer.wait()
        return await handle()  # type: ignore[no-any-return]  # as the fake server made it

    # The list alone: a live read of the Workload would hold the pod back as well.
    asked = Fault(when_told, method="GET", path=WORKLOADS.path(), watch=False, times=99)
    world.server.faults.append(asked)
    for stream in list(world.server.streams):
        if stream.target.full_name == WORKLOADS.full_name:
            stream.cut()
    await until(lambda: asked.times < 99)
    written = len(world.asked("PATCH"))
    world.pods(1)
    await replica.knows(2)
    with pytest.raises(AssertionError):
        await world.released(2, within_s=2)
    assert len(world.asked("PATCH")) == written
    answer.set()
    await world.released(2)
