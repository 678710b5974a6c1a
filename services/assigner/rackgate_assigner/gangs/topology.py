"""Topology requests of a Workload of gangs, as requests of the PodSets of its job. Pure.

A PodSet has one request. So what a Workload of gangs asks for on several levels is written only if
one request says the same:

| asks | the PodSet gets |
|---|---|
| one level, for one PodSet | that request |
| two required levels, for one PodSet | the inner one, if it is finer: it implies the outer |
| one request for two PodSets, one of them a single pod | the request on both, as one group |

Anything else needs the placement of nested groups, which does not exist yet, and is rejected.

Source: GNG-38.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

from rackgate.api import names
from rackgate.gang.levels import Object
from rackgate.gang.membership import Mismatch, part_of
from rackgate_assigner.gangs.gang_workload import PodSetPods

_ANNOTATIONS: Final = {
    "required": names.REQUIRED_TOPOLOGY,
    "preferred": names.PREFERRED_TOPOLOGY,
    "unconstrained": names.UNCONSTRAINED_TOPOLOGY,
}
NESTED: Final = "needs the placement of nested groups, which is not supported"


class TopologyReason(StrEnum):
    """Reasons of TopologyRequestValid and TopologyEnforced."""

    VALID = "Valid"
    NOT_NARROWER = "NotNarrower"
    CONFLICTS_WITH_TEMPLATE = "ConflictsWithTemplate"
    ENFORCED = "Enforced"
    NOT_SUPPORTED = "NotSupported"


@dataclass(frozen=True, slots=True)
class GangTopology:
    """What a job gets from the topology requests of its Workload of gangs.

    Attributes:
        annotations: by PodSet, the topology annotations that say the same.
        reason: why the requests cannot be used; VALID if they can.
        message: the same, for people; the job is not admitted.
        ignored: requests that have no effect, with their paths.
    """

    annotations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    reason: TopologyReason = TopologyReason.VALID
    message: str = ""
    ignored: tuple[str, ...] = ()


NO_TOPOLOGY: Final = GangTopology()


@dataclass(frozen=True, slots=True)
class _Ask:
    """One request, and the PodSets that it covers."""

    path: str
    form: str
    key: str
    group: str
    podsets: tuple[str, ...]


def gang_topology(
    canonical: Object,
    podsets: Sequence[PodSetPods],
    *,
    workload: str,
    is_narrower: Callable[[str, str], bool],
) -> GangTopology:
    """The requests of a Workload of gangs for the PodSets of one job.

    Args:
        canonical: the expanded spec.
        podsets: of the job, those whose pods are in gangs.
        workload: name of the Workload of gangs.
        is_narrower: whether the domains of the second level are parts of those of the first.
    """
    asks, ignored, unclear = _asks_of(canonical, podsets)
    if unclear:
        return GangTopology(reason=TopologyReason.NOT_SUPPORTED, message=unclear)
    found: dict[str, dict[str, str]] = {}
    for one in podsets:
        covering = [ask for ask in asks if one.name in ask.podsets]
        if not covering:
            continue
        ask = covering[-1]  # the innermost
        for outer, inner in pairwise(covering):
            if (outer.form, inner.form) != ("required", "required") or len(outer.podsets) > 1:
                message = f"{inner.path} inside of {outer.path} {NESTED}"
                return GangTopology(reason=TopologyReason.NOT_SUPPORTED, message=message)
            if not is_narrower(outer.key, inner.key):
                message = (
                    f"{inner.path} asks for {inner.key}, which is not finer than {outer.key} of "
                    f"{outer.path}: ask for a finer level, or remove it"
                )
                return GangTopology(reason=TopologyReason.NOT_NARROWER, message=message)
        found[one.name] = {_ANNOTATIONS[ask.form]: ask.key}
        if len(ask.podsets) == 1 or ask.form == "unconstrained":
            continue
        if len(ask.podsets) > 2 or not any(p.count == 1 for p in podsets if p.name in ask.podsets):
            message = f"{ask.path} for PodSets {', '.join(ask.podsets)} {NESTED}"
            return GangTopology(reason=TopologyReason.NOT_SUPPORTED, message=message)
        found[one.name][names.PODSET_GROUP] = f"{workload}-{ask.group}"[:63].rstrip("-.")
    for one in podsets:
        if one.topology and one.name in found and dict(one.topology) != found[one.name]:
            message = (
                f"the pod template of PodSet {one.name} requests another topology: remove its "
                "annotations, or the request of the Workload of gangs"
            )
            return GangTopology(reason=TopologyReason.CONFLICTS_WITH_TEMPLATE, message=message)
    return GangTopology(found, ignored=ignored)


def _asks_of(
    canonical: Object, podsets: Sequence[PodSetPods]
) -> tuple[list[_Ask], tuple[str, ...], str]:
    """All requests from the outermost to the innermost; those without effect; what is unclear."""
    parts = {one.name: part_of(canonical, one.labels) for one in podsets}
    asks: list[_Ask] = []
    ignored: list[str] = ["spec.topologySpread"] if "topologySpread" in canonical else []
    unclear: list[str] = []

    def add(holder: Object, path: str, group: str, level: int) -> None:
        request = holder.get("topologyRequest")
        if not request:
            return
        path += ".topologyRequest"
        form = next((form for form in _ANNOTATIONS if form in request), "")
        if not form:
            ignored.append(path)
            return
        covered = []
        for one in podsets:
            part = parts[one.name]
            known = (
                ()
                if isinstance(part, Mismatch)
                else (part.gang.group, part.ranked_group, part.eq_group)
            )
            if level and (len(known) < level or known[level - 1] is None):
                unclear.append(
                    f"{path}: the labels of the pod template do not say which pods of PodSet "
                    f"{one.name} it is for; it {NESTED}"
                )
            elif not level or known[level - 1] == holder["name"]:
                covered.append(one.name)
        key = "true" if form == "unconstrained" else str(request[form])
        if covered:
            asks.append(_Ask(path, form, key, group, tuple(covered)))

    add(canonical, "spec", "all", 0)
    for index, gang in enumerate(canonical["gangGroups"]):
        path = f"spec.gangGroups[{index}]"
        add(gang, path, str(gang["name"]), 1)
        for number, ranked in enumerate(gang["rankedGroups"]):
            inner = f"{path}.rankedGroups[{number}]"
            add(ranked, inner, str(ranked["name"]), 2)
            for last, equal in enumerate(ranked["eqGroups"]):
                add(equal, f"{inner}.eqGroups[{last}]", str(equal["name"]), 3)
    order = sorted(asks, key=lambda ask: ask.path.count("["))
    return order, tuple(ignored), unclear[0] if unclear else ""
