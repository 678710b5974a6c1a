"""Finalizers that keep Topologies, ResourceFlavors and ClusterQueues while they are in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import structlog

from rackgate.api import names
from rackgate.api.names import WorkloadCondition
from rackgate.api.resources import CLUSTER_QUEUES, FLAVORS, TOPOLOGIES, Resource
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import NotFoundError
from rackgate.wire.core import Meta
from rackgate.wire.kueue import ClusterQueue, ResourceFlavor, Topology, Workload
from rackgate_assigner.workqueue import WorkQueue

WORKERS = 4
RESOURCES: Mapping[str, Resource] = {
    resource.kind: resource for resource in (TOPOLOGIES, FLAVORS, CLUSTER_QUEUES)
}

log = structlog.get_logger()


class Key(NamedTuple):
    """An object by kind and name."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Stores:
    """Live views of the informers' stores."""

    topologies: Mapping[str, Topology]
    flavors: Mapping[str, ResourceFlavor]
    cluster_queues: Mapping[str, ClusterQueue]
    workloads: Mapping[str, Workload]


class FinalizerController:
    """Adds the finalizer to existing objects; removes it from deleted ones that are unused.

    A Topology is used by flavors, a flavor by ClusterQueues, a ClusterQueue by Workloads that
    hold its quota.
    """

    def __init__(self, stores: Stores, client: Client) -> None:
        self.queue = WorkQueue[Key]("finalizers", self._reconcile, workers=WORKERS)
        self._stores, self._client = stores, client
        self._deleting: set[Key] = set()

    async def run(self) -> None:
        """Reconcile everything once, then every change, until cancelled."""
        await self.queue.run(
            [Key(kind, name) for kind in RESOURCES for name in self._objects(kind)]
        )

    def on_upsert(self, kind: str, meta: Meta) -> None:
        """An object of one of the three kinds was added or changed."""
        key = Key(kind, meta.name)
        if meta.deletion_timestamp is not None:
            self._deleting.add(key)
        self.queue.add(key)
        self.on_user_change(kind)

    def on_delete(self, kind: str, meta: Meta) -> None:
        """An object of one of the three kinds was deleted."""
        self._deleting.discard(Key(kind, meta.name))
        self.on_user_change(kind)

    def on_user_change(self, kind: str) -> None:
        """An object of this kind, which may use others, changed or was deleted."""
        used = {FLAVORS.kind: TOPOLOGIES.kind, CLUSTER_QUEUES.kind: FLAVORS.kind}
        for key in self._deleting:
            if key.kind == used.get(kind, CLUSTER_QUEUES.kind):
                self.queue.add(key)

    async def _reconcile(self, key: Key) -> None:
        item = self._objects(key.kind).get(key.name)
        if item is None:
            return
        meta = item.metadata
        has_finalizer = names.IN_USE_FINALIZER in meta.finalizers
        if meta.deletion_timestamp is None:
            if not has_finalizer:
                await self._write(key, meta, [*meta.finalizers, names.IN_USE_FINALIZER])
        elif has_finalizer and not self._used(key):
            others = [name for name in meta.finalizers if name != names.IN_USE_FINALIZER]
            await self._write(key, meta, others)
            log.info("finalizer_removed", kind=key.kind, name=key.name)

    async def _write(self, key: Key, meta: Meta, finalizers: list[str]) -> None:
        metadata = {
            "finalizers": finalizers,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        }
        body = msgspec.json.encode({"metadata": metadata})
        path = RESOURCES[key.kind].path(name=key.name)
        try:
            await self._client.patch(path, body, PatchType.MERGE)
        except NotFoundError:
            return

    def _objects(self, kind: str) -> Mapping[str, Topology | ResourceFlavor | ClusterQueue]:
        if kind == TOPOLOGIES.kind:
            return self._stores.topologies
        return self._stores.flavors if kind == FLAVORS.kind else self._stores.cluster_queues

    def _used(self, key: Key) -> bool:
        if key.kind == TOPOLOGIES.kind:
            flavors = self._stores.flavors.values()
            return any(flavor.spec.topology_name == key.name for flavor in flavors)
        if key.kind == FLAVORS.kind:
            return any(_offers(queue, key.name) for queue in self._stores.cluster_queues.values())
        return any(_holds(workload, key.name) for workload in self._stores.workloads.values())


def _offers(queue: ClusterQueue, flavor: str) -> bool:
    groups = queue.spec.resource_groups
    return any(quotas.name == flavor for group in groups for quotas in group.flavors)


def _holds(workload: Workload, queue: str) -> bool:
    admission = workload.status.admission
    finished = workload.is_true(WorkloadCondition.FINISHED)
    return admission is not None and admission.cluster_queue == queue and not finished
