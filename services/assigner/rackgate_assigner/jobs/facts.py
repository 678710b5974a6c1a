"""What is read off a job and its Workload before deciding what to do about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api import names
from rackgate.api.workload_names import workload_name
from rackgate.features import DEFAULTS, Features
from rackgate.jobframework.injection import Given, NextStep, PodTemplate, StopPhase, release_ops
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
    End,
    JobLike,
    Kind,
    StalePart,
    kind_of,
    part_of_owner,
)
from rackgate_assigner.jobs.kinds.podsets import counts_of, originals_of, podsets_differ

_MARK: Final = "/metadata/annotations" + pointer(names.WORKLOAD_ANNOTATION)
_ELASTIC: Final = "/metadata/annotations" + pointer(names.ELASTIC_ANNOTATION)


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
class Facts:
    """What the table of `jobs_plan` looks at: one job of any kind, beside its Workload.

    Attributes:
        kind: the kind of the job, for messages.
        podsets: what the job asks for now, as a Workload stores it.
        pod_count: pods of all of them.
        priority: resolved from the job's labels and first template.
        suspended: `spec.suspend`.
        end: how the job ended, None while it has not.
        started: the start patch was applied and not yet undone, see `is_started`.
        stop: what a stop of the job would do next.
        stale: children of the stopped job that still carry what an earlier admission brought.
        elastic: with other counts than its Workload's the job is resized, not queued again. The
            Workload of such a job carries the annotation `names.ELASTIC_ANNOTATION`.
        changed: why the running job has to be queued again, None when it has not.
        unmarked: templates of the running job lost what its start brought.
        ready: all pods of the running job that are due are ready or have succeeded.
        late: when its Workload is queued again after an eviction, because pods that were lost were
            not all ready again in time; None while they may be.
        paused: seconds until its evicted Workload is queued again, None when that does not wait.
        overdue_s: seconds after which the operator of the running job, whose pods are not all
            ready, is to be asked to look again; None when it is not, or was since the last change.
        reclaimable: pods that are done and come no more, by PodSet.
        living: pods that hold quota until they are gone, those that are being deleted included.
        beyond: pods that run beyond those admitted, in PodSets where no gate holds them.
    """

    kind: str = "Job"
    podsets: Sequence[Mapping[str, Any]] = ()
    pod_count: int = 0
    priority: Priority = field(default_factory=Priority)
    suspended: bool = True
    end: End | None = None
    started: bool = False
    stop: NextStep = field(default_factory=lambda: NextStep(StopPhase.DONE, []))
    stale: Sequence[StalePart] = ()
    elastic: bool = False
    changed: str | None = None
    unmarked: bool = False
    ready: bool = False
    late: RequeueState | None = None
    paused: float | None = None
    overdue_s: float | None = None
    reclaimable: Mapping[str, int] = field(default_factory=dict)
    living: int = 0
    beyond: int = 0

    @property
    def at_rest(self) -> bool:
        """Whether the job is suspended and runs nothing: its templates may be written."""
        return self.stop.phase in (StopPhase.RESTORE, StopPhase.DONE)

    @property
    def stopped(self) -> bool:
        """Whether the job is at rest, its pods are gone, and all its templates are the user's."""
        return self.stop.phase is StopPhase.DONE and not self.stale and not self.living


