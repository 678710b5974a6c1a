"""A cluster followed event by event: what changed is judged again, the rest is remembered.

Pure: folds rows, never asks anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from rackgate.api import names
from rackgate_invariants import judge
from rackgate_invariants.cluster import Cluster, Group
from rackgate_invariants.nodes import Places
from rackgate_invariants.owners import Owners
from rackgate_invariants.rows.jobs import left_alone
from rackgate_invariants.rows.rows import OUR_GATES, JobRow, NodeRow, PodRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.rules.charges import Terms, terms_of


@dataclass(slots=True)
class World:
    """All rows, and what the last judgement of each owner found.

    Attributes:
        unread: what is not followed, plural to reason.
        whole: all namespaces are followed.
        unmanaged: namespaces whose jobs are left alone.
        rows: by attribute of `Cluster`, then by key.
        changed: something was folded since the last judgement.
    """

    unread: dict[str, str] = field(default_factory=dict)
    whole: bool = True
    unmanaged: frozenset[str] = frozenset()
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    changed: bool = True
    _groups: dict[str, Group] = field(default_factory=dict)
    _owners: Owners = field(default_factory=Owners)
    # uid of a JobSet or RayCluster -> Jobs that name it as their controller, whether or not it is
    _claims: dict[str, dict[str, JobRow]] = field(default_factory=dict)
    _dirty: set[str] = field(default_factory=set)
    _ending: set[str] = field(default_factory=set)
    _found: dict[str, list[Breach]] = field(default_factory=dict)
    _of_all: list[Breach] = field(default_factory=list)
    _places: Places | None = None
    _terms: Terms = field(default_factory=lambda: Terms({}, {}))

    def __post_init__(self) -> None:
        """Owners of kinds that cannot be read are believed."""
        self._owners.unread = self.unread

    def put(self, attribute: str, key: str, row: Any) -> None:
        """An object is there, or changed."""
        rows = self.rows.setdefault(attribute, {})
        before = rows.get(key)
        if isinstance(row, PodRow) and before is not None:
            row = _remembering(before, row)
        rows[key] = row
        if isinstance(row, NodeRow) and before is not None and _same_node(before, row):
            return
        self.changed = True
        if isinstance(row, JobRow):
            row = rows[key] = left_alone(row, self.unmanaged)
            self._put_job(attribute, before, row)
            return
        if before is not None:
            self._part(attribute, before)
        was, now = _lead(before), _lead(row)
        if was != now:
            self._follow(was, None)
            self._follow(now, row)
        self._join(attribute, row)

    def drop(self, attribute: str, key: str) -> None:
        """An object is gone."""
        before = self.rows.get(attribute, {}).pop(key, None)
        if before is not None:
            self.changed = True
            if isinstance(before, JobRow):
                self._put_job(attribute, before, None)
                return
            self._part(attribute, before)
            self._follow(_lead(before), None)

    def _put_job(self, attribute: str, before: JobRow | None, row: JobRow | None) -> None:
        """A job came, changed or went, and with it what names it as its controller."""
        if before is not None:
            self._claims.get(before.part_of, {}).pop(before.key, None)
            if before.part_of and not self._claims.get(before.part_of):
                self._claims.pop(before.part_of, None)
        if row is not None and row.part_of:
            self._claims.setdefault(row.part_of, {})[row.key] = row
        maker = attribute != "jobs"
        gone = before if before is not None and (row is None or row.uid != before.uid) else None
        came = row if row is not None and (before is None or row.uid != before.uid) else None
        self._settle_job(before, row)
        if maker and gone is not None:
            self._owners.makers.pop(gone.uid, None)
            self._settle_parts(gone.uid)
        if maker and came is not None:
            self._owners.know([came])
            self._settle_parts(came.uid)

    def _settle_parts(self, maker: str) -> None:
        """A JobSet or RayCluster came or went: Jobs that name it are its parts, or are not."""
        for job in list(self._claims.get(maker, {}).values()):
            self._settle_job(job, job)

    def _settle_job(self, before: JobRow | None, row: JobRow | None) -> None:
        """File a job anew, with the pods and Workloads that follow it."""
        if before is not None:
            self._part("jobs", before)
        uids = {job.uid: self._owners.state(job.uid) for job in (before, row) if job is not None}
        if before is not None:
            self._owners.leave(before)
        if row is not None and self._owners.made(row):
            self._owners.join(row)
        for uid, was in uids.items():
            if self._owners.state(uid) != was:
                self._move(uid, was[0])
        if row is not None:
            self._join("jobs", row)

    def slices_of(self, parent: WorkloadRow) -> dict[str, WorkloadRow]:
        """The slices of a Workload that are there, by uid."""
        group = self._groups.get(self._owners.root(parent.lead))
        every = group.workloads.values() if group is not None else ()
        return {one.uid: one for one in every if one.is_slice and one.owner == parent.uid}

    def _join(self, attribute: str, row: Any) -> None:
        if isinstance(row, PodRow):
            home = self._owners.home(row)
            self._group(home).pods[row.key] = row
            if not row.lead:
                self._touch(row)
            if row.terminating:
                self._ending.add(home)
        elif isinstance(row, WorkloadRow):
            self._group(self._owners.root(row.lead)).workloads[row.key] = row
        elif isinstance(row, JobRow):
            root = self._owners.root(row.uid)
            if root != row.uid:
                self._group(root).parts[row.key] = row
            else:
                self._group(root).job = row
        elif not attribute.endswith("queues"):
            self._places = None

    def _part(self, attribute: str, row: Any) -> None:
        if isinstance(row, PodRow):
            self._group(self._owners.home(row)).pods.pop(row.key, None)
            if not row.lead:
                self._touch(row)
        elif isinstance(row, WorkloadRow):
            self._group(self._owners.root(row.lead)).workloads.pop(row.key, None)
        elif isinstance(row, JobRow):
            root = self._owners.root(row.uid)
            if root != row.uid:
                self._group(root).parts.pop(row.key, None)
            else:
                self._group(root).job = None
        elif not attribute.endswith("queues"):
            self._places = None

    def _touch(self, pod: PodRow) -> None:
        """Judge the job of the Workload that a pod without a controller names."""
        workload = self.rows.get("workloads", {}).get(f"{pod.namespace}/{pod.workload}")
        if workload is not None:
            self._group(self._owners.root(workload.lead))

    def _follow(self, lead: tuple[str, str] | None, row: Any) -> None:
        """What belongs to the first uid of `lead` belongs to the second; to itself without `row`.

        Objects come in any order: a slice may be there before its parent.
        """
        if lead is None:
            return
        uid, root = lead
        old = self._owners.root(uid)
        if row is None:
            self._owners.roots.pop(uid, None)
        else:
            self._owners.roots[uid] = root
        self._move(uid, old)

    def _move(self, uid: str, old: str) -> None:
        """What followed `uid` to the group `old` goes to where it leads now.

        A pod may be there before the child Job that leads to its JobSet.
        """
        for root in {old, uid, ""}:
            source = self._groups.get(root)
            if source is None:
                continue
            pods = [
                pod
                for pod in source.pods.values()
                if pod.lead == uid and self._owners.home(pod) != root
            ]
            workloads = [
                one
                for one in source.workloads.values()
                if one.lead == uid and self._owners.root(uid) != root
            ]
            if not (pods or workloads):
                continue
            self._group(root)
            for pod in pods:
                home = self._owners.home(pod)
                self._group(home).pods[pod.key] = source.pods.pop(pod.key)
                if pod.terminating:
                    self._ending.add(home)
            for one in workloads:
                target = self._group(self._owners.root(uid))
                target.workloads[one.key] = source.workloads.pop(one.key)

    def _group(self, root: str) -> Group:
        self._dirty.add(root)
        group = self._groups.setdefault(root, Group(root))
        group.lives = group.account = None
        return group

    def judge(self, now: float) -> list[Breach]:
        """Everything that the rows show at this moment, sorted."""
        cluster = self.cluster(now)
        if self._places is None:
            self._places = Places(cluster.nodes, cluster.flavors, cluster.topologies)
            self._dirty.update(self._groups)
            for group in self._groups.values():
                group.lives = group.account = None
        if self.changed:
            terms = terms_of(cluster)
            if self._terms != terms:
                self._terms = terms
            self._of_all = judge.of_all(cluster, self._groups, self._places, self._terms)
        # Deletions become overdue with time; what was found once may depend on other owners.
        for owner in {*self._dirty, *self._ending, *self._found}:
            self._judge(owner, self._places, now)
        self._dirty.clear()
        self.changed = False
        every = [*self._of_all, *(one for several in self._found.values() for one in several)]
        return judge.judged(every, cluster)

    def _judge(self, owner: str, places: Places, now: float) -> None:
        self._found.pop(owner, None)
        group = self._groups.get(owner)
        if group is None or group.empty:
            self._groups.pop(owner, None)
            self._ending.discard(owner)
            return
        workloads = self.rows.get("workloads", {})
        found = judge.of_group(group, self._groups, places, workloads, now)
        if found:
            self._found[owner] = found
        if owner in self._ending and not any(pod.terminating for pod in group.pods.values()):
            self._ending.discard(owner)

    def cluster(self, now: float) -> Cluster:
        """The rows as one reading; a live view."""
        rows = {attribute: rows.values() for attribute, rows in self.rows.items()}
        return Cluster(**rows, read_at=now, unread=self.unread, whole=self.whole)


def _lead(row: Any) -> tuple[str, str] | None:
    """The uid of a Workload that may have slices, and that of the job behind it."""
    if isinstance(row, WorkloadRow) and row.lead and not row.is_slice:
        return row.uid, row.lead
    return None


def _same_node(before: NodeRow, after: NodeRow) -> bool:
    """Whether only what no rule looks at differs: nodes report often."""
    return (before.labels, before.allocatable, before.ready) == (
        after.labels,
        after.allocatable,
        after.ready,
    )


def _remembering(before: PodRow, after: PodRow) -> PodRow:
    """A pod that loses its controller is still known as its pod."""
    lost = before.uid == after.uid and before.lead and not after.lead
    return replace(after, former=before.lead) if lost else after


def gates_taken(before: PodRow, after: PodRow) -> Iterator[Breach]:
    """Gates that vanished in the one write between two versions of a pod, and who took them.

    The managed fields tell whether the ungater wrote. They name nobody for a gate alone, so the
    loss of ours counts only when a place came with it; without a place the pod itself shows it.
    """
    lost = {*before.gates} - {*after.gates}
    ungater = after.released_at > before.released_at
    if names.TOPOLOGY_GATE in lost and not ungater and before.selector != after.selector:
        found = f"gate {names.TOPOLOGY_GATE} was taken by somebody else than the ungater"
        yield Breach("gate-taken", after.key, found)
    foreign = sorted(lost - OUR_GATES)
    if foreign and ungater:
        found = f"the ungater took gate {', '.join(foreign)}"
        yield Breach("foreign-gate-taken", after.key, found)
