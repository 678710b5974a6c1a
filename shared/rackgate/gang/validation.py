"""What is wrong with a spec, and what cannot work as it is written.

The API server checks the schema and the rules of the CustomResourceDefinition itself. Checks of
sums, templates and membership need more than CEL can do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rackgate.api import gang, gang_rules
from rackgate.api.gang_rules import CHILD_LISTS, GangRule
from rackgate.features import WORKLOAD_REV_N
from rackgate.gang.forms.expand import gang_mode
from rackgate.gang.levels import (
    Group,
    Object,
    groups_of,
    lower_bound_of_parts,
    parts_of,
    upper_bound_of_parts,
)
from rackgate.gang.membership import are_distinguishable
from rackgate.gang.pod_templates import canonical_template, requests_of, template_errors
from rackgate.jobframework.errors import FieldError, shown
from rackgate.resources.quantity import format_amount

MAX_ERRORS: Final = 50
_RULES: Final = {
    "spec": gang_rules.SPEC,
    "gangGroups": gang_rules.GANG_GROUPS,
    "rankedGroups": gang_rules.RANKED_GROUPS,
    "eqGroups": gang_rules.EQ_GROUPS,
}
# All that Rev1 has; a level that is not here is none of Rev1.
_REV1: Final = {
    "spec": {"controllerRef", "replicaMode", "gangGroups"},
    "gangGroups": {"name", "minCount", "scheduleTimeoutSeconds", "selector"},
}
_LABEL_KEY: Final = 'use a label key such as "rack" or "example.com/rack"'
_FORMS: Final = {
    "fieldPath": "use metadata.labels['KEY'] or metadata.annotations['KEY']",
    "name": "use lower-case letters, digits and hyphens",
    **dict.fromkeys(("key", "replicaKey", "required", "preferred"), _LABEL_KEY),
}
_BY_SELECTOR: Final = "give each group a selector with the same key"


@dataclass(frozen=True, slots=True)
class GangWarning:
    """Something that is accepted, and that cannot work as written.

    Attributes:
        path: as in the manifest.
        reason: the reason of the condition PodsMatched that would say so.
    """

    path: str
    reason: str
    message: str


def errors_of(spec: Any, *, rev_n: bool, old: Object | None = None) -> list[FieldError]:
    """What is wrong with a spec; empty if nothing is.

    Later checks need earlier ones to pass: the schema, the rules of the CustomResourceDefinition,
    and then what the API server cannot check.

    Args:
        spec: JSON data, with Off as text, see `quote_off`.
        rev_n: whether the feature gate WorkloadRevN is on.
        old: the stored spec, for an update.
    """
    return (
        _schema_errors(spec)
        or (_errors_of_rev1(spec) if not rev_n else [])
        or list(_rule_errors(spec, old))
        or errors_beyond_the_schema(spec)
    )


def errors_beyond_the_schema(spec: Object) -> list[FieldError]:
    """What is wrong with a spec that the API server accepts."""
    found = [
        error
        for group in groups_of(spec)
        for error in (*_sum_errors(group, spec), *_template_errors(group))
    ]
    if not are_distinguishable(spec.get("gangGroups", ()), spec):
        names = ", ".join(group["name"] for group in spec["gangGroups"] if "selector" not in group)
        problem = f"nothing tells the pods of {names} apart"
        found.append(FieldError("spec.gangGroups", problem, _BY_SELECTOR))
    return found


def warnings_of(spec: Object) -> list[GangWarning]:
    """What cannot work as written, in a spec without errors."""
    found = []
    for group in groups_of(spec):
        child, parts = parts_of(group.value)
        if child != "gangGroups" and not are_distinguishable(parts, spec):
            names = ", ".join(part["name"] for part in parts if "selector" not in part)
            message = (
                f"nothing tells the pods of {names} apart, so what these groups ask for is not "
                f"applied: {_BY_SELECTOR}"
            )
            found.append(GangWarning(f"{group.path}.{child}", "Ambiguous", message))
    return found


# -- schema ----------------------------------------------------------------------------------


def _schema_errors(spec: Any) -> list[FieldError]:
    try:
        gang.WorkloadSpec.model_validate(spec)
    except ValidationError as error:
        details = error.errors(include_url=False)
        return [_field_error(one) for one in details if not _is_misplaced(one)][:MAX_ERRORS]
    except RecursionError:
        return [FieldError("spec", "is nested too deeply")]
    return []


def _is_misplaced(detail: ErrorDetails) -> bool:
    """Whether a rule says that the field belongs to another level."""
    if detail["type"] != "extra_forbidden":
        return False
    *holder, field = detail["loc"]
    if holder and not isinstance(holder[-1], int):
        return False
    level = str(holder[-2]) if holder else "spec"
    return level in _RULES and field in gang_rules.misplaced(level)


def _field_error(detail: ErrorDetails) -> FieldError:
    path, value, kind = _path(detail["loc"]), detail.get("input"), detail["type"]
    if kind == "null":
        return FieldError(f"{path}.{detail['ctx']['field']}", "is null", "leave it out")
    if kind == "extra_forbidden":
        near = get_close_matches(str(detail["loc"][-1]), _FIELDS, n=1, cutoff=0.6)
        return FieldError(path, "is no field", f"did you mean {near[0]}?" if near else "")
    if kind == "model_type":
        return FieldError(path, "is not an object")
    problem = detail["msg"][:1].lower() + detail["msg"][1:]
    if not isinstance(value, str | int | float):
        return FieldError(path, problem)
    if value is False and "Off" in str(detail.get("ctx", {}).get("expected")):
        return FieldError(path, "is false", "put Off in quotes: YAML reads it as false")
    wanted = _FORMS.get(str(detail["loc"][-1])) if kind == "string_pattern_mismatch" else None
    if wanted:
        return FieldError(path, f"{shown(value)} has the wrong form", wanted)
    return FieldError(path, f"{problem}, found {shown(value)}")


def _path(location: tuple[str | int, ...]) -> str:
    return "spec" + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in location)


def _fields_of(*models: type[BaseModel]) -> list[str]:
    return [str(field.alias) for model in models for field in model.model_fields.values()]


_FIELDS: Final = sorted(
    set(_fields_of(gang.WorkloadSpec, gang.GangGroup, gang.RankedGroup, gang.EqGroup))
)


# -- Rev1 ------------------------------------------------------------------------------------


def _errors_of_rev1(spec: Object) -> list[FieldError]:
    groups = [group for group in groups_of(spec) if group.level in _REV1]
    return [
        FieldError(
            f"{group.path}.{field}",
            "is a field of RevN",
            f"leave it out, or set feature gate {WORKLOAD_REV_N}",
        )
        for group in groups
        for field in group.value
        if field not in _REV1[group.level]
    ]


# -- rules of the CustomResourceDefinition ---------------------------------------------------


def _rule_errors(spec: Object, old: Object | None) -> Iterator[FieldError]:
    for group in groups_of(spec):
        for rule in _RULES[group.level]:
            if rule.update:
                if old is not None and not rule.holds(group.value, old):
                    yield _broken(rule, group)
            elif not rule.holds(group.value):
                yield _broken(rule, group)
        yield from _duplicates(group)
        yield from _topology_errors(group)


def _broken(rule: GangRule, group: Group) -> FieldError:
    value = group.value.get(rule.field)
    found = f", found {shown(value)}" if isinstance(value, str | int) else ""
    return FieldError(f"{group.path}.{rule.field}", rule.message + found)


def _duplicates(group: Group) -> Iterator[FieldError]:
    for child in CHILD_LISTS:
        names: set[str] = set()
        for index, part in enumerate(group.value.get(child, ())):
            if part["name"] in names:
                path = f"{group.path}.{child}[{index}]"
                yield FieldError(path, f"duplicate name {shown(part['name'])}", "use it once")
            names.add(part["name"])


def _topology_errors(group: Group) -> Iterator[FieldError]:
    request = group.value.get("topologyRequest")
    if request is None:
        return
    path = f"{group.path}.topologyRequest"
    for rule in gang_rules.TOPOLOGY_REQUEST:
        if not rule.holds(request):
            yield FieldError(path, rule.message, f"found {', '.join(request) or 'none'}")
    for index, claim in enumerate(request.get("resourceClaims", ())):
        for rule in gang_rules.RESOURCE_CLAIM:
            if not rule.holds(claim):
                yield FieldError(f"{path}.resourceClaims[{index}]", rule.message)


# -- what the API server cannot check ---------------------------------------------------------


def _sum_errors(group: Group, spec: Object) -> Iterator[FieldError]:
    """A count that the parts can never meet, and a gang that is none."""
    whole, path = group.value, group.path
    if group.level == "spec" and whole.get("replicaMode") == "ReplicatedGangs":
        return  # the one gang group is that of each replica
    least, most = lower_bound_of_parts(whole), upper_bound_of_parts(whole)
    own_least, own_most = whole.get("minCount"), whole.get("maxCount")
    if own_least is not None and most is not None and own_least > most:
        problem = f"{own_least} is more than the {most} pods of its parts"
        yield FieldError(f"{path}.minCount", problem, f"use {most} or less, or larger parts")
    at_least = _known_lower_bounds(whole)
    if own_most is not None and at_least > own_most:
        problem = f"{own_most} is less than the {at_least} pods of its parts"
        yield FieldError(f"{path}.maxCount", problem, f"use {at_least} or more, or smaller parts")
    if group.level == "gangGroups":
        yield from _gang_errors(group, least, spec)


def _known_lower_bounds(whole: Object) -> int:
    _, parts = parts_of(whole)
    return sum(
        max(part.get("count", part.get("minCount", 0)), _known_lower_bounds(part)) for part in parts
    )


def _gang_errors(group: Group, least: int | None, spec: Object) -> Iterator[FieldError]:
    whole, path = group.value, group.path
    if whole.get("gangMode") == "Gang" and "minCount" not in whole and least is not None:
        if least == 0:
            yield FieldError(
                f"{path}.gangMode",
                "is Gang, and the parts have no pods",
                'set the counts of the parts, or gangMode "Off"',
            )
        if least > gang.MAX_PODS:
            problem = f"the parts have {least} pods, more than {gang.MAX_PODS}"
            yield FieldError(f"{path}.gangMode", problem, "use smaller parts")
    if "reschedulingPolicy" in whole and gang_mode(whole, spec) == "Off":
        wanted = "leave out reschedulingPolicy"
        if spec.get("replicaMode") != "ReplicatedPods":
            wanted = f"set minCount to 1 or more, or {wanted}"
        yield FieldError(f"{path}.reschedulingPolicy", "needs a gang", wanted)


def _template_errors(group: Group) -> Iterator[FieldError]:
    found: list[FieldError] = []
    for field in ("template", "maxTemplate"):
        if field in group.value:
            found += template_errors(group.value[field], f"{group.path}.{field}")
    yield from found
    if found or "maxTemplate" not in group.value:
        return
    name = group.value["name"]
    usual, largest = (
        requests_of(canonical_template(group.value[field], name))
        for field in ("template", "maxTemplate")
    )
    for resource in usual:
        if largest.get(resource, usual[resource]) < usual[resource]:
            most, least = (
                format_amount(resource, amounts[resource]) for amounts in (largest, usual)
            )
            problem = f"has {resource} {most}, less than {least} in template"
            yield FieldError(f"{group.path}.maxTemplate", problem, f"use {least} or more")
