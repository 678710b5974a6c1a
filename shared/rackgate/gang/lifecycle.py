"""Which Workload of gangs the pods of a job belong to, and who makes, owns and deletes it.

A pod template that names one keeps it: its user made it, or will. Otherwise a job gets its own,
owned by it and deleted with it: from the spec in its annotation, or as its kind says, or none. The
name follows from the job, so whoever makes it makes the same one.

Source: GNG-19 to GNG-29, section 5 of the gang design.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rackgate.api.names import GANG_TEMPLATE_ANNOTATION, workload_name
from rackgate.api.resources import GANG_WORKLOADS
from rackgate.gang.forms.expand import DEFAULT_TIMEOUT_S, expand, quote_off
from rackgate.gang.levels import Object
from rackgate.gang.link import PER_JOB, child_job_link, link_of
from rackgate.gang.validation import errors_of
from rackgate.jobframework.errors import shown
from rackgate.jobframework.generic_job import ChildJobs, DefaultGang, GenericJob, Manifest
from rackgate.jobframework.templates import annotations_of
from rackgate.wire.core import Meta

_SHOWN_ERRORS: Final = 3
_TEMPLATE_PATH: Final = f"metadata.annotations[{GANG_TEMPLATE_ANNOTATION}]"


@dataclass(frozen=True, slots=True)
class ChildGangs:
    """The Workloads of gangs of the child Jobs of one PodSet: each of them gets the same.

    Attributes:
        path: of the spec in the manifest of the job.
        spec: what Rackgate writes into them.
        canonical: the expanded spec.
        jobs: how many child Jobs there are.
        pods: of each.
    """

    path: str
    spec: Object
    canonical: Object
    jobs: int
    pods: int


@dataclass(frozen=True, slots=True)
class GangChoice:
    """The Workload of gangs of one job, or those of its child Jobs.

    Attributes:
        name: of it; "" if the job has none.
        links: by PodSet, the name that its pods carry, or `PER_JOB`; PodSets without gangs are
            omitted.
        spec: what Rackgate writes into it; None if its user makes it.
        problem: why the job cannot start as it is written; "" if it can.
        children: by PodSet, those of child Jobs. The job has none itself then.
    """

    name: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    spec: Object | None = None
    problem: str = ""
    children: Mapping[str, ChildGangs] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether the job gets one of its own, made by Rackgate."""
        return self.spec is not None


def own_name(kind: GenericJob[Any], meta: Meta) -> str:
    """Name of the Workload of gangs that Rackgate makes for a job."""
    resource = kind.resource
    return workload_name(resource.kind, resource.group, meta.name, meta.uid)


def choose_gang(
    kind: GenericJob[Any], manifest: Manifest, meta: Meta, *, rev_n: bool
) -> GangChoice:
    """Which Workload of gangs a job has.

    Args:
        kind: of the job.
        manifest: of the job.
        meta: of the job, with its uid.
        rev_n: whether the feature gate WorkloadRevN is on.
    """
    own, templates = own_name(kind, meta), kind.templates(manifest)
    named = {one.podset: str(link_of(annotations_of(one.template))) for one in templates}
    # After the start, the templates of a job carry the name of its own.
    by_users = {podset: link for podset, link in named.items() if link not in ("", own, PER_JOB)}
    found = sorted(set(by_users.values()))
    children = {
        podset: one
        for podset, one in kind.child_jobs(manifest).items()
        if GANG_TEMPLATE_ANNOTATION in one.annotations and podset not in by_users
    }
    if found:
        several = ""
        if children:
            first = next(iter(children.values()))
            several = (
                f"{first.path}.{_TEMPLATE_PATH}: pod templates of the same job name the Workload of"
                f" gangs {found[0]}: remove one of both"
            )
        if len(found) > 1:
            several = (
                f"its pod templates name {len(found)} Workloads of gangs, {', '.join(found)}: "
                "name one"
            )
        return GangChoice(found[0], by_users, problem=several)
    links = {one.podset: own for one in templates}
    text = meta.annotations.get(GANG_TEMPLATE_ANNOTATION)
    if text is not None:
        spec = _templated(text, rev_n=rev_n)
        if isinstance(spec, str):
            return GangChoice(problem=f"{_TEMPLATE_PATH}: {spec}")
        return GangChoice(own, links, {**spec, "controllerRef": _reference(kind, meta)})
    gangs = kind.default_gangs(manifest)
    if not gangs:
        return _choose_for_children(children, rev_n=rev_n)
    groups = [_gang_group(gang) for gang in gangs]
    spec = {"controllerRef": _reference(kind, meta), "gangGroups": groups}
    return GangChoice(own, links, spec)


