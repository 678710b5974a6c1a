"""Admitted usage and running pods against the quota and the status of queues."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rackgate_invariants.cluster import Cluster, ObjectGroup
from rackgate_invariants.rows.rows import Counts, QueueRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.rules.job_usage import JobUsage, reserved_by
from rackgate_invariants.rules.quota_tree import Total, quota_nodes


@dataclass(slots=True)
class _QueueTotals:
    """What the Workloads of one queue reserve, and what running pods use beyond it.

    Attributes:
        least: what pods that are not being deleted use beyond their Workloads' quota.
        most: what all running pods use beyond it.
        admitted_for_certain: the share of `least` that belongs to an admitted job.
        changed_at: the latest change of one of them.
        reserved_at: when the last of them reserved quota.
    """

    pending: int = 0
    reserving: int = 0
    admitted: int = 0
    reservation: Total = field(default_factory=Counter)
    usage: Total = field(default_factory=Counter)
    least: Total = field(default_factory=Counter)
    most: Total = field(default_factory=Counter)
    admitted_for_certain: Total = field(default_factory=Counter)
    changed_at: float = 0.0
    reserved_at: float = 0.0

    def add(self, workload: WorkloadRow) -> None:
        self.changed_at = max(self.changed_at, workload.changed_at)
        if not workload.holds:
            self.pending += workload.waiting
            return
        self.reserving += 1
        self.admitted += workload.admitted
        # A replacement or a resize writes the admission again, and the assigner's clock may be
        # ahead of the API server's: what is late by both reserved quota late.
        reserved_at = min(workload.placed_at or workload.reserved_at, workload.reserved_at)
        self.reserved_at = max(self.reserved_at, reserved_at)
        amounts = reserved_by(workload)
        self.reservation.update(amounts)
        if workload.admitted:
            self.usage.update(amounts)

    def add_job_usage(self, job_usage: JobUsage) -> None:
        if job_usage.running_usage - job_usage.reserved_usage:
            self.changed_at = max(self.changed_at, job_usage.bound_at)
        self.least.update(job_usage.non_terminating - job_usage.reserved_usage)
        self.most.update(job_usage.running_usage - job_usage.reserved_usage)
        if job_usage.admitted:
            self.admitted_for_certain.update(job_usage.non_terminating - job_usage.reserved_usage)


def counted_workloads(cluster: Cluster, groups: Mapping[str, ObjectGroup]) -> Iterator[WorkloadRow]:
    """Workloads that count.

    Left out are slices that are merged into their parent, which has their quota now, or whose
    parent is gone, and Workloads of a job that is gone (`ObjectGroup.is_releasing_quota`).
    """
    left = {
        workload.uid
        for group in groups.values()
        if group.job is None
        for workload in group.workloads.values()
        if group.is_releasing_quota(workload)
    }
    every = [workload for workload in cluster.workloads if workload.uid not in left]
    merged_uids = {one.uid: {uid for uid, _ in one.merged_slices} for one in every}
    for workload in every:
        over = workload.is_slice and (
            workload.owner not in merged_uids or workload.uid in merged_uids[workload.owner]
        )
        # An admission that cannot be decoded is not counted.
        if not (over or any(podset.problem for podset in workload.podsets)):
            yield workload


def check_quota(
    cluster: Cluster, groups: Mapping[str, ObjectGroup], job_usages: Iterable[JobUsage]
) -> Iterator[Breach]:
    """`over-quota` and `pods-over-quota`, for each node of the trees of queues and Cohorts.

    A quota that was reduced after the last admission, or shortly before it, is no breach: the
    assigner may learn it late, and pods may use what was admitted before.
    """
    held: dict[str, _QueueTotals] = defaultdict(_QueueTotals)
    for workload in counted_workloads(cluster, groups):
        if workload.holds:
            held[workload.cluster_queue].add(workload)
    live: dict[str, Total] = defaultdict(Counter)
    for job_usage in job_usages:
        live[job_usage.cluster_queue].update(job_usage.non_terminating)
    reserved = defaultdict(Counter, {key: totals.reservation for key, totals in held.items()})
    for node in quota_nodes(cluster.cluster_queues, cluster.cohorts):
        queues = [queue.key for queue in node.queues()]
        if not queues:
            continue
        lowered_at = node.lowered_at()
        pairs = {pair for key in queues for pair in (*reserved[key], *live[key])}
        for pair in sorted(pairs):
            most = node.limit(pair)
            if most is None:
                continue
            named = f"{node.subject} {pair[0]}/{pair[1]}"
            used, running = node.usage(pair, reserved), node.usage(pair, live)
            users = [queue.key for queue in node.users(pair, reserved)]
            lowered = lowered_at > max([held[key].reserved_at for key in users], default=0.0)
            if used > most and not lowered:
                yield Breach("over-quota", named, f"{used} in use, the quota is {most}")
            if running > (max(most, used) if lowered else most):
                found = f"running pods use {running}, the quota is {most}"
                yield Breach("pods-over-quota", named, found)


def check_uncharged(cluster: Cluster, job_usages: Iterable[JobUsage]) -> Iterator[Breach]:
    """`uncharged`."""
    running_usage: dict[str, Total] = defaultdict(Counter)
    bound_at: dict[str, float] = defaultdict(float)
    for job_usage in job_usages:
        name = job_usage.cluster_queue
        running_usage[name].update(job_usage.running_usage)
        bound_at[name] = max(bound_at[name], job_usage.bound_at)
    for queue in cluster.cluster_queues:
        for pair, amount in sorted(running_usage[queue.key].items()):
            reported = queue.counts.reservation.get(pair, 0)
            if amount > reported:
                found = f"running pods use {amount}, {reported} is charged"
                since = max(bound_at[queue.key], queue.spec_at)
                yield Breach("uncharged", f"{queue.key} {pair[0]}/{pair[1]}", found, since)


def check_queue_statuses(
    cluster: Cluster, groups: Mapping[str, ObjectGroup], job_usages: Iterable[JobUsage]
) -> Iterator[Breach]:
    """`queue-counts` and `local-queue-counts`."""
    local: dict[str, _QueueTotals] = defaultdict(_QueueTotals)
    whole: dict[str, _QueueTotals] = defaultdict(_QueueTotals)
    cluster_queue_of = {queue.key: queue.cluster_queue for queue in cluster.local_queues}
    for workload in counted_workloads(cluster, groups):
        local[workload.queue].add(workload)
        # A pending Workload counts for the queue of its LocalQueue, others where they were
        # admitted.
        owner = workload.cluster_queue if workload.holds else cluster_queue_of.get(workload.queue)
        if owner is not None:
            whole[owner].add(workload)
    for job_usage in job_usages:
        local[job_usage.local_queue].add_job_usage(job_usage)
        whole[job_usage.cluster_queue].add_job_usage(job_usage)
    for queue in cluster.local_queues:
        yield from _differences("local-queue-counts", queue, local[queue.key])
    for queue in cluster.cluster_queues:
        yield from _differences("queue-counts", queue, whole[queue.key])


def _differences(rule: str, queue: QueueRow, held: _QueueTotals) -> Iterator[Breach]:
    found = list(_unequal(queue.counts, held))
    if found and not queue.deleting:
        since = max(held.changed_at, queue.spec_at)
        yield Breach(rule, queue.key, "; ".join(found), since)


def _unequal(reported: Counts, held: _QueueTotals) -> Iterator[str]:
    pairs = (
        ("pendingWorkloads", reported.pending, held.pending),
        ("reservingWorkloads", reported.reserving, held.reserving),
        ("admittedWorkloads", reported.admitted, held.admitted),
    )
    for name, reported_count, count in pairs:
        if reported_count != count:
            yield f"{name} says {reported_count}, {count} exist"
    for name, totals, reserved, least in (
        ("flavorsReservation", reported.reservation, held.reservation, held.least),
        ("flavorsUsage", reported.usage, held.usage, held.admitted_for_certain),
    ):
        yield from _other_totals(name, totals, reserved, least, held.most)


def _other_totals(
    name: str,
    reported: Mapping[tuple[str, str], int],
    reserved: Total,
    least: Total,
    most: Total,
) -> Iterator[str]:
    """Usage beyond what is reserved, without and with the pods that are being deleted.

    Whether those count depends on a feature gate (`RackgateHoldQuotaForTerminatingPods`).
    """
    for pair, total in sorted(reported.items()):
        low, high = reserved[pair] + least[pair], reserved[pair] + most[pair]
        if not low <= total <= high:
            text = f"{high} is reserved" if low == high else f"{low} to {high} is reserved"
            yield f"{name} of {pair[0]}/{pair[1]} says {total}, {text}"
