"""Which PodGroup the pods of a template name. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rackgate.gang.levels import Object
from rackgate.gang.membership import Mismatch, part_of, replica_key
from rackgate.gang.native.model import pod_group_annotations


def template_annotations(
    canonical: Object, workload: str, labels: Mapping[str, str]
) -> dict[str, str]:
    """What the start of a job adds to a pod template.

    Args:
        canonical: the expanded spec of the Workload of gangs.
        workload: its name.
        labels: of the template, and those that its controller adds to all pods.

    Returns:
        Nothing if the pods start one by one, or if pods of the template may lie in several gangs.
    """
    groups = canonical["gangGroups"]
    if any("selector" in group and group["selector"]["key"] not in labels for group in groups):
        return {}
    key = replica_key(canonical)
    part = part_of(canonical, {key: "any", **labels} if key else labels)
    if isinstance(part, Mismatch):
        return {}
    group = next(one for one in groups if one["name"] == part.gang.group)
    if group["gangMode"] != "Gang" or not group.get("minCount"):
        return {}
    return pod_group_annotations(workload, part.gang.group, key)
