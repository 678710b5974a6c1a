"""Who is governed, and whose pod is it: the same answers for webhook, assigner and ungater."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rackgate.api.names import (
    JOBSET_GROUP,
    PODSET_LABEL,
    QUEUE_LABEL,
    RAY_CLEANUP_TYPE,
    RAY_GROUP,
    RAY_NODE_TYPE_LABEL,
    WORKLOAD_ANNOTATION,
)
from rackgate.jobframework.templates import items, labels_of, section

# Kinds whose children Rackgate never governs on their own: (group, kind) of the controller.
PARENT_KINDS: Final = frozenset({(JOBSET_GROUP, "JobSet"), (RAY_GROUP, "RayCluster")})


def queue_of(job: Mapping[str, Any]) -> str | None:
    """The LocalQueue that the job's queue label names; None without the label."""
    value = labels_of(job).get(QUEUE_LABEL)
    return None if value is None else str(value)


def is_managed(job: Mapping[str, Any]) -> bool:
    """Whether the job carries the queue label and is nobody's child; all others are left alone.

    The Jobs of a JobSet and the clean-up Job of a RayCluster start and stop with their owner,
    also when they inherit its queue label: they are never queued a second time.
    """
    return QUEUE_LABEL in labels_of(job) and not is_child(job)


def is_child(job: Mapping[str, Any]) -> bool:
    """Whether the controller of this object is a JobSet or a RayCluster."""
    owners = items(section(job, "metadata"), "ownerReferences", "metadata")
    return any(
        owner.get("controller") is True
        and is_parent_kind(str(owner.get("apiVersion", "")), str(owner.get("kind", "")))
        for owner in owners
    )


def is_parent_kind(api_version: str, kind: str) -> bool:
    """Whether objects of this kind are governed together with all that they make."""
    group, slash, _ = api_version.partition("/")
    return slash == "/" and (group, kind) in PARENT_KINDS


def is_cleanup_pod(pod: Mapping[str, Any]) -> bool:
    """Whether a pod cleans up behind a RayCluster that is being deleted.

    It is made from the head's template and inherits its marks, but comes after the cluster: it
    belongs to no PodSet, and must run, or the cluster would stay behind its finalizer.
    """
    return labels_of(pod).get(RAY_NODE_TYPE_LABEL) == RAY_CLEANUP_TYPE


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
