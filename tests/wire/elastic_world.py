"""The fake cluster with RayClusters that are resized, and a ledger of what is held for them.

Every write on a Workload is judged: pods held are those of the admission, and of admitted slices
that their parent does not count yet. So a dip or a double is seen at the version where it happens.
"""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

from rackgate.api import resources as kinds
from rackgate.features import ELASTIC_JOBS
from rackgate_assigner.assigner import Assigner
from tests.support import composite_jobs as composite
from tests.support import objects
from tests.support.apiserver import Object, Request
from tests.support.apiserver_objects import RejectedRequest, Target
from tests.wire.assigner_world import NAMESPACE, World, assigner, settings
from tests.wire.assigner_world import furnish as furnish_for_jobs
from tests.wire.kinds_world import KindsWorld

ELASTIC: dict[str, Any] = {"featureGates": {ELASTIC_JOBS: True}}


def replica(world: World) -> AbstractAsyncContextManager[Assigner]:
    """An assigner with the gate of elastic jobs on."""
    return assigner(world, configured=settings(**ELASTIC))


def furnish(world: World) -> None:
    """As for Jobs, with memory in all quotas: what KubeRay adds to a worker asks for some."""
    furnish_for_jobs(world)
    quota = {"cpu": "64", "memory": "64Gi"}
    for name, flavor in (("cq", "tas"), ("plain", "plain")):
        world.put(kinds.CLUSTER_QUEUES, objects.cluster_queue(name, flavor, quota))


class ElasticWorld(KindsWorld):
    """See the module.

    Attributes:
        held: pods held for workers after each write on a Workload, repeats left out.
        told: statuses of ResizeRequested, repeats left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held: list[int] = []
        self.told: list[str] = []

    def _do(self, target: Target, seen: Request) -> tuple[int, Object]:
        known = self._objects.get(target.full_name, {}).get(target.key)
        if known is None and target.sub:
            raise RejectedRequest(404, "NotFound", f'{target.plural} "{target.name}" not found')
        return super()._do(target, seen)

    def _store(self, target: Target, item: Object, known: Object | None) -> Object:
        stored = super()._store(target, item, known)
        self._sample(target.full_name)
        return stored

    def _drop(self, full_name: str, key: str) -> None:
        super()._drop(full_name, key)
        self._sample(full_name)

    def _sample(self, full_name: str) -> None:
        if full_name != kinds.WORKLOADS.full_name:
            return
        total = sum(held_by(workload, self) for workload in self.workloads())
        if not self.held or self.held[-1] != total:
            self.held.append(total)
        for condition in (c for w in self.workloads() for c in conditions_of(w)):
            if condition["type"] == "ResizeRequested" and self.told[-1:] != [condition["status"]]:
                self.told.append(condition["status"])

    # What tests do.

    def elastic(self, name: str, groups: dict[str, int], **options: Any) -> None:
        """A RayCluster that scales itself, with so many replicas of each group."""
        shared = {
            key: options.pop(key) for key in ("hosts", "cpu", "annotations") if key in options
        }
        workers = [composite.worker_group(group, n, **shared) for group, n in groups.items()]
        options = {"queue": "plain", "autoscaling": True, **options}
        sidecar = {"resources": {"requests": {"cpu": "1"}}}
        cluster = composite.raycluster(name, workers, autoscalerOptions=sidecar, **options)
        self.add(kinds.RAY_CLUSTERS, cluster)

    def scale(self, name: str, replicas: int, group: int = 0, **more: Any) -> None:
        """What the autoscaler writes."""

        def edit(cluster: Object) -> None:
            cluster["spec"]["workerGroupSpecs"][group].update(replicas=replicas, **more)

        self.change(kinds.RAY_CLUSTERS, name, edit)

    def parent(self, name: str) -> Object:
        """The Workload of a cluster."""
        found = self.workload_of(self.of(kinds.RAY_CLUSTERS, name))
        assert found is not None, f"no Workload of {name}"
        return found

    def slices(self) -> list[Object]:
        """All workload slices, by name."""
        found = [w for w in self.workloads() if owner_of(w).get("kind") == "Workload"]
        return sorted(found, key=lambda workload: str(workload["metadata"]["name"]))

    def granted(self, name: str) -> dict[str, int]:
        """Counts of a cluster's admission; empty without one."""
        admission = self.parent(name).get("status", {}).get("admission", {})
        return {part["name"]: part["count"] for part in admission.get("podSetAssignments", [])}

    def asked(self, name: str) -> dict[str, int]:
        """Counts of the spec of a cluster's Workload."""
        return {podset["name"]: podset["count"] for podset in self.parent(name)["spec"]["podSets"]}

    def is_at(self, name: str, **workers: int) -> bool:
        """Whether a resize to these sizes is over, and has left nothing behind."""
        sizes = {"head": 1, **workers}
        told = self.resize(name)
        return (
            self.granted(name) == self.asked(name) == sizes
            and not self.slices()
            and not self.parent(name)["status"].get("foldedSlices")
            and told[0] in ("", "False")
        )

    def resize(self, name: str) -> tuple[str, str, str]:
        """Status, reason and message of ResizeRequested; empty when it is not there."""
        for condition in conditions_of(self.parent(name)):
            if condition["type"] == "ResizeRequested":
                return condition["status"], condition["reason"], condition["message"]
        return "", "", ""

    def suspensions(self) -> int:
        """Patches of the assigner that suspend a cluster, refused ones included."""
        patches = [r for r in self.writes() if "/rayclusters/" in r.path]
        wanted = {"path": "/spec/suspend", "value": True}
        return sum(
            any(wanted.items() <= op.items() for op in json.loads(request.body))
            for request in patches
        )


def owner_of(workload: Object) -> Object:
    """The first owner of a Workload."""
    owners = workload["metadata"].get("ownerReferences", [])
    return owners[0] if owners else {}


def conditions_of(workload: Object) -> list[Object]:
    """All conditions of a Workload."""
    return list(workload.get("status", {}).get("conditions", []))


def held_by(workload: Object, world: ElasticWorld) -> int:
    """Workers that quota is held for by one Workload, its slices not counted."""
    status = workload.get("status", {})
    if any(c["type"] == "Finished" and c["status"] == "True" for c in conditions_of(workload)):
        return 0
    if owner_of(workload).get("kind") == "Workload":
        parent = world.get(kinds.WORKLOADS, owner_of(workload)["name"], NAMESPACE)
        settled = (parent or {}).get("status", {}).get("foldedSlices", [])
        if parent is None or workload["metadata"]["uid"] in [entry["uid"] for entry in settled]:
            return 0
    parts = status.get("admission", {}).get("podSetAssignments", [])
    return sum(part["count"] for part in parts if part["name"] != "head")
