"""Ray's autoscaler as the API server sees it: what it reads, and the JSON patches it writes.

Ray decides by load; here a test decides. Everything else is as Ray does it in its KubeRay
provider: nothing but `replicas` and `scaleStrategy` of a worker group is ever written, with no
guard against other writers, and the target is reckoned from the pods that exist, whatever the
field says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import Client, PatchType

Object = dict[str, Any]
Operation = dict[str, Any]
# The first autoscaler counts pods; the second adds to what the field says.
Base = Literal["pods", "replicas"]

WORKER: Final = "worker"


@dataclass(frozen=True)
class RayAutoscaler:
    """The autoscaler of one RayCluster whose worker groups have one host per replica.

    Attributes:
        client: with the rights of the cluster's own ServiceAccount, or more.
        namespace, name: of the RayCluster.
        base: what a new target is reckoned from.
    """

    client: Client
    namespace: str
    name: str
    base: Base = "pods"

    async def launch(self, **workers: int) -> bool:
        """Ask for more workers, by group; False when it has to wait for deletions first."""
        return await self._step(workers, ())

    async def terminate(self, *pods: str) -> bool:
        """Take workers down by the names of their pods; False when earlier ones still go."""
        return await self._step({}, pods)

    async def tick(self) -> bool:
        """A round in which the load is as before: it clears lists of workers that have gone."""
        return await self._step({}, ())

    async def workers(self, group: str) -> list[str]:
        """Names of a group's pods that are not on their way out, sorted."""
        return sorted(live_workers(await self._pods()).get(group, ()))

    async def _step(self, launch: Mapping[str, int], delete: Collection[str]) -> bool:
        cluster = await self._cluster()
        pods = await self._pods()
        if pending_deletes(cluster, pods):
            return False
        await self._patch(clearing_patch(cluster))
        if launch or delete:
            await self._patch(scale_patch(cluster, pods, launch, delete, self.base))
        return True

    async def _cluster(self) -> Object:
        answer = await self.client.get(kinds.RAY_CLUSTERS.path(self.namespace, self.name))
        return dict(json.loads(answer))

    async def _pods(self) -> list[Object]:
        selector = {"labelSelector": f"{names.RAY_CLUSTER_LABEL}={self.name}"}
        found: list[Object] = []
        async for page in self.client.list_pages(kinds.PODS.path(self.namespace), selector):
            found.extend(json.loads(page)["items"])
        return found

    async def _patch(self, operations: list[Operation]) -> None:
        if operations:
            path = kinds.RAY_CLUSTERS.path(self.namespace, self.name)
            await self.client.patch(path, json.dumps(operations).encode(), PatchType.JSON)


def live_workers(pods: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of the worker pods that are not being deleted, by group; phases do not matter."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        metadata = pod["metadata"]
        labels = metadata.get("labels", {})
        if labels.get(names.RAY_NODE_TYPE_LABEL) == WORKER and "deletionTimestamp" not in metadata:
            found.setdefault(labels[names.RAY_GROUP_LABEL], []).append(metadata["name"])
    return found


def pending_deletes(cluster: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> set[str]:
    """Groups of which the operator has not yet deleted every pod that was listed."""
    present = {name for group in live_workers(pods).values() for name in group}
    return {
        group["groupName"]
        for group in cluster["spec"].get("workerGroupSpecs", [])
        if present.intersection(_listed(group))
    }


def clearing_patch(cluster: Mapping[str, Any]) -> list[Operation]:
    """Empties each list of workers to delete; call it when all of them have gone."""
    groups = cluster["spec"].get("workerGroupSpecs", [])
    return [_deletion(index, []) for index, group in enumerate(groups) if _listed(group)]


def scale_patch(
    cluster: Mapping[str, Any],
    pods: Iterable[Mapping[str, Any]],
    launch: Mapping[str, int],
    delete: Collection[str],
    base: Base = "pods",
) -> list[Operation]:
    """The patch of one scaling decision.

    Every group that has workers gets the number that is right in the autoscaler's eyes, asked
    for or not; a group without any is not looked at unless it is to get some.

    Args:
        cluster: as read.
        pods: of the cluster.
        launch: further workers, by group.
        delete: names of pods to take down; those that are gone already count for nothing.
        base: what the target is reckoned from.
    """
    groups = cluster["spec"].get("workerGroupSpecs", [])
    live = live_workers(pods)
    target: Counter[str] = Counter({group: len(workers) for group, workers in live.items()})
    if base == "replicas":
        target = Counter({g["groupName"]: max(g["replicas"], g["minReplicas"]) for g in groups})
    target.update(launch)
    leaving = {
        group: [name for name in delete if name in workers] for group, workers in live.items()
    }
    target.subtract({group: len(workers) for group, workers in leaving.items()})
    numbers, lists = [], []
    for index, group in enumerate(groups):
        name = group["groupName"]
        wanted = min(target.get(name, group["replicas"]), group["maxReplicas"])
        if wanted != group["replicas"]:
            path = f"/spec/workerGroupSpecs/{index}/replicas"
            numbers.append({"op": "replace", "path": path, "value": wanted})
        if leaving.get(name):
            lists.append(_deletion(index, leaving[name]))
    return numbers + lists


def _listed(group: Mapping[str, Any]) -> list[str]:
    return list(group.get("scaleStrategy", {}).get("workersToDelete") or ())


def _deletion(index: int, workers: list[str]) -> Operation:
    path = f"/spec/workerGroupSpecs/{index}/scaleStrategy"
    return {"op": "replace", "path": path, "value": {"workersToDelete": workers}}
