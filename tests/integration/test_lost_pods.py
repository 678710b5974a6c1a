"""Lost pods that stay missing, and a namespace that is not managed, as the assigner is told."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.composite_views import used
from tests.support.objects import POOL_LABEL
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

FREE = "test.rackgate.dev/free"
SETTINGS = {
    "RACKGATE_ASSIGNER_WAIT_FOR_PODS_READY": (
        "{recoveryTimeout: 2, requeuingStrategy: {backoffBaseSeconds: 1}}"
    ),
    "RACKGATE_ASSIGNER_MANAGED_JOBS_NAMESPACE_SELECTOR": (
        f"{{matchExpressions: [{{key: {FREE}, operator: DoesNotExist}}]}}"
    ),
}


@pytest.fixture
def told(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An assigner with other settings. To be asked for before `cluster`, with `usefixtures`."""
    playground.run("stop", "assigner")
    with monkeypatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        playground.run("start", "assigner")
        yield
        playground.run("stop", "assigner")
    playground.run("start", "assigner")


async def cordon(cluster: Cluster, *, on: bool) -> None:
    """Nothing new goes to the nodes of this test while they are cordoned."""
    for node in await cluster.list_all(kinds.NODES, labelSelector=f"{POOL_LABEL}={cluster.pool}"):
        await cluster.merge(kinds.NODES, node["metadata"]["name"], {"spec": {"unschedulable": on}})
    await cluster.wait_nodes_seen()


async def taken_over(cluster: Cluster, job: str, *fields: str, **more: object) -> None:
    """Another manager applies fields of a Workload's status as they are, and its PodsReady."""
    workload = await cluster.workload_of(job)
    status = workload["status"]
    ready = [one for one in status["conditions"] if one["type"] == "PodsReady"]
    meta = {key: workload["metadata"][key] for key in ("name", "namespace")}
    body = {
        "apiVersion": kinds.WORKLOADS.api_version,
        "kind": kinds.WORKLOADS.kind,
        "metadata": meta,
        "status": {"conditions": ready, **{field: status[field] for field in fields}, **more},
    }
    path = kinds.WORKLOADS.path(meta["namespace"], meta["name"], "status")
    await cluster.client.apply(path, json.dumps(body).encode(), "kueue-admission")


@pytest.mark.requirement("TAS-32", "OPS-11")
@pytest.mark.usefixtures("told")
async def test_a_job_whose_lost_pod_stays_missing_gives_way_for_a_while(cluster: Cluster) -> None:
    """In a queue without topology; the Job controller makes another pod, which finds no node."""
    await cluster.add_node("b1", "r1", "h1")
    await cluster.add_queue(topology=False, quota={"cpu": "8"})
    await cluster.submit("train", 2)
    pods = await cluster.bound("train", 2)
    await cluster.condition("train", "PodsReady", "True", "Started")
    await cluster.submit("next", 1)
    await cluster.condition("next", "QuotaReserved", "False", "WaitingForQuota")

    # As if it were taken over from Kueue, whose manager owns what it has applied.
    await taken_over(cluster, "train", "admission")
    await cordon(cluster, on=True)
    await cluster.delete(kinds.PODS, pods[0]["metadata"]["name"])
    workload = await cluster.condition("train", "Evicted", "True", "PodsReadyTimeout")
    await cluster.event("EvictedDueToPodsReadyTimeout", workload["metadata"]["name"])
    # It was first in line, and the other one is admitted while it pauses.
    await cluster.condition("next", "Admitted", "True")
    again = await cluster.condition("train", "Requeued", "True", "BackoffFinished")
    assert again["status"]["requeueState"] == {"count": 1}
    paused = {"requeueState": {"count": 3, "requeueAt": "2026-01-01T00:00:00Z"}}
    await taken_over(cluster, "train", **paused)

    async def queued() -> bool:
        tries = (await cluster.workload_of("train"))["status"].get("requeueState")
        return bool(tries == {"count": 3})

    await until("the pause that another manager owns ends", queued)
    await cordon(cluster, on=False)
    await cluster.bound("next", 1)
    await cluster.delete(kinds.JOBS, "next")
    await cluster.bound("train", 2)
    await cluster.condition("train", "PodsReady", "True", "Started")
    await used(cluster, "8")

    # A namespace that is not managed: nothing is made of its Job until the label is gone.
    free = Cluster(cluster.client, f"{cluster.namespace}-free", cluster.pool)
    name, labels = free.namespace, {FREE: "yes"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    await cluster.client.create(kinds.NAMESPACES.path(), json.dumps(space).encode())
    await free.submit("free", 1)
    # One watch shows both, the first one before the second.
    await cluster.submit("after", 1)
    await cluster.condition("after", "QuotaReserved", "False", "WaitingForQuota")
    assert await free.list_all(kinds.WORKLOADS) == []
    await free.merge(kinds.NAMESPACES, name, {"metadata": {"labels": {FREE: None}}})
    await free.condition("free", "QuotaReserved", "False", "Misconfigured")
    await free.leave()
