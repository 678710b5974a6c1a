"""What is read off a Job and its Workload before deciding what to do about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rackgate.api import names
from rackgate.api.workload_names import workload_name
from rackgate.govern.job import NextStep, StopPhase, podsets_of, restore_patch, stop_step
from rackgate.govern.job import template_of as template_of_job
from rackgate.govern.jsonpatch import JsonPatchOp, pointer
from rackgate.govern.templates import annotations_of, strip_reserved
from rackgate.wire.batch import Job
from rackgate.wire.core import PriorityClass
from rackgate.wire.kueue import (
    PodSet,
    PriorityClassRef,
    Workload,
    WorkloadPriorityClass,
)

KIND: Final = "Job"
GROUP: Final = "batch"
NATIVE_CONTROLLER: Final = "kubernetes.io/job-controller"
_MARK: Final = "/metadata/annotations" + pointer(names.WORKLOAD_ANNOTATION)


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
    """What the table of `jobs_plan` looks at besides the objects themselves.

    Attributes:
        podsets: what the Job asks for now, as a Workload stores it.
        priority: resolved from the Job's labels and template.
        started: the start patch was applied and not yet undone, see `is_started`.
        stop: what a stop of the Job would do next, see `stop_of`.
    """

    podsets: Sequence[Mapping[str, Any]] = ()
    priority: Priority = field(default_factory=Priority)
    started: bool = False
    stop: NextStep = field(default_factory=lambda: NextStep(StopPhase.DONE, []))

    @property
    def at_rest(self) -> bool:
        """Whether the Job is suspended and runs nothing: its template may be written."""
        return self.stop.phase in (StopPhase.RESTORE, StopPhase.DONE)

    @property
    def stopped(self) -> bool:
        """Whether the Job is at rest and its template is the user's."""
        return self.stop.phase is StopPhase.DONE


def facts_of(job: Job, workload: Workload | None, priority: Priority) -> Facts:
    """Everything about one Job and the Workload that keeps its template."""
    template = template_of_job(job)
    original = None
    if workload is not None and workload.spec.pod_sets:
        original = msgspec.json.decode(workload.spec.pod_sets[0].template)
    started = is_started(job, template)
    stop = stop_of(job, template, original, started=started)
    return Facts(podsets_of(job), priority, started, stop)


def name_of(job: Job) -> str:
    """The one name of a Job's Workload."""
    return workload_name(KIND, GROUP, job.metadata.name, job.metadata.uid)


def unmanaged_namespaces(system: str) -> frozenset[str]:
    """Where nothing is governed, with the services installed in namespace `system`."""
    return frozenset(names.UNMANAGED_NAMESPACES) - {names.SYSTEM_NAMESPACE} | {system}


def governs(job: Job, unmanaged: Collection[str] = names.UNMANAGED_NAMESPACES) -> bool:
    """Whether Rackgate acts on this Job: queue label present and no foreign controller.

    Jobs of `unmanaged` namespaces are left alone, label or not.
    """
    if job.metadata.namespace in unmanaged:
        return False
    managed_by = job.spec.managed_by
    return bool(job.metadata.labels.get(names.QUEUE_LABEL)) and managed_by in (
        None,
        NATIVE_CONTROLLER,
    )


def owned_by(workload: Workload, uid: str) -> bool:
    """Whether the Workload's controller is the object with this uid."""
    owner = workload.metadata.controller
    return owner is not None and owner.uid == uid


def is_started(job: Job, template: Mapping[str, Any]) -> bool:
    """Whether the start patch was applied and not yet undone.

    The start patch names the Workload in an annotation of the Job itself, and the restoring patch
    takes it away, each in the same write as its template edits. So it tells a Job that its owner
    suspended from one that was never started, whatever died in between. Should a tool of the user
    drop the annotation, the template of a topology job still carries it.
    """
    key = names.WORKLOAD_ANNOTATION
    return key in job.metadata.annotations or key in annotations_of(template)


def mark_ops(job: Job, workload: str) -> list[JsonPatchOp]:
    """Operations that mark a Job as started under `workload`."""
    if not job.metadata.annotations:
        value = {names.WORKLOAD_ANNOTATION: workload}
        return [{"op": "add", "path": "/metadata/annotations", "value": value}]
    return [{"op": "add", "path": _MARK, "value": workload}]


