"""The quota tree with the usage of now, and the Workloads that hold quota, for the scheduler.

Every change marks what it makes outdated; the updates compute that again, and nothing else. A
changed ClusterQueue or Cohort needs another tree, to which the sums of all queues are added again.

Invariant: after the updates everything equals what a new instance would have.
Complexity: linear in what changed, with the logarithm of the Workloads of a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from rackgate.api.timestamps import parse_rfc3339
from rackgate_assigner.cache.usage import QueueTotals, WorkloadUsage
from rackgate_assigner.quota.queues import ClusterQueueInfo, CohortInfo, FlavorResource
from rackgate_assigner.quota.running import RunningWorkload, RunningWorkloads
from rackgate_assigner.quota.tree import QuotaTree, cohort_circles
from rackgate_assigner.workload.info import WorkloadInfo, priority_of

# The watch does not show the reservation yet: it is newer than all others.
NEWEST: Final = float("inf")


class QuotaUsage:
    """Quota in use.

    Attributes:
        tree: with the usage of all Workloads, and of their pods beyond admission.
        running: Workloads that hold quota; slices count with their parents. Pods that end after
            their Workload released its quota are there as well (`ending_pods`).
    """

    def __init__(self) -> None:
        self.tree = QuotaTree()
        self.running = RunningWorkloads()
        self._charged: dict[str, dict[FlavorResource, int]] = {}
        self._is_tree_outdated = self._is_running_outdated = True
        self._outdated: set[str] = set()
        self._ending: dict[str, RunningWorkload] = {}

    def invalidate(self) -> None:
        """Whoever changed it failed to take the change back: everything is computed again."""
        self._is_tree_outdated = self._is_running_outdated = True

    def mark_quota(self) -> None:
        """The quota of a ClusterQueue or Cohort changed, or whether it is active."""
        self._is_tree_outdated = True

    def mark_workloads(self, keys: Iterable[str]) -> None:
        """These Workloads, which are no slices, or usage of them or their slices, changed."""
        self._outdated.update(keys)

    def forget(self, key: str) -> None:
        """A Workload is deleted. A standby updates nothing, so it must not keep the mark."""
        if key not in self.running:
            self._outdated.discard(key)

    def update_tree(
        self, build: Callable[[], QuotaTree], totals: Mapping[str, QueueTotals], changed: set[str]
    ) -> None:
        """Update the tree.

        Args:
            build: makes the tree without usage.
            totals: sums by ClusterQueue.
            changed: ClusterQueues whose sums changed since the last call; cleared.
        """
        names: Iterable[str] = changed
        if self._is_tree_outdated:
            self.tree, self._charged, names = build(), {}, totals
            self._is_tree_outdated = False
        for name in names:
            node = self.tree.queues.get(name)
            if node is None:
                continue  # the ClusterQueue is gone: nothing can be admitted next to its Workloads
            node.remove(self._charged.pop(name, {}))
            if name in totals:
                self._charged[name] = dict(totals[name].reserved_quota)
                node.add(self._charged[name])
        changed.clear()

    def update_running(
        self, keys: Collection[str], read: Callable[[str], RunningWorkload | None]
    ) -> None:
        """Update the Workloads.

        Args:
            keys: of all Workloads.
            read: returns what one holds now.
        """
        if self._is_running_outdated:
            self._is_running_outdated = False
            self.running, self._outdated, self._ending = RunningWorkloads(), set(keys), {}
        for key in self._outdated:
            if key in self.running:
                self.running.remove(key)
            if (found := read(key)) is not None:
                self.running.add(found)
        self._outdated.clear()

    def update_ending(self, ending: Iterable[RunningWorkload]) -> None:
        """Replace the Workloads that stand for ending pods; call it after `update_running`."""
        before, self._ending = self._ending, {found.key: found for found in ending}
        for key, workload in before.items():
            if self._ending.get(key) is not workload:
                self.running.remove(key)
        for key, workload in self._ending.items():
            if before.get(key) is not workload:
                self.running.add(workload)


def shared_quota_tree(
    queues: Mapping[str, ClusterQueueInfo],
    cohorts: Mapping[str, CohortInfo],
    stopped: Collection[str],
) -> QuotaTree:
    """The tree of all ClusterQueues; Cohorts that are above themselves share nothing."""
    circles = cohort_circles(cohorts)
    rows = (replace(row, parent="") if row.name in circles else row for row in cohorts.values())
    return QuotaTree.build(queues.values(), rows, stopped)


def running_workload(
    info: WorkloadInfo, usages: Sequence[WorkloadUsage], priorities: Mapping[str, int]
) -> RunningWorkload | None:
    """A Workload and its slices as one; None if it holds no quota.

    Args:
        info: the Workload, not a slice.
        usages: its own first, then those of its slices.
        priorities: WorkloadPriorityClass name to value.
    """
    own = usages[0]
    if not own.cluster_queue:
        return None
    quota: dict[FlavorResource, int] = {}
    for usage in usages:
        for pair, amount in usage.quota.items():
            quota[pair] = quota.get(pair, 0) + amount
    charges = tuple(charge for usage in usages for charge in usage.charges)
    return RunningWorkload(
        key=info.key,
        uid=info.uid,
        cluster_queue=own.cluster_queue,
        priority=priority_of(info, priorities),
        queue_timestamp=seconds(info.queue_timestamp),
        reserved_at=seconds(info.reserved_at) if info.reserved_at else NEWEST,
        evicted=info.evicted or info.deleting,
        usage=quota,
        charges=charges,
        pods=max(pod_count(info), sum(charge.assignment.count for charge in charges)),
        ends_at=seconds(info.admitted_at) + info.execution_time_s if info.admitted_at else inf,
        lasts_s=0.0 if info.finished else info.execution_time_s,
        local_queue=own.local_queue,
        was_preempted=info.was_preempted,
        across=info.across,
    )


def pod_count(info: WorkloadInfo) -> int:
    """Pods of a Workload: those admitted, or requested by one whose admission is not seen yet."""
    if info.reserved is not None:
        return sum(part.count for part in info.reserved.podsets)
    return sum(podset.request.count for podset in info.podsets)


def seconds(text: str) -> float:
    """A timestamp of the API server in seconds; 0 if it is none."""
    try:
        return parse_rfc3339(text).timestamp()
    except ValueError:
        return 0.0
