"""A node broke: its pods get a new place, the others stay (conformance text, section 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.topology.model import PodSetRequest, SliceLayer
from rackgate_assigner.topology.placement.find import Search, merged, to_assignment
from rackgate_assigner.topology.tree import TopologyTree


def replace_podset(
    search: Search, podset: PodSetRequest, current: TopologyAssignment, broken: str
) -> TopologyAssignment | str:
    """Find a new place for the pods of one PodSet on one broken node.

    Args:
        search: its room counts the current assignment as usage; new pods are assumed in it.
        podset: handled alone, also in a group.
        current: its assignment.
        broken: host name.

    Returns:
        The merged assignment, or the refusal's text.
    """
    tree = search.tree
    kept: dict[int, int] = {}
    lost = 0
    for values, count in current.domains:
        if values[-1] == broken:
            lost += count
            continue
        leaf = tree.leaf_of_values(values)
        if leaf is None:
            return (
                "Cannot replace the node, because the existing topologyAssignment is invalid, "
                f"as it contains the stale domain {values[0]}"
            )
        kept[leaf] = kept.get(leaf, 0) + count
    layers: Sequence[SliceLayer] = podset.topology.slices if podset.topology else ()
    partial = bool(layers) and layers[0].size > 0 and lost % layers[0].size != 0
    leaf_range = _fence(tree, podset, kept, lost, layers if partial else ())
    if partial and leaf_range is not None:
        fitting = [layer for layer in layers if layer.size > 0 and lost % layer.size == 0]
        layers = fitting[-1:]
    spot = search.find(podset, lost, layers=layers, leaf_range=leaf_range)
    if isinstance(spot, str):
        return spot
    if not spot.workers:
        return f"cannot find replacement assignment for unhealthy node: {broken}"
    search.assume(spot.workers, podset)
    return to_assignment(tree, merged(kept, spot.workers))


def _fence(
    tree: TopologyTree,
    podset: PodSetRequest,
    kept: Mapping[int, int],
    lost: int,
    partial_layers: Sequence[SliceLayer],
) -> tuple[int, int] | None:
    """Leaf range that the new pods must stay in, or None.

    Args:
        tree: the domains.
        podset: its required level counts.
        kept: pods per leaf that stay.
        lost: pods that need a place.
        partial_layers: slice layers when an outer slice lost only some of its pods, else empty.
    """
    if not kept:
        return None
    if partial_layers:
        return _torn_slice(tree, kept, lost, partial_layers)
    required = podset.topology.required if podset.topology else None
    if required is None or required not in tree.levels:
        return None
    level = tree.levels.index(required)
    return _leaf_range(tree, level, tree.domain_of_leaf(next(iter(kept)), level))


def _torn_slice(
    tree: TopologyTree, kept: Mapping[int, int], lost: int, layers: Sequence[SliceLayer]
) -> tuple[int, int] | None:
    """The domain whose pods make up whole slices again together with the lost ones."""
    torn = [layer for layer in layers if layer.size > 0 and lost % layer.size]
    if not torn or torn[-1].topology not in tree.levels:
        return None
    layer = torn[-1]
    level = tree.levels.index(layer.topology)
    pods: dict[int, int] = {}
    for leaf, count in sorted(kept.items()):
        domain = tree.domain_of_leaf(leaf, level)
        pods[domain] = pods.get(domain, 0) + count
    for domain, count in pods.items():
        if (count + lost) % layer.size == 0:
            return _leaf_range(tree, level, domain)
    return None


def _leaf_range(tree: TopologyTree, level: int, domain: int) -> tuple[int, int]:
    start, end = np.asarray(tree.leaf_ranges[level])[domain : domain + 2].tolist()
    return start, end
