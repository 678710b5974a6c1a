"""The next tree after some nodes came, went or changed, without building it anew.

A few nodes change a few places of every array; what shifts by it moves in whole blocks, and what
follows from the arrays is derived when it is asked for. The result is the tree that
`TopologyTree.build` would make of the same nodes, and the old one stays as it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import TypeAlias

from rackgate_assigner.topology.columns import Memo
from rackgate_assigner.topology.index import Index
from rackgate_assigner.topology.model import NodeFacts
from rackgate_assigner.topology.order import Order
from rackgate_assigner.topology.register import Picked
from rackgate_assigner.topology.structure import Structure, counting, followed, found_at
from rackgate_assigner.topology.tree import TopologyTree, hostname, is_named_apart, node_name

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
        states: what was told, by Node name.
        gone: positions that are left.
        joined: nodes at a new place.
        changed: nodes that stay at their place, by position.
        offers: by resource, how many nodes more offer it.
    """

    states: Mapping[str, State]
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
        states: by Node name, all others stay the same. Where one node is given, all with its
            hostname before or now are. Hostnames are unique among those that take part, where the
            hostname is the lowest level.
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
    if not (moves or changes.changed):
        return Amendment(twin, None, frozenset())
    if any(changes.offers.values()):
        twin.set_offers(_offers(tree, changes))
    found = _moved(tree, twin, changes) if moves else _patched(tree, twin, changes)
    if twin.register.wasteful(len(twin.nodes)):
        _start_register(twin)
    return found


def _sort_out(tree: TopologyTree, states: Mapping[str, State]) -> _Changes:
    changes = _Changes(states)
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


def _offers(tree: TopologyTree, changes: _Changes) -> dict[str, int]:
    offers = {**tree.offers}
    for resource, more in changes.offers.items():
        offers[resource] = offers.get(resource, 0) + more
    return {resource: count for resource, count in offers.items() if count}


def _patched(tree: TopologyTree, twin: TopologyTree, changes: _Changes) -> Amendment:
    """All nodes stay at their place."""
    numbers = tree.numbers.copy()
    for at, node in changes.changed.items():
        numbers[at] = tree.register.enter(node)
    twin.set_members(tree.register, numbers)
    pairs = [(tree.nodes[at], node) for at, node in changes.changed.items()]
    if any((old.labels, old.taints) != (new.labels, new.taints) for old, new in pairs):
        twin.memo, twin.columns = Memo(), Memo()
        if any(hostname(old) != hostname(new) for old, new in pairs):
            _carry_indexes(tree, twin, None, changes, {})
    if any(old.allocatable != new.allocatable for old, new in pairs):
        twin.set_offers(twin.offers)
    touched = {_leaf_at(tree, at) for at in changes.changed}
    return Amendment(twin, None, frozenset(touched))


def _moved(tree: TopologyTree, twin: TopologyTree, changes: _Changes) -> Amendment:
    """Nodes come or go: everything behind them shifts."""
    order = _node_order(tree, changes)
    places = dict(zip(order.fresh, changes.joined, strict=True))
    for old, node in changes.changed.items():
        at = order.place(old)
        if at is not None:
            places[at] = node
    numbers = order.numbers(tree.numbers)
    for at, node in places.items():
        numbers[at] = tree.register.enter(node)
    twin.set_members(tree.register, numbers)
    twin.memo, twin.columns = Memo(), Memo()
    twin.set_offers(twin.offers)
    lost = [tree.path_of(tree.nodes[at]) for at in changes.gone]
    gained = [tree.path_of(node) for node in changes.joined]
    hosts = (order, Picked(tree.register.paths, numbers)) if tree.hosts else None
    found, leaves = followed(tree.structure, lost, gained, leaves=hosts)
    twin.set_structure(found)
    touched = {node.name: _leaf_at(twin, at) for at, node in places.items()}
    _carry_indexes(tree, twin, leaves, changes, touched)
    left = () if tree.hosts else (found_at(twin.paths[-1], path) for path in lost)
    kept = {leaf for leaf in left if leaf is not None}
    return Amendment(twin, leaves, frozenset(kept.union(touched.values())))


def _node_order(tree: TopologyTree, changes: _Changes) -> Order:
    return Order(len(tree.nodes), changes.gone, [_place(tree, node) for node in changes.joined])


def _place(tree: TopologyTree, node: NodeFacts) -> int:
    """The old position before which a node goes that was not at its path."""
    leaf = bisect_left(tree.paths[-1], tree.path_of(node))
    if leaf == tree.leaf_count:
        return len(tree.nodes)
    start, end = tree.node_offsets.item(leaf), tree.node_offsets.item(leaf + 1)
    if tree.paths[-1][leaf] != tree.path_of(node):
        return start
    return bisect_left(tree.nodes, node.name, start, end, key=node_name)


def _leaf_at(tree: TopologyTree, at: int) -> int:
    return at if tree.hosts else int(tree.node_offsets.searchsorted(at, side="right")) - 1


def _carry_indexes(
    tree: TopologyTree,
    twin: TopologyTree,
    order: Order | None,
    changes: _Changes,
    leaves: Mapping[str, int],
) -> None:
    """Move the names to the leaves' new places; `leaves` are those of new and changed nodes."""
    joined, changed = changes.joined, list(changes.changed.values())
    names: dict[str, int | None] = {tree.nodes[at].name: None for at in changes.gone}
    names |= leaves
    twin.names = tree.names.amended(order, names)
    if twin.names.wasteful(len(twin.nodes)):
        twin.names = Index.of(map(node_name, twin.nodes), twin.node_leaves)
    if tree.hostnames is tree.names and not any(map(is_named_apart, [*joined, *changed])):
        twin.hostnames = twin.names
        return
    before = [tree.nodes[at] for at in (*changes.gone, *changes.changed)]
    hosts: dict[str, int | None] = {
        host: None for host in map(hostname, [*before, *joined, *changed]) if host is not None
    }
    for state in changes.states.values():
        host = hostname(state) if isinstance(state, NodeFacts) else None
        if isinstance(state, NodeFacts) and host in hosts:
            leaf = found_at(twin.paths[-1], tree.path_of(state))
            # Of nodes with one hostname the last one has it.
            hosts[host] = max((one for one in (hosts[host], leaf) if one is not None), default=None)
    twin.hostnames = tree.hostnames.amended(order, hosts)
    if twin.hostnames.wasteful(len(twin.nodes)):
        twin.hostnames = Index.of(map(hostname, twin.nodes), twin.node_leaves)


def _start_register(twin: TopologyTree) -> None:
    """Forget nodes as no tree has them any more; older trees keep the register they have."""
    register, numbers = twin.register.anew(twin.numbers), counting(len(twin.nodes))
    twin.set_members(register, numbers)
    if twin.hosts:
        found = twin.structure
        paths = (*found.paths[:-1], Picked(register.paths, numbers))
        twin.set_structure(Structure(paths, found.leaf_ranges, found.node_offsets))
