"""What is read off a job and its Workload before deciding what to do about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api import names
from rackgate.api.names import workload_name
from rackgate.features import DEFAULTS, Features
from rackgate.jobframework.injection import (
    PodSetInfo,
    PodTemplate,
    StopAction,
    StopPhase,
    remove_injection_ops,
)
from rackgate.jobframework.jsonpatch import JsonPatchOp, pointer
from rackgate.jobframework.templates import annotations_of, gates_of, section
from rackgate.wire.batch import Job
from rackgate.wire.core import PriorityClass
from rackgate.wire.kueue import (
    PriorityClassRef,
    RequeueState,
    Workload,
    WorkloadPriorityClass,
)
from rackgate_assigner.jobs.kinds import (
    GenericJob,
    JobLike,
    JobOutcome,
    StaleChildJob,
    is_child_of_job,
    kind_of,
)
from rackgate_assigner.jobs.kinds.podsets import counts_of, original_templates, podsets_differ

_WORKLOAD_ANNOTATION_PATH: Final = "/metadata/annotations" + pointer(names.WORKLOAD_ANNOTATION)
_ELASTIC_ANNOTATION_PATH: Final = "/metadata/annotations" + pointer(names.ELASTIC_ANNOTATION)


@dataclass(frozen=True, slots=True)
class Priority:
    """The priority of a job and where it comes from.

    Attributes:
        ref: `priorityClassRef` as on the wire, None when no class applies.
        missing: the class that does not exist, as `kind/name`; nothing may be created before it.
    """

    value: int = 0
    ref: Mapping[str, str] | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class JobState:
    """What the table of `jobs_plan` looks at: one job of any kind, beside its Workload.

    Attributes:
        kind: the kind of the job, for messages.
        podsets: what the job asks for now, as a Workload stores it.
        pod_count: pods of all of them.
        priority: resolved from the job's labels and first template.
        suspended: `spec.suspend`.
        finished: how the job ended, None while it has not.
        started: the start patch was applied and not yet undone, see `is_started`.
        stop: what a stop of the job would do next.
        stale_child_jobs: children of the stopped job that still carry what an earlier admission
            brought.
        elastic: with other counts than its Workload's the job is resized, not queued again. The
            Workload of such a job carries the annotation `names.ELASTIC_ANNOTATION`.
        change: why the running job has to be queued again, None when it has not.
        injection_lost: templates of the running job lost what its start brought.
        ready: all pods of the running job that are due are ready or have succeeded.
        recovery_requeue: when its Workload is queued again after an eviction, because pods that
            were lost were not all ready again in time; None while they may be.
        requeue_in_s: seconds until its evicted Workload is queued again, None when that does not
            wait.
        reconcile_after_s: seconds after which the operator of the running job, whose pods are not
            all ready, is to be asked to look again; None when it is not, or was since the last
        change.
        reclaimable_pods: pods that are done and come no more, by PodSet.
        live_pods: pods that hold quota until they are gone, those that are being deleted included.
        beyond_admission: pods that run beyond those admitted, in PodSets where no gate holds them.
    """

    kind: str = "Job"
    podsets: Sequence[Mapping[str, Any]] = ()
    pod_count: int = 0
    priority: Priority = field(default_factory=Priority)
    suspended: bool = True
    finished: JobOutcome | None = None
    started: bool = False
    stop: StopAction = field(default_factory=lambda: StopAction(StopPhase.DONE, []))
    stale_child_jobs: Sequence[StaleChildJob] = ()
    elastic: bool = False
    change: str | None = None
    injection_lost: bool = False
    ready: bool = False
    recovery_requeue: RequeueState | None = None
    requeue_in_s: float | None = None
    reconcile_after_s: float | None = None
    reclaimable_pods: Mapping[str, int] = field(default_factory=dict)
    live_pods: int = 0
    beyond_admission: int = 0

    @property
    def inactive(self) -> bool:
        """Whether the job is suspended and runs nothing: its templates may be written."""
        return self.stop.phase in (StopPhase.RESTORE, StopPhase.DONE)

    @property
    def stopped(self) -> bool:
        """Whether the job is at rest, its pods are gone, and all its templates are the user's."""
        return (
            self.stop.phase is StopPhase.DONE and not self.stale_child_jobs and not self.live_pods
        )


