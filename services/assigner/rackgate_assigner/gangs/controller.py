"""Makes, adopts and deletes Workloads of gangs for jobs, and reports what holds a job.

Level-triggered: an action is planned from what the watches show, bound to that version, and retried
with backoff if it is rejected. Nothing is remembered but which of our creations the watch has not
shown yet, and what was reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from rackgate.api import names
from rackgate.gang.lifecycle import (
    child_gang_body,
    gang_workload_body,
    may_adopt,
    own_name,
    owner_reference,
)
from rackgate.jobframework.generic_job import JobLike
from rackgate.jobframework.registry import JOB, kind_of
from rackgate.kube.errors import (
    BadRequestError,
    ForbiddenError,
    PayloadTooLargeError,
    UnprocessableError,
)
from rackgate.runtime import clock
from rackgate.wire.batch import Job
from rackgate_assigner.assumed_writes import AssumedCreations
from rackgate_assigner.gangs.child_jobs import ChildGang, ChildJobGangs
from rackgate_assigner.gangs.gang_workload import GangWorkload
from rackgate_assigner.gangs.holds import Hold, HoldReason, is_owned_by
from rackgate_assigner.gangs.index import GangIndex, JobKey, key_of
from rackgate_assigner.gangs.plan import (
    AdoptGangWorkload,
    CreateGangWorkload,
    DeleteGangWorkload,
    GangJob,
    plan_gang,
)
from rackgate_assigner.gangs.status.writer import GangWriter
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.workqueue import WorkQueue

# What a controller of its own, or the job's own Workload, reports.
_NOT_REPORTED: Final = (HoldReason.WORKLOAD_MISSING,)
_REFUSED: Final = (UnprocessableError, BadRequestError, ForbiddenError, PayloadTooLargeError)

log = structlog.get_logger()


class GangController:
    """Follows the jobs that have gangs."""

    def __init__(
        self,
        index: GangIndex,
        jobs: Mapping[str, Mapping[str, JobLike]],
        writer: GangWriter,
        reporter: Reporter,
        *,
        live_pods: Callable[[str], int],
        children: ChildJobGangs | None = None,
        workers: int = 8,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            index: which job has which Workload of gangs.
            jobs: by kind, then by `namespace/name`.
            writer: for Workloads of gangs.
            reporter: for Events.
            live_pods: number of live pods of a job, by its uid.
            children: child Jobs that have Workloads of gangs of their own.
            workers: jobs that are reconciled at the same time.
        """
        self._index, self._jobs, self._writer = index, jobs, writer
        self._report, self._live_pods, self._children = reporter, live_pods, children
        self.queue = WorkQueue[JobKey]("gangs", self._reconcile, workers=workers)
        self._created = AssumedCreations[None]()
        self._reported: dict[JobKey, tuple[str, Hold]] = {}

    async def run(self) -> None:
        """Reconcile all jobs once, then every change, until cancelled."""
        self._created.clear()
        jobs = [JobKey(kind, name) for kind, store in self._jobs.items() for name in store]
        children = self._children.keys() if self._children is not None else ()
        await self.queue.run([*jobs, *(JobKey(JOB.name, key) for key in children)])

    def on_job_delete(self, job: JobLike) -> None:
        """A job was deleted."""
        self._created.forget(job.metadata.uid)
        self._reported.pop(key_of(job), None)

    def on_child_upsert(self, _before: Job | None, child: Job) -> None:
        """A child Job was added or changed."""
        key = _child_key(child)
        if self._children is not None and self._children.get(key.name) is not None:
            self.queue.add(key)

    def on_child_delete(self, child: Job) -> None:
        """A child Job was deleted."""
        self._created.forget(child.metadata.uid)
        self._reported.pop(_child_key(child), None)

    def on_children_change(self, job_uid: str) -> None:
        """A job was changed whose child Jobs have Workloads of gangs."""
        for child in self._children.of_job(job_uid) if self._children is not None else ():
            self.queue.add(_child_key(child.job))

    def on_gang_upsert(self, _before: GangWorkload | None, gang: GangWorkload) -> None:
        """A Workload of gangs was added or changed."""
        owner = gang.metadata.controller
        if owner is not None:
            self._created.forget(owner.uid)
        self._on_child_gang(gang)

    def on_gang_delete(self, gang: GangWorkload) -> None:
        """A Workload of gangs was deleted."""
        self._on_child_gang(gang)

    def _on_child_gang(self, gang: GangWorkload) -> None:
        key = gang.metadata.key
        child = self._children.by_workload(key) if self._children is not None else None
        if child is not None:
            self.queue.add(_child_key(child.job))

    async def _reconcile(self, key: JobKey) -> None:
        child = self._children.get(key.name) if self._children is not None else None
        if key.kind == JOB.name and child is not None:
            await self._reconcile_child(key, child)
            return
        job = self._jobs.get(key.kind, {}).get(key.name)
        if job is None or not self._index.is_job(job):
            return
        kind, meta = kind_of(job), job.metadata
        choice = self._index.choice(job)
        own = self._index.gang(meta.namespace, own_name(kind, meta))
        named = self._index.gang(meta.namespace, choice.name) if choice.name else None
        adopts = (
            named is not None
            and not choice.is_own
            and kind.deletes_itself(job)
            and may_adopt(kind, meta, named.metadata, named.spec)
        )
        facts = GangJob(
            meta.uid,
            choice,
            over=kind.finished(job) is not None or meta.deletion_timestamp is not None,
            inactive=kind.is_suspended(job)
            and names.WORKLOAD_ANNOTATION not in meta.annotations
            and not self._live_pods(meta.uid),
            adopts=adopts,
        )
        self._report_hold(key, job)
        match plan_gang(facts, own, named):
            case CreateGangWorkload():
                await self._create(key, job, gang_workload_body(kind, meta, choice))
            case DeleteGangWorkload(workload, why):
                await self._writer.delete(workload.metadata)
                log.info("gang_workload_deleted", workload=workload.metadata.key, reason=why)
            case AdoptGangWorkload(workload):
                await self._writer.adopt(workload.metadata, owner_reference(kind, meta))
                log.info("gang_workload_adopted", workload=workload.metadata.key, job=meta.key)
                note = f"it is deleted together with the {kind.name} {meta.name}"
                self._report.gang(workload.metadata, "Adopted", note)

    async def _reconcile_child(self, key: JobKey, child: ChildGang) -> None:
        """Create the Workload of gangs of a child Job, also while it is suspended."""
        if child.is_over:
            return
        meta = child.job.metadata
        own = self._index.gang(meta.namespace, child.name)
        if own is None:
            await self._create(key, child.job, child_gang_body(JOB, meta, child.gangs.spec))
        elif is_owned_by(own, meta.uid):
            self._reported.pop(key, None)
        else:
            note = f'the Workload of gangs "{child.name}" has another owner: its pods belong to it'
            self._report_once(key, child.job, Hold(HoldReason.NAME_TAKEN, note))

    async def _create(self, key: JobKey, job: JobLike, body: Mapping[str, Any]) -> None:
        """Create the Workload of gangs of a job, unless a creation is not in the watch yet."""
        kind, meta, now = kind_of(job), job.metadata, clock.monotonic()
        wait_s = self._created.wait_s(meta.uid, now)
        if wait_s > 0:
            self.queue.add_later(key, wait_s)
            return
        self._created.assume(meta.uid, now)
        try:
            created = await self._writer.create(body)
        except _REFUSED as error:
            self._created.forget(meta.uid)
            note = f"the Workload of gangs was rejected: {error.message}"
            self._report.job(job, "GangWorkloadRefused", note, warning=True)
            raise
        except BaseException:
            self._created.forget(meta.uid)
            raise
        if created is None:
            return  # the watch will show whose it is
        log.info("gang_workload_created", workload=created.key, job=meta.key)
        note = f"made for the {kind.name} {meta.name}, and deleted with it"
        self._report.gang(created, "DefaultCreated", note)

    def _report_hold(self, key: JobKey, job: JobLike) -> None:
        """An Event for each new reason that holds a job."""
        hold = self._index.hold(job)
        if hold is None or hold.reason in _NOT_REPORTED:
            self._reported.pop(key, None)
            return
        if not self._report_once(key, job, hold):
            return
        choice = self._index.choice(job)
        gang = self._index.gang(job.metadata.namespace, choice.name)
        if hold.reason is HoldReason.SHARED and gang is not None:
            note = f"the {kind_of(job).name} {job.metadata.name} waits: {hold.message}"
            self._report.gang(gang.metadata, hold.reason, note, warning=True)

    def _report_once(self, key: JobKey, job: JobLike, hold: Hold) -> bool:
        """An Event for each new reason; whether it is one."""
        found = (job.metadata.uid, hold)
        if self._reported.get(key) == found:
            return False
        self._reported[key] = found
        self._report.job(job, hold.reason, hold.message, warning=True)
        return True


def _child_key(child: Job) -> JobKey:
    return JobKey(JOB.name, child.metadata.key)
