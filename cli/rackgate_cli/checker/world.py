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
from rackgate_cli.checker.rows import JobRow, NodeRow, PodRow, WorkloadRow
from rackgate_cli.checker.rules import Breach

OURS = frozenset({names.TOPOLOGY_GATE, names.ELASTIC_GATE})


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
        self._join(attribute, row)

    def drop(self, attribute: str, key: str) -> None:
        """An object is gone."""
        before = self.rows.get(attribute, {}).pop(key, None)
        if before is not None:
            self.changed = True
            self._part(attribute, before)

    def _join(self, attribute: str, row: Any) -> None:
        if isinstance(row, PodRow):
            self._group(row.owner).pods[row.key] = row
            if row.terminating:
                self._ending.add(row.owner)
        elif isinstance(row, WorkloadRow):
            self._group(row.owner).workloads[row.key] = row
        elif isinstance(row, JobRow):
            self._group(row.uid).job = row
        elif not attribute.endswith("queues"):
            self._places = None

    def _part(self, attribute: str, row: Any) -> None:
        owner = row.uid if isinstance(row, JobRow) else getattr(row, "owner", "")
        if isinstance(row, PodRow):
            self._group(owner).pods.pop(row.key, None)
        elif isinstance(row, WorkloadRow):
            self._group(owner).workloads.pop(row.key, None)
        elif isinstance(row, JobRow):
            self._group(owner).job = None
        elif not attribute.endswith("queues"):
            self._places = None

    def _group(self, owner: str) -> Group:
        self._dirty.add(owner)
        return self._groups.setdefault(owner, Group())

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
    foreign = sorted(lost - OURS)
    if foreign and ungater:
        found = f"the ungater took gate {', '.join(foreign)}"
        yield Breach("foreign-gate-taken", after.key, found)
