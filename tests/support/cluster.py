"""What integration tests say to a cluster: create, read, wait for a condition.

Every test gets its own namespace, node pool, topology, flavor and queues, so that tests can share
one control plane.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, ForbiddenError, NotFoundError
from tests.support import assigner_sync, in_short
from tests.support.deadlines import DEADLINE_S, WaitedTooLongError, until
from tests.support.objects import (
    BLOCK,
    POOL_LABEL,
    RACK,
    Object,
    cluster_queue,
    flavor,
    fx_a_nodes,
    job,
    local_queue,
    node,
    topology_object,
)
from tests.support.reviewed import reviewed

__all__ = ["DEADLINE_S", "Cluster", "WaitedTooLongError", "exactly_bound", "until"]


async def exactly_bound(
    what: str,
    pods: Callable[[], Awaitable[list[Object]]],
    count: int,
    timeout_s: float = DEADLINE_S,
) -> list[Object]:
    """Wait until exactly `count` of the pods are bound, and return those.

    Raises:
        WaitedTooLongError: with every pod that was seen last, its phase, node and gates.
    """
    last: list[Object] = []

    async def bound() -> list[Object]:
        last[:] = await pods()
        found = [pod for pod in last if pod["spec"].get("nodeName")]
        return found if len(found) == count else []

    return await until(what, bound, timeout_s, lambda: in_short.pods(last))


@dataclass
class Cluster:
    """A test's view of the shared control plane.

    Attributes:
        client: with cluster-admin rights.
        namespace: this test's own.
        pool: value of this test's node label; prefix of its cluster-wide names.
    """

    client: Client
    namespace: str
    pool: str
    created: list[tuple[Resource, str | None, str]] = field(default_factory=list)

    async def create(self, kind: Resource, obj: Mapping[str, Any]) -> Object:
        """Create an object; namespaced kinds land in this test's namespace."""
        namespace = None
        if kind.namespaced:
            namespace = obj["metadata"].get("namespace", self.namespace)
        body = json.dumps(obj).encode()
        answer = json.loads(await reviewed(lambda: self.client.create(kind.path(namespace), body)))
        self.created.append((kind, namespace, answer["metadata"]["name"]))
        return dict(answer)

    async def get(self, kind: Resource, name: str) -> Object:
        """Read one object."""
        namespace = self.namespace if kind.namespaced else None
        return dict(json.loads(await self.client.get(kind.path(namespace, name))))

    async def find(self, kind: Resource, name: str) -> Object | None:
        """Read one object, or None when there is none."""
        try:
            return await self.get(kind, name)
        except NotFoundError:
            return None

    async def list_all(self, kind: Resource, **params: str) -> list[Object]:
        """Read all objects of a kind (of this test's namespace)."""
        namespace = self.namespace if kind.namespaced else None
        items: list[Object] = []
        async for page in self.client.list_pages(kind.path(namespace), params):
            items.extend(json.loads(page)["items"])
        return items

    async def merge(
        self, kind: Resource, name: str, change: Mapping[str, Any], sub: str | None = None
    ) -> Object:
        """Merge-patch one object."""
        namespace = self.namespace if kind.namespaced else None
        path, body = kind.path(namespace, name, sub), json.dumps(change).encode()
        answer = await reviewed(lambda: self.client.patch(path, body, PatchType.MERGE))
        return dict(json.loads(answer))

    async def replace(self, kind: Resource, name: str, edit: Callable[[Object], None]) -> Object:
        """Read, edit and replace one object, again after a conflict."""
        namespace = self.namespace if kind.namespaced else None
        while True:
            obj = await self.get(kind, name)
            edit(obj)
            path, body = kind.path(namespace, name), json.dumps(obj).encode()
            try:
                answer = await reviewed(partial(self.client.replace, path, body))
                return dict(json.loads(answer))
            except ConflictError:
                await asyncio.sleep(0.05)

    async def delete(self, kind: Resource, name: str, *, grace_s: int | None = None) -> None:
        """Delete one object in the background; gone already is fine."""
        namespace = self.namespace if kind.namespaced else None
        await self._delete(kind, namespace, name, grace_s)

    async def _delete(
        self, kind: Resource, namespace: str | None, name: str, grace_s: int | None = None
    ) -> None:
        options: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self.client.delete(kind.path(namespace, name), json.dumps(options).encode())
        except NotFoundError:
            return

    async def clean(self) -> None:
        """Delete what this test made: jobs first, cluster-wide kinds last."""
        # Before their child Jobs, which their operator would make anew.
        for kind in (kinds.JOBSETS, kinds.RAY_JOBS, kinds.RAY_CLUSTERS):
            for made, _, name in self.created:
                if made is kind:
                    await self.delete(kind, name)
        for entry in await self.list_all(kinds.JOBS):
            # Those of a started JobSet go with it, by the hands of the garbage collector.
            with contextlib.suppress(ForbiddenError):
                await self.delete(kinds.JOBS, entry["metadata"]["name"])
        for kind, namespace, name in reversed(self.created):
            if kind is not kinds.JOBS:
                await self._delete(kind, namespace, name, 0 if kind is kinds.PODS else None)

    async def leave(self) -> None:
        """Delete what this test made, and all pods and Workloads besides; the namespace stays.

        To delete it takes the API server about 80 requests, as many as all the rest of a short
        test, and its control plane goes soon itself.
        """
        await self.clean()
        options = json.dumps({"gracePeriodSeconds": 0, "propagationPolicy": "Background"}).encode()
        for kind in (kinds.WORKLOADS, kinds.PODS):
            await self.client.delete(kind.path(self.namespace), options)

    # -- fixtures of the field -------------------------------------------------------------

    async def add_nodes(self, nodes: Iterable[Object]) -> None:
        """Create nodes of this test's pool; they are ready then, and the assigner knows it."""
        made = [obj["metadata"]["name"] for obj in nodes if await self.create(kinds.NODES, obj)]

        async def ready() -> bool:
            wanted = set(made)
            for obj in await self.list_all(kinds.NODES, labelSelector=f"{POOL_LABEL}={self.pool}"):
                conditions = obj.get("status", {}).get("conditions", [])
                taints = obj["spec"].get("taints", [])
                is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
                if is_ready and not any("not-ready" in taint["key"] for taint in taints):
                    wanted.discard(obj["metadata"]["name"])
            return not wanted

        await until("nodes are ready", ready)
        await self.wait_nodes_seen()

    async def wait_nodes_seen(self) -> None:
        """Wait until the assigner has heard of all that was written about nodes so far.

        Else it may judge a Job by the nodes that it knows yet.
        """
        await assigner_sync.wait_nodes_seen(self.client)

    async def wait_queues_seen(self) -> None:
        """As `wait_nodes_seen`, for nodes, Topologies, flavors and queues."""
        await assigner_sync.wait_queues_seen(self.client)

    async def wait_pods_seen(self) -> None:
        """As `wait_nodes_seen`, for what was written about bound pods."""
        await assigner_sync.wait_pods_seen(self.client)

    async def add_node(self, block: str, rack: str, name: str, **more: Any) -> None:
        """Create one node of this test's pool."""
        await self.add_nodes([node(self.pool, block, rack, name, **more)])

    async def add_fx_a(self) -> None:
        """The eight nodes of fixture FX-A (two blocks, four racks, 8 CPU each)."""
        await self.add_nodes(fx_a_nodes(self.pool))

    async def add_queue(
        self,
        name: str = "queue",
        *,
        quota: Mapping[str, str] | None = None,
        topology: bool = True,
        levels: Iterable[str] = (),
        flavor_of: str | None = None,
        **spec: Any,
    ) -> None:
        """A Topology, flavor, ClusterQueue and LocalQueue, ready to be used.

        Args:
            name: of the LocalQueue; cluster-wide names are prefixed by the pool.
            quota: by resource.
            topology: whether the flavor has one.
            levels: of the Topology.
            flavor_of: another queue, whose flavor it uses instead of one of its own.
            spec: more fields of the ClusterQueue.
        """
        full, offered = f"{self.pool}-{name}", f"{self.pool}-{flavor_of or name}"
        if flavor_of is None and topology:
            await self.create(kinds.TOPOLOGIES, topology_object(full, tuple(levels)))
        if flavor_of is None:
            await self.create(kinds.FLAVORS, flavor(full, self.pool, full if topology else None))
        await self.create(
            kinds.CLUSTER_QUEUES, cluster_queue(full, offered, quota or {"cpu": "1000"}, **spec)
        )
        await self.create(kinds.LOCAL_QUEUES, local_queue(name, full))

    async def add_priority(self, value: int) -> dict[str, str]:
        """A WorkloadPriorityClass; returns the label of the jobs that have it."""
        name = f"{self.pool}-p{value}"
        priority = {
            "apiVersion": names.API_VERSION,
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        await self.create(kinds.WORKLOAD_PRIORITY_CLASSES, priority)
        return {names.PRIORITY_CLASS_LABEL: name}

    async def submit(self, name: str, count: int, **more: Any) -> Object:
        """Create a Job of `count` pods (see `tests.support.objects.job`)."""
        return await self.create(kinds.JOBS, job(name, count, **more))

    # -- what tests wait for ---------------------------------------------------------------

    async def workload_of(self, job_name: str) -> Object:
        """The Workload of a Job, once it exists."""

        async def owned() -> Object | None:
            for obj in await self.list_all(kinds.WORKLOADS):
                owners = obj["metadata"].get("ownerReferences", [])
                if any(owner["name"] == job_name for owner in owners):
                    return obj
            return None

        found = await until(f"Job {job_name} has a Workload", owned)
        assert found is not None
        return found

    async def condition(
        self,
        job_name: str,
        type_: str,
        status: str = "True",
        reason: str | None = None,
        words: str = "",
    ) -> Object:
        """Wait until the Job's Workload has that condition, and return the Workload.

        Args:
            job_name: its owner.
            type_, status, reason: of the condition; any reason by default.
            words: part of its message. The first one may come of fewer nodes, queues and pods
                than there are, and is written anew when more are known.
        """

        async def holds() -> Object | None:
            workload = await self.workload_of(job_name)
            for entry in workload.get("status", {}).get("conditions", []):
                fits = entry["type"] == type_ and entry["status"] == status
                if fits and reason in (None, entry["reason"]) and words in entry["message"]:
                    return workload
                last[:] = [entry] if entry["type"] == type_ else last
            return None

        last: list[Object] = []
        what = f"Workload of {job_name} is {type_}={status} {reason or ''} {words}".rstrip()
        found = await until(what, holds, seen=lambda: last)
        assert found is not None
        return found

    async def pods_of(self, job_name: str) -> list[Object]:
        """Pods of a Job that have not ended."""
        pods = await self.list_all(
            kinds.PODS, labelSelector=f"batch.kubernetes.io/job-name={job_name}"
        )
        return [pod for pod in pods if pod["status"]["phase"] not in ("Succeeded", "Failed")]

    async def finish(self, job_name: str) -> None:
        """Let the pods that a Job has now succeed, as soon as they run."""
        done = {"metadata": {"annotations": {"rackgate.dev/run-seconds": "0"}}}
        for pod in await self.pods_of(job_name):
            await self.merge(kinds.PODS, pod["metadata"]["name"], done)

    async def bound(self, job_name: str, count: int) -> list[Object]:
        """Wait until exactly `count` pods of the Job are bound, and return them."""
        return await exactly_bound(
            f"{count} pods of {job_name} are bound", lambda: self.pods_of(job_name), count
        )

    async def places(self, job_name: str, count: int) -> list[tuple[str, str, str]]:
        """(block, rack, host) of each bound pod, in rank order where pods have ranks."""
        pods = await self.bound(job_name, count)
        labels = {obj["metadata"]["name"]: obj["metadata"]["labels"] for obj in await self._pool()}
        index = "batch.kubernetes.io/job-completion-index"
        pods.sort(key=lambda pod: int(pod["metadata"]["labels"].get(index, 0)))
        return [
            (labels[name][BLOCK], labels[name][RACK], name)
            for name in (pod["spec"]["nodeName"] for pod in pods)
        ]

    async def _pool(self) -> list[Object]:
        return await self.list_all(kinds.NODES, labelSelector=f"{POOL_LABEL}={self.pool}")

    async def event(self, reason: str, about: str) -> Object:
        """Wait for an Event with that reason about the object of that name."""

        async def seen() -> Object | None:
            for entry in await self.list_all(kinds.EVENTS):
                regarding = entry.get("regarding") or {}
                if entry.get("reason") == reason and regarding.get("name") == about:
                    return entry
            return None

        found = await until(f"event {reason} about {about}", seen)
        assert found is not None
        return found
