"""PodGroups of `scheduling.k8s.io/v1beta1`, Kubernetes 1.37.

Not run on a real control plane: what is made is compared with the documented shapes.
"""

from __future__ import annotations

from typing import Any, Final

from rackgate.api.resources import Resource
from rackgate.gang.native.adapter import Adapter, policy_of
from rackgate.gang.native.model import PodGroup

POD_GROUPS: Final = Resource("scheduling.k8s.io", "v1beta1", "podgroups", True, "PodGroup")


def spec_of(group: PodGroup) -> dict[str, Any]:
    """The spec; only `gang.minCount` may change."""
    spec: dict[str, Any] = {"schedulingPolicy": policy_of(group)}
    if group.disrupt_all:
        spec["disruptionMode"] = {"all": {}}
    if group.priority_class:
        spec["priorityClassName"] = group.priority_class
    return spec


ADAPTER: Final = Adapter(POD_GROUPS, spec_of, is_tested=False)
