"""Expand: the canonical form of a spec, with all four levels and all defaults.

Stored objects stay as they were written, so that they keep their meaning when defaults change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rackgate.gang.levels import DEFAULT_NAMES, Object, lower_bound_of_parts
from rackgate.gang.pod_templates import canonical_template

Spec = dict[str, Any]

DEFAULT_TIMEOUT_S: Final = 60
# A short form holds these fields of the group that it leaves out.
_OF_GANG_GROUP: Final = ("rankedGroups", "eqGroups")
_OF_RANKED_GROUP: Final = ("rankMode", "podRank", "eqGroups")


def expand(spec: Object) -> Spec:
    """The canonical form: all levels, templates as pod templates, all defaults."""
    return _with_defaults(insert_levels(spec))


def insert_levels(spec: Object) -> Spec:
    """The spec with all four levels, counts as bounds and templates as pod templates."""
    whole = dict(spec)
    moved = _move(whole, _OF_GANG_GROUP)
    groups = whole.get("gangGroups", [{"name": DEFAULT_NAMES["gangGroups"], **moved}])
    whole["gangGroups"] = [_with_ranked_groups(group) for group in groups]
    return whole


def quote_off(spec: Any) -> Any:
    """The spec with `"Off"` where YAML read an unquoted Off as false: at gangMode and rankMode.

    Anything may be in the spec: nothing of it is validated yet.
    """
    if isinstance(spec, list):
        return [quote_off(entry) for entry in spec]
    if not isinstance(spec, Mapping):
        return spec
    lists = ("gangGroups", "rankedGroups", "eqGroups")
    found = {key: quote_off(value) if key in lists else value for key, value in spec.items()}
    for field in ("gangMode", "rankMode"):
        if found.get(field) is False:
            found[field] = "Off"
    return found


def _move(holder: Spec, fields: Iterable[str]) -> Spec:
    return {field: holder.pop(field) for field in fields if field in holder}


def _with_ranked_groups(group: Object) -> Spec:
    whole = dict(group)
    if "rankedGroups" not in whole:
        moved = _move(whole, _OF_RANKED_GROUP)
        whole["rankedGroups"] = [{"name": DEFAULT_NAMES["rankedGroups"], **moved}]
    whole["rankedGroups"] = [_with_eq_groups(ranked) for ranked in whole["rankedGroups"]]
    return whole


def _with_eq_groups(ranked: Object) -> Spec:
    groups = ranked.get("eqGroups", [{"name": DEFAULT_NAMES["eqGroups"]}])
    return {**ranked, "eqGroups": [_canonical_eq_group(group) for group in groups]}


def _canonical_eq_group(group: Object) -> Spec:
    whole = dict(group)
    if "count" in whole:
        whole["minCount"] = whole["maxCount"] = whole.pop("count")
    for field in ("template", "maxTemplate"):
        if field in whole:
            whole[field] = canonical_template(whole[field], whole["name"])
    return whole


def gang_mode(group: Object, spec: Object) -> str:
    """The gangMode of a gang group, `Gang` or `Off`.

    One pod is no gang: with ReplicatedPods, minCount is a number of replicas.
    """
    may_be_gang = spec.get("replicaMode") != "ReplicatedPods"
    default = "Gang" if may_be_gang and group.get("minCount", 0) > 0 else "Off"
    return str(group.get("gangMode", default))


def _with_defaults(spec: Object) -> Spec:
    gangs = [_with_gang_defaults(group, spec) for group in spec["gangGroups"]]
    return {"replicaMode": "Unreplicated", **spec, "gangGroups": gangs}


def _with_gang_defaults(group: Object, spec: Object) -> Spec:
    whole = {**group, "gangMode": gang_mode(group, spec)}
    if whole["gangMode"] == "Gang":
        whole.setdefault("minCount", lower_bound_of_parts(whole))
        whole.setdefault("scheduleTimeoutSeconds", DEFAULT_TIMEOUT_S)
    whole["rankedGroups"] = [
        ranked if "podRank" in ranked else {**ranked, "rankMode": "Off"}
        for ranked in whole["rankedGroups"]
    ]
    return whole
