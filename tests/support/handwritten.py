"""Workloads written by hand, and the pods of an owner that Rackgate knows nothing about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.objects import Object

INDEX_LABEL = "example.com/index"


def podset(
    name: str, count: int, request: Mapping[str, Any] | None = None, *, cpu: str = "4"
) -> Object:
    """A PodSet of a Workload."""
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"requests": {"cpu": cpu}},
    }
    found: Object = {
        "name": name,
        "count": count,
        "template": {"spec": {"containers": [container]}},
    }
    if request is not None:
        found["topologyRequest"] = dict(request)
    return found


def workload(name: str, *podsets: Object, queue: str = "queue") -> Object:
    """A Workload without an owner."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": {"queueName": queue, "podSets": list(podsets)},
    }


async def has_condition(
    cluster: Cluster, name: str, type_: str, status: str = "True", reason: str | None = None
) -> Object:
    """Wait until a Workload has a condition, and return the Workload."""

    async def holds() -> Object | None:
        found = await cluster.get(kinds.WORKLOADS, name)
        for entry in found.get("status", {}).get("conditions", []):
            fits = entry["type"] == type_ and entry["status"] == status
            if fits and (reason is None or entry["reason"] == reason):
                return found
        return None

    found = await until(f"Workload {name} is {type_}={status} {reason or ''}", holds)
    assert found is not None
    return found


@dataclass(frozen=True)
class Owner:
    """An object that owns a hand-written Workload and its pods; a ConfigMap plays it.

    Attributes:
        cluster: of an administrator.
        controller: of somebody who may make pods with reserved keys.
    """

    cluster: Cluster
    name: str
    uid: str
    controller: Cluster

    @classmethod
    async def create(cls, cluster: Cluster, name: str, controller: Cluster) -> Owner:
        """Make the owner."""
        made = await cluster.create(
            kinds.CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        )
        return cls(cluster, name, made["metadata"]["uid"], controller)

    @property
    def reference(self) -> list[Object]:
        """Owner references of what it controls."""
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": self.name, "uid": self.uid}
        return [{**owner, "controller": True}]

    async def submit(self, *podsets: Object) -> None:
        """Create its Workload, named like itself."""
        wanted = workload(self.name, *podsets)
        wanted["metadata"]["ownerReferences"] = self.reference
        await self.cluster.create(kinds.WORKLOADS, wanted)

    async def add_pod(
        self, asked: Object, index: int, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Create one pod of a PodSet, as its controller would."""
        marks = {names.WORKLOAD_ANNOTATION: self.name, **(annotations or {})}
        meta = {
            "name": f"{self.name}-{asked['name']}-{index}",
            "labels": {names.PODSET_LABEL: asked["name"], INDEX_LABEL: str(index)},
            "annotations": marks,
            "ownerReferences": self.reference,
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, **asked["template"]}
        await self.controller.create(kinds.PODS, pod)

    async def hosts(self, asked: Object) -> list[str]:
        """Nodes of a PodSet's pods by index, once all are bound."""
        selector = f"{names.PODSET_LABEL}={asked['name']}"

        async def bound() -> list[Object]:
            pods = await self.cluster.list_all(kinds.PODS, labelSelector=selector)
            placed = [pod for pod in pods if pod["spec"].get("nodeName")]
            return placed if len(placed) == asked["count"] else []

        pods = await until(f"pods of {self.name}/{asked['name']} are bound", bound)
        pods.sort(key=lambda pod: int(pod["metadata"]["labels"][INDEX_LABEL]))
        return [pod["spec"]["nodeName"] for pod in pods]
