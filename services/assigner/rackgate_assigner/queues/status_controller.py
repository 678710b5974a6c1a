"""Status of ClusterQueues, LocalQueues and Cohorts: written when the watch shows another one.

Writes are batched and have a separate client budget, so they never delay admissions. The
counts of a queue that changes all the time are written less and less often (`Spacing`), its
conditions at once. Gauges are computed at each scrape, see `queues.metrics`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import structlog

from rackgate.api.names import FieldManager
from rackgate.api.resources import CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES, Resource
from rackgate.api.timestamps import rfc3339
from rackgate.features import Features
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError, NotFoundError
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.batching import Batcher
from rackgate.runtime.tasks import spawn
from rackgate.wire.core import Meta
from rackgate.wire.kueue import ClusterQueue, Cohort, LocalQueue, QueueStatus, Workload
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.queues.status import (
    cluster_queue_status,
    cohort_status,
    conditions_differ,
    local_queue_status,
    share_differs,
    status_body,
    status_differs,
)
from rackgate_assigner.rate_limits import Spacing
from rackgate_assigner.workload.status import status_apply

log = structlog.get_logger()


class Key(NamedTuple):
    """A queue by kind and `namespace/name` or name."""

    kind: str
    name: str


class QueueStatusController:
    """Keeps the status of all queues equal to what the cache counts."""

    def __init__(
        self,
        cache: Cache,
        cluster_queues: Mapping[str, ClusterQueue],
        local_queues: Mapping[str, LocalQueue],
        cohorts: Mapping[str, Cohort],
        client: Client,
        *,
        features: Features,
        fair_sharing: bool = False,
        min_interval_s: float = 0.5,
        max_interval_s: float = 10.0,
    ) -> None:
        self._cache, self._client = cache, client
        self._cluster_queues, self._local_queues = cluster_queues, local_queues
        self._cohorts = cohorts
        self._features, self._fair_sharing = features, fair_sharing
        self._dirty = Batcher[Key](min_interval_s)
        self._spacing = Spacing[Key](min_interval_s, max_interval_s)
        self._delayed: set[Key] = set()
        # Queues whose status was written without a share: what is there is not ours.
        self._dropped_shares: set[Key] = set()
        self._backoff = Backoff(base_s=0.5, cap_s=60.0)
        self._open = False
        self.writes = 0

    def mark_workload(self, workload: Workload) -> None:
        """A Workload changed or was deleted: the status of its queues may change."""
        namespace, queue = workload.metadata.namespace, workload.spec.queue_name
        local = f"{namespace}/{queue}"
        self._mark(Key(LOCAL_QUEUES.kind, local))
        names = set()
        if (found := self._local_queues.get(local)) is not None:
            names.add(found.spec.cluster_queue)
        if workload.status.admission is not None:
            names.add(workload.status.admission.cluster_queue)
        for name in names:
            self.mark_cluster_queue(name)

    def _mark_cohorts(self, cluster_queue: str) -> None:
        """The shares of all Cohorts above a ClusterQueue may change with its usage."""
        if not (self._open and self._fair_sharing):
            return
        node = self._cache.quota_usage().tree.queues.get(cluster_queue)
        for cohort in node.path[1:] if node is not None else ():
            if cohort.name in self._cohorts:
                self._mark(Key(COHORTS.kind, cohort.name))

    def mark_cluster_queue(self, name: str) -> None:
        """The usage of a ClusterQueue may have changed, and the shares above it."""
        self._mark(Key(CLUSTER_QUEUES.kind, name))
        self._mark_cohorts(name)

    def mark(self, kind: str, name: str) -> None:
        """The status of one queue may have changed."""
        self._mark(Key(kind, name))

    def mark_all(self) -> None:
        """The status of all queues may have changed."""
        for name in self._cluster_queues:
            self._mark(Key(CLUSTER_QUEUES.kind, name))
        for key in self._local_queues:
            self._mark(Key(LOCAL_QUEUES.kind, key))
        for name in self._cohorts:
            self._mark(Key(COHORTS.kind, name))

    def _mark(self, key: Key) -> None:
        # A standby would only collect names; `run` starts with all queues.
        if self._open:
            self._dirty.add(key)

    async def run(self) -> None:
        """Write until cancelled. Only the holder of the Lease may call this."""
        self._open = True
        self._delayed.clear()
        self.mark_all()
        try:
            while True:
                batch = await self._dirty.take()
                async with asyncio.TaskGroup() as group:
                    for key in batch:
                        spawn(group, self._update(key), f"status {key.name}")
        finally:
            self._open = False

    def gone(self, kind: str, meta: Meta) -> None:
        """A queue was deleted."""
        self._backoff.reset(Key(kind, meta.key))
        self._spacing.forget(Key(kind, meta.key))
        self._dropped_shares.discard(Key(kind, meta.key))

    async def _update(self, key: Key) -> None:
        try:
            await self._write(key)
        except NotFoundError:
            return
        except KubeError as error:
            level = log.debug if error.status == 409 else log.warning
            level(
                "queue_status_write_rejected", kind=key.kind, name=key.name, error=str(error)[:300]
            )
            self._retry_later(key)
        except Exception:
            log.exception("queue_status_failed", kind=key.kind, name=key.name)
            self._retry_later(key)
        else:
            self._backoff.reset(key)

    def _retry_later(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(self._backoff.next(key), self._mark, key)

    async def _write(self, key: Key) -> None:
        if key.kind == CLUSTER_QUEUES.kind:
            queue = self._cluster_queues.get(key.name)
            if queue is None:
                return
            wanted = cluster_queue_status(
                self._cache, key.name, self._features, fair_sharing=self._fair_sharing
            )
            await self._apply(key, CLUSTER_QUEUES, queue.metadata, queue.status, wanted)
        elif key.kind == COHORTS.kind:
            await self._write_cohort(key)
        else:
            local = self._local_queues.get(key.name)
            if local is None:
                return
            wanted = local_queue_status(self._cache, key.name, self._features)
            await self._apply(key, LOCAL_QUEUES, local.metadata, local.status, wanted)

    async def _write_cohort(self, key: Key) -> None:
        cohort = self._cohorts.get(key.name)
        if cohort is None:
            return
        wanted = cohort_status(self._cache, key.name) if self._fair_sharing else {}
        if not share_differs(cohort.status, wanted, dropped=key in self._dropped_shares):
            return
        now = clock.monotonic()
        wait_s = self._spacing.wait_s(key, now)
        if wait_s > 0:
            self._delay(key, wait_s)
            return
        meta = cohort.metadata
        path = COHORTS.path(None, meta.name, "status")
        await self._client.apply(path, status_apply(COHORTS, meta, wanted), FieldManager.QUEUES)
        self.writes += 1
        if key.name in self._cohorts:
            self._written(key, wanted, now)

    async def _apply(
        self,
        key: Key,
        resource: Resource,
        meta: Meta,
        present: QueueStatus,
        wanted: Mapping[str, Any],
    ) -> None:
        if not status_differs(present, wanted, share_dropped=key in self._dropped_shares):
            return
        now = clock.monotonic()
        wait_s = self._spacing.wait_s(key, now)
        if wait_s > 0 and not conditions_differ(present, wanted):
            self._delay(key, wait_s)
            return
        status = status_body(present, wanted, meta.generation, rfc3339(clock.now()))
        path = resource.path(meta.namespace or None, meta.name, "status")
        await self._client.apply(path, status_apply(resource, meta, status), FieldManager.QUEUES)
        self.writes += 1
        # The watch may have shown the deletion before the response arrived.
        if key.name in self._queues(key.kind):
            self._written(key, wanted, now)

    def _written(self, key: Key, status: Mapping[str, Any], now: float) -> None:
        self._spacing.written(key, now)
        if "fairSharing" not in status:
            self._dropped_shares.add(key)

    def _queues(self, kind: str) -> Mapping[str, ClusterQueue | LocalQueue]:
        return self._cluster_queues if kind == CLUSTER_QUEUES.kind else self._local_queues

    def _delay(self, key: Key, wait_s: float) -> None:
        """Compare a queue again after a delay, however often it changes until then."""
        if key not in self._delayed:
            self._delayed.add(key)
            asyncio.get_running_loop().call_later(wait_s, self._on_delay_over, key)

    def _on_delay_over(self, key: Key) -> None:
        self._delayed.discard(key)
        self._mark(key)
