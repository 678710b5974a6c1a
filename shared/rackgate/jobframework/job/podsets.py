"""batch/v1 Job: its PodSets, its mutation at creation, and the steps that stop it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rackgate.api.names import COMPLETION_INDEX_LABEL, ELASTIC_ANNOTATION
from rackgate.jobframework.injection import (
    PodTemplate,
    StopAction,
    StopPhase,
    injection_ops,
    remove_injection_ops,
)
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.managed import is_managed
from rackgate.jobframework.templates import (
    Template,
    annotations_of,
    section,
    strip_reserved,
    template_patch,
    validated_template,
)
from rackgate.jobframework.topology_request import topology_request
from rackgate.wire.batch import Job

PODSET: Final = "main"
TEMPLATE_PATH: Final = "spec.template"
TEMPLATE_POINTER: Final = "/spec/template"
SUSPEND: Final[JsonPatchOp] = {"op": "add", "path": "/spec/suspend", "value": True}
UNSUSPEND: Final[JsonPatchOp] = {"op": "add", "path": "/spec/suspend", "value": False}

JobOrManifest = Mapping[str, Any] | Job


def template_of(job: JobOrManifest) -> dict[str, Any]:
    """The pod template of a Job as plain JSON."""
    if isinstance(job, Job):
        decoded: dict[str, Any] = msgspec.json.decode(job.spec.template)
        return decoded
    return dict(section(section(job, "spec"), "template", "spec"))


def pod_count(job: Mapping[str, Any]) -> int:
    """Pods that run at once: min(parallelism, completions), never negative."""
    return max_running_pods(section(job, "spec"))


def max_running_pods(spec: Mapping[str, Any]) -> int:
    """As `pod_count`, for a JobSpec."""
    parallelism = int_or_default(spec.get("parallelism"), default=1)
    completions = int_or_default(spec.get("completions"), default=parallelism)
    return max(0, min(parallelism, completions))


def int_or_default(value: object, default: int) -> int:
    """A whole number of a manifest; `default` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def podsets_of(job: JobOrManifest) -> list[dict[str, Any]]:
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


def is_elastic(job: Mapping[str, Any]) -> bool:
    """Whether the Job asks to be resized by its parallelism while it runs."""
    indexed = section(job, "spec").get("completionMode") == "Indexed"
    return indexed and annotations_of(job).get(ELASTIC_ANNOTATION) == "true"


def templates_of(job: Mapping[str, Any], *, elastic: bool = False) -> list[PodTemplate]:
    """The one pod template of a Job; `elastic`: its pods wait for grants of their own."""
    return [_pod_template(validated_template(template_of(job), TEMPLATE_PATH), elastic=elastic)]


def inject_job(job: Mapping[str, Any], *, elastic_enabled: bool = False) -> list[JsonPatchOp]:
    """What a Job is given at creation, or when it gets its queue label while suspended.

    A governed Job is suspended; a template that asks for topology gets the topology gate and
    the podset label. Its own output and ungoverned Jobs need no operation.

    Args:
        job: as it came.
        elastic_enabled: Jobs that ask for it may be resized in slices: their pods are held.
    """
    if not is_managed(job):
        return []
    operations = [] if is_suspended(job) else [dict(SUSPEND)]
    return operations + injection_ops(
        templates_of(job, elastic=elastic_enabled and is_elastic(job))
    )


def remove_job_injection(job: Mapping[str, Any]) -> list[JsonPatchOp]:
    """Takes Rackgate's keys out of a suspended Job that lost its queue label."""
    return remove_injection_ops(templates_of(job))


def _pod_template(
    template: Template, podset: str = PODSET, *, elastic: bool = False
) -> PodTemplate:
    return PodTemplate(podset, TEMPLATE_PATH, TEMPLATE_POINTER, template, elastic)


def restore_patch(job_template: Template, original_template: Template) -> list[JsonPatchOp] | None:
    """Operations that bring the template of a stopped Job back to the user's.

    Labels, annotations, nodeSelector, tolerations and schedulingGates become those of
    `original_template`, the template that the Workload stores.

    Returns:
        None when the template is restored already.
    """
    return template_patch(job_template, original_template, TEMPLATE_POINTER) or None


def next_stop_action(job: JobOrManifest, original_template: Template) -> StopAction:
    """What a stop must do next, judged from the Job alone, so that any crash can be resumed.

    The API server lets the template of a Job change only after suspension has taken effect:
    suspend, wait until no pod is active and condition Suspended is True (or the Job never
    started), then restore.
    """
    wire_job = job if isinstance(job, Job) else msgspec.convert(wire_view(job), Job)
    if not wire_job.spec.suspend:
        return StopAction(StopPhase.SUSPEND, [dict(SUSPEND)])
    condition = wire_job.status.condition("Suspended")
    is_suspension_effective = wire_job.status.start_time is None or (
        condition is not None and condition.status == "True"
    )
    if wire_job.status.active or not is_suspension_effective:
        return StopAction(StopPhase.WAIT, [])
    restore = restore_patch(template_of(job), original_template)
    return StopAction(StopPhase.RESTORE, restore) if restore else StopAction(StopPhase.DONE, [])


def wire_view(job: Mapping[str, Any]) -> dict[str, Any]:
    """Suspension and status of a Job given as plain JSON, in the shape of the wire view."""
    suspend = {"suspend": is_suspended(job)}
    return {"spec": suspend, "status": dict(section(job, "status"))}
