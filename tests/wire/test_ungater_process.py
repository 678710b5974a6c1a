"""The ungater as a process: settings, shards, readiness, a clean stop."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from rackgate.api.resources import LEASES
from rackgate_cli.controlplane import ports
from rackgate_ungater.shards.handover import SHARDS, lease_name
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until
from tests.wire.ungater_world import R1, World

DURATION_S = 12  # much longer than a busy machine needs for a hand-over


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with FakeApiServer() as server:
        yield World(server)


@pytest.fixture
def health_ports() -> Iterator[list[int]]:
    """Two that nobody else gets until the test is over."""
    with ports.reserved({"first": None, "second": None}) as held:
        yield list(held.values())


async def run(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rackgate_ungater",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def config(folder: Path, world: World, port: int) -> str:
    path = folder / f"{port}.yaml"
    document = {
        "apiVersion": "config.rackgate.dev/v1alpha1",
        "kind": "UngaterConfiguration",
        "connection": {"server": world.server.url, "requestTimeout": 5},
        "health": {"host": "127.0.0.1", "port": port},
        "leaderElection": {"leaseDuration": DURATION_S},
        "batchWindow": 0.05,
        "identity": f"replica-{port}",
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def holders(world: World) -> set[str]:
    """Who holds the shards; "" stands for shards that nobody holds."""
    leases = [world.server.get(LEASES, lease_name(n), "rackgate-system") for n in range(SHARDS)]
    return {str((lease or {}).get("spec", {}).get("holderIdentity", "")) for lease in leases}


async def ready(port: int) -> bool:
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{port}/readyz") as answer,
        ):
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def until_ready(port: int) -> None:
    async with asyncio.timeout(120):
        while not await ready(port):
            await asyncio.sleep(0.05)


@pytest.mark.requirement("OPS-08", "UNG-15")
async def test_a_clean_stop_hands_over_to_the_other_at_once(
    world: World, tmp_path: Path, health_ports: list[int]
) -> None:
    names = [f"replica-{port}" for port in health_ports]
    world.workload({R1: 2})
    first = await run("--config", config(tmp_path, world, health_ports[0]))
    second = None
    try:
        await until(lambda: holders(world) == {names[0]})
        world.pod(0)
        await world.released(1)
        second = await run("--config", config(tmp_path, world, health_ports[1]))
        await until_ready(health_ports[1])
        await until(lambda: holders(world) == set(names))
        first.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(first.wait(), 60) == 0
        stopped = time.monotonic()
        await until(lambda: holders(world) == {names[1]})
        assert time.monotonic() - stopped < DURATION_S, "without waiting for a Lease to run out"
        world.pod(1)
        await world.released(2)
        second.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(second.wait(), 60) == 0
        assert holders(world) == {""}
    finally:
        for process in filter(None, (first, second)):
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.mark.requirement("UNG-17")
@pytest.mark.field_note("U10")
async def test_leases_do_not_wait_behind_requests_that_release_pods(
    world: World, tmp_path: Path, health_ports: list[int]
) -> None:
    """As the process is wired: they have a budget of their own, beside the one that is used up."""
    under_way, answered = 0, asyncio.Event()

    async def held(_: Any, handle: Any) -> Any:
        nonlocal under_way
        under_way += 1
        await answered.wait()
        under_way -= 1
        return await handle()

    world.server.faults.append(Fault(held, method="PATCH", path="/pods/", times=10**6))
    for number in range(3):
        world.workload({R1: 4}, name=f"w{number}")
        world.pods(*range(4), workload=f"w{number}")
    path = config(tmp_path, world, health_ports[0])
    options = ("ungating.concurrency=2", "connection.requestTimeout=30")
    process = await run("--config", path, *(f"--set={option}" for option in options))
    try:
        await until(lambda: under_way == 2)
        renewals = len(world.asked("PUT", "/leases/"))
        # As many as a whole term of all Leases takes: without them the process would be dead.
        await until(lambda: len(world.asked("PUT", "/leases/")) >= renewals + 4 * SHARDS)
        assert process.returncode is None
        assert under_way == 2, "over all Workloads, and nothing of it was answered"
        answered.set()
        await world.released(12)
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.requirement("OPS-11")
async def test_unknown_settings_are_rejected_with_their_path() -> None:
    process = await run("--set", "ungating.speed=9")
    _, error = await process.communicate()
    assert process.returncode == 2
    assert b'ungating: unknown key "speed"' in error


async def test_help_and_version_answer() -> None:
    for flag, words in (("--help", b"batchWindow"), ("--version", b"rackgate-ungater ")):
        process = await run(flag)
        output, _ = await process.communicate()
        assert process.returncode == 0
        assert words in output
