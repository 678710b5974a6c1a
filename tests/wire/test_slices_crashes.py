"""The assigner dies at every write of a resize, before and after the write is applied."""

from __future__ import annotations

import asyncio

import pytest

from rackgate.api import resources as kinds
from tests.wire.assigner_world import eventually
from tests.wire.elastic_world import ElasticWorld, furnish, replica
from tests.wire.killing import WATCHED, Killer, keep_running, while_running

# Writes of the resize below. Folds may be joined, the more the slower the API server, so the last
# kills may find nothing to strike.
RESIZE, AT_LEAST = 24, 10


async def life(world: ElasticWorld, killer: Killer | None) -> int:
    """From one worker to three and back; returns the number of writes."""
    await eventually(
        lambda: world.is_running(kinds.RAY_CLUSTERS, "ray") and world.is_at("ray", small=1)
    )
    world.held.clear()
    if killer is not None:
        world.faults.append(killer.fault())
    before = world.taken(WATCHED)
    world.scale("ray", 3)
    await eventually(lambda: world.is_at("ray", small=3))
    assert world.held == sorted(world.held)
    assert world.held[-1] == 3
    world.held.clear()
    world.scale("ray", 1)
    await eventually(lambda: world.is_at("ray", small=1))
    assert world.held == sorted(world.held, reverse=True)
    return world.taken(WATCHED) - before


@pytest.mark.requirement("SLC-19", "SLC-21", "SLC-23", "SLC-35")
@pytest.mark.parametrize("number", range(RESIZE))
async def test_a_death_at_any_write_neither_loses_nor_doubles_a_pod(number: int) -> None:
    """Every other write is lost with its sender; what else may be is for the property machine."""
    async with ElasticWorld() as world:
        furnish(world)
        killer = Killer(number, applied=number % 2 == 0)
        world.elastic("ray", {"small": 1})
        running = keep_running(world, killer.struck, replica)

        async def story() -> None:
            await life(world, killer)

        await while_running(running, story())
        assert world.broken_rules == []
        assert world.suspensions() == 0
        assert killer.struck.is_set() or number >= AT_LEAST


async def test_a_resize_has_no_more_writes_than_are_killed() -> None:
    async with ElasticWorld() as world:
        furnish(world)
        world.elastic("ray", {"small": 1})
        found: list[int] = []

        async def story() -> None:
            found.append(await life(world, None))

        await while_running(keep_running(world, asyncio.Event(), replica), story())
        assert AT_LEAST <= found[0] <= RESIZE, found
