"""Parents and slices as a resize reads them, and slices as they are created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from rackgate.api import names
from rackgate.api.names import slice_ordinal
from rackgate.api.resources import WORKLOADS
from rackgate.wire.kueue import MergedSlice, PodSet, Workload
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from rackgate_assigner.workload.info import WorkloadInfo


class Phase(StrEnum):
    """Phase of the Workload of an elastic job.

    RUNNING has quota. EVICTING is about to lose it: slices are merged, so that running pods stay
    charged until the job has stopped, and no slice is created. IDLE has no quota and may be
    admitted again. FINISHED never has quota again.
    """

    RUNNING = "running"
    EVICTING = "evicting"
    IDLE = "idle"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Parent:
    """The Workload of an elastic job.

    Attributes:
        name: its slices are named after it.
        counts: `spec.podSets[].count` by name, in order.
        assignment: `status.admission`; None without one.
        merged: `status.foldedSlices`.
    """

    name: str
    phase: Phase
    counts: Mapping[str, int]
    assignment: Assignment | None = None
    merged: tuple[MergedSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """A workload slice.

    Attributes:
        ordinal: from its name. Slices are ordered by it, never by their age: many are created
            within one second.
        count: pods that it requests.
        assignment: its own; None while it is pending.
        evicted_or_finished: evicted or finished: its assignment is not used any more.
        deleting: a deletion is in progress; its finalizer keeps it.
        matches_parent: its one PodSet equals that of the parent, including the template.
        reason: why it is pending, as last written.
        message: the same as text.
    """

    name: str
    uid: str
    podset: str
    ordinal: int
    count: int
    assignment: PodSetAssignment | None = None
    evicted_or_finished: bool = False
    deleting: bool = False
    matches_parent: bool = True
    reason: str = ""
    message: str = ""

    @property
    def is_pending(self) -> bool:
        """Whether it may still be admitted."""
        return (
            self.assignment is None
            and self.matches_parent
            and not (self.evicted_or_finished or self.deleting)
        )


@dataclass(frozen=True, slots=True)
class NewSlice:
    """A slice to create."""

    name: str
    podset: str
    count: int


def admitted_pods(parent: Parent, slices: tuple[Slice, ...] | list[Slice]) -> dict[str, int]:
    """Pods of each PodSet that may run now (SLC-14).

    A slice counts while it is admitted, not evicted, not being deleted, and not yet counted by
    its parent: exactly once, in any order of its events (SLC-15).
    """
    if parent.phase is not Phase.RUNNING or parent.assignment is None:
        return dict.fromkeys(parent.counts, 0)
    settled = {entry.uid for entry in parent.merged}
    counts = {part.name: part.count for part in parent.assignment.podsets}
    for piece in slices:
        if (
            piece.uid in settled
            or piece.assignment is None
            or piece.evicted_or_finished
            or piece.deleting
        ):
            continue
        counts[piece.podset] = counts.get(piece.podset, 0) + piece.assignment.count
    return counts


def phase_of(row: WorkloadInfo, *, enabled: bool) -> Phase:
    """Phase of a parent; without the feature gate a running one counts as EVICTING."""
    if row.finished:
        return Phase.FINISHED
    if row.reserved is None:
        return Phase.FINISHED if row.deleting else Phase.IDLE
    goes_on = row.admitted and row.active and not (row.evicted or row.deleting)
    return Phase.RUNNING if goes_on and enabled else Phase.EVICTING


def parent_of(workload: Workload, row: WorkloadInfo, *, enabled: bool) -> Parent:
    """A parent, from the Workload and its projection."""
    return Parent(
        name=workload.metadata.name,
        phase=phase_of(row, enabled=enabled),
        counts={podset.name: podset.count for podset in workload.spec.pod_sets},
        assignment=row.reserved,
        merged=workload.status.folded_slices,
    )


def slice_of(workload: Workload, row: WorkloadInfo, parent: Workload) -> Slice:
    """A slice of `parent`, from its Workload and its projection."""
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
        # One whose admission cannot be read has no usage: it is created again.
        matches_parent=row.admission_error is None
        and _matches_parent(workload, parent, waits=held is None),
        reason=row.pending_reason,
        message=row.pending_message,
    )


def assumed_slice(new: NewSlice) -> Slice:
    """A slice that was created and is not in the watch yet."""
    return Slice(new.name, f"made:{new.name}", new.podset, slice_ordinal(new.name), new.count)


def _matches_parent(workload: Workload, parent: Workload, *, waits: bool) -> bool:
    """Whether a slice is one PodSet of its parent, in its queue (SLC-07, SLC-08).

    A pending one also has its parent's priority: otherwise it is created again.
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
    """A new slice: one replica of a PodSet of its parent (SLC-05..08)."""
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
