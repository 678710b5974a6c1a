"""The topology tree of one flavor: its domains, and their nodes.

1. `select_nodes` excludes nodes that are not ready, cordoned, or lack labels.
2. `TopologyTree.build` sorts the others by path, the values of the level labels.
3. `build_structure` splits the sorted paths into domains, level by level.

Invariants: every domain of every level is one contiguous range of leaves; its id is its rank in
path order. A tree never changes: if nodes change, `update.update_tree` creates the next one, which
shares everything that stays the same. Free capacity and usage are in `capacity`.
Complexity: O(nodes x log nodes) to build, once; derived arrays are computed when they are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Final

import numpy as np

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.topology.assignment import Domain
from rackgate_assigner.topology.model import IntMatrix, IntVector, NodeInfo
from rackgate_assigner.topology.nodes import (
    Column,
    ColumnKey,
    LeafIndex,
    Memo,
    NodeRegistry,
    NodeSelection,
    Overlay,
    hostname,
    hostname_differs,
)

PODS: Final = "pods"
# Limit of one amount of one node, so that sums over 2^17 nodes stay below 2^62.
AMOUNT_LIMIT: Final = 2**45


def reason_to_skip(
    node: NodeInfo, node_labels: Mapping[str, str], levels: Sequence[str]
) -> str | None:
    """Why a node does not count for a flavor of these labels and levels, or None if it does."""
    if not node.ready:
        return "not ready"
    if node.unschedulable:
        return "unschedulable"
    for key, value in node_labels.items():
        if node.labels.get(key) != value:
            found = f'is "{node.labels[key]}"' if key in node.labels else "is missing"
            return f'label "{key}" {found}, the flavor requires "{value}"'
    for key in levels:
        if key not in node.labels:
            return f'level label "{key}" is missing'
    return None


def takes_part(node: NodeInfo, node_labels: Mapping[str, str], levels: Sequence[str]) -> bool:
    """Whether a node counts for a flavor's topology (TAS-04)."""
    return reason_to_skip(node, node_labels, levels) is None


def select_nodes(
    nodes: Iterable[NodeInfo], node_labels: Mapping[str, str], levels: Sequence[str]
) -> tuple[list[NodeInfo], dict[str, str]]:
    """Separate nodes that count from those that do not, with the reason by name.

    If the hostname is the lowest level, a second node with the same hostname does not count: a
    pod with that node selector could run on either, so its usage could not be attributed.
    """
    skipped: dict[str, str] = {}
    included: list[NodeInfo] = []
    for node in nodes:
        reason = reason_to_skip(node, node_labels, levels)
        if reason is None:
            included.append(node)
        else:
            skipped[node.name] = reason
    if levels[-1] == HOSTNAME_LABEL:
        included = _one_node_per_host(included, skipped)
    return included, skipped


# Domains.


@dataclass(frozen=True)
class Structure:
    """The domains of all levels; `TopologyTree` documents the attributes."""

    paths: tuple[Sequence[Domain], ...]
    leaf_ranges: tuple[IntVector, ...]
    node_offsets: IntVector

    @cached_property
    def children(self) -> tuple[IntVector, ...]:
        """Per level but the lowest, offsets (domains + 1) into the next level."""
        lowest = len(self.paths) - 1
        return tuple(
            ranges if level + 1 == lowest else np.searchsorted(self.leaf_ranges[level + 1], ranges)
            for level, ranges in enumerate(self.leaf_ranges[:-1])
        )

    @cached_property
    def parents(self) -> tuple[IntVector, ...]:
        """Per level, each domain's parent one level up; zeros at the highest level."""
        below = [
            np.repeat(index_range(len(offsets) - 1), np.diff(offsets)) for offsets in self.children
        ]
        return (np.zeros(len(self.paths[0]), dtype=np.int64), *below)

    @cached_property
    def node_leaves(self) -> IntVector:
        """Shape (nodes,): leaf of every node."""
        leaves = len(self.node_offsets) - 1
        if int(self.node_offsets[-1]) == leaves:
            return index_range(leaves)
        return np.repeat(index_range(leaves), np.diff(self.node_offsets))


