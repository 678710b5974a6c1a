"""A tenant changes its own objects without end, so that none is long in the version just read."""

from __future__ import annotations

import pytest

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import jobset, replicated_job
from tests.support.endless_changes import Named, changed_without_end
from tests.support.identities import as_tenant
from tests.support.playground import Playground

pytestmark = pytest.mark.integration


async def furnish(cluster: Cluster) -> dict[str, str]:
    """A queue with room for four pods; the labels of a job that comes before all others."""
    await cluster.add_fx_a()
    preemption = {"withinClusterQueue": "LowerPriority"}
    await cluster.add_queue(topology=False, quota={"cpu": "16"}, preemption=preemption)
    return await cluster.add_priority(1000)


@pytest.mark.parametrize("changed", [kinds.WORKLOADS, kinds.JOBS], ids=lambda kind: kind.plural)
async def test_a_job_gives_way_whatever_its_user_changes_meanwhile(
    cluster: Cluster, playground: Playground, changed: Resource
) -> None:
    urgent = await furnish(cluster)
    await cluster.submit("train", 4)
    await cluster.bound("train", 4)
    name = "train"
    if changed is kinds.WORKLOADS:
        name = (await cluster.workload_of("train"))["metadata"]["name"]

    async def find() -> list[Named]:
        return [(changed, name)]

    async with as_tenant(playground, cluster) as tenant, changed_without_end(tenant, find):
        await cluster.submit("urgent", 4, labels=urgent)
        await cluster.bound("urgent", 4)
    await cluster.condition("train", "QuotaReserved", "False", "WaitingForQuota")


async def test_a_jobset_gives_way_whatever_its_user_changes_meanwhile(
    cluster: Cluster, playground: Playground
) -> None:
    urgent = await furnish(cluster)
    await cluster.create(
        kinds.JOBSETS, jobset("set", [replicated_job("workers", 2, replicas=2, cpu="4")])
    )

    async def running() -> bool:
        found = await cluster.list_all(kinds.PODS)
        return sum("nodeName" in pod["spec"] for pod in found) == 4

    await until("all pods of the JobSet are bound", running)

    async def find() -> list[Named]:
        children = await cluster.list_all(kinds.JOBS)
        found = [job["metadata"]["name"] for job in children]
        return [(kinds.JOBSETS, "set"), *((kinds.JOBS, name) for name in found if name != "urgent")]

    async with as_tenant(playground, cluster) as tenant, changed_without_end(tenant, find):
        await cluster.submit("urgent", 4, labels=urgent)
        await cluster.bound("urgent", 4)
