"""What a spec asks for, as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rackgate.gang.forms.expand import expand, insert_levels
from rackgate.gang.levels import Object, groups_of, lower_bound, parts_of, upper_bound
from rackgate.gang.membership import NAME_LABELS
from rackgate.gang.pod_templates import requests_of
from rackgate.gang.shape import shape_of
from rackgate.gang.validation import warnings_of
from rackgate.resources.quantity import format_amount

_REPLICAS: Final = {
    "Unreplicated": "The workload has no replicas.",
    "ReplicatedPods": "Each replica is one pod.",
    "ReplicatedGangs": "Each replica is one gang. Counts are those of one replica.",
}


def describe(name: str, spec: Object) -> list[str]:
    """Lines about a spec without errors.

    Args:
        name: of the object.
        spec: as written.
    """
    whole = expand(spec)
    return [
        _title(name, whole),
        "",
        f"shape: {shape_of(spec)}",
        *_replicas(whole),
        *_counts_and_place("the whole workload", whole),
        *(line for group in whole["gangGroups"] for line in _gang(group, whole)),
        *_labels(whole),
        *_section("defaults that apply", _defaults(spec)),
        *_section("warnings", [f"{one.path}: {one.message}" for one in warnings_of(spec)]),
    ]


def _title(name: str, spec: Object) -> str:
    controller = spec.get("controllerRef")
    return f"Workload {name}" + (
        f", for {controller['kind']} {controller['name']}" if controller else ""
    )


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield f"{title}:"
        yield from (f"  {line}" for line in lines)


def _replicas(spec: Object) -> Iterator[str]:
    yield _REPLICAS[spec["replicaMode"]]
    if "replicaKey" in spec:
        yield f"The pod label {spec['replicaKey']} tells replicas apart."


def _gang(group: Object, spec: Object) -> Iterator[str]:
    yield ""
    name = f"gang group {group['name']}"
    if group["gangMode"] == "Gang":
        pods = _pods(group["minCount"])
        yield f"{name} is a gang of at least {pods}: they start together, or none does."
        limit = group["scheduleTimeoutSeconds"]
        yield f"  If a part of them waits longer than {limit} s, all give way and try again."
        if "reschedulingPolicy" in group:
            yield "  If a member is lost, all members start again (TerminateAll)."
    else:
        yield f"{name} is no gang: each pod starts on its own."
    yield from _inside(group, spec["gangGroups"], "  ")
    for ranked in group["rankedGroups"]:
        yield f"  ranked group {ranked['name']}: {_ranks(ranked)}"
        yield from _inside(ranked, group["rankedGroups"], "    ")
        for eq_group in ranked["eqGroups"]:
            yield f"    equal pods {eq_group['name']}: {_range(eq_group)}"
            yield from _inside(eq_group, ranked["eqGroups"], "      ")
            for field, title in (("template", "each pod"), ("maxTemplate", "each at most")):
                if requests := requests_of(eq_group.get(field, {})):
                    amounts = ", ".join(
                        f"{resource} {format_amount(resource, amount)}"
                        for resource, amount in requests.items()
                    )
                    yield f"      {title}: {amounts}"


def _inside(group: Object, peers: list[Object], indent: str) -> Iterator[str]:
    for line in _counts_and_place("", group):
        yield indent + line
    if "selector" in group:
        selector = group["selector"]
        yield f"{indent}pods: label {selector['key']} is {' or '.join(selector['values'])}"
    elif len(peers) > 1:
        alone = sum("selector" not in one for one in peers) == 1
        rest = "those that no other group selects"
        yield f"{indent}pods: {rest if alone else 'those whose label names this group'}"


def _labels(spec: Object) -> Iterator[str]:
    lists = [parts_of(group.value)[1] for group in groups_of(spec)]
    if any(sum("selector" not in one for one in peers) > 1 for peers in lists):
        yield ""
        yield "Without selectors, the first of these labels that a pod has names its group:"
        yield from (f"  {label}" for label in NAME_LABELS)


def _counts_and_place(what: str, group: Object) -> Iterator[str]:
    prefix = f"{what}: " if what else ""
    # The line of an eqGroup has its counts already.
    if parts_of(group)[0] and {"minCount", "maxCount"} & set(group):
        yield f"{prefix}{_range(group)}"
    request = group.get("topologyRequest", {})
    for form, value in request.items():
        yield f"{prefix}{_place(form, value)}"
    if "topologySpread" in group:
        yield f"{prefix}topologySpread, whose fields are not decided"


def _place(form: str, value: Any) -> str:
    if form == "unconstrained":
        return "pods go to any domains with capacity"
    if form == "resourceClaims":
        claims = (claim.get("resourceClaim", claim.get("resourceClaimTemplate")) for claim in value)
        return f"pods share the claims {', '.join(claims)}"
    must = "must" if form == "required" else "should"
    return f"all pods {must} be in one domain of {value}"


def _ranks(ranked: Object) -> str:
    if "podRank" not in ranked:
        return "its pods have no ranks."
    path = ranked["podRank"]["valueFrom"]["fieldRef"]["fieldPath"]
    unused = ", which the placement does not use (rankMode Off)" if "rankMode" in ranked else ""
    return f"the rank of a pod is in {path}{unused}."


def _pods(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"


def _range(group: Object) -> str:
    least, most = lower_bound(group), upper_bound(group)
    if least is None and most is None:
        return "any number of pods"
    if least == most and least is not None:
        return _pods(least)
    if most is None:
        return f"{_pods(least or 0)} or more"
    return f"{least or 0} to {most} pods"


def _defaults(spec: Object) -> list[str]:
    """Values that Expand adds, by their paths in the expanded spec."""
    written = {group.path: group.value for group in groups_of(insert_levels(spec))}
    return [
        f"{group.path}.{field}: {value}"
        for group in groups_of(expand(spec))
        for field, value in group.value.items()
        if field not in written[group.path] and not isinstance(value, list | Mapping)
    ]
