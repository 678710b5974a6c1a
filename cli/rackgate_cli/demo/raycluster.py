"""`rackgate demo --kind raycluster`: a RayCluster is resized without a stop.

Ray does not run on simulated nodes, so the demo writes what Ray's autoscaler would: `replicas`, and
for a scale-down the names of the pods to delete.
"""

from __future__ import annotations

import json
from typing import ClassVar, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.features import ELASTIC_JOBS
from rackgate.kube.client import PatchType
from rackgate_cli.demo.story import (
    BLOCK,
    GPU,
    GPUS_PER_NODE,
    NAMESPACE,
    RAY_NAME,
    Object,
    PodGroupView,
    Story,
    manifest_of,
    pod_template,
)

FIRST: Final = 2
GROWN: Final = 8
ASKED: Final = 40
# Nodes of a block; each worker uses all GPUs of one node.
MOST: Final = 32
LAST: Final = 1

HEAD: Final = "head"
WORKERS: Final = "workers"
_IMAGE: Final = "ray:2.46.0"


def manifest() -> Object:
    """An autoscaling RayCluster: a head somewhere, workers of one block with 8 GPUs each."""
    annotations = {names.REQUIRED_TOPOLOGY: BLOCK}
    workers = {
        "groupName": WORKERS,
        "replicas": FIRST,
        "minReplicas": 0,
        "maxReplicas": 100,
        "rayStartParams": {},
        "template": pod_template(annotations, GPUS_PER_NODE, _IMAGE),
    }
    spec = {
        "rayVersion": "2.46.0",
        "enableInTreeAutoscaling": True,
        "headGroupSpec": {"rayStartParams": {}, "template": pod_template(annotations, 0, _IMAGE)},
        "workerGroupSpecs": [workers],
    }
    return manifest_of(kinds.RAY_CLUSTERS, RAY_NAME, spec)


class RayClusterStory(Story):
    """The workers are resized from 2 to 8 to 40 and down to 1."""

    operators: ClassVar = ("kuberay",)
    feature_gates: ClassVar = {ELASTIC_JOBS: True}
    groups: ClassVar = (
        PodGroupView(
            WORKERS, "B", {names.RAY_CLUSTER_LABEL: RAY_NAME, names.RAY_GROUP_LABEL: WORKERS}
        ),
        PodGroupView(
            HEAD, "H", {names.RAY_CLUSTER_LABEL: RAY_NAME, names.RAY_NODE_TYPE_LABEL: "head"}
        ),
    )
    _first: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Submit it, then write what Ray's autoscaler writes."""
        self.say(f"submit [bold]{RAY_NAME}[/bold]: a head, and {FIRST} workers within one block")
        await self.create(kinds.RAY_CLUSTERS, manifest())
        await self._check_bound(FIRST)
        self._first = self._uids()

        self.say(f"Ray's autoscaler requests {GROWN} workers")
        await self._resize(GROWN)
        await self._check_bound(GROWN)
        await self._check_merged(GROWN)

        self.say(f"Ray's autoscaler requests {ASKED} workers; the block fits {MOST}")
        await self._resize(ASKED)
        await self._check_bound(MOST)
        await self._check_pending()
        self.console.print(self.picture())

        self.say(f"Ray is idle: down to {LAST} worker")
        await self._resize(LAST)
        await self._check_bound(LAST)
        await self._check_merged(LAST)

    def _uids(self) -> frozenset[str]:
        return frozenset(pod["metadata"]["uid"] for pods in self.pods.values() for pod in pods)

    async def _check_bound(self, count: int) -> None:
        """Wait until so many workers are bound, then check the block and that no pod stopped."""
        await self.until_bound(f"{count} workers are bound", {WORKERS: count, HEAD: 1})
        self.say(f"[bold]{RAY_NAME}[/bold] runs on {count} workers")
        blocks = {pod.block for pod in self.bound[WORKERS]}
        if len(blocks) != 1:
            self.failures.append(f"{RAY_NAME}: required one block, runs in {sorted(blocks)}")
        if count >= FIRST and not self._first <= self._uids():
            self.failures.append(f"{RAY_NAME}: a resize stopped one of the first pods")
        cluster = await self.get(kinds.RAY_CLUSTERS, RAY_NAME)
        if cluster["spec"].get("suspend"):
            self.failures.append(f"{RAY_NAME}: suspended by a resize")

    async def _check_merged(self, count: int) -> None:
        """Wait until the Workload and the queue's usage count so many workers."""
        gpus = str(count * GPUS_PER_NODE)

        async def counted() -> bool:
            workload = await self.workload_of(RAY_NAME) or {}
            podsets = workload.get("spec", {}).get("podSets", [])
            counts = {podset["name"]: podset["count"] for podset in podsets}
            return counts.get(WORKERS) == count and await self._usage() == gpus

        await self.until(f"the queue uses {gpus} GPUs", counted)
        self.say(f"quota follows: {gpus} GPUs used, one Workload, no slice left")

    async def _check_pending(self) -> None:
        """Wait until the Workload shows how many of the workers are pending, and why."""

        async def resize_requested() -> bool:
            resize = await self.condition(RAY_NAME, "ResizeRequested")
            if resize.get("status") != "True":
                return False
            self.say(f"[bold]{RAY_NAME}[/bold] resizes: {resize['message']}")
            return True

        await self.until("the Workload shows which workers are pending", resize_requested)

    async def _resize(self, count: int) -> None:
        group = "/spec/workerGroupSpecs/0"
        operations: list[Object] = [
            {"op": "replace", "path": f"{group}/replicas", "value": count},
        ]
        workers = [pod["metadata"]["name"] for pod in self.pods[WORKERS]]
        if count < len(workers):
            value = {"workersToDelete": workers[count:]}
            operations.append({"op": "replace", "path": f"{group}/scaleStrategy", "value": value})
        path = kinds.RAY_CLUSTERS.path(NAMESPACE, RAY_NAME)
        await self.client.patch(path, json.dumps(operations).encode(), PatchType.JSON)

    async def _usage(self) -> str:
        queue = await self.get(kinds.CLUSTER_QUEUES, "default")
        for flavor in queue.get("status", {}).get("flavorsUsage", []):
            for resource in flavor["resources"]:
                if resource["name"] == GPU:
                    return str(resource["total"])
        return "0"
