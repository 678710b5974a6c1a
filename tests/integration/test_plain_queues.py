"""No gate holds a pod of a queue without topology: what keeps these within their quota."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import jobset, raycluster, replicated_job, worker_group
from tests.support.composite_views import ray_state
from tests.support.identities import as_tenant
from tests.support.objects import Object, job
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


async def test_a_pod_is_replaced_when_it_has_ended(
    cluster: Cluster, playground: Playground
) -> None:
    await plain_queue(cluster)
    grace: Object = {"terminationGracePeriodSeconds": 3600}
    slow = {"rackgate.dev/terminate-seconds": "3600"}
    await cluster.submit("train", 4, spec=UNENDING, pod=grace, annotations=slow)
    pods = await cluster.bound("train", 4)
    async with as_tenant(playground, cluster) as tenant:
        change: Object = {"spec": {"podReplacementPolicy": "TerminatingOrFailed"}}
        await refused(tenant.merge(kinds.JOBS, "train", change), "spec.podReplacementPolicy: ")
        await tenant.delete(kinds.PODS, pods[0]["metadata"]["name"])

        async def noticed() -> bool:
            status = (await cluster.get(kinds.JOBS, "train"))["status"]
            return bool(status.get("terminating") == 1 and status.get("active") == 3)

        await until("the Job knows that a pod of it terminates", noticed)
        assert len(await cluster.pods_of("train")) == 4
        await cluster.delete(kinds.PODS, pods[0]["metadata"]["name"], grace_s=0)
        await cluster.bound("train", 4)


async def test_a_job_of_a_started_jobset_is_not_deleted_alone(
    cluster: Cluster, playground: Playground
) -> None:
    await plain_queue(cluster)
    await cluster.create(kinds.JOBSETS, jobset("set", [replicated_job("w", 2, replicas=2)]))
    await cluster.bound("set-w-1", 2)
    path = kinds.JOBS.path(cluster.namespace, "set-w-1")
    async with as_tenant(playground, cluster) as tenant:
        options = json.dumps({"propagationPolicy": "Background"}).encode()
        await refused(tenant.client.delete(path, options), 'part of the started JobSet "set"')
        # Else it would be started again as soon as it has stopped.
        queue = {"spec": {"stopPolicy": "Hold"}}
        await cluster.merge(kinds.CLUSTER_QUEUES, f"{cluster.pool}-queue", queue)
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
async def test_without_the_webhook_other_containers_are_rejected(
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
        words = "the containers of a RayCluster can change only while it is stopped"
        await refused(tenant.merge(kinds.RAY_CLUSTERS, "ray", change), words)
        change["spec"]["suspend"] = True
        await tenant.merge(kinds.RAY_CLUSTERS, "ray", change)


async def test_a_selector_of_ones_own_is_rejected(cluster: Cluster, playground: Playground) -> None:
    await plain_queue(cluster)
    wish = job("train", 1, spec={"manualSelector": True})
    wish["spec"]["selector"] = {"matchLabels": {"example.com/mine": "yes"}}
    wish["spec"]["template"]["metadata"]["labels"] = {"example.com/mine": "yes"}
    async with as_tenant(playground, cluster) as tenant:
        await refused(tenant.create(kinds.JOBS, wish), "spec.manualSelector: ")
        del wish["metadata"]["labels"]
        await tenant.create(kinds.JOBS, wish)


async def test_a_job_that_leaves_its_queue_starts_once_its_template_is_its_own(
    cluster: Cluster, playground: Playground
) -> None:
    await plain_queue(cluster)
    await cluster.submit("train", 4, spec=UNENDING)
    await cluster.bound("train", 4)
    async with as_tenant(playground, cluster) as tenant:
        told: list[str] = []
        unlabelled: Object = {"metadata": {"labels": {names.QUEUE_LABEL: None}}}

        async def left() -> bool:
            """While its queue has room, a suspended Job may start again before it leaves."""
            await tenant.merge(kinds.JOBS, "train", {"spec": {"suspend": True}})
            try:
                await tenant.merge(kinds.JOBS, "train", unlabelled)
            except (ForbiddenError, UnprocessableError) as error:
                told.append(error.message)
                return False
            return True

        await until("the Job leaves its queue", left)
        assert all("suspend the job first" in message for message in told), told
        told.clear()

        async def started() -> bool:
            try:
                await tenant.merge(kinds.JOBS, "train", {"spec": {"suspend": False}})
            except (ForbiddenError, UnprocessableError) as error:
                told.append(error.message)
                return False
            return True

        await until("the Job starts without a queue", started)
    assert all("removed its keys from the template" in message for message in told), told
    template = (await cluster.get(kinds.JOBS, "train"))["spec"]["template"]
    assert names.WORKLOAD_ANNOTATION not in template["metadata"].get("annotations", {})
