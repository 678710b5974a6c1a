"""Domains that several PodSets share, as an annotation of a Workload of Kueue.

The fields of its PodSets cannot express them. The annotation is written together with the PodSets,
so a scheduling cycle reads one object, and an edit of the Workload of gangs counts from the next
run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rackgate.api.names import GANG_NESTING_ANNOTATION

PATH: Final = f"metadata.annotations[{GANG_NESTING_ANNOTATION}]"
# Levels of a spec, and PodSets of a Workload.
MAX_DEPTH: Final = 4
MAX_PODSETS: Final = 18
MAX_LENGTH: Final = 16_384
_MODES: Final = ("required", "preferred")


class NestingError(ValueError):
    """An annotation that cannot be read; the text has its path, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Enclosing:
    """A domain that all PodSets of a group share.

    Attributes:
        group: path of the group by names, for example `gg/workers`; `spec` for all pods.
        level: node label.
        required: or else preferred.
        across: name of a Workload of gangs whose other gangs, each in a Workload of Kueue of its
            own, share the domain, too; "" if there are none. Only of the outermost domain.
    """

    group: str
    level: str
    required: bool
    across: str = ""


@dataclass(frozen=True, slots=True)
class NestedPodSet:
    """The domains that a PodSet shares with others, coarsest first."""

    podset: str
    within: tuple[Enclosing, ...]


def encode_nesting(podsets: Sequence[NestedPodSet]) -> str:
    """The annotation. The order of the PodSets is the order in which they are placed."""
    written = [
        {
            "podSet": podset.podset,
            "within": [
                {
                    "group": one.group,
                    _MODES[not one.required]: one.level,
                    **({"across": one.across} if one.across else {}),
                }
                for one in podset.within
            ],
        }
        for podset in podsets
    ]
    return json.dumps(written, separators=(",", ":"))


def decode_nesting(text: str) -> tuple[NestedPodSet, ...]:
    """Read the annotation; users may have written it.

    Raises:
        NestingError: it is not such a list, or a group is not the same in all of its PodSets.
    """
    if len(text) > MAX_LENGTH:
        raise NestingError(f"{PATH}: has {len(text)} characters, at most {MAX_LENGTH} are read")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise NestingError(f"{PATH}: is not JSON") from None
    if not isinstance(found, list) or not 0 < len(found) <= MAX_PODSETS:
        raise NestingError(f"{PATH}: is not a list of 1 to {MAX_PODSETS} PodSets")
    podsets = tuple(_podset(entry, f"{PATH}[{index}]") for index, entry in enumerate(found))
    if len({podset.podset for podset in podsets}) < len(podsets):
        raise NestingError(f"{PATH}: names a PodSet twice")
    around: dict[str, tuple[Enclosing, ...]] = {}
    for podset in podsets:
        for depth, one in enumerate(podset.within, start=1):
            if around.setdefault(one.group, podset.within[:depth]) != podset.within[:depth]:
                raise NestingError(f'{PATH}: group "{one.group}" is not the same in all PodSets')
    return podsets


def _podset(entry: Any, path: str) -> NestedPodSet:
    if not isinstance(entry, Mapping) or set(entry) != {"podSet", "within"}:
        raise NestingError(f"{path}: is not an object with podSet and within")
    name, within = entry["podSet"], entry["within"]
    if not isinstance(name, str) or not name:
        raise NestingError(f"{path}.podSet: is not the name of a PodSet")
    if not isinstance(within, list) or not 0 < len(within) <= MAX_DEPTH:
        raise NestingError(f"{path}.within: is not a list of 1 to {MAX_DEPTH} domains")
    chain = tuple(_enclosing(one, f"{path}.within[{at}]") for at, one in enumerate(within))
    if len({one.group for one in chain}) < len(chain):
        raise NestingError(f"{path}.within: names a group twice")
    if any(one.across for one in chain[1:]):
        raise NestingError(f"{path}.within: only the first domain may be shared across Workloads")
    return NestedPodSet(name, chain)


def _enclosing(entry: Any, path: str) -> Enclosing:
    if isinstance(entry, Mapping):
        for mode in _MODES:
            if set(entry) - {"across"} == {"group", mode}:
                found = [entry["group"], entry[mode], entry.get("across", "-")]
                if all(isinstance(text, str) and text for text in found):
                    group, level, across = found
                    across = across if "across" in entry else ""
                    return Enclosing(group, level, mode == "required", across)
    raise NestingError(f"{path}: is not an object with group, and required or preferred")
