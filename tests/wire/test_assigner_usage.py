"""Admission fair sharing, as a running assigner has it: order, status, restart, deletion."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest_asyncio

from rackgate.api import resources as kinds
from rackgate.resources.quantity import parse_mean
from rackgate_assigner.settings import AssignerSettings
from tests.support import objects
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish, settings

# Half a year: nothing decays in a test, and nothing is consumed but by entry penalties.
SLOW = {"usageHalfLifeTime": 15_000_000, "usageSamplingInterval": 86_400}
SCOPE = {"admissionMode": "UsageBasedAdmissionFairSharing"}


def configured(**changes: Any) -> AssignerSettings:
    return settings(admissionFairSharing={**SLOW, **changes})


@pytest_asyncio.fixture
async def world() -> Any:
    world = World()
    furnish(world)
    queue = objects.cluster_queue("shared", "plain", {"cpu": "4"}, admissionScope=SCOPE)
    world.put(kinds.CLUSTER_QUEUES, queue)
    for name in ("modest", "greedy"):
        add_local_queue(world, name)
    async with world:
        yield world


def add_local_queue(world: World, name: str, **consumed: str) -> None:
    local = objects.local_queue(name, "shared")
    local["metadata"]["namespace"] = NAMESPACE
    if consumed:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        stored = {"consumedResources": consumed, "lastUpdate": now}
        local["status"] = {
            "fairSharing": {"weightedShare": 0, "admissionFairSharingStatus": stored}
        }
    world.put(kinds.LOCAL_QUEUES, local)


def consumed(world: World, name: str) -> float:
    """Cores that the status of a LocalQueue shows; -1 without a history."""
    found = world.get(kinds.LOCAL_QUEUES, name, NAMESPACE) or {}
    sharing = found.get("status", {}).get("fairSharing", {}).get("admissionFairSharingStatus")
    return -1.0 if sharing is None else parse_mean(sharing["consumedResources"].get("cpu", "0"))


def fill(world: World, job: str, queue: str) -> None:
    """A Job that uses the quota whole."""
    world.submit(job, 4, cpu="1", queue=queue)


async def test_whoever_has_used_less_is_next_and_the_status_says_what_was_used(
    world: World,
) -> None:
    async with assigner(world, configured=configured()):
        await eventually(lambda: consumed(world, "greedy") == 0 == consumed(world, "modest"))
        fill(world, "first", "greedy")
        await eventually(lambda: world.runs("first"))
        # 4 cores for a day, of a half-life of half a year.
        await eventually(lambda: 0.015 < consumed(world, "greedy") < 0.018)
        fill(world, "second", "greedy")
        await eventually(world.shows("second", "QuotaReserved", "False"))
        fill(world, "other", "modest")
        await eventually(world.shows("other", "QuotaReserved", "False"))
        world.complete("first")
        await eventually(lambda: world.runs("other"))
        assert not world.runs("second")
        await eventually(lambda: consumed(world, "modest") == consumed(world, "greedy"))
    assert world.broken_rules == []


async def test_a_history_continues_after_a_restart(world: World) -> None:
    async with assigner(world, configured=configured()):
        fill(world, "first", "greedy")
        await eventually(lambda: world.runs("first"))
        await eventually(lambda: consumed(world, "greedy") > 0)
        fill(world, "second", "greedy")
        await eventually(world.shows("second", "QuotaReserved", "False"))
        fill(world, "other", "modest")
        await eventually(world.shows("other", "QuotaReserved", "False"))
    before = consumed(world, "greedy")
    world.complete("first")
    async with assigner(world, configured=configured()):
        await eventually(lambda: world.runs("other"))
        assert not world.runs("second")
        assert consumed(world, "greedy") == before
        world.complete("other")
        await eventually(lambda: world.runs("second"))
        await eventually(lambda: consumed(world, "greedy") > 1.9 * before)
    assert world.broken_rules == []


async def test_a_history_decays_while_no_assigner_runs(world: World) -> None:
    add_local_queue(world, "greedy", cpu="64")
    async with assigner(world, configured=configured(usageHalfLifeTime=1)):
        await eventually(lambda: 0 <= consumed(world, "greedy") < 64)


async def test_it_is_sampled_in_every_interval(world: World) -> None:
    add_local_queue(world, "greedy", cpu="8")
    fast = configured(usageHalfLifeTime=1, usageSamplingInterval=1)
    async with assigner(world, configured=fast):
        await eventually(lambda: 0 <= consumed(world, "greedy") < 2)
        fill(world, "first", "modest")
        await eventually(lambda: consumed(world, "modest") > 3)
        world.complete("first")
        await eventually(lambda: 0 <= consumed(world, "modest") < 1)


async def test_a_local_queue_that_is_created_again_has_used_nothing(world: World) -> None:
    add_local_queue(world, "greedy", cpu="64")
    async with assigner(world, configured=configured()):
        await eventually(lambda: 63 < consumed(world, "greedy") <= 64)
        world.delete(kinds.LOCAL_QUEUES, "greedy")
        await eventually(lambda: world.get(kinds.LOCAL_QUEUES, "greedy", NAMESPACE) is None)
        add_local_queue(world, "greedy")
        await eventually(lambda: consumed(world, "greedy") == 0)


async def test_an_idle_local_queue_is_written_once(world: World) -> None:
    def written() -> int:
        return sum("/localqueues/modest" in found.path for found in world.writes())

    fast = configured(usageHalfLifeTime=60, usageSamplingInterval=1)
    async with assigner(world, configured=fast) as replica:
        await eventually(lambda: consumed(world, "modest") == 0)
        before, cycles = written(), replica.scheduler.cycles
        await eventually(lambda: replica.scheduler.cycles >= cycles + 3)
        assert written() == before


async def test_without_configuration_the_status_shows_no_usage_and_an_event_says_why(
    world: World,
) -> None:
    def weigh(queue: Any) -> None:
        queue["spec"]["fairSharing"] = {"weight": "2"}

    async with assigner(world):
        await eventually(
            lambda: (world.get(kinds.LOCAL_QUEUES, "modest", NAMESPACE) or {}).get("status")
        )
        assert consumed(world, "modest") == -1
        world.change(kinds.LOCAL_QUEUES, "modest", weigh)
        await eventually(
            lambda: any(
                "spec.fairSharing.weight" in event["note"]
                for event in world.events("UnsupportedField")
            )
        )


async def test_with_configuration_no_event_is_written(world: World) -> None:
    async with assigner(world, configured=configured()):
        await eventually(lambda: consumed(world, "modest") == 0)
        world.change(
            kinds.LOCAL_QUEUES, "modest", lambda o: o["spec"].update(fairSharing={"weight": "2"})
        )
        fill(world, "first", "modest")
        await eventually(lambda: world.runs("first"))
    assert world.events("UnsupportedField") == []
