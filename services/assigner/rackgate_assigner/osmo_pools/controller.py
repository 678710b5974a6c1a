"""Keeps one KAI Topology for each OSMO Pool: reads both, plans an action, executes it.

Level-triggered: every event of a Pool or a Topology reconciles both, and each write is bound to the
version that was read. See docs/design/races/osmo.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import structlog

from rackgate.api.names import FieldManager, PoolReason
from rackgate.api.resources import KAI_TOPOLOGIES, OSMO_POOLS
from rackgate.api.timestamps import rfc3339
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import (
    ConflictError,
    KubeError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    TransportError,
    UnprocessableError,
)
from rackgate.runtime import clock
from rackgate.wire.core import Meta
from rackgate.wire.osmo import KaiTopology, Pool
from rackgate_assigner import metrics
from rackgate_assigner.osmo_pools.plan import (
    Action,
    AdoptTopology,
    CreateTopology,
    DeleteTopology,
    PoolState,
    ReplaceTopology,
    SyncedCondition,
    plan_pool,
    pool_name,
    topology_name,
)
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.watches import PoolWatches
from rackgate_assigner.workload.conditions import (
    FALSE,
    TRUE,
    Change,
    condition_list,
    differs,
    truncate,
)
from rackgate_assigner.workload.status import status_apply
from rackgate_assigner.workqueue import WorkQueue

SYNCED: Final = "Synced"
WORKERS: Final = 4
# Transient errors, which say nothing about the Topology.
_TRANSIENT: Final = (
    ConflictError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    TransportError,
)

log = structlog.get_logger()


def start_pool_controller(
    watches: PoolWatches, client: Client, reporter: Reporter
) -> PoolController:
    """A controller that listens to the watches."""
    pools, topologies = watches.pools, watches.topologies
    controller = PoolController(watches, client, reporter)
    pools.add_listener(lambda _before, pool: controller.pool_changed(pool), controller.pool_changed)
    topologies.add_listener(
        lambda _before, item: controller.topology_changed(item), controller.topology_changed
    )
    for kind in (pools, topologies):
        kind.add_served_listener(controller.kinds_changed)
    return controller


class PoolController:
    """Creates, replaces and removes Topologies. Callbacks may run on standbys, too."""

    def __init__(self, watches: PoolWatches, client: Client, reporter: Reporter) -> None:
        """Prepare; `run` does the work.

        Args:
            watches: of Pools, and of Topologies of all owners.
            client: for writes.
            reporter: for Events.
        """
        self.queue = WorkQueue[str]("osmo-pools", self._reconcile, workers=WORKERS)
        self._watches = watches
        self._pools: Mapping[str, Pool] = watches.pools.store
        self._topologies: Mapping[str, KaiTopology] = watches.topologies.store
        self._client, self._report = client, reporter
        self._synced: dict[str, bool] = {}

    async def run(self) -> None:
        """Reconcile everything once, then every change, until cancelled.

        Nothing is decided before both kinds are listed, or known not to be served. Only this
        controller depends on that: the assigner works without access to them.
        """
        await self._watches.synced()
        try:
            await self.queue.run(self._all())
        finally:
            self._synced.clear()
            metrics.OSMO_POOLS.clear()

    def pool_changed(self, pool: Pool) -> None:
        """A Pool was added, changed or deleted."""
        self.queue.add(pool.metadata.name)

    def topology_changed(self, topology: KaiTopology) -> None:
        """A Topology was added, changed or deleted, by any client."""
        name = pool_name(topology.metadata.name)
        if name is not None:
            self.queue.add(name)

    def kinds_changed(self) -> None:
        """One of the two kinds is served now, or no longer served."""
        for name in self._all():
            self.queue.add(name)

    def _all(self) -> set[str]:
        named = {pool_name(name) for name in self._topologies}
        return {*self._pools, *(name for name in named if name is not None)}

    async def _reconcile(self, name: str) -> None:
        pools, topologies = self._watches.served()
        pool = self._pools.get(name)
        topology = self._topologies.get(topology_name(name))
        plan = plan_pool(PoolState(name, pool, topology, pools, topologies))
        self._update_gauge(name, plan.condition)  # first: a rejected write raises here
        if plan.action is not None:
            await self._execute(pool, name, plan.action)
        elif plan.condition is not None and pool is not None:
            await self._write_condition(pool, plan.condition)

    def _update_gauge(self, name: str, condition: SyncedCondition | None) -> None:
        """Update the gauge; a Pool with an open action counts as not synced."""
        if name in self._pools:
            self._synced[name] = condition is not None and condition.synced
        else:
            self._synced.pop(name, None)
        found = list(self._synced.values())
        for synced in (True, False):
            metrics.OSMO_POOLS.labels(synced=str(synced).lower()).set(found.count(synced))

    async def _execute(self, pool: Pool | None, name: str, action: Action) -> None:
        """Execute an action; the watch shows the result, and the next reconcile reports it."""
        try:
            await self._execute_action(pool, name, action)
        except _TRANSIENT:
            raise
        except KubeError as error:
            # A patch whose `test` failed: the Topology has changed.
            outdated = isinstance(action, AdoptTopology) and isinstance(error, UnprocessableError)
            if pool is not None and not outdated:
                message = f'Topology "{topology_name(name)}" was not written: {error.message}'
                condition = SyncedCondition(
                    False, PoolReason.TOPOLOGY_REFUSED, message, pool.status.topology
                )
                await self._write_condition(pool, condition)
            raise

    async def _execute_action(self, pool: Pool | None, name: str, action: Action) -> None:
        shown_name = topology_name(name)
        match action:
            case CreateTopology(body):
                await self._create(body)
                self._report_event(
                    pool, name, "TopologyCreated", f'created Topology "{shown_name}"'
                )
            case ReplaceTopology(old, body):
                await self._dry_run(body)
                await self._delete(old)
                # After a crash here no Topology exists, and the next reconcile creates it.
                await self._create(body)
                self._report_event(
                    pool, name, "TopologyReplaced", f'replaced Topology "{shown_name}"'
                )
            case AdoptTopology(old, operations):
                body_of = msgspec.json.encode(operations)
                path = KAI_TOPOLOGIES.path(name=old.name)
                await self._client.patch(path, body_of, PatchType.JSON)
                note = f'set the label and owner of the pool on Topology "{shown_name}"'
                self._report_event(pool, name, "TopologyMarked", note)
            case DeleteTopology(old, orphan):
                if orphan and not await self._is_gone(name):
                    return  # its event has not arrived yet
                await self._delete(old)
                self._report_event(
                    pool, name, "TopologyRemoved", f'removed Topology "{shown_name}"'
                )

    async def _create(self, body: dict[str, Any]) -> None:
        await self._client.create(KAI_TOPOLOGIES.path(), msgspec.json.encode(body))

    async def _dry_run(self, body: dict[str, Any]) -> None:
        """Let the API server validate it under another name: if rejected, the old one is kept."""
        metadata = {**body["metadata"], "generateName": "rackgate-dry-run-"}
        del metadata["name"]
        dry_run_body = msgspec.json.encode({**body, "metadata": metadata})
        await self._client.create(KAI_TOPOLOGIES.path(), dry_run_body, {"dryRun": "All"})

    async def _delete(self, old: Meta) -> None:
        """Delete exactly this version of the object; it may already be deleted."""
        known = {"uid": old.uid, "resourceVersion": old.resource_version}
        options = {"propagationPolicy": "Background", "preconditions": known}
        path = KAI_TOPOLOGIES.path(name=old.name)
        try:
            await self._client.delete(path, msgspec.json.encode(options))
        except NotFoundError:
            return

    async def _is_gone(self, name: str) -> bool:
        """Whether the API server has no such Pool; a list distinguishes an unknown kind."""
        params = {"fieldSelector": f"metadata.name={name}", "limit": "1"}
        answer = await self._client.get(OSMO_POOLS.path(), params)
        return not msgspec.json.decode(answer)["items"]

    async def _write_condition(self, pool: Pool, condition: SyncedCondition) -> None:
        """Write the condition if it differs; a Warning if it has become another one."""
        meta, present = pool.metadata, pool.status
        flag = TRUE if condition.synced else FALSE
        change = Change(SYNCED, flag, condition.reason, truncate(condition.message))
        same = (present.topology, present.observed_generation) == (
            condition.topology,
            meta.generation,
        )
        if same and not differs(present.conditions, [change]):
            return
        listed = condition_list(
            present.conditions,
            [SYNCED],
            [change],
            now=rfc3339(clock.now()),
            generation=meta.generation,
        )
        status: dict[str, Any] = {"conditions": listed, "observedGeneration": meta.generation}
        if condition.topology:
            status["topology"] = condition.topology
        path = OSMO_POOLS.path(name=meta.name, sub="status")
        await self._client.apply(path, status_apply(OSMO_POOLS, meta, status), FieldManager.OSMO)
        before = next((c for c in present.conditions if c.type == SYNCED), None)
        if not condition.synced and (before is None or before.reason != condition.reason):
            self._report.pool(meta, condition.reason, change.message, warning=True)
            log.warning("pool_not_synced", pool=meta.name, reason=condition.reason)

    def _report_event(self, pool: Pool | None, name: str, reason: str, note: str) -> None:
        log.info("topology_written", pool=name, reason=reason, note=note)
        if pool is not None:
            self._report.pool(pool.metadata, reason, note)
