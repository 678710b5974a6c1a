"""Jobs whose pods never become ready: eviction, backoff, deactivation, and what waits for them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from rackgate.api import resources as kinds
from rackgate.runtime import clock
from rackgate.runtime.metrics import REGISTRY
from rackgate_assigner.assigner import Assigner
from tests.support.apiserver import Object
from tests.support.apiserver_faults import Fault
from tests.wire.assigner_world import World, assigner, eventually, furnish, settings
from tests.wire.killing import Killer, at_each, keep_running, while_running
from tests.wire.test_assigner_recovery import Forgetting, Losing

pytestmark = [pytest.mark.requirement("TAS-32"), pytest.mark.steady_clock]

PATIENT = 3600.0
# Of the writes of the life below: eviction, release, end of the backoff, the two writes of the
# deactivation, the eviction after it, the release.
DEATHS = (3, 5, 6, 9, 10, 11, 13)
LIMITED = {"backoffBaseSeconds": 1, "backoffLimitCount": 1}
DEACTIVATED = "DeactivatedDueToRequeuingLimitExceeded"


def replica(
    world: World,
    timeout_s: float = 2.0,
    strategy: Object | None = None,
    **more: Any,
) -> AbstractAsyncContextManager[Assigner]:
    """An assigner that waits so long for the pods of an admitted job.

    The timestamps of objects have whole seconds, so a timeout may end up to a second earlier.
    """
    rules = {"timeout": timeout_s, "requeuingStrategy": strategy or LIMITED, **more}
    return assigner(world, configured=settings(waitForPodsReady=rules))


def tries(world: Losing, name: str) -> Object:
    own = world.workload_of(world.job(name)) or {}
    found: Object = own.get("status", {}).get("requeueState", {})
    return found


def evictions(world: Losing, name: str) -> dict[tuple[str, str], int]:
    """`status.schedulingStats` of the Workload of a Job."""
    found = world.workload(name)["status"].get("schedulingStats", {}).get("evictions", [])
    return {(entry["reason"], entry["underlyingCause"]): entry["count"] for entry in found}


def active(world: Losing, name: str) -> bool:
    value: bool = world.workload(name)["spec"]["active"]
    return value


async def test_pods_that_are_never_ready_cost_the_job_its_place_and_then_its_queue() -> None:
    async with Losing() as world, replica(world):
        furnish(world)
        world.submit("slow")
        await eventually(lambda: tries(world, "slow").get("count") == 1)
        assert evictions(world, "slow") == {("PodsReadyTimeout", "WaitForStart"): 1}
        await eventually(world.shows("slow", "Requeued", "True", "BackoffFinished"))
        await eventually(world.shows("slow", "QuotaReserved", "False", "Suspended"))
        assert not active(world, "slow")
        assert not world.runs("slow")
        assert world.condition("slow", "Evicted") == ("True", DEACTIVATED)
        assert world.condition("slow", "Requeued") == ("False", DEACTIVATED)
        assert world.condition("slow", "DeactivationTarget") == ("", "")
        assert tries(world, "slow") == {}
        assert evictions(world, "slow")["Deactivated", "RequeuingLimitExceeded"] == 1
        await eventually(lambda: len(world.events(f"EvictedDueTo{DEACTIVATED}")) == 1)
        # Its user activates it: it starts over, with all its tries.
        name = world.workload("slow")["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, lambda own: own["spec"].update(active=True))
        await eventually(lambda: tries(world, "slow").get("count") == 1)
        assert evictions(world, "slow")["PodsReadyTimeout", "WaitForStart"] == 2
        assert world.broken_rules == []


async def test_pods_that_are_ready_in_time_are_left_alone_and_lost_ones_have_as_long() -> None:
    async with Losing() as world, replica(world):
        furnish(world)
        world.submit("train")
        world.submit("slow", queue="plain")
        await eventually(world.shows("slow", "Evicted", "True", "PodsReadyTimeout"))
        assert world.runs("train")
        assert world.condition("train", "Evicted") == ("", "")
        world.lose("train")
        await eventually(world.shows("train", "Evicted", "True", "PodsReadyTimeout"))
        assert evictions(world, "train") == {("PodsReadyTimeout", "WaitForRecovery"): 1}


@pytest.mark.requirement("OPS-09")
async def test_how_long_pods_took_to_be_ready_is_counted_once() -> None:
    names = ("ready_wait_time_seconds", "admitted_until_ready_wait_time_seconds")

    def counts() -> list[float]:
        queue = {"cluster_queue": "cq"}
        found = [REGISTRY.get_sample_value(f"rackgate_{name}_count", queue) for name in names]
        return [count or 0.0 for count in found]

    before = counts()
    async with Losing() as world, replica(world, PATIENT):
        furnish(world)
        world.submit("train")
        await eventually(lambda: counts() == [count + 1 for count in before])
        world.lose("train")
        await eventually(lambda: world.condition("train", "PodsReady")[0] == "False")
    assert counts() == [count + 1 for count in before]


async def test_pods_that_are_ready_count_before_the_condition_says_so() -> None:
    """Its write is rejected until the time is over."""
    async with Losing() as world, replica(world):
        furnish(world)
        refused = Forgetting(Fault.status(500, "InternalError").answer, times=5)
        world.faults.append(refused)
        world.submit("train")
        await eventually(world.started("train"))
        world.submit("slow", queue="plain")
        await eventually(world.shows("slow", "Evicted", "True", "PodsReadyTimeout"))
        await eventually(world.shows("train", "PodsReady", "True", "Started"))
        assert refused.times == 0
        assert world.condition("train", "Evicted") == ("", "")


async def test_the_time_of_a_start_runs_on_while_no_one_acts() -> None:
    async with Losing() as world:
        furnish(world)
        async with replica(world, PATIENT):
            world.submit("slow")
            await eventually(world.started("slow"))
        world.change(kinds.WORKLOADS, world.workload("slow")["metadata"]["name"], _age)
        async with replica(world, PATIENT, {"backoffBaseSeconds": PATIENT}):
            await eventually(world.shows("slow", "Evicted", "True", "PodsReadyTimeout"))


@pytest.fixture
def wall_clock() -> Iterator[None]:
    yield
    clock.shift(0)


@pytest.mark.usefixtures("wall_clock")
async def test_a_wall_clock_that_is_set_ahead_evicts_nobody() -> None:
    async with Losing() as world, replica(world, PATIENT) as found:
        furnish(world)
        world.submit("slow")
        await eventually(world.started("slow"))
        name = world.workload("slow")["metadata"]["name"]
        # The first look at the admission, before the clock is set.
        world.change(kinds.JOBS, "slow", lambda job: job["metadata"].update(labels=_marked(job)))
        await eventually(functools.partial(_is_idle, found))
        clock.shift(2 * PATIENT)
        world.change(kinds.WORKLOADS, name, lambda own: own["metadata"].update(labels=_marked(own)))
        world.submit("next", queue="plain")
        await eventually(world.shows("next", "PodsReady", "True", "Started"))
        await eventually(functools.partial(_is_idle, found))
        assert world.runs("slow")
        assert world.condition("slow", "Evicted") == ("", "")


async def test_with_block_admission_the_next_job_waits_for_the_pods_of_the_first() -> None:
    async with Unready() as world, replica(world, PATIENT, blockAdmission=True):
        furnish(world)
        world.submit("first")
        await eventually(world.started("first"))
        world.submit("second", queue="plain")
        await eventually(world.shows("second", "QuotaReserved", "False", "WaitingForPodsReady"))
        world.keep = False
        world.change(kinds.JOBS, "first", lambda _job: None)
        await eventually(world.started("second"))
        assert world.condition("first", "PodsReady") == ("True", "Started")


async def test_with_block_admission_a_job_that_is_evicted_makes_way() -> None:
    strategy = {"backoffBaseSeconds": PATIENT, "backoffMaxSeconds": PATIENT}
    async with Losing() as world, replica(world, 2.0, strategy, blockAdmission=True):
        furnish(world)
        world.submit("slow")
        await eventually(world.started("slow"))
        world.submit("next", queue="plain")
        await eventually(world.shows("next", "QuotaReserved", "False", "WaitingForPodsReady"))
        await eventually(world.started("next"))
        assert not world.runs("slow")


class Unready(Losing):
    """Pods of Jobs are not ready yet."""

    keep = True

    def _job_changes(self, item: Object, known: Object | None) -> None:
        super()._job_changes(item, known)
        if self.keep and "ready" in item["status"]:
            item["status"]["ready"] = 0


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
async def test_a_death_at_any_write_neither_loses_nor_repeats_a_deactivation(
    applied: bool,
) -> None:
    async def life(number: int) -> None:
        async with Losing() as world:
            furnish(world)
            killer = Killer(number, applied=applied)
            world.faults.append(killer.fault())
            await while_running(keep_running(world, killer.struck, replica), _life(world))
            assert world.broken_rules == []
            assert killer.struck.is_set()

    await at_each(DEATHS, life)


async def _life(world: Losing) -> None:
    world.submit("slow")
    await eventually(lambda: tries(world, "slow").get("count") == 1)
    await eventually(lambda: world.workload_of(world.job("slow")) and not active(world, "slow"))
    await eventually(world.shows("slow", "QuotaReserved", "False", "Suspended"))
    await eventually(lambda: not world.runs("slow"))
    assert evictions(world, "slow") == {
        ("PodsReadyTimeout", "WaitForStart"): 1,
        ("Deactivated", "RequeuingLimitExceeded"): 1,
    }
    assert tries(world, "slow") == {}


def _age(own: Object) -> None:
    """It was admitted long ago."""
    for condition in own["status"]["conditions"]:
        if condition["type"] == "Admitted":
            condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"


def _marked(item: Object) -> Object:
    return {**item["metadata"].get("labels", {}), "looked": "at"}


def _is_idle(found: Assigner) -> bool:
    return len(found.jobs.queue) == 0
