"""The PodSets of a Workload, compared with what its job asks for now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rackgate.jobframework.templates import Template, items, section
from rackgate.wire.kueue import PodSet, Workload


def has_topology(workload: Workload) -> bool:
    """Whether any PodSet was given a topology assignment."""
    admission = workload.status.admission
    return admission is not None and any(
        assignment.topology_assignment is not None for assignment in admission.pod_set_assignments
    )


def total_pods(workload: Workload) -> int:
    """Pods of all PodSets."""
    return sum(podset.count for podset in workload.spec.pod_sets)


def pods_without_gate(workload: Workload) -> int:
    """Pods that were admitted without a topology assignment: no gate holds these."""
    admission = workload.status.admission
    assignments = () if admission is None else admission.pod_set_assignments
    counts = counts_of(workload)
    return sum(
        counts.get(assignment.name, 0) if assignment.count is None else assignment.count
        for assignment in assignments
        if assignment.topology_assignment is None
    )


def counts_of(workload: Workload) -> dict[str, int]:
    """Pods of each PodSet."""
    return {podset.name: podset.count for podset in workload.spec.pod_sets}


def original_templates(workload: Workload | None) -> dict[str, Template]:
    """The user's templates by PodSet, as the Workload keeps them; none without a Workload."""
    podsets = () if workload is None else workload.spec.pod_sets
    return {podset.name: msgspec.json.decode(podset.template) for podset in podsets}


def podsets_differ(
    workload: Workload, wanted: Sequence[Mapping[str, Any]], *, resizable: bool = False
) -> bool:
    """Whether the Workload's PodSets ask for something else than `wanted`.

    Args:
        workload: as stored.
        wanted: PodSets as on the wire.
        resizable: counts are no difference; they follow in slices.
    """
    present = [_podset_json(podset) for podset in workload.spec.pod_sets]
    if present == wanted:
        return False
    normalize = _without_counts if resizable else without_empty
    return [normalize(podset) for podset in present] != [normalize(podset) for podset in wanted]


def describe_running_change(workload: Workload, wanted: Sequence[Mapping[str, Any]]) -> str | None:
    """What a running job asks for that its Workload does not say, counts aside.

    Other than a waiting one, its templates also carry what its flavor brought. What that was is
    written nowhere, and flavors are edited, too: so entries *added* to nodeSelector and
    tolerations are no difference.

    Returns:
        What differs, for a message; None when nothing does.
    """
    present = [_podset_json(podset) for podset in workload.spec.pod_sets]
    asked = [podset["name"] for podset in wanted]
    if [podset["name"] for podset in present] != asked:
        return f"podsets {', '.join(asked)}"
    for have, want in zip(present, wanted, strict=True):
        is_same = _without_counts(have) == _without_counts(_without_added(have, want))
        if not is_same:
            return f'the template of podset "{have["name"]}"'
    return None


def _without_added(have: Mapping[str, Any], want: Mapping[str, Any]) -> Mapping[str, Any]:
    """`want` without the selector keys and tolerations that `have` does not know."""
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
    """A PodSet without the numbers that change when it is resized."""
    request = podset.get("topologyRequest") or {}
    kept = {key: value for key, value in request.items() if key != "subGroupCount"}
    return without_empty({**podset, "count": None, "topologyRequest": kept})


def _podset_json(podset: PodSet) -> dict[str, Any]:
    podset_json: dict[str, Any] = {
        "name": podset.name,
        "count": podset.count,
        "template": msgspec.json.decode(podset.template),
    }
    if podset.min_count is not None:
        podset_json["minCount"] = podset.min_count
    if podset.topology_request is not None:
        podset_json["topologyRequest"] = without_empty(msgspec.to_builtins(podset.topology_request))
    return podset_json


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