def facts_of(
    job: JobLike,
    workload: Workload | None,
    priority: Priority,
    *,
    parts: Sequence[Job] = (),
    features: Features = DEFAULTS,
    given: Mapping[str, Given] | None = None,
    bare: bool = False,
    living: int = 0,
    beyond: int = 0,
) -> Facts:
    """Everything about one job and the Workload that keeps its templates.

    Args:
        job: as stored, of any kind.
        workload: its Workload, if there is one.
        priority: as resolved.
        parts: its child Jobs, for kinds that have any.
        features: feature gates.
        given: what its start brought into its templates, where that is certain; by PodSet.
        bare: templates of the running job lost what its flavors brought.
        living: bound pods that have not ended; 0 where they do not hold quota.
        beyond: see `Facts`.
    """
    kind = kind_of(job)
    started = is_started(job, kind.templates(job))
    stop = _unless_restored(
        kind.stop(job, originals_of(workload), parts, given or {}), job, started=started
    )
    at_rest = stop.phase in (StopPhase.RESTORE, StopPhase.DONE)
    podsets = kind.podsets(job)
    elastic, suspended = kind.elastic(job, features), kind.suspended(job)
    under = None if suspended else workload
    resizable = elastic and under is not None and under.elastic
    changed = kind.changed(job, under, podsets, elastic=resizable) if under is not None else None
    ready = under is not None and kind.ready(job, counts_of(under))
    return Facts(
        kind=kind.name,
        podsets=podsets,
        pod_count=kind.pod_count(job),
        priority=priority,
        suspended=suspended,
        end=kind.end(job),
        started=started,
        stop=stop,
        stale=kind.stale_parts(job, parts) if at_rest else (),
        elastic=elastic,
        changed=changed,
        unmarked=under is not None and started and (bare or is_unmarked(kind, job, under)),
        ready=ready,
        overdue_s=None if suspended or ready or _is_reminded(job) else kind.forgets_s,
        reclaimable=kind.reclaimable(job),
        living=living,
        beyond=beyond,
    )


def name_of(job: JobLike) -> str:
    """The one name of a job's Workload."""
    resource = kind_of(job).resource
    return workload_name(resource.kind, resource.group, job.metadata.name, job.metadata.uid)


def unmanaged_namespaces(system: str) -> frozenset[str]:
    """Where nothing is governed, with the services installed in namespace `system`."""
    return frozenset(names.UNMANAGED_NAMESPACES) - {names.SYSTEM_NAMESPACE} | {system}


def governs(job: JobLike, unmanaged: Collection[str] = names.UNMANAGED_NAMESPACES) -> bool:
    """Whether Rackgate acts on this job.

    It does when the job carries the queue label, is run by its kind's own controller, and is no
    part of another. Jobs of `unmanaged` namespaces are left alone, label or not.
    """
    return not part_of_owner(job.metadata) and is_managed(job, unmanaged)


def is_managed(job: JobLike, unmanaged: Collection[str] = names.UNMANAGED_NAMESPACES) -> bool:
    """As `governs`, whatever controller the job claims to have."""
    if job.metadata.namespace in unmanaged:
        return False
    kind = kind_of(job)
    return bool(job.metadata.labels.get(names.QUEUE_LABEL)) and kind.managed_by(job) in (
        None,
        kind.controller,
    )


def has_strange_owner(workload: Workload, parent: Workload | None = None) -> bool:
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
    made_for = workload.metadata.labels.get(names.JOB_UID_LABEL)
    if made_for is None:
        return False
    if workload.parent is None:
        return made_for != owner.uid
    return parent is not None and parent.metadata.labels.get(names.JOB_UID_LABEL) != made_for


def owned_by(workload: Workload, uid: str) -> bool:
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
        key in annotations_of(part.template) for part in templates
    )


def is_unmarked(kind: Kind[Any], job: JobLike, workload: Workload) -> bool:
    """Whether a template that was marked at the start lost a mark of it.

    A manifest that is applied anew replaces the worker groups of a RayCluster as a whole. Pods
    made from such a template would be held by nothing.
    """
    if not kind.remarks:
        return False
    placed = placed_of(workload)
    for part in kind.templates(job):
        gates = [names.TOPOLOGY_GATE] if placed.get(part.podset) else []
        if workload.elastic and part.podset in placed:
            gates.append(names.ELASTIC_GATE)
        if not gates:
            continue
        have, notes = gates_of(part.template), annotations_of(part.template)
        marked = notes.get(names.WORKLOAD_ANNOTATION) == workload.metadata.name
        if not marked or any(gate not in have for gate in gates):
            return True
    return False


