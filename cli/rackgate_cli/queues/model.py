"""Rows of `rackgate get queues` and `rackgate get workloads`, from objects. Pure.

Field names of Kueue's API are kept. The JSON form of both verbs is that of these structs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any, Final

import msgspec

from rackgate.api.names import WorkloadCondition
from rackgate.api.timestamps import parse_rfc3339
from rackgate.features import DEFAULTS
from rackgate.resources.quantity import QuantityError, format_amount, quota_amount
from rackgate.wire.core import Condition, View
from rackgate.wire.kueue import Amount, ClusterQueue, LocalQueue, QueueStatus, Workload
from rackgate_assigner.cache.stored_usage import stored_usage
from rackgate_assigner.quota.admission_fair_sharing import (
    AdmissionFairSharing,
    LocalQueueUsage,
    UsageHistory,
)
from rackgate_assigner.quota.queues import cluster_queue_info, local_queue_info
from rackgate_assigner.scheduler.backfill import read_expected_start
from rackgate_assigner.scheduler.local_queue_order import pending_ranks
from rackgate_assigner.visibility.pending_order import PendingOrder, order_in_steps
from rackgate_assigner.workload.info import WorkloadInfo, priority_of, workload_info

API_VERSION: Final = "queues.rackgate.dev/v1alpha1"
NOT_EVALUATED: Final = "the assigner has not evaluated it yet"
PENDING: Final = "Pending"
QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
FINISHED: Final = "Finished"
DEACTIVATED: Final = "Deactivated"
# As the flag --status names them.
STATUSES: Final = (PENDING, QUOTA_RESERVED, ADMITTED, FINISHED, DEACTIVATED)


class UsageRow(View, frozen=True):
    """Reserved quota of one resource in one flavor.

    Attributes:
        used: amount that Workloads hold.
        nominal: the nominal quota; None if the ClusterQueue cannot be read.
        share: used by nominal; None if unknown, or if nominal is 0.
    """

    flavor: str
    resource: str
    used: str
    nominal: str | None = None
    share: float | None = None


class QueueRow(View, frozen=True):
    """One queue.

    Attributes:
        kind: ClusterQueue or LocalQueue.
        cluster_queue: of a LocalQueue.
        active: condition Active; None before the assigner wrote it.
        reason: of that condition.
        message: of that condition.
    """

    kind: str
    name: str
    namespace: str = ""
    cluster_queue: str = ""
    active: bool | None = None
    reason: str = ""
    message: str = ""
    pending_workloads: int = 0
    reserving_workloads: int = 0
    admitted_workloads: int = 0
    usage: tuple[UsageRow, ...] = ()


class QueueReport(View, frozen=True):
    """Output of `rackgate get queues -o json`."""

    items: tuple[QueueRow, ...]
    notes: tuple[str, ...] = ()
    kind: str = "QueueReport"
    api_version: str = API_VERSION


class HeldAmount(View, frozen=True):
    """Quota that a Workload holds."""

    flavor: str
    resource: str
    amount: str


class WorkloadRow(View, frozen=True):
    """One Workload.

    Attributes:
        job: kind and name of its owner, "" without one.
        status: one of `STATUSES`.
        age_seconds: since its creation; None if unknown.
        wait_seconds: of a pending one, since it was created, or queued again; None if unknown.
        expected_start: of the first one in a queue with backfill, in RFC 3339; "" if unknown.
        starts_by: it starts at that time or earlier; false: not before that time.
        reason: why it is pending, of the condition QuotaReserved.
        message: of that condition.
        position_in_cluster_queue: starts at 0; None if it is not pending, or unknown.
        position_in_local_queue: as above.
        holds: quota that it holds.
    """

    namespace: str
    name: str
    job: str
    local_queue: str
    cluster_queue: str
    status: str
    priority: int
    age_seconds: int | None = None
    wait_seconds: int | None = None
    expected_start: str = ""
    starts_by: bool = False
    reason: str = ""
    message: str = ""
    position_in_cluster_queue: int | None = None
    position_in_local_queue: int | None = None
    holds: tuple[HeldAmount, ...] = ()


class WorkloadReport(View, frozen=True):
    """Output of `rackgate get workloads -o json`.

    Attributes:
        positions_from: `visibility` for the API, `objects` if they were computed, "" if no Workload
            is pending.
    """

    items: tuple[WorkloadRow, ...]
    positions_from: str = ""
    notes: tuple[str, ...] = ()
    kind: str = "WorkloadReport"
    api_version: str = API_VERSION


@dataclass(frozen=True, slots=True)
class Position:
    """Numbers of Workloads ahead; None if unknown."""

    in_cluster_queue: int | None
    in_local_queue: int | None


NO_POSITION: Final = Position(None, None)


def cluster_queue_row(queue: ClusterQueue) -> QueueRow:
    """The row of a ClusterQueue."""
    nominal = _nominal(queue)
    return _queue_row(
        QueueRow("ClusterQueue", queue.metadata.name), queue.status, nominal, list(nominal)
    )


def local_queue_row(queue: LocalQueue, cluster_queue: ClusterQueue | None) -> QueueRow:
    """The row of a LocalQueue; its bars show its part of the quota of its ClusterQueue."""
    meta = queue.metadata
    row = QueueRow("LocalQueue", meta.name, meta.namespace, queue.spec.cluster_queue)
    nominal = {} if cluster_queue is None else _nominal(cluster_queue)
    return _queue_row(row, queue.status, nominal, list(nominal))


def _nominal(queue: ClusterQueue) -> dict[tuple[str, str], Amount]:
    return {
        (flavor.name, resource.name): resource.nominal_quota
        for group in queue.spec.resource_groups
        for flavor in group.flavors
        for resource in flavor.resources
    }


def _queue_row(
    row: QueueRow,
    status: QueueStatus,
    nominal: Mapping[tuple[str, str], Amount],
    order: list[tuple[str, str]],
) -> QueueRow:
    used = _reserved(status.flavors_reservation)
    order += [pair for pair in used if pair not in nominal]
    active = next((one for one in status.conditions if one.type == "Active"), Condition())
    return msgspec.structs.replace(
        row,
        active=active.status == "True" if active.status else None,
        reason=active.reason,
        message=active.message if active.status else NOT_EVALUATED,
        pending_workloads=status.pending_workloads,
        reserving_workloads=status.reserving_workloads,
        admitted_workloads=status.admitted_workloads,
        usage=tuple(_usage_row(pair, used.get(pair, "0"), nominal.get(pair)) for pair in order),
    )


def _reserved(listed: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Amount]:
    """Amounts of `status.flavorsReservation`; malformed entries are left out."""
    found: dict[tuple[str, str], Amount] = {}
    for flavor in listed:
        for resource in flavor.get("resources") or ():
            pair = (str(flavor.get("name", "")), str(resource.get("name", "")))
            found[pair] = resource.get("total", "0")
    return found


def _usage_row(pair: tuple[str, str], used: Amount, nominal: Amount | None) -> UsageRow:
    flavor, resource = pair
    try:
        held = quota_amount(resource, used)
        quota = None if nominal is None else quota_amount(resource, nominal)
    except QuantityError:
        return UsageRow(flavor, resource, str(used), None if nominal is None else str(nominal))
    return UsageRow(
        flavor,
        resource,
        format_amount(resource, held),
        None if quota is None else format_amount(resource, quota),
        held / quota if quota else None,
    )


def order_of(
    workloads: Iterable[Workload],
    cluster_queue_of: Mapping[str, str],
    classes: Mapping[str, int],
    rank_of: Callable[[WorkloadInfo], float] = lambda _info: 0.0,
) -> PendingOrder:
    """The order of the pending ones, as the assigner has it.

    Args:
        workloads: all that could be read.
        cluster_queue_of: LocalQueue (`namespace/name`) to the name of its ClusterQueue.
        classes: WorkloadPriorityClass name to value.
        rank_of: see `usage_ranks`.
    """
    pending = [info for info in map(workload_info, workloads) if info.pending]
    steps = order_in_steps(pending, cluster_queue_of, classes, rank_of)
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            order: PendingOrder = finished.value
            return order


def usage_ranks(
    cluster_queues: Mapping[str, ClusterQueue], local_queues: Collection[LocalQueue]
) -> Callable[[WorkloadInfo], float] | None:
    """The order of LocalQueues by the usage in their status, each resource with weight 1.

    None if no LocalQueue shows usage that orders its ClusterQueue.
    """
    queues = {name: cluster_queue_info(queue) for name, queue in cluster_queues.items()}
    local_by_key = {queue.metadata.key: local_queue_info(queue) for queue in local_queues}
    # Statuses are shown as they are: nothing decays here.
    history = UsageHistory(AdmissionFairSharing(half_life_s=inf))
    for queue in local_queues:
        found = queues.get(queue.spec.cluster_queue)
        stored = stored_usage(queue.status)
        if found is not None and found.usage_based and stored is not None:
            history.restore(queue.metadata.key, *stored)
    if not any(key in history for key in local_by_key):
        return None
    usage = LocalQueueUsage(
        history, lambda key: local_by_key[key].fair_weight if key in local_by_key else 1.0
    )
    return pending_ranks(local_by_key, queues, usage, DEFAULTS)


def positions_of(order: PendingOrder, *, whole_cluster: bool) -> dict[str, Position]:
    """By key of the Workload.

    Args:
        order: of the Workloads that could be read.
        whole_cluster: these are all. If not, positions in ClusterQueues are unknown.
    """
    return {
        found.key: Position(found.in_cluster_queue if whole_cluster else None, found.in_local_queue)
        for queue in order.local_queues.values()
        for found in queue
    }


def queues_with_pending(workloads: Iterable[Workload]) -> set[str]:
    """LocalQueues (`namespace/name`) in which one of these is pending."""
    return {info.queue for info in map(workload_info, workloads) if info.pending}


def status_of(info: WorkloadInfo) -> str:
    """One of `STATUSES`."""
    if info.finished:
        return FINISHED
    if info.reserved is not None or info.admission_error is not None:
        return ADMITTED if info.admitted else QUOTA_RESERVED
    return PENDING if info.active else DEACTIVATED


def workload_row(
    workload: Workload,
    cluster_queue_of: Mapping[str, str],
    classes: Mapping[str, int],
    position: Position,
    now: datetime,
) -> WorkloadRow:
    """The row of a Workload.

    Args:
        workload: as read.
        cluster_queue_of: LocalQueue (`namespace/name`) to the name of its ClusterQueue.
        classes: WorkloadPriorityClass name to value.
        position: of a pending one.
        now: aware.
    """
    info = workload_info(workload)
    status = status_of(info)
    owner = workload.metadata.controller
    reason, message = "", ""
    if status == PENDING:
        reason, message = info.pending_reason, info.pending_message or NOT_EVALUATED
        if info.requeue_at:
            message = f"backing off until {info.requeue_at}"
    elif status == DEACTIVATED:
        evicted = workload.condition(WorkloadCondition.EVICTED)
        reason, message = DEACTIVATED, evicted.message if evicted is not None else ""
    start = read_expected_start(info.pending_message) if status == PENDING else None
    admission = workload.status.admission
    return WorkloadRow(
        namespace=info.namespace,
        name=info.name,
        job=f"{owner.kind}/{owner.name}" if owner is not None else "",
        local_queue=info.queue.partition("/")[2],
        cluster_queue=(
            admission.cluster_queue
            if admission is not None
            else cluster_queue_of.get(info.queue, "")
        ),
        status=status,
        priority=priority_of(info, classes),
        age_seconds=_age_s(workload.metadata.creation_timestamp, now),
        wait_seconds=_age_s(_queued_at(workload), now) if status == PENDING else None,
        expected_start=start.at if start is not None else "",
        starts_by=start is not None and start.by,
        reason=reason,
        message=message,
        position_in_cluster_queue=position.in_cluster_queue,
        position_in_local_queue=position.in_local_queue,
        holds=_holds(workload) if status in (QUOTA_RESERVED, ADMITTED) else (),
    )


def _queued_at(workload: Workload) -> str | None:
    """When it began to wait: its creation, or the last time that it was queued again."""
    for type_ in (WorkloadCondition.REQUEUED, WorkloadCondition.EVICTED):
        found = workload.condition(type_)
        if found is not None and found.status == "True" and found.last_transition_time:
            return found.last_transition_time
    return workload.metadata.creation_timestamp


def _age_s(created: str | None, now: datetime) -> int | None:
    try:
        return max(0, int((now - parse_rfc3339(created or "")).total_seconds()))
    except (ValueError, OverflowError):
        return None


def _holds(workload: Workload) -> tuple[HeldAmount, ...]:
    total: dict[tuple[str, str], int] = {}
    admission = workload.status.admission
    for part in admission.pod_set_assignments if admission is not None else ():
        for resource, flavor in part.flavors.items():
            try:
                amount = quota_amount(resource, part.resource_usage.get(resource, 0))
            except QuantityError:
                continue
            total[flavor, resource] = total.get((flavor, resource), 0) + amount
    return tuple(
        HeldAmount(flavor, resource, format_amount(resource, amount))
        for (flavor, resource), amount in sorted(total.items())
    )


def sorted_rows(rows: Iterable[WorkloadRow]) -> tuple[WorkloadRow, ...]:
    """Pending ones first, each ClusterQueue in its order; then by name."""

    def key(row: WorkloadRow) -> tuple[object, ...]:
        if row.status != PENDING:
            return (STATUSES.index(row.status), row.cluster_queue, 0, 0, row.namespace, row.name)
        return (
            0,
            row.cluster_queue,
            _last_if_unknown(row.position_in_cluster_queue),
            _last_if_unknown(row.position_in_local_queue),
            row.namespace,
            row.name,
        )

    return tuple(sorted(rows, key=key))


def _last_if_unknown(position: int | None) -> int:
    return 2**63 if position is None else position