def read_job_state(
    job: JobLike,
    workload: Workload | None,
    priority: Priority,
    *,
    children: Sequence[Job] = (),
    features: Features = DEFAULTS,
    podset_infos: Mapping[str, PodSetInfo] | None = None,
    flavor_lost: bool = False,
    live_pods: int = 0,
    beyond_admission: int = 0,
) -> JobState:
    """Everything about one job and the Workload that keeps its templates.

    Args:
        job: as stored, of any kind.
        workload: its Workload, if there is one.
        priority: as resolved.
        children: its child Jobs, for kinds that have any.
        features: feature gates.
        podset_infos: what its start brought into its templates, where that is certain; by PodSet.
        flavor_lost: templates of the running job lost what its flavors brought.
        live_pods: bound pods that have not ended; 0 where they do not hold quota.
        beyond_admission: see `JobState`.
    """
    kind = kind_of(job)
    started = is_started(job, kind.templates(job))
    stop = _skip_needless_restore(
        kind.next_stop_action(job, original_templates(workload), children, podset_infos or {}),
        job,
        started=started,
    )
    inactive = stop.phase in (StopPhase.RESTORE, StopPhase.DONE)
    podsets = kind.podsets(job)
    elastic, suspended = kind.is_elastic(job, features), kind.is_suspended(job)
    active_workload = None if suspended else workload
    resizable = elastic and active_workload is not None and active_workload.elastic
    change = (
        kind.find_change(job, active_workload, podsets, elastic=resizable)
        if active_workload is not None
        else None
    )
    ready = active_workload is not None and kind.pods_ready(job, counts_of(active_workload))
    return JobState(
        kind=kind.name,
        podsets=podsets,
        pod_count=kind.pod_count(job),
        priority=priority,
        suspended=suspended,
        finished=kind.finished(job),
        started=started,
        stop=stop,
        stale_child_jobs=kind.stale_child_jobs(job, children) if inactive else (),
        elastic=elastic,
        change=change,
        injection_lost=active_workload is not None
        and started
        and (flavor_lost or has_lost_injection(kind, job, active_workload)),
        ready=ready,
        reconcile_after_s=None
        if suspended or ready or _is_reconcile_requested(job)
        else kind.reconcile_after_s,
        reclaimable_pods=kind.reclaimable_pods(job),
        live_pods=live_pods,
        beyond_admission=beyond_admission,
    )


def workload_name_of(job: JobLike) -> str:
    """The one name of a job's Workload."""
    resource = kind_of(job).resource
    return workload_name(resource.kind, resource.group, job.metadata.name, job.metadata.uid)


def unmanaged_namespaces(system: str) -> frozenset[str]:
    """Where nothing is governed, with the services installed in namespace `system`."""
    return frozenset(names.UNMANAGED_NAMESPACES) - {names.SYSTEM_NAMESPACE} | {system}


def is_managed(job: JobLike, unmanaged: Collection[str] = names.UNMANAGED_NAMESPACES) -> bool:
    """Whether Rackgate acts on this job.

    It does when the job carries the queue label, is run by its kind's own controller, and is no
    child of another. Jobs of `unmanaged` namespaces are left alone, label or not.
    """
    return not is_child_of_job(job.metadata) and is_eligible(job, unmanaged)


def is_eligible(job: JobLike, unmanaged: Collection[str] = names.UNMANAGED_NAMESPACES) -> bool:
    """As `is_managed`, whatever controller the job claims to have."""
    if job.metadata.namespace in unmanaged:
        return False
    kind = kind_of(job)
    return bool(job.metadata.labels.get(names.QUEUE_LABEL)) and kind.managed_by(job) in (
        None,
        kind.controller,
    )


def has_foreign_owner(workload: Workload, parent: Workload | None = None) -> bool:
    """Whether somebody gave a Workload of a job another controller.

    The label tells which job it was made for; slices carry the label of their parent.

    Args:
        workload: any Workload.
        parent: of a slice, the Workload that it names as its controller.
    """
    owner = workload.metadata.controller
    if owner is None:
        return False
    if owner.uid == workload.metadata.uid:
        return True
    job_uid = workload.metadata.labels.get(names.JOB_UID_LABEL)
    if job_uid is None:
        return False
    if workload.parent is None:
        return job_uid != owner.uid
    return parent is not None and parent.metadata.labels.get(names.JOB_UID_LABEL) != job_uid


