"""Reconciles elastic jobs: reads a parent Workload and its slices, plans a resize, writes it.

Level-triggered, as the job controller. The job itself is only read: its scaler owns the
replicas (SLC-33).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

from rackgate.api import names
from rackgate.api.names import ResizeReason, WorkloadCondition
from rackgate.api.resources import WORKLOADS
from rackgate.jobframework.generic_job import JobLike
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.runtime import clock
from rackgate.wire.core import Meta
from rackgate.wire.kueue import Workload
from rackgate_assigner import metrics
from rackgate_assigner.assumed_writes import AssumedCreations, AssumedWrites
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.indexes import discard
from rackgate_assigner.jobs.patches import finalizer_ops
from rackgate_assigner.rate_limits import MessageRateLimiter
from rackgate_assigner.workload import conditions
from rackgate_assigner.workload_slices.jobs import ResizableJobs
from rackgate_assigner.workload_slices.model import NewSlice, assumed_slice, parent_of, slice_of
from rackgate_assigner.workload_slices.resize_plan import Plan, Progress, plan_resize, progress
from rackgate_assigner.workload_slices.writer import SliceWriter, change_of
from rackgate_assigner.workqueue import WorkQueue

WORKERS: Final = 16
# The watch shows a created slice much earlier; otherwise it is created again.
ASSUMED_FOR_S: Final = 30.0
POLL_S: Final = 0.5
# Of an object that was written: newer than any version that was read.
_NEWER_THAN_JUDGED: Final = Meta()


@dataclass(frozen=True, slots=True)
class _ResizeState:
    """The state of one parent, from the watch."""

    parent: Workload
    slices: Mapping[str, Workload]
    plan: Plan
    progress: Progress | None

    @property
    def releases_quota(self) -> bool:
        """Whether the next write releases quota."""
        return self.plan.merge is not None and bool(self.plan.merge.scaled_down)


class SliceController:
    """Creates, merges and deletes workload slices. Callbacks run on standbys, too.

    Attributes:
        queue: keys of parents, whether or not they exist.
    """

    def __init__(
        self,
        cache: Cache,
        workloads: Mapping[str, Workload],
        writer: SliceWriter,
        jobs: ResizableJobs,
        *,
        enabled: bool,
        message_interval_s: float = 0.0,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            cache: updated by every event before this controller is called.
            workloads: as the watch shows them, by key.
            writer: writes the plans.
            jobs: reads the jobs.
            enabled: state of the feature gate; without it existing slices are deleted.
            message_interval_s: time between two progress messages of a resize, for one reason.
        """
        self.queue = WorkQueue[str]("slices", self._reconcile, workers=WORKERS)
        self._cache, self._workloads, self._writer = cache, workloads, writer
        self._jobs, self._enabled = jobs, enabled
        self._message_limiter = MessageRateLimiter(message_interval_s)
        self._assumed_writes = AssumedWrites()
        self._slices: dict[str, set[str]] = defaultdict(set)
        self._statuses: dict[str, str] = {}
        # By UID of the job. Slices that Kueue replaced are Finished Workloads of the same job.
        self._parents: dict[str, set[str]] = defaultdict(set)
        self._assumed_slices = AssumedCreations[NewSlice](ASSUMED_FOR_S)

    async def run(self) -> None:
        """Reconcile everything once, then every change, until cancelled."""
        self._assumed_writes.clear()
        self._assumed_slices.clear()
        await self.queue.run([*chain.from_iterable(self._parents.values()), *self._slices])

    # Listeners.

    def on_workload_upsert(self, before: Workload | None, workload: Workload) -> None:
        """A Workload was added or changed; Workloads that are not elastic are skipped."""
        if before is not None and before.parent != workload.parent:
            self._forget_slice(before)
        key = workload.metadata.key
        if workload.parent is not None:
            parent = _parent_key(workload)
            self._slices[parent].add(key)
            self._assumed_slices.forget(parent, workload.metadata.name)
            self._count_slice(workload)
            self.queue.add(parent)
        elif workload.elastic:
            owner = workload.metadata.controller
            if owner is not None:
                self._parents[owner.uid].add(key)
            self.queue.add(key)

    def on_workload_delete(self, workload: Workload) -> None:
        """A Workload was deleted."""
        key = workload.metadata.key
        self._assumed_writes.forget(WORKLOADS.kind, key)
        if workload.parent is not None:
            self._forget_slice(workload)
            self.queue.add(_parent_key(workload))
            return
        owner = workload.metadata.controller
        if owner is not None:
            discard(self._parents, owner.uid, key)
        self._assumed_slices.forget_all(key)
        self._message_limiter.forget(key)
        if key in self._slices:
            self.queue.add(key)

    def on_job_upsert(self, _before: JobLike | None, job: JobLike) -> None:
        """A job of any kind was added or changed."""
        self.on_job_delete(job)

    def on_job_delete(self, job: JobLike) -> None:
        """A job was deleted."""
        for parent in self._parents.get(job.metadata.uid, ()):
            self.queue.add(parent)

    def is_in_sync(self, workload: Workload) -> bool:
        """Whether a pending Workload may be admitted: its slices of the last admission are gone."""
        return workload.parent is not None or not self._slices.get(workload.metadata.key)

    def _forget_slice(self, piece: Workload) -> None:
        if piece.parent is None:
            return
        parent, key = _parent_key(piece), piece.metadata.key
        discard(self._slices, parent, key)
        status = self._statuses.pop(key, None)
        if status is not None:
            metrics.SLICES.labels(status=status).dec()

    def _count_slice(self, piece: Workload) -> None:
        held = piece.status.admission is not None
        status, before = "admitted" if held else "waiting", self._statuses.get(piece.metadata.key)
        if status == before:
            return
        if before is not None:
            metrics.SLICES.labels(status=before).dec()
        metrics.SLICES.labels(status=status).inc()
        self._statuses[piece.metadata.key] = status

    # Reconciling.

    async def _reconcile(self, key: str) -> None:
        parent = self._workloads.get(key)
        uid = parent.metadata.uid if parent is not None else ""
        own: list[Workload] = []
        orphans: list[Workload] = []
        for name in sorted(self._slices.get(key, ())):
            piece = self._workloads.get(name)
            if piece is not None and piece.parent is not None:
                (own if piece.parent.uid == uid else orphans).append(piece)
        if orphans:
            await self._delete_orphans(key, orphans)
        if parent is None or not parent.elastic or parent.parent is not None:
            return
        if self._assumed_writes.is_stale(WORKLOADS.kind, parent.metadata):
            return  # the watch will show our last write, and reconcile this key again
        state = self._resize_state(parent, own)
        if state is not None:
            await _all([self._write_parent(state), *self._slice_writes(state)])
        if (wait_s := self._assumed_slices.wait_s(key, clock.monotonic())) > 0:
            self.queue.add_later(key, wait_s)

    def _resize_state(self, parent: Workload, found: Sequence[Workload]) -> _ResizeState | None:
        """The state of one parent; None while its admission cannot be read."""
        key = parent.metadata.key
        rows = [self._cache.workloads.get(workload.metadata.key) for workload in (parent, *found)]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows) or known[0].admission_error is not None:
            return None
        row, *pieces = known
        slices = [slice_of(w, piece, parent) for w, piece in zip(found, pieces, strict=True)]
        read = parent_of(parent, row, enabled=self._enabled)
        asked = self._jobs.requested_pods(parent)
        plan = plan_resize(
            asked,
            read,
            [*slices, *map(assumed_slice, self._assumed_slices.items(key, clock.monotonic()))],
            taken=_Names(self._workloads, parent.metadata.namespace),
            live=lambda podset: self._jobs.live_pods_by_domain(parent, podset),
        )
        by_name = {workload.metadata.name: workload for workload in found}
        return _ResizeState(parent, by_name, plan, progress(asked, read, slices))

    async def _write_parent(self, state: _ResizeState) -> None:
        """At most one write of the parent: each makes the version of the others outdated."""
        parent, plan, found = state.parent, state.plan, state.progress
        if found is not None and self._is_starting(parent, found) and not state.releases_quota:
            answer = await self._write_progress(parent, found)
        elif plan.merge is not None:
            answer = await self._writer.write_merge(parent, plan.merge)
        elif found is not None and self._reason_changed(parent, found):
            answer = await self._write_progress(parent, found)
        elif plan.count_updates is not None:
            answer = await self._writer.update_counts(parent, plan.count_updates)
        elif found is not None and self._message_is_due(parent, found):
            answer = await self._write_progress(parent, found)
        else:
            return
        self._written(parent, answer.metadata)

    def _written(self, judged: Workload, answer: Meta) -> None:
        # The watch may have shown the deletion before the response arrived: remove the entry.
        if judged.metadata.key in self._workloads:
            self._assumed_writes.written(WORKLOADS.kind, judged.metadata, answer)

    def _is_starting(self, parent: Workload, found: Progress) -> bool:
        """Whether the condition must announce a resize first."""
        return found.resizing and not parent.is_true(WorkloadCondition.RESIZE_REQUESTED)

    def _reason_changed(self, parent: Workload, found: Progress) -> bool:
        """Whether status or reason of the condition must change."""
        present = parent.condition(WorkloadCondition.RESIZE_REQUESTED)
        before = (present.status == conditions.TRUE, present.reason) if present else (False, "")
        if not found.resizing:
            return before[0]
        return before != (True, found.reason)

    def _message_is_due(self, parent: Workload, found: Progress) -> bool:
        """Whether only the message changed, and the last one is old enough."""
        present = parent.condition(WorkloadCondition.RESIZE_REQUESTED)
        if not found.resizing or present is None:
            return False
        if present.message == change_of(found).message:
            return False
        key = parent.metadata.key
        wait_s = self._message_limiter.wait_s(key, found.reason, clock.monotonic())
        if wait_s > 0:
            self.queue.add_later(key, wait_s)
        return wait_s <= 0

    async def _write_progress(self, parent: Workload, found: Progress) -> Workload:
        answer = await self._writer.write_progress(parent, found)
        self._message_limiter.record_written(parent.metadata.key, found.reason, clock.monotonic())
        pending = found.reason is ResizeReason.WAITING_FOR_SLICES
        reason = names.WorkloadCondition.RESIZE_REQUESTED if found.resizing else found.reason
        self._jobs.report_event(parent, reason, change_of(found).message, warning=pending)
        if self._is_starting(parent, found):
            down = found.reason is ResizeReason.SCALING_DOWN
            metrics.RESIZES.labels(direction="down" if down else "up").inc()
        return answer

    def _slice_writes(self, state: _ResizeState) -> list[Awaitable[None]]:
        plan, parent = state.plan, state.parent
        writes = [self._create(parent, new) for new in plan.create]
        delete = partial(self._delete, in_any_version=plan.no_slice_is_needed)
        for pieces, write in ((plan.delete, delete), (plan.release, self._remove_finalizer)):
            # A created slice that is not in the watch yet is handled later.
            seen = [state.slices[piece.name] for piece in pieces if piece.name in state.slices]
            writes += [write(piece) for piece in seen]
        leaving = {piece.name for piece in (*plan.delete, *plan.release)}
        for name, piece in state.slices.items():
            # Slices are created with it; an uninstall removes it.
            if name not in leaving and piece.metadata.deletion_timestamp is None:
                ops = finalizer_ops(piece)
                writes += [self._add_finalizer(piece, ops)] if ops else []
        return list(writes)

    async def _create(self, parent: Workload, new: NewSlice) -> None:
        # Assumed first: the watch may show it before the response arrives.
        key = parent.metadata.key
        self._assumed_slices.assume(key, clock.monotonic(), new.name, new)
        try:
            ours = await self._writer.create(parent, new)
        except Exception:
            self._assumed_slices.forget(key, new.name)
            raise
        if not ours:
            self._assumed_slices.forget(key, new.name)
            note = f'the name "{new.name}" of a slice belongs to another Workload'
            self._jobs.report_event(parent, "ErrWorkloadCompose", note, warning=True)

    async def _delete(self, piece: Workload, *, in_any_version: bool) -> None:
        if not self._assumed_writes.is_stale(WORKLOADS.kind, piece.metadata):
            await self._writer.delete(piece, in_any_version=in_any_version)
            self._written(piece, _NEWER_THAN_JUDGED)

    async def _add_finalizer(self, piece: Workload, ops: Sequence[JsonPatchOp]) -> None:
        if not self._assumed_writes.is_stale(WORKLOADS.kind, piece.metadata):
            answer = await self._writer.add_finalizer(piece, ops)
            self._written(piece, answer.metadata)

    async def _remove_finalizer(self, piece: Workload) -> None:
        held = names.IN_USE_FINALIZER in piece.metadata.finalizers
        if held and not self._assumed_writes.is_stale(WORKLOADS.kind, piece.metadata):
            await self._writer.remove_finalizer(piece)
            self._written(piece, _NEWER_THAN_JUDGED)

    async def _delete_orphans(self, key: str, orphans: Sequence[Workload]) -> None:
        """Delete slices whose parent is gone, once the API server confirms it (SLC-32)."""
        namespace, _, name = key.partition("/")
        live = await self._writer.uid_of(namespace, name)
        gone = [w for w in orphans if w.parent is not None and w.parent.uid != live]
        if len(gone) < len(orphans):
            self.queue.add_later(key, POLL_S)
        await _all(
            [
                self._delete(piece, in_any_version=True)
                if piece.metadata.deletion_timestamp is None
                else self._remove_finalizer(piece)
                for piece in gone
            ]
        )


class _Names(Container[str]):
    """Names of Workloads in one namespace."""

    def __init__(self, workloads: Mapping[str, Workload], namespace: str) -> None:
        self._workloads, self._namespace = workloads, namespace

    def __contains__(self, name: object) -> bool:
        return f"{self._namespace}/{name}" in self._workloads


def _parent_key(piece: Workload) -> str:
    owner = piece.parent
    return f"{piece.metadata.namespace}/{owner.name}" if owner is not None else ""


async def _all(writes: Sequence[Awaitable[None]]) -> None:
    """Send writes of different objects together; raise a failure after all of them have ended."""
    for result in await asyncio.gather(*writes, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
