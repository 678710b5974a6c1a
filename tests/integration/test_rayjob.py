"""RayJobs and RayServices under the real KubeRay operator: what is queued, and as what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import PatchType
from tests.integration.test_invariants import run
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import marks, raycluster, rayjob, worker_group
from tests.support.composite_views import (
    bound_pods,
    gone,
    racks_of,
    ray_selector,
    reserved_keys,
    state,
    used,
)
from tests.support.objects import RACK, Object
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

RAY_SERVICES = Resource(names.RAY_GROUP, "v1", "rayservices", True, "RayService")


async def prepare(cluster: Cluster, cpu: str = "100") -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": cpu, "memory": "100Gi"})


async def deployment(cluster: Cluster, name: str, wanted: str) -> Object:
    """Wait until KubeRay says so of a RayJob."""
    return await state(
        cluster,
        kinds.RAY_JOBS,
        name,
        f"is {wanted}",
        lambda it: it.get("status", {}).get("jobDeploymentStatus") == wanted,
    )


async def cluster_of(cluster: Cluster, name: str) -> str:
    """Wait for the RayCluster of a RayJob; return its name.

    KubeRay names a cluster before it looks at `suspend`, and takes another name when the RayJob
    starts: only the name of a RayCluster that exists is the right one.
    """

    async def made() -> str:
        found = await cluster.get(kinds.RAY_JOBS, name)
        of_job = found["status"]["rayClusterName"]
        part = await cluster.get(kinds.RAY_CLUSTERS, of_job)
        return "" if "deletionTimestamp" in part["metadata"] else str(of_job)

    return await until(f"RayJob {name} has a RayCluster", made)


def submitter_selector(name: str) -> str:
    return f"job-name={name}"


def templates(job: Object) -> list[Object]:
    spec = job["spec"]["rayClusterSpec"]
    groups = [group["template"] for group in spec["workerGroupSpecs"]]
    return [spec["headGroupSpec"]["template"], *groups, job["spec"]["submitterPodTemplate"]]


@asynccontextmanager
async def dashboard(status: str) -> AsyncIterator[str]:
    """Ray's dashboard as far as KubeRay asks it about a job; yields its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        submission = path.rsplit("/", 1)[-1]
        body = json.dumps(
            {
                "job_id": "02000000",
                "submission_id": submission,
                "status": status,
                "entrypoint": "python",
                "message": "it is over",
                "start_time": 1,
                "end_time": 2,
            }
        ).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


async def ask_there(cluster: Cluster, name: str, address: str) -> None:
    """Let KubeRay ask this address about a job, as no pod here runs Ray."""
    await deployment(cluster, name, "Running")
    path = f"{kinds.RAY_JOBS.path(cluster.namespace)}/{name}/status"
    patch = json.dumps({"status": {"dashboardURL": address}}).encode()
    await cluster.client.patch(path, patch, PatchType.MERGE)


