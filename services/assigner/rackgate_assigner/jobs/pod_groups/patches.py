"""The writes on plain pods and on the Workload of a group. Pure."""

from __future__ import annotations

from typing import Any

from rackgate.api import names
from rackgate.jobframework.injection import PodSetInfo, StartConflict, toleration_json
from rackgate.jobframework.pod_group.gang_group import GangGroup
from rackgate.jobframework.pod_group.pod_group import PlainPod, PodGroup
from rackgate.jobframework.pod_group.pods import POD_GATES, GroupPod
from rackgate.wire.core import Meta
from rackgate_assigner.jobs.patches import workload_body
from rackgate_assigner.jobs.pod_groups.gang_state import gang_owner_references
from rackgate_assigner.jobs.pod_groups.state import owner_references
from rackgate_assigner.jobs.state import Priority


def start_patch(
    pod: GroupPod, info: PodSetInfo, workload: Meta, *, gang: str = ""
) -> dict[str, Any] | StartConflict:
    """The one write that starts a pod: a strategic merge patch, bound to its uid and version.

    With a topology assignment the gates stay: the ungater removes them when it gives the pod its
    domain. So does that of gangs always: it is removed when the whole gang can start. The API
    server allows additions to nodeSelector and tolerations while a pod is gated.

    Args:
        pod: as watched.
        info: of its PodSet.
        workload: its Workload.
        gang: id of its gang, "" if it is in no gang.

    Returns:
        The patch; or the key on which the pod and its flavor disagree.
    """
    for key, want in sorted(info.node_labels.items()):
        have = pod.node_selector.get(key, want)
        if have != want:
            return StartConflict("spec.nodeSelector", key, have, want)
    labels = {**info.labels, names.PODSET_LABEL: info.podset}
    if info.tas:
        labels[names.TAS_LABEL] = names.TAS_LABEL_VALUE
    annotations = {**info.annotations, names.WORKLOAD_ANNOTATION: workload.name}
    if gang:
        labels[names.GANG_ID_LABEL] = gang
        annotations[names.GANG_WORKLOAD_UID_ANNOTATION] = workload.uid
    spec: dict[str, Any] = {}
    if info.node_labels:
        spec["nodeSelector"] = dict(info.node_labels)
    added = [toleration_json(found) for found in info.tolerations]
    missing = [found for found in added if found not in pod.tolerations]
    if missing:
        spec["tolerations"] = [*pod.tolerations, *missing]  # the list is replaced as a whole
    if not info.tas and (not gang or set(POD_GATES) & set(pod.gates)):
        spec["schedulingGates"] = [
            {"$patch": "delete", "name": gate} for gate in POD_GATES if gate in pod.gates
        ]
    return {
        "metadata": {
            **_precondition(pod),
            "labels": labels,
            "annotations": annotations,
        },
        "spec": spec,
    }


def release_patch(pod: GroupPod) -> dict[str, Any]:
    """Removes the gate of gangs, bound to the uid and version of a pod."""
    gates = [{"$patch": "delete", "name": names.GANG_GATE}]
    return {"metadata": _precondition(pod), "spec": {"schedulingGates": gates}}


def _precondition(pod: GroupPod) -> dict[str, str]:
    meta = pod.metadata
    return {"uid": meta.uid, "resourceVersion": meta.resource_version}


def group_workload_body(group: PodGroup, name: str, priority: Priority) -> dict[str, Any]:
    """A new Workload for a group: that of any job, with other owners."""
    body = workload_body(group, name, priority)
    meta = body["metadata"]
    meta["ownerReferences"] = owner_references(group)
    if not isinstance(group, PlainPod):
        meta["annotations"] = {names.GROUP_WORKLOAD_ANNOTATION: "true"}
    if isinstance(group, GangGroup):
        meta["ownerReferences"] = gang_owner_references(group)
        meta["annotations"][names.GANG_RUN_SPEC_ANNOTATION] = group.run_spec
        if group.nesting:
            meta["annotations"][names.GANG_NESTING_ANNOTATION] = group.nesting
    return body
