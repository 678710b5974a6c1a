"""Quota: what Workloads hold against what their queues grant, and against what queues say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from rackgate_cli.checker.cluster import Cluster
from rackgate_cli.checker.rows import Counts, QueueRow, WorkloadRow
from rackgate_cli.checker.rules import Breach


@dataclass(slots=True)
class _Held:
    """What the Workloads of one queue hold and ask.

    Attributes:
        changed_at: the latest change of one of them.
        admitted_at: the latest admission.
    """

    pending: int = 0
    reserving: int = 0
    admitted: int = 0
    reservation: Counter[tuple[str, str]] = field(default_factory=Counter)
    usage: Counter[tuple[str, str]] = field(default_factory=Counter)
    changed_at: float = 0.0
    admitted_at: float = 0.0

    def add(self, workload: WorkloadRow) -> None:
        self.changed_at = max(self.changed_at, workload.changed_at)
        if not workload.holds:
            self.pending += workload.waiting
            return
        self.reserving += 1
        self.admitted += workload.admitted
        # The queue's own time is the API server's: a condition's may be another machine's.
        self.admitted_at = max(self.admitted_at, workload.placed_at or workload.admitted_at)
        for podset in workload.podsets:
            for resource, flavor in podset.flavors.items():
                amount = podset.held(resource)
                self.reservation[flavor, resource] += amount
                if workload.admitted:
                    self.usage[flavor, resource] += amount


def _broken(workload: WorkloadRow) -> bool:
    """Whether its admission cannot be read: such a Workload is counted nowhere."""
    return any(podset.problem for podset in workload.podsets)


def counted(cluster: Cluster) -> Iterator[WorkloadRow]:
    """Workloads that count.

    A slice does not once it is settled in its parent, which holds it now, nor once that is gone.
    """
    settled = {one.uid: {uid for uid, _ in one.folded} for one in cluster.workloads}
    for workload in cluster.workloads:
        over = workload.is_slice and (
            workload.owner not in settled or workload.uid in settled[workload.owner]
        )
        if not (over or _broken(workload)):
            yield workload


def nominal(cluster: Cluster) -> Iterator[Breach]:
    """Usage within nominal quota; queues of one cohort share theirs.

    A quota that was lowered after the last admission takes nothing back, so it is no breach.
    """
    held: dict[str, _Held] = defaultdict(_Held)
    for workload in counted(cluster):
        if workload.holds:
            held[workload.cluster_queue].add(workload)
    shares: dict[str, list[QueueRow]] = defaultdict(list)
    for queue in cluster.cluster_queues:
        shares[queue.cohort or f"={queue.key}"].append(queue)
    for queues in shares.values():
        quota: Counter[tuple[str, str]] = Counter()
        used: Counter[tuple[str, str]] = Counter()
        for queue in queues:
            quota.update(queue.nominal)
            used.update(held[queue.key].reservation)
        if max(queue.spec_at for queue in queues) > max(held[q.key].admitted_at for q in queues):
            continue
        subject = "+".join(sorted(queue.key for queue in queues))
        for (flavor, resource), amount in sorted(used.items()):
            if amount > quota[flavor, resource]:
                yield Breach(
                    "over-quota",
                    f"{subject} {flavor}/{resource}",
                    f"{amount} in use, the nominal quota is {quota[flavor, resource]}",
                )


def statuses(cluster: Cluster) -> Iterator[Breach]:
    """The status of every queue counts what its Workloads hold and ask."""
    local: dict[str, _Held] = defaultdict(_Held)
    whole: dict[str, _Held] = defaultdict(_Held)
    feeds = {queue.key: queue.cluster_queue for queue in cluster.local_queues}
    for workload in counted(cluster):
        local[workload.queue].add(workload)
        # A Workload that waits counts where its LocalQueue leads, others where they were admitted.
        owner = workload.cluster_queue if workload.holds else feeds.get(workload.queue)
        if owner is not None:
            whole[owner].add(workload)
    for queue in cluster.local_queues:
        yield from _differences("local-queue-counts", queue, local[queue.key])
    for queue in cluster.cluster_queues:
        yield from _differences("queue-counts", queue, whole[queue.key])


def _differences(rule: str, queue: QueueRow, held: _Held) -> Iterator[Breach]:
    found = list(_unequal(queue.counts, held))
    if found and not queue.deleting:
        since = max(held.changed_at, queue.spec_at)
        yield Breach(rule, queue.key, "; ".join(found), since)


def _unequal(said: Counts, held: _Held) -> Iterator[str]:
    pairs = (
        ("pendingWorkloads", said.pending, held.pending),
        ("reservingWorkloads", said.reserving, held.reserving),
        ("admittedWorkloads", said.admitted, held.admitted),
    )
    for name, says, counted in pairs:
        if says != counted:
            yield f"{name} says {says}, {counted} are there"
    for name, totals, amounts in (
        ("flavorsReservation", said.reservation, held.reservation),
        ("flavorsUsage", said.usage, held.usage),
    ):
        for (flavor, resource), total in sorted(totals.items()):
            if total != amounts[flavor, resource]:
                counted = amounts[flavor, resource]
                yield f"{name} of {flavor}/{resource} says {total}, {counted} is held"
