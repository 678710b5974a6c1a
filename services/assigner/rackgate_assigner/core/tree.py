"""The static side of placement: which domains exist, and which nodes make them up.

Nodes are sorted by path, so that every domain of every level is one contiguous run of leaves and
its integer id is its rank in path order. Numbers that change live in `capacity`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.domains import Domain
from rackgate_assigner.core.columns import Column, Memo
from rackgate_assigner.core.model import NodeFacts

IntVector: TypeAlias = npt.NDArray[np.int64]
IntMatrix: TypeAlias = npt.NDArray[np.int64]

PODS = "pods"
# One amount of one node, so that sums over 2^17 nodes stay below 2^62.
AMOUNT_LIMIT = 2**45


def skip_reason(
    node: NodeFacts, node_labels: Mapping[str, str], levels: Sequence[str]
) -> str | None:
    """Why a node does not take part in a flavor's topology, or None when it does.

    Args:
        node: the node.
        node_labels: `spec.nodeLabels` of the flavor.
        levels: level label keys, coarsest first.
    """
    if not node.ready:
        return "not ready"
    if node.unschedulable:
        return "unschedulable"
    for key, value in node_labels.items():
        if node.labels.get(key) != value:
            found = f'is "{node.labels[key]}"' if key in node.labels else "is missing"
            return f'label "{key}" {found}, the flavor asks for "{value}"'
    for key in levels:
        if key not in node.labels:
            return f'level label "{key}" is missing'
    return None


def takes_part(node: NodeFacts, node_labels: Mapping[str, str], levels: Sequence[str]) -> bool:
    """Whether a node counts for a flavor's topology (TAS-04)."""
    return skip_reason(node, node_labels, levels) is None


