"""Names what has no effect in objects that exist: an Event for each, and one log line for all.

The webhook warns whoever writes such an object. This is for those that were written without it, for
example while Kueue managed them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
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
from rackgate.wire import kueue
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.watches import Object, Watch, Watches

_BATCH: Final = 500  # objects, before other tasks run
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
        *,
        admission_fair_sharing: bool,
    ) -> None:
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
            await self._report_stored()
            await asyncio.Event().wait()
        finally:
            self._acting = False

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
            if self._acting and (before is None or _was_edited(before, item)):
                self._record(watch.resource, item)

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
