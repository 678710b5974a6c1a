"""What the webhook refuses, with the path, the value found and what would help.

Schemas and policies inside the API server refuse much of the same without any webhook; here
are the rules that need several fields, or words a user can act on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from rackgate.api.names import (
    GROUP,
    PODSET_GROUP,
    QUEUE_LABEL,
    RAY_CLEANUP_TYPE,
    RAY_NODE_TYPE_LABEL,
    SLICE_SIZE,
    TOPOLOGY_ANNOTATIONS,
)
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.injection import PodTemplate
from rackgate.jobframework.job.podsets import is_suspended
from rackgate.jobframework.managed import is_child, is_cleanup_pod, is_managed, queue_of
from rackgate.jobframework.reinjection import injection_errors
from rackgate.jobframework.templates import (
    RESERVED_ANNOTATIONS,
    RESERVED_LABELS,
    annotations_of,
    items,
    labels_of,
    reserved_errors,
    section,
)
from rackgate.jobframework.topology_request import topology_errors
from rackgate_webhook.admission.job_webhooks import JOB_WEBHOOKS, JobWebhook
from rackgate_webhook.admission.objects import (
    cluster_queue_errors,
    flavor_errors,
    local_queue_errors,
    name_errors,
    topology_object_errors,
    workload_errors,
)
from rackgate_webhook.admission.review import AdmissionResponse, Review

Object = Mapping[str, Any]
Rule = Callable[[Object, Object], list[FieldError]]


def validate(
    review: Review, *, both_levels: bool = False, elastic_kinds: Collection[str] = ()
) -> AdmissionResponse:
    """The response to one request; everything that is not ours is allowed.

    Deletions, and objects on their way out, are always allowed: a finalizer must be removable
    whatever is wrong with the rest.

    Args:
        review: the request.
        both_levels: gate RackgateRequiredAndPreferred: both levels may be asked for together.
        elastic_kinds: names of the job kinds that may be resized in slices, see
            `enabled_elastic_kinds`.

    Raises:
        MalformedError: the object has a shape that the API server never sends.
    """
    if (
        not (review.kind in JOB_WEBHOOKS or review.kind in _RULES or review.kind == _WORKLOAD)
        or review.sub_resource
        or review.operation not in ("CREATE", "UPDATE")
    ):
        return AdmissionResponse()
    found, stored = review.object, review.old_object
    if section(found, "metadata").get("deletionTimestamp"):
        return AdmissionResponse()
    if review.kind == _WORKLOAD:
        return AdmissionResponse(errors=workload_errors(found, stored, both_levels=both_levels))
    kind = JOB_WEBHOOKS.get(review.kind)
    if kind is None:
        return AdmissionResponse(errors=_RULES[review.kind](found, stored))
    validator = _JobValidator(kind, slices=kind.name in elastic_kinds, both_levels=both_levels)
    return AdmissionResponse(errors=validator.errors(found, stored))


class _JobValidator:
    """Rules on jobs of one kind."""

    def __init__(self, kind: JobWebhook, *, slices: bool, both_levels: bool) -> None:
        self._kind = kind
        self._slices = slices
        self._both_levels = both_levels

    def errors(self, job: Object, stored: Object) -> list[FieldError]:
        """What is wrong with a job, or with this change of it."""
        if not is_managed(job) and not (stored and is_managed(stored)):
            return []
        return (
            self._update_errors(job, stored)
            if stored
            else self._job_errors(job, newly_managed=True)
        )

    def _update_errors(self, job: Object, stored: Object) -> list[FieldError]:
        same = job.get("spec") == stored.get("spec") and queue_of(job) == queue_of(stored)
        if same and is_child(stored):
            return []  # left behind by its owner; the garbage collector must get that written
        frozen = self._immutable_errors(job, stored)
        newly_queued = not is_managed(stored)
        if frozen or not is_managed(job) or (same and not newly_queued):
            return frozen
        errors = self._job_errors(job, newly_managed=newly_queued)
        if newly_queued:
            return errors
        # What was wrong before must not keep others from writing the rest, as Ray its replicas.
        # A Job keeps its template, so all else that is wrong with it is this change's own.
        pod_templates = self._kind.templates(stored, self._slices)
        before = (
            self._job_errors(stored, newly_managed=False)
            if self._kind.templates_editable
            else [
                error for pod_template in pod_templates for error in _node_name_errors(pod_template)
            ]
        )
        return [error for error in errors if error not in before]

    def _job_errors(self, job: Object, *, newly_managed: bool) -> list[FieldError]:
        """Errors in the requests of a managed job; `newly_managed`: it just got its queue label."""
        errors = name_errors(
            queue_of(job) or "", f"metadata.labels[{QUEUE_LABEL}]", "name an existing LocalQueue"
        )
        errors += self._kind.shape_errors(job)
        count_units = self._kind.count_units(job)
        for pod_template in self._kind.templates(job, self._slices):
            errors += topology_errors(
                pod_template.template,
                pod_template.path,
                count=count_units.get(pod_template.podset),
                both_levels=self._both_levels,
            )
            errors += _cleanup_label_errors(pod_template)
            errors += _node_name_errors(pod_template)
            if newly_managed:
                # The mutating webhook came first: its own marks at creation are right.
                errors += injection_errors(pod_template)
        return errors

    def _immutable_errors(self, job: Object, stored: Object) -> list[FieldError]:
        """What a job keeps while it runs."""
        if is_suspended(job) and is_suspended(stored):
            return []
        errors = _immutable_queue_errors(job, stored)
        before = {
            pod_template.podset: pod_template
            for pod_template in self._kind.templates(stored, False)
        }
        for pod_template in self._kind.templates(job, False):
            if pod_template.podset in before:
                errors += _immutable_annotation_errors(pod_template, before[pod_template.podset])
        if is_managed(stored) and self._kind.is_elastic(job) != self._kind.is_elastic(stored):
            problem = (
                f"a {self._kind.name} that is not suspended cannot become elastic, or cease to be"
            )
            errors.append(FieldError(self._kind.elastic_path, problem, "suspend it first"))
        return errors


def _immutable_queue_errors(job: Object, stored: Object) -> list[FieldError]:
    current, requested = queue_of(stored), queue_of(job)
    if current == requested and is_managed(job) == is_managed(stored):
        return []
    was = "no queue" if current is None else f"queue {shown(current)}"
    now = "none" if requested is None else shown(requested)
    return [
        FieldError(
            f"metadata.labels[{QUEUE_LABEL}]",
            f"the queue of a job that is not suspended cannot change, it has {was}, asked is {now}",
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
    """Pods with this label are never held: they come after a RayCluster, not before."""
    if not is_cleanup_pod(pod_template.template):
        return []
    path = f"{pod_template.path}.metadata.labels[{RAY_NODE_TYPE_LABEL}]"
    return [FieldError(path, f"{shown(RAY_CLEANUP_TYPE)} is KubeRay's own", "remove this label")]


def _node_name_errors(pod_template: PodTemplate) -> list[FieldError]:
    """Pods with a node's name pass by the scheduler, and by every gate."""
    name = section(pod_template.template, "spec", pod_template.path).get("nodeName")
    if not name:
        return []
    problem = f"{shown(name)} would bind the pods past their queue and their place"
    return [
        FieldError(f"{pod_template.path}.spec.nodeName", problem, "remove it, or use nodeSelector")
    ]


