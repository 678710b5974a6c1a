"""A job that gives way to another: stopped as a whole, queued again, back when there is room."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from rackgate.api import resources as kinds
from rackgate_assigner.assigner import Assigner
from rackgate_assigner.scheduler import controller
from tests.support.apiserver import Fault, Object
from tests.support.apiserver_faults import Handler
from tests.support.waiting import until
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish
from tests.wire.elastic_world import ElasticWorld, replica
from tests.wire.elastic_world import furnish as furnish_elastic
from tests.wire.killing import WATCHED, Killer, keep_running, while_running

PLAIN: dict[str, Any] = {"queue": "plain", "cpu": "16"}
# Writes of the whole life below, and how many of them there are at least.
LIFE, AT_LEAST = 26, 10


def allow(world: World, policy: str) -> None:
    """Let Workloads of the plain queue preempt each other."""
    preemption = {"preemption": {"withinClusterQueue": policy}}
    world.change(kinds.CLUSTER_QUEUES, "plain", lambda o: o["spec"].update(preemption))


def furnished(world: World) -> None:
    furnish(world)
    allow(world, "LowerPriority")
    for name, value in (("low", 1), ("middle", 2), ("high", 3)):
        priority = {"metadata": {"name": name}, "value": value}
        world.put(kinds.WORKLOAD_PRIORITY_CLASSES, priority)


@asynccontextmanager
async def acting(world: World) -> AsyncIterator[Assigner]:
    furnished(world)
    async with assigner(world) as replica:
        yield replica


def submit(world: World, name: str, count: int, priority: str) -> Object:
    labels = {"kueue.x-k8s.io/priority-class": priority}
    return world.submit(name, count, labels=labels, **PLAIN)


def preempted(world: World) -> list[str]:
    """Names of the jobs whose Workloads were told to give way, one for each time."""
    found = [event["regarding"]["name"] for event in world.events("Preempted")]
    return sorted(name.removeprefix("job-").rpartition("-")[0] for name in found)


def add_condition(item: Object) -> None:
    """The status gets a condition of another controller."""
    found = {"type": "Other", "status": "True", "reason": "Any", "message": ""}
    item["status"]["conditions"].append(found)


@pytest.mark.requirement("SLC-31")
async def test_a_job_gives_way_as_a_whole_and_comes_back_as_it_was() -> None:
    async with World() as world, acting(world):
        submit(world, "first", 4, "low")
        await eventually(world.started("first"))
        before = world.job("first")["spec"]
        submit(world, "urgent", 2, "high")
        await eventually(world.started("urgent"))
        assert world.job("first")["spec"]["suspend"] is True
        assert world.condition("first", "Evicted") == ("True", "Preempted")
        assert world.condition("first", "Preempted") == ("True", "InClusterQueue")
        assert world.condition("first", "Requeued") == ("True", "Preempted")
        await eventually(world.shows("first", "QuotaReserved", "False", "WaitingForQuota"))
        await eventually(lambda: preempted(world) == ["first"])
        world.complete("urgent")
        await eventually(world.started("first"))
        assert world.job("first")["spec"] == before
        assert world.condition("first", "Preempted") == ("False", "QuotaReserved")
        assert world.broken_rules == []


@pytest.mark.requirement("SLC-31")
async def test_no_one_takes_what_was_given_up_before_the_one_it_was_given_up_for() -> None:
    async with World() as world, acting(world):
        submit(world, "first", 4, "low")
        await eventually(world.started("first"))
        stuck = Fault.status(409, "Conflict", method="PATCH", path="/jobs/first", times=10_000)
        world.faults.append(stuck)
        submit(world, "urgent", 3, "high")
        await eventually(
            world.shows("urgent", "QuotaReserved", "False", "WaitingForPreemptedWorkloads")
        )
        submit(world, "small", 1, "middle")
        await eventually(world.shows("small", "QuotaReserved", "False"))
        assert not world.runs("urgent")
        assert not world.runs("small")
        stuck.times = 0
        await eventually(lambda: world.runs("urgent") and world.runs("small"))
        assert not world.runs("first")
        await eventually(lambda: preempted(world) == ["first"])


@pytest.mark.requirement("SLC-31")
async def test_a_rejected_eviction_is_written_again_and_no_one_else_goes_instead() -> None:
    async with World() as world, acting(world):
        submit(world, "first", 2, "low")
        submit(world, "second", 2, "middle")
        await eventually(lambda: world.runs("first") and world.runs("second"))
        name = world.workload("first")["metadata"]["name"]
        world.faults.append(
            Fault.status(409, "Conflict", method="PATCH", path=f"{name}/status", times=2)
        )
        submit(world, "urgent", 1, "high")
        await eventually(world.started("urgent"))
        await eventually(lambda: preempted(world) == ["first"])
        assert world.runs("second")


@pytest.mark.requirement("OPS-07")
async def test_an_eviction_that_met_a_newer_version_waits_until_the_watch_shows_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the version that was decided on, each further write would only be rejected."""
    monkeypatch.setattr(controller, "OUTDATED_S", 3600.0)
    async with World() as world, acting(world):
        submit(world, "first", 4, "low")
        await eventually(world.started("first"))
        name = world.workload("first")["metadata"]["name"]
        evictions = 0

        async def meet(request: web.Request, handle: Handler) -> web.StreamResponse:
            """The first eviction meets another status, which neither watch nor GET show."""
            nonlocal evictions
            if b'"Evicted"' not in await request.read():
                return await handle()
            evictions += 1
            rejected = {1: 409, 2: 422}.get(evictions)
            return await handle() if rejected is None else web.json_response({}, status=rejected)

        world.faults.append(Fault(meet, method="PATCH", path=f"{name}/status", times=10**6))
        submit(world, "urgent", 1, "high")
        await eventually(lambda: evictions == 2)
        submit(world, "other", 1, "low")
        with pytest.raises(AssertionError):  # the first backoff is 0.1 s
            await until(lambda: evictions > 2, within_s=0.5)
        labels = {"example.com/changed": "yes"}
        world.change(kinds.WORKLOADS, name, lambda o: o["metadata"].update(labels=labels))
        await eventually(world.started("urgent"))


