"""What goes wrong for some Workloads and must not hold up others, or hold up these for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from aiohttp import web

from rackgate.api import resources as kinds
from rackgate.api.timestamps import rfc3339
from rackgate.runtime import clock
from rackgate_assigner.scheduler import controller
from tests.support import objects
from tests.support.apiserver import Object
from tests.support.apiserver_faults import Fault, Handler
from tests.support.waiting import until
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish, settings
from tests.wire.test_assigner_recovery import Losing

FAILING = 56  # more than are written at the same time
A_YEAR_S = 365 * 86400.0


@pytest.fixture
def wall_clock() -> Iterator[None]:
    yield
    clock.shift(0)


@pytest.mark.requirement("OPS-07")
async def test_writes_that_a_webhook_fails_hold_up_no_other_admission() -> None:
    """Their outcome is not known, so they are repeated for as long as the webhook fails."""
    async with World() as world:
        furnish(world)
        failing = Fault.status(
            500, "InternalError", "failed calling webhook", method="PATCH", path="/job-failing"
        )
        failing.times = 10**6
        world.faults.append(failing)
        async with assigner(world):
            for number in range(FAILING):
                world.submit(f"failing-{number}", 1, queue="plain", cpu="1")
            await eventually(lambda: len(_written(world)) >= 50)
            world.submit("train", 1, queue="plain", cpu="1")
            await eventually(world.started("train"))
            await eventually(lambda: len(_written(world)) == FAILING)
            # What was not rejected may have been written: its quota stays assumed.
            world.submit("large", 64 - FAILING, queue="plain", cpu="1")
            await eventually(world.shows("large", "QuotaReserved", "False"))
            await eventually(lambda: world.events("WorkloadUpdateRefused"))
            failing.times = 0
            for number in range(FAILING):
                await eventually(world.started(f"failing-{number}"))
        assert not world.runs("large")
        assert world.broken_rules == []


@pytest.mark.requirement("OPS-07")
async def test_no_cycle_adds_to_more_admissions_than_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are decided when others have been written, on what is known then."""
    monkeypatch.setattr(controller, "LONGEST_PAUSE_S", 3600.0)
    going = asyncio.Event()

    async def wait(_: web.Request, handle: Handler) -> web.StreamResponse:
        await going.wait()
        return await handle()

    one_at_a_time = settings(budgets={"admission": {"concurrency": 1}})
    async with World() as world:
        furnish(world)
        world.faults.append(Fault(wait, method="PATCH", path="/status", times=10**6))
        async with assigner(world, configured=one_at_a_time) as replica:
            for number in range(4):
                world.submit(f"first-{number}", 1, queue="plain", cpu="1")
            await eventually(lambda: replica.scheduler.counts()["writes"] >= 3)
            world.submit("last", 1, queue="plain", cpu="1")
            stored = replica.watches.workloads.store
            await eventually(lambda: any("/job-last-" in key for key in stored))
            cycles = replica.scheduler.cycles
            with pytest.raises(AssertionError):
                await until(lambda: replica.scheduler.cycles > cycles, within_s=0.5)
            going.set()
            await eventually(world.started("last"))


