"""The five common shapes of workloads."""

from __future__ import annotations

from enum import StrEnum

from rackgate.gang.forms.collapse import collapse
from rackgate.gang.levels import Object, groups_of


class Shape(StrEnum):
    """Name of a shape."""

    UNSPECIFIED = "Unspecified Shape"
    REPLICATED_PODS = "Replicated Pods"
    ORDERED_PODS = "Ordered Pods"
    SINGLE_GANG = "Single Gang with Multiple Rank Groups"
    REPLICATED_GANGS = "Replicated Gangs"


def shape_of(spec: Object) -> Shape:
    """The shape of a spec without errors."""
    groups = list(groups_of(collapse(spec)))
    mode = spec.get("replicaMode", "Unreplicated")
    if mode == "ReplicatedGangs":
        return Shape.REPLICATED_GANGS
    if mode == "ReplicatedPods":
        # Pods that keep their identity: they have ranks, or grow in place.
        lasting = any({"podRank", "maxTemplate"} & set(group.value) for group in groups)
        return Shape.ORDERED_PODS if lasting else Shape.REPLICATED_PODS
    return Shape.SINGLE_GANG if len(groups) > 1 else Shape.UNSPECIFIED