@pytest.mark.requirement("OPS-07")
async def test_a_version_that_was_seen_before_the_conflict_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "OUTDATED_S", 3600.0)
    async with World() as world, acting(world) as replica:
        submit(world, "first", 4, "low")
        await eventually(world.started("first"))
        name = world.workload("first")["metadata"]["name"]
        stored, overtaken = replica.watches.workloads.store, False

        async def overtake(request: web.Request, handle: Handler) -> web.StreamResponse:
            """Another writer is faster, and the watch shows it before this answer."""
            nonlocal overtaken
            if overtaken or b'"Evicted"' not in await request.read():
                return await handle()
            overtaken = True
            world.change(kinds.WORKLOADS, name, add_condition)
            newest = world.workload("first")["metadata"]["resourceVersion"]
            key = f"{NAMESPACE}/{name}"
            await eventually(lambda: stored[key].metadata.resource_version == newest)
            return await handle()

        world.faults.append(Fault(overtake, method="PATCH", path=f"{name}/status", times=10**6))
        submit(world, "urgent", 1, "high")
        await eventually(world.started("urgent"))
        assert overtaken


@pytest.mark.requirement("SLC-31")
async def test_a_job_that_cannot_start_yet_drives_no_one_out() -> None:
    async with World() as world, acting(world) as replica:
        submit(world, "first", 4, "low")
        await eventually(world.started("first"))
        replica.scheduler._is_in_sync = lambda workload: "urgent" not in workload.metadata.name
        submit(world, "urgent", 2, "high")
        await eventually(
            world.shows("urgent", "QuotaReserved", "False", "WaitingForPreemptedWorkloads")
        )
        for seen in range(replica.scheduler.cycles, replica.scheduler.cycles + 3):
            replica.scheduler.request_cycle()
            await eventually(functools.partial(_more_cycles, replica, seen))
        assert preempted(world) == []
        assert world.runs("first")


@pytest.mark.requirement("SLC-31")
async def test_a_resized_cluster_gives_way_with_its_slices_and_comes_back_at_its_size() -> None:
    async with ElasticWorld() as world, replica(world):
        furnished(world)
        furnish_elastic(world)
        allow(world, "LowerPriority")
        world.elastic("ray", {"small": 2}, cpu="10")
        await eventually(lambda: world.is_running(kinds.RAY_CLUSTERS, "ray"))
        world.scale("ray", 8)
        await eventually(lambda: world.granted("ray")["small"] == 6 and len(world.slices()) == 2)
        submit(world, "urgent", 3, "high")
        await eventually(world.started("urgent"))
        assert world.granted("ray") == {}
        assert not world.is_running(kinds.RAY_CLUSTERS, "ray")
        await eventually(lambda: world.events("Preempted"))
        assert len(world.events("Preempted")) == 1
        await eventually(lambda: not world.slices())
        assert world.held[-1] == 3
        world.scale("ray", 4)
        world.complete("urgent")
        await eventually(lambda: world.is_running(kinds.RAY_CLUSTERS, "ray"))
        await eventually(lambda: world.is_at("ray", small=4))
        assert world.broken_rules == []


@pytest.mark.requirement("SLC-31", "OPS-12")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
@pytest.mark.parametrize("number", range(8, LIFE))
async def test_a_death_at_any_write_makes_no_one_else_give_way(number: int, applied: bool) -> None:
    async with World() as world:
        furnished(world)
        killer = Killer(number, applied=applied)
        world.faults.append(killer.fault())
        await while_running(keep_running(world, killer.struck), _life(world))
        assert world.broken_rules == []
        assert killer.struck.is_set() or number >= AT_LEAST


async def test_the_life_has_no_more_writes_than_are_killed() -> None:
    async with World() as world:
        furnished(world)
        await while_running(keep_running(world, asyncio.Event()), _life(world))
        assert AT_LEAST <= world.taken(WATCHED) <= LIFE


async def _life(world: World) -> None:
    submit(world, "first", 2, "low")
    submit(world, "second", 2, "middle")
    await eventually(lambda: world.runs("first") and world.runs("second"))
    submit(world, "urgent", 2, "high")
    await eventually(world.started("urgent"))
    assert world.runs("second"), "one was enough"
    assert not world.runs("first")
    world.complete("urgent")
    await eventually(world.started("first"))
    assert world.condition("second", "Evicted") == ("", "")


def _more_cycles(replica: Assigner, seen: int) -> bool:
    return replica.scheduler.cycles > seen
