"""The state of a cluster, updated event by event, and what two versions of an object show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from rackgate.api import names
from rackgate_invariants.cluster import Cluster
from rackgate_invariants.gang_starts import GangStarts
from rackgate_invariants.judge import judge
from rackgate_invariants.rows.jobs import mark_unmanaged
from rackgate_invariants.rows.rows import OUR_GATES, JobRow, NodeRow, PodRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach


@dataclass(slots=True)
class ClusterState:
    """All rows.

    Attributes:
        unread: what is not watched, plural to reason.
        whole: all namespaces are watched.
        unmanaged: namespaces whose jobs are not managed.
        rows: by attribute of `Cluster`, then by key.
        changed: a row changed since the last check.
        gang_starts: the first release of each gang.
    """

    unread: dict[str, str] = field(default_factory=dict)
    whole: bool = True
    unmanaged: frozenset[str] = frozenset()
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    changed: bool = True
    gang_starts: GangStarts = field(init=False)
    _judged: list[Breach] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gang_starts = GangStarts(self.rows)

    def put(self, attribute: str, key: str, row: Any) -> None:
        """Add or replace an object."""
        rows = self.rows.setdefault(attribute, {})
        before = rows.get(key)
        if isinstance(row, PodRow) and before is not None:
            row = _with_former_owner(before, row)
        elif isinstance(row, JobRow):
            row = mark_unmanaged(row, self.unmanaged)
        rows[key] = row
        if not (isinstance(row, NodeRow) and before is not None and _same_node(before, row)):
            self.changed = True

    def drop(self, attribute: str, key: str) -> None:
        """Remove an object."""
        if self.rows.get(attribute, {}).pop(key, None) is not None:
            self.changed = True

    def slices_of(self, parent: WorkloadRow) -> dict[str, WorkloadRow]:
        """The slices of a Workload, by uid."""
        every = self.rows.get("workloads", {}).values()
        return {one.uid: one for one in every if one.is_slice and one.owner == parent.uid}

    def judge(self, now: float) -> list[Breach]:
        """All breaches that the rows show now, sorted."""
        # Deletions become overdue with time.
        terminating = any(pod.terminating for pod in self.rows.get("pods", {}).values())
        if self.changed or terminating:
            self._judged, self.changed = judge(self.cluster(now)), False
        return self._judged

    def cluster(self, now: float) -> Cluster:
        """The rows as one reading; changes with this state."""
        rows = {attribute: rows.values() for attribute, rows in self.rows.items()}
        return Cluster(**rows, read_at=now, unread=self.unread, whole=self.whole)


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
