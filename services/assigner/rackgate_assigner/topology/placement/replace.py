"""A node broke: its pods get a new place, the others stay (conformance text, section 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.topology.model import PodSetRequest, SliceLayer
from rackgate_assigner.topology.placement.find import (
    PlacementSearch,
    merge_pods_by_leaf,
    to_assignment,
)
from rackgate_assigner.topology.tree import TopologyTree


def replace_podset(
    search: PlacementSearch, podset: PodSetRequest, current: TopologyAssignment, unhealthy_node: str
) -> TopologyAssignment | str:
    """Find a new place for the pods of one PodSet on one unhealthy node.

    Args:
        search: its room counts the current assignment as usage; new pods are assumed in it.
        podset: handled alone, also in a group.
        current: its assignment.
        unhealthy_node: host name.

    Returns:
        The merged assignment, or the refusal's text.
    """
    tree = search.tree
    remaining: dict[int, int] = {}
    pods_to_replace = 0
    for values, count in current.domains:
        if values[-1] == unhealthy_node:
            pods_to_replace += count
            continue
        leaf = tree.leaf_of_values(values)
        if leaf is None:
            return (
                "Cannot replace the node, because the existing topologyAssignment is invalid, "
                f"as it contains the stale domain {values[0]}"
            )
        remaining[leaf] = remaining.get(leaf, 0) + count
    layers: Sequence[SliceLayer] = podset.topology.slices if podset.topology else ()
    partial = bool(layers) and layers[0].size > 0 and pods_to_replace % layers[0].size != 0
    leaf_range = _required_replacement_domain(
        tree, podset, remaining, pods_to_replace, layers if partial else ()
    )
    if partial and leaf_range is not None:
        fitting = [
            layer for layer in layers if layer.size > 0 and pods_to_replace % layer.size == 0
        ]
        layers = fitting[-1:]
    leaf_assignment = search.find_topology_assignment(
        podset, pods_to_replace, layers=layers, leaf_range=leaf_range
    )
    if isinstance(leaf_assignment, str):
        return leaf_assignment
    if not leaf_assignment.workers:
        return f"cannot find replacement assignment for unhealthy node: {unhealthy_node}"
    search.assume(leaf_assignment.workers, podset)
    return to_assignment(tree, merge_pods_by_leaf(remaining, leaf_assignment.workers))


def _required_replacement_domain(
    tree: TopologyTree,
    podset: PodSetRequest,
    remaining: Mapping[int, int],
    pods_to_replace: int,
    partial_layers: Sequence[SliceLayer],
) -> tuple[int, int] | None:
    """Leaf range that the new pods must stay in, or None.

    Args:
        tree: the domains.
        podset: its required level counts.
        remaining: pods per leaf that stay.
        pods_to_replace: pods that need a place.
        partial_layers: slice layers when an outer slice lost only some of its pods, else empty.
    """
    if not remaining:
        return None
    if partial_layers:
        return _incomplete_slice_domain(tree, remaining, pods_to_replace, partial_layers)
    required = podset.topology.required if podset.topology else None
    if required is None or required not in tree.levels:
        return None
    level = tree.levels.index(required)
    return _leaf_range(tree, level, tree.domain_of_leaf(next(iter(remaining)), level))


def _incomplete_slice_domain(
    tree: TopologyTree,
    remaining: Mapping[int, int],
    pods_to_replace: int,
    layers: Sequence[SliceLayer],
) -> tuple[int, int] | None:
    """The domain whose pods make up whole slices again together with the lost ones."""
    incomplete = [layer for layer in layers if layer.size > 0 and pods_to_replace % layer.size]
    if not incomplete or incomplete[-1].topology not in tree.levels:
        return None
    layer = incomplete[-1]
    level = tree.levels.index(layer.topology)
    pods: dict[int, int] = {}
    for leaf, count in sorted(remaining.items()):
        domain = tree.domain_of_leaf(leaf, level)
        pods[domain] = pods.get(domain, 0) + count
    for domain, count in pods.items():
        if (count + pods_to_replace) % layer.size == 0:
            return _leaf_range(tree, level, domain)
    return None


def _leaf_range(tree: TopologyTree, level: int, domain: int) -> tuple[int, int]:
    start, end = np.asarray(tree.leaf_ranges[level])[domain : domain + 2].tolist()
    return start, end
