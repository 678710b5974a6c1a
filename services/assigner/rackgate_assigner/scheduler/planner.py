"""The pending Workloads from one scheduling cycle to the next, and what a cycle has to look at.

A cycle looks at Workloads that changed, at those about which a decision is to be made again, and at
those that what was released may let in. What the cache recorded (`Changes`) is taken into the
pending Workloads (`pending_queues`) before each cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.changes import Changes
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.scheduler.cycle import pending_queues
from rackgate_assigner.scheduler.pending_queues import PendingQueues
from rackgate_assigner.workload.info import WorkloadInfo


class Planner:
    """Prepares the input of each cycle."""

    def __init__(self, cache: Cache) -> None:
        """Start without any pending Workload: the first cycle looks at all."""
        self._cache = cache
        self._queues: PendingQueues | None = None
        self._again: set[str] = set()
        self._wake: set[str] = set()
        # Workloads that changed and are not pending; in the first cycle all that are not.
        self.not_pending: list[str] = []

    def reset(self) -> None:
        """The next cycle looks at all pending Workloads."""
        self._queues = None

    @property
    def is_due(self) -> bool:
        """Whether the last cycle left something to decide."""
        return self._queues is None or self._queues.is_due

    def decide_again(self, key: str) -> None:
        """Decide about a Workload again: its write failed, or what held it up is over.

        If it holds quota, those that wait for its ClusterQueue are looked at.
        """
        self._again.add(key)

    def wake(self, cluster_queue: str) -> None:
        """A decision for a ClusterQueue was not carried out: others may fit there."""
        self._wake.add(cluster_queue)

    def prepare(self, is_skipped: Callable[[str], bool]) -> tuple[Snapshot, PendingQueues]:
        """The input of a cycle.

        Args:
            is_skipped: whether a Workload is left out until `decide_again`, by key.

        Returns:
            The state, with the pending Workloads whose eligibility is to be checked; and all other
            pending Workloads.
        """
        changes = self._cache.take_changes()
        again, self._again = self._again, set()
        wake, self._wake = changes.queues | self._wake, set()
        self.not_pending = []
        queues = self._queues
        if queues is None or changes.everything:
            snapshot = self._cache.snapshot()
            self._queues = queues = pending_queues(snapshot)
            pending = self._cache.pending_workload
            self.not_pending = [key for key in self._cache.workloads if pending(key) is None]
        else:
            snapshot = self._cache.snapshot(self._changed(queues, changes, again))
            for key in again:
                usage = self._cache.usages.get(key)
                if usage is not None and usage.cluster_queue:
                    wake.add(usage.cluster_queue)
            for name in wake:
                queues.wake_queue(name)
            for name in changes.flavors:
                queues.wake_flavor(name)
        for row in snapshot.pending:
            if is_skipped(row.key):
                queues.drop(row.key)
        snapshot.pending = [row for row in snapshot.pending if not is_skipped(row.key)]
        return snapshot, queues

    def _changed(
        self, queues: PendingQueues, changes: Changes, again: Collection[str]
    ) -> list[WorkloadInfo]:
        """Pending Workloads to check; those that are no longer pending are dropped."""
        found: list[WorkloadInfo] = []
        for key in changes.workloads.union(again):
            row = self._cache.pending_workload(key)
            if row is None:
                queues.drop(key)
                self.not_pending.append(key)
            else:
                found.append(row)
        for key in changes.refreshed - changes.workloads:
            row = self._cache.pending_workload(key)
            if row is not None:
                queues.refresh(row)
        return found