@pytest.mark.requirement("OPS-07")
async def test_a_head_whose_admission_met_a_conflict_is_not_overtaken() -> None:
    """It backs off for a moment, in which others that fit now come."""
    async with World() as world:
        furnish(world)
        conflict = Fault.status(409, "Conflict", method="PATCH", path="/job-first", times=3)
        world.faults.append(conflict)
        others = ("second", "third", "fourth")
        async with assigner(world) as replica:
            world.submit("first", 64, queue="plain", cpu="1")
            await eventually(lambda: conflict.times == 0)
            for name in others:
                seen = replica.scheduler.cycles

                def planned_again(seen: int = seen) -> bool:
                    return replica.scheduler.cycles > seen

                world.submit(name, 1, queue="plain", cpu="1")
                await eventually(planned_again)
            await eventually(world.started("first"))
            for name in others:
                await eventually(world.shows(name, "QuotaReserved", "False"))
            assert not any(map(world.runs, others))
        assert world.broken_rules == []


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize("strategy", ["StrictFIFO", "BestEffortFIFO"])
async def test_others_are_admitted_when_a_head_that_backs_off_is_deleted(strategy: str) -> None:
    async with World() as world:
        furnish(world)
        world.change(
            kinds.CLUSTER_QUEUES, "plain", lambda o: o["spec"].update(queueingStrategy=strategy)
        )
        conflict = Fault.status(409, "Conflict", method="PATCH", path="/job-first", times=3)
        world.faults.append(conflict)
        async with assigner(world) as replica:
            world.submit("first", 64, queue="plain", cpu="1")
            await eventually(lambda: conflict.times == 0)
            seen = replica.scheduler.cycles
            world.submit("second", 1, queue="plain", cpu="1")
            await eventually(lambda: replica.scheduler.cycles > seen)
            name = world.workload("first")["metadata"]["name"]
            world.remove(kinds.JOBS, "first", NAMESPACE)
            world.remove(kinds.WORKLOADS, name, NAMESPACE)
            await eventually(world.started("second"))
            world.submit("third", 1, queue="plain", cpu="1")
            await eventually(world.started("third"))


def _written(world: World) -> set[str]:
    """Paths of Workloads that were to be admitted, without success."""
    paths = (r.path for r in world.requests if r.method == "PATCH")
    return {path for path in paths if "/job-failing" in path}


async def test_events_about_old_objects_leave_room_for_those_about_decisions() -> None:
    """There are more of them than the queue of Events holds."""
    async with World() as world:
        furnish(world)
        for number in range(1100):
            local = objects.local_queue(f"weighted-{number}", "plain")
            local["metadata"]["namespace"] = NAMESPACE
            local["spec"]["fairSharing"] = {"weight": "2"}  # without admission fair sharing
            world.put(kinds.LOCAL_QUEUES, local)
        async with assigner(world):
            await eventually(lambda: world.events("UnsupportedField"))
            world.submit("train", queue="plain")
            await eventually(lambda: world.events("Admitted"))
        assert len(world.events("UnsupportedField")) < 500


@pytest.mark.usefixtures("wall_clock")
@pytest.mark.requirement("TAS-32")
async def test_a_backoff_that_a_fast_clock_wrote_ends_in_its_time() -> None:
    """The clock of the machine was a year ahead when the Workload was evicted, then it was set."""
    rules = {"timeout": 3600, "requeuingStrategy": {"backoffBaseSeconds": 2}}
    configured = settings(waitForPodsReady=rules)
    async with Losing() as world:
        furnish(world)
        async with assigner(world, configured=configured):
            world.submit("slow")
            await eventually(world.started("slow"))
        world.change(kinds.WORKLOADS, world.workload("slow")["metadata"]["name"], _admit_long_ago)
        clock.shift(A_YEAR_S)
        stopped = settings(
            waitForPodsReady={
                **rules,
                "requeuingStrategy": {"backoffBaseSeconds": 3600, "backoffMaxSeconds": 3600},
            }
        )
        async with assigner(world, configured=stopped):
            await eventually(world.shows("slow", "QuotaReserved", "False", "PendingEvaluation"))
        clock.shift(0)
        world.change(kinds.WORKLOADS, world.workload("slow")["metadata"]["name"], _shorten)
        async with assigner(world, configured=configured):
            await eventually(world.started("slow"))


def _admit_long_ago(own: Object) -> None:
    for condition in own["status"]["conditions"]:
        if condition["type"] == "Admitted":
            condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"


def _shorten(own: Object) -> None:
    """Its backoff takes 2 s, not an hour: the test need not wait that long."""
    evicted_at = clock.now() + timedelta(seconds=A_YEAR_S)
    own["status"]["requeueState"]["requeueAt"] = rfc3339(evicted_at + timedelta(seconds=2))
    for condition in own["status"]["conditions"]:
        if condition["type"] == "Evicted":
            condition["lastTransitionTime"] = rfc3339(evicted_at)
