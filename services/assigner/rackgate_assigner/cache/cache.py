"""Fold of watch events. Every method is synchronous; nothing here awaits, logs or reads a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rackgate.features import DEFAULTS, Features
from rackgate.wire import core as wire
from rackgate.wire import kueue
from rackgate_assigner.cache import consistency as checks
from rackgate_assigner.cache.assumed import Assumed
from rackgate_assigner.cache.excess_usage import Excesses
from rackgate_assigner.cache.flavor_topologies import Forest
from rackgate_assigner.cache.limit_ranges import unruled
from rackgate_assigner.cache.live_pods import Excess, LivingCount, LivingPods
from rackgate_assigner.cache.objects import Objects
from rackgate_assigner.cache.pods import PodLedger
from rackgate_assigner.cache.queue_usage import Holding, Totals, holding_of
from rackgate_assigner.cache.released import relief
from rackgate_assigner.cache.running import families_of, running_in
from rackgate_assigner.cache.slice_families import Families, covering, is_folded, is_orphan, united
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.cache.trees import Trees
from rackgate_assigner.explain import workload as facts
from rackgate_assigner.explain.explanation import Explanation
from rackgate_assigner.queues import status
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.scheduler.evictions import DRAIN
from rackgate_assigner.scheduler.wake_up import asks_differently, felt
from rackgate_assigner.topology.model import NodeFacts
from rackgate_assigner.workload.decisions import Decision, Grant
from rackgate_assigner.workload.info import (
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
        families: which Workloads are slices of which.
        living: pods by the job at the root of their owner chain.
        excesses: what these take beyond what was granted; charged like a grant.
        on_pods: told the uid of a job whose pods came, went or are being deleted.
        on_excess: told what is charged beyond a grant, and what was, whenever that changes.
    """

    def __init__(self, features: Features = DEFAULTS, excluded: Sequence[str] = ()) -> None:
        """Start empty.

        Args:
            features: gates that plans and statuses go by unless told otherwise.
            excluded: prefixes of resources that count neither for quota nor for room (C16).
        """
        super().__init__()
        self.features = features
        self.excluded = tuple(excluded)
        self.workloads: dict[str, WorkloadRow] = {}
        self.assumed: dict[str, Assumed] = {}
        self.on_pods: Callable[[str], None] = lambda _job_uid: None
        self.on_excess: Callable[[Excess], None] = lambda _excess: None
        self._derive_nothing()

    def _derive_nothing(self) -> None:
        """Start all that is derived from rows, empty."""
        self.holdings: dict[str, Holding] = {}
        self.families = Families()
        # Workloads with pods that are done, and those where that has to be looked at anew.
        self._reclaiming: set[str] = set()
        self._unrelieved: set[str] = set()
        self._totals = Totals()
        self.pods = PodLedger(self.nodes, self._charge_node)
        held = self.features.hold_quota_for_terminating_pods
        self.living = LivingPods(self.nodes, terminating=held)
        self.excesses = Excesses(self, self._totals, charge_released=held)
        # Pods that lost their controller, by the Workload that they name.
        self._ownerless: dict[str, set[str]] = {}
        self.trees = Trees(self.nodes, self.flavors, self.pods.charged, self._charges)
        self._waiting: dict[str, WorkloadRow] = {}
        self._switched_off: set[str] = set()
        self._failing: set[str] = set()

    # Pods and Workloads: what usage is made of.

    def set_pod(self, pod: wire.Pod) -> None:
        """A pod was added or changed; one that is not bound, or has ended, takes no room."""
        key = pod.metadata.key
        row = pod_row(pod)
        if row is None:
            self.drop_pod(key)
        else:
            self.put_pod(row)

    def put_pod(self, row: PodRow) -> None:
        """As `set_pod`, for the row of a pod that takes room."""
        before = self.pods.rows.get(row.key)
        if before is not None and row.uid == before.uid and before.owner_uid and not row.owner_uid:
            # It lost its controller: left behind, or stripped. It still takes what it took.
            row = replace(row, owner_uid=before.owner_uid, of_job=before.of_job)
        elif not row.owner_uid and row.named:
            # It did before this process saw it: its Workload knows whose it was.
            self._ownerless.setdefault(row.named, set()).add(row.key)
            workload = self.workloads.get(row.named)
            if workload is not None:
                row = replace(row, owner_uid=workload.job_uid)
        self._pods_changed(self.living.put(row))
        changed = self.pods.set(row)
        found = [one for one in (before, row) if one is not None and before != row]
        if (changed and any(map(self._felt, found))) or self._relieves(found):
            self.epoch += 1

    def drop_pod(self, key: str) -> None:
        """A pod is gone, or has ended."""
        self._pods_changed(self.living.drop(key))
        before = self.pods.rows.get(key)
        if before is not None and before.named in self._ownerless:
            self._ownerless[before.named].discard(key)
            if not self._ownerless[before.named]:
                del self._ownerless[before.named]
        if before is not None and self.pods.drop(key) and self._felt(before):
            self.epoch += 1
        if before is not None and self._relieves([before]):
            self.epoch += 1

    def set_owner(self, uid: str, root: str, namespace: str = "") -> None:
        """Pods of this controller are pods of another object: a Job's, of its JobSet.

        Args:
            uid: of the controller.
            root: uid of the object; "" when it belongs to none any more.
            namespace: of the controller; "" for any.
        """
        self._pods_changed(self.living.set_owner(uid, root, namespace))
        if self.pods.set_owner(uid, root):
            self._unrelieved |= self._reclaiming
            self.epoch += 1

    def drop_owner(self, uid: str) -> None:
        """A controller of pods is gone."""
        self.living.drop_owner(uid)
        self.pods.drop_owner(uid)

    def set_job(self, uid: str, queue: str) -> None:
        """A managed job is there; `queue` is its LocalQueue as `namespace/name`."""
        known = self.living.managed(uid)
        self._count_excess(self.living.set_job(uid, queue))
        if not known:
            self._job_came_or_went(uid)

    def drop_job(self, uid: str) -> None:
        """A job is gone, or is managed no more."""
        self._count_excess(self.living.drop_job(uid))
        self._job_came_or_went(uid)

    def _job_came_or_went(self, uid: str) -> None:
        for key in self.excesses.workloads_of(uid):
            if self._update(key):
                self.epoch += 1

    def living_pods(self, job_uid: str) -> LivingCount:
        """How many pods of a job live."""
        return self.living.count(job_uid)

    def _pods_changed(self, roots: Iterable[str]) -> None:
        """Pods of these jobs came, went or are being deleted."""
        self._count_excess(roots)
        for root in roots:
            self.on_pods(root)

    def _count_excess(self, roots: Iterable[str]) -> None:
        """Recompute the charge for what pods of these jobs take beyond what was granted."""
        for root in roots:
            if self.excesses.settle(root):
                self.epoch += 1

    def _relieves(self, rows: Sequence[PodRow]) -> bool:
        """Note that pods of a Workload changed some of whose pods are done; whether any did."""
        names = {row.workload for row in rows} & self._reclaiming
        self._unrelieved |= names
        return bool(names)

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
        row = self.requests.applied(row)
        self.requests.note(old, row)
        self.workloads[row.key] = row
        relinked = self.excesses.link(row)
        before = self.families.link(row.key, row.parent)
        assumed = self.assumed.get(row.key)
        if assumed is not None and assumed.over(row):
            del self.assumed[row.key]
        if self._update(row.key) or asks_differently(old, row):
            self.epoch += 1
        if before not in ("", row.parent):
            self._cover(before)
        self._count_excess(relinked)
        if old is None and row.key in self._ownerless:
            for key in sorted(self._ownerless[row.key]):
                self.put_pod(self.pods.rows[key])

    def drop_workload(self, key: str) -> None:
        """A Workload is gone, and with it all that it held."""
        row = self.workloads.pop(key, None)
        if row is None:
            return
        self.requests.forget(row)
        self.assumed.pop(key, None)
        root = self.excesses.unlink(key)
        if self._update(key):
            self.epoch += 1
        self.families.link(key, "")
        self._count_excess({root})

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

    @property
    def totals(self) -> Totals:
        """Sums by queue of what Workloads hold, and their pods take beyond that."""
        self.excesses.flush()
        return self._totals

    def freeze(self) -> Snapshot:
        """A copy of the state for one cycle; using it up does not touch the cache."""
        drains = any(queue.stop_policy == DRAIN for queue in self.cluster_queues.values()) or any(
            queue.stop_policy == DRAIN for queue in self.local_queues.values()
        )
        holding = self.workloads if drains else self._switched_off
        parents = {row.parent for row in self._waiting.values() if row.parent}
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
            running=running_in(self),
            families=families_of(self, parents),
        )

    def plan(self, *, features: Features | None = None) -> list[Decision]:
        """One scheduling cycle on a frozen snapshot; the cache itself is not changed.

        Admissions within the cycle are charged against each other (CAP-11). Call `assume` for
        each one that is written. Only to be called when every watch has synced.
        """
        return plan(self.freeze(), self._features(features))

    def cluster_queue_status(
        self, name: str, *, features: Features | None = None
    ) -> dict[str, Any]:
        """Complete desired status in v1beta2 camelCase; conditions carry no timestamps.

        Raises:
            KeyError: no such ClusterQueue.
        """
        return status.cluster_queue_status(self, name, self._features(features))

    def local_queue_status(self, key: str, *, features: Features | None = None) -> dict[str, Any]:
        """As `cluster_queue_status`, for a LocalQueue.

        Raises:
            KeyError: no such LocalQueue.
        """
        return status.local_queue_status(self, key, self._features(features))

    def mismatches(self) -> list[checks.Mismatch]:
        """What was kept event by event and what a rebuild from the same rows gives disagree on.

        Empty is right. Takes as long as building everything from scratch.
        """
        return checks.mismatches(self, checks.rebuilt(self, Cache(self.features, self.excluded)))

    def rebuild_matches(self) -> list[str]:
        """`mismatches` as texts."""
        return [str(mismatch) for mismatch in self.mismatches()]

    def heal(self) -> None:
        """Derive everything anew from the rows."""
        pods, owners = list(self.pods.rows.values()), self.pods.owners
        claims, queues, gone = self.living.claims, self.living.queues, self.living.gone
        self._derive_nothing()
        for uid, queue in queues.items():
            self.set_job(uid, queue)
        for node in self.nodes.values():
            self.trees.note_node(None, node)
        for key, found in self.workloads.items():
            self.workloads[key] = self.requests.applied(unruled(found))
            self.families.link(key, found.parent)
            self.excesses.link(found)
        for key in self.workloads:
            self._update(key)
        for uid, root in owners.items():
            self.pods.set_owner(uid, root)
        for uid, claim in claims.items():
            self.living.set_owner(uid, *claim)
        for row in pods:
            self.put_pod(row)
        for uid in gone:
            self.drop_job(uid)
        self.epoch += 1

    def explain(self, key: str, *, features: Features | None = None) -> Explanation | None:
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
        for key in sorted(self._unrelieved):
            self._relieve(key)
        self._unrelieved.clear()
        return self.trees.forest()

    def _features(self, features: Features | None) -> Features:
        return self.features if features is None else features

    def _update(self, key: str) -> bool:
        """Bring up to date what a Workload and its slices hold; whether others can feel it."""
        found = [self._hold(each) for each in (key, *self.families.slices_of(key))]
        head = self.families.head_of(key)
        if any(changed for changed, _ in found):
            self._cover(head)
        self._count_excess(self.excesses.roots_of((key, head)))
        return any(moved for _, moved in found)

    def _hold(self, key: str) -> tuple[bool, bool]:
        """`_update` for one Workload alone; whether anything changed, and as `_update`."""
        row = self.workloads.get(key)
        old = self.holdings.get(key)
        new = None if row is None else self._holding_of(row)
        self._waiting.pop(key, None)
        self._switched_off.discard(key)
        self._failing.discard(key)
        if row is not None and new is not None:
            if new.waiting:
                self._waiting[key] = row
            if new.cluster_queue and not row.active:
                self._switched_off.add(key)
            # Pods of a slice are the parent's, which mends them once it counts them.
            if new.admitted and row.unhealthy and not row.parent:
                self._failing.add(key)
        self._note_reclaiming(key, row)
        if old == new:
            return False, False
        self._swap(key, old, new)
        return True, felt(old) != felt(new)

    def _holding_of(self, row: WorkloadRow) -> Holding:
        assumed = self.assumed.get(row.key)
        grant = assumed.grant if assumed else None
        if not row.parent:
            if row.deleting and row.job_uid and not self.living.managed(row.job_uid):
                # Its job is gone: no pod comes any more, and each that goes gives back its part.
                return Holding(row.queue)
            return holding_of(row, grant)
        parent = self.workloads.get(row.parent)
        folded, orphan = is_folded(row, parent), is_orphan(row, parent)
        return holding_of(row, grant, folded=folded, orphan=orphan)

    def _note_reclaiming(self, key: str, row: WorkloadRow | None) -> None:
        self._reclaiming.discard(key)
        if row is not None and any(row.reclaimable.values()):
            self._reclaiming.add(key)
            self._unrelieved.add(key)

    def _relieve(self, key: str) -> None:
        """Give back the places of pods that are done, now that it is known which run."""
        row, old = self.workloads.get(key), self.holdings.get(key)
        if row is None or old is None or not old.charges:
            return
        new = relief(row, self._holding_of(row), self.pods)
        if new != old:
            self._swap(key, old, new)

    def _swap(self, key: str, old: Holding | None, new: Holding | None) -> None:
        if old is not None:
            del self.holdings[key]
            self._count(old, -1)
        if new is not None:
            self.holdings[key] = new
            self._count(new, 1)

    def _count(self, holding: Holding, sign: int) -> None:
        self._totals.add(holding, sign)
        for charge in holding.charges:
            self.trees.charge(charge, sign)

    def _charges(self) -> Iterator[Charge]:
        for holding in self.holdings.values():
            yield from holding.charges

    def _charge_node(self, node: str, shape: PodShape, sign: int) -> None:
        self.trees.charge_node(node, shape, sign)

    def _note_node(self, old: NodeFacts | None, new: NodeFacts | None) -> None:
        self.trees.note_node(old, new)
        found = new or old
        if found is None:
            return
        self._pods_changed(self.living.node_changed(found.name))
        if (old.labels if old else None) != (new.labels if new else None):
            here = map(self.living.root_of, self.pods.on_node(found.name))
            self._count_excess(self.excesses.by_flavor(filter(None, here)))

    def _note_flavor(self, name: str) -> None:
        self.trees.note_flavor(name)
        self._count_excess(self.excesses.by_flavors())

    def _note_queue(self, kind: str, key: str) -> None:
        self._count_excess(self.excesses.by_queue(kind, key))

    def _cover(self, key: str) -> None:
        """Say which pods of a Workload are paid for, by itself or by its slices."""
        keys = (key, *self.families.slices_of(key))
        row = self.workloads.get(key)
        owner = row.job_uid or row.owner_uid if row is not None else ""
        held = filter(None, map(self.holdings.get, keys))
        parts = [covering(holding, self.flavors) for holding in held if holding.assignments]
        self.pods.assign(key, owner, united(parts))
        self._unrelieved |= {key} & self._reclaiming

    def _requests_changed(self, keys: Iterable[str]) -> None:
        for key in sorted(keys):
            self.put_workload(self.workloads[key])

    def _relevelled(self, flavor: str) -> None:
        for key, holding in self.holdings.items():
            if any(charge.flavor == flavor for charge in holding.charges):
                self._cover(self.families.head_of(key))

    def _relabelled(self, node: str) -> None:
        if self.pods.relabel(node):
            self._unrelieved |= self._reclaiming
            self.epoch += 1
