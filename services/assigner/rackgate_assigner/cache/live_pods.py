"""What the pods of each job really take, so that no queue is charged less than what lives.

A pod lives while it is bound and has not ended; one that is being deleted lives until it is gone.
Pods are attributed to the job at the root of their owner chain: a Job, a RayCluster, or the JobSet
of a child Job. The charge of a Workload is, by flavor and resource, the larger of what it was
granted and what its pods take; this module keeps the part beyond the assignment, the *excess*.

Three cases, by what is known of the root:

1. A Workload of the job holds quota: the excess is what its pods take beyond all that it and its
   slices were granted. With one flavor for a resource, a sum kept per pod event answers that;
   with several, each pod counts for the flavor whose labels its node carries.
2. No Workload of the job holds quota (evicted and released, finished, deleted): all that its pods
   take is excess, charged to the ClusterQueue that it was admitted to last, or else the one that
   its LocalQueue leads to.
3. Nothing is known of the root: its pods are nobody's, and take room of their nodes alone.

Invariant: excess is a function of rows alone (pods, Workloads, jobs, queues, flavors, nodes), so a
rebuild from them gives the same; `cache.checks` compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from rackgate_assigner.quota.queues import ClusterQueueInfo, FlavorInfo, FlavorResource
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.workload.info import PodInfo

PODS = "pods"


@dataclass(frozen=True, slots=True)
class LivePodCount:
    """Pods of one job that live.

    Attributes:
        running: those that are not being deleted.
        terminating: those that are.
        has_long_grace_period: of these, pods whose grace period is longer than a replacement may
            overlap.
        on_unreachable_node: pods that do not count: they are being deleted on a node that reports
            nothing.
    """

    running: int = 0
    terminating: int = 0
    has_long_grace_period: int = 0
    on_unreachable_node: int = 0

    @property
    def total(self) -> int:
        """All pods that live."""
        return self.running + self.terminating


@dataclass(frozen=True, slots=True)
class ExcessUsage:
    """What the pods of one job take beyond what its Workload was granted.

    Attributes:
        local_queue: `namespace/name`; "" when none is known.
        cluster_queue: that is charged.
        amounts: by flavor and resource; never zero.
    """

    local_queue: str
    cluster_queue: str
    amounts: Mapping[FlavorResource, int]


@dataclass(slots=True)
class JobPods:
    """The pods of one root.

    Attributes:
        pods: keys of all bound pods that have not ended.
        running: of these, pods that are not being deleted.
        terminating: being deleted, on a node that can tell when they end.
        has_long_grace_period: of these, pods with a long grace period.
        amounts: what all that live take, by resource, each pod counted under `pods`.
    """

    pods: set[str] = field(default_factory=set)
    running: int = 0
    terminating: int = 0
    has_long_grace_period: int = 0
    amounts: dict[str, int] = field(default_factory=dict)

    def count(self, row: PodInfo, sign: int) -> None:
        """Add (1) or take away (-1) one pod that lives."""
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
        queues: the LocalQueue (`namespace/name`) of each managed job, by uid; remembered after
            the job is gone for as long as pods of it live.
    """

    def __init__(self, nodes: Mapping[str, NodeInfo], *, terminating: bool = True) -> None:
        """Start empty.

        Args:
            nodes: read to tell whether the end of a pod that is being deleted would be seen.
            terminating: pods that are being deleted count until they are gone.
        """
        self.queues: dict[str, str] = {}
        self._nodes, self._terminating = nodes, terminating
        self._rows: dict[str, PodInfo] = {}
        self._by_root: dict[str, JobPods] = {}
        # Pods that count as living now; the others wait on a node that is gone or not ready.
        self._counted: dict[str, PodInfo] = {}
        self._by_owner: dict[str, set[str]] = {}
        self._terminating_by_node: dict[str, set[str]] = {}
        self._owner_claims: dict[str, tuple[str, str]] = {}
        self._children: dict[str, set[str]] = {}
        # Jobs, and controllers of pods, that are gone, as long as pods of theirs are there.
        self._deleted_jobs: set[str] = set()
        self._deleted_owners: set[str] = set()

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
        siblings = self._by_owner[row.owner_uid]
        siblings.discard(row.key)
        if not siblings:
            del self._by_owner[row.owner_uid]
        return {self.root(row.owner_uid)}

    def _drop_unused(self, owner: str) -> None:
        """Forget what was only remembered for the sake of pods that are gone now."""
        root = self.root(owner)
        if owner in self._deleted_owners and owner not in self._by_owner:
            self._deleted_owners.discard(owner)
            self._forget_claim(owner)
        if root in self._deleted_jobs and root not in self._by_root:
            self._deleted_jobs.discard(root)
            self.queues.pop(root, None)

    def node_changed(self, name: str) -> set[str]:
        """A node came, went or changed: pods that are being deleted there may count or not."""
        touched = set()
        for key in list(self._terminating_by_node.get(name, ())):
            row = self._rows[key]
            if self._is_live(row) != (key in self._counted):
                self._uncount_pod(row)
                self._count_pod(row)
                touched.add(self.root(row.owner_uid))
        return touched

    def set_job(self, uid: str, queue: str) -> set[str]:
        """A managed job is there; `queue` is its LocalQueue as `namespace/name`."""
        self._deleted_jobs.discard(uid)
        if self.queues.get(uid) == queue:
            return set()
        with self._reattributing(self._children.get(uid, ())) as touched:
            self.queues[uid] = queue
        return touched | {uid}

    def drop_job(self, uid: str) -> set[str]:
        """A job is gone, or is managed no more; its queue is known while pods of it live."""
        if uid in self._by_root:
            self._deleted_jobs.add(uid)
        else:
            self.queues.pop(uid, None)
        return {uid}

    def set_owner(self, uid: str, root: str, namespace: str = "") -> set[str]:
        """A controller of pods says that it belongs to another object, as a Job to its JobSet.

        Any user may write that. It counts once that object is known as a managed job of the same
        namespace.

        Args:
            uid: of the controller.
            root: uid of the object; "" when it belongs to none any more.
            namespace: of the controller; "" for any.
        """
        self._deleted_owners.discard(uid)
        claim = (root, namespace)
        if self._owner_claims.get(uid, ("", namespace)) == claim:
            return set()
        with self._reattributing((uid,)) as touched:
            self._forget_claim(uid)
            if root:
                self._owner_claims[uid] = claim
                self._children.setdefault(root, set()).add(uid)
        return touched

    def drop_owner(self, uid: str) -> None:
        """A controller of pods is gone; pods of it that live still belong to its root."""
        if uid in self._by_owner:
            self._deleted_owners.add(uid)
        else:
            self._deleted_owners.discard(uid)
            self._forget_claim(uid)

    def _forget_claim(self, uid: str) -> None:
        root, _ = self._owner_claims.pop(uid, ("", ""))
        if not root:
            return
        self._children[root].discard(uid)
        if not self._children[root]:
            del self._children[root]

    @contextmanager
    def _reattributing(self, owners: Iterable[str]) -> Iterator[set[str]]:
        """Take the pods of these controllers out of their accounts, and add them again."""
        keys = [key for uid in owners for key in self._by_owner.get(uid, ())]
        touched = {self.root(self._rows[key].owner_uid) for key in keys}
        for key in keys:
            self._uncount_pod(self._rows[key])
        yield touched
        for key in keys:
            self._count_pod(self._rows[key])
        touched |= {self.root(self._rows[key].owner_uid) for key in keys}

    # Questions.

    @property
    def claims(self) -> Mapping[str, tuple[str, str]]:
        """By uid of a controller of pods: the object it says it belongs to, and its namespace."""
        return self._owner_claims

    def is_managed(self, uid: str) -> bool:
        """Whether a managed job of that uid is there."""
        return uid in self.queues and uid not in self._deleted_jobs

    @property
    def deleted_jobs(self) -> Set[str]:
        """Jobs that are gone, while pods of theirs live."""
        return self._deleted_jobs

    def root(self, uid: str) -> str:
        """The uid of the job that pods of this controller belong to."""
        claim = self._owner_claims.get(uid)
        if claim is None:
            return uid
        root, namespace = claim
        queue = self.queues.get(root)
        known = queue is not None and (not namespace or queue.startswith(f"{namespace}/"))
        return root if known else uid

    def root_of(self, key: str) -> str | None:
        """The root of a pod; None for pods of nobody."""
        row = self._rows.get(key)
        return None if row is None else self.root(row.owner_uid)

    def count(self, root: str) -> LivePodCount:
        """How many pods of a job live."""
        account = self._by_root.get(root)
        if account is None:
            return LivePodCount()
        on_unreachable_node = len(account.pods) - account.running - account.terminating
        return LivePodCount(
            account.running, account.terminating, account.has_long_grace_period, on_unreachable_node
        )

    def roots(self) -> Iterable[str]:
        """All roots with pods."""
        return self._by_root.keys()

    def amounts(self, root: str) -> Mapping[str, int]:
        """What the living pods of a job take, by resource."""
        account = self._by_root.get(root)
        return {} if account is None else account.amounts

    def rows_of(self, root: str) -> Iterator[PodInfo]:
        """The living pods of a job."""
        account = self._by_root.get(root)
        for key in account.pods if account is not None else ():
            if key in self._counted:
                yield self._counted[key]

    # What counts.

    def _is_live(self, row: PodInfo) -> bool:
        """Whether a pod counts: one that is being deleted only where its end would be seen.

        A node that is gone or not ready reports nothing, so such a pod would hold quota until an
        administrator acts. Its room on the node stays taken.
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

    def _uncount_pod(self, row: PodInfo) -> None:
        root = self.root(row.owner_uid)
        account = self._by_root[root]
        account.pods.discard(row.key)
        if row.terminating:
            here = self._terminating_by_node[row.node]
            here.discard(row.key)
            if not here:
                del self._terminating_by_node[row.node]
        counted = self._counted.pop(row.key, None)
        if counted is not None:
            account.count(counted, -1)
        if not account.pods:
            del self._by_root[root]


def excess_over(
    amounts: Mapping[str, int], admitted_quota: Mapping[FlavorResource, int]
) -> dict[FlavorResource, int] | None:
    """What pods take beyond an assignment in which each resource has one flavor.

    Args:
        amounts: what the pods take, by resource.
        admitted_quota: by flavor and resource.

    Returns:
        By flavor and resource, without zeros; None when a resource has several flavors, so that
        the pods have to be looked at one by one.
    """
    found: dict[FlavorResource, int] = {}
    seen: set[str] = set()
    for pair, amount in admitted_quota.items():
        resource = pair[1]
        if resource in seen:
            return None
        seen.add(resource)
        more = amounts.get(resource, 0) - amount
        if more > 0:
            found[pair] = more
    return found


def amounts_by_flavor(
    rows: Iterable[PodInfo],
    choices: Mapping[str, tuple[str, ...]],
    nodes: Mapping[str, NodeInfo],
    flavors: Mapping[str, FlavorInfo],
    admitted_quota: Mapping[FlavorResource, int] = MappingProxyType({}),
) -> dict[FlavorResource, int]:
    """What pods take, by flavor and resource.

    Args:
        rows: the pods.
        choices: flavors that may be meant, by resource, the preferred one first.
        nodes: by name.
        flavors: by name.
        admitted_quota: of several flavors whose labels a node carries, the first one with so much
            left is meant; the first of all when none has.
    """
    total: dict[FlavorResource, int] = {}
    for row in sorted(rows, key=lambda row: row.key):
        node = nodes.get(row.node)
        for resource, amount in ((PODS, 1), *row.requests):
            names = choices.get(resource)
            if not names or not amount:
                continue
            pairs = [(name, resource) for name in _matching_flavors(node, names, flavors)]
            left = (p for p in pairs if total.get(p, 0) + amount <= admitted_quota.get(p, 0))
            pair = next(left, pairs[0])
            total[pair] = total.get(pair, 0) + amount
    return total


def _matching_flavors(
    node: NodeInfo | None, names: tuple[str, ...], flavors: Mapping[str, FlavorInfo]
) -> tuple[str, ...]:
    """The flavors whose labels a node carries; all of them when none fits."""
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
    """Flavors by resource of what was admitted_quota, in order."""
    found: dict[str, tuple[str, ...]] = {}
    for flavor, resource in admitted_quota:
        found[resource] = (*found.get(resource, ()), flavor)
    return found


def flavors_of_queue(queue: ClusterQueueInfo | None) -> dict[str, tuple[str, ...]]:
    """Flavors by resource that a ClusterQueue offers, in its order."""
    groups = queue.groups if queue is not None else ()
    return {resource: group.flavors for group in groups for resource in group.covered}