def stop_of(
    job: Job,
    template: Mapping[str, Any],
    original: Mapping[str, Any] | None,
    *,
    started: bool,
) -> NextStep:
    """What a stop of the Job would do next.

    Args:
        job: as stored now.
        template: its pod template.
        original: the user's template as its Workload keeps it; None when there is no Workload,
            then only our own keys are taken out.
        started: see `is_started`.

    Returns:
        RESTORE only for a Job that was started: a template that was never ours to change keeps
        what its user edits while it waits.
    """
    step = stop_step(job, strip_reserved(template) if original is None else original)
    if step.phase not in (StopPhase.RESTORE, StopPhase.DONE):
        return step
    if not started:
        return NextStep(StopPhase.DONE, [])
    operations = list(step.operations)
    if names.WORKLOAD_ANNOTATION in job.metadata.annotations:
        operations.append({"op": "remove", "path": _MARK})
    return NextStep(StopPhase.RESTORE if operations else StopPhase.DONE, operations)


def creation_marks(job: Job) -> list[JsonPatchOp]:
    """Operations that take the keys set at creation out of a suspended Job's template."""
    if not job.spec.suspend:
        return []
    template = template_of_job(job)
    return restore_patch(template, strip_reserved(template)) or []


def resolve_priority(
    job: Job,
    workload_classes: Mapping[str, WorkloadPriorityClass],
    classes: Mapping[str, PriorityClass],
) -> Priority:
    """A Job's priority: its WorkloadPriorityClass label, else its template's PriorityClass.

    Without either, the PriorityClass that is the global default; else 0.
    """
    named = job.metadata.labels.get(names.PRIORITY_CLASS_LABEL)
    if named:
        found = workload_classes.get(named)
        if found is None:
            return Priority(missing=f"WorkloadPriorityClass/{named}")
        ref = {"group": names.GROUP, "kind": "WorkloadPriorityClass", "name": named}
        return Priority(found.value, ref)
    spec = template_of_job(job).get("spec") or {}
    name = spec.get("priorityClassName") or ""
    chosen = classes.get(name) if name else _global_default(classes)
    if chosen is None:
        return Priority(missing=f"PriorityClass/{name}") if name else Priority()
    ref = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": chosen.metadata.name}
    return Priority(chosen.value, ref)


def _global_default(classes: Mapping[str, PriorityClass]) -> PriorityClass | None:
    """The default class; with several, Kubernetes takes the one of the lowest value."""
    defaults = [item for item in classes.values() if item.global_default]
    return min(defaults, key=lambda item: (item.value, item.metadata.name), default=None)


def has_topology(workload: Workload) -> bool:
    """Whether any PodSet was given a topology assignment."""
    admission = workload.status.admission
    return admission is not None and any(
        assignment.topology_assignment is not None for assignment in admission.pod_set_assignments
    )


def pods_given(workload: Workload) -> int:
    """Pods of all PodSets."""
    return sum(podset.count for podset in workload.spec.pod_sets)


def spec_ops(job: Job, workload: Workload, facts: Facts) -> tuple[JsonPatchOp, ...]:
    """JSON patch operations that make a pending Workload ask for what the Job asks for now."""
    ops: list[JsonPatchOp] = []
    queue = job.metadata.labels.get(names.QUEUE_LABEL, "")
    if queue != workload.spec.queue_name:
        ops.append({"op": "add", "path": "/spec/queueName", "value": queue})
    if podsets_differ(workload, facts.podsets):
        ops.append({"op": "replace", "path": "/spec/podSets", "value": list(facts.podsets)})
    return (*ops, *priority_ops(workload, facts.priority))


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


def podsets_differ(workload: Workload, wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the Workload's PodSets ask for something else than `wanted`."""
    present = [_plain(podset) for podset in workload.spec.pod_sets]
    if present == wanted:
        return False
    return [_without_empty(podset) for podset in present] != [
        _without_empty(podset) for podset in wanted
    ]


def _plain(podset: PodSet) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": podset.name,
        "count": podset.count,
        "template": msgspec.json.decode(podset.template),
    }
    if podset.min_count is not None:
        plain["minCount"] = podset.min_count
    if podset.topology_request is not None:
        plain["topologyRequest"] = _without_empty(msgspec.to_builtins(podset.topology_request))
    return plain


def _without_empty(value: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping without nulls and empty containers at any depth.

    The API server may store an absent field as empty or the reverse; neither is a change.
    """
    return {key: kept for key, item in value.items() if not _empty(kept := _compact(item))}


def _compact(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _without_empty(value)
    if isinstance(value, (list, tuple)):
        return [_compact(item) for item in value]
    return value


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, (dict, list)) and not value)