@pytest.mark.requirement("TAS-28", "HOOK-03")
async def test_a_rayjob_starts_in_its_rack_ends_and_gives_its_quota_back(
    cluster: Cluster, playground: Playground
) -> None:
    await prepare(cluster)
    in_a_rack = marks(required=RACK)
    groups = [worker_group("small", 3, cpu="4", annotations=in_a_rack)]
    submitter = {
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "submit",
                    "image": "ray",
                    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                }
            ],
        },
        "metadata": {"annotations": {"rackgate.dev/run-seconds": "1"}},
    }
    await cluster.create(
        kinds.RAY_JOBS,
        rayjob(
            "train",
            groups,
            head_cpu="2",
            head_annotations=in_a_rack,
            submitterPodTemplate=submitter,
        ),
    )
    ray = await cluster_of(cluster, "train")
    workers = await bound_pods(cluster, ray_selector(ray, "small"), 3)
    assert len(set(await racks_of(cluster, workers))) == 1
    await bound_pods(cluster, ray_selector(ray, "headgroup"), 1)
    workloads = await cluster.list_all(kinds.WORKLOADS)
    (workload,) = [it for it in workloads if it["metadata"]["namespace"] == cluster.namespace]
    (owner,) = workload["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("RayJob", "train")
    counts = {it["name"]: it["count"] for it in workload["spec"]["podSets"]}
    assert counts == {"head": 1, "small": 3, "submitter": 1}
    await used(cluster, "15")
    part = await cluster.get(kinds.RAY_CLUSTERS, ray)
    assert part["metadata"]["labels"][names.QUEUE_LABEL], "it has the label, and no Workload"
    code, out = await run(playground, "-n", cluster.namespace)
    assert code == 0, out
    async with dashboard("SUCCEEDED") as address:
        await ask_there(cluster, "train", address)
        await deployment(cluster, "train", "Complete")
        await cluster.condition("train", "Finished", "True", "Succeeded")
    await gone(cluster, ray_selector(ray))
    await used(cluster, "0")


@pytest.mark.requirement("TAS-26", "TAS-28", "HOOK-10")
async def test_a_rayjob_waits_for_quota_and_is_suspended_again_when_it_is_evicted(
    cluster: Cluster,
) -> None:
    await prepare(cluster, cpu="9")
    in_a_rack = marks(required=RACK)
    groups = [worker_group("small", 2, cpu="2", annotations=in_a_rack)]
    for name in ("first", "second"):
        await cluster.create(kinds.RAY_JOBS, rayjob(name, groups, queue="queue"))
        if name == "first":
            await cluster.condition("first", "Admitted", "True")
    ray = await cluster_of(cluster, "first")
    await bound_pods(cluster, ray_selector(ray), 3)
    await bound_pods(cluster, submitter_selector("first"), 1)
    await used(cluster, "5500m")  # and half a core for the submitter that KubeRay would create
    await cluster.condition("second", "QuotaReserved", "False")
    waiting = await deployment(cluster, "second", "Suspended")
    assert waiting["spec"]["suspend"] is True
    held = waiting["spec"]["submitterPodTemplate"]["spec"]["containers"][0]
    assert held["resources"]["requests"] == {"cpu": "500m", "memory": "200Mi"}

    workload = await cluster.workload_of("first")
    await cluster.merge(kinds.WORKLOADS, workload["metadata"]["name"], {"spec": {"active": False}})
    await gone(cluster, ray_selector(ray))
    await gone(cluster, submitter_selector("first"))
    stopped = await state(
        cluster,
        kinds.RAY_JOBS,
        "first",
        "is suspended and restored",
        lambda it: it["spec"]["suspend"] and not any(map(reserved_keys, templates(it))),
    )
    assert stopped["status"]["jobDeploymentStatus"] == "Suspended"
    other = await cluster_of(cluster, "second")
    await bound_pods(cluster, ray_selector(other), 3)

    await cluster.delete(kinds.RAY_JOBS, "second")
    await cluster.merge(kinds.WORKLOADS, workload["metadata"]["name"], {"spec": {"active": True}})

    async def again() -> bool:
        found = await cluster.get(kinds.RAY_JOBS, "first")
        now = found.get("status", {}).get("rayClusterName")
        return bool(now) and now != ray and not found["spec"]["suspend"]

    await until("it starts again with another cluster", again)
    await bound_pods(cluster, ray_selector(await cluster_of(cluster, "first")), 3)


@pytest.mark.requirement("TAS-28")
async def test_the_raycluster_of_a_rayservice_is_queued_by_the_label_that_it_inherits(
    cluster: Cluster,
) -> None:
    await prepare(cluster)
    groups = [worker_group("small", 2, cpu="4", annotations=marks(required=RACK))]
    wish: Object = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "serve", "labels": {names.QUEUE_LABEL: "queue"}},
        "spec": {
            "serveConfigV2": "applications: []",
            "rayClusterConfig": raycluster("any", groups, head_cpu="2")["spec"],
        },
    }
    await cluster.create(RAY_SERVICES, wish)
    found = await state(
        cluster,
        RAY_SERVICES,
        "serve",
        "has a RayCluster",
        lambda it: it.get("status", {}).get("pendingServiceStatus", {}).get("rayClusterName"),
    )
    ray = found["status"]["pendingServiceStatus"]["rayClusterName"]
    workers = await bound_pods(cluster, ray_selector(ray, "small"), 2)
    assert len(set(await racks_of(cluster, workers))) == 1
    workload = await cluster.workload_of(ray)
    assert workload["metadata"]["ownerReferences"][0]["kind"] == "RayCluster"
    await used(cluster, "10")
    await cluster.merge(kinds.WORKLOADS, workload["metadata"]["name"], {"spec": {"active": False}})
    await gone(cluster, ray_selector(ray))
    await used(cluster, "0")
    await cluster.delete(RAY_SERVICES, "serve")
