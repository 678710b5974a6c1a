"""Broken nodes of running Workloads: who is affected, what their pods say, what is written.

Nothing is asked of the API server while all assigned hosts are healthy. A Workload with one that
is not is looked at: its pods are listed live, `judge` says what follows, and it is looked at again
when one of its bound pods changes, and now and then for pods that the watch does not show.
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
from rackgate_assigner import metrics
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.node_replacement.hosts import Hosts
from rackgate_assigner.node_replacement.unhealthy import (
    Judgement,
    PodFact,
    PodState,
    judge,
    minded,
    suspects,
)
from rackgate_assigner.node_replacement.writer import NodeWriter
from rackgate_assigner.workload.info import WorkloadRow
from rackgate_assigner.workqueue import WorkQueue

# Nodes of one rack break together, and pods of one node go together.
GATHER_S: Final = 0.1
# Between looks at pods that are all bound: the watch shows whatever happens to them.
STEADY_S: Final = 300.0
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


class _Page(msgspec.Struct):
    items: list[_Pod] = []


_decode_page = msgspec.json.Decoder(_Page).decode


class NodeFailures:
    """Follows nodes always, acts while its owner holds the Lease.

    Attributes:
        hosts: nodes by host.
        asked: by Workload, names to be replaced although their nodes are healthy.
    """

    def __init__(
        self,
        cache: Cache,
        workloads: Mapping[str, Workload],
        client: Client,
        writer: NodeWriter,
        *,
        replan: Callable[[], None],
        workers: int = 4,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            cache: rows and flavors.
            workloads: as the watch shows them, by key.
            client: lists pods.
            writer: carries out what was judged.
            replan: called when the second pass has something new to decide on.
            workers: Workloads that are looked at together.
        """
        self.hosts = Hosts()
        self.asked: dict[str, frozenset[str]] = {}
        self._cache, self._workloads = cache, workloads
        self._client, self._writer, self._replan = client, writer, replan
        self._on = cache.features.failed_node_replacement
        self._queue = WorkQueue[str]("node-failures", self._look, workers=workers)
        self._pauses = Backoff(base_s=1.0, cap_s=30.0)
        self._changed_hosts: set[str] = set()
        self._changed_keys: set[str] = set()
        self._watched: set[str] = set()
        self._poked = asyncio.Event()
        self._acting = False

    # Listeners: cheap, and the same on a standby. The cache has folded the event before.

    def node_seen(self, _before: core.Node | None, node: core.Node) -> None:
        """A node was added or changed."""
        facts = self._cache.nodes.get(node.metadata.name)
        if facts is not None:
            self._hosts_changed(self.hosts.put(facts))

    def node_gone(self, node: core.Node) -> None:
        """A node was deleted."""
        self._hosts_changed(self.hosts.drop(node.metadata.name))

    def workload_seen(self, _before: Workload | None, workload: Workload) -> None:
        """A Workload was added or changed."""
        if workload.status.admission is not None or workload.metadata.key in self._watched:
            self._key_changed(workload.metadata.key)

    def workload_gone(self, workload: Workload) -> None:
        """A Workload was deleted."""
        self._drop(workload.metadata.key)

    def pod_seen(self, before: core.Pod | None, pod: core.Pod) -> None:
        """A bound pod was added or changed; readiness says nothing about its node."""
        if before is None or _standing(before) != _standing(pod):
            self._pod_changed(pod)

    def pod_gone(self, pod: core.Pod) -> None:
        """A bound pod has ended, or is gone."""
        self._pod_changed(pod)

    def _pod_changed(self, pod: core.Pod) -> None:
        name = pod.metadata.annotations.get(names.WORKLOAD_ANNOTATION)
        if self._watched and name and (key := f"{pod.metadata.namespace}/{name}") in self._watched:
            self._key_changed(key)

    def _hosts_changed(self, changed: set[str]) -> None:
        if self._acting and changed:
            self._changed_hosts |= changed
            self._poked.set()

    def _key_changed(self, key: str) -> None:
        if self._acting:
            self._changed_keys.add(key)
            self._poked.set()

    # Work.

    async def run(self) -> None:
        """Look at everything once, then at whatever changes, until cancelled."""
        if not self._on:
            await asyncio.Event().wait()
        # A replica that died may have left pods on their way to hosts that were given up since.
        self._watched = {
            key for key, row in self._cache.workloads.items() if minded(row) and self._unready(key)
        }
        self._changed_keys = set(self._cache.workloads)
        self._acting = True
        self._poked.set()
        try:
            async with asyncio.TaskGroup() as group:
                spawn(group, self._queue.run(), "node-failures")
                spawn(group, self._gather(), "node-failures-gather")
        finally:
            self._acting = False
            self.asked.clear()
            self._watched.clear()

    async def _gather(self) -> None:
        while True:
            await self._poked.wait()
            await asyncio.sleep(GATHER_S)
            self._poked.clear()
            for key in self._affected():
                self._queue.add(key)

    def _affected(self) -> list[str]:
        """Workloads that the last changes may concern."""
        hosts, keys = self._changed_hosts, self._changed_keys
        self._changed_hosts, self._changed_keys = set(), set()
        if hosts:
            keys |= {
                key
                for key, row in self._cache.workloads.items()
                if any(
                    values[-1] in hosts
                    for part in (row.reserved.podsets if row.reserved is not None else ())
                    for values, _ in (part.topology.domains if part.topology is not None else ())
                )
            }
        return [key for key in sorted(keys) if self._matters(key)]

    def _matters(self, key: str) -> bool:
        if key in self._watched:
            return True
        row = self._cache.row(key)
        if row is None or not minded(row):
            return False
        return bool(row.unhealthy or suspects(row, self.hosts, self._cache.flavors))

    async def _look(self, key: str) -> None:
        """List the pods of one Workload, judge its hosts, and write what follows."""
        row = self._cache.row(key)
        if row is None or not minded(row) or self._pinned_by_owner(row):
            self._drop(key)
            return
        self._watched.add(key)
        pods = await self._pods(row)
        row, workload = self._cache.row(key), self._workloads.get(key)
        if row is None or workload is None or not minded(row) or key in self._cache.assumed:
            self._later(key)
            return
        found = judge(row, pods, self.hosts, self._cache.flavors)
        if self.asked.get(key, frozenset()) != found.asked:
            self.asked[key] = found.asked
            self._replan()
        await self._act(workload, found)
        if found.settled:
            self._drop(key)
            return
        if found.broken or found.doomed or found.recovered:
            self._pauses.reset(key)
        if found.steady:
            self._pauses.reset(key)
            self._queue.add_later(key, STEADY_S)
        else:
            self._later(key)

    def _pinned_by_owner(self, row: WorkloadRow) -> bool:
        """Whether no pod of this Workload could ever use another place (N4)."""
        return row.owned_by_pod and self._cache.features.skip_reassignment_for_pod_owned

    async def _act(self, workload: Workload, found: Judgement) -> None:
        """Names first: a successor of an ended pod must not be sent to the same host (U3).

        Dying in between leaves the name, or a pod outside the assignment, and both are looked at.
        Pods are ended only by a judgement of the Workload as it is stored now.
        """
        if found.broken:
            await self._writer.mark(workload, found.broken)
        elif found.doomed and not await self._writer.unchanged(workload):
            return
        for pod in found.doomed:
            try:
                await self._writer.end_pod(pod)
            except (ConflictError, NotFoundError):
                continue  # it was bound, or has gone: the next look will tell
        if found.recovered and not found.broken:
            await self._writer.unmark(workload, found.recovered)
            metrics.NODE_REPLACEMENTS.labels(result="recovered").inc(len(found.recovered))

    def _later(self, key: str) -> None:
        self._queue.add_later(key, self._pauses.next(key))

    def _drop(self, key: str) -> None:
        self._watched.discard(key)
        self.asked.pop(key, None)
        self._pauses.reset(key)

    def _unready(self, key: str) -> bool:
        workload = self._workloads.get(key)
        ready = names.WorkloadCondition.PODS_READY
        return workload is not None and not workload.is_true(ready)

    async def _pods(self, row: WorkloadRow) -> list[PodFact]:
        """The pods of the Workload's job, as stored now."""
        owner = self._workloads[row.key].metadata.controller if row.key in self._workloads else None
        selector = names.PODSET_LABEL
        if owner is not None and owner.kind == "Job":
            selector = f"{_JOB_UID_LABEL}={owner.uid}"
        params = {"labelSelector": selector}
        pods: list[PodFact] = []
        async for page in self._client.list_pages(PODS.path(row.namespace), params):
            pods += [_fact(pod) for pod in _decode_page(page).items if _is_of(pod.metadata, row)]
        return pods


def _standing(pod: core.Pod) -> tuple[object, ...]:
    return pod.metadata.uid, pod.metadata.deletion_timestamp, pod.spec.node_name


def _is_of(meta: core.Meta, row: WorkloadRow) -> bool:
    owner = meta.controller
    named = meta.annotations.get(names.WORKLOAD_ANNOTATION) == row.name
    return named and owner is not None and owner.uid == row.owner_uid


def _fact(pod: _Pod) -> PodFact:
    meta, spec = pod.metadata, pod.spec
    scheduled: Any = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
    return PodFact(
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
