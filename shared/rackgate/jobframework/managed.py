"""Which objects are managed, what is injected at creation, and which Workload a pod belongs to.

Webhook, assigner and ungater share these functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from rackgate.api.meta import MAX_INT32
from rackgate.api.names import (
    KUEUE_SLICE_CHAIN_ANNOTATION,
    MAX_EXECUTION_TIME_LABEL,
    PODSET_LABEL,
    QUEUE_LABEL,
    WORKLOAD_ANNOTATION,
)
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.generic_job import SUSPEND, GenericJob, Manifest
from rackgate.jobframework.injection import injection_ops, remove_injection_ops
from rackgate.jobframework.jsonpatch import JsonPatchOp, pointer
from rackgate.jobframework.pod_group.membership import group_uid, is_gang_id
from rackgate.jobframework.registry import CLEANUP_LABELS, find_kind
from rackgate.jobframework.templates import is_suspended, items, labels_of, section
from rackgate.wire.core import Meta

_SECONDS: Final = re.compile(r"0*[1-9][0-9]{0,9}", re.ASCII)


def queue_of(job: Manifest) -> str | None:
    """The LocalQueue that the job's queue label names; None without the label."""
    value = labels_of(job).get(QUEUE_LABEL)
    return None if value is None else str(value)


def maximum_execution_time(labels: Mapping[str, Any]) -> int | None:
    """The seconds that a job's label says it may be admitted; None without a valid label."""
    value = labels.get(MAX_EXECUTION_TIME_LABEL)
    if not isinstance(value, str) or not _SECONDS.fullmatch(value):
        return None
    seconds = int(value)
    return seconds if 1 <= seconds <= MAX_INT32 else None


def execution_time_errors(job: Manifest) -> list[FieldError]:
    """Reject a maximum execution time that is not a number of seconds."""
    labels = labels_of(job)
    value = labels.get(MAX_EXECUTION_TIME_LABEL)
    if value is None or maximum_execution_time(labels) is not None:
        return []
    path = f"metadata.labels[{MAX_EXECUTION_TIME_LABEL}]"
    problem = f"{shown(value)} is not a whole number of seconds from 1 to {MAX_INT32}"
    return [FieldError(path, problem, 'such as "3600" for an hour')]


def is_managed(job: Manifest) -> bool:
    """Whether the job has the queue label and is not a child of another job.

    The Jobs of a JobSet, the cleanup Job of a RayCluster, and the RayCluster and the submitter of a
    RayJob start and stop with their owner. They are never queued a second time, even if they
    inherit its queue label.
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
    """Operations at creation of a job, or when a suspended job gets its queue label.

    A managed job is suspended, and its templates are injected. Jobs that are not managed, and
    jobs to which this was already applied, need no operation.

    Args:
        kind: kind of the job.
        job: as written.
        elastic_enabled: jobs of the kind may be resized with slices: pods of a job that requests
            it are gated.
    """
    if not is_managed(job):
        return []
    operations = [] if is_suspended(job) else [dict(SUSPEND)]
    added, job = with_defaults(kind, job)
    templates = kind.injected_templates(job, elastic_enabled=elastic_enabled)
    return operations + added + injection_ops(templates)


def with_defaults(kind: GenericJob[Any], job: Manifest) -> tuple[list[JsonPatchOp], Manifest]:
    """Operations that write the defaults of a managed job, and the job with them."""
    added = kind.defaults(job)
    if not added:
        return [], job
    operations: list[JsonPatchOp] = [
        {"op": "add", "path": pointer("spec", field), "value": value}
        for field, value in added.items()
    ]
    return operations, {**job, "spec": {**section(job, "spec"), **added}}


def remove_injection(kind: GenericJob[Any], job: Manifest) -> list[JsonPatchOp]:
    """Remove Rackgate's keys from a suspended job that lost its queue label."""
    return remove_injection_ops(kind.templates(job))


def cleanup_label_of(pod: Manifest) -> str | None:
    """The label by which a pod says that it cleans up after a job; None without one.

    Such a pod is made from a template of a job that is being deleted and inherits its labels, but
    is created after the job. It belongs to no PodSet and must run, or a finalizer would keep the
    job forever.
    """
    labels = labels_of(pod)
    for label, value in CLEANUP_LABELS.items():
        if labels.get(label) == value:
            return label
    return None


def is_cleanup_pod(pod: Manifest) -> bool:
    """Whether a pod says that it cleans up after a job."""
    return cleanup_label_of(pod) is not None


def is_group_pod(meta: Meta) -> bool:
    """Whether a pod is one of a group of plain pods, or alone and managed.

    A pod that a managed kind controls never is, whatever its labels say: any user may write them
    into its template. A pod with the label of a gang is one: only the assigner writes it, when it
    starts a pod that no managed job owns.
    """
    if is_gang_id(group_uid(meta.uid, meta.namespace, meta.labels)):
        return True
    owner = meta.controller
    if owner is not None and find_kind(owner.api_version, owner.kind) is not None:
        return False
    return bool(group_uid(meta.uid, meta.namespace, meta.labels))


def owner_uid_of_pod(meta: Meta) -> str:
    """Of what a pod is: what identifies its group of plain pods, or the uid of its controller.

    "" for a pod with neither.
    """
    if is_group_pod(meta):
        return group_uid(meta.uid, meta.namespace, meta.labels)
    return meta.controller.uid if meta.controller is not None else ""


def podset_of_pod(
    annotations: Mapping[str, str], labels: Mapping[str, str]
) -> tuple[str, str] | None:
    """Workload name and PodSet name that a pod claims; None if one of them is missing.

    Users create pods too, so the claim is not trusted. `is_tas_pod` checks it.

    With its gate TopologyAwareScheduling off, Kueue names only the first Workload slice of a job.
    """
    workload = annotations.get(WORKLOAD_ANNOTATION) or annotations.get(KUEUE_SLICE_CHAIN_ANNOTATION)
    podset = labels.get(PODSET_LABEL)
    return (workload, podset) if workload and podset else None


def is_pod_of(
    annotations: Mapping[str, str], workload: str, workload_annotations: Mapping[str, str]
) -> bool:
    """Whether a pod claims to belong to a Workload, by its name or as a later slice of Kueue's.

    Kueue replaces the Workload of an elastic job that grows. The pods go on to name the one that
    the job was started with, and both name the first one.

    Args:
        annotations: of the pod.
        workload: name of the Workload.
        workload_annotations: of the Workload.
    """
    chain = annotations.get(KUEUE_SLICE_CHAIN_ANNOTATION)
    named = annotations.get(WORKLOAD_ANNOTATION) or chain
    return named == workload or (
        bool(chain) and chain == workload_annotations.get(KUEUE_SLICE_CHAIN_ANNOTATION)
    )


def is_tas_pod(controller_uid: str, owner_uid: str, *, assignment: object) -> bool:
    """Whether a pod is placed by topology; if not, it counts as any other pod on its node.

    The result depends only on fields that the API server and the assigner set. The topology
    annotations and the `tas` label of a pod have no influence.

    Args:
        controller_uid: of the pod's controlling owner or group, see `owner_uid_of_pod`; empty
            without one.
        owner_uid: of the job or group that owns the Workload which the pod names by
            `podset_of_pod`.
        assignment: the topology assignment of the PodSet that it names there; None without one.
    """
    return assignment is not None and controller_uid != "" and controller_uid == owner_uid
