"""Makes the Workloads of gangs of objects whose pods are linked, and keeps their counts.

Level-triggered, as the controller of jobs: an action is planned from what the watches show, and
bound to that version. The name of a Workload of gangs follows from its object, so an event of
either leads to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from rackgate.gang.linked import linked_body, linked_name
from rackgate.jobframework.registry import LINKED_KINDS
from rackgate.kube.errors import (
    BadRequestError,
    ForbiddenError,
    PayloadTooLargeError,
    UnprocessableError,
)
from rackgate.runtime import clock
from rackgate_assigner.assumed_writes import AssumedCreations
from rackgate_assigner.gangs.gang_workload import GangWorkload
from rackgate_assigner.gangs.holds import HoldReason
from rackgate_assigner.gangs.index import JobKey
from rackgate_assigner.gangs.linked import (
    CreateLinked,
    DeleteLinked,
    LinkedObject,
    NameTaken,
    PatchLinked,
    plan_linked,
)
from rackgate_assigner.gangs.status.writer import GangWriter
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.workqueue import WorkQueue

_REFUSED: Final = (UnprocessableError, BadRequestError, ForbiddenError, PayloadTooLargeError)

log = structlog.get_logger()


class LinkedController:
    """Follows objects of the linked kinds that have a queue label."""

    def __init__(
        self,
        objects: Mapping[str, Mapping[str, LinkedObject]],
        gangs: Mapping[str, GangWorkload],
        writer: GangWriter,
        reporter: Reporter,
        *,
        rev_n: bool,
        workers: int = 4,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            objects: by kind, then by `namespace/name`.
            gangs: Workloads of gangs, by `namespace/name`.
            writer: for Workloads of gangs.
            reporter: for Events.
            rev_n: gate WorkloadRevN.
            workers: objects that are reconciled at the same time.
        """
        self._objects, self._gangs, self._rev_n = objects, gangs, rev_n
        self._writer, self._report = writer, reporter
        self.queue = WorkQueue[JobKey]("linked", self._reconcile, workers=workers)
        self._by_own: dict[str, JobKey] = {}
        self._created = AssumedCreations[None]()
        self._reported: dict[JobKey, tuple[str, str]] = {}

    async def run(self) -> None:
        """Reconcile all objects once, then every change, until cancelled."""
        self._created.clear()
        await self.queue.run(
            JobKey(kind, name) for kind, store in self._objects.items() for name in store
        )

    def on_upsert(self, kind: str, _before: LinkedObject | None, found: LinkedObject) -> None:
        """An object was added or changed."""
        key = JobKey(kind, found.metadata.key)
        self._by_own[_own_key(key, found)] = key
        self.queue.add(key)

    def on_delete(self, kind: str, found: LinkedObject) -> None:
        """An object was deleted, or lost its queue label."""
        key = JobKey(kind, found.metadata.key)
        self._by_own.pop(_own_key(key, found), None)
        self._created.forget(found.metadata.uid)
        self._reported.pop(key, None)

    def on_gang_change(self, gang: GangWorkload) -> None:
        """A Workload of gangs was added, changed or deleted."""
        owner, key = gang.metadata.controller, self._by_own.get(gang.metadata.key)
        if owner is not None:
            self._created.forget(owner.uid)
        if key is not None:
            self.queue.add(key)

    async def _reconcile(self, key: JobKey) -> None:
        found = self._objects.get(key.kind, {}).get(key.name)
        if found is None:
            return
        kind = LINKED_KINDS[key.kind]
        action = plan_linked(kind, found, self._gangs.get(_own_key(key, found)))
        if not isinstance(action, NameTaken):
            self._reported.pop(key, None)
        match action:
            case CreateLinked():
                await self._create(key, found)
            case PatchLinked(workload, operations):
                await self._writer.patch(workload.metadata, operations)
                log.info("gang_workload_changed", workload=workload.metadata.key)
            case DeleteLinked(workload, why):
                await self._writer.delete(workload.metadata)
                log.info("gang_workload_deleted", workload=workload.metadata.key, reason=why)
            case NameTaken(workload):
                self._report_taken(key, found, workload)

    async def _create(self, key: JobKey, found: LinkedObject) -> None:
        """Create the Workload of gangs, unless a creation is not in the watch yet."""
        kind, meta, now = LINKED_KINDS[key.kind], found.metadata, clock.monotonic()
        wait_s = self._created.wait_s(meta.uid, now)
        if wait_s > 0:
            self.queue.add_later(key, wait_s)
            return
        self._created.assume(meta.uid, now)
        try:
            body = linked_body(kind, meta, found.gang, rev_n=self._rev_n)
            created = await self._writer.create(body)
        except _REFUSED as error:
            self._created.forget(meta.uid)
            note = f"the Workload of gangs was rejected: {error.message}"
            self._report.linked(kind.resource, meta, "GangWorkloadRefused", note)
            raise
        except BaseException:
            self._created.forget(meta.uid)
            raise
        if created is None:
            return  # the watch will show whose it is
        log.info("gang_workload_created", workload=created.key, object=meta.key)
        note = f"made for the {kind.name} {meta.name}, and deleted with it"
        self._report.gang(created, "DefaultCreated", note)

    def _report_taken(self, key: JobKey, found: LinkedObject, workload: GangWorkload) -> None:
        said = (found.metadata.uid, workload.metadata.uid)
        if self._reported.get(key) == said:
            return
        self._reported[key] = said
        kind = LINKED_KINDS[key.kind]
        note = (
            f'the Workload of gangs "{workload.metadata.name}" has another owner, or none: it is'
            f" used as it is; delete it, and it is made again for this {kind.name}"
        )
        self._report.linked(kind.resource, found.metadata, HoldReason.NAME_TAKEN, note)


def _own_key(key: JobKey, found: LinkedObject) -> str:
    own = linked_name(LINKED_KINDS[key.kind], found.metadata.name)
    return f"{found.metadata.namespace}/{own}"
