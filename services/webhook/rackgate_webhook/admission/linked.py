"""Reviews of objects whose pods are linked to a Workload of gangs, see `LinkedKind`. Pure.

With a queue label, each pod template gets the name of a Workload of gangs and the queue label. An
admission policy of deploy/gangs rejects new objects that have not got it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rackgate.api.names import GANG_LINK_ANNOTATION, QUEUE_LABEL
from rackgate.api.unsupported import unsupported_in_linked
from rackgate.gang.linked import linked_name
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.generic_job import Manifest
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.linked_kind import LinkedKind, LinkHolder, at, link_ops
from rackgate.jobframework.registry import find_linked_kind, is_linked_part, linked_makers
from rackgate.jobframework.templates import annotations_of, items, labels_of, section
from rackgate_webhook.admission.objects import name_errors
from rackgate_webhook.admission.review import AdmissionResponse, Review

_QUEUE: Final = f"metadata.labels[{QUEUE_LABEL}]"
_ADVICE: Final = "name a LocalQueue of the namespace"


def linked_kind_of(review: Review) -> LinkedKind | None:
    """The linked kind that a review is about; None for other objects."""
    group, _, kind = review.kind.partition("/")
    return find_linked_kind(group, kind)


def mutate_linked(kind: LinkedKind, review: Review) -> AdmissionResponse:
    """Link the pod templates of an object with a queue label.

    Templates that name a Workload of gangs keep it. Those of an object that has pods without a link
    are left alone, because a rolling update would never end: the new pods wait for their gang, and
    the next old pod is replaced when the new ones are ready.
    """
    found, stored = review.object, review.old_object
    queue = _queue_of(found)
    name = section(found, "metadata").get("name")
    if not queue or not name or is_linked_part(found) or _is_deleted(found):
        return AdmissionResponse()
    if stored and kind.has_pods(stored) and not all(one.link for one in kind.holders(stored)):
        return AdmissionResponse(warnings=[_late(kind)])
    own = linked_name(kind, str(name))
    holders = kind.holders(found)
    operations: list[JsonPatchOp] = []
    for holder in holders:
        link = holder.link or own
        operations += link_ops(holder, link, queue if kind.takes_queue else None)
    gang = kind.gang(found)
    is_own = any(holder.link in ("", own) for holder in holders)
    warnings = []
    if gang.alone and is_own and not (stored and kind.gang(stored) == gang):
        warnings = [f"this {kind.name} is no gang, its pods start one by one: {gang.alone}"]
    return AdmissionResponse(operations=operations, warnings=warnings)


def validate_linked(kind: LinkedKind, review: Review) -> AdmissionResponse:
    """What is wrong with the queue and the links of an object, or with this change of them."""
    found, stored = review.object, review.old_object
    now, before = _queue_of(found), _queue_of(stored)
    if (now is None and before is None) or is_linked_part(found):
        return AdmissionResponse()
    errors = list(_change_errors(kind, found, stored)) if stored else []
    if now is not None and not errors:
        known = list(_errors(kind, stored)) if stored and before is not None else []
        errors = [error for error in _errors(kind, found) if error not in known]
    old = unsupported_in_linked(stored)
    warnings = [str(one) for one in unsupported_in_linked(found) if one not in old]
    return AdmissionResponse(errors=errors, warnings=warnings)


def pass_link_on(jobset: Manifest) -> AdmissionResponse:
    """Link the pod templates of a JobSet that a TrainJob creates, as its annotation says.

    Not to the default of Rackgate where others wait for a Job, such as an initializer: its pods end
    before all pods of the gang exist.
    """
    link, makers = annotations_of(jobset).get(GANG_LINK_ANNOTATION), linked_makers(jobset)
    if not link or not makers:
        return AdmissionResponse()
    jobs = items(section(jobset, "spec"), "replicatedJobs", "spec")
    first: set[str] = set()
    if link in {linked_name(kind, name) for kind, name in makers}:
        waits = (other for job in jobs for other in items(job, "dependsOn", "spec.replicatedJobs"))
        first = {str(other.get("name")) for other in waits}
    operations: list[JsonPatchOp] = []
    for index, job in enumerate(jobs):
        inner = ("template", "spec", "template")
        template = at(job, inner)
        if template is not None and job.get("name") not in first:
            parts = ("spec", "replicatedJobs", str(index), *inner, "metadata")
            holder = LinkHolder(parts, section(template, "metadata"), template)
            operations += link_ops(holder, holder.link or str(link))
    return AdmissionResponse(operations=operations)


def _queue_of(found: Manifest) -> str | None:
    value = labels_of(found).get(QUEUE_LABEL)
    return None if value is None else str(value)


def _is_deleted(found: Manifest) -> bool:
    return bool(section(found, "metadata").get("deletionTimestamp"))


def _late(kind: LinkedKind) -> str:
    return (
        f"the pods of this {kind.name} were created without a queue and use no quota: scale it to"
        " 0, write it again, and scale it up"
    )


def _errors(kind: LinkedKind, found: Manifest) -> Iterator[FieldError]:
    yield from name_errors(_queue_of(found) or "", _QUEUE, _ADVICE)
    if not section(found, "metadata").get("name"):
        problem = "is missing: the Workload of gangs is named after the object"
        yield FieldError("metadata.name", problem, "do not use generateName")
    holders = kind.holders(found)
    for holder in holders:
        yield from _holder_errors(holder)
    names = sorted({holder.link for holder in holders if holder.link})
    if len(names) > 1:
        problem = f"name {len(names)} Workloads of gangs, {', '.join(names)}"
        yield FieldError(
            f"{holders[0].path}.annotations[{GANG_LINK_ANNOTATION}]", problem, "name one"
        )


def _holder_errors(holder: LinkHolder) -> Iterator[FieldError]:
    if holder.link:
        path = f"{holder.path}.annotations[{GANG_LINK_ANNOTATION}]"
        yield from name_errors(holder.link, path, "name a Workload of gangs in the namespace")
    node = section(holder.pod_template or {}, "spec").get("nodeName")
    if node:
        path = f"{'.'.join(holder.parts[:-1])}.spec.nodeName"
        problem = f"{shown(node)} would bind the pods without their queue"
        yield FieldError(path, problem, "remove it, or use nodeSelector")


def _change_errors(kind: LinkedKind, found: Manifest, stored: Manifest) -> Iterator[FieldError]:
    now, before = _queue_of(found), _queue_of(stored)
    if now == before:
        return
    if now is None:
        problem = f"cannot be removed, the value is {shown(before)}: the pod templates are linked"
        yield FieldError(_QUEUE, problem, f"delete the {kind.name} and create it without a queue")
    elif kind.has_pods(stored):
        was = "no queue" if before is None else f"queue {shown(before)}"
        problem = f"cannot change from {was} to {shown(now)} while the {kind.name} has pods"
        yield FieldError(_QUEUE, problem, "scale it to 0 first, or create it again")
