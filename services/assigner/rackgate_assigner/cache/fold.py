"""Fold of watch events. Every method is synchronous; nothing here awaits, logs or reads a clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rackgate.domains import TopologyAssignment
from rackgate.wire import core as wire
from rackgate.wire import kueue
from rackgate_assigner.cache import checks, facts, status
from rackgate_assigner.cache.assumed import Assumed
from rackgate_assigner.cache.objects import Objects
from rackgate_assigner.cache.pods import PodLedger
from rackgate_assigner.cache.totals import Holding, Totals, holding_of
from rackgate_assigner.cache.trees import Trees
from rackgate_assigner.core.admission.admit import plan
from rackgate_assigner.core.admission.evictions import DRAIN
from rackgate_assigner.core.cycle import Snapshot
from rackgate_assigner.core.decisions import Decision, Grant
from rackgate_assigner.core.explaining.explanation import Explanation
from rackgate_assigner.core.forest import Forest
from rackgate_assigner.core.model import NodeFacts
from rackgate_assigner.core.rows import (
    HOST_LEVELS,
    Charge,
    PodRow,
    PodShape,
    WorkloadRow,
    pod_row,
    workload_row,
)


class Cache(Objects):
    """State of the cluster as far as admission needs it; mutable, for one thread.

    Usage is always derived from Workloads and bound pods, never from the life of a node, flavor
    or Topology: those may come and go in any order (C2, C3).

    Attributes:
        epoch: rises with every change that could make a waiting Workload fit or unfit.
            Heartbeats, pods that sit where they were assigned, and condition writes do not.
        workloads: rows by key.
        assumed: grants whose status writes the watch has not shown yet, by key.
        holdings: what each Workload holds, by key; those that hold nothing are there too.
    """

    def __init__(
        self, features: Mapping[str, bool] | None = None, excluded: Sequence[str] = ()
    ) -> None:
        """Start empty.

        Args:
            features: gates that plans and statuses go by unless told otherwise.
            excluded: prefixes of resources that count neither for quota nor for room (C16).
        """
        super().__init__()
        self.features = dict(features or {})
        self.excluded = tuple(excluded)
        self.workloads: dict[str, WorkloadRow] = {}
        self.assumed: dict[str, Assumed] = {}
        self._derive_nothing()

    def _derive_nothing(self) -> None:
        """Start all that is derived from rows, empty."""
        self.holdings: dict[str, Holding] = {}
        self.totals = Totals()
        self.pods = PodLedger(self.nodes, self._charge_node)
        self.trees = Trees(self.nodes, self.flavors, self.pods.charged, self._charges)
        self._waiting: dict[str, WorkloadRow] = {}
        self._switched_off: set[str] = set()
        self._failing: set[str] = set()

    # Pods and Workloads: what usage is made of.

    def set_pod(self, pod: wire.Pod) -> None:
        """A pod was added or changed; one that is not bound, or has ended, takes no room."""
        row = pod_row(pod)
        key = pod.metadata.key
        before = self.pods.rows.get(key)
        changed = self.pods.drop(key) if row is None else self.pods.set(row)
        if changed and any(self._felt(found) for found in (before, row) if found is not None):
            self.epoch += 1

    def drop_pod(self, key: str) -> None:
        """A pod is gone."""
        before = self.pods.rows.get(key)
        if before is not None and self.pods.drop(key) and self._felt(before):
            self.epoch += 1

    def _felt(self, row: PodRow) -> bool:
        """Whether a charge that changed with a pod can matter to anyone.

        A pod that an assignment may cover can have had the place of one on another node, where two
        nodes share a hostname: whether its own node is in a tree says nothing then.
        """
        return self.pods.covers(row.workload, row.podset) or self.trees.hold(row.node)

    def set_workload(self, workload: kueue.Workload) -> None:
        """A Workload was added or changed."""
        known = self.workloads.get(workload.metadata.key)
        self.put_workload(workload_row(workload, known, self.excluded))

    def put_workload(self, row: WorkloadRow) -> None:
        """As `set_workload`, for a row at hand."""
        old = self.workloads.get(row.key)
        self.workloads[row.key] = row
        assumed = self.assumed.get(row.key)
        if assumed is not None and assumed.over(row):
            del self.assumed[row.key]
        if self._update(row.key) or _asks_differently(old, row):
            self.epoch += 1

    def drop_workload(self, key: str) -> None:
        """A Workload is gone, and with it all that it held."""
        if self.workloads.pop(key, None) is None:
            return
        self.assumed.pop(key, None)
        if self._update(key):
            self.epoch += 1

    def assume(self, key: str, grant: Grant, *, instead: bool = False) -> None:
        """Charge a grant before its status write is seen; `instead` of the one that is held.

        Ends when the watch shows an admission at a newer resourceVersion, when the Workload is
        finished or deleted, by `forget`, or after `confirm` when the watch reaches that version.
        The epoch stays: the plan that made the grant has charged it already.
        """
        row = self.workloads.get(key)
        if row is None or row.finished or (row.reserved is not None) != instead:
            return
        self.assumed[key] = Assumed(grant, row.uid, row.resource_version)
        self._update(key)

    def confirm(self, key: str, resource_version: str) -> None:
        """The status write was answered with this resourceVersion.

        From that version on the watch is believed, also if it no longer shows an admission:
        without this, an admission taken back before the watch showed it stays charged.
        """
        assumed, row = self.assumed.get(key), self.workloads.get(key)
        if assumed is None or row is None:
            return
        self.assumed[key] = assumed.confirmed(resource_version)
        if self.assumed[key].over(row):
            self.forget(key)

    def forget(self, key: str) -> None:
        """Take an assumed grant back: its status write failed."""
        if self.assumed.pop(key, None) is not None:
            self._update(key)
            self.epoch += 1

    def row(self, key: str) -> WorkloadRow | None:
        """The row of a Workload, None when it is not there."""
        return self.workloads.get(key)

    # Questions.

    def freeze(self) -> Snapshot:
        """A copy of the state for one cycle; using it up does not touch the cache."""
        drains = any(queue.stop_policy == DRAIN for queue in self.cluster_queues.values()) or any(
            queue.stop_policy == DRAIN for queue in self.local_queues.values()
        )
        holding = self.workloads if drains else self._switched_off
        return Snapshot(
            waiting=list(self._waiting.values()),
            holding=[self.workloads[key] for key in holding],
            failing=[self.workloads[key] for key in self._failing if key not in self.assumed],
            local_queues=dict(self.local_queues),
            cluster_queues=dict(self.cluster_queues),
            flavors=dict(self.flavors),
            checks=dict(self.checks),
            namespaces=dict(self.namespaces),
            priorities=dict(self.priorities),
            used=self.totals.used(),
            forest=self.forest().copy(),
        )

    def plan(self, *, features: Mapping[str, bool] | None = None) -> list[Decision]:
        """One scheduling cycle on a frozen snapshot; the cache itself is not changed.

        Admissions within the cycle are charged against each other (CAP-11). Call `assume` for
        each one that is written. Only to be called when every watch has synced.
        """
        return plan(self.freeze(), self._features(features))

    def cluster_queue_status(
        self, name: str, *, features: Mapping[str, bool] | None = None
    ) -> dict[str, Any]:
        """Complete desired status in v1beta2 camelCase; conditions carry no timestamps.

        Raises:
            KeyError: no such ClusterQueue.
        """
        return status.cluster_queue_status(self, name, self._features(features))

    def local_queue_status(
        self, key: str, *, features: Mapping[str, bool] | None = None
    ) -> dict[str, Any]:
        """As `cluster_queue_status`, for a LocalQueue.

        Raises:
            KeyError: no such LocalQueue.
        """
        return status.local_queue_status(self, key, self._features(features))

    def mismatches(self) -> list[checks.Mismatch]:
        """What was kept event by event and what a rebuild from the same rows gives disagree on.

        Empty is right. Takes as long as building everything from scratch.
        """
        return checks.mismatches(self, checks.rebuilt(self, Cache()))

    def rebuild_matches(self) -> list[str]:
        """`mismatches` as texts."""
        return [str(mismatch) for mismatch in self.mismatches()]

    def heal(self) -> None:
        """Derive everything anew from the rows."""
        pods = list(self.pods.rows.values())
        self._derive_nothing()
        for node in self.nodes.values():
            self.trees.note_node(None, node)
        for key in self.workloads:
            self._update(key)
        for row in pods:
            self.pods.set(row)
        self.epoch += 1

    def explain(
        self, key: str, *, features: Mapping[str, bool] | None = None
    ) -> Explanation | None:
        """Why a Workload waits, or what it holds; None when it is not there."""
        return facts.explain(self, key, self._features(features))

    def missing_levels(self, flavor: str) -> dict[str, tuple[str, ...]]:
        """Nodes of a TAS flavor that lack level labels, each with the keys it lacks (C18)."""
        return facts.missing_levels(self, flavor)

    def overlaps(self) -> list[tuple[str, str, int]]:
        """Pairs of TAS flavors that share nodes, with the number of shared nodes (TAS-33)."""
        return facts.overlaps(self)

    def forest(self) -> Forest:
        """The live trees with everything charged: for reading, and good until the next event."""
        self.pods.settle()
        return self.trees.forest()

    def _features(self, features: Mapping[str, bool] | None) -> Mapping[str, bool]:
        return self.features if features is None else features

    def _update(self, key: str) -> bool:
        """Bring up to date what a Workload holds and whether it waits; whether that changed."""
        row = self.workloads.get(key)
        assumed = self.assumed.get(key)
        old = self.holdings.get(key)
        new = None if row is None else holding_of(row, assumed.grant if assumed else None)
        self._waiting.pop(key, None)
        self._switched_off.discard(key)
        self._failing.discard(key)
        if row is not None and new is not None:
            if new.waiting:
                self._waiting[key] = row
            if new.cluster_queue and not row.active:
                self._switched_off.add(key)
            if new.admitted and row.unhealthy:
                self._failing.add(key)
        if old == new:
            return False
        if old is not None:
            del self.holdings[key]
            self._count(old, -1)
        if new is not None:
            self.holdings[key] = new
            self._count(new, 1)
        self.pods.assign(key, new.owner_uid if new else "", self._covering(new))
        return _moves(old) != _moves(new)

    def _count(self, holding: Holding, sign: int) -> None:
        self.totals.add(holding, sign)
        for charge in holding.charges:
            self.trees.charge(charge, sign)

    def _charges(self) -> Iterator[Charge]:
        for holding in self.holdings.values():
            yield from holding.charges

    def _charge_node(self, node: str, shape: PodShape, sign: int) -> None:
        self.trees.charge_node(node, shape, sign)

    def _note_node(self, old: NodeFacts | None, new: NodeFacts | None) -> None:
        self.trees.note_node(old, new)

    def _note_flavor(self, name: str) -> None:
        self.trees.note_flavor(name)

    def _covering(self, holding: Holding | None) -> dict[str, TopologyAssignment]:
        """Assignments by PodSet that are charged to a tree, so that their pods need not be.

        One with other levels than its flavor has now (the Topology was deleted and made anew)
        fits no leaf of the tree: there its pods are charged to their nodes instead.
        """
        if holding is None:
            return {}
        pairs = zip(holding.assignments.items(), holding.charges, strict=True)
        return {
            podset: assignment
            for (podset, assignment), charge in pairs
            if self._fits_tree(charge.flavor, assignment.levels)
        }

    def _fits_tree(self, flavor: str, levels: tuple[str, ...]) -> bool:
        row = self.flavors.get(flavor)
        if row is None or not row.levels or levels[-1:] == HOST_LEVELS:
            return True
        return levels == row.levels

    def _relevelled(self, flavor: str) -> None:
        for key, holding in self.holdings.items():
            if any(charge.flavor == flavor for charge in holding.charges):
                self.pods.assign(key, holding.owner_uid, self._covering(holding))

    def _relabelled(self, node: str) -> None:
        if self.pods.relabel(node):
            self.epoch += 1


def _moves(holding: Holding | None) -> tuple[object, ...]:
    """The part of a holding that others can feel."""
    if holding is None:
        return ()
    return holding.cluster_queue, holding.waiting, holding.quota, holding.charges


def _asks_differently(old: WorkloadRow | None, row: WorkloadRow) -> bool:
    """Whether a plan could decide otherwise about this Workload itself."""

    def asked(found: WorkloadRow) -> tuple[object, ...]:
        place = (found.uid, found.queue, found.priority, found.priority_class, found.age)
        return (*place, found.active, found.evicted, found.shape, found.unhealthy)

    return old is None or asked(old) != asked(row)
