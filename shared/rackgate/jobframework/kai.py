"""Jobs for the KAI scheduler: annotations of the Job that say what its template requests.

KAI makes the PodGroup of a Job itself, from labels and annotations on the Job. So the Job alone is
written, never its template: our queue label becomes KAI's, with the same queue name. From then on
Rackgate does not manage the Job.
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
_OR_USE_RACKGATE: Final = f"or take {KAI_SCHEDULER} out of {TEMPLATE_PATH}.spec.schedulerName"

Job = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What the operator says of KAI in this cluster.

    Attributes:
        topology: KAI's Topology of Jobs that name none themselves; empty for none.
        jobs_grouped: all pods of a Job are one PodGroup, so that levels hold for them together.
            Older versions of KAI make a PodGroup of each pod.
        both_levels: gate RackgateRequiredAndPreferred: both levels may be asked for together.
    """

    topology: str = ""
    jobs_grouped: bool = False
    both_levels: bool = False


@dataclass(frozen=True, slots=True)
class RenderResult:
    """What becomes of a Job: either operations, or errors.

    Attributes:
        operations: JSON patch of the Job's metadata.
        warnings: what its user should know.
        errors: what KAI's annotations cannot say.
    """

    operations: list[JsonPatchOp] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[FieldError] = field(default_factory=list)


def is_for_kai(job: Job, stored: Job) -> bool:
    """Whether this write brings a Job under the queue label whose pods are KAI's to place.

    A Job that Rackgate manages already stays Rackgate's. One that runs may not enter a queue,
    except one that is KAI's: its user has applied the same manifest anew.

    Args:
        job: as written.
        stored: as it was; empty at creation.

    Raises:
        MalformedError: a part of it is none that the API server could send.
    """
    if not is_managed(job) or _scheduler(job) != KAI_SCHEDULER:
        return False
    if not stored:
        return True
    if is_managed(stored):
        return False
    return KAI_QUEUE in labels_of(stored) or (is_suspended(job) and is_suspended(stored))


def render(job: Job, options: RenderOptions) -> RenderResult:
    """The metadata that tell KAI what the Job's queue label and its template's levels tell us.

    Args:
        job: one that `is_for_kai`.
        options: what is known of KAI.

    Raises:
        MalformedError: a part of it is none that the API server could send.
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
    """KAI's annotations of a level that the Job has, or gets."""
    return [kai for kai, _ in _LEVELS if kai in kai_annotations or kai in have]


def _unsupported_requests(
    job: Job, template_annotations: Mapping[str, Any]
) -> Iterator[FieldError]:
    """Reject what Rackgate can promise, and no annotation on a Job can tell KAI."""
    request = topology_request({"metadata": {"annotations": dict(template_annotations)}}) or {}
    for key in _SLICES:
        if key in template_annotations:
            yield _unsupported_annotation(
                key, template_annotations[key], "slices of a Job", "ask for one level"
            )
    if PODSET_GROUP in template_annotations:
        yield _unsupported_annotation(
            PODSET_GROUP, template_annotations[PODSET_GROUP], "groups of PodSets", "remove it"
        )
    if POD_INDEX_OFFSET in template_annotations:
        yield _unsupported_annotation(
            POD_INDEX_OFFSET, template_annotations[POD_INDEX_OFFSET], "places by rank", "remove it"
        )
    if request.get("unconstrained"):
        advice = "remove it: without a level KAI places pods anywhere"
        yield _unsupported_annotation(
            UNCONSTRAINED_TOPOLOGY,
            template_annotations[UNCONSTRAINED_TOPOLOGY],
            "this wish",
            advice,
        )
    elastic = annotations_of(job).get(ELASTIC_ANNOTATION, "false")
    if elastic != "false":
        path = f"metadata.annotations[{ELASTIC_ANNOTATION}]"
        problem = f"{shown(elastic)}: quota of a Job that KAI places is not given in slices"
        yield FieldError(path, problem, f"remove it, {_OR_USE_RACKGATE}")
    priority = labels_of(job).get(PRIORITY_CLASS_LABEL)
    if priority is not None:
        problem = f"{shown(priority)}: KAI knows no WorkloadPriorityClass"
        advice = f"name a PriorityClass in {TEMPLATE_PATH}.spec.priorityClassName instead"
        yield FieldError(f"metadata.labels[{PRIORITY_CLASS_LABEL}]", problem, advice)


def _unsupported_annotation(key: str, value: object, what: str, advice: str) -> FieldError:
    problem = f"{shown(value)}: KAI has no annotation for {what}"
    return FieldError(f"{_ANNOTATIONS_PATH}[{key}]", problem, f"{advice}, {_OR_USE_RACKGATE}")


def _conflicting_annotations(
    job: Job, labels: Mapping[str, str], kai_annotations: Mapping[str, str]
) -> Iterator[FieldError]:
    """Reject a Job that tells KAI one thing itself, and another by its queue or template."""
    sources = {KAI_QUEUE: f"metadata.labels[{QUEUE_LABEL}]"}
    sources |= {kai: f"{_ANNOTATIONS_PATH}[{kueue_key}]" for kai, kueue_key in _LEVELS}
    for where, have, want in (
        ("labels", labels_of(job), labels),
        ("annotations", annotations_of(job), kai_annotations),
    ):
        for key, value in want.items():
            if key in have and have[key] != value:
                problem = f"{shown(have[key])} is not {shown(value)}, as {sources[key]} asks"
                advice = "make both equal, or remove one of them"
                yield FieldError(f"metadata.{where}[{key}]", problem, advice)


def _ineffective_levels(
    kai_annotations: Mapping[str, Any], pods: int, options: RenderOptions
) -> Iterator[FieldError]:
    """Reject levels that KAI would not keep, and what would let its pods wait for ever."""
    levels = _levels({}, kai_annotations)
    path = f"metadata.annotations[{KAI_TOPOLOGY}]"
    if levels and not kai_annotations.get(KAI_TOPOLOGY):
        problem = f"no Topology of KAI is named for level {shown(kai_annotations[levels[0]])}"
        advice = "name it here, or have kai.topology set in the webhook's configuration"
        yield FieldError(path, problem, advice)
    if not levels and kai_annotations.get(KAI_TOPOLOGY) is not None:
        problem = (
            f"{shown(kai_annotations[KAI_TOPOLOGY])} without a level: KAI would never place the "
            "pods"
        )
        yield FieldError(
            path, problem, f"add {_ANNOTATIONS_PATH}[{REQUIRED_TOPOLOGY}], or remove it"
        )
    if levels and pods > 1 and not options.jobs_grouped:
        problem = (
            f"{shown(kai_annotations[levels[0]])} would hold for each of the {pods} pods alone: "
            "this KAI"
            " makes a PodGroup of each pod of a Job"
        )
        advice = f"have kai.jobsGrouped set in the webhook's configuration, {_OR_USE_RACKGATE}"
        yield FieldError(f"metadata.annotations[{levels[0]}]", problem, advice)


def _warnings(job: Job) -> Iterator[str]:
    """What is allowed, and not what it may seem to be."""
    if is_suspended(job):
        yield "spec.suspend is true: the Job stays suspended until you unsuspend it"
    for index, owner in enumerate(items(section(job, "metadata"), "ownerReferences", "metadata")):
        if owner.get("controller") is True and owner.get("kind") != "CronJob":
            yield (
                f"metadata.ownerReferences[{index}]: KAI may read its annotations from"
                f" {shown(owner.get('kind', ''))} instead of from this Job; set them there, too"
            )
