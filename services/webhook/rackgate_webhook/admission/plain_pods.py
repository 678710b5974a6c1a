"""Plain pods with a queue label: how they are prepared, and which are rejected. Pure.

A prepared pod has the label and the finalizer `kueue.x-k8s.io/managed` and the gate
`kueue.x-k8s.io/admission`. An admission policy of deploy/pods rejects pods that are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rackgate.api.meta import MAX_INT32
from rackgate.api.names import (
    ADMISSION_GATE,
    MANAGED_FINALIZER,
    MANAGED_LABEL,
    POD_GROUP_LABEL,
    POD_GROUP_TOTAL_ANNOTATION,
    QUEUE_LABEL,
    TOPOLOGY_GATE,
    WORKLOAD_ANNOTATION,
)
from rackgate.api.unsupported import unsupported_in_pod
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.generic_job import Manifest
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.pod_group.membership import MANAGED
from rackgate.jobframework.pod_group.pod_group import total_count
from rackgate.jobframework.registry import find_kind
from rackgate.jobframework.templates import (
    annotations_of,
    gates_of,
    items,
    labels_of,
    section,
    template_patch,
    with_entries,
    with_gate,
)
from rackgate.jobframework.topology_request import topology_errors
from rackgate_webhook.admission.gangs import GangRules
from rackgate_webhook.admission.objects import name_errors
from rackgate_webhook.admission.review import AdmissionResponse

_NO_GANGS: Final = GangRules()
_TOTAL: Final = f"metadata.annotations[{POD_GROUP_TOTAL_ANNOTATION}]"
_GROUP: Final = f"metadata.labels[{POD_GROUP_LABEL}]"


def is_plain_pod(pod: Manifest) -> bool:
    """Whether a pod has a queue label of its own, and no managed kind controls it.

    The pods of a Job may inherit the label from its template, where it is ignored.
    """
    if QUEUE_LABEL not in labels_of(pod) or WORKLOAD_ANNOTATION in annotations_of(pod):
        return False
    owners = items(section(pod, "metadata"), "ownerReferences", "metadata")
    return not any(
        owner.get("controller") is True
        and find_kind(str(owner.get("apiVersion", "")), str(owner.get("kind", ""))) is not None
        for owner in owners
    )


def plain_pod_created(pod: Manifest, gangs: GangRules = _NO_GANGS) -> AdmissionResponse:
    """Prepare a pod, or reject it."""
    errors = list(_errors(pod))
    if errors:
        return AdmissionResponse(errors=errors)
    prepared = with_entries(pod, "metadata", "labels", {MANAGED_LABEL: MANAGED})
    gated = gangs.with_gate(with_gate(prepared, ADMISSION_GATE))
    return AdmissionResponse(
        operations=[*template_patch(pod, gated, ""), *_finalizer_ops(pod)],
        warnings=[str(found) for found in unsupported_in_pod(pod)],
    )


def _finalizer_ops(pod: Manifest) -> list[JsonPatchOp]:
    have = section(pod, "metadata").get("finalizers") or []
    if not isinstance(have, list) or MANAGED_FINALIZER in have:
        return []
    value = [*have, MANAGED_FINALIZER]
    return [{"op": "add", "path": "/metadata/finalizers", "value": value}]


def _errors(pod: Manifest) -> Iterator[FieldError]:
    labels, annotations = labels_of(pod), annotations_of(pod)
    queue = str(labels.get(QUEUE_LABEL) or "")
    yield from name_errors(
        queue, f"metadata.labels[{QUEUE_LABEL}]", "name a LocalQueue of the namespace"
    )
    node = section(pod, "spec").get("nodeName")
    if node:
        problem = f"{shown(node)} would bind the pod without its queue"
        yield FieldError("spec.nodeName", problem, "remove it, or use nodeSelector")
    group, total = labels.get(POD_GROUP_LABEL), annotations.get(POD_GROUP_TOTAL_ANNOTATION)
    if group is not None:
        yield from name_errors(str(group), _GROUP, "it becomes the name of the Workload")
        if total is None:
            problem = f"is missing: the pod belongs to group {shown(group)}"
            yield FieldError(_TOTAL, problem, 'write the number of pods of the group, such as "4"')
        elif not total_count({POD_GROUP_TOTAL_ANNOTATION: str(total)}):
            problem = f"{shown(total)} is not a number of pods from 1 to {MAX_INT32}"
            yield FieldError(_TOTAL, problem, 'write the number of pods of the group, such as "4"')
    elif total is not None:
        yield FieldError(_GROUP, f"is missing: the pod has {_TOTAL}", "name its group")
    if TOPOLOGY_GATE in gates_of(pod):
        problem = f"gate {shown(TOPOLOGY_GATE)} is reserved: only Rackgate sets it"
        yield FieldError("spec.schedulingGates", problem, "remove this gate")
    yield from topology_errors(pod, "")
