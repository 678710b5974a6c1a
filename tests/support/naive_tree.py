"""What a tree's arrays must hold, put together by dicts and loops, without any of its code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.tree import TopologyTree

HOST = "kubernetes.io/hostname"
LIMIT = 2**45


def members(
    nodes: Iterable[NodeInfo], levels: Sequence[str], node_labels: Mapping[str, str]
) -> list[NodeInfo]:
    """Nodes that take part, in path order."""
    found: list[NodeInfo] = []
    for node in sorted(nodes, key=lambda one: one.name):
        right = all(node.labels.get(key) == value for key, value in node_labels.items())
        labelled = all(level in node.labels for level in levels)
        if not (node.ready and not node.unschedulable and right and labelled):
            continue
        taken = {one.labels[HOST] for one in found} if levels[-1] == HOST else set()
        if node.labels.get(HOST) not in taken:
            found.append(node)
    return sorted(found, key=lambda one: ([one.labels[level] for level in levels], one.name))


def picture(nodes: Sequence[NodeInfo], levels: Sequence[str]) -> dict[str, Any]:
    """Everything that a tree of these members (in order) says, as plain lists and dicts."""
    whole = [tuple(node.labels[level] for level in levels) for node in nodes]
    paths = [sorted({path[: i + 1] for path in whole}) for i in range(len(levels))]
    leaves = [paths[-1].index(path) for path in whole]
    resources = sorted({"pods"}.union(*(node.allocatable for node in nodes)))
    return {
        "nodes": list(nodes),
        "paths": paths,
        "parents": [
            [paths[i - 1].index(path[:-1]) if i else 0 for path in paths[i]]
            for i in range(len(levels))
        ],
        "children": [
            [sum(child[: i + 1] < path for child in paths[i + 1]) for path in paths[i]]
            + [len(paths[i + 1])]
            for i in range(len(levels) - 1)
        ],
        "ranges": [
            [sum(leaf[: i + 1] < path for leaf in paths[-1]) for path in paths[i]]
            + [len(paths[-1])]
            for i in range(len(levels))
        ],
        "node leaves": leaves,
        "resources": resources,
        "allocatable": [
            [
                sum(
                    max(-LIMIT, min(LIMIT, node.allocatable.get(resource, 0)))
                    for node, at in zip(nodes, leaves, strict=True)
                    if at == leaf
                )
                for leaf in range(len(paths[-1]))
            ]
            for resource in resources
        ],
        "by name": {node.name: leaf for node, leaf in zip(nodes, leaves, strict=True)},
        "by host": {
            node.labels[HOST]: leaf
            for node, leaf in zip(nodes, leaves, strict=True)
            if HOST in node.labels
        },
    }


def said(tree: TopologyTree, names: Iterable[str], hosts: Iterable[str]) -> dict[str, Any]:
    """The same of a tree, as seen through what it shows; it is asked for these names and hosts."""
    by_name = {name: tree.leaf_of_node(name) for name in names}
    by_host = {host: tree.leaf_of_host(host) for host in hosts}
    return {
        "nodes": list(tree.nodes),
        "paths": list(tree.paths),
        "parents": [ids.tolist() for ids in tree.parents],
        "children": [offsets.tolist() for offsets in tree.children],
        "ranges": [offsets.tolist() for offsets in tree.leaf_ranges],
        "node leaves": tree.node_leaves.tolist(),
        "resources": list(tree.resources),
        "allocatable": tree.allocatable.tolist(),
        "by name": {name: leaf for name, leaf in by_name.items() if leaf is not None},
        "by host": {host: leaf for host, leaf in by_host.items() if leaf is not None},
    }
