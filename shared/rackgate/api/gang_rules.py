"""Rules of the gang Workload over several fields: each as CEL for the API server, and as Python.

`rackgate.api.gang` puts the CEL into the CustomResourceDefinition. `rackgate.gang.validation` runs
the Python on JSON data whose fields have the right types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Value = Mapping[str, Any]
Reason = Literal[
    "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired", "FieldValueDuplicate"
]
CHILD_LISTS: Final = ("gangGroups", "rankedGroups", "eqGroups")

# The list whose entries a field belongs to; `spec` itself for the first three.
BELONGS_TO: Final = {
    "gangMode": "gangGroups",
    "scheduleTimeoutSeconds": "gangGroups",
    "reschedulingPolicy": "gangGroups",
    "rankMode": "rankedGroups",
    "podRank": "rankedGroups",
    "template": "eqGroups",
    "maxTemplate": "eqGroups",
    "count": "eqGroups",
    "topologySpread": "spec",
    "replicaMode": "spec",
    "controllerRef": "spec",
}
# gangGroups also take the short form of one ranked group.
_OWN: Final = {
    "spec": ("spec",),
    "gangGroups": ("gangGroups", "rankedGroups"),
    "rankedGroups": ("rankedGroups",),
    "eqGroups": ("eqGroups",),
}


@dataclass(frozen=True, slots=True)
class GangRule:
    """One rule.

    Attributes:
        cel: the rule for the API server.
        field: the field that the error names, relative to the object; may be empty.
        holds: the rule in Python, over the object; over the new and the old one if `update`.
        update: whether the rule compares with the stored object.
    """

    cel: str
    message: str
    field: str
    reason: Reason
    holds: Callable[..., bool]
    update: bool = False

    def to_json(self) -> dict[str, str]:
        """The rule as in a CustomResourceDefinition."""
        path = {"fieldPath": f".{self.field}"} if self.field else {}
        return {"rule": self.cel, "message": self.message, **path, "reason": self.reason}


def misplaced(level: str) -> list[str]:
    """Fields that belong to another level than `level`.

    The schema declares them, because CEL sees no field without a type.
    """
    return [field for field, owner in BELONGS_TO.items() if owner not in _OWN[level]]


def _misplaced_rules(level: str) -> list[GangRule]:
    return [
        GangRule(
            f"!has(self.{field})",
            belongs_to(field),
            field,
            "FieldValueForbidden",
            lambda one, field=field: field not in one,
        )
        for field in misplaced(level)
    ]


def belongs_to(field: str) -> str:
    """The message about a field on a wrong level."""
    return f"{field} belongs to {BELONGS_TO[field]}"


def _same_key(groups: Iterable[Value]) -> bool:
    return len({group["selector"]["key"] for group in groups if "selector" in group}) <= 1


def _distinct_values(groups: Iterable[Value]) -> bool:
    values = [v for group in groups for v in group.get("selector", {}).get("values", ())]
    return len(set(values)) == len(values)


def _selector_rules(child: str) -> list[GangRule]:
    return [
        GangRule(
            f"!has(self.{child}) || self.{child}.all(a, self.{child}.all(b, "
            "!has(a.selector) || !has(b.selector) || a.selector.key == b.selector.key))",
            "all selectors of one list use the same label key",
            child,
            "FieldValueInvalid",
            lambda one: _same_key(one.get(child, ())),
        ),
        GangRule(
            f"!has(self.{child}) || self.{child}.all(a, !has(a.selector) || "
            f"a.selector.values.all(v, self.{child}.exists_one(b, "
            "has(b.selector) && v in b.selector.values)))",
            "a label value may select one group only",
            child,
            "FieldValueDuplicate",
            lambda one: _distinct_values(one.get(child, ())),
        ),
    ]


_BOUNDS: Final = GangRule(
    "!has(self.minCount) || !has(self.maxCount) || self.minCount <= self.maxCount",
    "minCount must not exceed maxCount",
    "maxCount",
    "FieldValueInvalid",
    lambda one: (
        "minCount" not in one or "maxCount" not in one or one["minCount"] <= one["maxCount"]
    ),
)


def _is_gang(group: Value, least: int) -> bool:
    """Whether a group says that it is a gang, or asks for at least `least` pods at once."""
    mode = group.get("gangMode")
    return mode == "Gang" or (mode is None and group.get("minCount", 0) >= least)


def _names_and_selectors(spec: Value) -> list[tuple[str, Any]] | None:
    groups = spec.get("gangGroups")
    if groups is None:
        return None
    return sorted(((one["name"], one.get("selector")) for one in groups), key=lambda one: one[0])


SPEC: Final = [
    *_misplaced_rules("spec"),
    _BOUNDS,
    GangRule(
        "(has(self.gangGroups)?1:0)+(has(self.rankedGroups)?1:0)+(has(self.eqGroups)?1:0) <= 1",
        "only one of gangGroups, rankedGroups, eqGroups",
        "gangGroups",
        "FieldValueForbidden",
        lambda one: sum(child in one for child in CHILD_LISTS) <= 1,
    ),
    GangRule(
        "!has(self.replicaMode) || self.replicaMode == 'Unreplicated' || "
        "!has(self.gangGroups) || self.gangGroups.size() <= 1",
        "a replicated workload lists one gangGroup",
        "gangGroups",
        "FieldValueInvalid",
        lambda one: (
            one.get("replicaMode", "Unreplicated") == "Unreplicated"
            or len(one.get("gangGroups", ())) <= 1
        ),
    ),
    GangRule(
        "!has(self.replicaMode) || self.replicaMode != 'ReplicatedPods' || "
        "!has(self.gangGroups) || self.gangGroups.all(g, "
        "(has(g.gangMode) && g.gangMode == 'Off') || "
        "!((has(g.gangMode) && g.gangMode == 'Gang') || (has(g.minCount) && g.minCount > 1)))",
        "ReplicatedPods has no gangs of more than one pod",
        "gangGroups",
        "FieldValueInvalid",
        lambda one: (
            one.get("replicaMode") != "ReplicatedPods"
            or not any(_is_gang(group, 2) for group in one.get("gangGroups", ()))
        ),
    ),
    GangRule(
        "!has(self.replicaKey) || (has(self.replicaMode) && self.replicaMode == 'ReplicatedGangs')",
        "replicaKey only with ReplicatedGangs",
        "replicaKey",
        "FieldValueForbidden",
        lambda one: "replicaKey" not in one or one.get("replicaMode") == "ReplicatedGangs",
    ),
    GangRule(
        "!has(self.replicaMode) || self.replicaMode != 'ReplicatedGangs' || "
        "(has(self.gangGroups) && self.gangGroups.size() == 1)",
        "ReplicatedGangs needs its gangGroup",
        "gangGroups",
        "FieldValueRequired",
        lambda one: (
            one.get("replicaMode") != "ReplicatedGangs" or len(one.get("gangGroups", ())) == 1
        ),
    ),
    GangRule(
        "has(self.replicaMode) == has(oldSelf.replicaMode) && "
        "(!has(self.replicaMode) || self.replicaMode == oldSelf.replicaMode)",
        "immutable",
        "replicaMode",
        "FieldValueInvalid",
        lambda one, old: one.get("replicaMode") == old.get("replicaMode"),
        update=True,
    ),
    GangRule(
        "has(self.gangGroups) == has(oldSelf.gangGroups) && (!has(self.gangGroups) || "
        "(self.gangGroups.size() == oldSelf.gangGroups.size() && "
        "self.gangGroups.all(a, oldSelf.gangGroups.exists(b, a.name == b.name && "
        "has(a.selector) == has(b.selector) && "
        "(!has(a.selector) || a.selector == b.selector)))))",
        "names and selectors are immutable",
        "gangGroups",
        "FieldValueInvalid",
        lambda one, old: _names_and_selectors(one) == _names_and_selectors(old),
        update=True,
    ),
    *_selector_rules("gangGroups"),
]


def _has_lower_bound(part: Value) -> bool:
    """Whether an entry of eqGroups or rankedGroups says how many pods it has at least."""
    if "count" in part or "minCount" in part:
        return True
    return "eqGroups" in part and all(map(_has_lower_bound, part["eqGroups"]))


def _has_bound_in_every_part(group: Value) -> bool:
    return any(
        child in group and all(map(_has_lower_bound, group[child]))
        for child in ("eqGroups", "rankedGroups")
    )


GANG_GROUPS: Final = [
    *_misplaced_rules("gangGroups"),
    _BOUNDS,
    GangRule(
        "!has(self.rankedGroups) || !has(self.eqGroups)",
        "eqGroups here is short for one rankedGroup: not together with rankedGroups",
        "eqGroups",
        "FieldValueForbidden",
        lambda one: "rankedGroups" not in one or "eqGroups" not in one,
    ),
    GangRule(
        "!has(self.rankedGroups) || (!has(self.rankMode) && !has(self.podRank))",
        "rankMode and podRank here are short for one rankedGroup: not together with rankedGroups",
        "rankMode",
        "FieldValueForbidden",
        lambda one: "rankedGroups" not in one or not {"rankMode", "podRank"} & set(one),
    ),
    GangRule(
        "!has(self.gangMode) || self.gangMode != 'Gang' || "
        "!has(self.minCount) || self.minCount > 0",
        "gangMode Gang contradicts minCount 0",
        "minCount",
        "FieldValueInvalid",
        lambda one: one.get("gangMode") != "Gang" or one.get("minCount") != 0,
    ),
    GangRule(
        "!has(self.gangMode) || self.gangMode != 'Gang' || has(self.minCount) || "
        "(has(self.eqGroups) && self.eqGroups.all(e, has(e.count) || has(e.minCount))) || "
        "(has(self.rankedGroups) && self.rankedGroups.all(r, has(r.minCount) || "
        "(has(r.eqGroups) && r.eqGroups.all(e, has(e.count) || has(e.minCount)))))",
        "gangMode Gang needs minCount, or a lower bound for every part",
        "minCount",
        "FieldValueRequired",
        lambda one: (
            one.get("gangMode") != "Gang" or "minCount" in one or _has_bound_in_every_part(one)
        ),
    ),
    GangRule(
        "!has(self.reschedulingPolicy) || !has(self.gangMode) || self.gangMode != 'Off'",
        "reschedulingPolicy needs a gang",
        "reschedulingPolicy",
        "FieldValueForbidden",
        lambda one: "reschedulingPolicy" not in one or one.get("gangMode") != "Off",
    ),
    *_selector_rules("rankedGroups"),
    *_selector_rules("eqGroups"),
]

RANKED_GROUPS: Final = [
    *_misplaced_rules("rankedGroups"),
    _BOUNDS,
    *_selector_rules("eqGroups"),
]

EQ_GROUPS: Final = [
    *_misplaced_rules("eqGroups"),
    _BOUNDS,
    GangRule(
        "!has(self.count) || (!has(self.minCount) && !has(self.maxCount))",
        "count excludes minCount and maxCount",
        "count",
        "FieldValueInvalid",
        lambda one: "count" not in one or not {"minCount", "maxCount"} & set(one),
    ),
    GangRule(
        "!has(self.maxTemplate) || has(self.template)",
        "maxTemplate needs template",
        "maxTemplate",
        "FieldValueRequired",
        lambda one: "maxTemplate" not in one or "template" in one,
    ),
]

_FORMS: Final = ("required", "preferred", "unconstrained", "resourceClaims")
TOPOLOGY_REQUEST: Final = [
    GangRule(
        "+".join(f"(has(self.{form})?1:0)" for form in _FORMS) + " == 1",
        f"exactly one of {', '.join(_FORMS)}",
        "",
        "FieldValueInvalid",
        lambda one: sum(form in one for form in _FORMS) == 1,
    )
]
RESOURCE_CLAIM: Final = [
    GangRule(
        "has(self.resourceClaim) != has(self.resourceClaimTemplate)",
        "exactly one of resourceClaim, resourceClaimTemplate",
        "",
        "FieldValueInvalid",
        lambda one: ("resourceClaim" in one) != ("resourceClaimTemplate" in one),
    )
]
