"""Workloads as the resize plan reads them: a parent, and its slices. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rackgate.api import names
from rackgate.api.names import slice_ordinal
from rackgate.api.resources import WORKLOADS
from rackgate.wire.kueue import PodSet, Workload
from rackgate_assigner.workload.info import WorkloadInfo
from rackgate_assigner.workload_slices.model import MergedSlice, Parent, Phase, Slice
from rackgate_assigner.workload_slices.plan import NewSlice


def phase_of(row: WorkloadInfo, *, enabled: bool) -> Phase:
    """Where a parent stands; without the feature gate one that runs counts as leaving."""
    if row.finished:
        return Phase.FINISHED
    if row.reserved is None:
        return Phase.FINISHED if row.deleting else Phase.IDLE
    goes_on = row.admitted and row.active and not (row.evicted or row.deleting)
    return Phase.RUNNING if goes_on and enabled else Phase.EVICTING


def parent_of(workload: Workload, row: WorkloadInfo, *, enabled: bool) -> Parent:
    """A parent, from the Workload and the row that the cache has of it."""
    return Parent(
        name=workload.metadata.name,
        phase=phase_of(row, enabled=enabled),
        counts={podset.name: podset.count for podset in workload.spec.pod_sets},
        assignment=row.reserved,
        merged=tuple(
            MergedSlice(entry.uid, entry.pod_set) for entry in workload.status.folded_slices
        ),
    )


def slice_of(workload: Workload, row: WorkloadInfo, parent: Workload) -> Slice:
    """A slice of `parent`, from its Workload and the row that the cache has of it."""
    podset = workload.spec.pod_sets[0] if workload.spec.pod_sets else PodSet()
    held = row.reserved if row.admitted else None
    assignment = None
    if held is not None:
        assignment = next((part for part in held.podsets if part.name == podset.name), None)
    return Slice(
        name=workload.metadata.name,
        uid=workload.metadata.uid,
        podset=podset.name,
        ordinal=slice_ordinal(workload.metadata.name),
        count=podset.count,
        assignment=assignment,
        evicted_or_finished=row.evicted or row.finished,
        deleting=row.deleting,
        # One whose admission cannot be read holds and grants nothing: it is made anew.
        matches_parent=row.admission_error is None
        and _matches_parent(workload, parent, waits=held is None),
        reason=row.pending_reason,
        message=row.pending_message,
    )


def assumed_slice(new: NewSlice) -> Slice:
    """A slice that was made and is not seen yet: nothing is known of it but what was asked."""
    return Slice(new.name, f"made:{new.name}", new.podset, slice_ordinal(new.name), new.count)


def _matches_parent(workload: Workload, parent: Workload, *, waits: bool) -> bool:
    """Whether a slice asks for one PodSet of its parent, in its queue (SLC-07, SLC-08).

    One that waits also with its parent's priority: else it is made anew.
    """
    podsets = workload.spec.pod_sets
    if len(podsets) != 1 or workload.spec.queue_name != parent.spec.queue_name:
        return False
    if waits and (workload.spec.priority or 0) != (parent.spec.priority or 0):
        return False
    here = podsets[0]
    there = next((podset for podset in parent.spec.pod_sets if podset.name == here.name), None)
    return there is not None and _same(here.template, there.template)


def _same(here: msgspec.Raw, there: msgspec.Raw) -> bool:
    if bytes(here) == bytes(there):
        return True
    return bool(msgspec.json.decode(here) == msgspec.json.decode(there))


def slice_body(parent: Workload, new: NewSlice) -> dict[str, Any]:
    """A slice as it is created: one replica of a PodSet of its parent (SLC-05..08)."""
    spec = parent.spec
    podset = next(podset for podset in spec.pod_sets if podset.name == new.podset)
    asked: dict[str, Any] = {
        "queueName": spec.queue_name,
        "active": True,
        "priority": spec.priority or 0,
        "podSets": [_one_replica(podset, new.count)],
    }
    if spec.priority_class_ref is not None:
        asked["priorityClassRef"] = msgspec.to_builtins(spec.priority_class_ref)
    meta = parent.metadata
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": {
            "name": new.name,
            "namespace": meta.namespace,
            "labels": _labels(meta.labels),
            "annotations": {names.ELASTIC_ANNOTATION: "true"},
            "finalizers": [names.IN_USE_FINALIZER],
            "ownerReferences": [
                {
                    "apiVersion": WORKLOADS.api_version,
                    "kind": WORKLOADS.kind,
                    "name": meta.name,
                    "uid": meta.uid,
                    "controller": True,
                }
            ],
        },
        "spec": asked,
    }


def _labels(of_parent: Mapping[str, str]) -> dict[str, str]:
    job = of_parent.get(names.JOB_UID_LABEL)
    return {names.JOB_UID_LABEL: job} if job else {}


def _one_replica(podset: PodSet, count: int) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": podset.name, "count": count, "template": podset.template}
    if podset.topology_request is not None:
        request = msgspec.to_builtins(podset.topology_request)
        kept = {key: value for key, value in request.items() if value not in (None, [], ())}
        if "subGroupCount" in kept:
            kept["subGroupCount"] = 1
        plain["topologyRequest"] = kept
    return plain
