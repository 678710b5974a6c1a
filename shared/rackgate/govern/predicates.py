"""Who is governed, and whose pod is it: the same answers for webhook, assigner and ungater."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rackgate.api.names import PODSET_LABEL, QUEUE_LABEL, WORKLOAD_ANNOTATION
from rackgate.govern.templates import labels_of
from rackgate.wire.core import Pod
from rackgate.wire.kueue import PodSetAssignment, Workload


def queue_of(job: Mapping[str, Any]) -> str | None:
    """The LocalQueue that the job's queue label names; None without the label."""
    value = labels_of(job).get(QUEUE_LABEL)
    return None if value is None else str(value)


def is_governed(job: Mapping[str, Any]) -> bool:
    """Whether the job carries the queue label; all other jobs are left alone."""
    return QUEUE_LABEL in labels_of(job)


def podset_of_pod(
    annotations: Mapping[str, str], labels: Mapping[str, str]
) -> tuple[str, str] | None:
    """Workload name and PodSet name that a pod claims, None when one of both is missing.

    A claim only: pods are made by users too. `assignment_of_pod` checks it.
    """
    workload, podset = annotations.get(WORKLOAD_ANNOTATION), labels.get(PODSET_LABEL)
    return (workload, podset) if workload and podset else None


def assignment_of(
    workload: Workload,
    *,
    namespace: str,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    controller_uid: str | None,
) -> PodSetAssignment | None:
    """The topology assignment that a pod with this metadata belongs to.

    Args:
        workload: the Workload that the pod's annotation names.
        namespace: of the pod.
        annotations: of the pod.
        labels: of the pod.
        controller_uid: UID of the pod's controlling owner.

    Returns:
        The assignment of its PodSet, if the pod's claim names it, the assignment has a topology
        and the pod's controller is the very job that owns the Workload; else None, and the pod
        counts as any other pod on its node.
    """
    claim = podset_of_pod(annotations, labels)
    owner = workload.metadata.controller
    if claim is None or owner is None or not owner.uid or controller_uid != owner.uid:
        return None
    if claim[0] != workload.metadata.name or namespace != workload.metadata.namespace:
        return None
    if workload.status.admission is None:
        return None
    return next(
        (
            assignment
            for assignment in workload.status.admission.pod_set_assignments
            if assignment.name == claim[1] and assignment.topology_assignment is not None
        ),
        None,
    )


def is_tas_pod(pod: Pod, workload: Workload | None) -> bool:
    """Whether a pod is placed by topology: see `assignment_of`."""
    if workload is None:
        return False
    controller = pod.metadata.controller
    assignment = assignment_of(
        workload,
        namespace=pod.metadata.namespace,
        annotations=pod.metadata.annotations,
        labels=pod.metadata.labels,
        controller_uid=None if controller is None else controller.uid,
    )
    return assignment is not None
