"""The writes on jobs and Workloads: bodies and JSON patch operations, from what is stored now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rackgate.api import names
from rackgate.api.resources import WORKLOADS
from rackgate.gang.runs.done_pods import DonePods, encode_done_pods
from rackgate.jobframework.generic_job import UNSUSPEND, JobLike, Manifest
from rackgate.jobframework.injection import (
    StartConflict,
    StopPhase,
    remove_injection_ops,
    start_ops,
)
from rackgate.jobframework.jsonpatch import JsonPatchOp, pointer, value_test
from rackgate.jobframework.managed import maximum_execution_time, with_defaults
from rackgate.jobframework.podsets import pods_without_gate, podsets_differ
from rackgate.jobframework.registry import kind_of
from rackgate.wire.kueue import PriorityClassRef, ResourceFlavor, Workload
from rackgate_assigner.gangs.run_spec import NO_GANG, JobGang
from rackgate_assigner.jobs.state import (
    JobState,
    Priority,
    nesting_differs,
    podset_infos_of,
    podsets_of,
)

_ELASTIC_ANNOTATION_PATH: Final = "/metadata/annotations" + pointer(names.ELASTIC_ANNOTATION)

_DONE_PODS_PATH: Final = "/metadata/annotations" + pointer(names.GANG_DONE_PODS_ANNOTATION)
_NESTING_ANNOTATION_PATH: Final = "/metadata/annotations" + pointer(names.GANG_NESTING_ANNOTATION)

STILL_SUSPENDED: Final = value_test("/spec/suspend", value=True)

# On jobs.


def start_patch(
    job: JobLike,
    workload: Workload,
    flavors: Mapping[str, ResourceFlavor],
    gang: JobGang = NO_GANG,
) -> list[JsonPatchOp] | StartConflict:
    """The one write that starts a suspended job under its Workload's admission.

    Returns:
        Operations, `suspend: false` first; or the key on which user and flavor disagree.

    Raises:
        FlavorMissingError: an assigned flavor does not exist.
    """
    kind = kind_of(job)
    # A job that was created while the webhook was down lacks templates that its pods are made from.
    default_ops, manifest = with_defaults(kind, kind.manifest(job))
    ops = _injection_ops(job, manifest, workload, flavors, gang)
    if isinstance(ops, StartConflict):
        return ops
    # A replacement of a terminating pod would run at once: both would use the quota of one pod.
    has_ungated_pods = not workload.elastic and pods_without_gate(workload) > 0
    wait_ops = kind.wait_for_termination_ops(job) if has_ungated_pods else []
    annotation_ops = start_annotation_ops(job, workload.metadata.name, gang)
    return [
        dict(UNSUSPEND),
        *default_ops,
        *ops,
        *kind.reduce_ops(job, workload),
        *wait_ops,
        *annotation_ops,
    ]


def started_template_ops(
    job: JobLike,
    workload: Workload,
    flavors: Mapping[str, ResourceFlavor],
    gang: JobGang = NO_GANG,
) -> list[JsonPatchOp] | StartConflict:
    """Operations that inject what a start adds into a job's templates; none if nothing is missing.

    Raises:
        FlavorMissingError: an assigned flavor does not exist.
    """
    return _injection_ops(job, kind_of(job).manifest(job), workload, flavors, gang)


def _injection_ops(
    job: JobLike,
    manifest: Manifest,
    workload: Workload,
    flavors: Mapping[str, ResourceFlavor],
    gang: JobGang,
) -> list[JsonPatchOp] | StartConflict:
    """As `started_template_ops`, into the templates of this manifest of the job."""
    templates = kind_of(job).templates(manifest, elastic=workload.elastic)
    podset_infos = podset_infos_of(workload, flavors, templates, gang)
    if isinstance(podset_infos, StartConflict):
        return podset_infos
    return start_ops(templates, podset_infos, workload=workload.metadata.name)


def stop_tests(job: JobLike, phase: StopPhase) -> list[JsonPatchOp]:
    """Tests of what a write of a stop depends on: all else may change until it is made.

    A version would be too much. A user who keeps changing a job would keep its quota.
    """
    if phase is StopPhase.SUSPEND:
        return []
    kind = kind_of(job)
    templates = kind.templates(kind.manifest(job))
    return [STILL_SUSPENDED, *(test for one in templates for test in one.tests)]


def remove_creation_injection_ops(job: JobLike) -> list[JsonPatchOp]:
    """Operations that remove the keys injected at creation from a suspended job's templates."""
    kind = kind_of(job)
    if not kind.is_suspended(job):
        return []
    return remove_injection_ops(kind.templates(kind.manifest(job)))


