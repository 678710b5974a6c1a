"""`rackgate demo --kind raycluster`: a RayCluster grows and shrinks and never stops.

Nothing simulated runs Ray, so the demo writes what Ray's autoscaler would: `replicas`, and on the
way down the names of the pods to delete.
"""

from __future__ import annotations

import json
from typing import Any, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import PatchType
from rackgate_cli.demo.scene import NAMESPACE, RAY_NAME, DemoScene, PodGroupView
from rackgate_cli.demo.story import BLOCK, GPU, GPUS_PER_NODE

FIRST: Final = 2
GROWN: Final = 8
ASKED: Final = 40
# Nodes of a block; each worker takes the GPUs of one.
MOST: Final = 32
LAST: Final = 1

HEAD: Final = "head"
WORKERS: Final = "workers"
Object = dict[str, Any]

POD_GROUPS: Final = (
    PodGroupView(WORKERS, "B", {names.RAY_CLUSTER_LABEL: RAY_NAME, names.RAY_GROUP_LABEL: WORKERS}),
    PodGroupView(HEAD, "H", {names.RAY_CLUSTER_LABEL: RAY_NAME, names.RAY_NODE_TYPE_LABEL: "head"}),
)


def manifest() -> Object:
    """An autoscaling RayCluster: a head somewhere, workers of one block with 8 GPUs each."""
    return {
        "apiVersion": kinds.RAY_CLUSTERS.api_version,
        "kind": kinds.RAY_CLUSTERS.kind,
        "metadata": {"name": RAY_NAME, "labels": {names.QUEUE_LABEL: "default"}},
        "spec": {
            "rayVersion": "2.46.0",
            "enableInTreeAutoscaling": True,
            "headGroupSpec": {"rayStartParams": {}, "template": _template("1", 0)},
            "workerGroupSpecs": [
                {
                    "groupName": WORKERS,
                    "replicas": FIRST,
                    "minReplicas": 0,
                    "maxReplicas": 100,
                    "rayStartParams": {},
                    "template": _template("1", GPUS_PER_NODE),
                }
            ],
        },
    }


def _template(cpu: str, gpus: int) -> Object:
    limits = {GPU: str(gpus)} if gpus else {}
    container = {
        "name": "ray",
        "image": "registry.example/ray:2.46.0",
        "resources": {"requests": {"cpu": cpu, "memory": "4Gi", **limits}, "limits": limits},
    }
    return {
        "metadata": {"annotations": {names.REQUIRED_TOPOLOGY: BLOCK}},
        "spec": {"containers": [container]},
    }


async def run_story(scene: DemoScene) -> list[str]:
    """Tell the story; returns the promises that were not kept."""
    story = _Story(scene)
    scene.say(f"submit [bold]{RAY_NAME}[/bold]: a head, and {FIRST} workers within one block")
    await scene.create(kinds.RAY_CLUSTERS, manifest())
    await story.bound(FIRST, head=1)
    story.first = story.uids()

    scene.say(f"Ray asks for {GROWN} workers")
    await story.resize(GROWN)
    await story.bound(GROWN)
    await story.check_merged(GROWN)

    scene.say(f"Ray asks for {ASKED} workers; the block has room for {MOST}")
    await story.resize(ASKED)
    await story.bound(MOST)
    await story.check_pending()
    scene.show()

    scene.say(f"Ray is idle: down to {LAST} worker")
    await story.resize(LAST)
    await story.bound(LAST)
    await story.check_merged(LAST)
    return story.failures


class _Story:
    def __init__(self, scene: DemoScene) -> None:
        self.scene = scene
        self.first: set[str] = set()
        self.failures: list[str] = []

    def uids(self) -> set[str]:
        """Of all pods there are."""
        pods = [pod for part in POD_GROUPS for pod in self.scene.pods[part.name]]
        return {pod["metadata"]["uid"] for pod in pods}

    async def bound(self, count: int, head: int = 1) -> None:
        """Wait until so many workers are bound, then check the block and that all runs on."""

        async def all_bound() -> bool:
            return self.scene.bound(WORKERS) == count and self.scene.bound(HEAD) == head

        await self.scene.until(f"{count} workers are bound", all_bound)
        self.scene.say(f"[bold]{RAY_NAME}[/bold] runs on {count} workers")
        blocks = {seat.block for seat in self.scene.taken[WORKERS]}
        if len(blocks) != 1:
            self.failures.append(f"{RAY_NAME}: required one block, sits in {sorted(blocks)}")
        if count >= FIRST and not self.first <= self.uids():
            self.failures.append(f"{RAY_NAME}: a pod of the first hour was stopped by a resize")
        cluster = await self.scene.get(kinds.RAY_CLUSTERS, RAY_NAME)
        if cluster["spec"].get("suspend"):
            self.failures.append(f"{RAY_NAME}: suspended by a resize")

    async def check_merged(self, count: int) -> None:
        """Wait until the Workload counts so many workers and the queue's usage says so."""
        gpus = str(count * GPUS_PER_NODE)

        async def counted() -> bool:
            workload = await self.scene.workload_of(RAY_NAME) or {}
            podsets = workload.get("spec", {}).get("podSets", [])
            counts = {podset["name"]: podset["count"] for podset in podsets}
            return counts.get(WORKERS) == count and await self._usage() == gpus

        await self.scene.until(f"the queue uses {gpus} GPUs", counted)
        self.scene.say(f"quota follows: {gpus} GPUs used, one Workload, no slice left")

    async def check_pending(self) -> None:
        """Wait until the Workload says how many of the workers wait, and why."""

        async def said() -> bool:
            resize = await self.scene.condition(RAY_NAME, "ResizeRequested")
            if resize.get("status") != "True":
                return False
            self.scene.say(f"[bold]{RAY_NAME}[/bold] resizes: {resize['message']}")
            return True

        await self.scene.until("the Workload says what waits", said)

    async def resize(self, count: int) -> None:
        """Write what Ray's autoscaler writes for so many workers."""
        group = "/spec/workerGroupSpecs/0"
        operations: list[Object] = [
            {"op": "replace", "path": f"{group}/replicas", "value": count},
        ]
        workers = [pod["metadata"]["name"] for pod in self.scene.pods[WORKERS]]
        if count < len(workers):
            value = {"workersToDelete": workers[count:]}
            operations.append({"op": "replace", "path": f"{group}/scaleStrategy", "value": value})
        path = kinds.RAY_CLUSTERS.path(NAMESPACE, RAY_NAME)
        await self.scene.client.patch(path, json.dumps(operations).encode(), PatchType.JSON)

    async def _usage(self) -> str:
        queue = await self.scene.get(kinds.CLUSTER_QUEUES, "default")
        for flavor in queue.get("status", {}).get("flavorsUsage", []):
            for resource in flavor["resources"]:
                if resource["name"] == GPU:
                    return str(resource["total"])
        return "0"
