"""What the webhook refuses, with the path, the value found and what would help.

Schemas and policies inside the API server refuse much of the same without any webhook; here
are the rules that need several fields, or words a user can act on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from rackgate.api.names import (
    GROUP,
    PODSET_GROUP,
    QUEUE_LABEL,
    SLICE_SIZE,
    TOPOLOGY_ANNOTATIONS,
)
from rackgate.govern.errors import FieldError, shown
from rackgate.govern.job import PODSET, TEMPLATE_PATH, is_suspended, pod_count, template_of
from rackgate.govern.predicates import is_governed, queue_of
from rackgate.govern.templates import (
    RESERVED_ANNOTATIONS,
    RESERVED_LABELS,
    annotations_of,
    items,
    labels_of,
    reserved_errors,
    section,
)
from rackgate.govern.topology import asks_for_topology, podset_group_errors, topology_errors
from rackgate_webhook.kinds import (
    cluster_queue_errors,
    flavor_errors,
    local_queue_errors,
    name_errors,
    topology_object_errors,
    workload_errors,
)
from rackgate_webhook.review import Review, Verdict

Objects = Mapping[str, Any]
Rule = Callable[[Objects, Objects], list[FieldError]]


class AskingRule(Protocol):
    """A rule that reads topology requests."""

    def __call__(
        self, found: Objects, stored: Objects, /, *, both_levels: bool
    ) -> list[FieldError]:
        """What is wrong with `found`."""
        ...


def validate(review: Review, *, both_levels: bool = False) -> Verdict:
    """The verdict on one request; everything that is not ours is allowed.

    Deletions, and objects on their way out, are always allowed: a finalizer must be removable
    whatever is wrong with the rest.

    Args:
        review: the request.
        both_levels: gate RackgateRequiredAndPreferred: both levels may be asked for together.

    Raises:
        MalformedError: the object has a shape that the API server never sends.
    """
    if (
        not (review.kind in _ASKING or review.kind in _RULES)
        or review.sub_resource
        or review.operation not in ("CREATE", "UPDATE")
    ):
        return Verdict()
    if section(review.object, "metadata").get("deletionTimestamp"):
        return Verdict()
    if review.kind in _ASKING:
        errors = _ASKING[review.kind](review.object, review.old_object, both_levels=both_levels)
        return Verdict(errors=errors)
    return Verdict(errors=_RULES[review.kind](review.object, review.old_object))


def _job(job: Objects, stored: Objects, *, both_levels: bool) -> list[FieldError]:
    if not is_governed(job) and not (stored and is_governed(stored)):
        return []
    if stored:
        return _job_changed(job, stored, both_levels=both_levels)
    return _job_asked(job, fresh=True, both_levels=both_levels)


def _job_asked(job: Objects, *, fresh: bool, both_levels: bool) -> list[FieldError]:
    """Rules on what a governed Job asks; `fresh`: it has just come under the queue label."""
    template = template_of(job)
    errors = name_errors(
        queue_of(job) or "", f"metadata.labels[{QUEUE_LABEL}]", "name an existing LocalQueue"
    )
    errors += topology_errors(
        template, TEMPLATE_PATH, count=pod_count(job), both_levels=both_levels
    )
    errors += podset_group_errors(template, TEMPLATE_PATH, podsets=1)
    if fresh:
        # The mutating webhook came first: its own marks at creation are right.
        podset = PODSET if asks_for_topology(template) else None
        errors += reserved_errors(template, TEMPLATE_PATH, podset=podset)
    return errors


def _job_changed(job: Objects, stored: Objects, *, both_levels: bool) -> list[FieldError]:
    relabelled = queue_of(job) != queue_of(stored)
    if job.get("spec") == stored.get("spec") and not relabelled:
        return []
    errors: list[FieldError] = []
    if not (is_suspended(job) and is_suspended(stored)):
        errors += _frozen_queue(job, stored) + _frozen_annotations(job, stored)
    if not errors and is_governed(job):
        errors += _job_asked(job, fresh=not is_governed(stored), both_levels=both_levels)
    return errors


def _frozen_queue(job: Objects, stored: Objects) -> list[FieldError]:
    have, want = queue_of(stored), queue_of(job)
    if have == want:
        return []
    was = "no queue" if have is None else f"queue {shown(have)}"
    now = "none" if want is None else shown(want)
    return [
        FieldError(
            f"metadata.labels[{QUEUE_LABEL}]",
            f"the queue of a job that is not suspended cannot change, it has {was}, asked is {now}",
            "suspend the job first, and keep it suspended in this change",
        )
    ]


def _frozen_annotations(job: Objects, stored: Objects) -> list[FieldError]:
    now = annotations_of(template_of(job), TEMPLATE_PATH)
    before = annotations_of(template_of(stored), TEMPLATE_PATH)
    return [
        FieldError(
            f"{TEMPLATE_PATH}.metadata.annotations[{key}]",
            "the topology request of a job that is not suspended cannot change",
            "suspend the job first",
        )
        for key in (*TOPOLOGY_ANNOTATIONS, SLICE_SIZE, PODSET_GROUP)
        if now.get(key) != before.get(key)
    ]


def _pod(pod: Objects, stored: Objects) -> list[FieldError]:
    if stored:
        return _pod_changed(pod, stored)
    owners = items(section(pod, "metadata"), "ownerReferences", "metadata")
    if any(owner.get("controller") is True for owner in owners):
        return []
    return reserved_errors(pod, "")


def _pod_changed(pod: Objects, stored: Objects) -> list[FieldError]:
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


# Kinds that carry topology requests.
_ASKING: Final[dict[str, AskingRule]] = {
    "batch/Job": _job,
    f"{GROUP}/Workload": workload_errors,
}
_RULES: Final[dict[str, Rule]] = {
    "/Pod": _pod,
    f"{GROUP}/Topology": topology_object_errors,
    f"{GROUP}/ResourceFlavor": flavor_errors,
    f"{GROUP}/ClusterQueue": cluster_queue_errors,
    f"{GROUP}/LocalQueue": local_queue_errors,
}
