"""No gate holds a pod of a queue without topology: what keeps these within their quota."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.kube import resources as kinds
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import jobset, raycluster, replicated_job, worker_group
from tests.support.composite_views import ray_state
from tests.support.identities import as_tenant
from tests.support.objects import Object
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

UNENDING: Object = {"completions": None, "completionMode": "NonIndexed"}


async def plain_queue(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16", "memory": "1000Gi"}, topology=False)


async def refused(writing: Any, words: str) -> None:
    with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
        await writing
    assert words in caught.value.message, caught.value.message


async def test_pods_name_their_workload_and_keep_their_controller(
    cluster: Cluster, playground: Playground
) -> None:
    await plain_queue(cluster)
    await cluster.submit("train", 4, spec=UNENDING)
    pods = await cluster.bound("train", 4)
    workload = (await cluster.workload_of("train"))["metadata"]["name"]
    assert {pod["metadata"]["annotations"][names.WORKLOAD_ANNOTATION] for pod in pods} == {workload}
    name = pods[0]["metadata"]["name"]
    keys = ("batch.kubernetes.io/controller-uid", "controller-uid", "job-name")
    stripped: Object = {"metadata": {"labels": dict.fromkeys(keys)}}
    async with as_tenant(playground, cluster) as tenant:
        for change in (stripped, {"metadata": {"ownerReferences": None}}):
            await refused(tenant.merge(kinds.PODS, name, change), "the controller of a pod")
        await tenant.merge(kinds.PODS, name, {"metadata": {"labels": {"example.com/a": "b"}}})
    await cluster.bound("train", 4)


async def test_a_job_of_a_started_jobset_is_not_deleted_alone(
    cluster: Cluster, playground: Playground
) -> None:
    await plain_queue(cluster)
    await cluster.create(kinds.JOBSETS, jobset("set", [replicated_job("w", 2, replicas=2)]))
    await cluster.bound("set-w-1", 2)
    path = kinds.JOBS.path(cluster.namespace, "set-w-1")
    async with as_tenant(playground, cluster) as tenant:
        await refused(tenant.client.delete(path), 'part of the started JobSet "set"')
        await tenant.merge(kinds.JOBSETS, "set", {"spec": {"suspend": True}})

        async def deleted() -> bool:
            try:
                await tenant.delete(kinds.JOBS, "set-w-1")
            except (ForbiddenError, UnprocessableError):
                return False
            return True

        await until("the Job of a JobSet that stopped is deleted", deleted)
        await tenant.delete(kinds.JOBSETS, "set")

    async def gone() -> bool:
        return not await cluster.list_all(kinds.JOBS) and not await cluster.list_all(kinds.PODS)

    await until("the JobSet takes its Jobs and pods along", gone)


async def test_a_running_cluster_whose_containers_change_is_suspended_in_the_same_write(
    cluster: Cluster, playground: Playground
) -> None:
    await plain_queue(cluster)
    await cluster.create(kinds.RAY_CLUSTERS, raycluster("ray", [worker_group("w", 1, most=4)]))
    await ray_state(cluster, "ray", "ready")
    async with as_tenant(playground, cluster) as tenant:
        stored = await tenant.get(kinds.RAY_CLUSTERS, "ray")
        head = stored["spec"]["headGroupSpec"]
        head["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "12"}}
        change: Object = {"spec": {"headGroupSpec": head}}
        changed = await tenant.merge(kinds.RAY_CLUSTERS, "ray", change)
    assert changed["spec"]["suspend"] is True


@pytest.mark.usefixtures("webhook_down")
async def test_without_the_webhook_other_containers_are_refused(
    cluster: Cluster, playground: Playground
) -> None:
    await plain_queue(cluster)
    wish = raycluster("ray", [worker_group("w", 1, most=4)], suspend=True)
    await cluster.create(kinds.RAY_CLUSTERS, wish)
    await ray_state(cluster, "ray", "ready")
    async with as_tenant(playground, cluster) as tenant:
        stored = await tenant.get(kinds.RAY_CLUSTERS, "ray")
        head = stored["spec"]["headGroupSpec"]
        head["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "12"}}
        change: Object = {"spec": {"headGroupSpec": head}}
        words = "the containers of a running RayCluster change while it is stopped"
        await refused(tenant.merge(kinds.RAY_CLUSTERS, "ray", change), words)
        change["spec"]["suspend"] = True
        await tenant.merge(kinds.RAY_CLUSTERS, "ray", change)
