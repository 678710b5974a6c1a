"""Jobs for the KAI scheduler: translate the requests of the template to annotations of the Job.

KAI creates the PodGroup of a Job from labels and annotations of the Job. So Rackgate writes only
the Job's metadata, never its template: KAI's queue label replaces ours, with the same queue name.
From then on Rackgate does not manage the Job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api.names import (
    ELASTIC_ANNOTATION,
    POD_INDEX_OFFSET,
    PODSET_GROUP,
    PREFERRED_TOPOLOGY,
    PRIORITY_CLASS_LABEL,
    QUEUE_LABEL,
    REQUIRED_TOPOLOGY,
    SLICE_CONSTRAINTS,
    SLICE_REQUIRED_TOPOLOGY,
    SLICE_SIZE,
    UNCONSTRAINED_TOPOLOGY,
)
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.job.batch_job import TEMPLATE_PATH, max_running_pods, template_of
from rackgate.jobframework.jsonpatch import JsonPatchOp, map_patch
from rackgate.jobframework.managed import is_managed, queue_of
from rackgate.jobframework.templates import (
    annotations_of,
    is_suspended,
    items,
    labels_of,
    section,
    validated_template,
)
from rackgate.jobframework.topology_request import topology_errors, topology_request

KAI_SCHEDULER: Final = "kai-scheduler"
KAI_QUEUE: Final = "kai.scheduler/queue"
KAI_TOPOLOGY: Final = "kai.scheduler/topology"
KAI_REQUIRED: Final = "kai.scheduler/topology-required-placement"
KAI_PREFERRED: Final = "kai.scheduler/topology-preferred-placement"

_LEVELS: Final = ((KAI_REQUIRED, REQUIRED_TOPOLOGY), (KAI_PREFERRED, PREFERRED_TOPOLOGY))
_ANNOTATIONS_PATH: Final = f"{TEMPLATE_PATH}.metadata.annotations"
_SLICES: Final = (SLICE_REQUIRED_TOPOLOGY, SLICE_SIZE, SLICE_CONSTRAINTS)
_OR_USE_RACKGATE: Final = f"or remove {KAI_SCHEDULER} from {TEMPLATE_PATH}.spec.schedulerName"

Job = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """The KAI settings of this cluster.

    Attributes:
        topology: KAI's Topology of Jobs that do not name one; empty for none.
        jobs_grouped: all pods of a Job are one PodGroup, so levels apply to them together.
            Older versions of KAI create a PodGroup for each pod.
        both_levels: gate RackgateRequiredAndPreferred: both levels may be requested together.
    """

    topology: str = ""
    jobs_grouped: bool = False
    both_levels: bool = False


@dataclass(frozen=True, slots=True)
class RenderResult:
    """The result for a Job: either operations or errors.

    Attributes:
        operations: JSON patch of the Job's metadata.
        warnings: for its user.
        errors: requests that KAI's annotations cannot express.
    """

    operations: list[JsonPatchOp] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[FieldError] = field(default_factory=list)


def is_for_kai(job: Job, stored: Job) -> bool:
    """Whether this write sets the queue label on a Job with pods for KAI.

    A Job that Rackgate already manages stays managed. A running Job may not enter a queue, unless
    it is already a Job of KAI: its user has applied the same manifest again.

    Args:
        job: as written.
        stored: the Job before the write; empty at creation.

    Raises:
        MalformedError: a field has a shape that the API server never sends.
    """
    if not is_managed(job) or _scheduler(job) != KAI_SCHEDULER:
        return False
    if not stored:
        return True
    if is_managed(stored):
        return False
    return KAI_QUEUE in labels_of(stored) or (is_suspended(job) and is_suspended(stored))


def render(job: Job, options: RenderOptions) -> RenderResult:
    """Translate the Job's queue label and its template's levels to KAI's metadata.

    Args:
        job: one for which `is_for_kai` is true.
        options: the KAI settings of this cluster.

    Raises:
        MalformedError: a field has a shape that the API server never sends.
    """
    template = validated_template(template_of(job), TEMPLATE_PATH)
    template_annotations = annotations_of(template, TEMPLATE_PATH)
    labels = {KAI_QUEUE: queue_of(job) or ""}
    kai_annotations = {
        kai: str(template_annotations[kueue_key])
        for kai, kueue_key in _LEVELS
        if kueue_key in template_annotations
    }
    have = annotations_of(job)
    if KAI_TOPOLOGY not in have and options.topology and _levels(kai_annotations, have):
        kai_annotations[KAI_TOPOLOGY] = options.topology
    errors = [
        *topology_errors(template, TEMPLATE_PATH, both_levels=options.both_levels),
        *_unsupported_requests(job, template_annotations),
        *_conflicting_annotations(job, labels, kai_annotations),
        *_ineffective_levels(
            {**have, **kai_annotations}, max_running_pods(section(job, "spec")), options
        ),
    ]
    if errors:
        return RenderResult(errors=errors)
    metadata = section(job, "metadata")
    kept = {key: value for key, value in labels_of(job).items() if key != QUEUE_LABEL}
    operations = map_patch("/metadata", "labels", metadata, {**kept, **labels})
    operations += map_patch("/metadata", "annotations", metadata, {**have, **kai_annotations})
    return RenderResult(operations, list(_warnings(job)))


def _scheduler(job: Job) -> object:
    return section(template_of(job), "spec", TEMPLATE_PATH).get("schedulerName")


def _levels(kai_annotations: Mapping[str, str], have: Mapping[str, Any]) -> list[str]:
    """KAI's level annotations that the Job has or gets."""
    return [kai for kai, _ in _LEVELS if kai in kai_annotations or kai in have]


