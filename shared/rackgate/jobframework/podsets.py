"""PodSets: how a kind builds them, rules for the PodSets of one job, PodSets of a Workload."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rackgate.api.names import (
    GANG_TEMPLATE_KEYS,
    KUEUE_TEMPLATE_ANNOTATIONS,
    KUEUE_TEMPLATE_LABELS,
    PODSET_GROUP,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    UNCONSTRAINED_TOPOLOGY,
)
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.injection import PodTemplate
from rackgate.jobframework.templates import (
    Template,
    annotations_of,
    items,
    section,
    without_entries,
)
from rackgate.jobframework.topology_request import RANK_FIELDS
from rackgate.wire.kueue import PodSet, Workload

PODSET: Final = "main"  # of a job with one template
GANG: Final = "gg"  # of a job whose pods are one gang
MAX_PODSETS: Final = 18  # of a Workload
# The API server adds them to the template of a Job, and its selector needs them.
JOB_TEMPLATE_LABELS: Final = (
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "controller-uid",
    "job-name",
)
_DNS_LABEL: Final = re.compile(r"\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


def podset_json(
    name: str,
    count: int,
    template: Template,
    request: Mapping[str, Any] | None,
    *,
    min_count: int | None = None,
) -> dict[str, Any]:
    """A PodSet as a Workload stores it.

    Args:
        name: its name.
        count: pods.
        template: the user's template.
        request: its topologyRequest, if it has one.
        min_count: the fewest pods that it may be admitted with; None: only all of them.
    """
    podset: dict[str, Any] = {"name": name, "count": count, "template": template}
    if min_count is not None:
        podset["minCount"] = min_count
    return podset if request is None else {**podset, "topologyRequest": request}


def name_errors(named: Iterable[tuple[str, str]], taken: Iterable[str] = ()) -> list[FieldError]:
    """Reject invalid PodSet names, and names that differ only in case.

    Args:
        named: path and name of each template, in order.
        taken: names of other PodSets.
    """
    errors: list[FieldError] = []
    first = {name: name for name in taken}
    for path, name in named:
        podset = name.lower()
        if not _DNS_LABEL.match(podset):
            problem = f"{shown(name)} is not a valid podset name"
            errors.append(
                FieldError(path, problem, "use up to 63 letters, digits and -, no - at the ends")
            )
        elif podset in first:
            problem = f"{shown(name)} is the same podset as {shown(first[podset])}"
            errors.append(FieldError(path, problem, "rename one of them; case does not count"))
        first.setdefault(podset, name)
    return errors


def group_errors(
    pod_templates: Sequence[PodTemplate], counts: Mapping[str, int]
) -> list[FieldError]:
    """Reject podset groups that cannot be placed: a group is one leader pod and its workers.

    Args:
        pod_templates: all templates of the job.
        counts: pods of each PodSet.

    Returns:
        One error for each invalid group, at its first template.
    """
    groups: dict[str, list[PodTemplate]] = {}
    for pod_template in pod_templates:
        name = annotations_of(pod_template.template, pod_template.path).get(PODSET_GROUP)
        if name is not None:
            groups.setdefault(str(name), []).append(pod_template)
    errors = []
    for name, members in groups.items():
        group_error = _group_error(members, counts)
        if group_error is not None:
            path = f"{members[0].path}.metadata.annotations[{PODSET_GROUP}]"
            errors.append(
                FieldError(path, f"podset group {shown(name)}: {group_error[0]}", group_error[1])
            )
    return errors


def _group_error(
    members: Sequence[PodTemplate], counts: Mapping[str, int]
) -> tuple[str, str] | None:
    if len(members) != 2:
        problem = f"a group has exactly 2 podsets, found {len(members)}"
        return problem, "name the group in the templates of the leader and of its workers"
    smallest = min(counts.get(member.podset, 0) for member in members)
    if smallest > 1:
        problem = f"one of its podsets must be a single pod, the smaller one has {smallest}"
        return problem, "request slices instead, or make the leader a template of its own"
    if len({_levels(member) for member in members}) > 1:
        return "its podsets request different levels", "give both the same topology annotation"
    return None


def _levels(pod_template: PodTemplate) -> tuple[str | None, ...]:
    annotations = annotations_of(pod_template.template, pod_template.path)
    return tuple(annotations.get(key) for key in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY))


# Those of a Workload.


def has_topology(workload: Workload) -> bool:
    """Whether any PodSet has a topology assignment."""
    return any(topology_by_podset(workload).values())


def topology_by_podset(workload: Workload) -> dict[str, bool]:
    """For each admitted PodSet: whether it has a topology assignment."""
    admission = workload.status.admission
    assignments = () if admission is None else admission.pod_set_assignments
    return {found.name: found.topology_assignment is not None for found in assignments}


def total_pods(workload: Workload) -> int:
    """Pods of all PodSets: those that were admitted, or those that are requested."""
    return sum(counts_of(workload).values())


def pods_without_gate(workload: Workload) -> int:
    """Pods that were admitted without a topology assignment: they have no gate."""
    admission = workload.status.admission
    assignments = () if admission is None else admission.pod_set_assignments
    counts = counts_of(workload)
    return sum(
        counts.get(assignment.name, 0) if assignment.count is None else assignment.count
        for assignment in assignments
        if assignment.topology_assignment is None
    )


def counts_of(workload: Workload) -> dict[str, int]:
    """Pods of each PodSet: fewer than requested if it was admitted with fewer."""
    requested = {podset.name: podset.count for podset in workload.spec.pod_sets}
    return {**requested, **reduced_counts(workload)}


def reduced_counts(workload: Workload) -> dict[str, int]:
    """Pods of each PodSet with `minCount` that was admitted with fewer pods than it requests."""
    admission = workload.status.admission
    requested = {
        podset.name: podset.count
        for podset in workload.spec.pod_sets
        if podset.min_count is not None
    }
    return {
        assignment.name: assignment.count
        for assignment in (admission.pod_set_assignments if admission is not None else ())
        if 0 < assignment.count < requested.get(assignment.name, 0)
    }


def original_templates(workload: Workload | None) -> dict[str, Template]:
    """The user's templates by PodSet, as stored in the Workload; empty without a Workload."""
    podsets = () if workload is None else workload.spec.pod_sets
    return {podset.name: msgspec.json.decode(podset.template) for podset in podsets}