def is_owned_by(workload: Workload, uid: str) -> bool:
    """Whether the Workload's controller is the object with this uid."""
    owner = workload.metadata.controller
    return owner is not None and owner.uid == uid


def is_started(job: JobLike, templates: Iterable[PodTemplate]) -> bool:
    """Whether the start patch was applied and not yet undone.

    The start patch names the Workload in an annotation of the job itself, and the restoring patch
    takes it away, each in the same write as its template edits. So it tells a job that its owner
    suspended from one that was never started, whatever died in between. Should a tool of the user
    drop the annotation, the templates of a topology job still carry it.
    """
    key = names.WORKLOAD_ANNOTATION
    return key in job.metadata.annotations or any(
        key in annotations_of(pod_template.template) for pod_template in templates
    )


def has_lost_injection(kind: GenericJob[Any], job: JobLike, workload: Workload) -> bool:
    """Whether a template that was marked at the start lost a mark of it.

    A manifest that is applied anew replaces the worker groups of a RayCluster as a whole. Pods
    made from such a template would be held by nothing.
    """
    if not kind.needs_reinjection:
        return False
    with_topology = topology_by_podset(workload)
    for pod_template in kind.templates(job):
        gates = [names.TOPOLOGY_GATE] if with_topology.get(pod_template.podset) else []
        if workload.elastic and pod_template.podset in with_topology:
            gates.append(names.ELASTIC_GATE)
        if not gates:
            continue
        have, annotations = gates_of(pod_template.template), annotations_of(pod_template.template)
        injected = annotations.get(names.WORKLOAD_ANNOTATION) == workload.metadata.name
        if not injected or any(gate not in have for gate in gates):
            return True
    return False


def _is_reconcile_requested(job: JobLike) -> bool:
    """Whether the job's operator was asked to look again since its spec was last written."""
    requested_at = job.metadata.annotations.get(names.RECONCILE_REQUESTED_ANNOTATION)
    return requested_at == str(job.metadata.generation)


def topology_by_podset(workload: Workload) -> dict[str, bool]:
    """For each PodSet that was admitted: whether it has a topology assignment."""
    admission = workload.status.admission
    assignments = () if admission is None else admission.pod_set_assignments
    return {found.name: found.topology_assignment is not None for found in assignments}


def workload_annotation_ops(job: JobLike, workload: str) -> list[JsonPatchOp]:
    """Operations that mark a job as started under `workload`."""
    return _annotation_ops(job, names.WORKLOAD_ANNOTATION, workload)


def request_reconcile_ops(job: JobLike) -> list[JsonPatchOp]:
    """Operations after which the job's operator looks again: a change, and none of its spec."""
    return _annotation_ops(job, names.RECONCILE_REQUESTED_ANNOTATION, str(job.metadata.generation))


def _annotation_ops(job: JobLike, key: str, value: str) -> list[JsonPatchOp]:
    if not job.metadata.annotations:
        return [{"op": "add", "path": "/metadata/annotations", "value": {key: value}}]
    return [{"op": "add", "path": "/metadata/annotations" + pointer(key), "value": value}]


def _skip_needless_restore(action: StopAction, job: JobLike, *, started: bool) -> StopAction:
    """What a stop does next, given what its kind would do.

    RESTORE only for a job that was started: a template that was never ours to change keeps what
    its user edits while it waits.
    """
    if action.phase not in (StopPhase.RESTORE, StopPhase.DONE):
        return action
    if not started:
        return StopAction(StopPhase.DONE, [])
    operations = list(action.operations)
    if names.WORKLOAD_ANNOTATION in job.metadata.annotations:
        operations.append({"op": "remove", "path": _WORKLOAD_ANNOTATION_PATH})
    return StopAction(StopPhase.RESTORE if operations else StopPhase.DONE, operations)


def remove_creation_injection_ops(job: JobLike) -> list[JsonPatchOp]:
    """Operations that take the keys set at creation out of a suspended job's templates."""
    kind = kind_of(job)
    return remove_injection_ops(kind.templates(job)) if kind.is_suspended(job) else []


