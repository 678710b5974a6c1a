"""The steps of `jobs_plan` as writes on Jobs and Workloads, each bound to the version judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from rackgate.api import names
from rackgate.api.names import FinishedReason
from rackgate.govern.job import (
    StartConflict,
    StartPatch,
    StopPhase,
    podsets_of,
    start_patch,
    template_of,
)
from rackgate.govern.jsonpatch import JsonPatchOp, guarded
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import (
    AlreadyExistsError,
    BadRequestError,
    ForbiddenError,
    NotFoundError,
    PayloadTooLargeError,
    UnprocessableError,
)
from rackgate.kube.resources import FLAVORS, JOBS, WORKLOADS
from rackgate.wire.batch import Job
from rackgate.wire.core import Meta, PriorityClass
from rackgate.wire.kueue import (
    PodSetAssignment,
    ResourceFlavor,
    Workload,
    WorkloadPriorityClass,
)
from rackgate_assigner import job_steps as steps
from rackgate_assigner import metrics
from rackgate_assigner.job_facts import Priority, mark_ops, owned_by, resolve_priority
from rackgate_assigner.reporting import Reporter
from rackgate_assigner.writer import WorkloadWriter

_decode_job = msgspec.json.Decoder(Job).decode

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stores:
    """Live views of what the informers follow."""

    jobs: Mapping[str, Job]
    workloads: Mapping[str, Workload]
    flavors: Mapping[str, ResourceFlavor]
    workload_classes: Mapping[str, WorkloadPriorityClass]
    classes: Mapping[str, PriorityClass]


class OwnWrites:
    """Versions that our own writes have outdated, until the watch shows the newer ones.

    Deciding by a version that we changed ourselves can only end in a conflict.
    """

    def __init__(self) -> None:
        self._outdated: dict[tuple[str, str], str] = {}

    def behind(self, kind: str, meta: Meta) -> bool:
        """Whether the watch still shows the version that our last write changed."""
        return self._outdated.get((kind, meta.key)) == meta.resource_version

    def written(self, kind: str, judged: Meta, answer: Meta) -> None:
        """Our write was answered: what it was judged by is outdated, if it changed anything."""
        if judged.resource_version != answer.resource_version:
            self._outdated[kind, judged.key] = judged.resource_version
        else:
            self._outdated.pop((kind, judged.key), None)

    def forget(self, kind: str, key: str) -> None:
        """The object is gone."""
        self._outdated.pop((kind, key), None)

    def clear(self) -> None:
        """Forget all."""
        self._outdated.clear()


class StepTaker:
    """Carries out one step at a time; the watches tell what came of it."""

    def __init__(
        self,
        stores: Stores,
        client: Client,
        writer: WorkloadWriter,
        reporter: Reporter,
        *,
        waits_for: Callable[[Job, str], None],
    ) -> None:
        """Prepare.

        Args:
            stores: what the watches show.
            client: for Jobs.
            writer: for Workloads.
            reporter: for Events.
            waits_for: told that a Job waits for `kind/name` to appear.
        """
        self._stores, self._client = stores, client
        self._writer, self._report = writer, reporter
        self._waits_for = waits_for
        self.own_writes = OwnWrites()

    async def read_job(self, key: str) -> Job | None:
        """A Job as stored now, None when there is none."""
        namespace, _, name = key.partition("/")
        try:
            return _decode_job(await self._client.get(JOBS.path(namespace, name)))
        except NotFoundError:
            return None

    async def take(self, job: Job | None, step: steps.Step) -> None:
        """Carry out one step. Steps about a Workload alone come without a Job."""
        if isinstance(step, steps.Nothing):
            return
        name = type(step).__name__
        try:
            if not await self._take_workload_step(job, step) and job is not None:
                await self._take_job_step(job, step)
        except Exception:
            metrics.JOB_STEPS.labels(step=name, result="failed").inc()
            raise
        metrics.JOB_STEPS.labels(step=name, result="done").inc()

    async def _take_workload_step(self, job: Job | None, step: steps.Step) -> bool:
        """Steps that write the Workload; False for the others."""
        match step:
            case steps.DeleteWorkload(workload, why):
                await self._writer.delete(workload)
                log.info("workload_deleted", workload=workload.metadata.key, reason=why)
                self._tell(job, "DeletedWorkload", f"deleted {workload.metadata.key}: {why}")
            case steps.ReleaseFinalizer(workload):
                await self._writer.release_finalizer(workload)
            case steps.FinishWorkload(workload, reason, message):
                answer = await self._writer.finish(workload, reason, message)
                self.own_writes.written(WORKLOADS.kind, workload.metadata, answer.metadata)
                self._tell(job, "FinishedWorkload", f"{workload.metadata.key}: {message}")
            case steps.UpdateWorkload(workload, ops):
                answer = await self._writer.patch(workload, ops)
                self.own_writes.written(WORKLOADS.kind, workload.metadata, answer.metadata)
                self._tell(job, "UpdatedWorkload", f"updated {workload.metadata.key}")
            case steps.EvictWorkload(workload, reason, message):
                await self._writer.evict(workload, reason, message)
            case steps.ReleaseQuota(workload):
                answer = await self._writer.release(workload)
                self.own_writes.written(WORKLOADS.kind, workload.metadata, answer.metadata)
            case steps.MarkPods(workload, ready):
                answer = await self._writer.mark_pods(workload, ready=ready)
                self.own_writes.written(WORKLOADS.kind, workload.metadata, answer.metadata)
            case steps.ForgetPods(workload):
                answer = await self._writer.forget_pods(workload)
                self.own_writes.written(WORKLOADS.kind, workload.metadata, answer.metadata)
            case _:
                return False
        return True

    async def _take_job_step(self, job: Job, step: steps.Step) -> None:
        match step:
            case steps.CreateWorkload(name):
                await self._create(job, name)
            case steps.StopJob(following, why):
                await self._patch_job(job, following.operations)
                log.info("job_stopping", job=job.metadata.key, phase=following.phase, reason=why)
                if following.phase is StopPhase.SUSPEND:
                    self._report.job(job, "Stopped", why)
            case steps.StartJob(workload):
                await self._start(job, workload)
            case steps.WarnResize(_, asked, given):
                note = (
                    f"the Job asks for {asked} pods, {given} were admitted: {asked - given} stay "
                    "gated; to resize, suspend the Job (spec.suspend: true) and it is queued "
                    "again at its new size, or delete it and submit it anew"
                )
                self._report.job(job, "ResizeNotSupported", note, warning=True)

    def _tell(self, job: Job | None, reason: str, note: str) -> None:
        if job is not None:
            self._report.job(job, reason, note)

    async def _create(self, job: Job, name: str) -> None:
        priority = resolve_priority(job, self._stores.workload_classes, self._stores.classes)
        body = workload_body(job, name, priority)
        namespace = job.metadata.namespace
        try:
            await self._writer.create(body)
        except AlreadyExistsError:
            found = await self._writer.read(namespace, name)
            if found is None:
                raise  # it went in between: the name is free now
            if not owned_by(found, job.metadata.uid):
                note = f'the name "{name}" is taken by a Workload of another owner'
                self._report.job(job, "ErrWorkloadCompose", note, warning=True)
                raise
            return
        except (
            UnprocessableError,
            BadRequestError,
            ForbiddenError,
            PayloadTooLargeError,
        ) as error:
            note = f"the Workload was refused: {error.message}"
            self._report.job(job, "ErrWorkloadCompose", note, warning=True)
            raise
        log.info("workload_created", workload=f"{namespace}/{name}", job=job.metadata.key)
        self._report.job(job, "CreatedWorkload", f"created Workload {namespace}/{name}")

    async def _start(self, job: Job, workload: Workload) -> None:
        patch = self._start_patch(job, workload)
        if patch is None:
            return
        if isinstance(patch, StartConflict):
            await self._fail_to_start(job, workload, str(patch))
            return
        ops = [*patch.operations, *mark_ops(job, workload.metadata.name)]
        try:
            await self._patch_job(job, ops)
        except UnprocessableError as error:
            # A failed `test` says the same: only an unchanged Job was refused for what we wrote.
            live = await self.read_job(job.metadata.key)
            if live is None or live.metadata.resource_version != job.metadata.resource_version:
                raise
            await self._fail_to_start(job, workload, error.message)
            return
        admission = workload.status.admission
        queue = admission.cluster_queue if admission is not None else ""
        log.info("job_started", job=job.metadata.key, workload=workload.metadata.key)
        self._report.job(job, "Started", f"admitted by ClusterQueue {queue}")

    def _start_patch(self, job: Job, workload: Workload) -> StartPatch | StartConflict | None:
        """The start of a Job; None while a flavor it was given is not there."""
        admission = workload.status.admission
        if admission is None or not admission.pod_set_assignments:
            return None
        given = admission.pod_set_assignments[0]
        flavors = self._flavors_of(given, job)
        if flavors is None:
            return None
        labels = labels_of(flavors)
        if isinstance(labels, StartConflict):
            return labels
        return start_patch(
            template_of(job),
            given.name,
            workload=workload.metadata.name,
            tas=given.topology_assignment is not None,
            node_labels=labels,
            tolerations=[item for flavor in flavors for item in flavor.spec.tolerations],
        )

    def _flavors_of(self, given: PodSetAssignment, job: Job) -> list[ResourceFlavor] | None:
        flavors = []
        for name in dict.fromkeys(given.flavors.values()):
            flavor = self._stores.flavors.get(name)
            if flavor is None:
                self._waits_for(job, f"{FLAVORS.kind}/{name}")
                log.warning("flavor_missing", flavor=name, job=job.metadata.key)
                return None
            flavors.append(flavor)
        return flavors

    async def _fail_to_start(self, job: Job, workload: Workload, message: str) -> None:
        await self._writer.finish(workload, FinishedReason.FAILED_TO_START, message)
        self._report.job(job, FinishedReason.FAILED_TO_START, message, warning=True)

    async def _patch_job(self, job: Job, ops: list[JsonPatchOp]) -> None:
        meta = job.metadata
        body = guarded(ops, uid=meta.uid, resource_version=meta.resource_version)
        path = JOBS.path(meta.namespace, meta.name)
        try:
            answer = await self._client.patch(path, msgspec.json.encode(body), PatchType.JSON)
        except (BadRequestError, ForbiddenError) as error:  # a policy of the cluster, perhaps
            self._report.job(job, "JobUpdateRefused", error.message, warning=True)
            raise
        self.own_writes.written(JOBS.kind, meta, _decode_job(answer).metadata)


def labels_of(flavors: Sequence[ResourceFlavor]) -> dict[str, str] | StartConflict:
    """The node labels that all these flavors ask for, or the key on which they disagree."""
    labels: dict[str, str] = {}
    for flavor in flavors:
        for key, want in flavor.spec.node_labels.items():
            have = labels.setdefault(key, want)
            if have != want:
                return StartConflict("spec.template.spec.nodeSelector", key, have, want)
    return labels


def workload_body(job: Job, name: str, priority: Priority) -> dict[str, Any]:
    """A Job's Workload as it is created."""
    spec: dict[str, Any] = {
        "queueName": job.metadata.labels[names.QUEUE_LABEL],
        "active": True,
        "priority": priority.value,
        "podSets": podsets_of(job),
    }
    if priority.ref is not None:
        spec["priorityClassRef"] = dict(priority.ref)
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": {names.JOB_UID_LABEL: job.metadata.uid},
            "finalizers": [names.IN_USE_FINALIZER],
            "ownerReferences": [
                {
                    "apiVersion": JOBS.api_version,
                    "kind": JOBS.kind,
                    "name": job.metadata.name,
                    "uid": job.metadata.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }
