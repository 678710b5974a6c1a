"""Which bound pods are charged to their nodes, and which are covered by their Workload.

A pod is covered when its Workload holds an assignment for its PodSet, its controller is the
Workload's owner or belongs to it (a Job of a JobSet), and its node lies in an assigned domain that
is not full yet. Every other bound pod is charged to its node until it is gone: foreign pods, pods
of finished or evicted Workloads (C4), pods in domains a newer assignment dropped (U2), and pods
beyond a domain's count.
A pod that is being deleted is still covered: the ungater assigns its domain to no other pod before
it is gone (CH-31), so its capacity is charged once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from rackgate.jobframework.managed import is_tas_pod
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.cache.indexes import discard
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.workload.info import PodInfo, PodShape

ChargeNode = Callable[[str, PodShape, int], None]


@dataclass(slots=True)
class _Group:
    """Pods that name one PodSet of one Workload.

    Attributes:
        counts: pods that each assigned domain takes; empty without an assignment.
        present: pods found in each assigned domain, surplus included.
        charged: keys of pods that are charged to their nodes.
        stale: coverage must be computed again.
    """

    owner_uid: str = ""
    assignment: TopologyAssignment | None = None
    counts: dict[Domain, int] = field(default_factory=dict)
    pods: dict[str, PodInfo] = field(default_factory=dict)
    present: dict[Domain, int] = field(default_factory=dict)
    charged: set[str] = field(default_factory=set)
    stale: bool = False


class BoundPods:
    """All bound pods. Methods return whether charges changed, or will with `update_coverage`.

    Attributes:
        rows: by `namespace/name`.
        charged: pods charged to each node, by shape.
        owners: uid of a controller of pods to the uid of its owner.
    """

    def __init__(self, nodes: Mapping[str, NodeInfo], charge: ChargeNode) -> None:
        """`nodes` is read for the domain of a pod; `charge` is called for every change."""
        self.rows: dict[str, PodInfo] = {}
        self.charged: dict[str, dict[PodShape, int]] = {}
        self.owners: dict[str, str] = {}
        # Deleted owners, kept as long as they have pods.
        self._deleted_owners: set[str] = set()
        self._by_owner: dict[str, set[str]] = {}
        self._nodes, self._on_charge = nodes, charge
        self._by_node: dict[str, set[str]] = {}
        self._groups: dict[tuple[str, str], _Group] = {}
        self._podsets: dict[str, set[str]] = {}
        self._stale: set[tuple[str, str]] = set()

    def set(self, row: PodInfo) -> bool:
        """Add or replace a pod."""
        old = self.rows.get(row.key)
        if old == row:
            return False
        if old is not None and row == replace(
            old, terminating=row.terminating, has_long_grace_period=row.has_long_grace_period
        ):
            self.rows[row.key] = row  # it is being deleted now: its charge does not change
            if row.workload:
                self._groups[row.workload, row.podset].pods[row.key] = row
            return False
        changed = self.drop(row.key)
        self.rows[row.key] = row
        self._by_node.setdefault(row.node, set()).add(row.key)
        if not row.workload:
            self._charge(row, 1)
            return True
        self._by_owner.setdefault(row.owner_uid, set()).add(row.key)
        group = self._group(row.workload, row.podset)
        group.pods[row.key] = row
        return self._add_to_group((row.workload, row.podset), group, row) or changed

    def drop(self, key: str) -> bool:
        """Remove a pod, known or not."""
        row = self.rows.pop(key, None)
        if row is None:
            return False
        discard(self._by_node, row.node, key)
        if not row.workload:
            self._charge(row, -1)
            return True
        name = (row.workload, row.podset)
        group = self._groups[name]
        del group.pods[key]
        changed = self._remove_from_group(name, group, row)
        self._drop_empty_group(name)
        discard(self._by_owner, row.owner_uid, key)
        if row.owner_uid not in self._by_owner:
            self._drop_deleted_owner(row.owner_uid)
        return changed

    def set_assignments(
        self, workload: str, owner_uid: str, assignments: Mapping[str, TopologyAssignment]
    ) -> None:
        """Set the assignments of a Workload by PodSet; none for a Workload without quota."""
        for podset in self._podsets.get(workload, set()) | set(assignments):
            assignment = assignments.get(podset)
            group = self._group(workload, podset)
            if (group.assignment, group.owner_uid) != (assignment, owner_uid):
                group.assignment, group.owner_uid = assignment, owner_uid
                group.counts = dict(assignment.domains) if assignment else {}
                self._mark_stale((workload, podset), group)
            if not group.pods and assignment is None:
                self.update_group_coverage((workload, podset))
                self._drop_empty_group((workload, podset))

    def set_owner(self, uid: str, root: str) -> bool:
        """A controller of pods belongs to another object, as a Job to its JobSet; "": to none."""
        self._deleted_owners.discard(uid)
        if self.owners.get(uid, "") == root:
            return False
        if root:
            self.owners[uid] = root
        else:
            del self.owners[uid]
        keys = self._by_owner.get(uid, ())
        for name in {(self.rows[key].workload, self.rows[key].podset) for key in keys}:
            self._mark_stale(name, self._groups[name])
        return bool(keys)

    def drop_owner(self, uid: str) -> None:
        """A controller of pods is deleted; its pods, whose owner is kept, may end later."""
        self._deleted_owners.add(uid)
        if uid not in self._by_owner:
            self._drop_deleted_owner(uid)

    def _drop_deleted_owner(self, uid: str) -> None:
        if uid in self._deleted_owners:
            self._deleted_owners.discard(uid)
            self.owners.pop(uid, None)

    def present(self, workload: str, podset: str) -> Mapping[Domain, int]:
        """Pods of a PodSet in each of its assigned domains, as of the last `update_coverage`."""
        group = self._groups.get((workload, podset))
        return group.present if group is not None else {}

    def domains_of(self, workload: str, podset: str) -> Mapping[str, Domain]:
        """The assigned domain of each bound pod of a PodSet that is in one, by pod."""
        group = self._groups.get((workload, podset))
        found = {key: self._domain(group, row) for key, row in group.pods.items()} if group else {}
        return {key: domain for key, domain in found.items() if domain is not None}

    def covers(self, workload: str, podset: str) -> bool:
        """Whether a Workload has an assignment that covers pods of this PodSet."""
        group = self._groups.get((workload, podset))
        return group is not None and group.assignment is not None

    def pods_on_node(self, node: str) -> Iterable[str]:
        """Keys of the bound pods of a node."""
        return self._by_node.get(node, ())

    def node_labels_changed(self, node: str) -> bool:
        """The labels of a node changed, or it was added or deleted: its pods may change domains."""
        names = {
            (row.workload, row.podset)
            for row in (self.rows[key] for key in self._by_node.get(node, ()))
            if row.workload
        }
        for name in names:
            self._mark_stale(name, self._groups[name])
        return bool(names)

    def update_coverage(self) -> None:
        """Compute coverage wherever it is stale."""
        for name in sorted(self._stale):
            self.update_group_coverage(name)

    def update_group_coverage(self, name: tuple[str, str]) -> None:
        """Cover the first `count` pods of each assigned domain by key; charge all others."""
        group = self._groups[name]
        self._stale.discard(name)
        group.stale = False
        group.present = {}
        charged: set[str] = set()
        for key in sorted(group.pods):
            domain = self._domain(group, group.pods[key])
            if domain is not None:
                group.present[domain] = group.present.get(domain, 0) + 1
            if domain is None or group.present[domain] > group.counts[domain]:
                charged.add(key)
        for key in group.charged - charged:
            self._charge(group.pods[key], -1)
        for key in charged - group.charged:
            self._charge(group.pods[key], 1)
        group.charged = charged

    def _group(self, workload: str, podset: str) -> _Group:
        group = self._groups.get((workload, podset))
        if group is None:
            group = self._groups[workload, podset] = _Group()
            self._podsets.setdefault(workload, set()).add(podset)
        return group

    def _drop_empty_group(self, name: tuple[str, str]) -> None:
        """Remove a group without pods and assignment."""
        group = self._groups[name]
        if group.pods or group.assignment is not None:
            return
        del self._groups[name]
        self._stale.discard(name)
        discard(self._podsets, *name)

    def _mark_stale(self, name: tuple[str, str], group: _Group) -> None:
        group.stale = True
        self._stale.add(name)

    def _add_to_group(self, name: tuple[str, str], group: _Group, row: PodInfo) -> bool:
        if group.stale:
            return True
        domain = self._domain(group, row)
        if domain is None:
            group.charged.add(row.key)
            self._charge(row, 1)
            return True
        if group.present.get(domain, 0) < group.counts[domain]:
            group.present[domain] = group.present.get(domain, 0) + 1
            return False  # Its Workload is charged already.
        self._mark_stale(name, group)
        return True

    def _remove_from_group(self, name: tuple[str, str], group: _Group, row: PodInfo) -> bool:
        charged = row.key in group.charged
        if charged:
            group.charged.discard(row.key)
            self._charge(row, -1)
        if group.stale:
            return True
        domain = self._domain(group, row)
        if domain is None:
            return charged
        group.present[domain] -= 1
        if not charged and group.present[domain] >= group.counts[domain]:
            self._mark_stale(name, group)  # A surplus pod is covered in place of the removed one.
            return True
        return charged

    def _domain(self, group: _Group, row: PodInfo) -> Domain | None:
        """The assigned domain of a pod, or None."""
        assignment = group.assignment
        root = self.owners.get(row.owner_uid, row.owner_uid)
        if assignment is None or not is_tas_pod(root, group.owner_uid, assignment=assignment):
            return None
        node = self._nodes.get(row.node)
        if node is None:
            return None
        labels, levels = node.labels, assignment.levels
        if any(level not in labels for level in levels):
            return None
        values = tuple(labels[level] for level in levels)
        return values if values in group.counts else None

    def _charge(self, row: PodInfo, sign: int) -> None:
        shapes = self.charged.setdefault(row.node, {})
        count = shapes.get(row.requests, 0) + sign
        if count:
            shapes[row.requests] = count
        else:
            del shapes[row.requests]
            if not shapes:
                del self.charged[row.node]
        self._on_charge(row.node, row.requests, sign)
