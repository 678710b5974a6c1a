"""batch/v1 Job: its PodSets, its mutation at creation, and the patches that start and stop it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from rackgate.api.names import (
    COMPLETION_INDEX_LABEL,
    PODSET_LABEL,
    TAS_LABEL,
    TAS_LABEL_VALUE,
    TOPOLOGY_GATE,
    WORKLOAD_ANNOTATION,
)
from rackgate.govern.errors import shown
from rackgate.govern.jsonpatch import JsonPatchOp
from rackgate.govern.predicates import is_governed
from rackgate.govern.templates import (
    Template,
    items,
    labels_of,
    replaced,
    section,
    strip_reserved,
    template_patch,
    with_entries,
    with_gate,
)
from rackgate.govern.topology import asks_for_topology, topology_request
from rackgate.wire.batch import Job
from rackgate.wire.core import Toleration

PODSET: Final = "main"
TEMPLATE_PATH: Final = "spec.template"
TEMPLATE_POINTER: Final = "/spec/template"
SUSPEND: Final[JsonPatchOp] = {"op": "add", "path": "/spec/suspend", "value": True}
UNSUSPEND: Final[JsonPatchOp] = {"op": "add", "path": "/spec/suspend", "value": False}

JobLike = Mapping[str, Any] | Job


@dataclass(frozen=True, slots=True)
class StartPatch:
    """JSON patch operations that start a Job; `guarded` binds them to one version of it."""

    operations: list[JsonPatchOp]


@dataclass(frozen=True, slots=True)
class StartConflict:
    """A key of the user that a flavor wants to have another value: the Job cannot start.

    Attributes:
        path: of the map in the Job, `spec.template.spec.nodeSelector`.
        key: the label key.
        have: the user's value.
        want: the flavor's value.
    """

    path: str
    key: str
    have: str
    want: str

    def __str__(self) -> str:
        """The message of the FailedToStart condition."""
        return (
            f"{self.path}[{self.key}]: the job asks for {shown(self.have)}, the assigned flavor's"
            f" nodes have {shown(self.want)}; remove the key or use another queue"
        )


class StopPhase(StrEnum):
    """What the stop of a Job needs next."""

    SUSPEND = "suspend"
    WAIT = "wait"
    RESTORE = "restore"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class NextStep:
    """One step of a stop; `operations` is empty while waiting and when done."""

    phase: StopPhase
    operations: list[JsonPatchOp]


def template_of(job: JobLike) -> dict[str, Any]:
    """The pod template of a Job as plain JSON."""
    if isinstance(job, Job):
        decoded: dict[str, Any] = msgspec.json.decode(job.spec.template)
        return decoded
    return dict(section(section(job, "spec"), "template", "spec"))


def pod_count(job: Mapping[str, Any]) -> int:
    """Pods that run at once: min(parallelism, completions), never negative."""
    spec = section(job, "spec")
    parallelism = _whole(spec.get("parallelism"), default=1)
    completions = _whole(spec.get("completions"), default=parallelism)
    return max(0, min(parallelism, completions))


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def podsets_of(job: JobLike) -> list[dict[str, Any]]:
    """The PodSets of a Job, as a Workload stores them.

    Returns:
        One PodSet `main`: name, count, template without our reserved keys, and topologyRequest
        when the template asks for topology. Indexed Jobs name the label that carries the rank.
    """
    template = strip_reserved(template_of(job))
    if isinstance(job, Job):
        count, indexed = max(0, job.pod_count), job.indexed
    else:
        count = pod_count(job)
        indexed = section(job, "spec").get("completionMode") == "Indexed"
    podset: dict[str, Any] = {"name": PODSET, "count": count, "template": template}
    request = topology_request(template, index_label=COMPLETION_INDEX_LABEL if indexed else None)
    if request is not None:
        podset["topologyRequest"] = request
    return [podset]


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Whether `spec.suspend` is true."""
    return section(job, "spec").get("suspend") is True


def govern_job(job: Mapping[str, Any]) -> list[JsonPatchOp]:
    """What a Job is given at creation, or when it gets its queue label while suspended.

    A governed Job is suspended; a template that asks for topology gets the topology gate and
    the podset label. Its own output and ungoverned Jobs need no operation.
    """
    if not is_governed(job):
        return []
    template = template_of(job)
    operations = [] if is_suspended(job) else [dict(SUSPEND)]
    return operations + template_patch(template, _created(template), TEMPLATE_POINTER)


def release_job(job: Mapping[str, Any]) -> list[JsonPatchOp]:
    """Takes Rackgate's keys out of a suspended Job that lost its queue label."""
    template = template_of(job)
    return template_patch(template, strip_reserved(template), TEMPLATE_POINTER)


def _created(template: Template) -> dict[str, Any]:
    if not asks_for_topology(template):
        return dict(template)
    # A podset label of the user's own stays as it is, so that it is refused and not papered over.
    marks = {} if PODSET_LABEL in labels_of(template) else {PODSET_LABEL: PODSET}
    return with_gate(with_entries(template, "metadata", "labels", marks), TOPOLOGY_GATE)


