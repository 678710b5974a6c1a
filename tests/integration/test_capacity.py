"""Room on nodes, seen live: pods on their way out, resized pods, nodes under other names."""

from __future__ import annotations

import json

import pytest

from rackgate.api import resources as kinds
from rackgate.kube.client import PatchType
from tests.support.cluster import Cluster, until
from tests.support.objects import HOST, RACK, Object, node

pytestmark = pytest.mark.integration

HERE = ("block-1", "rack-1")
INDEX = "batch.kubernetes.io/job-completion-index"


async def one_node(cluster: Cluster) -> str:
    """One node of 8 CPU and a queue; the node's name."""
    await cluster.add_nodes([node(cluster.pool, *HERE, "n1")])
    await cluster.add_queue()
    return f"{cluster.pool}-n1"


async def run_foreign(cluster: Cluster, host: str, cpu: str) -> None:
    """A pod `daemon` that is nobody's, bound by its maker."""
    container = {
        "name": "main",
        "image": "registry.example/daemon:1",
        "resources": {"requests": {"cpu": cpu}},
    }
    await cluster.create(
        kinds.PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "daemon"},
            "spec": {"nodeName": host, "containers": [container]},
        },
    )
    await running(cluster, "daemon")
    await cluster.wait_pods_seen()


async def patch_pod(
    cluster: Cluster, name: str, change: object, kind: PatchType, sub: str | None = None
) -> None:
    path = kinds.PODS.path(cluster.namespace, name, sub)
    await cluster.client.patch(path, json.dumps(change).encode(), kind)


async def keep(cluster: Cluster, name: str) -> None:
    """Once deleted, the pod is on its way out until it is let go."""
    await takes(cluster, name, "3600")


async def let_go(cluster: Cluster, name: str) -> None:
    await takes(cluster, name, "0")


async def takes(cluster: Cluster, name: str, seconds: str) -> None:
    """So long its containers take to end once it is deleted."""
    change = {"metadata": {"annotations": {"rackgate.dev/terminate-seconds": seconds}}}
    await patch_pod(cluster, name, change, PatchType.MERGE)


async def refused(cluster: Cluster, job: str) -> None:
    await cluster.condition(job, "QuotaReserved", "False", "TopologyPlacementFailed")


async def running(cluster: Cluster, name: str) -> None:
    async def runs() -> bool:
        pod = await cluster.get(kinds.PODS, name)
        return bool(pod["status"].get("phase") == "Running")

    await until(f"pod {name} runs", runs)


async def leaving(cluster: Cluster, name: str) -> None:
    async def is_leaving() -> bool:
        pod = await cluster.get(kinds.PODS, name)
        return bool(pod["metadata"].get("deletionTimestamp"))

    await until(f"pod {name} is on its way out", is_leaving)
    await cluster.wait_pods_seen()


async def two_running(cluster: Cluster, job: str) -> list[Object]:
    """Pods 0 and 1 of a Job that fills the node; pod 1 will be slow to go."""
    pods = await cluster.bound(job, 2)
    pods.sort(key=lambda pod: str(pod["metadata"]["labels"][INDEX]))
    for pod in pods:
        await running(cluster, pod["metadata"]["name"])
    await keep(cluster, pods[1]["metadata"]["name"])
    return pods


@pytest.mark.requirement("CAP-03", "CAP-08")
@pytest.mark.field_note("C4", "C6")
async def test_a_foreign_pod_holds_its_room_until_it_is_gone(cluster: Cluster) -> None:
    host = await one_node(cluster)
    await run_foreign(cluster, host, "6")
    await keep(cluster, "daemon")
    await cluster.delete(kinds.PODS, "daemon")
    await leaving(cluster, "daemon")
    await cluster.submit("train", 1, required=RACK)
    await refused(cluster, "train")
    await let_go(cluster, "daemon")
    assert [name for _, _, name in await cluster.places("train", 1)] == [host]


