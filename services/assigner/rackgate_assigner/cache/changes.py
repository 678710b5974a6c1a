"""What has changed in the cache since the last plan, as far as it may let a pending Workload in.

A plan leaves nothing that could be admitted. So the next one need only decide about Workloads
that changed, and about those that wait for something that was released. More usage lets no one in,
and is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Changes:
    """Changes since the last plan.

    Attributes:
        everything: a queue, flavor, priority class or another object changed that many Workloads
            depend on; then nothing else is recorded.
        queues: ClusterQueues in which usage was released, or a Workload that may be preempted
            changed.
        flavors: flavors in whose topology capacity was released, or nodes changed.
        workloads: keys of pending Workloads that are new, changed, or no longer pending, and of
            slices whose family changed.
        refreshed: keys of pending Workloads of which only fields changed that decide nothing, such
            as conditions.
    """

    everything: bool = False
    queues: set[str] = field(default_factory=set)
    flavors: set[str] = field(default_factory=set)
    workloads: set[str] = field(default_factory=set)
    refreshed: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        """Whether anything is to be decided again."""
        return bool(self.everything or self.queues or self.flavors or self.workloads)

    def add(
        self,
        *,
        queues: Iterable[str] = (),
        flavors: Iterable[str] = (),
        workloads: Iterable[str] = (),
        refreshed: Iterable[str] = (),
    ) -> None:
        """Record changes. A standby takes none, so names do not pile up once everything changed."""
        if not self.everything:
            self.queues.update(queues)
            self.flavors.update(flavors)
            self.workloads.update(workloads)
            self.refreshed.update(refreshed)

    def add_everything(self) -> None:
        """Record that everything may have changed."""
        self.take()
        self.everything = True

    def take(self) -> Changes:
        """Return all, and start again with none."""
        taken = Changes(self.everything, self.queues, self.flavors, self.workloads, self.refreshed)
        self.everything = False
        self.queues, self.flavors, self.workloads, self.refreshed = set(), set(), set(), set()
        return taken
