"""Rows of topologies, their domains and hosts.

Each flavor with a topology has its own tree. Hosts that take no part in it now, because they are
not ready or cordoned, are shown at their place all the same: what they offer is not counted, and
what they use is that of their bound pods.

`TopologyRows.update` computes the rows that changed. If the nodes are the same as before, the
numbers of all leaves are compared at once, and only rows of changed leaves are encoded.

Complexity: linear in leaves and resources, as array operations; encoding is linear in changed rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.wire.core import Taint
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.topology.model import IntMatrix, IntVector, NodeInfo
from rackgate_assigner.topology.placement.node_matching import BLOCKING_EFFECTS
from rackgate_assigner.topology.tree import PODS, TopologyTree
from rackgate_console.feed import Feed, Row
from rackgate_console.viewers.access import DOMAINS, HOSTS, PLAIN_TOPOLOGIES, TOPOLOGIES

# A tree with more hosts has rows of its domains alone.
MOST_HOSTS: Final = 20_000
# Hosts of one domain that an answer has.
MOST_LISTED: Final = 1000
# Names of nodes in no domain that are listed.
MOST_OUTSIDE: Final = 200
# Letters of a host's marks.
UNREADY: Final = "u"
CORDONED: Final = "c"
TAINTED: Final = "t"
# Resources that every node has, behind those that jobs compete for.
_LAST: Final = {"cpu": 1, "memory": 2, "ephemeral-storage": 3, PODS: 4}

_encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Shown:
    """What was last computed of a flavor.

    Attributes:
        tree: its rows are up to date with `numbers` while the tree is the same.
        numbers: allocatable and used, shape (2, leaves, resources).
        nodes_version: of the nodes that it was computed from.
        tainted: by leaf, nodes with a taint that keeps pods off.
        apart: hosts that take no part now.
    """

    tree: TopologyTree
    resources: tuple[str, ...]
    numbers: IntMatrix
    nodes_version: int
    tainted: IntVector
    apart: list[NodeInfo]


class TopologyRows:
    """Keeps the rows of all topologies in a feed up to date."""

    def __init__(self, feed: Feed, used_by_pods: Callable[[str], Mapping[str, int]]) -> None:
        """Start empty.

        Args:
            feed: gets the rows.
            used_by_pods: what the bound pods of a node use, by resource; by the node's name.
        """
        self._feed, self._used_by_pods = feed, used_by_pods
        self._shown: dict[str, _Shown] = {}
        self._keys: dict[str, dict[str, set[str]]] = {}

    def update(self, cache: Cache, nodes_version: int) -> None:
        """Update the rows.

        Args:
            cache: filled.
            nodes_version: rises with each change of a node.
        """
        found = cache.flavor_topologies().by_flavor
        for gone in self._keys.keys() - found.keys():
            for table, keys in self._keys.pop(gone).items():
                self._feed.update(table, dict.fromkeys(keys))
            self._shown.pop(gone, None)
        for name, topology in found.items():
            shown = self._shown.get(name)
            resources = shown_resources(topology, _covered(cache))
            numbers = _numbers(topology, resources)
            if (
                shown is not None
                and shown.tree is topology.tree
                and shown.resources == resources
                and shown.nodes_version == nodes_version
            ):
                self._update_leaves(topology, shown, numbers)
            else:
                apart, outside = hosts_apart(cache.nodes.values(), topology)
                shown = self._shown[name] = _Shown(
                    topology.tree,
                    resources,
                    numbers,
                    nodes_version,
                    _tainted(topology.tree),
                    apart,
                )
                self._rebuild(topology, shown, outside)

    def hosts_of(self, flavor: str, path: tuple[str, ...]) -> tuple[list[Row], int] | None:
        """The first hosts of a domain, and how many there are.

        For trees that have no rows of hosts in the feed.

        Args:
            flavor: name of the flavor.
            path: values of the domain, one for each level down to its own.

        Returns:
            None if there is no such domain, or the leaves of the tree are no hosts.
        """
        shown = self._shown.get(flavor)
        if shown is None or not shown.tree.lowest_is_hostname or not path:
            return None
        tree, level = shown.tree, len(path) - 1
        if level >= _domain_levels(tree) or path not in tree.paths[level]:
            return None
        domain = tree.paths[level].index(path)
        start, end = tree.leaf_ranges[level][domain : domain + 2].tolist()
        apart = list(self._apart_rows(flavor, shown, path).values())
        leaves = range(start, min(end, start + MOST_LISTED))
        rows = [*apart, *(_host_row(flavor, tree, leaf, shown.numbers)[1] for leaf in leaves)]
        return rows[:MOST_LISTED], len(apart) + end - start

    def _update_leaves(self, topology: FlavorTopology, shown: _Shown, numbers: IntMatrix) -> None:
        changed = np.flatnonzero((numbers != shown.numbers).any(axis=(0, 2)))
        tree, flavor = topology.tree, topology.flavor.name
        if _has_host_rows(tree):
            self._feed.update(HOSTS, self._apart_rows(flavor, shown))
        if not len(changed):
            return
        shown.numbers = numbers
        apart = _apart_marks(shown)
        rows: dict[str, Row | None] = {}
        for level in range(_domain_levels(tree)):
            domains = {tree.domain_of_leaf(int(leaf), level) for leaf in changed}
            for domain in domains:
                key, row = _domain_row(flavor, shown, level, domain, apart)
                rows[key] = row
        self._feed.update(DOMAINS, rows)
        if _has_host_rows(tree):
            hosts = (_host_row(flavor, tree, int(leaf), numbers) for leaf in changed)
            self._feed.update(HOSTS, dict(hosts))

    def _rebuild(
        self, topology: FlavorTopology, shown: _Shown, outside: list[tuple[str, str]]
    ) -> None:
        tree, flavor = topology.tree, topology.flavor.name
        apart = _apart_marks(shown)
        domains: dict[str, Row] = {}
        for level in range(_domain_levels(tree)):
            for domain in range(len(tree.paths[level])):
                key, row = _domain_row(flavor, shown, level, domain, apart)
                domains[key] = row
        hosts: dict[str, Row] = {}
        host_rows = _has_host_rows(tree)
        if host_rows:
            hosts = self._apart_rows(flavor, shown) | dict(
                _host_row(flavor, tree, leaf, shown.numbers) for leaf in range(tree.leaf_count)
            )
        described = _topology_row(topology, shown, outside, host_rows=host_rows)
        self._set(flavor, DOMAINS, domains)
        self._set(flavor, HOSTS, hosts)
        self._set(flavor, TOPOLOGIES, {flavor: Row(_encode(described))})
        plain = described | {"outside": [], "hostRows": False, "listsHosts": False}
        self._set(flavor, PLAIN_TOPOLOGIES, {flavor: Row(_encode(plain))})

    def _set(self, flavor: str, table: str, rows: Mapping[str, Row]) -> None:
        tables = self._keys.setdefault(flavor, {})
        self._feed.update(table, dict.fromkeys(tables.get(table, set()) - rows.keys()))
        self._feed.update(table, rows)
        tables[table] = set(rows)

    def _apart_rows(self, flavor: str, shown: _Shown, path: tuple[str, ...] = ()) -> dict[str, Row]:
        """Rows of hosts of a domain that take no part now."""
        rows: dict[str, Row] = {}
        levels = shown.tree.levels[: len(path)]
        for node in shown.apart:
            if tuple(map(node.labels.__getitem__, levels)) != path:
                continue
            used = self._used_by_pods(node.name)
            host = node.labels[HOSTNAME_LABEL]
            row = {
                "f": flavor,
                "h": host,
                "p": [node.labels[level] for level in shown.tree.levels[:-1]],
                "a": [node.allocatable.get(name, 0) for name in shown.resources],
                "u": [used.get(name, 0) for name in shown.resources],
                "m": marks_of(node),
            }
            rows[f"{flavor}|{host}"] = Row(_encode(row))
        return rows


def shown_resources(topology: FlavorTopology, covered: Iterable[str]) -> tuple[str, ...]:
    """Resources of a flavor's nodes that a page shows, those that jobs compete for first.

    Args:
        topology: of the flavor.
        covered: by some quota.
    """
    counts = topology.capacity.resources
    wanted = {*covered, "cpu", "memory", PODS}

    def rank(name: str) -> tuple[int, str]:
        return _LAST.get(name, 0), name

    return tuple(sorted((name for name in counts if name in wanted or name not in _LAST), key=rank))


def marks_of(node: NodeInfo) -> str:
    """Letters of what keeps pods off a node, "" if nothing does."""
    tainted = _keeps_off(node.taints)
    return (
        (UNREADY if not node.ready else "")
        + (CORDONED if node.unschedulable else "")
        + (TAINTED if tainted else "")
    )


def hosts_apart(
    nodes: Iterable[NodeInfo], topology: FlavorTopology
) -> tuple[list[NodeInfo], list[tuple[str, str]]]:
    """Nodes of the flavor that its tree does not have.

    Returns:
        Those with a place, that are not ready or cordoned; and names of the others, with why.
    """
    tree, flavor = topology.tree, topology.flavor
    skipped = tree.skipped
    with_place, outside = [], []
    for node in nodes:
        reason = skipped.get(node.name)
        if reason is None:
            continue
        if any(node.labels.get(key) != value for key, value in flavor.node_labels.items()):
            continue  # a node of other flavors
        if all(key in node.labels for key in tree.levels) and marks_of(node):
            with_place.append(node)
        else:
            outside.append((node.name, reason))
    return with_place, sorted(outside)


def _covered(cache: Cache) -> set[str]:
    return {
        resource
        for queue in cache.cluster_queues.values()
        for group in queue.groups
        for resource in group.covered
    }


def _has_host_rows(tree: TopologyTree) -> bool:
    return tree.lowest_is_hostname and tree.leaf_count <= MOST_HOSTS


def _domain_levels(tree: TopologyTree) -> int:
    """Levels that have rows of domains."""
    return len(tree.levels) - 1 if tree.lowest_is_hostname else len(tree.levels)


def _numbers(topology: FlavorTopology, resources: tuple[str, ...]) -> IntMatrix:
    """Allocatable and used, shape (2, leaves, resources)."""
    capacity = topology.capacity
    columns = [capacity.rows[name] for name in resources]
    allocatable = capacity.allocatable[:, columns]
    return np.stack((allocatable, allocatable - capacity.free[:, columns]))


def _tainted(tree: TopologyTree) -> IntVector:
    """Per leaf, nodes with taints that keep pods off."""
    counts = np.zeros(tree.leaf_count, dtype=np.int64)
    tainted = tree.column(None).where(_keeps_off)
    if tainted.any():
        np.add.at(counts, tree.node_leaves, tainted.astype(np.int64))
    return counts


def _keeps_off(taints: Iterable[Taint] | None) -> bool:
    return any(taint.effect in BLOCKING_EFFECTS for taint in taints or ())


def _apart_marks(shown: _Shown) -> Mapping[tuple[str, ...], Counter[str]]:
    """How many hosts that take no part have each mark, by the path of each domain above them."""
    found: dict[tuple[str, ...], Counter[str]] = {}
    for node in shown.apart:
        path = tuple(node.labels[level] for level in shown.tree.levels)
        for depth in range(1, len(path) + 1):
            found.setdefault(path[:depth], Counter()).update(marks_of(node))
    return found


def _domain_row(
    flavor: str,
    shown: _Shown,
    level: int,
    domain: int,
    apart: Mapping[tuple[str, ...], Counter[str]],
) -> tuple[str, Row]:
    tree = shown.tree
    start, end = tree.leaf_ranges[level][domain : domain + 2].tolist()
    path = tree.paths[level][domain]
    sums = shown.numbers[:, start:end].sum(axis=1).tolist()
    marks = apart.get(path, Counter())
    row: dict[str, Any] = {
        "f": flavor,
        "l": level,
        "p": path,
        "n": int(tree.node_offsets[end] - tree.node_offsets[start]),
        "a": sums[0],
        "u": sums[1],
        "m": {
            "unready": marks[UNREADY],
            "cordoned": marks[CORDONED],
            "tainted": marks[TAINTED] + int(shown.tainted[start:end].sum()),
        },
    }
    return f"{flavor}|{level}|{'/'.join(path)}", Row(_encode(row))


def _host_row(flavor: str, tree: TopologyTree, leaf: int, numbers: IntMatrix) -> tuple[str, Row]:
    path = tree.paths[-1][leaf]
    row: dict[str, Any] = {
        "f": flavor,
        "h": path[-1],
        "p": path[:-1],
        "a": numbers[0, leaf].tolist(),
        "u": numbers[1, leaf].tolist(),
    }
    marks = "".join(dict.fromkeys("".join(map(marks_of, tree.nodes_of_leaf(leaf)))))
    if marks:
        row["m"] = marks
    return f"{flavor}|{path[-1]}", Row(_encode(row))


def _topology_row(
    topology: FlavorTopology, shown: _Shown, outside: list[tuple[str, str]], *, host_rows: bool
) -> dict[str, Any]:
    tree, flavor = topology.tree, topology.flavor
    return {
        "flavor": flavor.name,
        "topology": flavor.topology or "",
        "levels": tree.levels,
        "resources": shown.resources,
        "hosts": int(tree.node_offsets[-1]) + len(shown.apart),
        "hostRows": host_rows,
        "listsHosts": tree.lowest_is_hostname and not host_rows,
        "nodeLabels": dict(flavor.node_labels),
        "outside": outside[:MOST_OUTSIDE],
        "outsideCount": len(outside),
    }
