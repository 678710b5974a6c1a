"""The actual usage of each job's pods, so that no queue is charged less than its live pods use.

A pod lives while it is bound and has not ended; one that is being deleted lives until it is gone.
Pods are attributed to the job at the root of their owner chain: a Job, a RayCluster, or the JobSet
of a child Job. The charge of a Workload is, by flavor and resource, the larger of its admission and
the usage of its pods; this module computes the usage beyond the assignment, the *excess*.

Three cases:

1. A Workload of the job holds quota: the excess is the usage of its pods beyond the admissions of
   the Workload and its slices. With one flavor for a resource, a sum kept per pod event is enough;
   with several, each pod counts for the flavor whose labels its node carries.
2. No Workload of the job holds quota (evicted and released, finished, deleted): the whole usage of
   its pods is excess. It is charged to the ClusterQueue of the last admission, or else to the one
   of its LocalQueue.
3. The root is unknown: its pods use only capacity of their nodes.

`LivePods` attributes and counts pods. `ExcessUsageTracker` keeps the excess in the totals of the
queues: a root is updated whenever its pods, its Workloads or their usage change, and when a
ClusterQueue, LocalQueue, flavor or node label changes that its charge depends on. The sums per
job are enough for nearly all roots. Where a resource has several flavors, every pod of the job must
be read. This is delayed until the totals are read (`flush`).

Invariant: excess is a function of the objects alone (pods, Workloads, jobs, queues, flavors,
nodes), so a rebuild from them gives the same; `consistency.mismatches` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from rackgate_assigner.cache.indexes import discard
from rackgate_assigner.cache.objects import Objects
from rackgate_assigner.cache.usage import ExcessUsage, Totals, WorkloadUsage
from rackgate_assigner.quota.queues import ClusterQueueInfo, FlavorInfo, FlavorResource
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.tree import PODS
from rackgate_assigner.workload.info import PodInfo, WorkloadInfo, quota_usage
from rackgate_assigner.workload_slices.families import SliceFamilies


@dataclass(frozen=True, slots=True)
class LivePodCount:
    """Live pods of one job.

    Attributes:
        running: those that are not being deleted.
        terminating: those that are.
        has_long_grace_period: of these, pods whose grace period is longer than a replacement may
            overlap.
        on_unreachable_node: pods that do not count: they are being deleted on a node that does not
            report their end.
    """

    running: int = 0
    terminating: int = 0
    has_long_grace_period: int = 0
    on_unreachable_node: int = 0

    @property
    def total(self) -> int:
        """All live pods."""
        return self.running + self.terminating


@dataclass(slots=True)
class JobPods:
    """The pods of one root.

    Attributes:
        pods: keys of all bound pods that have not ended.
        running: of these, pods that are not being deleted.
        terminating: being deleted, on a node that can report their end.
        has_long_grace_period: of these, pods with a long grace period.
        amounts: usage of all live pods, by resource, each pod counted under `pods`.
        version: of the live pods; no two jobs, and no two states of one, have the same.
    """

    pods: set[str] = field(default_factory=set)
    running: int = 0
    terminating: int = 0
    has_long_grace_period: int = 0
    amounts: dict[str, int] = field(default_factory=dict)
    version: int = 0

    def count(self, row: PodInfo, sign: int) -> None:
        """Add (1) or remove (-1) one live pod."""
        if row.terminating:
            self.terminating += sign
            self.has_long_grace_period += sign * row.has_long_grace_period
        else:
            self.running += sign
        for resource, amount in ((PODS, 1), *row.requests):
            value = self.amounts.get(resource, 0) + sign * amount
            if value:
                self.amounts[resource] = value
            else:
                self.amounts.pop(resource, None)


class LivePods:
    """Accounts of pods by root; mutable, for one thread.

    Attributes:
        queues: the LocalQueue (`namespace/name`) of each managed job, by uid; kept after the job
            is deleted for as long as it has live pods.
        claims: by uid of a controller of pods: its claimed owner and its namespace.
        deleted_jobs: deleted jobs that still have live pods.
    """

    def __init__(self, nodes: Mapping[str, NodeInfo], *, terminating: bool = True) -> None:
        """Start empty.

        Args:
            nodes: show whether the end of a pod that is being deleted would be seen.
            terminating: pods that are being deleted count until they are gone.
        """
        self.queues: dict[str, str] = {}
        self._nodes, self._terminating = nodes, terminating
        self._rows: dict[str, PodInfo] = {}
        self._by_root: dict[str, JobPods] = {}
        # Pods that count; the others are being deleted on a node that is gone or not ready.
        self._counted: dict[str, PodInfo] = {}
        self._by_owner: dict[str, set[str]] = {}
        self._terminating_by_node: dict[str, set[str]] = {}
        self.claims: dict[str, tuple[str, str]] = {}
        self._children: dict[str, set[str]] = {}
        self.deleted_jobs: set[str] = set()
        # Deleted controllers of pods, as long as they have pods.
        self._deleted_owners: set[str] = set()
        self._version = 0

    # Events. Each returns the roots whose pods changed.

    def put(self, row: PodInfo) -> set[str]:
        """A bound pod was added or changed."""
        before = self._rows.get(row.key)
        if before == row:
            return set()
        touched = self._remove(before) if before is not None else set()
        if row.is_job_pod:
            self._rows[row.key] = row
            self._by_owner.setdefault(row.owner_uid, set()).add(row.key)
            self._count_pod(row)
            touched.add(self.root(row.owner_uid))
        if before is not None:
            self._drop_unused(before.owner_uid)
        return touched

    def drop(self, key: str) -> set[str]:
        """A pod is gone or has ended, known or not."""
        row = self._rows.get(key)
        if row is None:
            return set()
        touched = self._remove(row)
        self._drop_unused(row.owner_uid)
        return touched

    def _remove(self, row: PodInfo) -> set[str]:
        self._uncount_pod(row)
        del self._rows[row.key]
        discard(self._by_owner, row.owner_uid, row.key)
        return {self.root(row.owner_uid)}

    def _drop_unused(self, owner: str) -> None:
        """Remove entries that were only kept for pods that are gone."""
        root = self.root(owner)
        if owner in self._deleted_owners and owner not in self._by_owner:
            self._deleted_owners.discard(owner)
            self._forget_claim(owner)
        if root in self.deleted_jobs and root not in self._by_root:
            self.deleted_jobs.discard(root)
            self.queues.pop(root, None)

    def node_changed(self, name: str) -> set[str]:
        """A node was added, deleted or changed: it affects whether its terminating pods count."""
        touched = set()
        for key in list(self._terminating_by_node.get(name, ())):
            row = self._rows[key]
            if self._is_live(row) != (key in self._counted):
                self._uncount_pod(row)
                self._count_pod(row)
                touched.add(self.root(row.owner_uid))
        return touched

    def set_job(self, uid: str, queue: str) -> set[str]:
        """A managed job exists; `queue` is its LocalQueue as `namespace/name`."""
        self.deleted_jobs.discard(uid)
        if self.queues.get(uid) == queue:
            return set()
        with self._reattributing(self._children.get(uid, ())) as touched:
            self.queues[uid] = queue
        return touched | {uid}

    def drop_job(self, uid: str) -> set[str]:
        """A job is deleted, or is no longer managed; its queue is kept while it has live pods."""
        if uid in self._by_root:
            self.deleted_jobs.add(uid)
        else:
            self.queues.pop(uid, None)
        return {uid}

    def set_owner(self, uid: str, root: str, namespace: str = "") -> set[str]:
        """A controller of pods names another object as its owner, as a Job its JobSet.

        Any user may write that. It counts once that object is known as a managed job of the same
        namespace.

        Args:
            uid: of the controller.
            root: uid of the object; "" when it belongs to none any more.
            namespace: of the controller; "" for any.
        """
        self._deleted_owners.discard(uid)
        claim = (root, namespace)
        if self.claims.get(uid, ("", namespace)) == claim:
            return set()
        with self._reattributing((uid,)) as touched:
            self._forget_claim(uid)
            if root:
                self.claims[uid] = claim
                self._children.setdefault(root, set()).add(uid)
        return touched

    def drop_owner(self, uid: str) -> None:
        """A controller of pods is deleted; its live pods still belong to its root."""
        if uid in self._by_owner:
            self._deleted_owners.add(uid)
        else:
            self._deleted_owners.discard(uid)
            self._forget_claim(uid)

    def _forget_claim(self, uid: str) -> None:
        root, _ = self.claims.pop(uid, ("", ""))
        discard(self._children, root, uid)

    @contextmanager
    def _reattributing(self, owners: Iterable[str]) -> Iterator[set[str]]:
        """Remove the pods of these controllers from their accounts, and add them again."""
        keys = [key for uid in owners for key in self._by_owner.get(uid, ())]
        touched = {self.root(self._rows[key].owner_uid) for key in keys}
        for key in keys:
            self._uncount_pod(self._rows[key])
        yield touched
        for key in keys:
            self._count_pod(self._rows[key])
        touched |= {self.root(self._rows[key].owner_uid) for key in keys}

    # Reading.

    def is_managed(self, uid: str) -> bool:
        """Whether a managed job of that uid exists."""
        return uid in self.queues and uid not in self.deleted_jobs

    def root(self, uid: str) -> str:
        """The uid of the job that pods of this controller belong to."""
        claim = self.claims.get(uid)
        if claim is None:
            return uid
        root, namespace = claim
        queue = self.queues.get(root)
        known = queue is not None and (not namespace or queue.startswith(f"{namespace}/"))
        return root if known else uid

    def root_of(self, key: str) -> str | None:
        """The root of a pod; None for a pod without a job."""
        row = self._rows.get(key)
        return None if row is None else self.root(row.owner_uid)

    def count(self, root: str) -> LivePodCount:
        """Number of live pods of a job."""
        account = self._by_root.get(root)
        if account is None:
            return LivePodCount()
        on_unreachable_node = len(account.pods) - account.running - account.terminating
        return LivePodCount(
            account.running, account.terminating, account.has_long_grace_period, on_unreachable_node
        )

    def amounts(self, root: str) -> Mapping[str, int]:
        """Usage of the live pods of a job, by resource."""
        account = self._by_root.get(root)
        return {} if account is None else account.amounts

    def version(self, root: str) -> int:
        """Changes whenever the live pods of a job do; 0 without any."""
        account = self._by_root.get(root)
        return 0 if account is None else account.version

    def rows_of(self, root: str) -> Iterator[PodInfo]:
        """The live pods of a job."""
        account = self._by_root.get(root)
        for key in account.pods if account is not None else ():
            if key in self._counted:
                yield self._counted[key]

    # What counts.

    def _is_live(self, row: PodInfo) -> bool:
        """Whether a pod counts: one that is being deleted only where its end would be seen.

        A node that is gone or not ready reports nothing, so such a pod would keep quota until an
        administrator acts. It still counts on its node.
        """
        if not row.terminating:
            return True
        node = self._nodes.get(row.node)
        return self._terminating and node is not None and node.ready

    def _count_pod(self, row: PodInfo) -> None:
        account = self._by_root.setdefault(self.root(row.owner_uid), JobPods())
        account.pods.add(row.key)
        if row.terminating:
            self._terminating_by_node.setdefault(row.node, set()).add(row.key)
        if self._is_live(row):
            self._counted[row.key] = row
            account.count(row, 1)
            self._set_version(account)

    def _uncount_pod(self, row: PodInfo) -> None:
        root = self.root(row.owner_uid)
        account = self._by_root[root]
        account.pods.discard(row.key)
        if row.terminating:
            discard(self._terminating_by_node, row.node, row.key)
        counted = self._counted.pop(row.key, None)
        if counted is not None:
            account.count(counted, -1)
            self._set_version(account)
        if not account.pods:
            del self._by_root[root]

    def _set_version(self, account: JobPods) -> None:
        self._version += 1
        account.version = self._version


def _matching_flavors(
    node: NodeInfo | None, names: tuple[str, ...], flavors: Mapping[str, FlavorInfo]
) -> tuple[str, ...]:
    """The flavors whose labels a node has; all flavors if none matches."""
    if node is None or len(names) == 1:
        return names
    found = tuple(
        name
        for name in names
        if (flavor := flavors.get(name)) is not None
        and flavor.node_labels.items() <= node.labels.items()
    )
    return found or names


def flavors_of_assignment(admitted_quota: Iterable[FlavorResource]) -> dict[str, tuple[str, ...]]:
    """Flavors by resource of admitted quota, in order."""
    found: dict[str, tuple[str, ...]] = {}
    for flavor, resource in admitted_quota:
        found[resource] = (*found.get(resource, ()), flavor)
    return found


def flavors_of_queue(queue: ClusterQueueInfo | None) -> dict[str, tuple[str, ...]]:
    """Flavors by resource that a ClusterQueue offers, in its order."""
    groups = queue.groups if queue is not None else ()
    return {resource: group.flavors for group in groups for resource in group.covered}


class _ChargedQueues(NamedTuple):
    """The queues that the pods of a job are charged to; `cluster_queue` "" for none.

    Attributes:
        choices: possible flavors, by resource, the preferred one first.
        quota: admitted, by flavor and resource.
    """

    local_queue: str
    cluster_queue: str
    choices: Mapping[str, tuple[str, ...]]
    quota: Mapping[FlavorResource, int] = MappingProxyType({})

    def excess(self, used: Mapping[FlavorResource, int]) -> ExcessUsage | None:
        """Usage beyond the quota."""
        over = {
            pair: more
            for pair, amount in used.items()
            if (more := amount - self.quota.get(pair, 0)) > 0
        }
        found = self.cluster_queue and over
        return ExcessUsage(self.local_queue, self.cluster_queue, over) if found else None


class ExcessUsageTracker:
    """Usage beyond admission by root, charged to the totals of the queues."""

    def __init__(
        self,
        objects: Objects,
        *,
        workloads: Mapping[str, WorkloadInfo],
        usages: Mapping[str, WorkloadUsage],
        families: SliceFamilies,
        live_pods: LivePods,
        totals: Totals,
        charge_released: bool,
        on_change: Callable[[str, ExcessUsage | None, ExcessUsage | None], None],
    ) -> None:
        """Start empty; the arguments are read when needed.

        Args:
            objects: queues, flavors and nodes.
            workloads: by key.
            usages: usage of each Workload, by key.
            families: slices count with their parents.
            live_pods: pods by root.
            totals: charged with the excess.
            charge_released: pods of a job that holds no quota any more are charged.
            on_change: called with the root, the charge before a change, and the one after it.
        """
        self._found: dict[str, ExcessUsage] = {}
        self._objects, self._workloads, self._usages = objects, workloads, usages
        self._families, self._live_pods, self._totals = families, live_pods, totals
        self._charge_released, self._on_change = charge_released, on_change
        self._by_root: dict[str, set[str]] = {}
        self._roots: dict[str, str] = {}
        # Roots whose pods must be read one by one, and those to be updated.
        self._flavor_dependent: set[str] = set()
        self._outdated: set[str] = set()
        # Roots by the queues that their charge also depends on, as (kind, key).
        self._by_queue: dict[tuple[str, str], set[str]] = {}
        self._queues_of: dict[str, tuple[tuple[str, str], ...]] = {}

    @property
    def found(self) -> Mapping[str, ExcessUsage]:
        """By root; roots without excess are omitted."""
        self.flush()
        return self._found

    def link(self, row: WorkloadInfo) -> set[str]:
        """A Workload was added or changed; returns roots that have to be updated.

        Slices count with their parent.
        """
        root = "" if row.parent else row.job_uid
        if self._roots.get(row.key, "") == root:
            return set()
        before = self.unlink(row.key)
        if root:
            self._roots[row.key] = root
            self._by_root.setdefault(root, set()).add(row.key)
        return {before, root}

    def unlink(self, key: str) -> str:
        """A Workload is deleted; returns its root, "" for none."""
        root = self._roots.pop(key, "")
        discard(self._by_root, root, key)
        return root

    def roots_of(self, keys: Iterable[str]) -> set[str]:
        """The roots of these Workloads."""
        return {root for key in keys if (root := self._roots.get(key))}

    def flavor_dependent(self, roots: Iterable[str] | None = None) -> set[str]:
        """Of these roots (None: of all), those whose charge depends on flavors and node labels."""
        return set(self._flavor_dependent if roots is None else self._flavor_dependent & set(roots))

    def roots_of_queue(self, kind: str, key: str) -> set[str]:
        """Roots whose charge depends on a ClusterQueue or LocalQueue."""
        return set(self._by_queue.get((kind, key), ()))

    def excess_of_workload(self, key: str) -> Mapping[FlavorResource, int]:
        """Usage of the pods of a Workload's job beyond admission."""
        excess = self.found.get(self._roots.get(key, ""))
        return {} if excess is None else excess.amounts

    def holds_quota(self, root: str) -> bool:
        """Whether a Workload of the job holds quota."""
        return any(True for _ in self._usages_of(root))

    def workloads_of(self, root: str) -> list[str]:
        """All Workloads of the job."""
        return sorted(self._by_root.get(root, ()))

    def workload_of(self, root: str) -> str:
        """A Workload of the job, "" if there is none."""
        return min(self._by_root.get(root, ()), default="")

    def update(self, root: str) -> bool:
        """Charge the usage of a job's pods; whether it changed, or may have changed."""
        if not root:
            return False
        self._set_queue_dependencies(root)
        amounts = self._live_pods.amounts(root)
        queues = self._charged_queues(root) if amounts else None
        if (
            queues is not None
            and queues.cluster_queue
            and any(len(queues.choices.get(resource, ())) > 1 for resource in amounts)
        ):
            self._flavor_dependent.add(root)
            self._outdated.add(root)
            return True
        self._flavor_dependent.discard(root)
        if queues is None:
            return self._replace(root, None)
        choices = queues.choices
        used = {(choices[r][0], r): amount for r, amount in amounts.items() if choices.get(r)}
        return self._replace(root, queues.excess(used))

    def flush(self) -> None:
        """Update the delayed roots."""
        while self._outdated:
            root = self._outdated.pop()
            queues = self._charged_queues(root) if self._live_pods.amounts(root) else None
            used = {} if queues is None else self._amounts_by_flavor(root, queues)
            self._replace(root, None if queues is None else queues.excess(used))

    def _charged_queues(self, root: str) -> _ChargedQueues | None:
        """What the pods of a job are charged to; None: to nothing."""
        usages = list(self._usages_of(root))
        if usages:
            quota = self._admitted_quota(root, usages)
            local_queue, cluster_queue = usages[0].local_queue, usages[0].cluster_queue
            return _ChargedQueues(local_queue, cluster_queue, flavors_of_assignment(quota), quota)
        return self._last_admitted_queue(root) if self._charge_released else None

    def _replace(self, root: str, new: ExcessUsage | None) -> bool:
        self._outdated.discard(root)
        old = self._found.get(root)
        if old == new:
            return False
        if old is not None:
            self._totals.add_excess_usage(old, -1)
            del self._found[root]
        if new is not None:
            self._found[root] = new
            self._totals.add_excess_usage(new, 1)
        self._on_change(root, old, new)
        return True

    def _set_queue_dependencies(self, root: str, *queues: tuple[str, str]) -> None:
        """Record on which queues the charge of a root depends."""
        for queue in self._queues_of.pop(root, ()):
            discard(self._by_queue, queue, root)
        if queues:
            self._queues_of[root] = queues
        for queue in queues:
            self._by_queue.setdefault(queue, set()).add(root)

    def _admitted_quota(
        self, root: str, usages: Sequence[WorkloadUsage]
    ) -> dict[FlavorResource, int]:
        """All admitted amounts; zero for other resources that pods use and the queue covers."""
        admitted_quota: dict[FlavorResource, int] = {}
        for usage in usages:
            for pair, amount in usage.quota.items():
                admitted_quota[pair] = admitted_quota.get(pair, 0) + amount
        amounts = self._live_pods.amounts(root)
        self._add_covered(root, usages[0].cluster_queue, amounts, admitted_quota)
        return admitted_quota

    def _usages_of(self, root: str) -> Iterator[WorkloadUsage]:
        """Usage of the job's Workloads and their slices."""
        for key in sorted(self._by_root.get(root, ())):
            for member in (key, *self._families.slices_of(key)):
                usage = self._usages.get(member)
                if usage is not None and usage.cluster_queue:
                    yield usage

    def _add_covered(
        self,
        root: str,
        name: str,
        amounts: Mapping[str, int],
        admitted_quota: dict[FlavorResource, int],
    ) -> None:
        """Add resources that were not requested, but that pods use and the queue covers, as zero.

        Operators add containers to pods.
        """
        missing = amounts.keys() - {resource for _, resource in admitted_quota}
        if not missing:
            return
        self._set_queue_dependencies(root, ("ClusterQueue", name))
        flavors = {flavor for flavor, _ in admitted_quota}
        choices = flavors_of_queue(self._objects.cluster_queues.get(name))
        for resource in sorted(missing & choices.keys()):
            offered = choices[resource]
            used = [flavor for flavor in offered if flavor in flavors]
            admitted_quota.update(((flavor, resource), 0) for flavor in used or offered)

    def _last_admitted_queue(self, root: str) -> _ChargedQueues:
        """What the whole usage of a job without quota is charged to."""
        rows = [
            row
            for key in sorted(self._by_root.get(root, ()))
            if (row := self._workloads.get(key)) is not None
        ]
        queue = next((row.queue for row in rows if row.queue), self._live_pods.queues.get(root, ""))
        assignment = next((row.reserved for row in rows if row.reserved is not None), None)
        if assignment is not None:
            choices = flavors_of_assignment(quota_usage(assignment))
            return _ChargedQueues(queue, assignment.cluster_queue, choices)
        if not queue:
            return _ChargedQueues("", "", {})
        local = self._objects.local_queues.get(queue)
        name = local.cluster_queue if local is not None else ""
        self._set_queue_dependencies(
            root, ("LocalQueue", queue), *((("ClusterQueue", name),) if name else ())
        )
        choices = flavors_of_queue(self._objects.cluster_queues.get(name))
        return _ChargedQueues(queue, name, choices)

    def _amounts_by_flavor(self, root: str, queues: _ChargedQueues) -> dict[FlavorResource, int]:
        """Usage of the pods, read one by one.

        If a node has the labels of several flavors, the first one with enough quota left is used;
        if none has enough, the first one.
        """
        total: dict[FlavorResource, int] = {}
        for row in sorted(self._live_pods.rows_of(root), key=lambda row: row.key):
            node = self._objects.nodes.get(row.node)
            for resource, amount in ((PODS, 1), *row.requests):
                names = queues.choices.get(resource)
                if not names or not amount:
                    continue
                names = _matching_flavors(node, names, self._objects.flavors)
                pairs = [(name, resource) for name in names]
                left = (p for p in pairs if total.get(p, 0) + amount <= queues.quota.get(p, 0))
                pair = next(left, pairs[0])
                total[pair] = total.get(pair, 0) + amount
        return total
