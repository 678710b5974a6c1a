"""A StrictFIFO queue with the gate of backfill, as a running assigner schedules it."""

from __future__ import annotations

from typing import Any

import pytest_asyncio

from rackgate.api import resources as kinds
from rackgate.api.names import MAX_EXECUTION_TIME_LABEL
from rackgate.api.timestamps import parse_rfc3339
from rackgate.runtime.metrics import REGISTRY
from tests.support import objects
from tests.wire.assigner_world import World, assigner, eventually, furnish, settings

GATE = {"RackgateBackfill": True}
QUEUE = "plain"


@pytest_asyncio.fixture
async def world() -> Any:
    world = World()
    furnish(world)
    spec = {"queueingStrategy": "StrictFIFO"}
    world.put(kinds.CLUSTER_QUEUES, objects.cluster_queue(QUEUE, QUEUE, {"cpu": "10"}, **spec))
    async with world:
        yield world


# Names are in the order of the queue: the fake API server creates all at the same time.


def submit(world: World, name: str, cpu: int, seconds: int | None = None) -> None:
    labels = {} if seconds is None else {MAX_EXECUTION_TIME_LABEL: str(seconds)}
    world.submit(name, cpu, cpu="1", queue=QUEUE, labels=labels)


def message(world: World, name: str, kind: str = "QuotaReserved") -> str:
    found = world.workload_of(world.job(name)) or {}
    conditions = found.get("status", {}).get("conditions", [])
    return next((c["message"] for c in conditions if c["type"] == kind), "")


def backfilled() -> float:
    name = "rackgate_backfilled_workloads_total"
    return REGISTRY.get_sample_value(name, {"cluster_queue": QUEUE}) or 0.0


async def test_a_short_job_runs_ahead_of_a_head_that_knows_its_start(world: World) -> None:
    before = backfilled()
    async with assigner(world, configured=settings(featureGates=GATE)):
        submit(world, "long", 8, 3600)
        await eventually(lambda: world.runs("long"))
        submit(world, "a-head", 10)
        await eventually(lambda: "Expected to start by" in message(world, "a-head"))
        submit(world, "b-endless", 2)
        await eventually(lambda: "no maximum execution time" in message(world, "b-endless"))
        submit(world, "c-late", 2, 3600)
        await eventually(lambda: "after the expected start" in message(world, "c-late"))
        submit(world, "d-short", 2, 600)
        await eventually(lambda: world.runs("d-short"))
        uid = world.workload("a-head")["metadata"]["uid"]
        text = f"ahead of the first workload of the queue (UID: {uid})"
        assert text in message(world, "d-short")
        await eventually(lambda: any(text in event["note"] for event in world.events("Admitted")))
        assert backfilled() == before + 1
        # It ends when the one that runs has used its time: one hour after its admission.
        long = world.workload("long")["status"]["conditions"]
        since = next(c["lastTransitionTime"] for c in long if c["type"] == "Admitted")
        expected = message(world, "a-head").split("start by ")[1].split(",")[0]
        assert (parse_rfc3339(expected) - parse_rfc3339(since)).total_seconds() == 3600
        world.complete("d-short")
        world.complete("long")
        await eventually(lambda: world.runs("a-head"))
        assert not world.runs("b-endless")
    assert world.broken_rules == []


async def test_without_the_gate_a_short_job_stays_behind_the_head(world: World) -> None:
    async with assigner(world):
        submit(world, "long", 8, 3600)
        await eventually(lambda: world.runs("long"))
        submit(world, "a-head", 10)
        await eventually(world.shows("a-head", "QuotaReserved", "False"))
        submit(world, "d-short", 2, 60)
        await eventually(world.shows("d-short", "QuotaReserved", "False"))
        assert not world.runs("d-short")
        assert "xpected" not in message(world, "a-head")
