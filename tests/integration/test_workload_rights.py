"""What users may write on Workloads: spec.active, and nothing else of those of a job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import PatchType
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.handwritten import podset, workload
from tests.support.identities import add_workload_role, as_tenant
from tests.support.objects import Object
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

CLASS: Object = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
OWNER: Object = {"apiVersion": "v1", "kind": "ConfigMap", "name": "me", "uid": "1"}


async def refused(writing: Any, *words: str) -> None:
    with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
        await writing
    assert all(word in caught.value.message for word in words), caught.value.message


REFUSED: list[tuple[Object, str]] = [
    ({"metadata": {"ownerReferences": None}}, "metadata.ownerReferences: "),
    ({"metadata": {"ownerReferences": [OWNER]}}, "metadata.ownerReferences: "),
    ({"metadata": {"finalizers": None}}, "metadata.finalizers: "),
    ({"metadata": {"finalizers": ["example.com/mine"]}}, "metadata.finalizers: "),
    (
        {"metadata": {"labels": {names.JOB_UID_LABEL: None}}},
        "metadata.labels[kueue.x-k8s.io/job-uid]: ",
    ),
    (
        {"metadata": {"annotations": {names.ELASTIC_ANNOTATION: "true"}}},
        "metadata.annotations[kueue.x-k8s.io/elastic-job]: ",
    ),
    ({"metadata": {"labels": {"rackgate.dev/any": "x"}}}, "metadata.labels[rackgate.dev/any]: "),
    ({"spec": {"priority": 1000}}, "spec.priority: "),
    ({"spec": {"priority": 1000, "priorityClassRef": CLASS}}, "kueue.x-k8s.io/priority-class"),
    ({"spec": {"queueName": "other"}}, "spec.queueName: "),
    ({"spec": {"maximumExecutionTimeSeconds": 1}}, "spec.maximumExecutionTimeSeconds: "),
]


FROZEN = ("queueName", "priorityClassRef", "maximumExecutionTimeSeconds")


@pytest.mark.parametrize("admitted", [True, False])
async def test_of_a_jobs_workload_a_user_changes_active_and_nothing_else(
    cluster: Cluster, playground: Playground, admitted: bool
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "8"}, topology=False)
    await cluster.submit("train", 2 if admitted else 40)
    found = await cluster.condition("train", "QuotaReserved", "True" if admitted else "False")
    name = found["metadata"]["name"]
    async with as_tenant(playground, cluster) as tenant:
        # An administrator is refused the same: nobody but the assigner keeps these in step.
        for who in (tenant, cluster):
            for change, words in REFUSED:
                if admitted and any(field in change.get("spec", {}) for field in FROZEN):
                    continue  # the schema refuses it first
                await refused(who.merge(kinds.WORKLOADS, name, change), words)
            smaller = json.dumps([{"op": "replace", "path": "/spec/podSets/0/count", "value": 1}])
            path = kinds.WORKLOADS.path(cluster.namespace, name)
            writing = who.client.patch(path, smaller.encode(), PatchType.JSON)
            await refused(writing, "spec.podSets: ", "change the job")
        other = {"labels": {"example.com/a": "b"}, "annotations": {"example.com/a": "b"}}
        await tenant.merge(kinds.WORKLOADS, name, {"metadata": other})
        await tenant.merge(kinds.WORKLOADS, name, {"spec": {"active": False}})
        await tenant.merge(kinds.WORKLOADS, name, {"spec": {"active": True}})
        status: Object = {"status": {"reclaimablePods": [{"name": "main", "count": 2}]}}
        with pytest.raises(ForbiddenError):
            await tenant.merge(kinds.WORKLOADS, name, status, "status")
        await tenant.delete(kinds.WORKLOADS, name)

        async def replaced() -> bool:
            again = await cluster.find(kinds.WORKLOADS, name)
            return again is not None and again["metadata"]["uid"] != found["metadata"]["uid"]

        await until("the Workload was deleted and made anew", replaced)


async def test_the_priority_of_a_workload_is_changed_by_the_label_of_its_job(
    cluster: Cluster, playground: Playground
) -> None:
    await cluster.submit("train", 1, queue="nowhere")
    name = (await cluster.workload_of("train"))["metadata"]["name"]
    high = f"{cluster.pool}-high"
    await cluster.create(
        kinds.WORKLOAD_PRIORITY_CLASSES,
        {
            "apiVersion": names.API_VERSION,
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": high},
            "value": 1000,
        },
    )
    async with as_tenant(playground, cluster) as tenant:
        words = ("set the label kueue.x-k8s.io/priority-class of the job",)
        await refused(tenant.merge(kinds.WORKLOADS, name, {"spec": {"priority": 5}}), *words)
        label: Object = {"metadata": {"labels": {names.PRIORITY_CLASS_LABEL: high}}}
        await tenant.merge(kinds.JOBS, "train", label)

    async def raised() -> bool:
        return bool((await cluster.get(kinds.WORKLOADS, name))["spec"].get("priority") == 1000)

    await until("the Workload has the priority of the class", raised)


async def test_a_workload_made_by_hand_belongs_to_whoever_may_make_one(
    cluster: Cluster, playground: Playground
) -> None:
    await cluster.create(kinds.WORKLOADS, workload("by-hand", podset("main", 4), queue="nowhere"))
    change: Object = {"spec": {"priority": 7}, "metadata": {"labels": {"rackgate.dev/a": "b"}}}
    async with as_tenant(playground, cluster) as tenant:
        await refused(tenant.merge(kinds.WORKLOADS, "by-hand", change), "rackgate.dev/a")
        await tenant.merge(kinds.WORKLOADS, "by-hand", {"spec": {"active": False}})
        await add_workload_role(cluster)

        async def written() -> bool:
            try:
                await tenant.merge(kinds.WORKLOADS, "by-hand", change)
            except ForbiddenError:
                return False
            return True

        await until("who may create Workloads writes those made by hand", written)
        # Of a job's Workload it is not more than others.
        await cluster.submit("train", 1, queue="nowhere")
        name = (await cluster.workload_of("train"))["metadata"]["name"]
        await refused(tenant.merge(kinds.WORKLOADS, name, change), "rackgate.dev/a")


async def test_the_collector_takes_the_owner_off_a_workload_whose_job_left_it(
    cluster: Cluster,
) -> None:
    """A suspended Job may be deleted from above its dependents: its Workload goes all the same."""
    await cluster.submit("train", 1, queue="nowhere")
    name = (await cluster.workload_of("train"))["metadata"]["name"]
    orphan = json.dumps({"propagationPolicy": "Orphan"}).encode()
    await cluster.client.delete(kinds.JOBS.path(cluster.namespace, "train"), orphan)

    async def gone() -> bool:
        return await cluster.find(kinds.WORKLOADS, name) is None

    await until("the Workload is gone", gone)
