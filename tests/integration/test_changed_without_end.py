"""A tenant changes its own objects without end, so that none is long in the version just read."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import (
    jobset,
    raycluster,
    rayjob,
    replicated_job,
    worker_group,
)
from tests.support.composite_views import bound_pods
from tests.support.endless_changes import Named, changed_without_end
from tests.support.identities import as_tenant
from tests.support.objects import Object, job
from tests.support.playground import Playground

pytestmark = pytest.mark.integration


async def furnish(cluster: Cluster) -> dict[str, str]:
    """A queue with room for four pods; the labels of a job that comes before all others."""
    await cluster.add_fx_a()
    preemption = {"withinClusterQueue": "LowerPriority"}
    # Memory, too: the pod that submits a RayJob asks for it.
    quota = {"cpu": "16", "memory": "100Gi"}
    await cluster.add_queue(topology=False, quota=quota, preemption=preemption)
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


@pytest.mark.parametrize(
    ("kind", "made", "workers"),
    [(kinds.RAY_CLUSTERS, raycluster, 3), (kinds.RAY_JOBS, rayjob, 2)],
    ids=["raycluster", "rayjob"],
)
async def test_ray_gives_way_whatever_its_user_changes_meanwhile(
    cluster: Cluster,
    playground: Playground,
    kind: Resource,
    made: Callable[..., Object],
    workers: int,
) -> None:
    urgent = await furnish(cluster)
    await cluster.create(
        kind, made("ray", [worker_group("workers", workers, cpu="4")], head_cpu="4")
    )
    await bound_pods(cluster, names.RAY_CLUSTER_LABEL, 1 + workers)

    async def find() -> list[Named]:
        found = [(kind, "ray")]
        for part in (kinds.RAY_CLUSTERS, kinds.PODS):
            listed = [one["metadata"]["name"] for one in await cluster.list_all(part)]
            found += [(part, name) for name in listed if not name.startswith("urgent")]
        return found

    async with as_tenant(playground, cluster) as tenant, changed_without_end(tenant, find):
        await cluster.submit("urgent", 4, labels=urgent)
        await cluster.bound("urgent", 4)


@pytest.mark.parametrize("kind", [kinds.RAY_CLUSTERS, kinds.RAY_JOBS], ids=lambda kind: kind.plural)
async def test_ray_is_preempted_while_kuberay_does_nothing(
    cluster: Cluster, playground: Playground, kind: Resource
) -> None:
    """As if each of its writes met a newer version."""
    urgent = await furnish(cluster)
    made = raycluster if kind is kinds.RAY_CLUSTERS else rayjob
    await cluster.create(kind, made("ray", [worker_group("workers", 2, cpu="4")], head_cpu="4"))
    await bound_pods(cluster, names.RAY_CLUSTER_LABEL, 3)
    with paused(playground.pids("kuberay")):
        await cluster.submit("urgent", 4, labels=urgent)
        await cluster.bound("urgent", 4)
        await cluster.event("StopLate", "ray")
    await cluster.delete(kinds.JOBS, "urgent")
    await bound_pods(cluster, names.RAY_CLUSTER_LABEL, 3)


async def test_a_rayjob_that_kuberay_ignores_is_preempted(
    cluster: Cluster, playground: Playground
) -> None:
    """KubeRay does nothing with a RayJob that has a value which it rejects."""
    urgent = await furnish(cluster)
    made = rayjob("ray", [worker_group("workers", 2, cpu="4")], head_cpu="4")
    await cluster.create(kinds.RAY_JOBS, made)
    await bound_pods(cluster, names.RAY_CLUSTER_LABEL, 3)
    async with as_tenant(playground, cluster) as tenant:
        await tenant.merge(kinds.RAY_JOBS, "ray", {"spec": {"activeDeadlineSeconds": 0}})
    await cluster.submit("urgent", 4, labels=urgent)
    await cluster.bound("urgent", 4)


@contextmanager
def paused(pids: Iterable[int]) -> Iterator[None]:
    """Stop processes, and let them go on after the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def test_an_elastic_job_that_grows_gives_way_whatever_its_user_changes_meanwhile(
    cluster: Cluster, playground: Playground
) -> None:
    urgent = await furnish(cluster)
    elastic = job("train", 1, completions=50)
    elastic["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
    await cluster.create(kinds.JOBS, elastic)
    await cluster.bound("train", 1)

    async def find() -> list[Named]:
        found = [
            (kinds.WORKLOADS, one["metadata"]["name"])
            for one in await cluster.list_all(kinds.WORKLOADS)
            if not one["metadata"]["name"].startswith("job-urgent")
        ]
        return [(kinds.JOBS, "train"), *found]

    async with as_tenant(playground, cluster) as tenant, changed_without_end(tenant, find):
        await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 3}})
        await cluster.bound("train", 3)
        await cluster.submit("urgent", 4, labels=urgent)
        await cluster.bound("urgent", 4)