def _pod_errors(pod: Object, stored: Object) -> list[FieldError]:
    if stored:
        return _pod_update_errors(pod, stored)
    owners = items(section(pod, "metadata"), "ownerReferences", "metadata")
    if any(owner.get("controller") is True for owner in owners):
        return []
    return reserved_errors(pod, "")


def _pod_update_errors(pod: Object, stored: Object) -> list[FieldError]:
    fields = (
        ("labels", labels_of(pod), labels_of(stored), RESERVED_LABELS),
        ("annotations", annotations_of(pod), annotations_of(stored), RESERVED_ANNOTATIONS),
    )
    return [
        FieldError(
            f"metadata.{name}[{key}]",
            f"reserved by Rackgate and frozen, it has {shown(before.get(key))}",
            "leave it as it is",
        )
        for name, now, before, reserved in fields
        for key in reserved
        if now.get(key) != before.get(key)
    ]


_WORKLOAD: Final = f"{GROUP}/Workload"
_RULES: Final[dict[str, Rule]] = {
    "/Pod": _pod_errors,
    f"{GROUP}/Topology": topology_object_errors,
    f"{GROUP}/ResourceFlavor": flavor_errors,
    f"{GROUP}/ClusterQueue": cluster_queue_errors,
    f"{GROUP}/LocalQueue": local_queue_errors,
}
