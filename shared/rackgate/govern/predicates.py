"""Who is governed, and whose pod is it: the same answers for webhook, assigner and ungater."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rackgate.api.names import PODSET_LABEL, QUEUE_LABEL, WORKLOAD_ANNOTATION
from rackgate.govern.templates import labels_of


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

    A claim only: pods are made by users too. `is_tas_pod` checks it.
    """
    workload, podset = annotations.get(WORKLOAD_ANNOTATION), labels.get(PODSET_LABEL)
    return (workload, podset) if workload and podset else None


def is_tas_pod(controller_uid: str, owner_uid: str, *, assignment: object) -> bool:
    """Whether a pod is placed by topology; if not, it counts as any other pod on its node.

    Only what nobody but the API server and the assigner can set decides. Which of its topology
    annotations a pod carries, and its `tas` label, do not.

    Args:
        controller_uid: of the pod's controlling owner; empty without one.
        owner_uid: of the job that owns the Workload which the pod names by `podset_of_pod`.
        assignment: the topology assignment of the PodSet that it names there; None without one.
    """
    return assignment is not None and controller_uid != "" and controller_uid == owner_uid
