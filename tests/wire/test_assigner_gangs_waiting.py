"""What a gang that waits for quota does to others, and they to its time.

Its time begins with the admission: it does not run while the Workloads end that it preempts. At the
head of a StrictFIFO queue it is backfilled by what ends before it can start.
"""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.apiserver import Object
from tests.wire.assigner_world import NAMESPACE, World, eventually
from tests.wire.gang_pods_world import gang_pods_world
from tests.wire.gangs_world import GATES, GangWorld, gang_assigner, gang_world

pytestmark = pytest.mark.steady_clock

LONG_AGO = "2026-01-01T00:00:00Z"
LATE: Object = {"gangGroups": [{"name": "gg", "minCount": 4, "scheduleTimeoutSeconds": 3600}]}
BACKFILL: dict[str, Any] = {"featureGates": {**GATES, "RackgateBackfill": True}}
WHOLE = 16  # pods of 4 CPUs that use all nodes


def age(workload: Object) -> None:
    """As if all that has happened to it had happened long ago."""
    workload["metadata"]["creationTimestamp"] = LONG_AGO
    for condition in workload["status"]["conditions"]:
        condition["lastTransitionTime"] = LONG_AGO


def set_queue(world: World, **spec: Any) -> None:
    world.change(kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(spec))


def submit(world: World, name: str, count: int, seconds: int | None = None) -> None:
    """A Job without a gang that may run for so many seconds."""
    labels = {} if seconds is None else {names.MAX_EXECUTION_TIME_LABEL: str(seconds)}
    world.submit(name, count, indexed=False, labels=labels)


def message(workload: Object | None) -> str:
    """What a Workload says about its quota."""
    conditions = (workload or {}).get("status", {}).get("conditions", [])
    return next((str(c["message"]) for c in conditions if c["type"] == "QuotaReserved"), "")


def message_of(world: GangWorld, job: str) -> str:
    return message(world.workload_of(world.job(job)))


def start_of(world: GangWorld, job: str) -> str:
    """When the head of the queue is expected to start."""
    return message_of(world, job).partition("Expected to start by ")[2].partition(",")[0]


@pytest.mark.requirement("STR-18")
async def test_the_time_of_a_gang_does_not_run_while_those_it_preempts_end() -> None:
    async with gang_world() as world, gang_assigner(world):
        world.ready = False
        set_queue(world, preemption={"withinClusterQueue": "LowerPriority"})
        for name, value in (("low", 1), ("high", 2)):
            priority = {"metadata": {"name": name}, "value": value}
            world.put(kinds.WORKLOAD_PRIORITY_CLASSES, priority)
        labels = {names.PRIORITY_CLASS_LABEL: "low"}
        world.submit("victim", WHOLE, indexed=False, labels=labels)
        await eventually(world.started("victim"))
        world.add_pods("victim", 0, 1)
        world.describe("mine", LATE)
        queue = {names.QUEUE_LABEL: "queue", names.PRIORITY_CLASS_LABEL: "high"}
        world.submit_gang("train", link="mine", labels=queue)
        waits = ("QuotaReserved", "False", "WaitingForPreemptedWorkloads")
        await eventually(world.shows("train", *waits))
        await eventually(lambda: not world.runs("victim"))
        world.change(kinds.WORKLOADS, world.workload("train")["metadata"]["name"], age)
        assert not world.admitted("train"), "pods of the victim still end"
        for index in range(2):
            world.remove(kinds.PODS, f"victim-{index}", NAMESPACE)
        await eventually(world.started("train"))
        world.describe("other", LATE)
        world.submit_gang("slow", link="other", queue="plain")
        await eventually(world.started("slow"))
        world.change(kinds.WORKLOADS, world.workload("slow")["metadata"]["name"], age)
        await eventually(world.shows("slow", "Evicted", "True", "GangTimeout"))
        assert world.condition("train", "Evicted") == ("", "")
        assert world.runs("train")


@pytest.mark.requirement("STR-18")
async def test_a_gang_that_waits_is_backfilled_by_what_ends_before_it_can_start() -> None:
    async with gang_world() as world, gang_assigner(world, **BACKFILL):
        set_queue(world, queueingStrategy="StrictFIFO")
        submit(world, "long", 12, 3600)
        await eventually(world.started("long"))
        world.describe("mine", {"gangGroups": [{"name": "gg", "minCount": WHOLE}]})
        world.submit_gang("a-gang", WHOLE, link="mine")
        await eventually(lambda: "Expected to start by" in message_of(world, "a-gang"))
        expected = start_of(world, "a-gang")
        submit(world, "b-endless", 2)
        await eventually(lambda: "no maximum execution time" in message_of(world, "b-endless"))
        submit(world, "c-late", 2, 3600)
        await eventually(lambda: "after the expected start" in message_of(world, "c-late"))
        submit(world, "d-short", 4, 600)
        await eventually(world.started("d-short"))
        assert "ahead of the first workload of the queue" in message_of(world, "d-short")
        assert start_of(world, "a-gang") == expected, "it is not delayed"
        assert not world.admitted("a-gang"), "it holds nothing, and its time does not run"
        world.complete("d-short")
        world.complete("long")
        await eventually(world.started("a-gang"))
        (assigned,) = world.workload("a-gang")["status"]["admission"]["podSetAssignments"]
        assert assigned["count"] == WHOLE
        assert not world.runs("b-endless")
        assert not world.runs("c-late")


@pytest.mark.requirement("STR-18")
async def test_a_gang_of_pods_that_waits_is_backfilled_by_a_short_gang_of_pods() -> None:
    async with gang_pods_world() as world, gang_assigner(world, **BACKFILL):
        set_queue(world, queueingStrategy="StrictFIFO")
        submit(world, "long", 12, 3600)
        await eventually(world.started("long"))
        world.describe("big", {"gangGroups": [{"name": "gg", "minCount": WHOLE}]})
        world.add_set("a", WHOLE, "big", queue="queue")

        def told(link: str) -> str:
            return next((message(found) for found in world.of_gang(link)), "")

        await eventually(lambda: "Expected to start by" in told("big"))
        limits = {"late": 3600, "short": 600}
        for name, seconds in limits.items():
            world.describe(name, {"gangGroups": [{"name": "gg", "minCount": 4}]})
            labels = {names.MAX_EXECUTION_TIME_LABEL: str(seconds)}
            world.add_set(name, 4, name, queue="queue", labels=labels)
        await eventually(lambda: world.running("short") == 4)
        await eventually(lambda: "after the expected start" in told("late"))
        assert world.gated("a") == WHOLE
        world.delete_set("short")
        world.complete("long")
        await eventually(lambda: world.running("a") == WHOLE)
        assert world.running("late") == 0
