"""The assigner dies at every write of the life of a gang of pods, before and after it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.apiserver import Object
from tests.wire.assigner_world import NAMESPACE, World, eventually, furnish
from tests.wire.gang_pods_world import GangPodsWorld
from tests.wire.gangs_world import GANGS, gang_assigner
from tests.wire.killing import Killer, keep_running, while_running

WATCHED = ("/pods", "/workloads")
# Writes of the life below; see test_assigner_crashes.
LIFE, AT_LEAST = 28, 14
COUNT = 2


class StrictWorld(GangPodsWorld):
    """No gang is released in part, except for pods that replace others of a running one."""

    def _release(self) -> None:
        before = self.running("a")
        super()._release()
        if 0 < self.running("a") < COUNT and before == 0:
            self.broken_rules.append("a part of the gang was released")
        if self.running("a") > COUNT:
            self.broken_rules.append("more pods run than were admitted")


def replica(world: World) -> AbstractAsyncContextManager[Any]:
    return gang_assigner(world)


def furnish_gang(world: StrictWorld) -> None:
    furnish(world)
    describe(world)
    world.add_set("a", COUNT, "train", queue="plain")


def describe(world: StrictWorld) -> None:
    world.describe("train", {"gangGroups": [{"name": "gg", "minCount": COUNT}]})


async def _life(world: StrictWorld) -> None:
    """Admitted, drained and admitted again; its Workload of gangs and a pod replaced; deleted."""
    await eventually(lambda: world.running("a") == COUNT)
    first = {pod["metadata"]["uid"] for pod in world.pods()}
    _stop(world, "HoldAndDrain")
    await eventually(lambda: not first & {pod["metadata"]["uid"] for pod in world.pods()})
    await eventually(lambda: not any(has_quota(one) for one in world.workloads()))
    assert world.gated("a") == COUNT
    _stop(world, "None")
    await eventually(lambda: world.running("a") == COUNT)
    world.remove(GANGS, "train", NAMESPACE)
    world.remove(kinds.PODS, "a-1", NAMESPACE)
    describe(world)
    await eventually(lambda: world.running("a") == COUNT)
    world.delete_set("a")
    await eventually(lambda: not world.pods() and not world.workloads())


def has_quota(workload: Object) -> bool:
    return bool(workload.get("status", {}).get("admission"))


def _stop(world: World, policy: str) -> None:
    world.change(kinds.CLUSTER_QUEUES, "plain", lambda o: o["spec"].update(stopPolicy=policy))


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
@pytest.mark.parametrize("number", range(LIFE))
async def test_a_death_at_any_write_releases_no_part_of_a_gang_and_leaves_nothing_behind(
    number: int, applied: bool
) -> None:
    async with StrictWorld() as world:
        furnish_gang(world)
        killer = Killer(number, applied=applied, watched=WATCHED)
        world.faults.append(killer.fault())
        await while_running(keep_running(world, killer.struck, replica), _life(world))
        assert world.broken_rules == []
        assert killer.struck.is_set() or number >= AT_LEAST


async def test_the_life_has_no_more_writes_than_are_killed() -> None:
    async with StrictWorld() as world:
        furnish_gang(world)
        await while_running(keep_running(world, asyncio.Event(), replica), _life(world))
        assert world.broken_rules == []
        assert AT_LEAST <= world.taken(WATCHED) <= LIFE
        links = {r.path for r in world.writes() if names.GANG_GROUP in r.path}
        assert all("/status" in path for path in links), "only the status is written"
