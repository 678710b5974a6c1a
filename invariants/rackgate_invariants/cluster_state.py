"""The state of a cluster, updated event by event: only changed groups are checked again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from rackgate.api import names
from rackgate_invariants import judge
from rackgate_invariants.cluster import Cluster, ObjectGroup, OwnerIndex
from rackgate_invariants.node_index import NodeIndex
from rackgate_invariants.rows.jobs import mark_unmanaged
from rackgate_invariants.rows.rows import OUR_GATES, JobRow, NodeRow, PodRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.rules.job_usage import QueueIndex, queue_index_of


@dataclass(slots=True)
class ClusterState:
    """All rows, and the breaches of each group.

    Attributes:
        unread: what is not watched, plural to reason.
        whole: all namespaces are watched.
        unmanaged: namespaces whose jobs are not managed.
        rows: by attribute of `Cluster`, then by key.
        changed: a row changed since the last check.
    """

    unread: dict[str, str] = field(default_factory=dict)
    whole: bool = True
    unmanaged: frozenset[str] = frozenset()
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    changed: bool = True
    _groups: dict[str, ObjectGroup] = field(default_factory=dict)
    _owners: OwnerIndex = field(default_factory=OwnerIndex)
    # uid of a JobSet or RayCluster -> Jobs that claim it as their controller
    _jobs_by_parent: dict[str, dict[str, JobRow]] = field(default_factory=dict)
    _dirty: set[str] = field(default_factory=set)
    _terminating: set[str] = field(default_factory=set)
    _breaches_by_root: dict[str, list[Breach]] = field(default_factory=dict)
    _cluster_breaches: list[Breach] = field(default_factory=list)
    _node_index: NodeIndex | None = None
    _queue_index: QueueIndex = field(default_factory=lambda: QueueIndex({}, {}))

    def __post_init__(self) -> None:
        self._owners.unread = self.unread

    def put(self, attribute: str, key: str, row: Any) -> None:
        """Add or replace an object."""
        rows = self.rows.setdefault(attribute, {})
        before = rows.get(key)
        if isinstance(row, PodRow) and before is not None:
            row = _with_former_owner(before, row)
        rows[key] = row
        if isinstance(row, NodeRow) and before is not None and _same_node(before, row):
            return
        self.changed = True
        if isinstance(row, JobRow):
            row = rows[key] = mark_unmanaged(row, self.unmanaged)
            self._put_job(attribute, before, row)
            return
        if before is not None:
            self._remove_from_group(attribute, before)
        was, now = _root_of(before), _root_of(row)
        if was != now:
            self._set_root(was, None)
            self._set_root(now, row)
        self._add_to_group(attribute, row)

    def drop(self, attribute: str, key: str) -> None:
        """Remove an object."""
        before = self.rows.get(attribute, {}).pop(key, None)
        if before is not None:
            self.changed = True
            if isinstance(before, JobRow):
                self._put_job(attribute, before, None)
                return
            self._remove_from_group(attribute, before)
            self._set_root(_root_of(before), None)

    def _put_job(self, attribute: str, before: JobRow | None, row: JobRow | None) -> None:
        """Regroup a job that was added, changed or removed, and its child Jobs."""
        if before is not None:
            self._jobs_by_parent.get(before.parent_uid, {}).pop(before.key, None)
            if before.parent_uid and not self._jobs_by_parent.get(before.parent_uid):
                self._jobs_by_parent.pop(before.parent_uid, None)
        if row is not None and row.parent_uid:
            self._jobs_by_parent.setdefault(row.parent_uid, {})[row.key] = row
        may_have_children = attribute != "jobs"
        gone = before if before is not None and (row is None or row.uid != before.uid) else None
        came = row if row is not None and (before is None or row.uid != before.uid) else None
        self._regroup_job(before, row)
        if may_have_children and gone is not None:
            self._owners.parents.pop(gone.uid, None)
            self._regroup_child_jobs(gone.uid)
        if may_have_children and came is not None:
            self._owners.add_parents([came])
            self._regroup_child_jobs(came.uid)

    def _regroup_child_jobs(self, parent: str) -> None:
        for job in list(self._jobs_by_parent.get(parent, {}).values()):
            self._regroup_job(job, job)

    def _regroup_job(self, before: JobRow | None, row: JobRow | None) -> None:
        """Group a job again, with the pods and Workloads that belong to it."""
        if before is not None:
            self._remove_from_group("jobs", before)
        uids = {
            job.uid: self._owners.grouping_state(job.uid)
            for job in (before, row)
            if job is not None
        }
        if before is not None:
            self._owners.remove_child_job(before)
        if row is not None and self._owners.is_child_job(row):
            self._owners.add_child_job(row)
        for uid, was in uids.items():
            if self._owners.grouping_state(uid) != was:
                self._move(uid, was[0])
        if row is not None:
            self._add_to_group("jobs", row)

    def slices_of(self, parent: WorkloadRow) -> dict[str, WorkloadRow]:
        """The slices of a Workload, by uid."""
        group = self._groups.get(self._owners.root(parent.owning_uid))
        every = group.workloads.values() if group is not None else ()
        return {one.uid: one for one in every if one.is_slice and one.owner == parent.uid}

    def _add_to_group(self, attribute: str, row: Any) -> None:
        if isinstance(row, PodRow):
            home = self._owners.group_key_of(row)
            self._group(home).pods[row.key] = row
            if not row.owning_uid:
                self._mark_workload_dirty(row)
            if row.terminating:
                self._terminating.add(home)
        elif isinstance(row, WorkloadRow):
            self._group(self._owners.root(row.owning_uid)).workloads[row.key] = row
        elif isinstance(row, JobRow):
            root = self._owners.root(row.uid)
            if root != row.uid:
                self._group(root).child_jobs[row.key] = row
            else:
                self._group(root).job = row
        elif not attribute.endswith("queues"):
            self._node_index = None

    def _remove_from_group(self, attribute: str, row: Any) -> None:
        if isinstance(row, PodRow):
            self._group(self._owners.group_key_of(row)).pods.pop(row.key, None)
            if not row.owning_uid:
                self._mark_workload_dirty(row)
        elif isinstance(row, WorkloadRow):
            self._group(self._owners.root(row.owning_uid)).workloads.pop(row.key, None)
        elif isinstance(row, JobRow):
            root = self._owners.root(row.uid)
            if root != row.uid:
                self._group(root).child_jobs.pop(row.key, None)
            else:
                self._group(root).job = None
        elif not attribute.endswith("queues"):
            self._node_index = None

    def _mark_workload_dirty(self, pod: PodRow) -> None:
        """Check the job of the Workload that a pod without a controller names."""
        workload = self.rows.get("workloads", {}).get(f"{pod.namespace}/{pod.workload}")
        if workload is not None:
            self._group(self._owners.root(workload.owning_uid))

    def _set_root(self, owning_uid: tuple[str, str] | None, row: Any) -> None:
        """Record which job a Workload leads to; without `row`, remove it.

        Objects arrive in any order: a slice may arrive before its parent.
        """
        if owning_uid is None:
            return
        uid, root = owning_uid
        old = self._owners.root(uid)
        if row is None:
            self._owners.roots.pop(uid, None)
        else:
            self._owners.roots[uid] = root
        self._move(uid, old)

    def _move(self, uid: str, old: str) -> None:
        """Move the dependents of `uid` from the group `old` to the group where it leads now.

        A pod may arrive before the child Job that leads to its JobSet.
        """
        for root in {old, uid, ""}:
            source = self._groups.get(root)
            if source is None:
                continue
            pods = [
                pod
                for pod in source.pods.values()
                if pod.owning_uid == uid and self._owners.group_key_of(pod) != root
            ]
            workloads = [
                one
                for one in source.workloads.values()
                if one.owning_uid == uid and self._owners.root(uid) != root
            ]
            if not (pods or workloads):
                continue
            self._group(root)
            for pod in pods:
                home = self._owners.group_key_of(pod)
                self._group(home).pods[pod.key] = source.pods.pop(pod.key)
                if pod.terminating:
                    self._terminating.add(home)
            for one in workloads:
                target = self._group(self._owners.root(uid))
                target.workloads[one.key] = source.workloads.pop(one.key)

    def _group(self, root: str) -> ObjectGroup:
        self._dirty.add(root)
        group = self._groups.setdefault(root, ObjectGroup(root))
        group.pods_in_use = group.job_usage = None
        return group

    def judge(self, now: float) -> list[Breach]:
        """All breaches that the rows show now, sorted."""
        cluster = self.cluster(now)
        if self._node_index is None:
            self._node_index = NodeIndex(cluster.nodes, cluster.flavors, cluster.topologies)
            self._dirty.update(self._groups)
            for group in self._groups.values():
                group.pods_in_use = group.job_usage = None
        if self.changed:
            queue_index = queue_index_of(cluster)
            if self._queue_index != queue_index:
                self._queue_index = queue_index
            self._cluster_breaches = judge.check_cluster(
                cluster, self._groups, self._node_index, self._queue_index
            )
        # Deletions become overdue with time; cached breaches may depend on other groups.
        for owner in {*self._dirty, *self._terminating, *self._breaches_by_root}:
            self._judge(owner, self._node_index, now)
        self._dirty.clear()
        self.changed = False
        every = [
            *self._cluster_breaches,
            *(one for several in self._breaches_by_root.values() for one in several),
        ]
        return judge.without_skipped(every, cluster)

    def _judge(self, owner: str, node_index: NodeIndex, now: float) -> None:
        self._breaches_by_root.pop(owner, None)
        group = self._groups.get(owner)
        if group is None or group.empty:
            self._groups.pop(owner, None)
            self._terminating.discard(owner)
            return
        workloads = self.rows.get("workloads", {})
        found = list(judge.check_group(group, self._groups, node_index, workloads, now))
        if found:
            self._breaches_by_root[owner] = found
        if owner in self._terminating and not any(pod.terminating for pod in group.pods.values()):
            self._terminating.discard(owner)

    def cluster(self, now: float) -> Cluster:
        """The rows as one reading; changes with this state."""
        rows = {attribute: rows.values() for attribute, rows in self.rows.items()}
        return Cluster(**rows, read_at=now, unread=self.unread, whole=self.whole)


def _root_of(row: Any) -> tuple[str, str] | None:
    """The uid of a Workload that may have slices, and the uid of its job."""
    if isinstance(row, WorkloadRow) and row.owning_uid and not row.is_slice:
        return row.uid, row.owning_uid
    return None


def _same_node(before: NodeRow, after: NodeRow) -> bool:
    """Whether they differ only in fields that no rule reads: nodes report their status often."""
    return (before.labels, before.allocatable, before.ready) == (
        after.labels,
        after.allocatable,
        after.ready,
    )


def _with_former_owner(before: PodRow, after: PodRow) -> PodRow:
    """The pod, with its last controller if it has none now."""
    lost = before.uid == after.uid and before.owning_uid and not after.owning_uid
    return replace(after, former_owner=before.owning_uid) if lost else after


def check_removed_gates(before: PodRow, after: PodRow) -> Iterator[Breach]:
    """Gates that one write removed from a pod, and who removed them.

    The managed fields show whether the ungater wrote, but not who removed a gate. So a removed
    topology gate counts only if the nodeSelector changed with it. Otherwise the rule
    `past-the-gate` finds the pod.
    """
    lost = {*before.gates} - {*after.gates}
    ungater = after.ungater_wrote_at > before.ungater_wrote_at
    if names.TOPOLOGY_GATE in lost and not ungater and before.selector != after.selector:
        found = f"gate {names.TOPOLOGY_GATE} was removed by something other than the ungater"
        yield Breach("gate-taken", after.key, found)
    foreign = sorted(lost - OUR_GATES)
    if foreign and ungater:
        found = f"the ungater removed gate {', '.join(foreign)}"
        yield Breach("foreign-gate-taken", after.key, found)