def _unsupported_requests(
    job: Job, template_annotations: Mapping[str, Any]
) -> Iterator[FieldError]:
    """Reject requests that Rackgate supports and KAI's Job annotations cannot express."""
    request = topology_request({"metadata": {"annotations": dict(template_annotations)}}) or {}
    found = [
        *((key, "slices of a Job", "request one level") for key in _SLICES),
        (PODSET_GROUP, "groups of PodSets", "remove it"),
        (POD_INDEX_OFFSET, "places by rank", "remove it"),
    ]
    if request.get("unconstrained"):
        advice = "remove it: without a level KAI places pods anywhere"
        found.append((UNCONSTRAINED_TOPOLOGY, "this request", advice))
    for key, what, advice in found:
        if key in template_annotations:
            problem = f"{shown(template_annotations[key])}: KAI has no annotation for {what}"
            yield FieldError(
                f"{_ANNOTATIONS_PATH}[{key}]", problem, f"{advice}, {_OR_USE_RACKGATE}"
            )
    elastic = annotations_of(job).get(ELASTIC_ANNOTATION, "false")
    if elastic != "false":
        path = f"metadata.annotations[{ELASTIC_ANNOTATION}]"
        problem = f"{shown(elastic)}: a Job that KAI schedules cannot have workload slices"
        yield FieldError(path, problem, f"remove it, {_OR_USE_RACKGATE}")
    priority = labels_of(job).get(PRIORITY_CLASS_LABEL)
    if priority is not None:
        problem = f"{shown(priority)}: KAI does not support WorkloadPriorityClass"
        advice = f"name a PriorityClass in {TEMPLATE_PATH}.spec.priorityClassName instead"
        yield FieldError(f"metadata.labels[{PRIORITY_CLASS_LABEL}]", problem, advice)


def _conflicting_annotations(
    job: Job, labels: Mapping[str, str], kai_annotations: Mapping[str, str]
) -> Iterator[FieldError]:
    """Reject a Job whose own KAI metadata contradict its queue or template."""
    sources = {KAI_QUEUE: f"metadata.labels[{QUEUE_LABEL}]"}
    sources |= {kai: f"{_ANNOTATIONS_PATH}[{kueue_key}]" for kai, kueue_key in _LEVELS}
    for where, have, want in (
        ("labels", labels_of(job), labels),
        ("annotations", annotations_of(job), kai_annotations),
    ):
        for key, value in want.items():
            if key in have and have[key] != value:
                problem = f"{shown(have[key])} is not {shown(value)}, as {sources[key]} requests"
                advice = "make both equal, or remove one of them"
                yield FieldError(f"metadata.{where}[{key}]", problem, advice)


def _ineffective_levels(
    kai_annotations: Mapping[str, Any], pods: int, options: RenderOptions
) -> Iterator[FieldError]:
    """Reject levels that KAI would ignore, or that would leave the pods pending forever."""
    levels = _levels({}, kai_annotations)
    path = f"metadata.annotations[{KAI_TOPOLOGY}]"
    if levels and not kai_annotations.get(KAI_TOPOLOGY):
        problem = f"level {shown(kai_annotations[levels[0]])} needs the name of a KAI Topology"
        advice = "name it here, or set kai.topology in the webhook's configuration"
        yield FieldError(path, problem, advice)
    if not levels and kai_annotations.get(KAI_TOPOLOGY) is not None:
        problem = (
            f"{shown(kai_annotations[KAI_TOPOLOGY])} without a level: KAI would never schedule the "
            "pods"
        )
        yield FieldError(
            path, problem, f"add {_ANNOTATIONS_PATH}[{REQUIRED_TOPOLOGY}], or remove it"
        )
    if levels and pods > 1 and not options.jobs_grouped:
        problem = (
            f"{shown(kai_annotations[levels[0]])} would apply to each of the {pods} pods "
            "separately: this"
            " KAI creates a PodGroup for each pod of a Job"
        )
        advice = f"set kai.jobsGrouped in the webhook's configuration, {_OR_USE_RACKGATE}"
        yield FieldError(f"metadata.annotations[{levels[0]}]", problem, advice)


def _warnings(job: Job) -> Iterator[str]:
    """Requests that are allowed but may not have the expected effect."""
    if is_suspended(job):
        yield "spec.suspend is true: the Job stays suspended until you unsuspend it"
    for index, owner in enumerate(items(section(job, "metadata"), "ownerReferences", "metadata")):
        if owner.get("controller") is True and owner.get("kind") != "CronJob":
            yield (
                f"metadata.ownerReferences[{index}]: KAI may read its annotations from"
                f" {shown(owner.get('kind', ''))} instead of from this Job; set them there, too"
            )