def index_range(count: int) -> IntVector:
    """0, 1, 2 and so on, read-only; all ranges share one array."""
    global _shared_range  # noqa: PLW0603  # a table that only grows
    if count > len(_shared_range):
        _shared_range = np.arange(count + count // 8, dtype=np.int64)
        _shared_range.flags.writeable = False
    return _shared_range[:count]


_shared_range: IntVector = np.arange(0, dtype=np.int64)


def build_structure(paths: Sequence[Domain], depth: int) -> Structure:
    """Derive all domains from the sorted paths of all nodes."""
    splits = [
        next((i for i, value in enumerate(before) if value != path[i]), depth)
        for before, path in pairwise(paths)
    ]
    splits = [0, *splits][: len(paths)]
    firsts = [[at for at, split in enumerate(splits) if split <= level] for level in range(depth)]
    offsets = np.array([*firsts[-1], len(paths)], dtype=np.int64)
    upper = [np.searchsorted(offsets, np.array([*starts, len(paths)])) for starts in firsts[:-1]]
    return Structure(
        tuple([paths[at][: level + 1] for at in firsts[level]] for level in range(depth)),
        (*upper, index_range(len(offsets))),
        offsets,
    )


def find_path(paths: Sequence[Domain], path: Domain) -> int | None:
    """The position of a path in a sorted list, or None."""
    at = bisect_left(paths, path)
    return at if at < len(paths) and paths[at] == path else None


class TopologyTree:
    """Domains of one flavor's nodes, immutable once built.

    Attributes:
        levels: node label keys, coarsest first.
        lowest_is_hostname: the lowest level is the hostname, so a leaf is one node.
        registry: every node with a number; shared with the trees before and after this one.
        node_numbers: shape (nodes,): number of each node that counts, sorted by path.
        nodes: these nodes; in the host case `nodes[i]` is leaf `i`.
        structure: all domains.
        node_offsets: shape (leaves + 1,): first node of each leaf.
        paths: per level, the domains' value tuples; the index is the domain's id.
        children: per level but the lowest, offsets (domains + 1) into the next level.
        leaf_ranges: per level, offsets (domains + 1) into the leaves.
        node_name_index: leaf by Node name; read it through `leaf_of_node`.
        hostname_index: leaf by hostname label; read it through `leaf_of_host`. The same object as
            `node_name_index` if every hostname is the node's name.
        resource_node_counts: by resource, how many nodes offer it.
        resources: every resource that some node offers, and always `pods`; sorted.
        memo: results that depend on names, labels and taints of the nodes, never on amounts.
        columns: labels by key, and taints under None; read them through `column`.
        assignment_levels: the `levels` of an assignment: the hostname alone in the host case
            (TAS-13).
        skip_reasons: reasons behind `skipped`.
        leaf_allocatable: what `allocatable` computed.
    """

    def __init__(
        self, levels: Sequence[str], nodes: Sequence[NodeInfo], skipped: Mapping[str, str]
    ) -> None:
        self.levels = tuple(levels)
        self.lowest_is_hostname = levels[-1] == HOSTNAME_LABEL
        self.assignment_levels = self.levels[-1:] if self.lowest_is_hostname else self.levels
        self.leaf_allocatable: IntMatrix | None = None
        paths = [tuple(map(node.labels.__getitem__, levels)) for node in nodes]
        self.set_structure(build_structure(paths, len(levels)))
        self.set_resource_node_counts(
            Counter(chain.from_iterable(node.allocatable for node in nodes))
        )
        node_leaves = self.node_leaves
        self.registry = NodeRegistry(self.levels, nodes, paths)
        self.node_numbers = index_range(len(nodes))
        self.nodes: Sequence[NodeInfo] = NodeSelection(self.registry.nodes, self.node_numbers)
        self.node_name_index = LeafIndex.of((node.name for node in self.nodes), node_leaves)
        self.hostname_index = self.node_name_index
        if any(map(hostname_differs, nodes)):
            self.hostname_index = LeafIndex.of(map(hostname, nodes), node_leaves)
        self.skip_reasons = Overlay(dict(skipped))
        self.memo = Memo()
        self.columns = Memo()

    @classmethod
    def build(
        cls,
        levels: Sequence[str],
        nodes: Iterable[NodeInfo],
        *,
        node_labels: Mapping[str, str] | None = None,
    ) -> TopologyTree:
        """Sort nodes into domains; the order of `nodes` has no influence.

        Nodes that do not count (see `select_nodes`) are listed in `skipped`.

        Raises:
            ValueError: no levels.
        """
        if not levels:
            raise ValueError("a topology needs at least one level")
        included, skipped = select_nodes(nodes, node_labels or {}, levels)
        included.sort(key=lambda node: (tuple(map(node.labels.__getitem__, levels)), node.name))
        return cls(levels, included, skipped)

    def leaf_of_node(self, name: str) -> int | None:
        """Leaf that contains the node of this object name, or None if it does not count."""
        return self.node_name_index.get(name)

    def leaf_of_host(self, host: str) -> int | None:
        """Leaf that contains the node whose hostname label is `host`, whatever the lowest level."""
        return self.hostname_index.get(host)

    def leaf_of_values(self, values: Sequence[str]) -> int | None:
        """Leaf of an assignment's `values`: by host alone, or by the whole path."""
        if self.lowest_is_hostname:
            return self.hostname_index.get(values[-1]) if values else None
        return find_path(self.paths[-1], tuple(values))

    def values_of_leaf(self, leaf: int) -> Domain:
        """The `values` of a leaf as an assignment stores them (TAS-13)."""
        path = self.paths[-1][leaf]
        return path[-1:] if self.lowest_is_hostname else path

    def nodes_of_leaf(self, leaf: int) -> Sequence[NodeInfo]:
        """The nodes of a leaf, by name."""
        start, end = self.node_offsets[leaf : leaf + 2].tolist()
        return self.nodes[start:end]

    @property
    def skipped(self) -> dict[str, str]:
        """Reason by name of the nodes that do not count; a new dict on each call."""
        return self.skip_reasons.to_dict()

    def domain_of_leaf(self, leaf: int, level: int) -> int:
        """Id of the domain of `level` that contains a leaf."""
        return int(np.searchsorted(self.leaf_ranges[level], leaf, side="right")) - 1

    def column(self, key: ColumnKey) -> Column:
        """Values of one node label over `nodes`; under None their taints (None: no taints)."""
        return self.columns.get(key, lambda: self.registry.column(key, self.node_numbers))

    @property
    def parents(self) -> tuple[IntVector, ...]:
        """Per level, each domain's parent id one level up (zeros at the highest level)."""
        return self.structure.parents

    @property
    def node_leaves(self) -> IntVector:
        """Shape (nodes,): leaf of every node."""
        return self.structure.node_leaves

    @property
    def allocatable(self) -> IntMatrix:
        """Shape (resources, leaves), read-only: sums over the nodes of a leaf."""
        if self.leaf_allocatable is None:
            rows = np.zeros((len(self.resources), self.leaf_count), dtype=np.int64)
            for row, resource in zip(rows, self.resources, strict=True):
                amounts = [
                    max(-AMOUNT_LIMIT, min(AMOUNT_LIMIT, node.allocatable.get(resource, 0)))
                    for node in self.nodes
                ]
                np.add.at(row, self.node_leaves, np.array(amounts, dtype=np.int64))
            rows.flags.writeable = False
            self.leaf_allocatable = rows
        return self.leaf_allocatable

    def allocatable_of_leaf(self, leaf: int) -> dict[str, int]:
        """What the nodes of one leaf offer, by resource."""
        total: dict[str, int] = {}
        for node in self.nodes_of_leaf(leaf):
            for resource, amount in node.allocatable.items():
                bounded = max(-AMOUNT_LIMIT, min(AMOUNT_LIMIT, amount))
                total[resource] = total.get(resource, 0) + bounded
        return total

    def set_nodes(self, registry: NodeRegistry, numbers: IntVector) -> None:
        """Set the nodes. Only for updating, as are the other setters."""
        self.registry, self.node_numbers = registry, numbers
        self.nodes = NodeSelection(registry.nodes, numbers)

    def set_structure(self, structure: Structure) -> None:
        """Set the domains."""
        self.structure = structure
        self.paths, self.children = structure.paths, structure.children
        self.leaf_ranges, self.node_offsets = structure.leaf_ranges, structure.node_offsets
        self.leaf_count = len(self.paths[-1])

    def set_resource_node_counts(self, offers: Mapping[str, int]) -> None:
        """Set how many nodes offer each resource; `allocatable` sums up what they offer."""
        self.resource_node_counts = offers
        self.resources = tuple(sorted({PODS, *offers}))
        self.leaf_allocatable = None


def align_resource_rows(rows: IntMatrix, names: Sequence[str], wanted: Sequence[str]) -> IntMatrix:
    """A copy of rows, shape (..., names, leaves), as (..., wanted, leaves); zeros if new."""
    found = np.zeros((*rows.shape[:-2], len(wanted), rows.shape[-1]), dtype=np.int64)
    row_of = {name: row for row, name in enumerate(names)}
    for row, name in enumerate(wanted):
        if name in row_of:
            found[..., row, :] = rows[..., row_of[name], :]
    return found


def _one_node_per_host(nodes: list[NodeInfo], skipped: dict[str, str]) -> list[NodeInfo]:
    first: dict[str, NodeInfo] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        holder = first.setdefault(node.labels[HOSTNAME_LABEL], node)
        if holder is not node:
            host = node.labels[HOSTNAME_LABEL]
            skipped[node.name] = f'hostname "{host}" belongs to node "{holder.name}" already'
    return list(first.values())
