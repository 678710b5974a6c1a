"""The static side of placement: which domains exist, and which nodes make them up.

Nodes are sorted by path, so that every domain of every level is one contiguous run of leaves and
its integer id is its rank in path order. Numbers that change live in `capacity`. A tree never
changes: when nodes do, `amending` makes the next one, which shares all that stayed the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.topology.assignment import Domain
from rackgate_assigner.topology import structure
from rackgate_assigner.topology.columns import Column, Memo, Overlay
from rackgate_assigner.topology.leaf_index import LeafIndex
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.node_registry import NodeRegistry, NodeSelection
from rackgate_assigner.topology.structure import Structure, index_range

IntVector: TypeAlias = npt.NDArray[np.int64]
IntMatrix: TypeAlias = npt.NDArray[np.int64]

PODS = "pods"
# One amount of one node, so that sums over 2^17 nodes stay below 2^62.
AMOUNT_LIMIT = 2**45


def reason_to_skip(
    node: NodeInfo, node_labels: Mapping[str, str], levels: Sequence[str]
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


def takes_part(node: NodeInfo, node_labels: Mapping[str, str], levels: Sequence[str]) -> bool:
    """Whether a node counts for a flavor's topology (TAS-04)."""
    return reason_to_skip(node, node_labels, levels) is None


def select_nodes(
    nodes: Iterable[NodeInfo], node_labels: Mapping[str, str], levels: Sequence[str]
) -> tuple[list[NodeInfo], dict[str, str]]:
    """Tell nodes that take part from those that do not, each of these with the reason.

    Where the hostname is the lowest level, a second node with the same hostname does not: a pod
    pinned to that name could land on either, and usage could not be told apart.
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


class TopologyTree:
    """Domains of one flavor's nodes, immutable once built.

    Attributes:
        levels: node label keys, coarsest first.
        lowest_is_hostname: the lowest level is the hostname, so a leaf is one node.
        registry: every node with a number; shared with the trees before and after this one.
        node_numbers: shape (nodes,): number of each node that takes part, sorted by path.
        nodes: these nodes; in the host case `nodes[i]` is leaf `i`.
        structure: all domains.
        node_offsets: shape (leaves + 1,): first node of each leaf.
        paths: per level, the domains' value tuples; the index is the domain's id.
        children: per level but the lowest, offsets (domains + 1) into the next level.
        leaf_ranges: per level, offsets (domains + 1) into the leaves.
        node_name_index: leaf by Node name; read it through `leaf_of_node`.
        hostname_index: leaf by hostname label; read it through `leaf_of_host`. The very
            `node_name_index` where all hostnames are the names of their nodes.
        resource_node_counts: by resource, how many nodes offer it.
        resources: every resource that some node offers, and always `pods`; sorted.
        memo: judgements of nodes by their names, labels and taints, never by amounts.
        columns: labels by key, and taints under None; read them through `column`.
        skip_reasons: texts behind `skipped`.
        leaf_allocatable: what `allocatable` found out.
    """

    def __init__(
        self, levels: Sequence[str], nodes: Sequence[NodeInfo], skipped: Mapping[str, str]
    ) -> None:
        self.levels = tuple(levels)
        self.lowest_is_hostname = bool(levels) and levels[-1] == HOSTNAME_LABEL
        self.skip_reasons = Overlay(dict(skipped))
        self.leaf_allocatable: IntMatrix | None = None
        self.memo = Memo()
        self.columns = Memo()
        registry = NodeRegistry(self.levels, nodes)
        self.set_nodes(registry, index_range(len(nodes)))
        self.set_structure(structure.build_structure(registry.paths, len(self.levels)))
        self.node_name_index = LeafIndex.of(map(node_name, nodes), self.node_leaves)
        self.hostname_index = self.node_name_index
        if any(map(hostname_differs, nodes)):
            self.hostname_index = LeafIndex.of(map(hostname, nodes), self.node_leaves)
        self.set_resource_node_counts(
            Counter(chain.from_iterable(node.allocatable for node in nodes))
        )

    @classmethod
    def build(
        cls,
        levels: Sequence[str],
        nodes: Iterable[NodeInfo],
        *,
        node_labels: Mapping[str, str] | None = None,
    ) -> TopologyTree:
        """Sort nodes into domains; the order of `nodes` has no influence.

        Nodes that do not take part (see `select_nodes`) are left out and listed in `skipped`.

        Raises:
            ValueError: no levels.
        """
        if not levels:
            raise ValueError("a topology needs at least one level")
        included, skipped = select_nodes(nodes, node_labels or {}, levels)
        included.sort(key=lambda node: (tuple(map(node.labels.__getitem__, levels)), node.name))
        return cls(levels, included, skipped)

    def path_of(self, node: NodeInfo) -> Domain:
        """Values of a node that takes part, one for each level."""
        return self.registry.path_of(node)

    def leaf_of_node(self, name: str) -> int | None:
        """Leaf that holds the node of this object name, or None when it does not take part."""
        return self.node_name_index.get(name)

    def leaf_of_host(self, host: str) -> int | None:
        """Leaf that holds the node whose hostname label is `host`, whatever the lowest level."""
        return self.hostname_index.get(host)

    def leaf_of_values(self, values: Sequence[str]) -> int | None:
        """Leaf that an assignment's `values` name: by host alone, or by the whole path."""
        if self.lowest_is_hostname:
            return self.hostname_index.get(values[-1]) if values else None
        return structure.find_path(self.paths[-1], tuple(values))

    def values_of_leaf(self, leaf: int) -> Domain:
        """The `values` of a leaf as an assignment stores them (TAS-13)."""
        path = self.paths[-1][leaf]
        return path[-1:] if self.lowest_is_hostname else path

    def nodes_of_leaf(self, leaf: int) -> Sequence[NodeInfo]:
        """The nodes of a leaf, by name."""
        start, end = self.node_offsets[leaf : leaf + 2].tolist()
        return self.nodes[start:end]

    @property
    def assignment_levels(self) -> tuple[str, ...]:
        """The `levels` of an assignment: the hostname alone in the host case (TAS-13)."""
        return self.levels[-1:] if self.lowest_is_hostname else self.levels

    @property
    def leaf_count(self) -> int:
        """Number of leaves."""
        return len(self.paths[-1])

    @property
    def skipped(self) -> dict[str, str]:
        """Node name to the reason it does not take part; put together on each call."""
        return self.skip_reasons.to_dict()

    def domain_of_leaf(self, leaf: int, level: int) -> int:
        """Id of the domain of `level` that holds a leaf."""
        return int(np.searchsorted(self.leaf_ranges[level], leaf, side="right")) - 1

    def column(self, key: str) -> Column:
        """Values of one node label over `nodes`, made on first use."""
        return self._column(key)

    def taint_column(self) -> Column:
        """Taint lists over `nodes` (None: no taints), made on first use."""
        return self._column(None)

    def _column(self, key: str | None) -> Column:
        return self.columns.get(
            key, lambda: self.registry.column(key, partial(column_value, key), self.node_numbers)
        )

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
        """Shape (resources, leaves), read-only: sums over the nodes of a leaf, made when asked."""
        if self.leaf_allocatable is None:
            rows = np.zeros((len(self.resources), self.leaf_count), dtype=np.int64)
            for row, resource in zip(rows, self.resources, strict=True):
                amounts = [clamp_amount(node.allocatable.get(resource, 0)) for node in self.nodes]
                np.add.at(row, self.node_leaves, np.array(amounts, dtype=np.int64))
            rows.flags.writeable = False
            self.leaf_allocatable = rows
        return self.leaf_allocatable

    def allocatable_of_leaf(self, leaf: int) -> dict[str, int]:
        """What the nodes of one leaf offer, by resource."""
        total: dict[str, int] = {}
        for node in self.nodes_of_leaf(leaf):
            for resource, amount in node.allocatable.items():
                total[resource] = total.get(resource, 0) + clamp_amount(amount)
        return total

    def set_nodes(self, registry: NodeRegistry, numbers: IntVector) -> None:
        """Set the nodes; for the making of trees alone, as are the other setters."""
        self.registry, self.node_numbers = registry, numbers
        self.nodes: Sequence[NodeInfo] = NodeSelection(registry.nodes, numbers)

    def set_structure(self, found: Structure) -> None:
        """Set the domains."""
        self.structure = found
        self.paths, self.children = found.paths, found.children
        self.leaf_ranges, self.node_offsets = found.leaf_ranges, found.node_offsets

    def set_resource_node_counts(self, offers: Mapping[str, int]) -> None:
        """Set how many nodes offer each resource; what they offer is summed up when asked for."""
        self.resource_node_counts = offers
        self.resources = tuple(sorted({PODS, *offers}))
        self.leaf_allocatable = None


