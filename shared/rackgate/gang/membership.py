"""Which pods belong to which group of a list: by selectors, or by the names of the groups.

A pod finds its group on each level by itself, from its labels. In one list:

1. A single group without a selector takes all pods.
2. A selector takes the pods whose label has one of its values. Validation makes them disjoint.
3. A group without a selector takes the rest, if it is the only one without.
4. Without any selectors, the first name label that the pod has names its group.

Source: GNG-07, GNG-08, CH-18.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from rackgate.api.names import (
    GANG_PART_LABEL,
    LWS_GROUP,
    LWS_GROUP_KEY_LABEL,
    REPLICATED_JOB_LABEL,
)
from rackgate.gang.levels import Object

# Without selectors, a pod belongs to the group that the first of these labels names.
NAME_LABELS: Final = (
    GANG_PART_LABEL,
    REPLICATED_JOB_LABEL,
    "trainer.kubeflow.org/trainjob-ancestor-step",
)
# All pods have one template, and so the same labels.
_ONE_TEMPLATE: Final = frozenset(
    {
        ("batch", "Job"),
        ("batch", "CronJob"),
        ("apps", "Deployment"),
        ("apps", "ReplicaSet"),
        ("apps", "StatefulSet"),
        ("apps", "DaemonSet"),
    }
)


def are_distinguishable(groups: Sequence[Object], spec: Object) -> bool:
    """Whether each pod can belong to at most one group of a list.

    Args:
        groups: the entries of one list.
        spec: the whole; its controllerRef says which labels the pods have.
    """
    rest = sum("selector" not in group for group in groups)
    if rest <= 1:
        return True
    controller = spec.get("controllerRef", {})
    key = (controller.get("apiGroup", ""), controller.get("kind", ""))
    return rest == len(groups) and key not in _ONE_TEMPLATE


# Labels that tell replicas apart, by the kind of controller, if the spec names no `replicaKey`.
_REPLICA_KEYS: Final[Mapping[tuple[str, str], str]] = {
    (LWS_GROUP, "LeaderWorkerSet"): LWS_GROUP_KEY_LABEL,
}


class Mismatch(StrEnum):
    """Why a pod belongs to no gang, or was not held; reasons of the condition PodsMatched."""

    NO_PART = "NoPart"
    NO_REPLICA = "NoReplica"
    TOO_MANY_PODS = "TooManyPods"
    NOT_HELD = "NotHeld"


class GangKey(NamedTuple):
    """One gang: one gang group, of one replica if the workload has replicated gangs."""

    group: str
    replica: str = ""

    def __str__(self) -> str:
        """For messages."""
        return f"{self.group} of replica {self.replica}" if self.replica else self.group


@dataclass(frozen=True, slots=True)
class Part:
    """The groups of one pod.

    Attributes:
        gang: its gang.
        ranked_group: name on level 2; None if no group or several groups take the pod.
        eq_group: name on level 3, as above.
    """

    gang: GangKey
    ranked_group: str | None
    eq_group: str | None


def replica_key(spec: Object) -> str:
    """The pod label that tells replicas apart; "" if there is none."""
    if spec.get("replicaMode") != "ReplicatedGangs":
        return ""
    controller = spec.get("controllerRef", {})
    kind = (controller.get("apiGroup", ""), controller.get("kind", ""))
    return str(spec.get("replicaKey") or _REPLICA_KEYS.get(kind, LWS_GROUP_KEY_LABEL))


def part_of(canonical: Object, labels: Mapping[str, str]) -> Part | Mismatch:
    """The groups of a pod with these labels.

    Args:
        canonical: an expanded spec.
        labels: of the pod.
    """
    group = _choose(canonical["gangGroups"], labels)
    if group is None:
        return Mismatch.NO_PART
    replica = ""
    if key := replica_key(canonical):
        replica = labels.get(key, "")
        if not replica:
            return Mismatch.NO_REPLICA
    ranked = _choose(group["rankedGroups"], labels)
    equal = _choose(ranked["eqGroups"], labels) if ranked is not None else None
    return Part(
        GangKey(str(group["name"]), replica),
        None if ranked is None else str(ranked["name"]),
        None if equal is None else str(equal["name"]),
    )


class Parts:
    """The parts of many pods: each is looked up once for all that agree in the labels that decide.

    A hot path: it runs for each pod of a gang when one of them arrives.
    """

    def __init__(self, canonical: Object) -> None:
        """Of one expanded spec."""
        self._canonical = canonical
        self._labels = _deciding_labels(canonical)
        self._known: dict[tuple[str | None, ...], Part | Mismatch] = {}

    def of(self, labels: Mapping[str, str]) -> Part | Mismatch:
        """As `part_of`."""
        values = tuple(map(labels.get, self._labels))
        part = self._known.get(values)
        if part is None:
            part = self._known[values] = part_of(self._canonical, labels)
        return part


def _deciding_labels(canonical: Object) -> tuple[str, ...]:
    """The labels that `part_of` reads."""
    gang_groups = canonical["gangGroups"]
    ranked_groups = [one for group in gang_groups for one in group["rankedGroups"]]
    eq_groups = [one for group in ranked_groups for one in group["eqGroups"]]
    groups = (*gang_groups, *ranked_groups, *eq_groups)
    keys = {str(group["selector"]["key"]) for group in groups if "selector" in group}
    if key := replica_key(canonical):
        keys.add(key)
    return (*NAME_LABELS, *sorted(keys))


def gang_of_podset(canonical: Object, podset: str) -> GangKey | None:
    """The gang of all pods of a PodSet; None if they may be of several, or that is not known.

    A PodSet has the name of its replicatedJob.
    """
    groups = canonical["gangGroups"]
    labels = {REPLICATED_JOB_LABEL: podset}
    if replica_key(canonical) or not _is_decided(groups, labels):
        return None
    group = _choose(groups, labels)
    return None if group is None else GangKey(str(group["name"]))


def ambiguous_group(canonical: Object, part: Part, labels: Mapping[str, str]) -> str:
    """The group in which no group, or more than one, takes pods with these labels; "" if none.

    Pods may have more labels than are known, so selectors decide only if their label is known.
    """
    gang = next(one for one in canonical["gangGroups"] if one["name"] == part.gang.group)
    if part.ranked_group is None:
        return part.gang.group if _is_decided(gang["rankedGroups"], labels) else ""
    ranked = next(one for one in gang["rankedGroups"] if one["name"] == part.ranked_group)
    if part.eq_group is None and _is_decided(ranked["eqGroups"], labels):
        return f"{part.gang.group}/{part.ranked_group}"
    return ""


def _is_decided(groups: Sequence[Object], labels: Mapping[str, str]) -> bool:
    keys = {group["selector"]["key"] for group in groups if "selector" in group}
    return keys <= labels.keys()


def _choose(groups: Sequence[Object], labels: Mapping[str, str]) -> Object | None:
    rest = []
    for group in groups:
        selector = group.get("selector")
        if selector is None:
            rest.append(group)
        elif labels.get(selector["key"]) in selector["values"]:
            return group
    if len(rest) == 1:
        return rest[0]
    if len(rest) < len(groups):
        return None
    name = next((labels[label] for label in NAME_LABELS if label in labels), None)
    return next((group for group in groups if group["name"] == name), None)