@pytest.mark.requirement("CAP-02", "CAP-08")
@pytest.mark.field_note("C4", "C6")
async def test_pods_of_a_deleted_job_hold_their_room_until_they_are_gone(cluster: Cluster) -> None:
    host = await one_node(cluster)
    await cluster.submit("first", 2, required=RACK)
    slow = (await two_running(cluster, "first"))[1]["metadata"]["name"]
    await cluster.delete(kinds.JOBS, "first")
    await leaving(cluster, slow)
    await cluster.submit("one", 1, required=RACK)
    await cluster.bound("one", 1)
    await cluster.submit("other", 1, required=RACK)
    await refused(cluster, "other")
    await let_go(cluster, slow)
    assert [name for _, _, name in await cluster.places("other", 1)] == [host]


@pytest.mark.requirement("CAP-02", "CAP-08")
@pytest.mark.field_note("C4", "C6")
async def test_pods_of_a_job_that_has_succeeded_hold_their_room_until_they_are_gone(
    cluster: Cluster,
) -> None:
    """Its success policy is met by pod 0, and pod 1 is taken down."""
    host = await one_node(cluster)
    policy = {"rules": [{"succeededIndexes": "0"}]}
    await cluster.submit("first", 2, required=RACK, spec={"successPolicy": policy})
    winner, slow = (pod["metadata"]["name"] for pod in await two_running(cluster, "first"))
    done = {"metadata": {"annotations": {"rackgate.dev/run-seconds": "0"}}}
    await cluster.merge(kinds.PODS, winner, done)
    await leaving(cluster, slow)
    await cluster.submit("wide", 2, required=RACK)
    await refused(cluster, "wide")
    await let_go(cluster, slow)
    assert [name for _, _, name in await cluster.places("wide", 2)] == [host, host]


@pytest.mark.requirement("CAP-03", "CAP-08")
@pytest.mark.field_note("C5", "C6")
async def test_a_foreign_pod_resized_in_place_gives_and_takes_room(cluster: Cluster) -> None:
    host = await one_node(cluster)
    await run_foreign(cluster, host, "6")
    await holds(cluster, "6")
    await resize(cluster, "2")
    await cluster.submit("train", 1, required=RACK)
    await refused(cluster, "train")  # what is asked back is there until the node has taken it
    await holds(cluster, "2")
    assert [name for _, _, name in await cluster.places("train", 1)] == [host]
    await cluster.delete(kinds.JOBS, "train")
    await resize(cluster, "5")
    await cluster.submit("late", 1, required=RACK)
    await refused(cluster, "late")


async def resize(cluster: Cluster, cpu: str) -> None:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    change = {"spec": {"containers": [container]}}
    await patch_pod(cluster, "daemon", change, PatchType.STRATEGIC, "resize")
    await cluster.wait_pods_seen()


async def holds(cluster: Cluster, cpu: str) -> None:
    """What a kubelet says once it has resized a container."""
    status = (await cluster.get(kinds.PODS, "daemon"))["status"]["containerStatuses"][0]
    status["resources"] = {"requests": {"cpu": cpu}}
    change = {"status": {"containerStatuses": [status]}}
    await patch_pod(cluster, "daemon", change, PatchType.MERGE, "status")


@pytest.mark.requirement("CAP-04")
@pytest.mark.field_note("C14", "C15")
async def test_nodes_are_assigned_by_hostname_and_charged_by_name(cluster: Cluster) -> None:
    """Two nodes carry each other's name as hostname; a third one is called like its rack."""
    first, second, third = (f"{cluster.pool}-{name}" for name in ("n1", "n2", "n3"))
    await cluster.add_nodes(
        [
            node(cluster.pool, *HERE, "n1", labels={HOST: second}),
            node(cluster.pool, *HERE, "n2", labels={HOST: first}),
            node(cluster.pool, "block-1", "rack-2", "n3", labels={HOST: "rack-2"}),
        ]
    )
    await cluster.add_queue()
    await run_foreign(cluster, first, "8")
    await cluster.submit("train", 2, required=RACK)
    await cluster.submit("more", 2, required=RACK)
    hosts = {name for job in ("train", "more") for _, _, name in await cluster.places(job, 2)}
    assert hosts == {second, third}
    await cluster.submit("late", 1, required=RACK)
    await refused(cluster, "late")
