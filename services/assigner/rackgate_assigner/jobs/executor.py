"""Executes the actions of `plan`: writes bound to the version that was read.

Writes that end the use of quota are bound to less: to what they depend on. Any other change in
between does not matter, so a user who keeps changing an object does not keep its quota (ADR 75).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import structlog

from rackgate.api.names import FinishedReason
from rackgate.api.resources import FLAVORS, JOBS, PODS, WORKLOADS, Resource
from rackgate.jobframework.generic_job import SUSPEND, GenericJob, JobLike
from rackgate.jobframework.injection import StartConflict, StopAction, StopPhase
from rackgate.jobframework.jsonpatch import JsonPatchOp, with_preconditions, with_tests
from rackgate.jobframework.managed import owner_uid_of_pod
from rackgate.jobframework.pod_group.pod_group import PodGroup
from rackgate.jobframework.registry import JOB, POD_KINDS, kind_of
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import (
    AlreadyExistsError,
    BadRequestError,
    ForbiddenError,
    NotFoundError,
    PayloadTooLargeError,
    UnprocessableError,
)
from rackgate.wire.batch import Job
from rackgate.wire.core import Meta, Pod, PriorityClass, View
from rackgate.wire.depth import tolerant
from rackgate.wire.kueue import ResourceFlavor, Workload, WorkloadPriorityClass
from rackgate.wire.lists import page_items
from rackgate_assigner import metrics
from rackgate_assigner.assumed_writes import AssumedWrites
from rackgate_assigner.gangs.run_spec import JobGang
from rackgate_assigner.jobs import plan
from rackgate_assigner.jobs.patches import (
    STILL_SUSPENDED,
    request_reconcile_ops,
    start_patch,
    started_template_ops,
    stop_tests,
    workload_body,
)
from rackgate_assigner.jobs.pod_groups.patches import group_workload_body
from rackgate_assigner.jobs.pod_groups.writer import PodGroupWriter, concurrently
from rackgate_assigner.jobs.state import (
    FlavorMissingError,
    is_owned_by,
    podset_infos_of,
    resolve_priority,
)
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.scheduler.writer import WorkloadWriter, seconds_since

_PatchBuilder = Callable[
    [JobLike, Workload, Mapping[str, ResourceFlavor], JobGang],
    list[JsonPatchOp] | StartConflict,
]


class _MetadataOnly(View, frozen=True):
    metadata: Meta = Meta()


_decode_metadata = msgspec.json.Decoder(_MetadataOnly).decode
_decode_pod = tolerant(msgspec.json.Decoder(Pod).decode)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stores:
    """Live views of the informers' stores.

    Attributes:
        jobs: managed jobs by kind, then by `namespace/name`.
        child_jobs: child Jobs of JobSets.
    """

    jobs: Mapping[str, Mapping[str, JobLike]]
    child_jobs: Mapping[str, Job]
    workloads: Mapping[str, Workload]
    flavors: Mapping[str, ResourceFlavor]
    workload_priority_classes: Mapping[str, WorkloadPriorityClass]
    priority_classes: Mapping[str, PriorityClass]


class ActionExecutor:
    """Executes one action at a time; the watches show the result."""

    def __init__(
        self,
        stores: Stores,
        client: Client,
        writer: WorkloadWriter,
        reporter: Reporter,
        *,
        on_missing: Callable[[JobLike, str], None],
        pods: PodGroupWriter | None = None,
    ) -> None:
        """Prepare.

        Args:
            stores: what the watches show.
            client: for jobs.
            writer: for Workloads.
            reporter: for Events.
            on_missing: called when a job waits for `kind/name` to exist.
            pods: for groups of plain pods; None: they are not managed.
        """
        self._stores, self._client = stores, client
        self._writer, self._report = writer, reporter
        self._on_missing = on_missing
        self.assumed_writes = AssumedWrites()
        self._pods = pods

    async def read_job(self, kind: GenericJob[Any], key: str) -> JobLike | None:
        """A job as stored now, None if there is none."""
        if kind in POD_KINDS:
            watched = self._stores.jobs.get(kind.name, {}).get(key)
            return None if self._pods is None else await self._pods.read(kind.name, key, watched)
        namespace, _, name = key.partition("/")
        seen = self._stores.jobs.get(kind.name, {}).get(key)
        known = seen.metadata.resource_version if seen is not None else ""
        try:
            raw = await self._client.get(kind.resource.path(namespace, name), known=known)
        except NotFoundError:
            return None
        job: JobLike = kind.decode(raw)
        return job

    async def child_jobs(self, job: JobLike) -> list[Job]:
        """The Jobs that a job controls, read now: no watch shows those of a RayJob."""
        label, meta = kind_of(job).child_job_label, job.metadata
        if not label:
            return []
        params = {"labelSelector": f"{label}={meta.name}"}
        pages = self._client.list_pages(JOBS.path(meta.namespace), params)
        found = [JOB.decode(raw) async for page in pages for raw in page_items(page)]
        return [
            child
            for child in found
            if child.metadata.controller is not None and child.metadata.controller.uid == meta.uid
        ]

    async def has_pods(self, job: JobLike, controllers: Container[str]) -> bool:
        """Whether there are pods of a job, read now, that have not ended.

        Args:
            job: of any kind.
            controllers: uids of the job and of what it has created pods with.
        """
        return any(
            not pod.terminal and owner_uid_of_pod(pod.metadata) in controllers
            for pod in await self._list_pods(job)
        )

    async def is_admitted(self, job: JobLike, workload: str) -> bool:
        """Whether the Workload with this name, read now, allows that the job runs."""
        live = await self._writer.read(job.metadata.namespace, workload)
        if not plan.is_admitted(job, live):
            return False
        log.info("watch_behind_admission", job=job.metadata.key, workload=workload)
        return True

    async def execute(self, job: JobLike | None, action: plan.Action) -> None:
        """Execute one action; actions on a Workload alone have no job."""
        if isinstance(action, plan.NoAction):
            return
        name = type(action).__name__
        try:
            if not await self._execute_workload_action(job, action) and job is not None:
                await self._execute_job_action(job, action)
        except Exception:
            metrics.JOB_ACTIONS.labels(step=name, result="failed").inc()
            raise
        metrics.JOB_ACTIONS.labels(step=name, result="done").inc()

    async def _execute_workload_action(self, job: JobLike | None, action: plan.Action) -> bool:
        """Actions that write the Workload; False for the others."""
        match action:
            case plan.DeleteWorkload(workload, why):
                self._assume_write(workload, await self._writer.delete(workload))
                log.info("workload_deleted", workload=workload.metadata.key, reason=why)
                self._report_event(
                    job, "DeletedWorkload", f"deleted {workload.metadata.key}: {why}"
                )
            case plan.ReleaseFinalizer(workload):
                await self._writer.release_finalizer(workload)
            case plan.FinishWorkload(workload, reason, message):
                answer = await self._writer.finish(workload, reason, message)
                self._assume_write(workload, answer.metadata)
            case plan.UpdateWorkload(workload, ops):
                answer = await self._writer.patch(workload, ops)
                self._assume_write(workload, answer.metadata)
                self._report_event(job, "UpdatedWorkload", f"updated {workload.metadata.key}")
            case plan.EvictWorkload(workload, reason, message, requeue, underlying_cause):
                await self._writer.evict(
                    workload, reason, message, requeue=requeue, underlying_cause=underlying_cause
                )
            case plan.DeactivateWorkload(workload, cause, message):
                answer = await self._writer.deactivate_admitted(workload, cause, message)
                self._assume_write(workload, answer.metadata)
            case plan.RequeueWorkload(workload):
                answer = await self._writer.requeue_after_backoff(workload)
                self._assume_write(workload, answer.metadata)
                log.info("workload_backoff_finished", workload=workload.metadata.key)
            case plan.ReleaseQuota(workload, past_execution_s):
                answer = await self._writer.release(workload, past_execution_s)
                self._assume_write(workload, answer.metadata)
            case plan.UpdatePodsReady(workload, ready):
                answer = await self._writer.set_pods_ready(workload, ready=ready)
                self._assume_write(workload, answer.metadata)
            case plan.RemovePodsReady(workload):
                answer = await self._writer.remove_pods_ready(workload)
                self._assume_write(workload, answer.metadata)
            case plan.UpdateReclaimablePods(workload, counts):
                answer = await self._writer.update_reclaimable_pods(workload, counts)
                self._assume_write(workload, answer.metadata)
            case _:
                return False
        return True

    def _assume_write(self, workload: Workload, answer: Meta) -> None:
        """Record a write of a Workload, unless the watch has already shown its deletion."""
        if workload.metadata.key in self._stores.workloads:
            self.assumed_writes.written(WORKLOADS.kind, workload.metadata, answer)

    async def _execute_group_action(
        self, group: PodGroup, action: plan.Action, pods: PodGroupWriter
    ) -> None:
        key = group.metadata.key
        match action:
            case plan.CreateWorkload():
                await self._create(group, action)
            case plan.StopJob(why=why):
                count = await pods.stop(group)
                log.info("pod_group_stopped", group=key, pods=count, reason=why)
                self._report.job(group, "Stopped", f"deleted {count} pods: {why}")
            case plan.DeleteJob(workload, why):
                await pods.delete(group)
                log.info("pod_group_deleted", group=key, workload=workload.metadata.key, reason=why)
            case plan.StartJob(workload) | plan.ReapplyInjection(workload):
                await self._start_pods(group, workload, pods)

    async def _start_pods(self, group: PodGroup, workload: Workload, pods: PodGroupWriter) -> None:
        try:
            infos = podset_infos_of(workload, self._stores.flavors, ())
        except FlavorMissingError as error:
            self._on_missing(group, f"{FLAVORS.kind}/{error.name}")
            log.warning("flavor_missing", flavor=error.name, job=group.metadata.key)
            return
        if isinstance(infos, StartConflict):
            await self._fail_to_start(group, workload, str(infos))
            return
        started = await pods.start(group, workload, infos)
        if isinstance(started, StartConflict):
            await self._fail_to_start(group, workload, str(started))
        elif started and workload.status.admission is not None:
            log.info("pod_group_started", workload=workload.metadata.key, pods=started)
            queue = workload.status.admission.cluster_queue
            self._report.job(group, "Started", f"admitted by ClusterQueue {queue}")

    async def _execute_job_action(self, job: JobLike, action: plan.Action) -> None:
        if isinstance(job, PodGroup):
            if self._pods is not None:
                await self._execute_group_action(job, action, self._pods)
            return
        match action:
            case plan.CreateWorkload():
                await self._create(job, action)
            case plan.DeleteJob(workload, why):
                await self._delete_job(job, workload, why)
            case plan.StopJob(stop, why):
                await self._stop(job, stop)
                log.info("job_stopping", job=job.metadata.key, phase=stop.phase, reason=why)
                if stop.phase is StopPhase.SUSPEND:
                    self._report.job(job, "Stopped", why)
            case plan.CompleteStop():
                await self._complete_stop(job, action)
            case plan.RestoreChildJobs():
                await self._restore_child_jobs(job, action)
            case plan.StartJob(workload, gang):
                await self._start(job, workload, gang)
            case plan.ReapplyInjection(workload, gang):
                await self._reapply_injection(job, workload, gang)
            case plan.RequestReconcile(workload, after_s):
                await self._request_reconcile(job, workload, after_s)
            case plan.WarnResize(_, requested, admitted):
                kind = kind_of(job).name
                note = (
                    f"the {kind} requests {requested} pods, {admitted} were admitted: "
                    f"{requested - admitted} "
                    f"stay gated; to resize, suspend the {kind} (spec.suspend: true) and it is "
                    "queued again at its new size, or delete it and create it again"
                )
                self._report.job(job, "ResizeNotSupported", note, warning=True)

    def _report_event(self, job: JobLike | None, reason: str, note: str) -> None:
        if job is not None:
            self._report.job(job, reason, note)

    async def _create(self, job: JobLike, action: plan.CreateWorkload) -> None:
        name, namespace = action.name, job.metadata.namespace
        priority = resolve_priority(
            job, self._stores.workload_priority_classes, self._stores.priority_classes
        )
        if isinstance(job, PodGroup):
            body = group_workload_body(job, name, priority)
        else:
            body = workload_body(job, name, priority, elastic=action.elastic, gang=action.gang)
        try:
            await self._writer.create(body)
        except AlreadyExistsError:
            found = await self._writer.read(namespace, name)
            if found is None:
                raise  # deleted in between: the name is free now
            if not is_owned_by(found, job.metadata.uid):
                note = f'the name "{name}" is used by a Workload of another owner'
                self._report.job(job, "ErrWorkloadCompose", note, warning=True)
                raise
            return
        except (
            UnprocessableError,
            BadRequestError,
            ForbiddenError,
            PayloadTooLargeError,
        ) as error:
            note = f"the Workload was rejected: {error.message}"
            self._report.job(job, "ErrWorkloadCompose", note, warning=True)
            raise
        if not action.again:
            created_s = seconds_since(job.metadata.creation_timestamp)
            metrics.CREATION_LATENCY.labels(job_kind=kind_of(job).name).observe(created_s)
        log.info("workload_created", workload=f"{namespace}/{name}", job=job.metadata.key)

    async def _delete_job(self, job: JobLike, workload: Workload, why: str) -> None:
        """Delete a job, and with it its Workload, unless either has changed.

        The Workload is read live: somebody may have activated it a moment ago.
        """
        live = await self._writer.read(workload.metadata.namespace, workload.metadata.name)
        if live is None or live.metadata.resource_version != workload.metadata.resource_version:
            return  # the watch will show the change, and the job is reconciled again
        meta, resource = job.metadata, kind_of(job).resource
        options = {
            "preconditions": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "propagationPolicy": "Background",
        }
        path = resource.path(meta.namespace, meta.name)
        try:
            await self._client.delete(path, msgspec.json.encode(options))
        except NotFoundError:
            return
        log.info("job_deleted", job=meta.key, workload=workload.metadata.key, reason=why)
        self._report.job(job, "Deleted", f"deleted: {why}")

    async def _start(self, job: JobLike, workload: Workload, gang: JobGang) -> None:
        admission = workload.status.admission
        if admission is None or not admission.pod_set_assignments:
            return
        ops = self._build_patch(job, workload, gang, start_patch)
        if ops is None or not await self._apply_start_patch(job, workload, ops):
            return
        log.info("job_started", job=job.metadata.key, workload=workload.metadata.key)
        self._report.job(job, "Started", f"admitted by ClusterQueue {admission.cluster_queue}")

    async def _request_reconcile(self, job: JobLike, workload: Workload, after_s: float) -> None:
        await self._patch_job(job, _bound(job, request_reconcile_ops(job)))
        key, kind = job.metadata.key, kind_of(job)
        log.info(
            "operator_reconcile_requested", job=key, workload=workload.metadata.key, after_s=after_s
        )
        note = (
            f"not all pods are ready {after_s:g} s after the spec of the {kind.name} last changed: "
            f"requested a reconcile by its operator ({kind.controller})"
        )
        self._report.job(job, "OperatorReminded", note)

    async def _reapply_injection(self, job: JobLike, workload: Workload, gang: JobGang) -> None:
        ops = self._build_patch(job, workload, gang, started_template_ops)
        if ops and await self._apply_start_patch(job, workload, ops):
            log.info("injection_reapplied", job=job.metadata.key, workload=workload.metadata.key)

    def _build_patch(
        self, job: JobLike, workload: Workload, gang: JobGang, operations: _PatchBuilder
    ) -> list[JsonPatchOp] | StartConflict | None:
        """What a start writes; None while an assigned flavor does not exist."""
        try:
            return operations(job, workload, self._stores.flavors, gang)
        except FlavorMissingError as error:
            self._on_missing(job, f"{FLAVORS.kind}/{error.name}")
            log.warning("flavor_missing", flavor=error.name, job=job.metadata.key)
            return None

    async def _apply_start_patch(
        self, job: JobLike, workload: Workload, ops: list[JsonPatchOp] | StartConflict
    ) -> bool:
        """Write the start of a job; False if its Workload failed to start instead."""
        if isinstance(ops, StartConflict):
            await self._fail_to_start(job, workload, str(ops))
            return False
        try:
            await self._patch_job(job, _bound(job, ops))
        except UnprocessableError as error:
            # A failed `test` has the same status: only an unchanged job was rejected for our
            # operations.
            live = await self.read_job(kind_of(job), job.metadata.key)
            if live is None or live.metadata.resource_version != job.metadata.resource_version:
                raise
            await self._fail_to_start(job, workload, error.message)
            return False
        return True

    async def _fail_to_start(self, job: JobLike, workload: Workload, message: str) -> None:
        await self._writer.finish(workload, FinishedReason.FAILED_TO_START, message)
        self._report.job(job, FinishedReason.FAILED_TO_START, message, warning=True)

    async def _stop(self, job: JobLike, stop: StopAction) -> None:
        """One write of a stop, bound to what it depends on instead of a version."""
        tests = stop_tests(job, stop.phase)
        await self._patch_job(job, with_tests(stop.operations, uid=job.metadata.uid, tests=tests))

    async def _complete_stop(self, job: JobLike, action: plan.CompleteStop) -> None:
        """Suspend the children and delete the pods of a job, if it is still suspended.

        Raises:
            KubeError: of one of the writes; the others are made all the same.
        """
        kind, meta = kind_of(job), job.metadata
        live = await self.read_job(kind, meta.key)
        if live is None or live.metadata.uid != meta.uid or not kind.is_suspended(live):
            return
        pods = [pod for owner in action.owners for pod in await self._pods_of(owner)]
        writes = [partial(self._suspend_child, child) for child in action.children]
        writes += [partial(self._delete_pod, pod.metadata) for pod in pods]
        if not writes:
            return
        await concurrently(writes)
        workload, count = action.workload.metadata.key, len(action.children)
        log.info("stop_completed", job=meta.key, workload=workload, children=count, pods=len(pods))
        note = (
            f"its controller ({kind.controller}) had {action.after_s:g} s to stop it: its pods were"
            " deleted, and its children suspended; the controller may be slow, down or reject it,"
            " or the job is changed all the time"
        )
        self._report.job(job, "StopLate", note, warning=True)

    async def _suspend_child(self, child: JobLike) -> None:
        body = with_tests([dict(SUSPEND)], uid=child.metadata.uid)
        with suppress(NotFoundError):
            await self._patch(kind_of(child).resource, child.metadata, body)

    async def _delete_pod(self, meta: Meta) -> None:
        options = msgspec.json.encode({"preconditions": {"uid": meta.uid}})
        with suppress(NotFoundError):
            await self._client.delete(PODS.path(meta.namespace, meta.name), options)

    async def _pods_of(self, owner: JobLike) -> list[Pod]:
        """Pods that it controls itself, read now, that have not ended and are not being deleted."""
        uid = owner.metadata.uid
        return [
            pod
            for pod in await self._list_pods(owner)
            if not pod.terminal
            and pod.metadata.deletion_timestamp is None
            and pod.metadata.controller is not None
            and pod.metadata.controller.uid == uid
        ]

    async def _list_pods(self, job: JobLike) -> list[Pod]:
        """Pods with the label of a job, and those of others that have it."""
        selector = kind_of(job).pod_selector(job)
        params = {"labelSelector": selector} if selector else {}
        pages = self._client.list_pages(PODS.path(job.metadata.namespace), params)
        return [_decode_pod(raw) async for page in pages for raw in page_items(page)]

    async def _patch_job(self, job: JobLike, body: list[JsonPatchOp]) -> None:
        try:
            await self._patch(kind_of(job).resource, job.metadata, body)
        except (BadRequestError, ForbiddenError) as error:  # a policy may reject it
            self._report.job(job, f"{kind_of(job).name}UpdateRefused", error.message, warning=True)
            raise

    async def _restore_child_jobs(self, job: JobLike, action: plan.RestoreChildJobs) -> None:
        """Patch the children one by one; those that run meanwhile are reconciled again."""
        for child in action.children:
            meta = child.job.metadata
            body = with_tests(child.operations, uid=meta.uid, tests=[STILL_SUSPENDED])
            await self._patch(JOBS, meta, body)
        count = len(action.children)
        log.info("child_jobs_restored", job=job.metadata.key, children=count, reason=action.why)

    async def _patch(self, resource: Resource, meta: Meta, body: list[JsonPatchOp]) -> None:
        path = resource.path(meta.namespace, meta.name)
        answer = await self._client.patch(path, msgspec.json.encode(body), PatchType.JSON)
        # As of Workloads: an entry for a deleted job would never be removed.
        jobs = self._stores.jobs.get(resource.kind, {})
        if meta.key in jobs or (resource.kind == JOBS.kind and meta.key in self._stores.child_jobs):
            self.assumed_writes.written(resource.kind, meta, _decode_metadata(answer).metadata)


def _bound(job: JobLike, ops: list[JsonPatchOp]) -> list[JsonPatchOp]:
    """Operations that are made on this version of a job or not at all."""
    meta = job.metadata
    return with_preconditions(ops, uid=meta.uid, resource_version=meta.resource_version)
