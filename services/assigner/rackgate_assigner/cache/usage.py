"""Usage of quota and topologies by Workloads, and the sums by queue.

`workload_usage` derives the usage of one Workload only from its own row (and an assumed
assignment). `Totals` adds usages up by ClusterQueue and LocalQueue as they change, so no sum is
ever computed from scratch.

A Workload says how many of its pods are done (`status.reclaimablePods`), not which. Their domains
are known once all others are bound: then the capacity of every unused pod is free again. Until then
the whole assignment stays charged (`usage_without_done_pods`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from rackgate.api.names import PendingReason
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.cache.pods.bound_pods import BoundPods
from rackgate_assigner.quota.queues import FlavorInfo, FlavorResource
from rackgate_assigner.workload.decisions import Assignment
from rackgate_assigner.workload.info import (
    HOST_LEVELS,
    Charge,
    WorkloadInfo,
    quota_usage,
    remaining_pods,
    topology_charges,
)

Key = TypeVar("Key", str, FlavorResource)

# The reason of a Workload that no cycle has considered yet.
NOT_EVALUATED: Final = PendingReason.PENDING_EVALUATION
# Of one that backs off after an eviction. Its condition says PendingEvaluation, and until when.
BACKING_OFF: Final = "BackingOff"


@dataclass(frozen=True, slots=True)
class WorkloadUsage:
    """Usage of one Workload, or why it is pending.

    Attributes:
        cluster_queue: "" while it holds nothing.
        pending: it is to be admitted.
        reason: why it is pending; see `PendingReason` and `BACKING_OFF`.
        admitted: it is admitted, not only reserved.
        quota: by flavor and resource.
        charges: of topologies.
        owner_uid: of the job whose pods the assignments cover.
        assignments: by PodSet name, one for each charge, also of pods that are done.
    """

    local_queue: str
    cluster_queue: str = ""
    pending: bool = False
    admitted: bool = False
    quota: Mapping[FlavorResource, int] = field(default_factory=dict)
    charges: tuple[Charge, ...] = ()
    owner_uid: str = ""
    assignments: Mapping[str, TopologyAssignment] = field(default_factory=dict)
    reason: str = ""

    @property
    def visible_to_others(self) -> tuple[object, ...]:
        """The fields that decisions about other Workloads depend on."""
        return self.cluster_queue, self.pending, self.quota, self.charges


def workload_usage(
    info: WorkloadInfo, assumed: Assignment | None, *, merged: bool = False, orphan: bool = False
) -> WorkloadUsage:
    """Usage of a Workload: as assumed while a write is open, else as the watch shows it.

    Args:
        info: the Workload.
        assumed: an assignment whose status write was not seen yet; also one that replaces another.
        merged: a slice whose parent counts its pods as its own.
        orphan: a slice whose parent is gone.
    """
    if merged:
        return WorkloadUsage(info.queue)
    assignment = info.reserved if assumed is None else assumed
    if orphan or assignment is None or info.finished:
        return _usage_without_quota(info)
    return WorkloadUsage(
        local_queue=info.queue,
        cluster_queue=assignment.cluster_queue,
        admitted=info.admitted or (info.reserved is None and not assignment.checks),
        quota=quota_usage(assignment, remaining_pods(info)),
        charges=topology_charges(info, assignment),
        owner_uid=info.owner_uid,
        assignments={
            part.name: part.topology for part in assignment.podsets if part.topology is not None
        },
    )


def _usage_without_quota(info: WorkloadInfo) -> WorkloadUsage:
    if not info.pending:
        return WorkloadUsage(info.queue)
    reason = BACKING_OFF if info.requeue_at else info.pending_reason or NOT_EVALUATED
    return WorkloadUsage(info.queue, pending=True, reason=reason)


@dataclass(frozen=True, slots=True)
class ExcessUsage:
    """Usage of the pods of one job beyond the admission of its Workload.

    Attributes:
        local_queue: `namespace/name`; "" when none is known.
        cluster_queue: the one that is charged.
        amounts: by flavor and resource; never zero.
    """

    local_queue: str
    cluster_queue: str
    amounts: Mapping[FlavorResource, int]


@dataclass(slots=True)
class QueueTotals:
    """Sums over the Workloads of one queue; amounts that are zero are left out.

    Attributes:
        pending_reasons: pending Workloads by reason.
    """

    reserving: int = 0
    admitted: int = 0
    reserved_quota: dict[FlavorResource, int] = field(default_factory=dict)
    admitted_quota: dict[FlavorResource, int] = field(default_factory=dict)
    pending_reasons: dict[str, int] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        """Number of pending Workloads."""
        return sum(self.pending_reasons.values())

    def add(self, usage: WorkloadUsage, sign: int) -> None:
        """Add (1) or subtract (-1) the usage of a Workload."""
        if not usage.cluster_queue:
            if usage.pending:
                _add(self.pending_reasons, {usage.reason: 1}, sign)
            return
        self.reserving += sign
        _add(self.reserved_quota, usage.quota, sign)
        if usage.admitted:
            self.admitted += sign
            _add(self.admitted_quota, usage.quota, sign)

    def add_excess_usage(self, amounts: Mapping[FlavorResource, int], sign: int) -> None:
        """Add (1) or subtract (-1) usage beyond admission."""
        _add(self.reserved_quota, amounts, sign)
        _add(self.admitted_quota, amounts, sign)

    @property
    def empty(self) -> bool:
        """Whether all counts are zero."""
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
    """Sums by ClusterQueue and by LocalQueue; pending Workloads count only in the LocalQueue.

    The ClusterQueue of a pending Workload depends on the LocalQueue object, which may be deleted
    and created again.

    Attributes:
        changed_cluster_queues: those whose sums changed since a reader cleared it.
    """

    def __init__(self) -> None:
        self.cluster_queues: dict[str, QueueTotals] = {}
        self.local_queues: dict[str, QueueTotals] = {}
        self.changed_cluster_queues: set[str] = set()

    def add(self, usage: WorkloadUsage, sign: int) -> None:
        """Add (1) or subtract (-1) the usage of a Workload."""
        _add_to(self.local_queues, usage.local_queue, usage, sign)
        if usage.cluster_queue:
            _add_to(self.cluster_queues, usage.cluster_queue, usage, sign)
            self.changed_cluster_queues.add(usage.cluster_queue)

    def add_excess_usage(self, excess: ExcessUsage, sign: int) -> None:
        """Add (1) or subtract (-1) usage of one job beyond admission."""
        self.changed_cluster_queues.add(excess.cluster_queue)
        for queues, name in (
            (self.local_queues, excess.local_queue),
            (self.cluster_queues, excess.cluster_queue),
        ):
            if name:
                total = queues.setdefault(name, QueueTotals())
                total.add_excess_usage(excess.amounts, sign)
                if total.empty:
                    del queues[name]

    def used(self) -> dict[str, dict[FlavorResource, int]]:
        """Quota in use by ClusterQueue, as a copy."""
        return {name: dict(total.reserved_quota) for name, total in self.cluster_queues.items()}


def _add_to(queues: dict[str, QueueTotals], name: str, usage: WorkloadUsage, sign: int) -> None:
    total = queues.setdefault(name, QueueTotals())
    total.add(usage, sign)
    if total.empty:
        del queues[name]


def assignment_without_done_pods(
    assignment: TopologyAssignment, left: int, present: Mapping[Domain, int]
) -> TopologyAssignment:
    """The remaining usage of an assignment.

    Args:
        assignment: as admitted.
        left: pods that are not done.
        present: pods that run in each of its domains.
    """
    done = assignment.count - left
    kept = tuple(
        (values, min(count, present.get(values, 0))) for values, count in assignment.domains
    )
    missing = assignment.count - sum(count for _, count in kept)
    if missing == 0 or missing > done:
        return assignment
    return TopologyAssignment(assignment.levels, tuple(pair for pair in kept if pair[1]))


def usage_without_done_pods(
    info: WorkloadInfo, usage: WorkloadUsage, pods: BoundPods
) -> WorkloadUsage:
    """Usage of a Workload without done pods; coverage in `pods` is up to date."""
    left = remaining_pods(info)
    charges = tuple(
        replace(
            charge,
            assignment=assignment_without_done_pods(
                assignment, left[podset], pods.present(info.key, podset)
            ),
        )
        if podset in left
        else charge
        for (podset, assignment), charge in zip(
            usage.assignments.items(), usage.charges, strict=True
        )
    )
    return replace(usage, charges=charges)


def covering_assignments(
    usage: WorkloadUsage, flavors: Mapping[str, FlavorInfo]
) -> dict[str, TopologyAssignment]:
    """Assignments by PodSet that are charged to a tree, so that their pods need not be.

    If the levels of a flavor have changed (its Topology was created again), an older assignment
    matches no leaf of the tree, and its pods are charged to their nodes instead.
    """
    pairs = zip(usage.assignments.items(), usage.charges, strict=True)
    return {
        podset: assignment
        for (podset, assignment), charge in pairs
        if _fits_tree(flavors.get(charge.flavor), assignment.levels)
    }


def _fits_tree(flavor: FlavorInfo | None, levels: tuple[str, ...]) -> bool:
    if flavor is None or not flavor.levels or levels[-1:] == HOST_LEVELS:
        return True
    return levels == flavor.levels
