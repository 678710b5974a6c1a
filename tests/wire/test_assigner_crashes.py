"""The assigner dies at every write of a Job's life, before and after the write is applied.

docs/design/races/assigner.md lists what may happen; this runs all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.apiserver import Object
from tests.support.objects import RACK
from tests.wire.assigner_world import World, eventually, furnish
from tests.wire.killing import WATCHED, Killer, keep_running, while_running

# Writes of one whole life below. Some may be left out (a waiting reason that is outdated before it
# is written) or joined where the API server is slow, so the last kills may find nothing to strike.
LIFE, AT_LEAST = 18, 8


async def _life(world: World, original: Callable[[], Object]) -> None:
    """Admitted, drained, admitted again, finished; judged on the world alone."""
    await eventually(lambda: world.workload_of(world.job("train")) and world.runs("train"))
    before = original()
    world.change(kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(stopPolicy="HoldAndDrain"))
    await eventually(
        lambda: (
            world.condition("train", "Evicted") == ("True", "ClusterQueueStopped")
            and "admission" not in world.workload("train")["status"]
        )
    )
    job = world.job("train")
    assert job["spec"]["suspend"] is True
    assert job["spec"]["template"] == before
    assert names.WORKLOAD_ANNOTATION not in job["metadata"].get("annotations", {})
    world.change(kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(stopPolicy="None"))
    await eventually(world.started("train"))
    assert world.job("train")["spec"]["template"] != before
    world.complete("train")
    await eventually(world.shows("train", "Finished", "True", "Succeeded"))
    await eventually(lambda: not world.workload("train")["metadata"].get("finalizers"))


@pytest.mark.requirement("TAS-26", "OPS-12", "OPS-07")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
@pytest.mark.parametrize("number", range(LIFE))
async def test_a_death_at_any_write_loses_nothing(number: int, applied: bool) -> None:
    async with World() as world:
        furnish(world)
        killer = Killer(number, applied=applied)
        world.faults.append(killer.fault())
        job = world.submit("train", required=RACK)
        template = job["spec"]["template"]
        await while_running(keep_running(world, killer.struck), _life(world, lambda: template))
        assert world.broken_rules == []
        assert killer.struck.is_set() or number >= AT_LEAST


async def test_the_life_has_no_more_writes_than_are_killed() -> None:
    async with World() as world:
        furnish(world)
        template = world.submit("train", required=RACK)["spec"]["template"]
        await while_running(keep_running(world, asyncio.Event()), _life(world, lambda: template))
        count = world.taken(WATCHED)
        assert AT_LEAST <= count <= LIFE
