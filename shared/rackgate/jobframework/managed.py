"""Which objects are managed, what they get at creation, and whose pod is it.

The same answers for webhook, assigner and ungater.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rackgate.api.names import PODSET_LABEL, QUEUE_LABEL, WORKLOAD_ANNOTATION
from rackgate.jobframework.generic_job import SUSPEND, GenericJob, Manifest
from rackgate.jobframework.injection import injection_ops, remove_injection_ops
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.registry import CLEANUP_LABELS, find_kind
from rackgate.jobframework.templates import is_suspended, items, labels_of, section
from rackgate.wire.core import Meta


def queue_of(job: Manifest) -> str | None:
    """The LocalQueue that the job's queue label names; None without the label."""
    value = labels_of(job).get(QUEUE_LABEL)
    return None if value is None else str(value)


def is_managed(job: Manifest) -> bool:
    """Whether the job carries the queue label and is nobody's child; all others are left alone.

    The Jobs of a JobSet and the clean-up Job of a RayCluster start and stop with their owner,
    also when they inherit its queue label: they are never queued a second time.
    """
    return QUEUE_LABEL in labels_of(job) and not is_child(job)


def is_child(job: Manifest) -> bool:
    """Whether the controller of this object is a job that is queued as a whole."""
    owners = items(section(job, "metadata"), "ownerReferences", "metadata")
    return any(
        owner.get("controller") is True
        and _controls_jobs(str(owner.get("apiVersion", "")), str(owner.get("kind", "")))
        for owner in owners
    )


def is_child_of_job(meta: Meta) -> bool:
    """As `is_child`, for decoded metadata."""
    owner = meta.controller
    return owner is not None and _controls_jobs(owner.api_version, owner.kind)


def _controls_jobs(api_version: str, kind: str) -> bool:
    found = find_kind(api_version, kind)
    return found is not None and found.controls_jobs


def inject(
    kind: GenericJob[Any], job: Manifest, *, elastic_enabled: bool = False
) -> list[JsonPatchOp]:
    """What a job is given at creation, or when it gets its queue label while suspended.

    A managed job is suspended, and its templates are injected. The result of this, and jobs that
    are not managed, need no operation.

    Args:
        kind: of the job.
        job: as it came.
        elastic_enabled: jobs of the kind may be resized in slices: pods of one that asks for it
            are held.
    """
    if not is_managed(job):
        return []
    operations = [] if is_suspended(job) else [dict(SUSPEND)]
    templates = kind.injected_templates(job, elastic_enabled=elastic_enabled)
    return operations + injection_ops(templates)


def remove_injection(kind: GenericJob[Any], job: Manifest) -> list[JsonPatchOp]:
    """Takes Rackgate's keys out of a suspended job that lost its queue label."""
    return remove_injection_ops(kind.templates(job))


def cleanup_label_of(pod: Manifest) -> str | None:
    """The label by which a pod says that it cleans up behind a job; None without one.

    Such a pod is made from a template of a job that is being deleted and inherits its labels, but
    comes after the job: it belongs to no PodSet, and must run, or the job would stay behind its
    finalizer.
    """
    labels = labels_of(pod)
    for label, value in CLEANUP_LABELS.items():
        if labels.get(label) == value:
            return label
    return None


def is_cleanup_pod(pod: Manifest) -> bool:
    """Whether a pod says that it cleans up behind a job."""
    return cleanup_label_of(pod) is not None


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