def podsets_differ(
    workload: Workload, wanted: Sequence[Mapping[str, Any]], *, resizable: bool = False
) -> bool:
    """Whether the Workload's PodSets differ from `wanted`.

    Args:
        workload: as stored.
        wanted: PodSets as on the wire.
        resizable: counts may differ; they are admitted with slices.
    """
    present = stored_podsets(workload)
    if present == wanted:
        return False
    normalize = _without_counts if resizable else without_empty
    return [normalize(podset) for podset in present] != [normalize(podset) for podset in wanted]


def admitted_podsets_differ(
    workload: Workload, wanted: Sequence[Mapping[str, Any]], *, resizable: bool = False
) -> bool:
    """As `podsets_differ`, of an admitted Workload whose job has not started yet.

    What Kueue writes in another way is not a difference, because it may have admitted the
    Workload: the labels that the API server adds to the template of a Job are not in it, it
    requests ranks without a topology, and those of RayClusters lack the labels of ranks.
    """
    if not podsets_differ(workload, wanted, resizable=resizable):
        return False
    normalize = _without_counts if resizable else without_empty
    present = stored_podsets(workload)
    if len(present) != len(wanted):
        return True
    return any(
        normalize(_without_job_labels(have))
        != normalize(_without_job_labels(want if workload.elastic else _without_ranks(have, want)))
        for have, want in zip(present, wanted, strict=True)
    )


def _without_job_labels(podset: Mapping[str, Any]) -> dict[str, Any]:
    """A PodSet without the labels of its Job, and without a request for ranks alone."""
    template = without_entries(podset["template"], "metadata", "labels", JOB_TEMPLATE_LABELS)
    plain = {**podset, "template": template}
    if all(field in RANK_FIELDS for field in podset.get("topologyRequest") or {}):
        plain.pop("topologyRequest", None)
    return plain


