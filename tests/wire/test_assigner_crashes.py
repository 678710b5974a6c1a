"""The assigner dies at every write of a Job's life, before and after the write is applied.

docs/races/assigner.md lists what may happen; this runs all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from rackgate.api import names
from rackgate.kube import resources as kinds
from tests.support.apiserver import Object, Request
from tests.support.apiserver_faults import Fault, Handler
from tests.support.objects import RACK
from tests.wire.assigner_world import World, assigner, eventually, furnish

# Writes of one whole life below. Some may be left out (a waiting reason that is outdated before it
# is written), so the last kills may find nothing to strike.
LIFE, AT_LEAST = 16, 11


class Killer:
    """Cuts the n-th write on Jobs and Workloads off, and says that the process is to die."""

    def __init__(self, number: int, *, applied: bool) -> None:
        self.left, self.applied = number, applied
        self.struck = asyncio.Event()

    def fault(self) -> Fault:
        """The fault to add to a world."""
        cut = Fault.cut(applied=self.applied)

        async def answer(request: object, handle: Handler) -> object:
            self.struck.set()
            return await cut.answer(request, handle)  # type: ignore[arg-type]  # the request the fake was given

        killer = self

        class Counting(Fault):
            def matches(self, request: Request) -> bool:
                if request.method == "GET" or killer.struck.is_set():
                    return False
                if not ("/jobs" in request.path or "/workloads" in request.path):
                    return False
                killer.left -= 1
                return killer.left < 0

        return Counting(answer)  # type: ignore[arg-type]  # same call, looser types


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


async def _keep_running(world: World, struck: asyncio.Event) -> None:
    """A replica until the killer strikes, then another one, as a Deployment does."""
    async with assigner(world):
        await struck.wait()
    async with assigner(world):
        await asyncio.Event().wait()


async def _while_running(replicas: Awaitable[None], story: Awaitable[None]) -> None:
    running = asyncio.ensure_future(replicas)
    try:
        await story
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


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
        await _while_running(_keep_running(world, killer.struck), _life(world, lambda: template))
        assert world.broken_rules == []
        assert killer.struck.is_set() or number >= AT_LEAST


async def test_the_life_has_no_more_writes_than_are_killed() -> None:
    async with World() as world:
        furnish(world)
        template = world.submit("train", required=RACK)["spec"]["template"]
        await _while_running(_keep_running(world, asyncio.Event()), _life(world, lambda: template))
        count = sum("/jobs" in r.path or "/workloads" in r.path for r in world.writes())
        assert AT_LEAST <= count <= LIFE