def _choose_for_children(children: Mapping[str, ChildJobs], *, rev_n: bool) -> GangChoice:
    """The Workloads of gangs of child Jobs, of those whose template says so (GNG-29)."""
    found: dict[str, ChildGangs] = {}
    for podset, one in children.items():
        path = f"{one.path}.{_TEMPLATE_PATH}"
        spec = _templated(one.annotations[GANG_TEMPLATE_ANNOTATION], rev_n=rev_n)
        if isinstance(spec, str):
            return GangChoice(problem=f"{path}: {spec}")
        found[podset] = ChildGangs(path, spec, expand(spec), one.count, one.pods)
    return GangChoice(links=dict.fromkeys(found, PER_JOB), children=found)


def gang_workload_body(kind: GenericJob[Any], meta: Meta, choice: GangChoice) -> dict[str, Any]:
    """The Workload of gangs that Rackgate makes for a job, owned by it."""
    return _body(kind, meta, choice.name, choice.spec or {})


def child_gang_body(kind: GenericJob[Any], meta: Meta, spec: Object) -> dict[str, Any]:
    """The Workload of gangs that Rackgate makes for a child Job, owned by it.

    Args:
        kind: of the child Job.
        meta: of the child Job.
        spec: as the template of the child Job says.
    """
    name = child_job_link(meta.name, meta.uid)
    return _body(kind, meta, name, {**spec, "controllerRef": _reference(kind, meta)})


def _body(kind: GenericJob[Any], meta: Meta, name: str, spec: Object) -> dict[str, Any]:
    owner = owner_reference(kind, meta)
    return {
        "apiVersion": GANG_WORKLOADS.api_version,
        "kind": GANG_WORKLOADS.kind,
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": dict(spec),
    }


def owner_reference(kind: GenericJob[Any], meta: Meta) -> dict[str, Any]:
    """A reference to a job, which is not its controller and does not block its deletion."""
    return {
        "apiVersion": kind.resource.api_version,
        "kind": kind.name,
        "name": meta.name,
        "uid": meta.uid,
    }


def may_adopt(kind: GenericJob[Any], meta: Meta, workload: Meta, spec: Object) -> bool:
    """Whether a Workload of gangs that a user made may be deleted together with a job.

    Not one that has an owner, or that is said to describe something else.

    Args:
        kind: of the job.
        meta: of the job.
        workload: metadata of the Workload of gangs.
        spec: of it.
    """
    if workload.owner_references or workload.deletion_timestamp is not None:
        return False
    described, owner = spec.get("controllerRef"), meta.controller
    if not described:
        return True
    found = tuple(described.get(key, "") for key in ("apiGroup", "kind", "name"))
    own = (kind.resource.group, kind.name, meta.name)
    if owner is None:
        return found == own
    group = owner.api_version.partition("/")[0] if "/" in owner.api_version else ""
    return found in (own, (group, owner.kind, owner.name))


def _reference(kind: GenericJob[Any], meta: Meta) -> dict[str, str]:
    return {"apiGroup": kind.resource.group, "kind": kind.name, "name": meta.name}


def _gang_group(gang: DefaultGang) -> dict[str, Any]:
    group: dict[str, Any] = {
        "name": gang.name,
        "minCount": gang.pods,
        "scheduleTimeoutSeconds": DEFAULT_TIMEOUT_S,
    }
    return group if gang.selector is None else {**group, "selector": dict(gang.selector)}


def _templated(text: str, *, rev_n: bool) -> Object | str:
    """The spec in an annotation, or what is wrong with it."""
    try:
        spec = quote_off(msgspec.json.decode(text))
        errors = errors_of(spec, rev_n=rev_n) if isinstance(spec, dict) else []
    except (msgspec.DecodeError, RecursionError) as error:
        return f"{shown(text)} is not JSON ({error}): write a spec of a Workload of gangs as JSON"
    if not isinstance(spec, dict):
        return f"{shown(text)} is not a JSON object: write a spec of a Workload of gangs as JSON"
    if errors:
        more = f"; and {len(errors) - _SHOWN_ERRORS} more" if len(errors) > _SHOWN_ERRORS else ""
        return "; ".join(str(error) for error in errors[:_SHOWN_ERRORS]) + more
    return spec
