"""What Workloads hold of the quota, kept per queue as it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from rackgate.api.names import PendingReason
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.live_pods import Excess
from rackgate_assigner.quota.queues import FlavorResource
from rackgate_assigner.workload.decisions import Grant
from rackgate_assigner.workload.info import Charge, WorkloadRow, charges_of, pods_left, quota_of

Key = TypeVar("Key", str, FlavorResource)

# The reason of a Workload that no cycle has looked at.
NOT_EVALUATED: Final = PendingReason.PENDING_EVALUATION
# Of one that pauses after an eviction. Its condition says PendingEvaluation, and until when.
BACKING_OFF: Final = "BackingOff"


@dataclass(frozen=True, slots=True)
class Holding:
    """What one Workload holds, or its place among those that wait.

    Attributes:
        cluster_queue: "" while it holds nothing.
        waiting: it asks for admission.
        reason: why it was not admitted yet, while it waits; see `PendingReason` and `BACKING_OFF`.
        admitted: it is admitted, not only reserved.
        quota: by flavor and resource.
        charges: of topologies.
        owner_uid: of the job whose pods the assignments cover.
        assignments: by PodSet name, one for each charge, also of pods that are done.
    """

    local_queue: str
    cluster_queue: str = ""
    waiting: bool = False
    admitted: bool = False
    quota: Mapping[FlavorResource, int] = field(default_factory=dict)
    charges: tuple[Charge, ...] = ()
    owner_uid: str = ""
    assignments: Mapping[str, TopologyAssignment] = field(default_factory=dict)
    reason: str = ""


def holding_of(
    row: WorkloadRow, assumed: Grant | None, *, folded: bool = False, orphan: bool = False
) -> Holding:
    """What a Workload holds: as assumed while that is open, else as the watch shows it.

    Args:
        row: the Workload.
        assumed: a grant whose status write was not seen yet; also one that replaces another.
        folded: a slice whose parent counts its pods as its own.
        orphan: a slice that has outlived its parent.
    """
    if folded:
        return Holding(row.queue)
    grant = row.reserved if assumed is None else assumed
    if orphan or grant is None or row.finished:
        return _queued(row)
    return Holding(
        local_queue=row.queue,
        cluster_queue=grant.cluster_queue,
        admitted=row.admitted or row.reserved is None,
        quota=quota_of(grant, pods_left(row)),
        charges=charges_of(row, grant),
        owner_uid=row.owner_uid,
        assignments={
            part.name: part.topology for part in grant.podsets if part.topology is not None
        },
    )


def _queued(row: WorkloadRow) -> Holding:
    if not row.waiting:
        return Holding(row.queue)
    reason = BACKING_OFF if row.requeue_at else row.pending_reason or NOT_EVALUATED
    return Holding(row.queue, waiting=True, reason=reason)


@dataclass(slots=True)
class QueueTotals:
    """Sums over the Workloads of one queue; amounts that are zero are left out.

    Attributes:
        pending_reasons: of those that wait, by reason.
    """

    reserving: int = 0
    admitted: int = 0
    reserved_quota: dict[FlavorResource, int] = field(default_factory=dict)
    admitted_quota: dict[FlavorResource, int] = field(default_factory=dict)
    pending_reasons: dict[str, int] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        """How many wait."""
        return sum(self.pending_reasons.values())

    def add(self, holding: Holding, sign: int) -> None:
        """Add (1) or take away (-1) what a Workload holds."""
        if not holding.cluster_queue:
            if holding.waiting:
                _add(self.pending_reasons, {holding.reason: 1}, sign)
            return
        self.reserving += sign
        _add(self.reserved_quota, holding.quota, sign)
        if holding.admitted:
            self.admitted += sign
            _add(self.admitted_quota, holding.quota, sign)

    def add_excess(self, amounts: Mapping[FlavorResource, int], sign: int) -> None:
        """Add (1) or take away (-1) what pods take beyond what was granted."""
        _add(self.reserved_quota, amounts, sign)
        _add(self.admitted_quota, amounts, sign)

    @property
    def empty(self) -> bool:
        """Whether nothing is counted here."""
        counted = self.pending_reasons or self.reserving or self.admitted
        return not (counted or self.reserved_quota or self.admitted_quota)


def _add(total: dict[Key, int], part: Mapping[Key, int], sign: int) -> None:
    for key, amount in part.items():
        value = total.get(key, 0) + sign * amount
        if value:
            total[key] = value
        else:
            total.pop(key, None)


class Totals:
    """Sums by ClusterQueue and by LocalQueue; pending Workloads count in the LocalQueue alone.

    Which ClusterQueue a pending Workload waits for depends on the LocalQueue object, which may
    come, go and come again.
    """

    def __init__(self) -> None:
        self.cluster_queues: dict[str, QueueTotals] = {}
        self.local_queues: dict[str, QueueTotals] = {}

    def add(self, holding: Holding, sign: int) -> None:
        """Add (1) or take away (-1) what a Workload holds."""
        _add_to(self.local_queues, holding.local_queue, holding, sign)
        if holding.cluster_queue:
            _add_to(self.cluster_queues, holding.cluster_queue, holding, sign)

    def add_excess(self, excess: Excess, sign: int) -> None:
        """Add (1) or take away (-1) what pods of one job take beyond what it was granted."""
        for queues, name in (
            (self.local_queues, excess.local_queue),
            (self.cluster_queues, excess.cluster_queue),
        ):
            if name:
                total = queues.setdefault(name, QueueTotals())
                total.add_excess(excess.amounts, sign)
                if total.empty:
                    del queues[name]

    def used(self) -> dict[str, dict[FlavorResource, int]]:
        """Quota in use by ClusterQueue, as a copy."""
        return {name: dict(total.reserved_quota) for name, total in self.cluster_queues.items()}


def _add_to(queues: dict[str, QueueTotals], name: str, holding: Holding, sign: int) -> None:
    total = queues.setdefault(name, QueueTotals())
    total.add(holding, sign)
    if total.empty:
        del queues[name]
