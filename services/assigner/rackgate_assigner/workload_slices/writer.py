"""Writes of a resize: the parent's status and counts, its condition, and its slices.

All methods raise `KubeError` when the API server rejects a write. All but `create` and the deletion
of slices that no parent needs are bound to one version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import structlog

from rackgate.api.names import FieldManager, WorkloadCondition
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.kube.client import Client
from rackgate.kube.errors import AlreadyExistsError, NotFoundError
from rackgate.wire.kueue import Workload
from rackgate_assigner import metrics
from rackgate_assigner.scheduler.writer import WorkloadWriter
from rackgate_assigner.workload import conditions
from rackgate_assigner.workload.conditions import ADMISSION_TYPES, SLICE_TYPES, Change
from rackgate_assigner.workload.status import (
    admission_of,
    conditions_body,
    decode_workload,
    path_of,
    status_body,
)
from rackgate_assigner.workload.writer import listed_conditions
from rackgate_assigner.workload_slices.merge_plan import ParentUpdate
from rackgate_assigner.workload_slices.model import NewSlice, slice_body
from rackgate_assigner.workload_slices.resize_plan import Progress

log = structlog.get_logger()


class SliceWriter:
    """Writes Workloads of resizable jobs."""

    def __init__(self, client: Client, writer: WorkloadWriter) -> None:
        """Share the budget of admissions: admitted slices depend on these writes."""
        self._client, self._writer = client, writer

    async def write_merge(self, parent: Workload, merge: ParentUpdate) -> Workload:
        """Merge slices, release pods, remove old entries: one write (SLC-18, 21, 25)."""
        broken = [node.name for node in parent.status.unhealthy_nodes]
        body = status_body(
            parent,
            listed_conditions(parent, ADMISSION_TYPES, ()),
            None if merge.assignment is None else admission_of(merge.assignment),
            broken,
            merged_slices=merge.merged,
        )
        answer = await self._client.apply(path_of(parent, "status"), body, FieldManager.ADMISSION)
        metrics.SLICES_MERGED.labels(result="folded").inc(len(merge.newly_merged))
        metrics.SLICES_MERGED.labels(result="withdrawn").inc(len(merge.withdrawn))
        metrics.PODS_SCALED_DOWN.inc(sum((merge.scaled_down or {}).values()))
        log.info(
            "slices_merged",
            workload=parent.metadata.key,
            merged=len(merge.newly_merged),
            withdrawn=len(merge.withdrawn),
            given_back=sum((merge.scaled_down or {}).values()),
        )
        return decode_workload(answer)

    async def update_counts(self, parent: Workload, counts: Mapping[str, int]) -> Workload:
        """Set the counts of the spec to those admitted (SLC-23)."""
        ops: list[JsonPatchOp] = [
            {"op": "replace", "path": f"/spec/podSets/{index}/count", "value": counts[podset.name]}
            for index, podset in enumerate(parent.spec.pod_sets)
            if counts.get(podset.name, podset.count) != podset.count
        ]
        answer = await self._writer.patch(parent, ops, client=self._client)
        log.info("workload_resized", workload=parent.metadata.key, counts=dict(counts))
        return answer

    async def create(self, parent: Workload, new: NewSlice) -> bool:
        """Create a slice; False if its name belongs to another Workload."""
        try:
            await self._writer.create(slice_body(parent, new))
        except AlreadyExistsError:
            found = await self._writer.read(parent.metadata.namespace, new.name)
            owner = found.metadata.controller if found is not None else None
            return owner is not None and owner.uid == parent.metadata.uid
        return True

    async def delete(self, piece: Workload, *, in_any_version: bool) -> None:
        """Delete a slice: also one that was admitted meanwhile, or only in this version."""
        meta = piece.metadata
        wanted = {"uid": meta.uid}
        if not in_any_version:
            wanted["resourceVersion"] = meta.resource_version
        body = msgspec.json.encode({"preconditions": wanted})
        try:
            await self._client.delete(path_of(piece), body)
        except NotFoundError:
            return

    async def add_finalizer(self, piece: Workload, ops: Sequence[JsonPatchOp]) -> Workload:
        """Add the finalizer to a slice that has lost it; returns the result."""
        return await self._writer.patch(piece, ops)

    async def remove_finalizer(self, piece: Workload) -> None:
        """Remove the finalizer of a slice that is being deleted."""
        await self._writer.release_finalizer(piece)

    async def uid_of(self, namespace: str, name: str) -> str:
        """The uid of a Workload as stored now, "" when there is none."""
        found = await self._writer.read(namespace, name)
        return "" if found is None else found.metadata.uid

    async def write_progress(self, parent: Workload, progress: Progress) -> Workload:
        """Write condition ResizeRequested (SLC-10)."""
        listed = listed_conditions(parent, SLICE_TYPES, [change_of(progress)])
        body = conditions_body(parent, listed)
        answer = await self._client.apply(path_of(parent, "status"), body, FieldManager.SLICES)
        return decode_workload(answer)


def change_of(progress: Progress) -> Change:
    """The desired state of the condition."""
    status = conditions.TRUE if progress.resizing else conditions.FALSE
    message = conditions.truncate(progress.message)
    return Change(WorkloadCondition.RESIZE_REQUESTED, status, progress.reason, message)
