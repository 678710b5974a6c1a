"""A cluster followed event by event: what changed is judged again, the rest is remembered.

Pure: folds rows, never asks anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rackgate.api import names
from rackgate_cli.checker import judge
from rackgate_cli.checker.cluster import Cluster, Group, Places
from rackgate_cli.checker.rows import OUR_GATES, JobRow, NodeRow, PodRow, WorkloadRow
from rackgate_cli.checker.rules import Breach


@dataclass(slots=True)
class World:
    """All rows, and what the last judgement of each owner found.

    Attributes:
        unread: what is not followed, plural to reason.
        whole: all namespaces are followed.
        rows: by attribute of `Cluster`, then by key.
        changed: something was folded since the last judgement.
    """

    unread: dict[str, str] = field(default_factory=dict)
    whole: bool = True
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    changed: bool = True
    _groups: dict[str, Group] = field(default_factory=dict)
    # uid of a child Job, or of a Workload that may have slices -> uid of the job behind it
    _roots: dict[str, str] = field(default_factory=dict)
    _dirty: set[str] = field(default_factory=set)
    _ending: set[str] = field(default_factory=set)
    _found: dict[str, list[Breach]] = field(default_factory=dict)
    _of_all: list[Breach] = field(default_factory=list)
    _places: Places | None = None

    def put(self, attribute: str, key: str, row: Any) -> None:
        """An object is there, or changed."""
        rows = self.rows.setdefault(attribute, {})
        before = rows.get(key)
        rows[key] = row
        if isinstance(row, NodeRow) and before is not None and _same_node(before, row):
            return
        self.changed = True
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
            self._part(attribute, before)
            self._follow(_lead(before), None)

    def slices_of(self, parent: WorkloadRow) -> dict[str, WorkloadRow]:
        """The slices of a Workload that are there, by uid."""
        group = self._groups.get(self._root(parent.owner))
        every = group.workloads.values() if group is not None else ()
        return {one.uid: one for one in every if one.is_slice and one.owner == parent.uid}

    def _join(self, attribute: str, row: Any) -> None:
        if isinstance(row, PodRow):
            root = self._root(row.owner)
            self._group(root).pods[row.key] = row
            if row.terminating:
                self._ending.add(root)
        elif isinstance(row, WorkloadRow):
            self._group(self._root(row.owner)).workloads[row.key] = row
        elif isinstance(row, JobRow):
            if row.part_of:
                self._group(row.part_of).parts[row.key] = row
            else:
                self._group(row.uid).job = row
        elif not attribute.endswith("queues"):
            self._places = None

    def _part(self, attribute: str, row: Any) -> None:
        if isinstance(row, PodRow):
            self._group(self._root(row.owner)).pods.pop(row.key, None)
        elif isinstance(row, WorkloadRow):
            self._group(self._root(row.owner)).workloads.pop(row.key, None)
        elif isinstance(row, JobRow):
            if row.part_of:
                self._group(row.part_of).parts.pop(row.key, None)
            else:
                self._group(row.uid).job = None
        elif not attribute.endswith("queues"):
            self._places = None

    def _root(self, owner: str) -> str:
        return self._roots.get(owner, owner)

    def _follow(self, lead: tuple[str, str] | None, row: Any) -> None:
        """What belongs to the first uid of `lead` belongs to the second; to itself without `row`.

        Objects come in any order: a pod may be there before the child Job that leads to its
        JobSet.
        """
        if lead is None:
            return
        uid, root = lead
        old = self._root(uid)
        if row is None:
            self._roots.pop(uid, None)
        else:
            self._roots[uid] = root
        new = self._root(uid)
        source = self._groups.get(old)
        if old == new or source is None:
            return
        pods = [pod for pod in source.pods.values() if pod.owner == uid]
        workloads = [one for one in source.workloads.values() if one.owner == uid]
        if not (pods or workloads):
            return
        self._dirty.add(old)
        target = self._group(new)
        for pod in pods:
            target.pods[pod.key] = source.pods.pop(pod.key)
        for one in workloads:
            target.workloads[one.key] = source.workloads.pop(one.key)
        if any(pod.terminating for pod in pods):
            self._ending.add(new)

    def _group(self, root: str) -> Group:
        self._dirty.add(root)
        return self._groups.setdefault(root, Group(root))

    def judge(self, now: float) -> list[Breach]:
        """Everything that the rows show at this moment, sorted."""
        cluster = self.cluster(now)
        if self._places is None:
            self._places = Places(cluster.nodes, cluster.flavors, cluster.topologies)
            self._dirty.update(self._groups)
        if self.changed:
            self._of_all = judge.of_all(cluster, self._groups, self._places)
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
        found = judge.of_group(group, places, self.rows.get("workloads", {}), now)
        if found:
            self._found[owner] = found
        if owner in self._ending and not any(pod.terminating for pod in group.pods.values()):
            self._ending.discard(owner)

    def cluster(self, now: float) -> Cluster:
        """The rows as one reading; a live view."""
        rows = {attribute: rows.values() for attribute, rows in self.rows.items()}
        return Cluster(**rows, read_at=now, unread=self.unread, whole=self.whole)


def _lead(row: Any) -> tuple[str, str] | None:
    """A uid that others name as their owner, and that of the job behind it."""
    if isinstance(row, JobRow) and row.part_of:
        return row.uid, row.part_of
    if isinstance(row, WorkloadRow) and row.owner and not row.is_slice:
        return row.uid, row.owner
    return None


def _same_node(before: NodeRow, after: NodeRow) -> bool:
    """Whether only what no rule looks at differs: nodes report often."""
    return before.labels == after.labels and before.allocatable == after.allocatable


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
