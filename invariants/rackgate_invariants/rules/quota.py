"""Quota: what was granted and what lives against what queues offer, and against what they say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rackgate_invariants.cluster import Cluster, Group
from rackgate_invariants.rows.rows import Counts, QueueRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.rules.charges import Account, granted_to

Total = Counter[tuple[str, str]]


@dataclass(slots=True)
class _Held:
    """What the Workloads of one queue hold and ask, and what lives beyond it.

    Attributes:
        least: what pods that are not being deleted take beyond what their job was granted.
        most: what all pods that live take beyond it.
        lasting: of `least` what counts as admitted for certain.
        changed_at: the latest change of one of them.
        admitted_at: the latest admission.
    """

    pending: int = 0
    reserving: int = 0
    admitted: int = 0
    reservation: Total = field(default_factory=Counter)
    usage: Total = field(default_factory=Counter)
    least: Total = field(default_factory=Counter)
    most: Total = field(default_factory=Counter)
    lasting: Total = field(default_factory=Counter)
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
        amounts = granted_to(workload)
        self.reservation.update(amounts)
        if workload.admitted:
            self.usage.update(amounts)

    def add_account(self, account: Account) -> None:
        if account.living - account.granted:
            self.changed_at = max(self.changed_at, account.bound_at)
        self.least.update(account.staying - account.granted)
        self.most.update(account.living - account.granted)
        if account.admitted:
            self.lasting.update(account.staying - account.granted)


def _broken(workload: WorkloadRow) -> bool:
    """Whether its admission cannot be read: such a Workload is counted nowhere."""
    return any(podset.problem for podset in workload.podsets)


def counted(cluster: Cluster, groups: Mapping[str, Group]) -> Iterator[WorkloadRow]:
    """Workloads that count.

    A slice does not once it is settled in its parent, which holds it now, nor once that is gone;
    nor what a job left that is gone (`Group.gave_up`).
    """
    left = {
        workload.uid
        for group in groups.values()
        if group.job is None
        for workload in group.workloads.values()
        if group.gave_up(workload)
    }
    every = [workload for workload in cluster.workloads if workload.uid not in left]
    settled = {one.uid: {uid for uid, _ in one.folded} for one in every}
    for workload in every:
        over = workload.is_slice and (
            workload.owner not in settled or workload.uid in settled[workload.owner]
        )
        if not (over or _broken(workload)):
            yield workload


def nominal(
    cluster: Cluster, groups: Mapping[str, Group], accounts: Iterable[Account]
) -> Iterator[Breach]:
    """What is granted, and what lives, within nominal quota; queues of one cohort share theirs.

    A quota that was lowered after the last admission takes nothing back, so it is no breach: pods
    may stay within what was granted before.
    """
    held: dict[str, _Held] = defaultdict(_Held)
    for workload in counted(cluster, groups):
        if workload.holds:
            held[workload.cluster_queue].add(workload)
    staying: dict[str, Total] = defaultdict(Counter)
    for account in accounts:
        staying[account.cluster_queue].update(account.staying)
    for queues in _shares(cluster.cluster_queues):
        quota, used, alive = Counter[tuple[str, str]](), Total(), Total()
        for queue in queues:
            quota.update(queue.nominal)
            used.update(held[queue.key].reservation)
            alive.update(staying[queue.key])
        lowered = max(q.spec_at for q in queues) > max(held[q.key].admitted_at for q in queues)
        subject = "+".join(sorted(queue.key for queue in queues))
        for pair in sorted({*used, *alive}):
            named, most = f"{subject} {pair[0]}/{pair[1]}", quota[pair]
            if used[pair] > most and not lowered:
                found = f"{used[pair]} in use, the nominal quota is {most}"
                yield Breach("over-quota", named, found)
            if alive[pair] > (max(most, used[pair]) if lowered else most):
                found = f"pods that live take {alive[pair]}, the nominal quota is {most}"
                yield Breach("pods-over-quota", named, found)


def _shares(queues: Iterable[QueueRow]) -> Iterable[list[QueueRow]]:
    found: dict[str, list[QueueRow]] = defaultdict(list)
    for queue in queues:
        found[queue.cohort or f"={queue.key}"].append(queue)
    return found.values()


def uncharged(cluster: Cluster, accounts: Iterable[Account]) -> Iterator[Breach]:
    """No queue says that less is in use than the pods of its jobs take."""
    living: dict[str, Total] = defaultdict(Counter)
    bound_at: dict[str, float] = defaultdict(float)
    for account in accounts:
        name = account.cluster_queue
        living[name].update(account.living)
        bound_at[name] = max(bound_at[name], account.bound_at)
    for queue in cluster.cluster_queues:
        for pair, amount in sorted(living[queue.key].items()):
            said = queue.counts.reservation.get(pair, 0)
            if amount > said:
                found = f"pods that live take {amount}, {said} is charged"
                since = max(bound_at[queue.key], queue.spec_at)
                yield Breach("uncharged", f"{queue.key} {pair[0]}/{pair[1]}", found, since)


def statuses(
    cluster: Cluster, groups: Mapping[str, Group], accounts: Iterable[Account]
) -> Iterator[Breach]:
    """The status of every queue counts what its Workloads hold and ask, and what lives beyond."""
    local: dict[str, _Held] = defaultdict(_Held)
    whole: dict[str, _Held] = defaultdict(_Held)
    feeds = {queue.key: queue.cluster_queue for queue in cluster.local_queues}
    for workload in counted(cluster, groups):
        local[workload.queue].add(workload)
        # A Workload that waits counts where its LocalQueue leads, others where they were admitted.
        owner = workload.cluster_queue if workload.holds else feeds.get(workload.queue)
        if owner is not None:
            whole[owner].add(workload)
    for account in accounts:
        local[account.local_queue].add_account(account)
        whole[account.cluster_queue].add_account(account)
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
    for name, says, counted_ in pairs:
        if says != counted_:
            yield f"{name} says {says}, {counted_} are there"
    for name, totals, granted, least in (
        ("flavorsReservation", said.reservation, held.reservation, held.least),
        ("flavorsUsage", said.usage, held.usage, held.lasting),
    ):
        yield from _other_totals(name, totals, granted, least, held.most)


def _other_totals(
    name: str,
    said: Mapping[tuple[str, str], int],
    granted: Total,
    least: Total,
    most: Total,
) -> Iterator[str]:
    """Totals that are neither what is held nor, while pods are being deleted, near it.

    Whether those count is a setting (`RackgateHoldQuotaForTerminatingPods`).
    """
    for pair, total in sorted(said.items()):
        low, high = granted[pair] + least[pair], granted[pair] + most[pair]
        if not low <= total <= high:
            text = f"{high} is held" if low == high else f"{low} to {high} is held"
            yield f"{name} of {pair[0]}/{pair[1]} says {total}, {text}"
