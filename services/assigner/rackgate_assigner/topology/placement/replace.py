"""Replace the pods of an unhealthy node; the other pods of the Workload keep their domains.

1. The domains of the current assignment on other nodes are kept. Each must
   still be a leaf of the tree.
2. The new pods may be restricted to a domain: to the one whose PodSet slice lost only some of its
   pods, else to the required domain of the kept pods, else to one shared with other PodSets.
3. The pods of the unhealthy node are placed there as `place` does it, and merged with the kept
   ones.

Inputs: a capacity that is charged with the current assignments, including those on the unhealthy
node. Only the first unhealthy node is replaced; PodSets are handled one by one.
Source: conformance/tas, section 11; `findReplacementAssignment` of Kueue's tas_flavor_snapshot.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rackgate.features import DEFAULTS, Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.core import Toleration
from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.model import (
    NoFit,
    Placement,
    PodSetRequest,
    Replacement,
    SharedDomain,
    SliceLayer,
)
from rackgate_assigner.topology.placement.place import (
    PlacementSearch,
    group_podsets,
    to_assignment,
)
from rackgate_assigner.topology.tree import TopologyTree


def replace(
    tree: TopologyTree,
    capacity: Capacity,
    podsets: Sequence[PodSetRequest],
    replacement: Replacement,
    *,
    topology_name: str,
    flavor_tolerations: Sequence[Toleration] = (),
    features: Features = DEFAULTS,
) -> Placement:
    """Place the pods of the first unhealthy node; all others stay. `capacity` is read-only.

    Returns:
        New assignments of the PodSets that had one, up to the first that does not fit: `failure`.

    Raises:
        ValueError: as `place`.
    """
    search = PlacementSearch(tree, capacity, topology_name, flavor_tolerations, features)
    assignments: dict[str, TopologyAssignment] = {}
    for podset in (member for group in group_podsets(podsets) for member in group.members):
        current = replacement.assignments.get(podset.name)
        if current is None:
            continue
        stays = replacement.owned_by_single_pod and features.skip_reassignment_for_pod_owned
        if stays or not replacement.unhealthy_nodes:
            assignments[podset.name] = current
            continue
        unhealthy_node = replacement.unhealthy_nodes[0]
        placed = {**replacement.assignments, **assignments}
        mates = [(one.shared, placed[one.name]) for one in podsets if one.name in placed]
        mates += replacement.mates
        shared = _shared_domain(tree, podset, mates, unhealthy_node)
        found = _replace_podset(search, podset, current, unhealthy_node, shared)
        if isinstance(found, str):
            return Placement(assignments, NoFit(podset.name, found, (podset.name,)))
        assignments[podset.name] = found
    return Placement(assignments)


def _replace_podset(
    search: PlacementSearch,
    podset: PodSetRequest,
    current: TopologyAssignment,
    unhealthy_node: str,
    shared: tuple[int, int] | None,
) -> TopologyAssignment | str:
    """The merged assignment, or why there is none; new pods are assumed.

    `shared` are leaves that the new pods must stay in, if nothing narrower restricts them.
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
    leaf_range = None
    if remaining and partial:
        leaf_range = _incomplete_slice_domain(tree, remaining, pods_to_replace, layers)
    elif remaining:
        leaf_range = _required_domain(tree, podset, next(iter(remaining)))
    if leaf_range is None:
        leaf_range = shared
    elif partial:
        fitting = [
            layer for layer in layers if layer.size > 0 and pods_to_replace % layer.size == 0
        ]
        layers = fitting[-1:]
    found = search.find_topology_assignment(
        podset, pods_to_replace, layers=layers, leaf_range=leaf_range
    )
    if isinstance(found, str):
        return found
    if not found.workers:
        return f"cannot find replacement assignment for unhealthy node: {unhealthy_node}"
    search.free.assume(found.workers, podset.requests)
    return to_assignment(tree, Counter(remaining) + Counter(found.workers))


def _required_domain(
    tree: TopologyTree, podset: PodSetRequest, leaf: int
) -> tuple[int, int] | None:
    """Leaves of the required domain that contains a leaf; None without a required level."""
    required = podset.topology.required if podset.topology else None
    if required is None or required not in tree.levels:
        return None
    level = tree.levels.index(required)
    return _leaf_range(tree, level, tree.domain_of_leaf(leaf, level))


def _shared_domain(
    tree: TopologyTree,
    podset: PodSetRequest,
    mates: Sequence[tuple[Sequence[SharedDomain], TopologyAssignment]],
    unhealthy_node: str,
) -> tuple[int, int] | None:
    """Leaves of the narrowest required domain that a PodSet shares with pods that stay, or None."""
    for shared in reversed(podset.shared):
        if not shared.required or shared.level not in tree.levels:
            continue
        level = tree.levels.index(shared.level)
        for chain, assignment in mates:
            if shared not in chain:
                continue
            hosts = (values for values, _ in assignment.domains if values[-1] != unhealthy_node)
            leaves = (tree.leaf_of_values(values) for values in hosts)
            leaf = next((found for found in leaves if found is not None), None)
            if leaf is not None:
                return _leaf_range(tree, level, tree.domain_of_leaf(leaf, level))
    return None


def _incomplete_slice_domain(
    tree: TopologyTree,
    remaining: Mapping[int, int],
    pods_to_replace: int,
    layers: Sequence[SliceLayer],
) -> tuple[int, int] | None:
    """Leaves of the domain whose pods form whole slices again with the new ones, or None."""
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
    start, end = tree.leaf_ranges[level][domain : domain + 2].tolist()
    return start, end