def describe_running_change(workload: Workload, wanted: Sequence[Mapping[str, Any]]) -> str | None:
    """What a running job requests that differs from its Workload, except counts.

    Unlike those of a pending job, its templates also contain what its flavor added. That is not
    recorded anywhere, and flavors are edited, too. So entries *added* to nodeSelector and
    tolerations are not a difference. Neither are labels and annotations of admission checks, what
    says which gang the pods are in, and what Kueue added if it started the job: its Workloads of
    RayClusters also lack the labels of ranks.

    Returns:
        The difference, for a message; None if there is none.
    """
    present = stored_podsets(workload)
    of_checks = check_keys(workload)
    requested = [podset["name"] for podset in wanted]
    if [podset["name"] for podset in present] != requested:
        return f"podsets {', '.join(requested)}"
    for have, want in zip(present, wanted, strict=True):
        labels, annotations = of_checks.get(have["name"], ({}, {}))
        plain = _without_ranks(have, want)
        plain = _without_metadata(have, plain, "labels", (*labels, *KUEUE_TEMPLATE_LABELS))
        injected = (*annotations, *GANG_TEMPLATE_KEYS, *KUEUE_TEMPLATE_ANNOTATIONS)
        plain = _without_metadata(have, plain, "annotations", injected)
        if _without_counts(have) != _without_counts(_without_added(have, plain)):
            return f'the template of podset "{have["name"]}"'
    return None


def check_keys(workload: Workload) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Labels and annotations that admission checks add, by PodSet."""
    found: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
    for state in workload.status.admission_checks:
        for update in state.pod_set_updates:
            labels, annotations = found.setdefault(update.name, ({}, {}))
            labels.update(update.labels)
            annotations.update(update.annotations)
    return found


def _without_ranks(have: Mapping[str, Any], want: Mapping[str, Any]) -> Mapping[str, Any]:
    """`want` without the topology request, or its labels of ranks, that `have` does not contain."""
    asked, has = section(want, "topologyRequest"), section(have, "topologyRequest")
    known = annotations_of(have["template"])
    if not has and asked.get("unconstrained") and UNCONSTRAINED_TOPOLOGY not in known:
        return {**want, "topologyRequest": None}
    if any(field in has for field in RANK_FIELDS):
        return want
    kept = {key: value for key, value in asked.items() if key not in RANK_FIELDS}
    return {**want, "topologyRequest": kept}


def _without_metadata(
    have: Mapping[str, Any], want: Mapping[str, Any], name: str, keys: Iterable[str]
) -> Mapping[str, Any]:
    """`want` without those labels or annotations of its template that `have` does not contain."""
    known = section(section(have["template"], "metadata"), name)
    added = [key for key in keys if key not in known]
    return {**want, "template": without_entries(want["template"], "metadata", name, added)}


def _without_added(have: Mapping[str, Any], want: Mapping[str, Any]) -> Mapping[str, Any]:
    """`want` without selector keys and tolerations that `have` does not contain."""
    admitted_spec, template = section(have["template"], "spec"), want["template"]
    spec = dict(section(template, "spec"))
    selector, tolerations = section(spec, "nodeSelector"), items(spec, "tolerations")
    kept = section(admitted_spec, "nodeSelector")
    spec["nodeSelector"] = {key: value for key, value in selector.items() if key in kept}
    admitted_tolerations = [without_empty(entry) for entry in items(admitted_spec, "tolerations")]
    spec["tolerations"] = [
        entry for entry in tolerations if without_empty(entry) in admitted_tolerations
    ]
    return {**want, "template": {**template, "spec": spec}}


def _without_counts(podset: Mapping[str, Any]) -> dict[str, Any]:
    """A PodSet without the numbers that a resize changes."""
    request = podset.get("topologyRequest") or {}
    kept = {key: value for key, value in request.items() if key != "subGroupCount"}
    return without_empty({**podset, "count": None, "topologyRequest": kept})


def stored_podsets(workload: Workload) -> list[dict[str, Any]]:
    """The PodSets of a Workload, as on the wire."""
    return [_stored_json(podset) for podset in workload.spec.pod_sets]


def _stored_json(podset: PodSet) -> dict[str, Any]:
    stored = podset_json(podset.name, podset.count, msgspec.json.decode(podset.template), None)
    if podset.min_count is not None:
        stored["minCount"] = podset.min_count
    if podset.topology_request is not None:
        stored["topologyRequest"] = without_empty(msgspec.to_builtins(podset.topology_request))
    return stored


def without_empty(value: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping without nulls and empty containers at any depth.

    The API server may store an absent field as empty or the reverse; neither is a change.
    """
    return {key: kept for key, item in value.items() if not _is_empty(kept := _drop_empty(item))}


def _drop_empty(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_empty(value)
    if isinstance(value, (list, tuple)):
        return [_drop_empty(item) for item in value]
    return value


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (dict, list)) and not value)
