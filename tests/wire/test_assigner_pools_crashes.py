"""The assigner dies at every write of a Pool's life, before and after the write is applied."""

from __future__ import annotations

import asyncio

import pytest

from rackgate.api.resources import OSMO_POOLS
from tests.wire.assigner_world import eventually
from tests.wire.killing import Killer, keep_running, while_running
from tests.wire.pools_world import (
    IN_STEP,
    NO_KEYS,
    RACK,
    ZONE,
    PoolsWorld,
    labels,
    pool_keeper,
    settled,
)

# Writes of one whole life below, and those that cannot be left out.
LIFE, AT_LEAST = 12, 7


async def _life(world: PoolsWorld) -> None:
    """Made, replaced, emptied, made again, gone; judged on the world alone."""
    await settled(world, IN_STEP, labels(ZONE))
    world.pool(ZONE, RACK)
    await settled(world, IN_STEP, labels(ZONE, RACK))
    world.pool()
    await settled(world, NO_KEYS, None)
    world.pool(RACK)
    await settled(world, IN_STEP, labels(RACK))
    world.remove(OSMO_POOLS, "my-pool")
    await eventually(lambda: world.topologies() == {})


@pytest.mark.requirement("OSM-08")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
@pytest.mark.parametrize("number", range(LIFE))
async def test_a_death_at_any_write_loses_nothing(number: int, applied: bool) -> None:
    async with PoolsWorld() as world:
        world.collects = False
        killer = Killer(number, applied=applied, watched=("/pools", "/topologies"))
        world.faults.append(killer.fault())
        world.pool(ZONE)
        running = keep_running(world, killer.struck, pool_keeper)
        await while_running(running, _life(world))
        assert killer.struck.is_set() or number >= AT_LEAST


async def test_the_life_has_no_more_writes_than_are_killed() -> None:
    async with PoolsWorld() as world:
        world.collects = False
        world.pool(ZONE)
        await while_running(keep_running(world, asyncio.Event(), pool_keeper), _life(world))
        assert AT_LEAST <= world.taken(("/pools", "/topologies")) <= LIFE