def align_resource_rows(rows: IntMatrix, names: Sequence[str], wanted: Sequence[str]) -> IntMatrix:
    """Rows by resource for other resources; zeros for those that were not there.

    Args:
        rows: shape (..., resources, leaves).
        names: resources before.
        wanted: resources after.

    Returns:
        A new array of shape (..., wanted, leaves).
    """
    found = np.zeros((*rows.shape[:-2], len(wanted), rows.shape[-1]), dtype=np.int64)
    row_of = {name: row for row, name in enumerate(names)}
    for row, name in enumerate(wanted):
        if name in row_of:
            found[..., row, :] = rows[..., row_of[name], :]
    return found


def clamp_amount(amount: int) -> int:
    """An amount of one node, within what can be summed."""
    return max(-AMOUNT_LIMIT, min(AMOUNT_LIMIT, amount))


def node_name(node: NodeInfo) -> str:
    """Name of the Node object."""
    return node.name


def hostname(node: NodeInfo) -> str | None:
    """Hostname label of a node; it may differ from the node's name."""
    return node.labels.get(HOSTNAME_LABEL)


def hostname_differs(node: NodeInfo) -> bool:
    """Whether a node's hostname label is missing, or not its name."""
    return hostname(node) != node.name


def column_value(key: Hashable, node: NodeInfo) -> Hashable:
    """What a column says of a node: a label's value, or its taints under the key None."""
    return (node.taints or None) if key is None else node.labels.get(str(key))


def _one_node_per_host(nodes: list[NodeInfo], skipped: dict[str, str]) -> list[NodeInfo]:
    first: dict[str, NodeInfo] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        holder = first.setdefault(node.labels[HOSTNAME_LABEL], node)
        if holder is not node:
            host = node.labels[HOSTNAME_LABEL]
            skipped[node.name] = f'hostname "{host}" belongs to node "{holder.name}" already'
    return list(first.values())