def started_template(
    template: Template,
    podset: str,
    *,
    workload: str,
    tas: bool,
    node_labels: Mapping[str, str],
    tolerations: Sequence[Mapping[str, Any] | Toleration],
) -> dict[str, Any] | StartConflict:
    """What a template looks like once its Job runs; see `start_patch`."""
    selector = section(section(template, "spec"), "nodeSelector")
    for key, want in sorted(node_labels.items()):
        if selector.get(key, want) != want:
            path = f"{TEMPLATE_PATH}.spec.nodeSelector"
            return StartConflict(path, key, str(selector[key]), want)
    started = strip_reserved(template)
    if tas:
        marks = {PODSET_LABEL: podset, TAS_LABEL: TAS_LABEL_VALUE}
        started = with_entries(started, "metadata", "labels", marks)
        workload_mark = {WORKLOAD_ANNOTATION: workload}
        started = with_entries(started, "metadata", "annotations", workload_mark)
        # On the template as it came: a gate set at creation keeps its place in the list.
        kept = section(template, "spec").get("schedulingGates")
        started = with_gate(replaced(started, "spec", "schedulingGates", kept), TOPOLOGY_GATE)
    started = with_entries(started, "spec", "nodeSelector", node_labels)
    return _with_tolerations(started, tolerations)


def _with_tolerations(
    template: Template, tolerations: Sequence[Mapping[str, Any] | Toleration]
) -> dict[str, Any]:
    have = [dict(entry) for entry in items(section(template, "spec"), "tolerations")]
    missing: list[dict[str, Any]] = []
    for toleration in tolerations:
        entry = _toleration_json(toleration)
        if entry not in have and entry not in missing:
            missing.append(entry)
    if not missing:
        return dict(template)
    return replaced(template, "spec", "tolerations", [*have, *missing])


def _toleration_json(toleration: Mapping[str, Any] | Toleration) -> dict[str, Any]:
    if isinstance(toleration, Toleration):
        toleration = {
            "key": toleration.key,
            "operator": toleration.operator,
            "value": toleration.value,
            "effect": toleration.effect,
            "tolerationSeconds": toleration.toleration_seconds,
        }
    return {key: value for key, value in toleration.items() if value not in ("", None)}


def start_patch(
    job_template: Template,
    podset: str,
    *,
    workload: str,
    tas: bool,
    node_labels: Mapping[str, str],
    tolerations: Sequence[Mapping[str, Any] | Toleration],
) -> StartPatch | StartConflict:
    """The one write that starts a Job.

    Args:
        job_template: the template as stored in the Job, in its created or restored form.
        podset: name of its PodSet.
        workload: name of the Workload that was admitted.
        tas: the PodSet has a topology assignment. If so the template gets topology gate,
            workload annotation, podset label and tas label; if not it gets none of them.
        node_labels: of the assigned flavor, merged into the nodeSelector.
        tolerations: of the assigned flavor, appended unless already there.

    Returns:
        The operations for the Job (`suspend: false` first), or the key that stands in the way.
        Applied to its own result only `suspend: false` is left.
    """
    started = started_template(
        job_template,
        podset,
        workload=workload,
        tas=tas,
        node_labels=node_labels,
        tolerations=tolerations,
    )
    if isinstance(started, StartConflict):
        return started
    return StartPatch([dict(UNSUSPEND), *template_patch(job_template, started, TEMPLATE_POINTER)])


def restore_patch(job_template: Template, original_template: Template) -> list[JsonPatchOp] | None:
    """Operations that bring the template of a stopped Job back to the user's.

    Labels, annotations, nodeSelector, tolerations and schedulingGates become those of
    `original_template`, the template that the Workload stores.

    Returns:
        None when the template is restored already.
    """
    return template_patch(job_template, original_template, TEMPLATE_POINTER) or None


def stop_step(job: JobLike, original_template: Template) -> NextStep:
    """What a stop must do next, judged from the Job alone, so that any crash can be resumed.

    The API server lets the template of a Job change only after suspension has taken effect:
    suspend, wait until no pod is active and condition Suspended is True (or the Job never
    started), then restore.
    """
    view = job if isinstance(job, Job) else msgspec.convert(job_view(job), Job)
    if not view.spec.suspend:
        return NextStep(StopPhase.SUSPEND, [dict(SUSPEND)])
    condition = view.status.condition("Suspended")
    settled = view.status.start_time is None or (
        condition is not None and condition.status == "True"
    )
    if view.status.active or not settled:
        return NextStep(StopPhase.WAIT, [])
    restore = restore_patch(template_of(job), original_template)
    return NextStep(StopPhase.RESTORE, restore) if restore else NextStep(StopPhase.DONE, [])


def job_view(job: Mapping[str, Any]) -> dict[str, Any]:
    """Suspension and status of a Job given as plain JSON, in the shape of the wire view."""
    suspend = {"suspend": is_suspended(job)}
    return {"spec": suspend, "status": dict(section(job, "status"))}
