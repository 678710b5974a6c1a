"""Create the next tree after some nodes were added, removed or changed, without a rebuild.

1. `_classify_changes` sorts the new states of nodes: removed, added, changed in place.
2. Nodes that stay in place get new numbers (`_update_in_place`). Otherwise all nodes after
   an added or removed node shift, in whole blocks (`_update_with_reordering`).
3. `_update_structure` counts the members of each domain again, level by level from the leaves up: a
   domain without members is removed.
4. The indexes by name record how the leaves moved.

Invariant: the result equals the tree that `TopologyTree.build` creates from the same nodes, and the
old tree does not change.
Complexity: O(changed nodes x log nodes), and a few block copies of O(nodes).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from rackgate.topology.assignment import Domain
from rackgate_assigner.topology.model import IntVector, NodeInfo
from rackgate_assigner.topology.nodes import (
    LeafIndex,
    Memo,
    NodeSelection,
    hostname,
    hostname_differs,
)
from rackgate_assigner.topology.reordering import Reordering
from rackgate_assigner.topology.tree import (
    Structure,
    TopologyTree,
    find_path,
    index_range,
)

# A node that counts, or why it does not, or None if it is removed.
NodeState: TypeAlias = NodeInfo | str | None


@dataclass(frozen=True, slots=True)
class TreeUpdate:
    """A tree, and how it differs from its predecessor.

    Attributes:
        leaves: their order; None: the same leaves as before.
        changed_leaves: leaves with a node that was added, removed or changed.
    """

    tree: TopologyTree
    leaves: Reordering | None
    changed_leaves: frozenset[int]


@dataclass(slots=True)
class _Changes:
    """Changed nodes by kind of change, with old positions.

    Attributes:
        states: as given to `update_tree`.
        removed: positions.
        added: nodes at a new position.
        changed: nodes that stay in place, by position.
        resource_node_counts: by resource, how many more nodes offer it.
    """

    states: Mapping[str, NodeState]
    removed: list[int] = field(default_factory=list)
    added: list[NodeInfo] = field(default_factory=list)
    changed: dict[int, NodeInfo] = field(default_factory=dict)
    resource_node_counts: Counter[str] = field(default_factory=Counter)


def update_tree(tree: TopologyTree, states: Mapping[str, NodeState]) -> TreeUpdate:
    """Apply new states of some nodes.

    Args:
        tree: does not change.
        states: by Node name; the other nodes stay the same. With a node, all nodes that have or
            had its hostname must be given. If the hostname is the lowest level, hostnames are
            unique among the nodes that count.
    """
    changes = _classify_changes(tree, states)
    texts = {
        name: state if isinstance(state, str) else None
        for name, state in states.items()
        if tree.skip_reasons.get(name) != (state if isinstance(state, str) else None)
    }
    moves = bool(changes.removed or changes.added)
    if not (moves or changes.changed or texts):
        return TreeUpdate(tree, None, frozenset())
    next_tree = copy(tree)
    if texts:
        next_tree.skip_reasons = tree.skip_reasons.with_changes(texts)
    if not (moves or changes.changed):
        return TreeUpdate(next_tree, None, frozenset())
    if any(changes.resource_node_counts.values()):
        offers = Counter(tree.resource_node_counts)
        offers.update(changes.resource_node_counts)
        next_tree.set_resource_node_counts(+offers)
    found = (
        _update_with_reordering(tree, next_tree, changes)
        if moves
        else _update_in_place(tree, next_tree, changes)
    )
    if next_tree.registry.needs_compaction(len(next_tree.nodes)):
        _compact_registry(next_tree)
    return found


def _classify_changes(tree: TopologyTree, states: Mapping[str, NodeState]) -> _Changes:
    changes = _Changes(states)
    for name, state in states.items():
        at = _node_index(tree, name)
        old = None if at is None else tree.nodes[at]
        if not isinstance(state, NodeInfo):
            if at is not None and old is not None:
                changes.removed.append(at)
                changes.resource_node_counts.subtract(old.allocatable.keys())
            continue
        if old == state:
            continue
        changes.resource_node_counts.update(state.allocatable.keys())
        if at is None or old is None:
            changes.added.append(state)
            continue
        changes.resource_node_counts.subtract(old.allocatable.keys())
        if tree.registry.path_of(old) == tree.registry.path_of(state):
            changes.changed[at] = state
        else:
            changes.removed.append(at)
            changes.added.append(state)
    changes.removed.sort()
    changes.added.sort(key=lambda node: (tree.registry.path_of(node), node.name))
    return changes


def _node_index(tree: TopologyTree, name: str) -> int | None:
    leaf = tree.leaf_of_node(name)
    if leaf is None or tree.lowest_is_hostname:
        return leaf
    start, end = tree.node_offsets[leaf : leaf + 2].tolist()
    return bisect_left(tree.nodes, name, start, end, key=attrgetter("name"))


def _update_in_place(tree: TopologyTree, next_tree: TopologyTree, changes: _Changes) -> TreeUpdate:
    numbers = tree.node_numbers.copy()
    for at, node in changes.changed.items():
        numbers[at] = tree.registry.add(node)
    next_tree.set_nodes(tree.registry, numbers)
    pairs = [(tree.nodes[at], node) for at, node in changes.changed.items()]
    if any((old.labels, old.taints) != (new.labels, new.taints) for old, new in pairs):
        next_tree.memo, next_tree.columns = Memo(), Memo()
        if any(hostname(old) != hostname(new) for old, new in pairs):
            _update_indexes(tree, next_tree, None, changes, {})
    if any(old.allocatable != new.allocatable for old, new in pairs):
        next_tree.set_resource_node_counts(next_tree.resource_node_counts)
    changed_leaves = {_leaf_at(tree, at) for at in changes.changed}
    return TreeUpdate(next_tree, None, frozenset(changed_leaves))


def _update_with_reordering(
    tree: TopologyTree, next_tree: TopologyTree, changes: _Changes
) -> TreeUpdate:
    insertions = [_insertion_index(tree, node) for node in changes.added]
    order = Reordering(len(tree.nodes), changes.removed, insertions)
    places = dict(zip(order.inserted, changes.added, strict=True))
    for old, node in changes.changed.items():
        at = order.new_index(old)
        if at is not None:
            places[at] = node
    numbers = order.reorder_array(tree.node_numbers)
    for at, node in places.items():
        numbers[at] = tree.registry.add(node)
    next_tree.set_nodes(tree.registry, numbers)
    next_tree.memo, next_tree.columns = Memo(), Memo()
    next_tree.set_resource_node_counts(next_tree.resource_node_counts)
    removed_paths = [tree.registry.path_of(tree.nodes[at]) for at in changes.removed]
    added_paths = [tree.registry.path_of(node) for node in changes.added]
    hosts = (
        (order, NodeSelection(tree.registry.paths, numbers)) if tree.lowest_is_hostname else None
    )
    found, leaves = _update_structure(tree.structure, removed_paths, added_paths, leaves=hosts)
    next_tree.set_structure(found)
    changed_leaves = {node.name: _leaf_at(next_tree, at) for at, node in places.items()}
    _update_indexes(tree, next_tree, leaves, changes, changed_leaves)
    left = (
        ()
        if tree.lowest_is_hostname
        else (find_path(next_tree.paths[-1], path) for path in removed_paths)
    )
    kept = {leaf for leaf in left if leaf is not None}
    return TreeUpdate(next_tree, leaves, frozenset(kept.union(changed_leaves.values())))


def _insertion_index(tree: TopologyTree, node: NodeInfo) -> int:
    """The old position before which a new node is inserted."""
    leaf = bisect_left(tree.paths[-1], tree.registry.path_of(node))
    if leaf == tree.leaf_count:
        return len(tree.nodes)
    start, end = tree.node_offsets.item(leaf), tree.node_offsets.item(leaf + 1)
    if tree.paths[-1][leaf] != tree.registry.path_of(node):
        return start
    return bisect_left(tree.nodes, node.name, start, end, key=attrgetter("name"))


def _leaf_at(tree: TopologyTree, at: int) -> int:
    return (
        at if tree.lowest_is_hostname else int(tree.node_offsets.searchsorted(at, side="right")) - 1
    )


def _update_structure(
    before: Structure,
    removed: Iterable[Domain],
    added: Iterable[Domain],
    *,
    leaves: tuple[Reordering, Sequence[Domain]] | None = None,
) -> tuple[Structure, Reordering | None]:
    """The domains after an update, and the order of the leaves (None: as before).

    Args:
        before: does not change.
        removed: path of each removed node.
        added: path of each added node.
        leaves: if every leaf is one node: the order of the nodes, and their paths now.
    """
    lowest = len(before.paths) - 1
    order: Reordering | None
    more: Mapping[Domain, int]
    if leaves is not None:
        order, paths = leaves
        offsets = index_range(len(order) + 1)
        more = _member_changes(added, removed)
    else:
        paths, offsets, order, more = _update_level(
            before.paths[-1], before.node_offsets, _member_changes(added, removed)
        )
    upper = [(before.paths[level], before.leaf_ranges[level]) for level in range(lowest)]
    for level in range(lowest):
        inside: Counter[Domain] = Counter()
        for path, number in more.items():
            inside[path[: level + 1]] += number
        same_paths, ranges = upper[level]
        upper[level] = _update_level(same_paths, ranges, inside)[:2]
    found = Structure(
        (*(one for one, _ in upper), paths),
        (*(ranges for _, ranges in upper), index_range(len(offsets))),
        offsets,
    )
    return found, order


def _member_changes(added: Iterable[Domain], removed: Iterable[Domain]) -> Counter[Domain]:
    more = Counter(added)
    more.subtract(removed)
    return more


def _update_level(
    paths: Sequence[Domain], offsets: IntVector, more: Mapping[Domain, int]
) -> tuple[Sequence[Domain], IntVector, Reordering | None, dict[Domain, int]]:
    """One level after its domains added or removed members.

    Args:
        paths: of the domains before.
        offsets: first member of each domain, and how many there are.
        more: number of members that each domain has more now.

    Returns:
        The paths and offsets now, the order of the domains (None: as before), and the domains
        that were added (1) and removed (-1).
    """
    changed = sorted(path for path, number in more.items() if number)
    if not changed:
        return paths, offsets, None, {}
    sizes = np.diff(offsets)
    gone: list[int] = []
    at: list[int] = []
    new_domains: dict[Domain, int] = {}
    removed_domains: list[Domain] = []
    for path in changed:
        place = bisect_left(paths, path)
        if place == len(paths) or paths[place] != path:
            at.append(place)
            new_domains[path] = more[path]
            continue
        sizes[place] += more[path]
        if not sizes[place]:
            gone.append(place)
            removed_domains.append(path)
    order = None
    if gone or at:
        order = Reordering(len(paths), gone, at)
        sizes = order.reorder_array(sizes)
        sizes[order.inserted] = list(new_domains.values())
        paths = order.reorder_items(paths, list(new_domains))
    found = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=found[1:])
    return paths, found, order, dict.fromkeys(new_domains, 1) | dict.fromkeys(removed_domains, -1)


def _update_indexes(
    tree: TopologyTree,
    next_tree: TopologyTree,
    order: Reordering | None,
    changes: _Changes,
    leaves: Mapping[str, int],
) -> None:
    """Move the names to the new leaves; `leaves` are those of new and changed nodes."""
    added, changed = changes.added, list(changes.changed.values())
    names: dict[str, int | None] = {tree.nodes[at].name: None for at in changes.removed}
    names |= leaves
    next_tree.node_name_index = tree.node_name_index.with_changes(order, names)
    if next_tree.node_name_index.needs_compaction(len(next_tree.nodes)):
        names_now = (node.name for node in next_tree.nodes)
        next_tree.node_name_index = LeafIndex.of(names_now, next_tree.node_leaves)
    if tree.hostname_index is tree.node_name_index and not any(
        map(hostname_differs, [*added, *changed])
    ):
        next_tree.hostname_index = next_tree.node_name_index
        return
    before = [tree.nodes[at] for at in (*changes.removed, *changes.changed)]
    hosts: dict[str, int | None] = {
        host: None for host in map(hostname, [*before, *added, *changed]) if host is not None
    }
    for state in changes.states.values():
        host = hostname(state) if isinstance(state, NodeInfo) else None
        if isinstance(state, NodeInfo) and host in hosts:
            leaf = find_path(next_tree.paths[-1], tree.registry.path_of(state))
            # For nodes with one hostname the last one counts.
            hosts[host] = max((one for one in (hosts[host], leaf) if one is not None), default=None)
    next_tree.hostname_index = tree.hostname_index.with_changes(order, hosts)
    if next_tree.hostname_index.needs_compaction(len(next_tree.nodes)):
        next_tree.hostname_index = LeafIndex.of(
            map(hostname, next_tree.nodes), next_tree.node_leaves
        )


def _compact_registry(next_tree: TopologyTree) -> None:
    """Remove nodes that this tree does not have; older trees keep their registry."""
    registry, numbers = (
        next_tree.registry.compact(next_tree.node_numbers),
        index_range(len(next_tree.nodes)),
    )
    next_tree.set_nodes(registry, numbers)
    if next_tree.lowest_is_hostname:
        found = next_tree.structure
        paths = (*found.paths[:-1], NodeSelection(registry.paths, numbers))
        next_tree.set_structure(Structure(paths, found.leaf_ranges, found.node_offsets))
