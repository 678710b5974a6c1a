"""A Workload that waits is told why, but not each time that something moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest_asyncio

from rackgate.api import resources as kinds
from rackgate.runtime import clock
from rackgate_assigner.assigner import Assigner
from tests.support.objects import RACK, Object
from tests.wire.assigner_world import World, assigner, eventually, furnish, settings

INTERVAL_S = 1.0
# Of nodes; the last one is too small for any pod.
SIZES = ("4", "8", "4", "8", "3")


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with World() as running:
        furnish(running)
        yield running
        assert running.broken_rules == []


def _message(world: World) -> str:
    conditions = world.workload("train")["status"]["conditions"]
    return str(next(c["message"] for c in conditions if c["type"] == "QuotaReserved"))


def _writes(world: World) -> int:
    return sum("/status" in r.path and "job-train" in r.path for r in world.writes())


def _resize(world: World, nodes: list[str], cpu: str) -> None:
    def edit(node: Object) -> None:
        node["status"]["allocatable"] = {"cpu": cpu, "memory": "32Gi", "pods": "110"}

    for name in nodes:
        world.change(kinds.NODES, name, edit)


def _words_change(world: World, before: str) -> Callable[[], bool]:
    return lambda: _message(world) != before


def _planned_since(replica: Assigner, cycles: int) -> Callable[[], bool]:
    return lambda: replica.scheduler.cycles > cycles


async def test_without_an_interval_each_change_of_room_is_reported(world: World) -> None:
    async with assigner(world) as replica:
        world.submit("train", 5, required=RACK)
        await eventually(world.shows("train", "QuotaReserved", "False"))
        for cpu in SIZES:
            before = _message(world)
            _resize(world, sorted(replica.watches.nodes.store), cpu)
            await eventually(_words_change(world, before))


async def test_words_alone_are_written_once_an_interval_and_the_last_ones_in_the_end(
    world: World,
) -> None:
    configured = settings(cycle={"minInterval": 0.01, "messageInterval": INTERVAL_S})
    async with assigner(world, configured=configured) as replica:
        world.submit("train", 5, required=RACK)
        await eventually(world.shows("train", "QuotaReserved", "False"))
        began = clock.monotonic()
        for cpu in SIZES:
            cycles = replica.scheduler.cycles
            _resize(world, sorted(replica.watches.nodes.store), cpu)
            await eventually(_planned_since(replica, cycles))
        await eventually(lambda: "any of 5" in _message(world))
        took_s = clock.monotonic() - began
        # The first write, one that was due before its answer, and one for each interval.
        assert _writes(world) <= 3 + took_s / INTERVAL_S
