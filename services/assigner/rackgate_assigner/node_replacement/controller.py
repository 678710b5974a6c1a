"""Records unhealthy nodes of running Workloads, and fails pods that block their replacement.

While all assigned hosts are healthy, nothing is requested from the API server. Otherwise the pods
of the Workload are listed live and `assess_hosts` decides. It is reconciled again when one of its
bound pods changes, and periodically for pods that the watch does not show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import structlog

from rackgate.api import names
from rackgate.api.resources import PODS
from rackgate.kube.client import Client
from rackgate.kube.errors import ConflictError, NotFoundError
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.tasks import spawn
from rackgate.wire import core
from rackgate.wire.kueue import Workload
from rackgate.wire.lists import page_items
from rackgate_assigner import metrics
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.node_replacement.unhealthy import (
    HostAssessment,
    JobPod,
    PodState,
    assess_hosts,
    supports_node_replacement,
    suspect_hosts,
)
from rackgate_assigner.node_replacement.writer import NodeWriter
from rackgate_assigner.workload.info import WorkloadInfo
from rackgate_assigner.workqueue import WorkQueue

# Workloads that are reconciled together.
WORKERS: Final = 4
# Nodes of one rack fail together, and pods of one node end together.
BATCH_INTERVAL_S: Final = 0.1
# Between two lists of pods that are all bound: the watch reports their changes.
FULLY_BOUND_RECHECK_S: Final = 300.0
_JOB_UID_LABEL: Final = "batch.kubernetes.io/controller-uid"

log = structlog.get_logger()


class _PodSpec(core.View, frozen=True):
    node_name: str | None = None
    node_selector: dict[str, str] = {}  # noqa: RUF012 - msgspec copies empty defaults
    scheduling_gates: tuple[core.SchedulingGate, ...] = ()
    tolerations: tuple[core.Toleration, ...] = ()


class _Pod(core.View, frozen=True):
    metadata: core.Meta = core.Meta()
    spec: _PodSpec = _PodSpec()
    status: core.PodStatus = core.PodStatus()


_decode_pod = msgspec.json.Decoder(_Pod).decode


class NodeReplacementController:
    """Follows nodes always, acts while its owner holds the Lease.

    Attributes:
        requested: by Workload, names to be replaced although their nodes are healthy.
    """

    def __init__(
        self,
        cache: Cache,
        workloads: Mapping[str, Workload],
        client: Client,
        writer: NodeWriter,
        *,
        request_cycle: Callable[[], None],
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            cache: Workloads, flavors and hosts.
            workloads: as the watch shows them, by key.
            client: lists pods.
            writer: executes decisions.
            request_cycle: called when the second pass has a new decision to make.
        """
        self.requested: dict[str, frozenset[str]] = {}
        self._cache, self._workloads = cache, workloads
        self._client, self._writer, self._request_cycle = client, writer, request_cycle
        self._enabled = cache.features.failed_node_replacement
        self._queue = WorkQueue[str]("node-failures", self._reconcile, workers=WORKERS)
        self._pauses = Backoff(base_s=1.0, cap_s=30.0)
        self._changed_hosts: set[str] = set()
        self._changed_keys: set[str] = set()
        self._watched: set[str] = set()
        self._wake_up = asyncio.Event()
        self._active = False

    # Listeners: cheap, and the same on a standby. The cache is updated before.

    def on_hosts_change(self, hosts: set[str]) -> None:
        """The node of these hosts, or its health, changed."""
        if self._active:
            self._changed_hosts |= hosts
            self._wake_up.set()

    def on_workload_upsert(self, _before: Workload | None, workload: Workload) -> None:
        """A Workload was added or changed."""
        if workload.status.admission is not None or workload.metadata.key in self._watched:
            self._key_changed(workload.metadata.key)

    def on_workload_delete(self, workload: Workload) -> None:
        """A Workload was deleted."""
        self._stop_watching(workload.metadata.key)

    def on_pod_upsert(self, before: core.Pod | None, pod: core.Pod) -> None:
        """A bound pod was added or changed; readiness says nothing about its node."""
        if before is None or _binding_state(before) != _binding_state(pod):
            self._pod_changed(pod)

    def on_pod_delete(self, pod: core.Pod) -> None:
        """A bound pod has ended, or is deleted."""
        self._pod_changed(pod)

    def _pod_changed(self, pod: core.Pod) -> None:
        name = pod.metadata.annotations.get(names.WORKLOAD_ANNOTATION)
        if self._watched and name and (key := f"{pod.metadata.namespace}/{name}") in self._watched:
            self._key_changed(key)

    def _key_changed(self, key: str) -> None:
        if self._active:
            self._changed_keys.add(key)
            self._wake_up.set()

    # Work.

    async def run(self) -> None:
        """Reconcile everything once, then every change, until cancelled."""
        if not self._enabled:
            await asyncio.Event().wait()
        # A replica that crashed may have left pods pinned to hosts that were replaced since.
        self._watched = {
            key
            for key, info in self._cache.workloads.items()
            if supports_node_replacement(info) and self._unready(key)
        }
        self._changed_keys = set(self._cache.workloads)
        self._active = True
        self._wake_up.set()
        try:
            async with asyncio.TaskGroup() as group:
                spawn(group, self._queue.run(), "node-failures")
                spawn(group, self._batch_changes(), "node-failures-gather")
        finally:
            self._active = False
            self.requested.clear()
            self._watched.clear()

    async def _batch_changes(self) -> None:
        while True:
            await self._wake_up.wait()
            await asyncio.sleep(BATCH_INTERVAL_S)
            self._wake_up.clear()
            for key in self._affected():
                self._queue.add(key)

    def _affected(self) -> list[str]:
        """Workloads that the last changes may affect."""
        hosts, keys = self._changed_hosts, self._changed_keys
        self._changed_hosts, self._changed_keys = set(), set()
        if hosts:
            keys |= {
                key
                for key, info in self._cache.workloads.items()
                if any(
                    values[-1] in hosts
                    for part in (info.reserved.podsets if info.reserved is not None else ())
                    for values, _ in (part.topology.domains if part.topology is not None else ())
                )
            }
        return [key for key in sorted(keys) if self._needs_check(key)]

    def _needs_check(self, key: str) -> bool:
        if key in self._watched:
            return True
        info = self._cache.workloads.get(key)
        if info is None or not supports_node_replacement(info):
            return False
        return bool(info.unhealthy or suspect_hosts(info, self._cache.hosts, self._cache.flavors))

    async def _reconcile(self, key: str) -> None:
        """List the pods of one Workload, assess its hosts, and write the result."""
        info = self._cache.workloads.get(key)
        if (
            info is None
            or not supports_node_replacement(info)
            or (
                # No pod of this Workload could ever use another node (N4).
                info.owned_by_pod and self._cache.features.skip_reassignment_for_pod_owned
            )
        ):
            self._stop_watching(key)
            return
        self._watched.add(key)
        pods = await self._pods(info)
        info, workload = self._cache.workloads.get(key), self._workloads.get(key)
        if (
            info is None
            or workload is None
            or not supports_node_replacement(info)
            or key in self._cache.assumed
        ):
            self._retry_later(key)
            return
        found = assess_hosts(info, pods, self._cache.hosts, self._cache.flavors)
        if self.requested.get(key, frozenset()) != found.requested:
            self.requested[key] = found.requested
            self._request_cycle()
        await self._apply(workload, found)
        if found.stable:
            self._stop_watching(key)
            return
        if found.unhealthy or found.stranded_pods or found.recovered:
            self._pauses.reset(key)
        if found.fully_bound:
            self._pauses.reset(key)
            self._queue.add_later(key, FULLY_BOUND_RECHECK_S)
        else:
            self._retry_later(key)

    async def _apply(self, workload: Workload, found: HostAssessment) -> None:
        """Write names first: a successor of a failed pod must not go to the same host (U3).

        A crash in between leaves the name, or a pod outside the assignment; both are reconciled.
        Pods are failed only by a decision on the Workload as it is stored now.
        """
        if found.unhealthy:
            await self._writer.mark_unhealthy(workload, found.unhealthy)
        elif found.stranded_pods and not await self._writer.is_unchanged(workload):
            return
        for pod in found.stranded_pods:
            try:
                await self._writer.terminate_pod(pod)
            except (ConflictError, NotFoundError):
                continue  # it was bound or deleted: the next list shows it
        if found.recovered and not found.unhealthy:
            await self._writer.clear_unhealthy_nodes(workload, found.recovered)
            metrics.NODE_REPLACEMENTS.labels(result="recovered").inc(len(found.recovered))

    def _retry_later(self, key: str) -> None:
        self._queue.add_later(key, self._pauses.next(key))

    def _stop_watching(self, key: str) -> None:
        self._watched.discard(key)
        self.requested.pop(key, None)
        self._pauses.reset(key)

    def _unready(self, key: str) -> bool:
        workload = self._workloads.get(key)
        ready = names.WorkloadCondition.PODS_READY
        return workload is not None and not workload.is_true(ready)

    async def _pods(self, info: WorkloadInfo) -> list[JobPod]:
        """The pods of the Workload's job, as stored now."""
        owner = (
            self._workloads[info.key].metadata.controller if info.key in self._workloads else None
        )
        selector = names.PODSET_LABEL
        if owner is not None and owner.kind == "Job":
            selector = f"{_JOB_UID_LABEL}={owner.uid}"
        params = {"labelSelector": selector}
        pods: list[JobPod] = []
        async for page in self._client.list_pages(PODS.path(info.namespace), params):
            found = map(_decode_pod, page_items(page))
            pods += [_job_pod(pod) for pod in found if _belongs_to(pod.metadata, info)]
        return pods