def resolve_priority(
    job: JobLike,
    workload_classes: Mapping[str, WorkloadPriorityClass],
    classes: Mapping[str, PriorityClass],
) -> Priority:
    """A job's priority: its WorkloadPriorityClass label, else its first template's PriorityClass.

    Without either, the PriorityClass that is the global default; else 0.
    """
    named = job.metadata.labels.get(names.PRIORITY_CLASS_LABEL)
    if named:
        found = workload_classes.get(named)
        if found is None:
            return Priority(missing=f"WorkloadPriorityClass/{named}")
        ref = {"group": names.GROUP, "kind": "WorkloadPriorityClass", "name": named}
        return Priority(found.value, ref)
    name = _priority_class(job)
    chosen = classes.get(name) if name else _global_default(classes)
    if chosen is None:
        return Priority(missing=f"PriorityClass/{name}") if name else Priority()
    ref = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": chosen.metadata.name}
    return Priority(chosen.value, ref)


def _priority_class(job: JobLike) -> str:
    templates = kind_of(job).templates(job)
    spec = section(templates[0].template, "spec") if templates else {}
    return str(spec.get("priorityClassName") or "")


def _global_default(classes: Mapping[str, PriorityClass]) -> PriorityClass | None:
    """The default class; with several, Kubernetes takes the one of the lowest value."""
    defaults = [item for item in classes.values() if item.global_default]
    return min(defaults, key=lambda item: (item.value, item.metadata.name), default=None)


def spec_ops(job: JobLike, workload: Workload, job_state: JobState) -> tuple[JsonPatchOp, ...]:
    """JSON patch operations that make a pending Workload ask for what the job asks for now."""
    ops: list[JsonPatchOp] = []
    queue = job.metadata.labels.get(names.QUEUE_LABEL, "")
    if queue != workload.spec.queue_name:
        ops.append({"op": "add", "path": "/spec/queueName", "value": queue})
    if podsets_differ(workload, job_state.podsets):
        ops.append({"op": "replace", "path": "/spec/podSets", "value": list(job_state.podsets)})
    return (*ops, *_elastic_ops(workload, job_state), *priority_ops(workload, job_state.priority))


def _elastic_ops(workload: Workload, job_state: JobState) -> list[JsonPatchOp]:
    """Operations that say on a pending Workload whether it may be resized while it runs."""
    if workload.elastic == job_state.elastic:
        return []
    if not job_state.elastic:
        return [{"op": "remove", "path": _ELASTIC_ANNOTATION_PATH}]
    if not workload.metadata.annotations:
        value = {names.ELASTIC_ANNOTATION: "true"}
        return [{"op": "add", "path": "/metadata/annotations", "value": value}]
    return [{"op": "add", "path": _ELASTIC_ANNOTATION_PATH, "value": "true"}]


def finalizer_ops(workload: Workload) -> tuple[JsonPatchOp, ...]:
    """JSON patch operations after which a Workload is let go by us alone.

    It is made so; an installation that was uninstalled took the finalizer off what it left.
    """
    finalizers = workload.metadata.finalizers
    if names.IN_USE_FINALIZER in finalizers:
        return ()
    value = [*finalizers, names.IN_USE_FINALIZER]
    return ({"op": "add", "path": "/metadata/finalizers", "value": value},)


def priority_ops(workload: Workload, priority: Priority) -> tuple[JsonPatchOp, ...]:
    """JSON patch operations that bring the Workload's priority up to date."""
    if priority.missing is not None:
        return ()
    ops: list[JsonPatchOp] = []
    if (workload.spec.priority or 0) != priority.value:
        ops.append({"op": "add", "path": "/spec/priority", "value": priority.value})
    present = _priority_class_ref_json(workload.spec.priority_class_ref)
    if present != priority.ref and priority.ref is None:
        ops.append({"op": "remove", "path": "/spec/priorityClassRef"})
    elif present != priority.ref and priority.ref is not None:
        value = dict(priority.ref)
        ops.append({"op": "add", "path": "/spec/priorityClassRef", "value": value})
    return tuple(ops)


def _priority_class_ref_json(ref: PriorityClassRef | None) -> dict[str, str] | None:
    return None if ref is None else {"group": ref.group, "kind": ref.kind, "name": ref.name}