def _is_reminded(job: JobLike) -> bool:
    """Whether the job's operator was asked to look again since its spec was last written."""
    at = job.metadata.annotations.get(names.REMINDED_ANNOTATION)
    return at == str(job.metadata.generation)


def placed_of(workload: Workload) -> dict[str, bool]:
    """For each PodSet that was admitted: whether it has a topology assignment."""
    admission = workload.status.admission
    given = () if admission is None else admission.pod_set_assignments
    return {found.name: found.topology_assignment is not None for found in given}


def mark_ops(job: JobLike, workload: str) -> list[JsonPatchOp]:
    """Operations that mark a job as started under `workload`."""
    return _annotate(job, names.WORKLOAD_ANNOTATION, workload)


def remind_ops(job: JobLike) -> list[JsonPatchOp]:
    """Operations after which the job's operator looks again: a change, and none of its spec."""
    return _annotate(job, names.REMINDED_ANNOTATION, str(job.metadata.generation))


def _annotate(job: JobLike, key: str, value: str) -> list[JsonPatchOp]:
    if not job.metadata.annotations:
        return [{"op": "add", "path": "/metadata/annotations", "value": {key: value}}]
    return [{"op": "add", "path": "/metadata/annotations" + pointer(key), "value": value}]


def _unless_restored(step: NextStep, job: JobLike, *, started: bool) -> NextStep:
    """What a stop does next, given what its kind would do.

    RESTORE only for a job that was started: a template that was never ours to change keeps what
    its user edits while it waits.
    """
    if step.phase not in (StopPhase.RESTORE, StopPhase.DONE):
        return step
    if not started:
        return NextStep(StopPhase.DONE, [])
    operations = list(step.operations)
    if names.WORKLOAD_ANNOTATION in job.metadata.annotations:
        operations.append({"op": "remove", "path": _MARK})
    return NextStep(StopPhase.RESTORE if operations else StopPhase.DONE, operations)


def creation_marks(job: JobLike) -> list[JsonPatchOp]:
    """Operations that take the keys set at creation out of a suspended job's templates."""
    kind = kind_of(job)
    return release_ops(kind.templates(job)) if kind.suspended(job) else []


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


def spec_ops(job: JobLike, workload: Workload, facts: Facts) -> tuple[JsonPatchOp, ...]:
    """JSON patch operations that make a pending Workload ask for what the job asks for now."""
    ops: list[JsonPatchOp] = []
    queue = job.metadata.labels.get(names.QUEUE_LABEL, "")
    if queue != workload.spec.queue_name:
        ops.append({"op": "add", "path": "/spec/queueName", "value": queue})
    if podsets_differ(workload, facts.podsets):
        ops.append({"op": "replace", "path": "/spec/podSets", "value": list(facts.podsets)})
    return (*ops, *_elastic_ops(workload, facts), *priority_ops(workload, facts.priority))


def _elastic_ops(workload: Workload, facts: Facts) -> list[JsonPatchOp]:
    """Operations that say on a pending Workload whether it may be resized while it runs."""
    if workload.elastic == facts.elastic:
        return []
    if not facts.elastic:
        return [{"op": "remove", "path": _ELASTIC}]
    if not workload.metadata.annotations:
        value = {names.ELASTIC_ANNOTATION: "true"}
        return [{"op": "add", "path": "/metadata/annotations", "value": value}]
    return [{"op": "add", "path": _ELASTIC, "value": "true"}]


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
    present = _ref_json(workload.spec.priority_class_ref)
    if present != priority.ref and priority.ref is None:
        ops.append({"op": "remove", "path": "/spec/priorityClassRef"})
    elif present != priority.ref and priority.ref is not None:
        value = dict(priority.ref)
        ops.append({"op": "add", "path": "/spec/priorityClassRef", "value": value})
    return tuple(ops)


def _ref_json(ref: PriorityClassRef | None) -> dict[str, str] | None:
    return None if ref is None else {"group": ref.group, "kind": ref.kind, "name": ref.name}
