"""Teams that share quota and racks, on the real Job controller and kube-scheduler."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.composite_views import conditions
from tests.support.objects import RACK, local_queue, node

pytestmark = pytest.mark.integration

RECLAIM = {"reclaimWithinCohort": "Any"}


async def add_teams(cluster: Cluster, *teams: str, cpu: int, **spec: Any) -> None:
    """A queue for each team, all in one Cohort and with the flavor of the first."""
    quota, org = {"cpu": str(cpu)}, f"{cluster.pool}-org"
    for name in teams:
        shared = None if name == teams[0] else teams[0]
        await cluster.add_queue(name, quota=quota, flavor_of=shared, cohortName=org, **spec)


async def rack_of(cluster: Cluster, job: str) -> tuple[str, str]:
    """Block and rack of a Job's four pods, which are in one rack."""
    racks = {(block, rack) for block, rack, _ in await cluster.places(job, 4)}
    assert len(racks) == 1
    return racks.pop()


async def uids(cluster: Cluster, job: str, count: int) -> set[str]:
    """UIDs of a Job's pods, when all are bound."""
    return {pod["metadata"]["uid"] for pod in await cluster.bound(job, count)}


async def borrows(cluster: Cluster, team: str, amount: str) -> None:
    """Wait until the ClusterQueue of a team says that it borrows so much."""

    async def told() -> bool:
        queue = await cluster.get(kinds.CLUSTER_QUEUES, f"{cluster.pool}-{team}")
        (flavor,) = queue["status"]["flavorsUsage"]
        (resource,) = flavor["resources"]
        return bool(resource["borrowed"] == amount)

    await until(f"team {team} borrows {amount} CPU", told)


@pytest.mark.requirement("STR-07")
async def test_three_teams_borrow_racks_in_turn_and_get_them_back(cluster: Cluster) -> None:
    """In each round one team borrows the rack of another one. The third only uses its own."""
    await cluster.add_fx_a()
    await add_teams(cluster, "a", "b", "c", cpu=16, preemption=RECLAIM)
    for borrower, lender, third in (("a", "c", "b"), ("b", "a", "c"), ("c", "b", "a")):
        own, more, other, back = (f"{job}-{borrower}" for job in ("own", "more", "other", "back"))
        for name, team in ((own, borrower), (other, third), (more, borrower)):
            await cluster.submit(name, 4, required=RACK, queue=team)
            await cluster.bound(name, 4)
        assert len({await rack_of(cluster, name) for name in (own, more, other)}) == 3
        await borrows(cluster, borrower, "16")
        undisturbed = await uids(cluster, other, 4)

        await cluster.submit(back, 4, required=RACK, queue=lender)
        await cluster.bound(back, 4)
        await rack_of(cluster, back)
        states = {name: conditions(await cluster.workload_of(name)) for name in (own, more)}
        (victim,) = (name for name, found in states.items() if "Preempted" in found)
        assert states[victim]["Preempted"]["reason"] == "InCohortReclamation"
        await cluster.condition(victim, "QuotaReserved", "False", "WaitingForQuota")

        await cluster.delete(kinds.JOBS, back)
        await cluster.bound(victim, 4)
        await rack_of(cluster, victim)
        assert await uids(cluster, other, 4) == undisturbed
        for name in (own, more, other):
            await cluster.delete(kinds.JOBS, name)


@pytest.mark.requirement("STR-07")
async def test_an_urgent_job_gets_the_rack_of_the_least_important_of_forty(
    cluster: Cluster,
) -> None:
    racks = range(40)
    await cluster.add_nodes(
        node(cluster.pool, f"b{rack % 4}", f"r{rack}", f"h{rack}") for rack in racks
    )
    await cluster.add_queue(preemption={"withinClusterQueue": "LowerPriority"})
    least, usual, most = [await cluster.add_priority(value) for value in (1, 2, 3)]
    async with asyncio.TaskGroup() as group:
        for rack in racks:
            labels = least if rack == 17 else usual
            group.create_task(
                cluster.submit(f"job-{rack}", 1, cpu="8", required=RACK, labels=labels)
            )

    async def all_bound() -> bool:
        pods = await cluster.list_all(kinds.PODS)
        return sum("nodeName" in pod["spec"] for pod in pods) == len(racks)

    await until("all forty racks are taken", all_bound)
    ((_, freed, _),) = await cluster.places("job-17", 1)
    await cluster.submit("urgent", 2, required=RACK, labels=most)
    places = await cluster.places("urgent", 2)
    assert {rack for _, rack, _ in places} == {freed}
    await cluster.condition("job-17", "Preempted", "True", "InClusterQueue")
    await cluster.condition("job-17", "QuotaReserved", "False", "TopologyPlacementFailed")
    found = await cluster.list_all(kinds.WORKLOADS)
    assert sum("Preempted" in conditions(workload) for workload in found) == 1


async def test_a_local_queue_that_is_stopped_and_drained_gives_back_what_it_borrowed(
    cluster: Cluster,
) -> None:
    """Two LocalQueues lead to the ClusterQueue of team a. One of them is stopped."""
    await cluster.add_fx_a()
    await add_teams(cluster, "a", "b", cpu=8)
    await cluster.create(kinds.LOCAL_QUEUES, local_queue("second", f"{cluster.pool}-a"))
    for name, queue in (("own", "a"), ("lent", "second")):
        await cluster.submit(name, 2, required=RACK, queue=queue)
    own, lent = [await uids(cluster, name, 2) for name in ("own", "lent")]
    await cluster.submit("waits", 2, required=RACK, queue="b")
    await cluster.condition("waits", "QuotaReserved", "False", "WaitingForQuota")

    await cluster.merge(kinds.LOCAL_QUEUES, "second", {"spec": {"stopPolicy": "Hold"}})
    await cluster.submit("late", 1, required=RACK, queue="second")
    words = "LocalQueue second is inactive"
    await cluster.condition("late", "QuotaReserved", "False", "Suspended", words)
    await cluster.condition("waits", "QuotaReserved", "False", "WaitingForQuota")
    assert await uids(cluster, "lent", 2) == lent
    await borrows(cluster, "a", "8")

    await cluster.merge(kinds.LOCAL_QUEUES, "second", {"spec": {"stopPolicy": "HoldAndDrain"}})
    await cluster.condition("lent", "Evicted", "True", "LocalQueueStopped")
    await cluster.bound("waits", 2)
    await cluster.condition("lent", "QuotaReserved", "False", "Suspended", words)
    await borrows(cluster, "a", "0")
    await cluster.delete(kinds.JOBS, "late")

    await cluster.merge(kinds.LOCAL_QUEUES, "second", {"spec": {"stopPolicy": "None"}})
    await cluster.condition("lent", "Requeued", "True", "LocalQueueRestarted")
    await cluster.condition("lent", "QuotaReserved", "False", "WaitingForQuota")
    await cluster.delete(kinds.JOBS, "waits")
    assert not await uids(cluster, "lent", 2) & lent
    assert await uids(cluster, "own", 2) == own
