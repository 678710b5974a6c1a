"""The state that scheduling decides from: quota tree, Workloads that hold quota, and topologies.

`QuotaState` is changed in two ways. `add`, `remove` and `replace` are for what happened: a Workload
was admitted, is gone, or is being evicted. `release` and `restore`, `without`, and `charge` are for
what a decision tries: whoever calls them takes the change back. `version` counts what happened.

Most of what is tried only reads quota, and much of it is taken back before anything reads domains.
So a charge is noted, and one that takes back another cancels it; what is left is charged when the
topologies are read.

Invariant: after each decision, usage is that of the Workloads in `running`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

from rackgate.api.names import PROVISIONING_CONTROLLER
from rackgate.features import DEFAULTS, Features
from rackgate_assigner.cache.flavor_topologies import FlavorTopologies
from rackgate_assigner.quota.admission_fair_sharing import LocalQueueUsage
from rackgate_assigner.quota.queues import CheckInfo, ClusterQueueInfo, FlavorInfo, Quota
from rackgate_assigner.quota.running import RunningWorkload, RunningWorkloads
from rackgate_assigner.quota.tree import QuotaNode, QuotaTree
from rackgate_assigner.workload.info import Charge

# Called with a flavor's name; returns a context for the duration of one placement in it.
Timing: TypeAlias = Callable[[str], AbstractContextManager[object]]


def no_timing(_flavor: str) -> AbstractContextManager[object]:
    """A `Timing` that measures nothing."""
    return nullcontext()


class QuotaState:
    """Queues, flavors, and what is in use.

    Attributes:
        queues: by name; each is in the tree.
        flavors: by name.
        fair_sharing: strategies of preemption in their order; None: fair sharing is off.
        local_queue_usage: orders LocalQueues; None: admission fair sharing is off.
        always_asks_empty: whether each failed placement is tried on an empty cluster, as in Kueue,
            also where only the kind of requeue depends on it.
        timing: measures each placement; decisions do not depend on it.
    """

    def __init__(
        self,
        tree: QuotaTree,
        queues: Mapping[str, ClusterQueueInfo],
        flavors: Mapping[str, FlavorInfo],
        topologies: FlavorTopologies,
        running: RunningWorkloads | None = None,
        *,
        fair_sharing: tuple[str, ...] | None = None,
        checks: Mapping[str, CheckInfo] | None = None,
        local_queue_usage: LocalQueueUsage | None = None,
        features: Features = DEFAULTS,
        always_asks_empty: bool = True,
        timing: Timing = no_timing,
    ) -> None:
        self.tree, self.queues, self.flavors = tree, queues, flavors
        self._topologies, self._checks = topologies, checks or {}
        # Charges that are noted only, with how often, by their identity.
        self._noted: dict[int, tuple[Charge, int]] = {}
        self.fair_sharing, self.features, self.timing = fair_sharing, features, timing
        self.always_asks_empty = always_asks_empty
        self.local_queue_usage = local_queue_usage
        self.running = RunningWorkloads() if running is None else running
        self._quota_changes: dict[QuotaNode, int] = {}
        self._domain_changes = 0

    @property
    def topologies(self) -> FlavorTopologies:
        """The trees, with all charges; read them again after another charge."""
        if self._noted:
            noted, self._noted = self._noted, {}
            for charge, times in noted.values():
                for _ in range(abs(times)):
                    self._topologies.charge(charge, 1 if times > 0 else -1)
        return self._topologies

    def node_of(self, workload: RunningWorkload) -> QuotaNode:
        """The ClusterQueue of a Workload that holds quota."""
        return self.tree.queues[workload.cluster_queue]

    def provisions_nodes(self, queue: ClusterQueueInfo) -> bool:
        """Whether a check of a ClusterQueue provides the nodes, so that they need not exist."""
        found = (self._checks.get(rule.name) for rule in queue.checks)
        return any(check and check.controller == PROVISIONING_CONTROLLER for check in found)

    def add(self, workload: RunningWorkload) -> None:
        """A Workload holds quota now.

        Raises:
            KeyError: its ClusterQueue does not exist.
            ValueError: it held quota before.
        """
        self._add(workload)
        self.note_change(workload.cluster_queue, domains=bool(workload.charges))

    def remove(self, key: str) -> RunningWorkload:
        """A Workload holds quota no longer.

        Raises:
            KeyError: it did not.
        """
        workload = self._remove(key)
        self.note_change(workload.cluster_queue, domains=bool(workload.charges))
        return workload

    def replace(self, workload: RunningWorkload) -> None:
        """A Workload holds the same as before, but is being evicted now, or no longer.

        Raises:
            KeyError: it holds nothing.
        """
        self.running.remove(workload.key)
        self.running.add(workload)
        self.note_change(workload.cluster_queue, domains=False)

    def note_change(self, queue: str, *, domains: bool) -> None:
        """What a ClusterQueue uses has changed, and with `domains` also what is free of domains."""
        root = self.tree.queues[queue].root
        self._quota_changes[root] = self._quota_changes.get(root, 0) + 1
        self._domain_changes += domains

    def version(self, queue: str) -> tuple[int, int]:
        """The same as long as nothing has happened that a decision for a ClusterQueue reads."""
        return self._quota_changes.get(self.tree.queues[queue].root, 0), self._domain_changes

    def _add(self, workload: RunningWorkload) -> None:
        node = self.node_of(workload)
        self.running.add(workload)
        node.add(workload.usage)
        self.charge(workload.charges, 1)

    def _remove(self, key: str) -> RunningWorkload:
        workload = self.running.remove(key)
        self.node_of(workload).remove(workload.usage)
        self.charge(workload.charges, -1)
        return workload

    def release(self, workload: RunningWorkload) -> None:
        """Leave out its usage for a while; it stays in `running`."""
        self.node_of(workload).remove(workload.usage)
        self.charge(workload.charges, -1)

    def restore(self, workload: RunningWorkload) -> None:
        """The inverse of `release`."""
        self.node_of(workload).add(workload.usage)
        self.charge(workload.charges, 1)

    def charge(self, charges: Iterable[Charge], sign: int) -> None:
        """Use (1) or release (-1) room of topologies."""
        noted = self._noted
        for charge in charges:
            _, before = noted.get(id(charge), (charge, 0))
            if before + sign:
                noted[id(charge)] = charge, before + sign
            else:
                del noted[id(charge)]

    @contextmanager
    def released(self, workloads: Iterable[RunningWorkload]) -> Iterator[None]:
        """Without the usage of these Workloads, which stay in `running`."""
        gone = list(workloads)
        for workload in gone:
            self.release(workload)
        try:
            yield
        finally:
            for workload in reversed(gone):
                self.restore(workload)

    @contextmanager
    def without(self, workloads: Iterable[RunningWorkload]) -> Iterator[None]:
        """As if these Workloads were gone."""
        gone = [self._remove(workload.key) for workload in workloads]
        try:
            yield
        finally:
            for workload in reversed(gone):
                self._add(workload)

    def has_room(self, node: QuotaNode, usage: Quota) -> bool:
        """Whether quota is available for a usage of a ClusterQueue."""
        return all(amount <= 0 or amount <= node.available(pair) for pair, amount in usage.items())

    def domains_have_room(self, charges: Iterable[Charge]) -> bool:
        """Whether every domain still holds the pods that are assigned to it.

        Only what the pods request counts: as in Kueue, not the number of pods of a node.
        """
        needed: dict[tuple[str, int], dict[str, int]] = {}
        for charge in charges:
            topology = self.topologies.by_flavor.get(charge.flavor)
            if topology is None:
                return False
            for values, count in charge.assignment.domains:
                leaf = topology.tree.leaf_of_values(values)
                if leaf is None:
                    return False
                total = needed.setdefault((charge.flavor, leaf), {})
                for resource, amount in charge.requests.items():
                    total[resource] = total.get(resource, 0) + amount * count
        for (flavor, leaf), total in needed.items():
            capacity = self.topologies.by_flavor[flavor].capacity
            free, _ = capacity.free_and_usage()
            for resource, amount in total.items():
                row = capacity.rows.get(resource)
                if amount > 0 and amount > (0 if row is None else int(free[row, leaf])):
                    return False
        return True
