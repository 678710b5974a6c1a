"""A process that follows another one in the same pod takes its Leases back: two real processes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rackgate.api.resources import LEASES
from rackgate_cli.controlplane import ports
from rackgate_ungater.shards.handover import SHARDS, lease_name
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until
from tests.wire.test_ungater_process import config, holders, ready, run, until_ready
from tests.wire.ungater_world import R1, World

pytestmark = [pytest.mark.requirement("OPS-06", "UNG-15"), pytest.mark.timeout(300)]
# Each far more than a busy machine needs to start a process.
DURATION_S, REQUEST_S = 90.0, 20.0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with FakeApiServer() as server:
        yield World(server)


@pytest.fixture
def port() -> Iterator[int]:
    with ports.reserved({"health": None}) as held:
        yield held["health"]


@pytest.fixture
def other_port() -> Iterator[int]:
    with ports.reserved({"health": None}) as held:
        yield held["health"]


class Pod:
    """Containers with one state folder, one after the other."""

    def __init__(self, world: World, folder: Path, port: int) -> None:
        self.world, self.port, self.state = world, port, folder / "state"
        self._config = config(folder, world, port)
        self._started: list[asyncio.subprocess.Process] = []

    async def container(self, *options: str) -> asyncio.subprocess.Process:
        lease = f"--set=leaderElection.leaseDuration={DURATION_S:.0f}"
        state = f"--set=leaderElection.stateDir={self.state}"
        request = f"--set=connection.requestTimeout={REQUEST_S:.0f}"
        process = await run("--config", self._config, lease, state, request, *options)
        self._started.append(process)
        return process

    async def holds_all(self) -> None:
        await until(lambda: holders(self.world) == {f"replica-{self.port}"})

    async def end(self) -> None:
        for process in self._started:
            if process.returncode is None:
                await killed(process)


@asynccontextmanager
async def pod_of(world: World, folder: Path, port: int) -> AsyncIterator[Pod]:
    pod = Pod(world, folder, port)
    try:
        yield pod
    finally:
        await pod.end()


def tenures(world: World) -> set[Any]:
    """When each shard was taken last."""
    found = [world.server.get(LEASES, lease_name(n), "rackgate-system") for n in range(SHARDS)]
    return {(lease or {}).get("spec", {}).get("acquireTime") for lease in found}


async def killed(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.communicate()


async def test_a_restarted_container_goes_on_where_a_killed_one_stopped(
    world: World, tmp_path: Path, port: int
) -> None:
    world.workload({R1: 2})
    async with pod_of(world, tmp_path, port) as pod:
        first = await pod.container()
        await pod.holds_all()
        world.pod(0)
        await world.released(1)
        before = tenures(world)
        await killed(first)
        died = time.monotonic()
        world.pod(1)
        await pod.container()
        await world.released(2)
        assert time.monotonic() - died < DURATION_S, "without waiting for a Lease to run out"
        await until(lambda: not tenures(world) & before)


async def test_what_the_killed_one_sent_is_waited_for(
    world: World, tmp_path: Path, port: int
) -> None:
    """It may still be applied, after the successor has counted."""
    sent: list[float] = []

    async def under_way(_: web.Request, __: Any) -> web.StreamResponse:
        sent.append(time.monotonic())
        await asyncio.sleep(3600)
        raise AssertionError

    world.workload({R1: 1})
    async with pod_of(world, tmp_path, port) as pod:
        first = await pod.container()
        await pod.holds_all()
        world.server.faults.append(Fault(under_way, method="PATCH", path="/pods/"))
        world.pod(0)
        await until(lambda: sent)
        before = tenures(world)
        await killed(first)
        await pod.container()
        await until(lambda: not tenures(world) & before)
        taken = time.monotonic()
        # What it sent after that patch, to renew its Leases, was sent later still.
        assert REQUEST_S - 0.5 <= taken - sent[0] < DURATION_S
        await world.released(1)


async def test_nothing_is_taken_from_who_only_stands_still(
    world: World, tmp_path: Path, port: int, other_port: int
) -> None:
    async with pod_of(world, tmp_path, port) as pod:
        first = await pod.container()
        await pod.holds_all()
        before = tenures(world)
        first.send_signal(signal.SIGSTOP)
        try:
            await pod.container(f"--set=health.port={other_port}")
            await until_ready(other_port)
            with pytest.raises(AssertionError):
                await until(lambda: tenures(world) != before, within_s=3)
        finally:
            first.send_signal(signal.SIGCONT)
        assert await ready(port)
