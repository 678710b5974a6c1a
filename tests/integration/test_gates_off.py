"""Feature gates switched off, and on again, while Jobs run and wait: half-way is a state, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.features import ELASTIC_INDEXED_JOBS, ELASTIC_JOBS, NODES_BY_NAME
from tests.integration.test_odd_cases import live, most_live
from tests.integration.test_queues import active
from tests.integration.test_scaling import watch_invariants
from tests.support.cluster import Cluster, until
from tests.support.composite_views import used
from tests.support.objects import RACK, job
from tests.support.playground import SERVICES, Playground, start_playground

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

GATES = ("TopologyAwareScheduling", ELASTIC_JOBS, ELASTIC_INDEXED_JOBS, NODES_BY_NAME)
QUOTA_PODS = 4


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """A playground of its own, all gates on: other tests need theirs as they are."""
    state = tmp_path_factory.mktemp("gates") / "state"
    playground = start_playground(state, nodes=0, gates=GATES)
    try:
        yield playground
    finally:
        playground.stop()


async def switch(playground: Playground, *, on: bool) -> None:
    """Restart all services with the gates so; Jobs run on meanwhile."""
    for service in SERVICES:
        await asyncio.to_thread(playground.run, "stop", service)
    gates = ",".join(f"{gate}={str(on).lower()}" for gate in GATES)
    await asyncio.to_thread(playground.run, "up", "--feature-gates", gates)


async def uids(cluster: Cluster, *jobs: str) -> set[str]:
    return {pod["metadata"]["uid"] for name in jobs for pod in await cluster.pods_of(name)}


async def test_gates_that_go_off_and_on_half_way_break_no_quota_and_leave_nothing_stuck(
    own: Playground,
) -> None:
    async with own.client() as client:
        cluster = Cluster(client, "default", "gates")
        await cluster.add_fx_a()
        await cluster.add_queue(quota={"cpu": f"{4 * QUOTA_PODS}"})
        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch_invariants(cluster, done))
            counting = group.create_task(most_live(cluster, done))
            await story(cluster, own)
            done.set()
        assert watching.result() == []
        assert counting.result() == QUOTA_PODS


async def story(cluster: Cluster, own: Playground) -> None:
    """Three Jobs run and one waits for quota; off; what is asked for then; on; all of it runs."""
    await cluster.submit("train", 1, required=RACK)
    elastic = job("grows", 1, required=RACK, completions=50)
    elastic["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
    await cluster.create(kinds.JOBS, elastic)
    await cluster.submit("plain", 1)
    for name in ("train", "grows", "plain"):
        await cluster.bound(name, 1)
    await cluster.submit("waits", 2, required=RACK)
    await cluster.condition("waits", "QuotaReserved", "False", "WaitingForQuota")
    running = await uids(cluster, "train", "grows", "plain")

    await switch(own, on=False)
    words = "does not support TopologyAwareScheduling"
    await cluster.condition("waits", "QuotaReserved", "False", words=words)
    assert await uids(cluster, "train", "grows", "plain") == running
    await used(cluster, "12")
    await cluster.merge(kinds.JOBS, "grows", {"spec": {"parallelism": 2}})
    await cluster.delete(kinds.JOBS, "plain")
    await cluster.submit("late", 1)
    await cluster.bound("late", 1)
    assert len(await live(cluster)) <= QUOTA_PODS

    await switch(own, on=True)
    await cluster.delete(kinds.JOBS, "late")
    await cluster.delete(kinds.JOBS, "train")
    await cluster.bound("grows", 2)
    await cluster.bound("waits", 2)
    await used(cluster, "16")

    async def settled() -> bool:
        return len(await cluster.list_all(kinds.WORKLOADS)) == 2

    await until("no slice and no Workload is left over", settled)


COHORTS = ("TASWithCohorts", "TASWithPreemption")


@pytest.fixture
def without_cohorts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """A playground of its own, in which queues with a topology share and preempt nothing."""
    state = tmp_path_factory.mktemp("cohorts") / "state"
    playground = start_playground(state, nodes=0)
    try:
        gates = ",".join(f"{gate}=false" for gate in COHORTS)
        playground.run("stop", "assigner")
        playground.run("up", "--feature-gates", gates)
        yield playground
    finally:
        playground.stop()


@pytest.mark.requirement("VAL-05", "VAL-06")
async def test_with_the_gates_off_a_topology_queue_with_cohort_and_preemption_is_inactive(
    without_cohorts: Playground,
) -> None:
    async with without_cohorts.client() as client:
        cluster = Cluster(client, "default", "limits")
        await cluster.add_fx_a()
        preemption = {"withinClusterQueue": "LowerPriority"}
        await cluster.add_queue(cohortName="team", preemption=preemption)
        name = f"{cluster.pool}-queue"
        await active(cluster, name, "False", "cohort", "preemption")
        await cluster.submit("train", 4, required=RACK)
        await cluster.condition("train", "QuotaReserved", "False")
        change = {"spec": {"cohortName": None, "preemption": None}}
        await cluster.merge(kinds.CLUSTER_QUEUES, name, change)
        await active(cluster, name, "True")
        await cluster.bound("train", 4)
