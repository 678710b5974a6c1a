"""Acts on the answers of admission checks: two-phase admission (KEP-993).

Level-triggered: an action is planned from what the watch shows, bound to that version, and retried
with backoff if it is rejected. Nothing is remembered between actions.
"""

from __future__ import annotations

from collections.abc import Mapping

from rackgate.api.names import EvictionReason
from rackgate.api.resources import WORKLOADS
from rackgate.api.timestamps import rfc3339
from rackgate.runtime import clock
from rackgate.wire.kueue import ClusterQueue, Workload
from rackgate_assigner.admission_checks.plan import (
    AdmitAfterChecks,
    RejectWorkload,
    RetryChecks,
    WriteChecks,
    plan_checks,
)
from rackgate_assigner.assumed_writes import AssumedWrites
from rackgate_assigner.quota.queues import ClusterQueueInfo
from rackgate_assigner.scheduler.writer import WorkloadWriter
from rackgate_assigner.workqueue import WorkQueue


class AdmissionCheckController:
    """Keeps states in sync with ClusterQueues; admits, evicts or deactivates by the answers."""

    def __init__(
        self,
        workloads: Mapping[str, Workload],
        cluster_queues: Mapping[str, ClusterQueueInfo],
        writer: WorkloadWriter,
        *,
        workers: int = 8,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            workloads: as the watch shows them, by key.
            cluster_queues: by name.
            writer: for Workloads.
            workers: Workloads that are written at the same time.
        """
        self._workloads, self._cluster_queues = workloads, cluster_queues
        self._writer = writer
        self._assumed_writes = AssumedWrites()
        self.queue = WorkQueue[str]("admission-checks", self._reconcile, workers=workers)

    async def run(self) -> None:
        """Reconcile all Workloads once, then every change, until cancelled."""
        self._assumed_writes.clear()
        await self.queue.run(list(self._workloads))

    def on_workload_upsert(self, _before: Workload | None, workload: Workload) -> None:
        """A Workload was added or changed."""
        if workload.status.admission is not None:
            self.queue.add(workload.metadata.key)

    def on_workload_delete(self, workload: Workload) -> None:
        """A Workload was deleted."""
        self._assumed_writes.forget(WORKLOADS.kind, workload.metadata.key)

    def on_cluster_queue_upsert(self, before: ClusterQueue | None, queue: ClusterQueue) -> None:
        """A ClusterQueue was added or changed: other checks may apply to its Workloads."""
        if (
            before is not None
            and before.spec.admission_checks_strategy == queue.spec.admission_checks_strategy
        ):
            return
        for key, workload in self._workloads.items():
            admission = workload.status.admission
            if admission is not None and admission.cluster_queue == queue.metadata.name:
                self.queue.add(key)

    async def _reconcile(self, key: str) -> None:
        workload = self._workloads.get(key)
        if workload is None or self._assumed_writes.is_stale(WORKLOADS.kind, workload.metadata):
            return
        admission = workload.status.admission
        found = self._cluster_queues.get(admission.cluster_queue) if admission is not None else None
        rules = found.checks if found is not None else None
        match plan_checks(workload, rules, rfc3339(clock.now())):
            case WriteChecks(states, changes):
                answer = await self._writer.write_checks(workload, states, changes)
                if key in self._workloads:
                    self._assumed_writes.written(WORKLOADS.kind, workload.metadata, answer.metadata)
            case AdmitAfterChecks(states):
                await self._writer.admit_after_checks(workload, states)
            case RetryChecks(message):
                await self._writer.evict(workload, EvictionReason.ADMISSION_CHECK, message)
            case RejectWorkload(message):
                await self._writer.reject(workload, message)