def start_annotation_ops(job: JobLike, workload: str, gang: JobGang = NO_GANG) -> list[JsonPatchOp]:
    """Operations that record on a job that it was started under `workload`, with these gangs."""
    entries = {names.WORKLOAD_ANNOTATION: workload}
    if gang.run_spec:
        entries[names.GANG_RUN_SPEC_ANNOTATION] = gang.run_spec
    return _annotation_ops(job, entries)


def request_reconcile_ops(job: JobLike) -> list[JsonPatchOp]:
    """Operations that make the job's operator reconcile: a change outside of its spec."""
    requested = {names.RECONCILE_REQUESTED_ANNOTATION: str(job.metadata.generation)}
    return _annotation_ops(job, requested)


def _annotation_ops(item: JobLike | Workload, entries: Mapping[str, str]) -> list[JsonPatchOp]:
    if not item.metadata.annotations:
        return [{"op": "add", "path": "/metadata/annotations", "value": dict(entries)}]
    return [
        {"op": "add", "path": "/metadata/annotations" + pointer(key), "value": value}
        for key, value in entries.items()
    ]


# On Workloads.


def workload_body(
    job: JobLike,
    name: str,
    priority: Priority,
    *,
    elastic: bool = False,
    gang: JobGang = NO_GANG,
) -> dict[str, Any]:
    """A new Workload for a job.

    Args:
        job: of any kind, with the queue label.
        name: of the Workload, see `workload_name_of`.
        priority: as resolved.
        elastic: it may be resized while its job runs.
        gang: the Workload of gangs of its pods.
    """
    kind = kind_of(job)
    spec: dict[str, Any] = {
        "queueName": job.metadata.labels[names.QUEUE_LABEL],
        "active": True,
        "priority": priority.value,
        "podSets": podsets_of(kind, kind.manifest(job), gang, None),
    }
    maximum = maximum_execution_time(job.metadata.labels)
    if maximum is not None:
        spec["maximumExecutionTimeSeconds"] = maximum
    if priority.ref is not None:
        spec["priorityClassRef"] = dict(priority.ref)
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": {names.JOB_UID_LABEL: job.metadata.uid},
        "finalizers": [names.IN_USE_FINALIZER],
        "ownerReferences": [
            {
                "apiVersion": kind.resource.api_version,
                "kind": kind.name,
                "name": job.metadata.name,
                "uid": job.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    annotations = {names.ELASTIC_ANNOTATION: "true"} if elastic else {}
    if gang.nesting:
        annotations[names.GANG_NESTING_ANNOTATION] = gang.nesting
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": metadata,
        "spec": spec,
    }


def spec_ops(job: JobLike, workload: Workload, job_state: JobState) -> tuple[JsonPatchOp, ...]:
    """Operations that make a pending Workload request what the job requests now."""
    ops: list[JsonPatchOp] = []
    queue = job.metadata.labels.get(names.QUEUE_LABEL, "")
    if queue != workload.spec.queue_name:
        ops.append({"op": "add", "path": "/spec/queueName", "value": queue})
    if podsets_differ(workload, job_state.podsets):
        ops.append({"op": "replace", "path": "/spec/podSets", "value": list(job_state.podsets)})
    added: dict[str, str] = {}
    if workload.elastic and not job_state.elastic:
        ops.append({"op": "remove", "path": _ELASTIC_ANNOTATION_PATH})
    elif job_state.elastic and not workload.elastic:
        added[names.ELASTIC_ANNOTATION] = "true"
    if nesting_differs(workload, job_state.gang):
        if job_state.gang.nesting:
            added[names.GANG_NESTING_ANNOTATION] = job_state.gang.nesting
        else:
            ops.append({"op": "remove", "path": _NESTING_ANNOTATION_PATH})
    if added:
        ops += _annotation_ops(workload, added)
    return (*ops, *reserved_spec_ops(job, workload, job_state))


def reserved_spec_ops(
    job: JobLike, workload: Workload, job_state: JobState
) -> tuple[JsonPatchOp, ...]:
    """As `spec_ops`, of what may change while quota is reserved, until it is admitted."""
    maximum = maximum_execution_time(job.metadata.labels)
    path = "/spec/maximumExecutionTimeSeconds"
    ops: list[JsonPatchOp] = []
    if maximum is None and workload.spec.maximum_execution_time_seconds is not None:
        ops.append({"op": "remove", "path": path})
    elif maximum != workload.spec.maximum_execution_time_seconds:
        ops.append({"op": "add", "path": path, "value": maximum})
    return (*ops, *priority_ops(workload, job_state.priority))


def done_pods_ops(workload: Workload, done: DonePods) -> tuple[JsonPatchOp, ...]:
    """Operations that record on a Workload which pods of gangs are not created again."""
    text = encode_done_pods(done)
    if text == workload.metadata.annotations.get(names.GANG_DONE_PODS_ANNOTATION, ""):
        return ()
    if not text:
        return ({"op": "remove", "path": _DONE_PODS_PATH},)
    return tuple(_annotation_ops(workload, {names.GANG_DONE_PODS_ANNOTATION: text}))


def finalizer_ops(workload: Workload) -> tuple[JsonPatchOp, ...]:
    """Operations that add the finalizer to a Workload.

    A Workload is created with it, but an uninstall removes it.
    """
    finalizers = workload.metadata.finalizers
    if names.IN_USE_FINALIZER in finalizers:
        return ()
    value = [*finalizers, names.IN_USE_FINALIZER]
    return ({"op": "add", "path": "/metadata/finalizers", "value": value},)


def unblock_deletion_ops(job: JobLike, workload: Workload) -> tuple[JsonPatchOp, ...]:
    """Operations after which a Workload does not block the deletion of its job.

    Foreground deletion deletes the dependents that block it and that the garbage collector knows
    when it begins. It looks for others when one of those is gone, or does not block any more. Pods
    that it did not know would run for ever, because the Workload is kept until they are gone.
    """
    return tuple(
        {
            "op": "replace",
            "path": f"/metadata/ownerReferences/{index}/blockOwnerDeletion",
            "value": False,
        }
        for index, owner in enumerate(workload.metadata.owner_references)
        if owner.uid == job.metadata.uid and owner.block_owner_deletion
    )


def priority_ops(workload: Workload, priority: Priority) -> tuple[JsonPatchOp, ...]:
    """Operations that update the Workload's priority.

    Its value may always change. While quota is reserved, the reference may only change from one
    WorkloadPriorityClass to another; a rule of the API rejects other changes. The reference then
    follows when the Workload is pending again.
    """
    if priority.missing is not None:
        return ()
    ops: list[JsonPatchOp] = []
    if (workload.spec.priority or 0) != priority.value:
        ops.append({"op": "add", "path": "/spec/priority", "value": priority.value})
    present = _priority_class_ref_json(workload.spec.priority_class_ref)
    if workload.status.admission is not None and not _may_replace_ref(present, priority.ref):
        return tuple(ops)
    if present != priority.ref and priority.ref is None:
        ops.append({"op": "remove", "path": "/spec/priorityClassRef"})
    elif present != priority.ref and priority.ref is not None:
        value = dict(priority.ref)
        ops.append({"op": "add", "path": "/spec/priorityClassRef", "value": value})
    return tuple(ops)


def _may_replace_ref(present: Mapping[str, str] | None, wanted: Mapping[str, str] | None) -> bool:
    """Whether a reference may be replaced while quota is reserved."""
    refs = (present, wanted)
    return all(ref is not None and ref["group"] == names.GROUP for ref in refs)


def _priority_class_ref_json(ref: PriorityClassRef | None) -> dict[str, str] | None:
    return None if ref is None else {"group": ref.group, "kind": ref.kind, "name": ref.name}
