"""Queues that share quota, as a running assigner schedules them: borrow, reclaim, shares, racks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support import objects
from tests.support.objects import RACK
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish, settings
from tests.wire.killing import WATCHED, Killer, keep_running, while_running
from tests.wire.test_assigner_adversary import bind, unbind

FAIR = {"enable": True}
RECLAIM = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}


@pytest_asyncio.fixture
async def world() -> Any:
    world = World()
    furnish(world)
    async with world:
        yield world


def team(world: World, name: str, cpu: int, **spec: Any) -> None:
    """A ClusterQueue in Cohort `all` with quota of flavor `plain`, and its LocalQueue."""
    spec = {"cohortName": "all", "preemption": RECLAIM, **spec}
    world.put(kinds.CLUSTER_QUEUES, objects.cluster_queue(name, "plain", {"cpu": str(cpu)}, **spec))
    local = objects.local_queue(name, name)
    local["metadata"]["namespace"] = NAMESPACE
    world.put(kinds.LOCAL_QUEUES, local)


def cohort(world: World, name: str, parent: str | None = None, **spec: Any) -> None:
    if parent is not None:
        spec["parentName"] = parent
    world.put(kinds.COHORTS, {"metadata": {"name": name}, "spec": spec})


def status_of(world: World, kind: Any, name: str, space: str = "") -> Any:
    found = world.get(kind, name, space)
    return (found or {}).get("status", {})


def generation_of(world: World, queue: str) -> int:
    found = world.get(kinds.CLUSTER_QUEUES, queue, "")
    assert found is not None
    return int(found["metadata"]["generation"])


def borrowed(world: World, name: str) -> str:
    (flavor,) = status_of(world, kinds.CLUSTER_QUEUES, name).get("flavorsUsage", [{}])
    (amounts,) = flavor.get("resources", [{}])
    return str(amounts.get("borrowed"))


@pytest.mark.requirement("STR-07")
async def test_a_team_borrows_and_its_queue_says_how_much(world: World) -> None:
    team(world, "a", 4)
    team(world, "b", 4)
    async with assigner(world):
        world.submit("big", 6, cpu="1", queue="a")
        await eventually(lambda: world.runs("big"))
        await eventually(lambda: borrowed(world, "a") == "2")
    assert borrowed(world, "b") == "0"


@pytest.mark.requirement("STR-07")
async def test_a_team_gets_its_quota_back_from_the_one_that_borrowed_it(world: World) -> None:
    team(world, "a", 4)
    team(world, "b", 4)
    async with assigner(world):
        world.submit("own", 4, cpu="1", queue="b")
        await eventually(lambda: world.runs("own"))
        world.submit("borrower", 4, cpu="1", queue="b")
        await eventually(lambda: world.runs("borrower"))
        world.submit("mine", 3, cpu="1", queue="a")
        await eventually(lambda: world.runs("mine"))
        found = {name: world.condition(name, "Preempted") for name in ("own", "borrower")}
        assert sorted(found.values()) == [("", ""), ("True", "InCohortReclamation")]


async def test_a_change_of_a_cohort_wakes_who_waits_for_it(world: World) -> None:
    team(world, "a", 2)
    async with assigner(world):
        world.submit("some", 4, cpu="1", queue="a")
        await eventually(world.shows("some", "QuotaReserved", "False", "ExceedsMaxQuota"))
        quota = objects.cluster_queue("x", "plain", {"cpu": "2"})["spec"]["resourceGroups"]
        cohort(world, "all", resourceGroups=quota)
        await eventually(lambda: world.runs("some"))


async def test_cohorts_that_are_above_themselves_stop_their_queues_until_they_are_mended(
    world: World,
) -> None:
    team(world, "a", 4)
    cohort(world, "all", "org")
    cohort(world, "org", "all")

    def active() -> str:
        conditions = status_of(world, kinds.CLUSTER_QUEUES, "a").get("conditions", [{}])
        return str(conditions[0].get("reason"))

    async with assigner(world):
        world.submit("some", 1, cpu="1", queue="a")
        await eventually(lambda: active() == "CohortCycle")
        assert not world.runs("some")
        world.delete(kinds.COHORTS, "org")
        await eventually(lambda: world.runs("some"))
        await eventually(lambda: active() == "Ready")


@pytest.mark.requirement("STR-07")
async def test_with_fair_sharing_queues_and_cohorts_show_their_shares(world: World) -> None:
    team(world, "a", 0)
    team(world, "b", 8)
    cohort(world, "all", "org")
    async with assigner(world, configured=settings(fairSharing=FAIR)):
        world.submit("some", 4, cpu="1", queue="a")
        await eventually(lambda: world.runs("some"))

        def share() -> Any:
            found = status_of(world, kinds.CLUSTER_QUEUES, "a").get("fairSharing", {})
            return found.get("weightedShare")

        await eventually(lambda: share() == 500)
        await eventually(
            lambda: (
                status_of(world, kinds.COHORTS, "all").get("fairSharing") == {"weightedShare": 0}
            )
        )
    async with assigner(world):
        await eventually(lambda: share() is None)


async def test_a_share_of_another_manager_is_not_rewritten_again_and_again(world: World) -> None:
    """Without fair sharing no share is written; one that is there may be left from before."""
    team(world, "a", 8)
    cohort(world, "all")
    share = {"fairSharing": {"weightedShare": 7}}
    for kind, name in ((kinds.CLUSTER_QUEUES, "a"), (kinds.COHORTS, "all")):
        world.change(kind, name, lambda o: o.setdefault("status", {}).update(share))

    def writes(part: str) -> int:
        return sum(part in request.path for request in world.writes())

    async with assigner(world):
        for number in range(5):
            for kind, name in ((kinds.CLUSTER_QUEUES, "a"), (kinds.COHORTS, "all")):
                world.change(
                    kind, name, lambda o: o["metadata"].setdefault("labels", {}).update(n="x")
                )
            # The status of a queue that comes later is written after those.
            team(world, f"later-{number}", 1)
            marker = f"clusterqueues/later-{number}/status"
            await eventually(lambda: writes(marker))  # noqa: B023 - called in this round only
    assert writes("clusterqueues/a/status") <= 2
    assert writes("cohorts/all/status") == 1
    for kind, name in ((kinds.CLUSTER_QUEUES, "a"), (kinds.COHORTS, "all")):
        assert status_of(world, kind, name)["fairSharing"] == {"weightedShare": 7}


@pytest.mark.requirement("STR-07")
async def test_a_high_priority_job_gets_its_rack_from_one_job_alone(world: World) -> None:
    furnish(world, preemption={"withinClusterQueue": "LowerPriority"})
    world.put(kinds.WORKLOAD_PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 100})
    async with assigner(world):
        for index in range(4):
            world.submit(f"low{index}", 4, required=RACK)
            await eventually(world.started(f"low{index}"))
        world.submit("high", 4, required=RACK, labels={"kueue.x-k8s.io/priority-class": "high"})
        await eventually(lambda: world.runs("high"))
        evicted = [i for i in range(4) if world.condition(f"low{i}", "Preempted")[0] == "True"]
        assert len(evicted) == 1


async def test_a_condition_says_which_spec_it_is_about(world: World) -> None:
    team(world, "a", 4)

    def observed() -> Any:
        conditions = status_of(world, kinds.CLUSTER_QUEUES, "a").get("conditions", [{}])
        return conditions[0].get("observedGeneration")

    async with assigner(world):
        generation = generation_of(world, "a")
        await eventually(lambda: observed() == generation)
        world.change(kinds.CLUSTER_QUEUES, "a", lambda o: o["spec"].update(cohortName="other"))
        newer = generation_of(world, "a")
        assert newer > generation
        await eventually(lambda: observed() == newer)


# Writes of the life below; a few may be joined where the API server is slow.
LIFE, AT_LEAST = 34, 14


def submit(world: World, name: str, team_name: str, priority: str) -> None:
    label = {names.PRIORITY_CLASS_LABEL: priority}
    world.submit(name, 4, cpu="1", queue=team_name, labels=label)


async def _life(world: World) -> None:
    """A team borrows, the other reclaims, ends, and what was preempted runs again."""
    submit(world, "own", "b", "middle")
    submit(world, "borrower", "b", "low")
    await eventually(lambda: world.runs("own") and world.runs("borrower"))
    submit(world, "mine", "a", "low")
    await eventually(world.started("mine"))
    assert world.runs("own"), "one was enough"
    assert not world.runs("borrower")
    world.complete("mine")
    await eventually(world.started("borrower"))
    assert world.condition("own", "Evicted") == ("", "")


def two_teams(world: World) -> None:
    furnish(world)
    team(world, "a", 4)
    team(world, "b", 4)
    for name, value in (("low", 1), ("middle", 2)):
        world.put(kinds.WORKLOAD_PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})


@pytest.mark.requirement("STR-07")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
@pytest.mark.parametrize("number", range(8, LIFE))
async def test_a_death_at_any_write_reclaims_from_no_one_else(number: int, applied: bool) -> None:
    async with World() as world:
        two_teams(world)
        killer = Killer(number, applied=applied)
        world.faults.append(killer.fault())
        await while_running(keep_running(world, killer.struck), _life(world))
        assert world.broken_rules == []
        assert killer.struck.is_set() or number >= AT_LEAST


async def test_the_life_of_two_teams_has_no_more_writes_than_are_killed() -> None:
    async with World() as world:
        two_teams(world)
        await while_running(keep_running(world, asyncio.Event()), _life(world))
        assert AT_LEAST <= world.taken(WATCHED) <= LIFE


@pytest.mark.requirement("STR-07")
async def test_who_needs_the_quota_of_ending_pods_waits_for_them(world: World) -> None:
    """The job is deleted, its Workload is gone, and its pods still end."""
    team(world, "a", 16)
    priority = {"metadata": {"name": "high"}, "value": 9}
    world.put(kinds.WORKLOAD_PRIORITY_CLASSES, priority)
    async with assigner(world) as replica:
        world.submit("low", 2, queue="a")
        gone = world.submit("gone", 2, queue="a")
        await eventually(lambda: world.runs("low") and world.runs("gone"))
        bind(world, gone, 2, deletionTimestamp="2026-08-01T12:00:00Z")
        # The ending pods hold quota only once the assigner has seen them.
        await eventually(lambda: len(replica.cache.pods.rows) == 2)
        key = f"{NAMESPACE}/{world.workload('gone')['metadata']['name']}"
        world.remove(kinds.JOBS, "gone", NAMESPACE)
        world.remove(kinds.WORKLOADS, key.partition("/")[2], NAMESPACE)
        await eventually(lambda: key not in replica.cache.workloads)
        labels = {"kueue.x-k8s.io/priority-class": "high"}
        world.submit("high", 2, queue="a", labels=labels)
        reason = "WaitingForPreemptedWorkloads"
        await eventually(world.shows("high", "QuotaReserved", "False", reason))
        assert world.condition("low", "Preempted") == ("", "")
        unbind(world, gone, 0, 1)
        await eventually(lambda: world.runs("high"))
        assert world.runs("low")
