"""PodGroups of `scheduling.k8s.io/v1alpha2`, Kubernetes 1.36."""

from __future__ import annotations

from typing import Any, Final

from rackgate.api.resources import Resource
from rackgate.gang.native.adapter import Adapter, policy_of
from rackgate.gang.native.model import PodGroup

POD_GROUPS: Final = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", True, "PodGroup")


def spec_of(group: PodGroup) -> dict[str, Any]:
    """The spec; all of it is immutable."""
    spec: dict[str, Any] = {"schedulingPolicy": policy_of(group)}
    if group.disrupt_all:
        spec["disruptionMode"] = "PodGroup"
    if group.priority_class:
        spec["priorityClassName"] = group.priority_class
    return spec


ADAPTER: Final = Adapter(POD_GROUPS, spec_of, is_tested=True)
