"""Validation: errors have the path, the value found and advice. Warnings name what has no effect.

Schemas and admission policies reject many of the same objects without the webhook. Here are the
rules that need several fields or a message that tells users what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from rackgate.api.names import (
    ELASTIC_ANNOTATION,
    GANG_RUN_ANNOTATION,
    GROUP,
    MAX_EXECUTION_TIME_LABEL,
    PODSET_GROUP,
    QUEUE_LABEL,
    SLICE_SIZE,
    TOPOLOGY_ANNOTATIONS,
)
from rackgate.api.unsupported import Unsupported, unsupported_fields, unsupported_in_template
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.generic_job import GenericJob, Manifest, TemplateEdits
from rackgate.jobframework.injection import PodTemplate, injection_errors
from rackgate.jobframework.managed import (
    cleanup_label_of,
    execution_time_errors,
    is_child,
    is_managed,
    queue_of,
)
from rackgate.jobframework.registry import CLEANUP_LABELS
from rackgate.jobframework.templates import (
    RESERVED_ANNOTATIONS,
    RESERVED_LABELS,
    annotations_of,
    is_suspended,
    items,
    labels_of,
    reserved_errors,
    section,
)
from rackgate.jobframework.topology_request import topology_errors
from rackgate_webhook.admission.gangs import GANG_WORKLOAD, GangRules
from rackgate_webhook.admission.linked import linked_kind_of, validate_linked
from rackgate_webhook.admission.objects import (
    admission_check_errors,
    cluster_queue_errors,
    cohort_errors,
    flavor_errors,
    local_queue_errors,
    name_errors,
    topology_object_errors,
    workload_errors,
)
from rackgate_webhook.admission.review import AdmissionResponse, Review, kind_of_review

Rule = Callable[[Manifest, Manifest], list[FieldError]]
_NO_GANGS: Final = GangRules()
_ELASTIC_PATH: Final = f"metadata.annotations[{ELASTIC_ANNOTATION}]"


def validate(
    review: Review,
    *,
    both_levels: bool = False,
    elastic_kinds: Collection[str] = (),
    gangs: GangRules = _NO_GANGS,
) -> AdmissionResponse:
    """The response to one request; objects that are not managed are allowed.

    Deletions and updates of objects that are being deleted are always allowed: a finalizer must be
        removable even if the object is invalid.

    Args:
        review: the request.
        both_levels: gate RackgateRequiredAndPreferred: a PodSet may request both levels.
        elastic_kinds: names of the job kinds that may be resized in slices, see
            `enabled_elastic_kinds`.
        gangs: rules of Workloads of gangs.

    Raises:
        MalformedError: the object has a shape that the API server never sends.
    """
    kind, rule = kind_of_review(review), _RULES.get(review.kind)
    linked = linked_kind_of(review) if gangs.on else None
    is_known = (
        linked is not None
        or kind is not None
        or rule is not None
        or review.kind in (_WORKLOAD, GANG_WORKLOAD)
    )
    if not is_known or review.sub_resource or review.operation not in ("CREATE", "UPDATE"):
        return AdmissionResponse()
    found, stored = review.object, review.old_object
    if section(found, "metadata").get("deletionTimestamp"):
        return AdmissionResponse()
    if review.kind == GANG_WORKLOAD:
        return gangs.validate(review)
    if linked is not None:
        return validate_linked(linked, review)
    if kind is not None:
        validator = _JobValidator(kind, kind.name in elastic_kinds, both_levels, gangs)
        errors = validator.errors(found, stored)
    elif rule is not None:
        errors = rule(found, stored)
    else:
        errors = workload_errors(found, stored, both_levels=both_levels)
    warnings = _new_warnings(review, kind, elastic_kinds, gangs)
    return AdmissionResponse(errors=errors, warnings=warnings)


def _new_warnings(
    review: Review, kind: GenericJob[Any] | None, elastic_kinds: Collection[str], gangs: GangRules
) -> list[str]:
    """Warnings about what this write sets and has no effect, in the order of the manifest."""
    before, now = (
        [
            *map(str, _unsupported(review.kind, found, kind, elastic_kinds)),
            *(gangs.job_warnings(kind, found) if kind is not None and is_managed(found) else ()),
        ]
        for found in (review.old_object, review.object)
    )
    return [one for one in now if one not in before]


def _unsupported(
    name: str, found: Manifest, kind: GenericJob[Any] | None, elastic_kinds: Collection[str]
) -> list[Unsupported]:
    if not found or (kind is not None and not is_managed(found)):
        return []
    fields = unsupported_fields(name.rpartition("/")[2], found, elastic_kinds=elastic_kinds)
    if kind is None:
        return fields
    if not kind.is_elastic(found):
        # The mutating webhook warns about the annotation on a job that cannot be resized.
        fields = [one for one in fields if one.path != _ELASTIC_PATH]
    templates = [(one.path, one.template) for one in kind.templates(found)]
    for path, template in (*kind.job_templates(found), *templates):
        fields += unsupported_in_template(template, path)
    return fields


class _JobValidator:
    """Rules on jobs of one kind."""

    def __init__(
        self, kind: GenericJob[Any], elastic_enabled: bool, both_levels: bool, gangs: GangRules
    ) -> None:
        self._kind = kind
        self._gangs = gangs
        self._elastic_enabled = elastic_enabled
        self._both_levels = both_levels

    def errors(self, job: Manifest, stored: Manifest) -> list[FieldError]:
        """Errors in a job, or in this change of it."""
        if not is_managed(job) and not (stored and is_managed(stored)):
            return []
        return (
            self._update_errors(job, stored)
            if stored
            else self._job_errors(job, newly_managed=True)
        )

    def _update_errors(self, job: Manifest, stored: Manifest) -> list[FieldError]:
        label_changed = _execution_time_label(job) != _execution_time_label(stored)
        same = job.get("spec") == stored.get("spec") and queue_of(job) == queue_of(stored)
        same = same and not label_changed
        if same and is_child(stored):
            return []  # orphaned: the garbage collector must be able to remove the owner reference
        frozen = self._immutable_errors(job, stored)
        newly_queued = not is_managed(stored)
        if frozen or not is_managed(job) or (same and not newly_queued):
            return frozen
        errors = self._job_errors(job, newly_managed=newly_queued)
        if newly_queued:
            return errors
        label_errors = execution_time_errors(job) if label_changed else []
        # An old error must not block other changes, for example the replicas that Ray writes.
        # The template of a Job is immutable, so its other errors come from this change.
        if self._kind.template_edits is TemplateEdits.AT_REST:
            pod_templates = self._kind.templates(stored)
            before = [error for one in pod_templates for error in _node_name_errors(one)]
        else:
            before = self._job_errors(stored, newly_managed=False)
        return label_errors + [error for error in errors if error not in before]

    def _job_errors(self, job: Manifest, *, newly_managed: bool) -> list[FieldError]:
        """Errors in the requests of a managed job; `newly_managed`: its queue label is new."""
        errors = name_errors(
            queue_of(job) or "", f"metadata.labels[{QUEUE_LABEL}]", "name an existing LocalQueue"
        )
        if newly_managed:
            errors += execution_time_errors(job)
        errors += self._kind.shape_errors(job)
        errors += self._gangs.job_errors(self._kind, job)
        count_units = self._kind.count_units(job)
        for pod_template in self._kind.injected_templates(
            job, elastic_enabled=self._elastic_enabled
        ):
            errors += topology_errors(
                pod_template.template,
                pod_template.path,
                count=count_units.get(pod_template.podset),
                both_levels=self._both_levels,
            )
            errors += _cleanup_label_errors(pod_template)
            errors += _node_name_errors(pod_template)
            if newly_managed:
                # The mutating webhook runs first, so the injection is correct.
                errors += injection_errors(pod_template)
        return errors

    def _immutable_errors(self, job: Manifest, stored: Manifest) -> list[FieldError]:
        """Errors in fields that are immutable while the job runs."""
        if is_suspended(job) and is_suspended(stored):
            return []
        errors = _immutable_queue_errors(job, stored)
        if is_managed(stored):
            errors += _immutable_execution_time_errors(job, stored)
        if is_managed(job) and not (is_suspended(job) or is_suspended(stored)):
            errors += self._kind.running_errors(job, stored)
        before = {
            pod_template.podset: pod_template for pod_template in self._kind.templates(stored)
        }
        for pod_template in self._kind.templates(job):
            if pod_template.podset in before:
                errors += _immutable_annotation_errors(pod_template, before[pod_template.podset])
        if is_managed(stored) and self._kind.is_elastic(job) != self._kind.is_elastic(stored):
            problem = (
                f"a {self._kind.name} that is not suspended cannot become elastic"
                " or stop being elastic"
            )
            errors.append(FieldError(self._kind.elastic_path, problem, "suspend it first"))
        return errors


def _immutable_queue_errors(job: Manifest, stored: Manifest) -> list[FieldError]:
    current, requested = queue_of(stored), queue_of(job)
    if current == requested and is_managed(job) == is_managed(stored):
        return []
    was = "no queue" if current is None else f"queue {shown(current)}"
    now = "none" if requested is None else shown(requested)
    return [
        FieldError(
            f"metadata.labels[{QUEUE_LABEL}]",
            f"the queue of a job that is not suspended cannot change from {was} to {now}",
            "suspend the job first, and keep it suspended in this change",
        )
    ]


def _execution_time_label(job: Manifest) -> Any:
    return labels_of(job).get(MAX_EXECUTION_TIME_LABEL)


def _immutable_execution_time_errors(job: Manifest, stored: Manifest) -> list[FieldError]:
    before, now = _execution_time_label(stored), _execution_time_label(job)
    if before == now:
        return []
    was, found = ("none" if value is None else shown(value) for value in (before, now))
    return [
        FieldError(
            f"metadata.labels[{MAX_EXECUTION_TIME_LABEL}]",
            "the maximum execution time of a job that is not suspended cannot change from"
            f" {was} to {found}",
            "suspend the job first, and keep it suspended in this change",
        )
    ]


def _immutable_annotation_errors(
    pod_template: PodTemplate, stored: PodTemplate
) -> list[FieldError]:
    now, before = annotations_of(pod_template.template), annotations_of(stored.template)
    return [
        FieldError(
            f"{pod_template.path}.metadata.annotations[{key}]",
            "the topology request of a job that is not suspended cannot change",
            "suspend the job first",
        )
        for key in (*TOPOLOGY_ANNOTATIONS, SLICE_SIZE, PODSET_GROUP)
        if now.get(key) != before.get(key)
    ]


def _cleanup_label_errors(pod_template: PodTemplate) -> list[FieldError]:
    """Pods with this label are never gated: they clean up after their job."""
    label = cleanup_label_of(pod_template.template)
    if label is None:
        return []
    path = f"{pod_template.path}.metadata.labels[{label}]"
    problem = f"{shown(CLEANUP_LABELS[label])} is reserved for clean-up pods"
    return [FieldError(path, problem, "remove this label")]


def _node_name_errors(pod_template: PodTemplate) -> list[FieldError]:
    """Pods with a node name bypass kube-scheduler and all gates."""
    name = section(pod_template.template, "spec", pod_template.path).get("nodeName")
    if not name:
        return []
    problem = f"{shown(name)} would bind the pods without their queue and topology assignment"
    return [
        FieldError(f"{pod_template.path}.spec.nodeName", problem, "remove it, or use nodeSelector")
    ]


def _pod_errors(pod: Manifest, stored: Manifest) -> list[FieldError]:
    if stored:
        return _pod_update_errors(pod, stored)
    owners = items(section(pod, "metadata"), "ownerReferences", "metadata")
    if any(owner.get("controller") is True for owner in owners):
        return []
    return reserved_errors(pod, "")


def _pod_update_errors(pod: Manifest, stored: Manifest) -> list[FieldError]:
    fields = (
        ("labels", labels_of(pod), labels_of(stored), RESERVED_LABELS),
        ("annotations", annotations_of(pod), annotations_of(stored), RESERVED_ANNOTATIONS),
    )
    return [
        FieldError(
            f"metadata.{name}[{key}]",
            f"reserved by Rackgate and immutable, the value is {shown(before.get(key))}",
            "do not change it",
        )
        for name, now, before, reserved in fields
        for key in reserved
        if now.get(key) != before.get(key) and key != GANG_RUN_ANNOTATION
    ]


_WORKLOAD: Final = f"{GROUP}/Workload"
_RULES: Final[dict[str, Rule]] = {
    "/Pod": _pod_errors,
    f"{GROUP}/AdmissionCheck": admission_check_errors,
    f"{GROUP}/Topology": topology_object_errors,
    f"{GROUP}/ResourceFlavor": flavor_errors,
    f"{GROUP}/ClusterQueue": cluster_queue_errors,
    f"{GROUP}/Cohort": cohort_errors,
    f"{GROUP}/LocalQueue": local_queue_errors,
}