def _binding_state(pod: core.Pod) -> tuple[object, ...]:
    return pod.metadata.uid, pod.metadata.deletion_timestamp, pod.spec.node_name


def _belongs_to(meta: core.Meta, info: WorkloadInfo) -> bool:
    owner = meta.controller
    named = meta.annotations.get(names.WORKLOAD_ANNOTATION) == info.name
    return named and owner is not None and owner.uid == info.owner_uid


def _job_pod(pod: _Pod) -> JobPod:
    meta, spec = pod.metadata, pod.spec
    scheduled: Any = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
    return JobPod(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        podset=meta.labels.get(names.PODSET_LABEL, ""),
        host=spec.node_selector.get(names.HOSTNAME_LABEL, ""),
        state=_state(pod),
        unschedulable=scheduled is not None
        and (scheduled.status, scheduled.reason) == ("False", "Unschedulable"),
        node=spec.node_name or "",
        tolerations=spec.tolerations,
    )


def _state(pod: _Pod) -> PodState:
    if pod.status.phase == "Succeeded":
        return PodState.SUCCEEDED
    if pod.status.phase == "Failed":
        return PodState.FAILED
    if pod.metadata.deletion_timestamp is not None:
        return PodState.ENDING
    if any(gate.name == names.TOPOLOGY_GATE for gate in pod.spec.scheduling_gates):
        return PodState.GATED
    return PodState.LIVE if pod.spec.node_name else PodState.PINNED
