"""Reviews of Workloads of gangs, and of what jobs say about them.

The schema and its rules reject many of the same objects without the webhook. Here are the checks of
sums, templates and membership, of fields that a feature gate hides, and warnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rackgate.api.gang_rules import CHILD_LISTS
from rackgate.api.names import (
    GANG_GATE,
    GANG_GROUP,
    GANG_LINK_ANNOTATION,
    GANG_PER_ANNOTATION,
    GANG_TEMPLATE_ANNOTATION,
    MANAGED_LABEL,
    WORKLOAD_ANNOTATION,
)
from rackgate.api.resources import JOBS
from rackgate.features import GANG_SCHEDULING
from rackgate.gang.forms.expand import gang_mode, quote_off
from rackgate.gang.link import PER_JOB, child_job_link, link_of
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.generic_job import ChildJobs, GenericJob, Manifest
from rackgate.jobframework.jsonpatch import JsonPatchOp, pointer
from rackgate.jobframework.managed import is_cleanup_pod
from rackgate.jobframework.pod_group.membership import MANAGED
from rackgate.jobframework.templates import (
    annotations_of,
    items,
    section,
    with_entries,
    with_gate,
)
from rackgate_webhook.admission.objects import name_errors
from rackgate_webhook.admission.review import AdmissionResponse, Review

if TYPE_CHECKING:
    from rackgate.gang.levels import Object

GANG_WORKLOAD: Final = f"{GANG_GROUP}/Workload"
# The API server passes on 4 KiB of warnings, of 256 characters each.
MAX_WARNINGS: Final = 16
_MODES: Final = ("gangMode", "rankMode")
_PER: Final = "ReplicatedJob"


@dataclass(frozen=True, slots=True)
class GangRules:
    """What the feature gates allow.

    Attributes:
        on: gate GangScheduling.
        rev_n: gate WorkloadRevN.
        defaults: fields that each new gang gets, if its user leaves them out.
    """

    on: bool = False
    rev_n: bool = False
    defaults: Mapping[str, str | int] = field(default_factory=dict)

    def mutate(self, review: Review) -> AdmissionResponse:
        """Put Off in quotes at gangMode and rankMode, and fill in the defaults of the cluster.

        YAML reads an unquoted Off as false. Defaults are for new objects only: a later edit keeps
        what is stored.
        """
        if review.operation not in ("CREATE", "UPDATE"):
            return AdmissionResponse()
        spec = review.object.get("spec")
        operations = list(_quote_ops(spec, ("spec",)))
        if review.operation == "CREATE":
            operations += _default_ops(spec, self.defaults)
        return AdmissionResponse(operations=operations)

    def with_gate(self, pod: Manifest) -> Manifest:
        """A new pod with the gate of gangs, if it names a Workload of gangs.

        One that no managed job owns gets the label that the assigner watches it by, too. The API
        server adds both itself, where it can: before Kubernetes 1.36 it cannot. A pod of a child
        Job that is a gang of its own gets the name of its Workload of gangs.
        """
        if not self.on or link_of(annotations_of(pod)) == "" or is_cleanup_pod(pod):
            return pod
        gated = with_gate(pod, GANG_GATE)
        gated = _with_child_link(gated)
        if WORKLOAD_ANNOTATION in annotations_of(pod):
            return gated
        return with_entries(gated, "metadata", "labels", {MANAGED_LABEL: MANAGED})

    def validate(self, review: Review) -> AdmissionResponse:
        """What is wrong with a Workload of gangs, and what cannot work as it is written."""
        spec, old = quote_off(review.object.get("spec")), None
        before: list[FieldError] = []
        if review.old_object:
            old = quote_off(section(review.old_object, "spec"))
            if spec == old:
                return AdmissionResponse()
            # It was stored without the webhook, or with another gate: that blocks no other change.
            before = self._errors(old)
        errors = self._errors(spec, old)
        if errors:
            new = [error for error in errors if error not in before]
            return AdmissionResponse(errors=new)
        from rackgate.gang.validation import warnings_of

        warnings = [f"{one.path}: {one.message}" for one in warnings_of(spec)]
        return AdmissionResponse(warnings=warnings[:MAX_WARNINGS])

    def job_errors(self, kind: GenericJob[Any], job: Manifest) -> list[FieldError]:
        """What is wrong with the links and settings of gangs in a managed job."""
        if not self.on:
            return []
        children = _child_gangs(kind, job)
        errors = [
            error
            for one in kind.templates(job)
            if (link := annotations_of(one.template).get(GANG_LINK_ANNOTATION))
            and not (link == PER_JOB and one.podset in children)
            for error in name_errors(
                link,
                f"{one.path}.metadata.annotations[{GANG_LINK_ANNOTATION}]",
                "name a Workload of gangs in the namespace of the job",
            )
        ]
        annotations = annotations_of(job)
        if GANG_TEMPLATE_ANNOTATION in annotations:
            errors += self._template_errors(annotations[GANG_TEMPLATE_ANNOTATION])
        for child in children.values():
            text = child.annotations[GANG_TEMPLATE_ANNOTATION]
            errors += self._template_errors(text, f"{child.path}.")
        per = annotations.get(GANG_PER_ANNOTATION)
        if per not in (None, _PER):
            path = f"metadata.annotations[{GANG_PER_ANNOTATION}]"
            errors.append(FieldError(path, f"unknown value {shown(per)}", f"use {_PER}"))
        return errors

    def _errors(self, spec: Any, old: Object | None = None) -> list[FieldError]:
        # Imported on demand: its models cost memory, and most installations have no gangs.
        from rackgate.gang.validation import errors_of

        return errors_of(spec, rev_n=self.rev_n, old=old)

    def _template_errors(self, text: str, holder: str = "") -> list[FieldError]:
        path = f"{holder}metadata.annotations[{GANG_TEMPLATE_ANNOTATION}]"
        try:
            spec = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
            advice = "write the spec of a Workload of gangs as JSON"
            return [FieldError(path, f"is not JSON: {str(error)[:200]}", advice)]
        found = self._errors(quote_off(spec))
        return [FieldError(path, f"{one.path}: {one.problem}", one.advice) for one in found]

    def job_warnings(self, kind: GenericJob[Any], job: Manifest) -> list[str]:
        """What a managed job asks for without effect."""
        children = [
            f"{child.path}.metadata.annotations[{GANG_TEMPLATE_ANNOTATION}]"
            for child in _child_gangs(kind, job).values()
        ]
        if self.on:
            has_own = GANG_TEMPLATE_ANNOTATION in annotations_of(job) or kind.default_gangs(job)
            text = f"has no effect: the {kind.name} is a gang itself, so its Jobs are none"
            return [f"{path} {text}" for path in children if has_own]
        paths = [
            f"{one.path}.metadata.annotations[{GANG_LINK_ANNOTATION}]"
            for one in kind.templates(job)
            if annotations_of(one.template).get(GANG_LINK_ANNOTATION)
        ]
        paths += [
            f"metadata.annotations[{key}]"
            for key in (GANG_TEMPLATE_ANNOTATION, GANG_PER_ANNOTATION)
            if key in annotations_of(job)
        ]
        paths += children
        return [
            f"{path} has no effect: feature gate {GANG_SCHEDULING} is off in this installation, so"
            " the pods start one by one"
            for path in paths
        ]


def _child_gangs(kind: GenericJob[Any], job: Manifest) -> dict[str, ChildJobs]:
    """Child Jobs with a spec of a Workload of gangs of their own, by PodSet."""
    return {
        podset: child
        for podset, child in kind.child_jobs(job).items()
        if GANG_TEMPLATE_ANNOTATION in child.annotations
    }


def _with_child_link(pod: dict[str, Any]) -> dict[str, Any]:
    if link_of(annotations_of(pod)) != PER_JOB:
        return pod
    owners = items(section(pod, "metadata"), "ownerReferences", "metadata")
    owner = next((one for one in owners if one.get("controller") is True), {})
    if (owner.get("apiVersion"), owner.get("kind")) != (JOBS.api_version, JOBS.kind):
        return pod
    link = child_job_link(str(owner.get("name", "")), str(owner.get("uid", "")))
    return with_entries(pod, "metadata", "annotations", {GANG_LINK_ANNOTATION: link})


def _default_ops(spec: Any, defaults: Mapping[str, str | int]) -> Iterator[JsonPatchOp]:
    """Fill in what gangs leave out. Anything may be in the spec: nothing of it is validated yet."""
    groups = spec.get("gangGroups") if isinstance(spec, Mapping) else None
    for index, group in enumerate(groups if isinstance(groups, list) else ()):
        if not isinstance(group, Mapping) or not _is_gang(group, spec):
            continue
        for name, value in defaults.items():
            if name not in group:
                path = pointer("spec", "gangGroups", str(index), name)
                yield {"op": "add", "path": path, "value": value}


def _is_gang(group: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    least = group.get("minCount", 0)
    return isinstance(least, int) and gang_mode(group, spec) == "Gang"


def _quote_ops(value: Any, path: Sequence[str]) -> Iterator[JsonPatchOp]:
    """Replace false by Off. Anything may be in the spec: nothing of it is validated yet."""
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _quote_ops(entry, (*path, str(index)))
    if not isinstance(value, Mapping):
        return
    for mode in _MODES:
        if value.get(mode) is False:
            yield {"op": "replace", "path": pointer(*path, mode), "value": "Off"}
    for child in CHILD_LISTS:
        if child in value:
            yield from _quote_ops(value[child], (*path, child))