class TopologyTree:
    """Domains of one flavor's nodes, immutable once built.

    Attributes:
        levels: node label keys, coarsest first.
        hosts: the lowest level is the hostname, so a leaf is one node.
        nodes: nodes that take part, sorted by path; in the host case `nodes[i]` is leaf `i`.
        paths: per level, the domains' value tuples; the index is the domain's id.
        parents: per level, each domain's parent id one level up (empty at the highest level).
        children: per level but the lowest, offsets (domains + 1) into the next level.
        leaf_ranges: per level, offsets (domains + 1) into the leaves.
        resources: every resource that some node offers, and always `pods`; sorted.
        allocatable: shape (resources, leaves), read-only: sums over the nodes of a leaf.
        skipped: node name to the reason it does not take part.
    """

    def __init__(
        self, levels: Sequence[str], nodes: Sequence[NodeFacts], skipped: Mapping[str, str]
    ) -> None:
        self.levels = tuple(levels)
        self.hosts = bool(levels) and levels[-1] == HOSTNAME_LABEL
        self.nodes = tuple(nodes)
        self.skipped = dict(skipped)
        self.memo = Memo()
        self._columns = Memo()
        self.node_leaves = self._build_domains()
        self._index_leaves()
        self._sum_allocatable()

    @classmethod
    def build(
        cls,
        levels: Sequence[str],
        nodes: Iterable[NodeFacts],
        *,
        node_labels: Mapping[str, str] | None = None,
    ) -> TopologyTree:
        """Sort nodes into domains; the order of `nodes` has no influence.

        Nodes that do not take part (see `skip_reason`) are left out and listed in `skipped`. So is,
        where the hostname is the lowest level, a second node with the same hostname: a pod pinned
        to that name could land on either, and usage could not be told apart.

        Raises:
            ValueError: no levels.
        """
        if not levels:
            raise ValueError("a topology needs at least one level")
        wanted = node_labels or {}
        skipped: dict[str, str] = {}
        taking: list[NodeFacts] = []
        for node in nodes:
            reason = skip_reason(node, wanted, levels)
            if reason is None:
                taking.append(node)
            else:
                skipped[node.name] = reason
        if levels[-1] == HOSTNAME_LABEL:
            taking = _one_node_per_host(taking, skipped)
        taking.sort(key=lambda node: (tuple(map(node.labels.__getitem__, levels)), node.name))
        return cls(levels, taking, skipped)

    def leaf_of_node(self, name: str) -> int | None:
        """Leaf that holds the node of this object name, or None when it does not take part."""
        return self._leaf_by_node.get(name)

    def leaf_of_host(self, host: str) -> int | None:
        """Leaf that holds the node whose hostname label is `host`, whatever the lowest level."""
        return self._leaf_by_host.get(host)

    def leaf_of_values(self, values: Sequence[str]) -> int | None:
        """Leaf that an assignment's `values` name: by host alone, or by the whole path."""
        if self.hosts:
            return self._leaf_by_host.get(values[-1]) if values else None
        return self._leaf_by_path.get(tuple(values))

    def values_of_leaf(self, leaf: int) -> Domain:
        """The `values` of a leaf as an assignment stores them (TAS-13)."""
        path = self.paths[-1][leaf]
        return path[-1:] if self.hosts else path

    @property
    def assignment_levels(self) -> tuple[str, ...]:
        """The `levels` of an assignment: the hostname alone in the host case (TAS-13)."""
        return self.levels[-1:] if self.hosts else self.levels

    @property
    def leaf_count(self) -> int:
        """Number of leaves."""
        return len(self.paths[-1])

    def domain_of_leaf(self, leaf: int, level: int) -> int:
        """Id of the domain of `level` that holds a leaf."""
        return int(np.searchsorted(self.leaf_ranges[level], leaf, side="right")) - 1

    def column(self, key: str) -> Column:
        """Values of one node label over `nodes`, made on first use."""
        return self._columns.get(
            key, lambda: Column.of(node.labels.get(key) for node in self.nodes)
        )

    def taint_column(self) -> Column:
        """Taint lists over `nodes` (None: no taints), made on first use."""
        return self._columns.get(
            None, lambda: Column.of(node.taints or None for node in self.nodes)
        )

    def _build_domains(self) -> IntVector:
        """Fill paths, parents and offsets; return the leaf of every node."""
        depth = len(self.levels)
        paths: list[list[Domain]] = [[] for _ in self.levels]
        parents: list[list[int]] = [[] for _ in self.levels]
        leaves: list[int] = []
        before: Domain = ()
        for node in self.nodes:
            path = tuple(map(node.labels.__getitem__, self.levels))
            if path != before or not leaves:
                level = next((i for i, value in enumerate(before) if value != path[i]), 0)
                for i in range(level, depth):
                    paths[i].append(path[: i + 1])
                    parents[i].append(len(paths[i - 1]) - 1 if i else 0)
                before = path
            leaves.append(len(paths[-1]) - 1)
        self.paths: tuple[list[Domain], ...] = tuple(paths)
        self.parents = tuple(np.array(ids, dtype=np.int64) for ids in parents)
        self.children = tuple(
            _offsets(self.parents[i + 1], len(paths[i])) for i in range(depth - 1)
        )
        ranges = [np.arange(len(paths[-1]) + 1, dtype=np.int64)]
        for offsets in reversed(self.children):
            ranges.append(ranges[-1][offsets])
        self.leaf_ranges = tuple(reversed(ranges))
        return np.array(leaves, dtype=np.int64)

    def _index_leaves(self) -> None:
        leaves = self.node_leaves.tolist()
        self._leaf_by_node = {
            node.name: leaf for node, leaf in zip(self.nodes, leaves, strict=True)
        }
        self._leaf_by_host = {
            node.labels[HOSTNAME_LABEL]: leaf
            for node, leaf in zip(self.nodes, leaves, strict=True)
            if HOSTNAME_LABEL in node.labels
        }
        self._leaf_by_path = {path: leaf for leaf, path in enumerate(self.paths[-1])}

    def _sum_allocatable(self) -> None:
        names = {PODS}.union(*{frozenset(node.allocatable) for node in self.nodes})
        self.resources = tuple(sorted(names))
        rows = np.zeros((len(self.resources), self.leaf_count), dtype=np.int64)
        for row, resource in zip(rows, self.resources, strict=True):
            amounts = [
                max(-AMOUNT_LIMIT, min(AMOUNT_LIMIT, node.allocatable.get(resource, 0)))
                for node in self.nodes
            ]
            np.add.at(row, self.node_leaves, np.array(amounts, dtype=np.int64))
        rows.flags.writeable = False
        self.allocatable: IntMatrix = rows


def _one_node_per_host(nodes: list[NodeFacts], skipped: dict[str, str]) -> list[NodeFacts]:
    first: dict[str, NodeFacts] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        holder = first.setdefault(node.labels[HOSTNAME_LABEL], node)
        if holder is not node:
            host = node.labels[HOSTNAME_LABEL]
            skipped[node.name] = f'hostname "{host}" belongs to node "{holder.name}" already'
    return list(first.values())


def _offsets(parents: IntVector, count: int) -> IntVector:
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(parents, minlength=count), out=offsets[1:])
    return offsets
