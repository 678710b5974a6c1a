"""Jobs with a maximum execution time: what counts, and what follows when it is over."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from rackgate.api import resources as kinds
from rackgate_assigner.assigner import Assigner
from tests.support import objects
from tests.support.apiserver import Object
from tests.wire.assigner_world import World, assigner, eventually, furnish, settings
from tests.wire.killing import Killer, at_each, keep_running, while_running

LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
FOREVER = 1_000_000_000
DEACTIVATED = "DeactivatedDueToMaximumExecutionTimeExceeded"
# Of the writes of the life below: start, PodsReady, the two writes of the deactivation, the
# eviction, the stop, the release. A few may be joined where the API server is slow.
DEATHS, AT_LEAST = (3, 4, 5, 6, 7, 8), 7

pytestmark = pytest.mark.steady_clock


def submit(world: World, name: str, seconds: int, count: int = 4, queue: str = "queue") -> None:
    """A Job that may be admitted for so many seconds; timestamps of objects have whole ones."""
    job = objects.job(name, count, cpu="4", queue=queue)
    job["metadata"]["namespace"] = "team"
    job["metadata"]["labels"][LABEL] = str(seconds)
    job["spec"]["suspend"] = True
    world.put(kinds.JOBS, job)


def replica(world: World) -> AbstractAsyncContextManager[Assigner]:
    return assigner(world, configured=settings())


def status(world: World, name: str) -> Object:
    found: Object = (world.workload_of(world.job(name)) or {}).get("status", {})
    return found


def own_name(world: World, name: str) -> str:
    found: str = world.workload(name)["metadata"]["name"]
    return found


def set_active(world: World, name: str, value: bool) -> None:
    world.change(
        kinds.WORKLOADS, own_name(world, name), lambda own: own["spec"].update(active=value)
    )


async def test_a_job_whose_time_is_over_is_deactivated_and_starts_over_when_activated() -> None:
    async with World() as world, replica(world):
        furnish(world)
        submit(world, "long", 2)
        await eventually(world.started("long"))
        assert world.workload("long")["spec"]["maximumExecutionTimeSeconds"] == 2
        await eventually(world.shows("long", "QuotaReserved", "False", "Suspended"))
        assert not world.runs("long")
        assert world.workload("long")["spec"]["active"] is False
        assert world.condition("long", "Evicted") == ("True", DEACTIVATED)
        assert world.condition("long", "DeactivationTarget") == ("", "")
        assert "accumulatedPastExecutionTimeSeconds" not in status(world, "long")
        assert status(world, "long")["schedulingStats"]["evictions"] == [
            {
                "reason": "Deactivated",
                "underlyingCause": "MaximumExecutionTimeExceeded",
                "count": 1,
            }
        ]
        await eventually(lambda: len(world.events(f"EvictedDueTo{DEACTIVATED}")) == 1)
        set_active(world, "long", True)
        await eventually(world.started("long"))
        assert world.broken_rules == []


async def test_the_time_of_earlier_admissions_counts_and_is_kept_by_other_writes() -> None:
    async with World() as world:
        furnish(world)
        async with replica(world):
            submit(world, "long", FOREVER, queue="plain")
            await eventually(world.started("long"))
        world.change(kinds.WORKLOADS, own_name(world, "long"), _admit_earlier)
        async with replica(world):
            await eventually(world.shows("long", "PodsReady", "True"))
            set_active(world, "long", False)
            await eventually(world.shows("long", "QuotaReserved", "False", "Suspended"))
            past = status(world, "long")["accumulatedPastExecutionTimeSeconds"]
            assert past > 3600
            assert world.condition("long", "Evicted") == ("True", "Deactivated")
            # It has none left: the next admission lasts no time at all.
            world.change(kinds.WORKLOADS, own_name(world, "long"), _use_up)
            set_active(world, "long", True)
            await eventually(world.shows("long", "Evicted", "True", DEACTIVATED))
            await eventually(world.shows("long", "QuotaReserved", "False", "Suspended"))
            assert "accumulatedPastExecutionTimeSeconds" not in status(world, "long")


async def test_the_time_runs_on_while_no_one_acts() -> None:
    async with World() as world:
        furnish(world)
        async with replica(world):
            submit(world, "long", 3600)
            await eventually(world.started("long"))
        world.change(kinds.WORKLOADS, own_name(world, "long"), _admit_earlier)
        async with replica(world):
            await eventually(world.shows("long", "Evicted", "True", DEACTIVATED))


async def test_the_maximum_of_a_pending_workload_follows_the_label() -> None:
    async with World() as world, replica(world):
        furnish(world)
        submit(world, "large", 60, count=90)
        await eventually(world.shows("large", "QuotaReserved", "False"))
        world.change(
            kinds.JOBS, "large", lambda job: job["metadata"]["labels"].update({LABEL: "90"})
        )

        def maximum() -> object:
            return world.workload("large")["spec"].get("maximumExecutionTimeSeconds")

        await eventually(lambda: maximum() == 90)
        world.change(kinds.JOBS, "large", lambda job: job["metadata"]["labels"].pop(LABEL))
        await eventually(lambda: maximum() is None)


async def test_a_workload_without_a_job_is_deactivated_as_well() -> None:
    async with World() as world, replica(world):
        furnish(world)
        submit(world, "long", 2)
        await eventually(lambda: world.workload_of(world.job("long")))
        spec = world.workload("long")["spec"]
        meta = {"name": "alone", "namespace": "team", "ownerReferences": []}
        world.put(kinds.WORKLOADS, {"metadata": meta, "spec": {**spec, "active": True}})

        def released() -> bool:
            alone = world.get(kinds.WORKLOADS, "alone", "team") or {}
            found = {c["type"]: c["reason"] for c in alone.get("status", {}).get("conditions", [])}
            return found.get("Evicted") == DEACTIVATED and "admission" not in alone["status"]

        await eventually(released)


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
async def test_a_death_at_any_write_ends_in_one_deactivation(applied: bool) -> None:
    async def life(number: int) -> None:
        async with World() as world:
            furnish(world)
            killer = Killer(number, applied=applied)
            world.faults.append(killer.fault())
            await while_running(keep_running(world, killer.struck, replica), _life(world))
            assert world.broken_rules == []
            assert killer.struck.is_set() or number >= AT_LEAST

    await at_each(DEATHS, life)


async def _life(world: World) -> None:
    submit(world, "long", 2)
    await eventually(lambda: world.condition("long", "Evicted") == ("True", DEACTIVATED))
    await eventually(world.shows("long", "QuotaReserved", "False", "Suspended"))
    await eventually(lambda: not world.runs("long"))
    (counted,) = status(world, "long")["schedulingStats"]["evictions"]
    assert counted["count"] == 1
    assert "accumulatedPastExecutionTimeSeconds" not in status(world, "long")


def _use_up(own: Object) -> None:
    own["status"]["accumulatedPastExecutionTimeSeconds"] = FOREVER


def _admit_earlier(own: Object) -> None:
    """It was admitted long ago."""
    for condition in own["status"]["conditions"]:
        if condition["type"] == "Admitted":
            condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
