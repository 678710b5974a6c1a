"""The ungater as a process: settings, lease, readiness, a clean stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
import yaml

from rackgate.kube.resources import LEASES
from tests.support.apiserver import FakeApiServer
from tests.support.waiting import until
from tests.wire.ungater_world import R1, World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with FakeApiServer() as server:
        yield World(server)


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
        "connection": {"server": world.server.url, "requestTimeout": 2},
        "health": {"host": "127.0.0.1", "port": port},
        "leaderElection": {"leaseDuration": 4},
        "batchWindow": 0.05,
        "identity": f"replica-{port}",
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def holder(world: World) -> str:
    lease = world.server.get(LEASES, "rackgate-ungater", "rackgate-system")
    return str(lease["spec"].get("holderIdentity", "")) if lease else ""


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
    async with asyncio.timeout(15):
        while not await ready(port):
            await asyncio.sleep(0.05)


@pytest.mark.requirement("OPS-08", "UNG-15")
async def test_a_clean_stop_hands_over_to_the_standby_at_once(
    world: World, tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    ports = [unused_tcp_port_factory() for _ in range(2)]
    world.workload({R1: 2})
    first = await run("--config", config(tmp_path, world, ports[0]))
    second = None
    try:
        await until(lambda: holder(world), within_s=15)
        second = await run("--config", config(tmp_path, world, ports[1]))
        await until_ready(ports[1])
        assert holder(world) == f"replica-{ports[0]}"
        world.pod(0)
        await world.released(1)
        first.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(first.wait(), 10) == 0
        assert holder(world) != f"replica-{ports[0]}"
        world.pod(1)
        await world.released(2)
        assert holder(world) == f"replica-{ports[1]}"
        second.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(second.wait(), 10) == 0
        assert holder(world) == ""
    finally:
        for process in filter(None, (first, second)):
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.mark.requirement("OPS-11")
async def test_unknown_settings_are_refused_with_their_path() -> None:
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
