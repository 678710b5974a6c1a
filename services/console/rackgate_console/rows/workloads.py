"""Rows of Workloads: those that hold quota, and the first pending ones of each ClusterQueue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rackgate.wire.kueue import Workload
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.scheduler.backfill import read_expected_start
from rackgate_assigner.visibility.pending_order import PendingOrder, Position
from rackgate_assigner.workload.info import WorkloadInfo, priority_of
from rackgate_console.feed import Feed, Row
from rackgate_console.viewers.access import WORKLOADS

PENDING: Final = "Pending"
QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
FINISHED: Final = "Finished"
DEACTIVATED: Final = "Deactivated"
# Pending Workloads of each ClusterQueue that have rows; the row of the queue counts all of them.
SHOWN_PENDING: Final = 1000
# Pending Workloads whose LocalQueue does not exist that have rows.
SHOWN_UNQUEUED: Final = 1000

_encode: Final = msgspec.json.Encoder().encode


def status_of(info: WorkloadInfo) -> str:
    """One of the statuses above."""
    if info.finished:
        return FINISHED
    if info.reserved is not None or info.admission_error is not None:
        return ADMITTED if info.admitted else QUOTA_RESERVED
    return PENDING if info.active else DEACTIVATED


def shown_positions(order: PendingOrder) -> dict[str, Position]:
    """The first pending Workloads of each ClusterQueue, by key."""
    return {
        position.key: position
        for positions in order.cluster_queues.values()
        for position in positions[:SHOWN_PENDING]
    }


def workload_row(
    info: WorkloadInfo,
    workload: Workload,
    cluster_queue: str,
    priority: int,
    position: Position | None,
) -> Row:
    """The row of a Workload that is not finished.

    Args:
        info: what the assigner knows of it.
        workload: the object.
        cluster_queue: of its LocalQueue, "" if unknown.
        priority: see `priority_of`.
        position: of a pending one; None if it is not among the first.
    """
    status = status_of(info)
    owner = workload.metadata.controller
    reserved = info.reserved
    found: dict[str, Any] = {
        "ns": info.namespace,
        "name": info.name,
        "job": f"{owner.kind}/{owner.name}" if owner is not None else "",
        "queue": info.queue.partition("/")[2],
        "cq": reserved.cluster_queue if reserved is not None else cluster_queue,
        "status": status,
        "priority": priority,
        "created": workload.metadata.creation_timestamp or "",
        "since": _since(info, workload, status),
        "reason": info.pending_reason if status == PENDING else "",
        "message": _message(info, status),
        "position": [position.in_cluster_queue, position.in_local_queue] if position else None,
        "podsets": _podsets(info),
    }
    if info.not_ready_reason and status == ADMITTED:
        found["reason"] = info.not_ready_reason
    start = read_expected_start(info.pending_message) if status == PENDING else None
    if start is not None:
        found["start"], found["startsBy"] = start.at, start.by
    return Row(_encode(found), info.namespace)


def _since(info: WorkloadInfo, workload: Workload, status: str) -> str:
    if status == PENDING:
        return info.queue_timestamp or workload.metadata.creation_timestamp or ""
    if status == ADMITTED:
        return info.admitted_at or info.reserved_at
    return info.reserved_at or info.evicted_at


def _message(info: WorkloadInfo, status: str) -> str:
    if info.admission_error is not None:
        return info.admission_error
    if status == DEACTIVATED:
        return info.deactivation_message
    if status != PENDING:
        return ""
    if info.requeue_at:
        return f"backing off until {info.requeue_at}"
    return info.hold or info.pending_message or "the assigner has not evaluated it yet"


def _podsets(info: WorkloadInfo) -> list[dict[str, Any]]:
    parts = {} if info.reserved is None else {part.name: part for part in info.reserved.podsets}
    found = []
    for podset in info.podsets:
        request = podset.request
        part = parts.get(request.name)
        row: dict[str, Any] = {
            "name": request.name,
            "count": request.count if part is None else part.count,
            "flavors": {} if part is None else dict(part.flavors),
            "requests": dict(request.requests),
        }
        if part is not None and part.topology is not None:
            row["levels"] = part.topology.levels
            row["domains"] = part.topology.domains
        found.append(row)
    return found


class WorkloadRows:
    """Keeps the rows of Workloads in a feed up to date."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._positions: dict[str, Position] = {}
        self._changed: set[str] = set()
        self._unqueued: set[str] = set()

    def mark(self, key: str) -> None:
        """A Workload changed, or is gone."""
        self._changed.add(key)

    def set_order(self, order: PendingOrder) -> None:
        """The order of pending Workloads changed."""
        positions = shown_positions(order)
        before, self._positions = self._positions, positions
        self._changed |= before.keys() ^ positions.keys()
        self._changed |= {
            key for key in before.keys() & positions.keys() if before[key] != positions[key]
        }

    def update(self, cache: Cache, workloads: Mapping[str, Workload]) -> None:
        """Update the rows of changed Workloads."""
        rows: dict[str, Row | None] = {}
        for key in self._changed:
            rows[key] = self._row(key, cache, workloads)
        self._changed.clear()
        self._feed.update(WORKLOADS, rows)

    def _row(self, key: str, cache: Cache, workloads: Mapping[str, Workload]) -> Row | None:
        info, workload = cache.workloads.get(key), workloads.get(key)
        self._unqueued.discard(key)
        if info is None or workload is None or info.finished:
            return None
        position = self._positions.get(key)
        local_queue = cache.local_queues.get(info.queue)
        if info.pending and position is None:
            # The row of the queue counts it.
            if local_queue is not None or len(self._unqueued) >= SHOWN_UNQUEUED:
                return None
            self._unqueued.add(key)
        return workload_row(
            info,
            workload,
            "" if local_queue is None else local_queue.cluster_queue,
            priority_of(info, cache.priorities),
            position,
        )
