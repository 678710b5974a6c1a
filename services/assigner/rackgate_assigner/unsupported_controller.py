"""Names what has no effect in objects that exist: an Event for each, and one log line for all.

The webhook warns whoever writes such an object. This is for those that were written without it, for
example while Kueue managed them. The condition UnsupportedFields of a Workload comes with its other
conditions. It is updated here when its job or its ClusterQueue is edited, and no decision follows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import structlog

from rackgate.api.names import WorkloadCondition
from rackgate.api.resources import Resource
from rackgate.api.unsupported import (
    Unsupported,
    admission_fair_sharing_fields,
    unsupported_fields,
)
from rackgate.features import Features
from rackgate.jobframework.managed import is_child_of_job
from rackgate.jobframework.registry import enabled_elastic_kinds
from rackgate.runtime.tasks import spawn
from rackgate.wire import kueue
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.scheduler.writer import WorkloadWriter
from rackgate_assigner.watches import Object, Watch, Watches
from rackgate_assigner.workqueue import WorkQueue

_BATCH: Final = 500  # objects, before other tasks run
_CONDITION: Final = WorkloadCondition.UNSUPPORTED_FIELDS
_MAX_PATHS: Final = 20  # in the log line
# Events about stored objects: so many at once, then one in each interval. Events of other
# controllers must find room in the queue.
_AT_ONCE: Final = 100
_INTERVAL_S: Final = 0.1


log = structlog.get_logger()


class UnsupportedFieldController:
    """Records an Event for each object with fields without effect, while this replica acts."""

    def __init__(
        self,
        watches: Watches,
        report: Reporter,
        features: Features,
        writer: WorkloadWriter,
        workloads_of: Callable[[str], Iterable[str]],
        *,
        admission_fair_sharing: bool,
    ) -> None:
        """Listen to all kinds.

        Args:
            watches: of the objects.
            report: records Events.
            features: feature gates.
            writer: of the condition.
            workloads_of: keys of the Workloads of a job, by its uid.
            admission_fair_sharing: whether it is on.
        """
        self._writer, self._workloads_of = writer, workloads_of
        self._workloads, self._local_queues = watches.workloads, watches.local_queues
        self._queue: WorkQueue[str] = WorkQueue("unsupported", self._update, workers=1)
        self._report, self._admission_fair_sharing = report, admission_fair_sharing
        self._elastic_kinds = enabled_elastic_kinds(features)
        self._acting = False
        self._watches: tuple[Watch[Any], ...] = (
            watches.cluster_queues,
            watches.local_queues,
            watches.checks,
            *watches.kinds.values(),
            watches.workloads,
        )
        for watch in self._watches:
            self._listen(watch)

    async def run(self) -> None:
        """Name what was set before this replica acted, then what changes, until cancelled."""
        self._acting = True
        try:
            async with asyncio.TaskGroup() as group:
                spawn(group, self._queue.run(self._with_condition()), "unsupported-conditions")
                await self._report_stored()
        finally:
            self._acting = False

    def _with_condition(self) -> list[str]:
        """Workloads whose condition may be of an edit that no replica saw."""
        found = self._workloads.store.items()
        return [key for key, one in found if one.condition(_CONDITION) is not None]

    async def _update(self, key: str) -> None:
        workload = self._workloads.store.get(key)
        if (
            workload is None
            or workload.metadata.deletion_timestamp is not None
            or workload.is_true(WorkloadCondition.FINISHED)
            or not workload.status.conditions  # the first write has it too
        ):
            return
        await self._writer.update_unsupported(workload)

    def _concerned(self, before: Object, item: Object) -> Iterator[str]:
        """Keys of the Workloads whose condition an edit may change."""
        if isinstance(item, kueue.Workload):
            yield item.metadata.key
        elif isinstance(item, kueue.ClusterQueue) and isinstance(before, kueue.ClusterQueue):
            if (
                before.spec.concurrent_admission_policy is None
                or item.spec.concurrent_admission_policy is None
            ):
                yield from self._workloads_in(item.metadata.name)
        elif not isinstance(item, kueue.LocalQueue | kueue.AdmissionCheck):
            yield from self._workloads_of(item.metadata.uid)

    def _workloads_in(self, cluster_queue: str) -> Iterator[str]:
        queues = {
            key
            for key, one in self._local_queues.store.items()
            if one.spec.cluster_queue == cluster_queue
        }
        for key, workload in self._workloads.store.items():
            if f"{workload.metadata.namespace}/{workload.spec.queue_name}" in queues:
                yield key

    async def _report_stored(self) -> None:
        paths: Counter[str] = Counter()
        concerned: list[tuple[Watch[Any], str]] = []
        for watch in self._watches:
            for count, (key, item) in enumerate(list(watch.store.items()), start=1):
                found = self._find(watch.resource, item)
                paths.update(f"{watch.resource.kind} {one.path}" for one in found)
                if found:
                    concerned.append((watch, key))
                if count % _BATCH == 0:
                    await asyncio.sleep(0)
        if paths:
            log.warning("unsupported_fields_found", objects=dict(paths.most_common(_MAX_PATHS)))
        for number, (watch, key) in enumerate(concerned):
            if number >= _AT_ONCE:
                await asyncio.sleep(_INTERVAL_S)
            if (item := watch.store.get(key)) is not None:
                self._record(watch.resource, item)

    def _listen(self, watch: Watch[Any]) -> None:
        def upserted(before: Object | None, item: Object) -> None:
            if not self._acting or (before is not None and not _was_edited(before, item)):
                return
            self._record(watch.resource, item)
            for key in () if before is None else self._concerned(before, item):
                self._queue.add(key)

        watch.add_listener(upserted)

    def _find(self, resource: Resource, item: Object) -> list[Unsupported]:
        manifest = _manifest_of(item)
        found = unsupported_fields(resource.kind, manifest, elastic_kinds=self._elastic_kinds)
        if not self._admission_fair_sharing:
            found += admission_fair_sharing_fields(resource.kind, manifest)
        return found

    def _record(self, resource: Resource, item: Object) -> None:
        found = self._find(resource, item)
        if found:
            note = "; ".join(str(one) for one in found)
            self._report.configuration(resource, item.metadata, "UnsupportedField", note)


def _was_edited(before: Object, item: Object) -> bool:
    """Whether spec, labels or annotations changed; a change of metadata keeps the generation."""
    old, new = before.metadata, item.metadata
    return (old.generation, old.labels, old.annotations) != (
        new.generation,
        new.labels,
        new.annotations,
    )


def _manifest_of(item: Object) -> Mapping[str, Any]:
    """What `unsupported_fields` reads; empty for objects that are not managed or have ended."""
    if isinstance(item, kueue.ClusterQueue | kueue.LocalQueue | kueue.AdmissionCheck):
        manifest: dict[str, Any] = msgspec.to_builtins(item)
        return manifest
    if is_child_of_job(item.metadata):
        return {}
    metadata = {"labels": item.metadata.labels, "annotations": item.metadata.annotations}
    if not isinstance(item, kueue.Workload):
        return {"metadata": metadata}  # templates stay raw: the webhook reads them
    if item.is_true(WorkloadCondition.FINISHED):
        return {}
    return {"metadata": metadata, "spec": {"preemptionGates": list(item.spec.preemption_gates)}}
