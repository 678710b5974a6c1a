"""What `replace` is asked about a broken host, where the tree does not show all kept pods. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.node_replacement.hosts import Hosts
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.topology.tree import TopologyTree


def pods_on_hosts(assignment: TopologyAssignment, hosts: set[str]) -> int:
    """Pods that an assignment has on these hosts."""
    return sum(count for values, count in assignment.domains if values[-1] in hosts)


def split_assignment(
    assignment: TopologyAssignment, tree: TopologyTree, group: Sequence[str]
) -> tuple[TopologyAssignment, tuple[tuple[Domain, int], ...]]:
    """What `replace` is asked with, and the domains it cannot see.

    The pods of a whole group are put on its first host, the last domain: they are lost together.
    """
    known: list[tuple[Domain, int]] = []
    absent: list[tuple[Domain, int]] = []
    for values, count in assignment.domains:
        if values[-1] in group:
            continue
        (known if tree.leaf_of_values(values) is not None else absent).append((values, count))
    known.append(((group[0],), pods_on_hosts(assignment, set(group))))
    return TopologyAssignment(assignment.levels, tuple(known)), tuple(absent)


def restrict_to_domain(
    request: PodSetRequest,
    tree: TopologyTree,
    known: TopologyAssignment,
    absent: Sequence[tuple[Domain, int]],
    hosts: Hosts,
) -> PodSetRequest:
    """The request, held to the domain of kept pods that the tree does not show.

    `replace` derives that domain from kept pods on nodes that take part. Where a node of others
    is not ready, its labels still say where they are.
    """
    asked = request.topology
    if not absent or asked is None:
        return request
    seen = [(values[-1], count) for values, count in known.domains[:-1]]
    lost = known.domains[-1][1]
    kept = [*seen, *((values[-1], count) for values, count in absent)]
    partial_slices = [layer for layer in asked.slices if layer.size > 0 and lost % layer.size]
    if partial_slices and asked.slices[0] in partial_slices:
        pods: dict[Domain, int] = {}
        for host, count in kept:
            path = path_of(tree, hosts, host, partial_slices[-1].topology)
            if path:
                pods[path] = pods.get(path, 0) + count
        size = partial_slices[-1].size
        target_domain = next((path for path in sorted(pods) if (pods[path] + lost) % size == 0), ())
        remaining_slices = tuple(s for s in asked.slices if s.size > 0 and lost % s.size == 0)[-1:]
        asked = replace(asked, slices=remaining_slices) if target_domain else asked
    elif asked.required and not seen:
        paths = (path_of(tree, hosts, host, asked.required) for host, _ in kept)
        target_domain = next((path for path in paths if path), ())
    else:
        return request
    selector = {**request.node_selector, **dict(zip(tree.levels, target_domain, strict=False))}
    return replace(request, topology=asked, node_selector=selector)


def path_of(tree: TopologyTree, hosts: Hosts, host: str, level: str) -> Domain:
    """The domain of a level that a host lies in by its labels; empty when that is not known."""
    node = hosts.node(host)
    if node is None or level not in tree.levels:
        return ()
    levels = tree.levels[: tree.levels.index(level) + 1]
    if any(key not in node.labels for key in levels):
        return ()
    return tuple(node.labels[key] for key in levels)
