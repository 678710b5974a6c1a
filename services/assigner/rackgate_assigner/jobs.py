"""Jobs and their Workloads, kept together: looks at both, asks `jobs_plan`, takes one step.

Level-triggered: a step is judged from what the watches show now, bound to the versions it was
judged by, and repeated with growing pauses when refused. Nothing is remembered between steps but
which keys wait for a class or a flavor to appear.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from rackgate.api import names
from rackgate.api.names import FinishedReason
from rackgate.govern.job import StartConflict, StartPatch, podsets_of, start_patch, template_of
from rackgate.govern.jsonpatch import JsonPatchOp, guarded
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import (
    AlreadyExistsError,
    BadRequestError,
    NotFoundError,
    PayloadTooLargeError,
    UnprocessableError,
)
from rackgate.kube.resources import JOBS, WORKLOADS
from rackgate.wire.batch import Job
from rackgate.wire.core import PriorityClass
from rackgate.wire.kueue import (
    PodSetAssignment,
    ResourceFlavor,
    Workload,
    WorkloadPriorityClass,
)
from rackgate_assigner import job_steps as steps
from rackgate_assigner import metrics
from rackgate_assigner.job_facts import (
    GROUP,
    KIND,
    Priority,
    facts_of,
    governs,
    mark_ops,
    name_of,
    owned_by,
    resolve_priority,
    spec_ops,
)
from rackgate_assigner.jobs_plan import plan_alone, plan_job, plan_orphan, plan_unlabelled
from rackgate_assigner.reporting import Reporter
from rackgate_assigner.workqueue import WorkQueue
from rackgate_assigner.writer import WorkloadWriter

POLL_S: Final = 0.5
_decode_job = msgspec.json.Decoder(Job).decode

log = structlog.get_logger()


class Key(NamedTuple):
    """What to look at: a Job by `namespace/name`, or a Workload whose Job may be gone."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Stores:
    """Live views of what the informers follow."""

    jobs: Mapping[str, Job]
    workloads: Mapping[str, Workload]
    flavors: Mapping[str, ResourceFlavor]
    workload_classes: Mapping[str, WorkloadPriorityClass]
    classes: Mapping[str, PriorityClass]


def job_owner(workload: Workload) -> str | None:
    """Key of the Job that controls a Workload, None when its controller is no Job."""
    owner = workload.metadata.controller
    if owner is None or owner.kind != KIND or not owner.api_version.startswith(f"{GROUP}/"):
        return None
    return f"{workload.metadata.namespace}/{owner.name}"


