"""Jobs that are resized while they run, in two kinds and two modes, and others that wait beside."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bench.measuring.world import CONCURRENCY, GATE, NAMESPACE, Size, create, prepare
from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import Client, PatchType
from tests.support.composite_jobs import marks, raycluster, worker_group
from tests.support.composite_views import ray_selector
from tests.support.objects import BLOCK, Object, cluster_queue, job, local_queue
from tests.support.ray_autoscaler import (
    clearing_patch,
    live_workers,
    pending_deletes,
    scale_patch,
)

LIMIT: Final = "limit"
OURS: Final = "rackgate"
QUEUE: Final = "elastic"
GROUP: Final = "small"
# What a RayCluster's head and the autoscaler beside it take, and the job that is always there.
SPARE_CPUS: Final = 3
NODE_CPUS: Final = 8
RACK_NODES: Final = 32
POLL_S: Final = 0.1


class Kind(Protocol):
    """A kind of job whose pods are counted by one number."""

    @property
    def name(self) -> str:
        """For people, and for records."""

    @property
    def resource(self) -> kinds.Resource:
        """The resource of such jobs."""

    @property
    def podset(self) -> str:
        """The PodSet that grows and shrinks."""

    def body(self, mode: str, pods: int, largest: int) -> Object:
        """The job as its user writes it; `largest` bounds later sizes."""

    def selector(self, mode: str) -> str:
        """Selects the pods that the number counts."""

    async def resize(self, client: Client, mode: str, pods: int) -> float:
        """Ask for another size, as who scales such jobs does; the moment of that write."""


def name_of(mode: str) -> str:
    """The name of the job of a mode."""
    return f"elastic-{mode}"


@dataclass(frozen=True)
class IndexedJob:
    """An Indexed Job whose parallelism is changed; the Job controller makes its pods."""

    name: str = "job"
    resource: kinds.Resource = kinds.JOBS
    podset: str = "main"

    def body(self, mode: str, pods: int, largest: int) -> Object:
        """See `Kind`."""
        ours = mode == OURS
        made = job(
            name_of(mode),
            pods,
            queue=QUEUE if ours else None,
            cpu="1",
            # The pods of both modes are alike; without a queue the request means nothing.
            required=BLOCK,
            completions=largest,
            pod={} if ours else {"schedulingGates": [{"name": GATE}]},
        )
        made["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"} if ours else {}
        return made

    def selector(self, mode: str) -> str:
        """See `Kind`."""
        return f"batch.kubernetes.io/job-name={name_of(mode)}"

    async def resize(self, client: Client, mode: str, pods: int) -> float:
        """See `Kind`."""
        path = self.resource.path(NAMESPACE, name_of(mode))
        body = json.dumps({"spec": {"parallelism": pods}}).encode()
        begin = time.perf_counter()
        await client.patch(path, body, PatchType.MERGE)
        return begin


@dataclass(frozen=True)
class RayCluster:
    """A RayCluster that is scaled by what Ray's autoscaler writes; KubeRay makes its pods."""

    name: str = "raycluster"
    resource: kinds.Resource = kinds.RAY_CLUSTERS
    podset: str = GROUP

    def body(self, mode: str, pods: int, largest: int) -> Object:
        """See `Kind`."""
        ours = mode == OURS
        group = worker_group(GROUP, pods, most=largest, annotations=marks(required=BLOCK))
        if not ours:
            group["template"]["spec"]["schedulingGates"] = [{"name": GATE}]
        return raycluster(
            name_of(mode), [group], queue=QUEUE if ours else None, autoscaling=True, head_cpu="1"
        )

    def selector(self, mode: str) -> str:
        """See `Kind`."""
        return ray_selector(name_of(mode), GROUP)

    async def resize(self, client: Client, mode: str, pods: int) -> float:
        """See `Kind`."""
        path = self.resource.path(NAMESPACE, name_of(mode))
        while True:
            cluster = json.loads(await client.get(path))
            workers = await _pods(client, self.selector(mode))
            if not pending_deletes(cluster, workers):
                break
            await asyncio.sleep(POLL_S)
        if cleared := clearing_patch(cluster):
            await client.patch(path, json.dumps(cleared).encode(), PatchType.JSON)
        there = sorted(live_workers(workers).get(GROUP, ()))
        more = {GROUP: pods - len(there)} if pods > len(there) else {}
        body = json.dumps(scale_patch(cluster, workers, more, there[pods:])).encode()
        begin = time.perf_counter()
        await client.patch(path, body, PatchType.JSON)
        return begin


KINDS: Final[dict[str, Kind]] = {kind.name: kind for kind in (IndexedJob(), RayCluster())}


async def _pods(client: Client, selector: str) -> list[Object]:
    found: list[Object] = []
    async for page in client.list_pages(kinds.PODS.path(NAMESPACE), {"labelSelector": selector}):
        found += json.loads(page)["items"]
    return found


async def workers(client: Client, kind: Kind, mode: str) -> list[Object]:
    """The pods that the number of a job counts, as stored now."""
    return await _pods(client, kind.selector(mode))


async def make_world(client: Client, largest: int) -> int:
    """Nodes and a queue with room for one job of the largest size; returns the number of nodes.

    A job of one pod stays in the queue for good, so that others which ask for all of it wait.
    """
    cpus = largest + SPARE_CPUS
    nodes = -(-cpus // NODE_CPUS) + RACK_NODES // 2
    await prepare(client, Size(nodes, RACK_NODES, 0, 0))
    quota = {"cpu": str(cpus), "memory": "1Ti"}
    await create(client, kinds.CLUSTER_QUEUES, cluster_queue(QUEUE, "bench", quota))
    await create(client, kinds.LOCAL_QUEUES, local_queue(QUEUE, QUEUE))
    await create(client, kinds.JOBS, job("keeper", 1, queue=QUEUE, cpu="500m"))
    while (await _one(client, kinds.JOBS, "keeper"))["spec"].get("suspend"):
        await asyncio.sleep(POLL_S)
    return nodes


async def wait_beside(client: Client, before: int, others: int, largest: int) -> None:
    """Let so many Workloads wait for the whole quota of the queue; `before` of them do already."""
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(number: int) -> None:
        body = job(f"other-{number:05}", largest + SPARE_CPUS, queue=QUEUE, cpu="1")
        async with gate:
            await create(client, kinds.JOBS, body)

    async with asyncio.TaskGroup() as group:
        for number in range(before, others):
            group.create_task(one(number))
    while await _waiting(client) < others:
        await asyncio.sleep(POLL_S)


async def _waiting(client: Client) -> int:
    """Workloads that a cycle has judged and that wait."""
    count = 0
    async for page in client.list_pages(kinds.WORKLOADS.path(NAMESPACE)):
        for item in json.loads(page)["items"]:
            found = item.get("status", {}).get("conditions", [])
            count += any(c["type"] == "QuotaReserved" and c["status"] == "False" for c in found)
    return count


async def _one(client: Client, kind: kinds.Resource, name: str) -> dict[str, Any]:
    return dict(json.loads(await client.get(kind.path(NAMESPACE, name))))


async def remove(client: Client, kind: Kind, mode: str, uid: str) -> None:
    """Delete the job of a mode; returns when neither pods nor Workloads of it are left."""
    options = json.dumps({"propagationPolicy": "Background"}).encode()
    await client.delete(kind.resource.path(NAMESPACE, name_of(mode)), options)
    beside = {"labelSelector": f"{names.JOB_UID_LABEL}={uid}", "limit": "1"}
    while (
        await workers(client, kind, mode)
        or json.loads(await client.get(kinds.WORKLOADS.path(NAMESPACE), beside))["items"]
    ):
        await asyncio.sleep(POLL_S)
