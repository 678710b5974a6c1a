"""Real processes under SIGSTOP at drawn moments, longer than their Leases: never a late write."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rackgate.api.resources import JOBS, LEASES
from rackgate_ungater.shards.handover import SHARDS, lease_name
from tests.support.apiserver import FakeApiServer
from tests.support.objects import RACK
from tests.wire import assigner_world, ungater_world
from tests.wire.stopped_world import Writes, eventually, replicas
from tests.wire.ungater_world import R1, R2, uid_in

SYSTEM = "rackgate-system"


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print(f"moments drawn with seed {seed}")
    return random.Random(seed)


def holder(server: FakeApiServer, lease: str) -> str:
    found = server.get(LEASES, lease, SYSTEM) or {"spec": {}}
    return str(found["spec"].get("holderIdentity", ""))


def shards(server: FakeApiServer) -> Counter[str]:
    return Counter(holder(server, lease_name(number)) for number in range(SHARDS))


@contextlib.asynccontextmanager
async def going_on(work: AsyncIterator[None]) -> AsyncIterator[None]:
    """Traffic in the background."""

    async def run() -> None:
        async for _ in work:
            pass

    task = asyncio.create_task(run())
    try:
        yield
        assert not task.done(), "traffic went on all the time"
    finally:
        task.cancel()
        await asyncio.wait((task,))


WORKLOADS, PLACES, PODS = 32, 20, 24


async def pods_come(world: ungater_world.World) -> AsyncIterator[None]:
    """More pods than places, one after the other."""
    for number in range(PODS):
        for workload in range(WORKLOADS):
            world.pod(number, workload=f"w{workload}")
            await asyncio.sleep(0.01)
            yield
    while True:
        await asyncio.sleep(1.0)
        yield


@pytest.mark.requirement("UNG-15", "UNG-10", "OPS-12")
@pytest.mark.timeout(600)
async def test_an_ungater_stopped_at_any_moment_writes_nothing_late(
    tmp_path: Path, rng: random.Random
) -> None:
    async with FakeApiServer() as server:
        world, writes = ungater_world.World(server), Writes(server)
        for number in range(WORKLOADS):
            # Each shard has some: so whoever holds one does write.
            uid = uid_in(number % SHARDS, number // SHARDS)
            world.workload({R1: PLACES // 2, R2: PLACES // 2}, name=f"w{number}", uid=uid)
        # None of these four is the best of all for fewer than three shards.
        names = ["first", "second", "third", "fourth"]
        options = {"batchWindow": 0.05, "expectationTimeout": 2}
        async with replicas("ungater", server, tmp_path, names, **options) as running:
            await eventually(lambda: shards(server).keys() == set(names))
            async with going_on(pods_come(world)):
                await eventually(lambda: all(writes.of(name, "/pods/") for name in names))
                *victims, survivor = rng.sample(names, len(names))
                for name in victims:
                    await asyncio.sleep(rng.uniform(0.0, 1.5))
                    running[name].stop()
                await eventually(lambda: shards(server) == {survivor: SHARDS})
                for name in victims:
                    await asyncio.sleep(rng.uniform(0.0, 0.3))
                    await running[name].dies_when_continued()
                total = WORKLOADS * PLACES
                await eventually(lambda: len(world.domains()) >= total)
            for name in victims:
                running[name].wrote_nothing_late(writes)
            placed = Counter((pod.partition("-")[0], at) for pod, at in world.domains().items())
            assert set(placed.values()) == {PLACES // 2}
            assert running[survivor].process.returncode is None


async def jobs_come(world: assigner_world.World) -> AsyncIterator[None]:
    """One Job after the other; the oldest one is done as soon as it runs."""
    number = 0
    while True:
        world.submit(f"job-{number}", 2, required=RACK)
        number += 1
        for item in list(world._objects[JOBS.full_name].values()):
            if item["spec"]["suspend"] is False and item["status"].get("active"):
                world.complete(item["metadata"]["name"])
        await asyncio.sleep(0.05)
        yield


async def led(world: assigner_world.World, writes: Writes, stopped: list[str]) -> str:
    """Wait until a replica that is not stopped acts; returns its name."""
    await eventually(lambda: holder(world, "rackgate-assigner") not in ("", *stopped))
    leader = holder(world, "rackgate-assigner")
    await eventually(lambda: writes.of(leader, "/workloads"))
    return leader


@pytest.mark.requirement("OPS-06", "OPS-12")
@pytest.mark.timeout(600)
async def test_an_assigner_stopped_at_any_moment_writes_nothing_late(
    tmp_path: Path, rng: random.Random
) -> None:
    async with assigner_world.World() as world:
        assigner_world.furnish(world)
        writes = Writes(world)
        names = ["a", "b", "c"]
        async with replicas("assigner", world, tmp_path, names) as running:
            async with going_on(jobs_come(world)):
                stopped: list[str] = []
                for _ in names[1:]:
                    leader = await led(world, writes, stopped)
                    await asyncio.sleep(rng.uniform(0.0, 1.5))
                    running[leader].stop()
                    stopped.append(leader)
                    await led(world, writes, stopped)
                    await running[leader].dies_when_continued()
            for name in stopped:
                running[name].wrote_nothing_late(writes)
            assert world.broken_rules == []