class JobController:
    """Turns Jobs into Workloads, starts and stops them. Callbacks may run on standbys, too."""

    def __init__(
        self,
        stores: Stores,
        client: Client,
        writer: WorkloadWriter,
        reporter: Reporter,
        *,
        workers: int = 32,
    ) -> None:
        self.queue = WorkQueue[Key]("jobs", self._reconcile, workers=workers)
        self._stores, self._client = stores, client
        self._writer, self._report = writer, reporter
        self._by_owner: dict[str, set[str]] = defaultdict(set)
        self._waiting: dict[str, set[Key]] = defaultdict(set)

    async def run(self) -> None:
        """Look at everything once, then at whatever changes, until cancelled."""
        jobs = [Key(KIND, name) for name in self._stores.jobs]
        workloads = [Key(WORKLOADS.kind, name) for name in self._stores.workloads]
        await self.queue.run([*jobs, *workloads])

    def job_seen(self, _before: Job | None, job: Job) -> None:
        """A Job was added or changed."""
        self.queue.add(Key(KIND, job.metadata.key))

    def job_gone(self, job: Job) -> None:
        """A Job was deleted, or lost its queue label."""
        for key in self._by_owner.get(job.metadata.uid, ()):
            self.queue.add(Key(WORKLOADS.kind, key))

    def workload_seen(self, _before: Workload | None, workload: Workload) -> None:
        """A Workload was added or changed."""
        owner = workload.metadata.controller
        if owner is not None:
            self._by_owner[owner.uid].add(workload.metadata.key)
        self._add_for(workload)

    def workload_gone(self, workload: Workload) -> None:
        """A Workload was deleted."""
        owner = workload.metadata.controller
        if owner is not None:
            owned = self._by_owner[owner.uid]
            owned.discard(workload.metadata.key)
            if not owned:
                del self._by_owner[owner.uid]
        self._add_for(workload)

    def appeared(self, what: str) -> None:
        """A class or flavor that a Job may wait for is there: `kind/name`."""
        for key in self._waiting.pop(what, ()):
            self.queue.add(key)

    def in_step(self, workload: Workload) -> bool:
        """Whether a pending Workload asks for what its Job asks for now, and the Job is at rest."""
        job = self._stores.jobs.get(job_owner(workload) or "")
        if job is None or not owned_by(workload, job.metadata.uid):
            return workload.metadata.controller is None or job_owner(workload) is None
        facts = facts_of(job, workload, self._priority_of(job))
        return facts.stopped and not spec_ops(job, workload, facts)

    def _add_for(self, workload: Workload) -> None:
        job = self._stores.jobs.get(job_owner(workload) or "")
        if job is not None and owned_by(workload, job.metadata.uid):
            self.queue.add(Key(KIND, job.metadata.key))
        else:
            self.queue.add(Key(WORKLOADS.kind, workload.metadata.key))

    async def _reconcile(self, key: Key) -> None:
        if key.kind == KIND:
            await self._reconcile_job(key)
        else:
            await self._reconcile_workload(key)

    async def _reconcile_job(self, key: Key) -> None:
        job = self._stores.jobs.get(key.name)
        if job is None or not governs(job):
            return
        owned = self._by_owner.get(job.metadata.uid, ())
        workloads = [w for name in sorted(owned) if (w := self._stores.workloads.get(name))]
        priority = self._priority(job, key)
        expected = name_of(job)
        own = next((w for w in workloads if w.metadata.name == expected), None)
        await self._take(job, plan_job(job, workloads, facts_of(job, own, priority)))

    async def _reconcile_workload(self, key: Key) -> None:
        workload = self._stores.workloads.get(key.name)
        if workload is None:
            return
        if workload.metadata.controller is None:
            await self._take(None, plan_alone(workload))
            return
        owner = job_owner(workload)
        if owner is None:
            return  # the controller of that kind looks after it
        job = self._stores.jobs.get(owner)
        if job is not None and owned_by(workload, job.metadata.uid):
            self.queue.add(Key(KIND, owner))
            return
        # Jobs without the queue label are not followed, and a watch may lag behind: ask.
        live = await self._live_job(owner)
        if live is None or not owned_by(workload, live.metadata.uid):
            await self._take(None, plan_orphan(workload))
        elif names.QUEUE_LABEL in live.metadata.labels:
            self.queue.add_later(key, POLL_S)
        else:
            facts = facts_of(live, workload, Priority())
            await self._take(live, plan_unlabelled(live, workload, facts))
            self.queue.add_later(key, POLL_S)

    async def _live_job(self, key: str) -> Job | None:
        namespace, _, name = key.partition("/")
        try:
            return _decode_job(await self._client.get(JOBS.path(namespace, name)))
        except NotFoundError:
            return None

    def _priority_of(self, job: Job) -> Priority:
        return resolve_priority(job, self._stores.workload_classes, self._stores.classes)

    def _priority(self, job: Job, key: Key) -> Priority:
        priority = self._priority_of(job)
        if priority.missing is not None:
            self._waiting[priority.missing].add(key)
            kind, _, name = priority.missing.partition("/")
            note = f'{kind} "{name}" does not exist; the Workload is created when it does'
            self._report.job(job, f"{kind}NotFound", note, warning=True)
        return priority

    async def _take(self, job: Job | None, step: steps.Step) -> None:
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
                await self._writer.finish(workload, reason, message)
                self._tell(job, "FinishedWorkload", f"{workload.metadata.key}: {message}")
            case steps.UpdateWorkload(workload, ops):
                await self._writer.patch(workload, ops)
                self._tell(job, "UpdatedWorkload", f"updated {workload.metadata.key}")
            case steps.EvictWorkload(workload, reason, message):
                await self._writer.evict(workload, reason, message)
            case steps.ReleaseQuota(workload):
                await self._writer.release(workload)
            case steps.MarkPods(workload, ready):
                await self._writer.mark_pods(workload, ready=ready)
            case steps.ForgetPods(workload):
                await self._writer.forget_pods(workload)
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
                if following.phase == "suspend":
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
        priority = self._priority_of(job)
        body = workload_body(job, name, priority)
        namespace = job.metadata.namespace
        try:
            await self._writer.create(body)
        except AlreadyExistsError:
            found = await self._writer.read(namespace, name)
            if found is not None and not owned_by(found, job.metadata.uid):
                note = f'the name "{name}" is taken by a Workload of another owner'
                self._report.job(job, "ErrWorkloadCompose", note, warning=True)
                raise
            return
        except (UnprocessableError, BadRequestError, PayloadTooLargeError) as error:
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
            live = await self._live_job(job.metadata.key)
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
        flavors = self._flavors_of(given, Key(KIND, job.metadata.key))
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

    def _flavors_of(self, given: PodSetAssignment, key: Key) -> list[ResourceFlavor] | None:
        flavors = []
        for name in dict.fromkeys(given.flavors.values()):
            flavor = self._stores.flavors.get(name)
            if flavor is None:
                self._waiting[f"ResourceFlavor/{name}"].add(key)
                log.warning("flavor_missing", flavor=name, job=key.name)
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
        await self._client.patch(path, msgspec.json.encode(body), PatchType.JSON)


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
