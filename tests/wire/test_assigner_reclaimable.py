"""Pods of a Job that are done give their quota back while the others run."""

from __future__ import annotations

import pytest

from rackgate.api import resources as kinds
from rackgate.api.names import FieldManager
from tests.support.apiserver import Object, Request
from tests.support.apiserver_faults import Fault
from tests.wire.assigner_world import RECLAIMABLE, World, assigner, eventually, furnish


def reclaimable(world: World, name: str) -> list[Object]:
    """`status.reclaimablePods` of the Workload of a Job."""
    found: list[Object] = world.workload(name)["status"].get("reclaimablePods", [])
    return found


def succeed(world: World, name: str, pods: int) -> None:
    """So many pods of a running Job have succeeded."""
    world.change(kinds.JOBS, name, lambda job: job["status"].update(succeeded=pods))


async def test_another_job_runs_with_the_quota_of_pods_that_are_done() -> None:
    async with World() as world:
        furnish(world)
        async with assigner(world) as replica:
            world.submit("large", 16, queue="plain")
            await eventually(world.shows("large", "PodsReady", "True"))
            world.submit("next", 4, queue="plain")
            await eventually(world.shows("next", "QuotaReserved", "False", "WaitingForQuota"))
            succeed(world, "large", 4)
            await eventually(world.started("next"))
            assert reclaimable(world, "large") == [{"name": "main", "count": 4}]
            assert replica.cache.totals.used()["plain"]["plain", "cpu"] == 64_000
            assert world.condition("large", "Evicted") == ("", "")
            world.complete("large")
            await eventually(world.shows("large", "Finished", "True"))
            assert world.broken_rules == []


@pytest.mark.parametrize("count", [1, 4])
async def test_a_job_whose_pods_end_together_costs_no_write_for_it(count: int) -> None:
    async with World() as world, assigner(world):
        furnish(world)
        world.submit("train", count, queue="plain")
        await eventually(world.shows("train", "PodsReady", "True"))
        succeed(world, "train", count)
        world.complete("train")
        await eventually(world.shows("train", "Finished", "True"))
        assert reclaimable(world, "train") == []


async def test_a_job_that_starts_over_has_its_done_pods_still_done() -> None:
    async with World() as world, assigner(world) as replica:
        furnish(world)
        world.submit("train", 4, queue="plain")
        await eventually(world.shows("train", "PodsReady", "True"))
        succeed(world, "train", 3)
        await eventually(lambda: reclaimable(world, "train") == [{"name": "main", "count": 3}])
        world.change(kinds.JOBS, "train", lambda job: job["spec"].update(suspend=True))
        await eventually(world.shows("train", "Evicted", "False", "QuotaReserved"))
        await eventually(world.started("train"))
        assert reclaimable(world, "train") == [{"name": "main", "count": 3}]
        await eventually(lambda: replica.cache.totals.used()["plain"]["plain", "cpu"] == 4000)


class ForgettingDone(Fault):
    """Writes of done pods fail."""

    def matches(self, request: Request) -> bool:
        return self.times > 0 and request.query.get("fieldManager") == FieldManager.RECLAIMABLE


async def pending_with_done_pods(world: World) -> str:
    """A Job that never fits, unless pods count as done that are not; name of its Workload."""
    furnish(world)
    async with assigner(world):
        world.submit("large", 20, queue="plain")
        await eventually(world.shows("large", "QuotaReserved", "False"))
    name: str = world.workload("large")["metadata"]["name"]
    done = [{"name": "main", "count": 15}]
    world.change(kinds.WORKLOADS, name, lambda own: own["status"].update(reclaimablePods=done))
    return name


@pytest.mark.requirement("CAP-02")
async def test_no_job_is_admitted_before_its_pods_that_are_not_done_count_again() -> None:
    async with World() as world:
        await pending_with_done_pods(world)
        failing = ForgettingDone(Fault.status(500, "InternalError").answer, times=5)
        world.faults.append(failing)
        async with assigner(world):
            await eventually(lambda: failing.times == 0)
            await eventually(lambda: reclaimable(world, "large") == [])
            world.submit("next", 16, queue="plain")
            await eventually(world.started("next"))
            await eventually(lambda: _started(world))
        assert _started(world) == {"next"}


async def test_done_pods_that_kueue_has_applied_count_no_longer_than_they_are_done() -> None:
    async with World() as world:
        name = await pending_with_done_pods(world)
        world.take_over(name, "kueue-reclaimable-pods", RECLAIMABLE)
        async with assigner(world):
            await eventually(lambda: reclaimable(world, "large") == [])
            await eventually(world.shows("large", "QuotaReserved", "False"))
            world.submit("next", 16, queue="plain")
            await eventually(world.started("next"))
            await eventually(lambda: _started(world))
        assert _started(world) == {"next"}


def _started(world: World) -> set[str]:
    """Jobs that were ever started."""
    return {event["regarding"]["name"] for event in world.events("Started")}
