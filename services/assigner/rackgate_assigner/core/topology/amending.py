"""The next tree after some nodes came, went or changed, without building it anew.

What a few nodes change is patched; whatever shifts by it moves in whole blocks. The result is the
tree that `TopologyTree.build` would make of the same nodes, and the old one stays as it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from rackgate_assigner.core.model import NodeFacts
from rackgate_assigner.core.topology.columns import Memo
from rackgate_assigner.core.topology.index import Index
from rackgate_assigner.core.topology.order import Order
from rackgate_assigner.core.topology.structure import IntVector, found_at, parting
from rackgate_assigner.core.topology.tree import (
    PODS,
    TopologyTree,
    clamped,
    column_value,
    hostname,
    node_name,
    renamed,
)

# A node that takes part, or why it does not, or None for one that is gone.
State: TypeAlias = NodeFacts | str | None


@dataclass(frozen=True, slots=True)
class Amendment:
    """A tree and how it came from the one before.

    Attributes:
        leaves: their order; None: the same leaves as before.
        touched: leaves with a node that came, went or changed; all new ones are among them.
    """

    tree: TopologyTree
    leaves: Order | None
    touched: frozenset[int]


@dataclass(slots=True)
class _Changes:
    """Nodes by what happens to them, with old positions.

    Attributes:
        gone: positions that are left.
        joined: nodes at a new place.
        changed: nodes that stay at their place, by position.
        offers: by resource, how many nodes more offer it.
    """

    gone: list[int] = field(default_factory=list)
    joined: list[NodeFacts] = field(default_factory=list)
    changed: dict[int, NodeFacts] = field(default_factory=dict)
    offers: dict[str, int] = field(default_factory=dict)

    def count(self, node: NodeFacts, sign: int) -> None:
        for resource in node.allocatable:
            self.offers[resource] = self.offers.get(resource, 0) + sign


def amended(tree: TopologyTree, states: Mapping[str, State]) -> Amendment:
    """Apply new states of some nodes.

    Args:
        tree: stays as it is.
        states: by Node name, all others stay the same. Hostnames are unique among those that take
            part, where the hostname is the lowest level.
    """
    changes = _sort_out(tree, states)
    texts = {
        name: state if isinstance(state, str) else None
        for name, state in states.items()
        if tree.left_out.get(name) != (state if isinstance(state, str) else None)
    }
    moves = bool(changes.gone or changes.joined)
    if not (moves or changes.changed or texts):
        return Amendment(tree, None, frozenset())
    twin = copy(tree)
    if texts:
        twin.left_out = tree.left_out.amended(texts)
    if moves:
        return _moved(tree, twin, changes)
    if changes.changed:
        return _patched(tree, twin, changes)
    return Amendment(twin, None, frozenset())


def _sort_out(tree: TopologyTree, states: Mapping[str, State]) -> _Changes:
    changes = _Changes()
    for name, state in states.items():
        at = _position(tree, name)
        old = None if at is None else tree.nodes[at]
        if not isinstance(state, NodeFacts):
            if at is not None and old is not None:
                changes.gone.append(at)
                changes.count(old, -1)
            continue
        if old == state:
            continue
        changes.count(state, 1)
        if at is None or old is None:
            changes.joined.append(state)
            continue
        changes.count(old, -1)
        if tree.path_of(old) == tree.path_of(state):
            changes.changed[at] = state
        else:
            changes.gone.append(at)
            changes.joined.append(state)
    changes.gone.sort()
    changes.joined.sort(key=lambda node: (tree.path_of(node), node.name))
    return changes


def _position(tree: TopologyTree, name: str) -> int | None:
    leaf = tree.leaf_of_node(name)
    if leaf is None or tree.hosts:
        return leaf
    start, end = tree.node_offsets[leaf : leaf + 2].tolist()
    return bisect_left(tree.nodes, name, start, end, key=lambda node: node.name)


def _patched(tree: TopologyTree, twin: TopologyTree, changes: _Changes) -> Amendment:
    """All nodes stay at their place."""
    nodes = list(tree.nodes)
    for at, node in changes.changed.items():
        nodes[at] = node
    twin.nodes = nodes
    pairs = [(tree.nodes[at], node) for at, node in changes.changed.items()]
    if any((old.labels, old.taints) != (new.labels, new.taints) for old, new in pairs):
        _carry_columns(tree, twin, None, changes.changed)
        if any(hostname(old) != hostname(new) for old, new in pairs):
            twin.hostnames = _carry_index(tree.hostnames, None, changes.changed, twin, hostname)
    touched = frozenset(tree.node_leaves[list(changes.changed)].tolist())
    if any(old.allocatable != new.allocatable for old, new in pairs):
        _sum_again(tree, twin, changes, None, touched)
    return Amendment(twin, None, touched)


def _moved(tree: TopologyTree, twin: TopologyTree, changes: _Changes) -> Amendment:
    """Nodes come or go: everything behind them shifts."""
    if not tree.nodes:
        return _first(twin, changes)
    order = _node_order(tree, changes)
    nodes = order.items(tree.nodes, changes.joined)
    fresh = dict(zip(order.fresh, changes.joined, strict=True))
    if changes.changed:
        places = order.places(len(tree.nodes))
        for at, node in changes.changed.items():
            nodes[places[at]] = fresh[int(places[at])] = node
    twin.nodes = nodes
    twin.splits = _splits(tree, twin, order)
    leaves = _leaf_order(tree, twin, order)
    firsts = (twin.splits < len(tree.levels)).nonzero()[0]
    new_paths = [tree.path_of(nodes[first]) for first in firsts[leaves.fresh].tolist()]
    known = [
        (paths, all(found_at(paths, path[: level + 1]) is not None for path in new_paths))
        for level, paths in enumerate(tree.paths[:-1])
    ]
    twin.set_structure(leaves.items(tree.paths[-1], new_paths), known)
    _carry_columns(tree, twin, order, fresh)
    twin.names = _carry_index(tree.names, order, fresh, twin, node_name)
    twin.hostnames = _carry_index(tree.hostnames, order, fresh, twin, hostname)
    touched = set(twin.node_leaves[list(fresh)].tolist())
    lost = np.unique(tree.node_leaves[changes.gone])
    touched.update(np.isin(leaves.old, lost).nonzero()[0].tolist())
    _sum_again(tree, twin, changes, leaves, frozenset(touched))
    return Amendment(twin, leaves, frozenset(touched))


def _first(twin: TopologyTree, changes: _Changes) -> Amendment:
    """Where nothing was, nothing can move."""
    found = TopologyTree(twin.levels, changes.joined, {})
    found.left_out = twin.left_out
    leaves = Order(np.full(found.leaf_count, -1, dtype=np.int64))
    return Amendment(found, leaves, frozenset(range(len(leaves))))


def _node_order(tree: TopologyTree, changes: _Changes) -> Order:
    def key(node: NodeFacts) -> tuple[object, str]:
        return tree.path_of(node), node.name

    at = [bisect_left(tree.nodes, key(node), key=key) for node in changes.joined]
    return Order.after(len(tree.nodes), changes.gone, at)


def _splits(tree: TopologyTree, twin: TopologyTree, order: Order) -> IntVector:
    splits = order.numbers(tree.splits)
    for place in order.seams:
        path = tree.path_of(twin.nodes[place])
        splits[place] = parting(path, tree.path_of(twin.nodes[place - 1])) if place else 0
    return splits


def _leaf_order(tree: TopologyTree, twin: TopologyTree, order: Order) -> Order:
    if tree.hosts or not len(order):
        return order
    old_leaves = np.where(order.old < 0, -1, tree.node_leaves.take(order.old))
    firsts = (twin.splits < len(tree.levels)).nonzero()[0]
    # A leaf that kept any of its nodes is the leaf that it was.
    return Order(np.maximum.reduceat(old_leaves, firsts))


def _carry_columns(
    tree: TopologyTree, twin: TopologyTree, order: Order | None, fresh: Mapping[int, NodeFacts]
) -> None:
    """Give the next tree the columns at hand; judgements by them are made anew."""
    twin.memo, twin.columns = Memo(), Memo()
    for key, column in tree.columns.kept():
        values = {at: column_value(key, node) for at, node in fresh.items()}
        carried = column.amended(order, values)
        if carried is not None:
            twin.columns.put(key, carried)


def _carry_index(
    index: Index,
    order: Order | None,
    fresh: Mapping[int, NodeFacts],
    twin: TopologyTree,
    name_of: Callable[[NodeFacts], str | None],
) -> Index:
    if index.wasteful:
        return Index.of(map(name_of, twin.nodes), twin.node_leaves)
    names = {at: name_of(node) for at, node in fresh.items()}
    return index.amended(order, names, twin.node_leaves)


def _sum_again(
    tree: TopologyTree,
    twin: TopologyTree,
    changes: _Changes,
    leaves: Order | None,
    touched: frozenset[int],
) -> None:
    """Move the sums to the leaves' new places, and make those of touched leaves anew."""
    if any(changes.offers.values()):
        offers = {**tree.offers}
        for resource, more in changes.offers.items():
            offers[resource] = offers.get(resource, 0) + more
        twin.offers = {resource: count for resource, count in offers.items() if count}
        twin.resources = tuple(sorted({PODS, *twin.offers}))
    rows = tree.allocatable.copy() if leaves is None else leaves.numbers(tree.allocatable)
    if tree.resources != twin.resources:
        rows = renamed(rows, tree.resources, twin.resources)
    row_of = {resource: row for row, resource in enumerate(twin.resources)}
    for leaf in touched:
        rows[:, leaf] = 0
        for node in twin.nodes_of_leaf(leaf):
            for resource, amount in node.allocatable.items():
                rows[row_of[resource], leaf] += clamped(amount)
    rows.flags.writeable = False
    twin.allocatable = rows
