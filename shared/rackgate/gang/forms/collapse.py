"""Collapse: the shortest spec that says the same.

It drops default values and groups that carry nothing of their own. It keeps every name, selector,
request, count and template that is not implied by the rest.
"""

from __future__ import annotations

from typing import Any

from rackgate.gang.forms.expand import DEFAULT_TIMEOUT_S, Spec, expand
from rackgate.gang.levels import DEFAULT_NAMES, Object, lower_bound_of_parts


def collapse(spec: Object) -> Spec:
    """The shortest form; `expand` of it is `expand` of the spec."""
    whole = expand(spec)
    mode = whole["replicaMode"]
    if mode == "Unreplicated":
        del whole["replicaMode"]
    gangs = [_collapse_gang(group) for group in whole.pop("gangGroups")]
    if mode != "ReplicatedGangs" and _is_default(gangs, "gangGroups", {"rankedGroups"}):
        (gang,) = gangs
        del gang["name"]
        return whole | _short(gang, {"eqGroups"})
    inner = {"rankMode", "podRank", "eqGroups"}
    return {**whole, "gangGroups": [_short(group, inner) for group in gangs]}


def _is_default(groups: list[Spec], level: str, fields: set[str]) -> bool:
    """Whether it is the group that Expand inserts, with no other fields than these."""
    if len(groups) != 1 or groups[0]["name"] != DEFAULT_NAMES[level]:
        return False
    return set(groups[0]) <= {"name", *fields}


def _short(gang: Spec, fields: set[str]) -> Spec:
    """The gang group with these fields of its ranked group, if that has no others."""
    if not _is_default(gang["rankedGroups"], "rankedGroups", fields):
        return gang
    (ranked,) = gang["rankedGroups"]
    outer = {field: value for field, value in gang.items() if field != "rankedGroups"}
    return outer | {field: value for field, value in ranked.items() if field != "name"}


def _collapse_gang(group: Spec) -> Spec:
    whole = dict(group)
    if whole["gangMode"] == "Off":
        if not whole.get("minCount"):
            del whole["gangMode"]
    else:
        if whole["scheduleTimeoutSeconds"] == DEFAULT_TIMEOUT_S:
            del whole["scheduleTimeoutSeconds"]
        # One of both is implied: the count by the parts, or the mode by the count.
        derived = whole["minCount"] == lower_bound_of_parts(whole)
        del whole["minCount" if derived else "gangMode"]
    whole["rankedGroups"] = [_collapse_ranked(ranked) for ranked in whole["rankedGroups"]]
    return whole


def _collapse_ranked(ranked: Spec) -> Spec:
    whole = dict(ranked)
    if "podRank" not in whole:
        del whole["rankMode"]
    groups = [_collapse_eq_group(group) for group in whole.pop("eqGroups")]
    return whole if _is_default(groups, "eqGroups", set()) else {**whole, "eqGroups": groups}


def _collapse_eq_group(group: Spec) -> dict[str, Any]:
    whole = dict(group)
    if "minCount" in whole and whole["minCount"] == whole.get("maxCount"):
        whole["count"] = whole.pop("minCount")
        del whole["maxCount"]
    return whole
