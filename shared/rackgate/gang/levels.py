"""The levels of a spec: gangGroups, their rankedGroups, and their eqGroups, with paths and counts.

Every level may hold the list of a later one directly: the short form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rackgate.api.gang_rules import CHILD_LISTS

Object = Mapping[str, Any]

# Names of the groups that a short form leaves out.
DEFAULT_NAMES: Final = {"gangGroups": "gg", "rankedGroups": "rg", "eqGroups": "template"}


@dataclass(frozen=True, slots=True)
class Group:
    """One object on a level.

    Attributes:
        level: `spec`, or the list that it is an entry of.
        path: as in the manifest, for example `spec.gangGroups[0].eqGroups[1]`.
    """

    level: str
    path: str
    value: Object


def groups_of(value: Object, level: str = "spec", path: str = "spec") -> Iterator[Group]:
    """The spec and all groups in it, outer ones first."""
    yield Group(level, path, value)
    for child in CHILD_LISTS:
        for index, entry in enumerate(value.get(child, ())):
            yield from groups_of(entry, child, f"{path}.{child}[{index}]")


def parts_of(group: Object) -> tuple[str, Sequence[Object]]:
    """The list of the next level that a group holds, and its name; `""` if it holds none."""
    return next(((child, group[child]) for child in CHILD_LISTS if child in group), ("", ()))


def lower_bound(group: Object) -> int | None:
    """The least number of pods: its own, else the sum of those of its parts; None if unknown."""
    own: int | None = group.get("count", group.get("minCount"))
    return lower_bound_of_parts(group) if own is None else own


def lower_bound_of_parts(group: Object) -> int | None:
    """The sum of the lower bounds of the parts; None without parts, or if one has none."""
    return _sum([lower_bound(part) for part in parts_of(group)[1]])


def upper_bound(group: Object) -> int | None:
    """The greatest number of pods: its own or that of its parts, the smaller; None if unknown."""
    own: int | None = group.get("count", group.get("maxCount"))
    known = [bound for bound in (own, upper_bound_of_parts(group)) if bound is not None]
    return min(known, default=None)


def upper_bound_of_parts(group: Object) -> int | None:
    """The sum of the upper bounds of the parts; None without parts, or if one has none."""
    return _sum([upper_bound(part) for part in parts_of(group)[1]])


def _sum(bounds: Sequence[int | None]) -> int | None:
    known = [bound for bound in bounds if bound is not None]
    return sum(known) if known and len(known) == len(bounds) else None
