"""What a unit of one or two pod sets asks for (sections 5, 6 and 10)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.support.oracle.amounts import Amounts, per_pod, read

Json = dict[str, Any]
PREFERRED_AFFINITY = "TASRespectNodeAffinityPreferred"


class DoesNotFitError(Exception):
    """The unit finds no place; the text says why."""


@dataclass
class ParsedRequest:
    """A request that could be read.

    `level` and `slice_level` are places in the list of levels; `units` has one entry per level;
    `leaf_range` is the path new pods must be under, or empty.
    """

    workers: Json
    worker: Amounts
    leader: Amounts | None
    count: int
    size: int
    level: int
    slice_level: int
    units: list[int]
    slices: list[Json]
    required: bool
    unconstrained: bool
    best_fit: bool
    soft: bool
    restricted_to: tuple[str, ...] = ()
    excluded: Counter[str] = field(default_factory=Counter)

    @property
    def need(self) -> int:
        return self.count // self.size

    @property
    def leaders(self) -> int:
        return int(self.leader is not None)

    @property
    def preferred(self) -> bool:
        return not self.required and not self.unconstrained


def unit_of(podsets: list[Json], first: Json) -> tuple[Json, Json | None]:
    """Workers and leader of the unit that begins with a pod set."""
    if first.get("group") is None:
        return first, None
    members = [podset for podset in podsets if podset.get("group") == first["group"]]
    if len(members) == 1:
        return members[0], None
    one, two = members
    return (two, one) if two["count"] > one["count"] else (one, two)


def parse_request(
    levels: list[str], gates: Json, workers: Json, leader: Json | None, count: int
) -> ParsedRequest:
    request = workers.get("topologyRequest")
    asked: Json = {"unconstrained": True} if request is None else request
    slices: list[Json] = asked.get("slices") or []
    size = slices[0].get("size", 0) if slices else 1
    if size <= 0:
        raise DoesNotFitError("slice topology requested, but slice size not provided")
    required, preferred = asked.get("required"), asked.get("preferred")
    slices_only = bool(slices) and not required and not preferred
    unconstrained = bool(asked.get("unconstrained")) or slices_only
    name = required or preferred
    if not name:
        if slices_only:
            name = levels[0]
        elif unconstrained:
            name = levels[-1]
        else:
            raise DoesNotFitError("topology level not specified")
    if name not in levels:
        raise DoesNotFitError(f"no requested topology level: {name}")
    slice_name = slices[0]["topology"] if slices else levels[-1]
    if slice_name not in levels:
        raise DoesNotFitError(f"no requested topology level for slices: {slice_name}")
    if levels.index(slice_name) < levels.index(name):
        raise DoesNotFitError(
            f"podset slice topology {slice_name} is above the podset topology {name}"
        )
    return ParsedRequest(
        workers=workers,
        worker=per_pod(read(workers.get("requests"))),
        leader=per_pod(read(leader.get("requests"))) if leader is not None else None,
        count=count,
        size=size,
        level=levels.index(name),
        slice_level=levels.index(slice_name),
        units=_units(levels, slices),
        slices=slices,
        required=bool(required),
        unconstrained=unconstrained,
        best_fit=not unconstrained or not gates.get("TASProfileMixed", True),
        soft=bool(gates.get(PREFERRED_AFFINITY)),
    )


def _units(levels: list[str], slices: list[Json]) -> list[int]:
    units = [1] * len(levels)
    for parent, layer in pairwise(slices):
        name, above = layer["topology"], parent["topology"]
        if name not in levels:
            raise DoesNotFitError(f"no requested topology level for additional slice layer: {name}")
        first, last = levels.index(above) + 1, levels.index(name)
        if last < first:
            raise DoesNotFitError(
                f"additional slice layer topology {name} must be at a lower level than {above}"
            )
        if parent["size"] % layer["size"]:
            raise DoesNotFitError(
                f"additional slice layer size {layer['size']} "
                f"must evenly divide parent layer size {parent['size']}"
            )
        for level in range(first, last + 1):
            units[level] = layer["size"]
    return units
