"""PodGroups of `scheduling.k8s.io/v1beta1`, Kubernetes 1.37, and CompositePodGroups beside them.

Not run on a real control plane: what is made is compared with the documented shapes.

A CompositePodGroup holds groups that start together. Its children name it, and all of them name a
template in a native Workload, so one is made for each hierarchy:

    gang group with ranked groups that have counts
      native Workload: one composite template, with a template for each ranked group
      CompositePodGroup (root): gang over all of them
      PodGroup (leaf), one for each ranked group: gang over its pods
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rackgate.api.resources import Resource
from rackgate.gang.levels import Object, lower_bound
from rackgate.gang.native.adapter import Adapter, object_of, policy_of
from rackgate.gang.native.model import PodGroup, pod_group_name

_GROUP: Final = "scheduling.k8s.io"
POD_GROUPS: Final = Resource(_GROUP, "v1beta1", "podgroups", True, "PodGroup")
WORKLOADS: Final = Resource(_GROUP, "v1beta1", "workloads", True, "Workload")
COMPOSITE_POD_GROUPS: Final = Resource(
    _GROUP, "v1alpha3", "compositepodgroups", True, "CompositePodGroup"
)
# Templates of one list.
MAX_TEMPLATES: Final = 8


def spec_of(group: PodGroup) -> dict[str, Any]:
    """The spec; only `gang.minCount` may change."""
    spec: dict[str, Any] = {"schedulingPolicy": policy_of(group)}
    if group.disrupt_all:
        spec["disruptionMode"] = {"all": {}}
    if group.priority_class:
        spec["priorityClassName"] = group.priority_class
    return spec


ADAPTER: Final = Adapter(POD_GROUPS, spec_of, is_tested=False)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A gang whose ranked groups are gangs, too.

    Attributes:
        root: the whole, with the number of leaves as its count.
        leaves: by name of the ranked group, in order.
    """

    root: PodGroup
    leaves: Mapping[str, PodGroup]


def hierarchy_of(whole: PodGroup, ranked_groups: Sequence[Object]) -> Hierarchy | None:
    """The hierarchy of a gang; None if one PodGroup says the same, or the API has no room for it.

    Args:
        whole: the PodGroup of the gang.
        ranked_groups: of its canonical gang group.
    """
    counts = {str(one["name"]): lower_bound(one) for one in ranked_groups}
    if not 1 < len(counts) <= MAX_TEMPLATES or not whole.min_count:
        return None
    if not all(counts.values()) or sum(filter(None, counts.values())) != whole.min_count:
        # Pods of any ranked group may make up the number: no leaf has one of its own.
        return None
    leaves = {
        name: replace(whole, name=pod_group_name(whole.name, name), min_count=count or 0)
        for name, count in counts.items()
    }
    return Hierarchy(replace(whole, min_count=len(leaves)), leaves)


def objects_of(hierarchy: Hierarchy) -> list[tuple[Resource, dict[str, Any]]]:
    """The objects of a hierarchy, in the order in which they are created."""
    root = hierarchy.root
    policy = {"gang": {"minGroupCount": root.min_count}}
    disruption: dict[str, Any] = {"disruptionMode": {"all": {}}} if root.disrupt_all else {}
    priority = {"priorityClassName": root.priority_class} if root.priority_class else {}
    templates = [{"name": name, **spec_of(leaf)} for name, leaf in hierarchy.leaves.items()]
    spec = {"schedulingPolicy": policy, **disruption, **priority}
    whole = {"name": "root", **spec}
    workload = {"compositePodGroupTemplates": [{**whole, "podGroupTemplates": templates}]}
    composite = {"workloadRef": _template(root, "root"), **spec}
    found = [
        (WORKLOADS, object_of(WORKLOADS, root.namespace, root.name, root, workload)),
        (
            COMPOSITE_POD_GROUPS,
            object_of(COMPOSITE_POD_GROUPS, root.namespace, root.name, root, composite),
        ),
    ]
    for name, leaf in hierarchy.leaves.items():
        references = {
            "parentCompositePodGroupName": root.name,
            "workloadRef": _template(root, name),
        }
        spec = {**references, **spec_of(leaf)}
        found.append((POD_GROUPS, object_of(POD_GROUPS, leaf.namespace, leaf.name, leaf, spec)))
    return found


def _template(root: PodGroup, name: str) -> dict[str, str]:
    return {"workloadName": root.name, "templateName": name}
