"""Numbers of the leaves behind gates of ours: leaders by their own rules, nodes below leaves.

The default counts a leader by the workers' selector, affinity and tolerations, and without a host
level looks at no node at all; see ADR 13 for what that lets through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rackgate_assigner.topology.experimental.fewest_domains import BoolVector
from rackgate_assigner.topology.placement.count import FreeCapacity, LevelCounts, fit, pods_that_fit
from rackgate_assigner.topology.placement.node_matching import Eligibility
from rackgate_assigner.topology.placement.request import PlacementRequest
from rackgate_assigner.topology.tree import IntVector, TopologyTree

_UNREACHABLE = 2**62


@dataclass(frozen=True, slots=True)
class SinglePodShape:
    """One pod: its amounts, with its 1 of `pods`, and where it may run."""

    amounts: Mapping[str, int]
    eligibility: Eligibility

    def allowed(self, number: int) -> BoolVector:
        """Where taints, selector and affinity let it be, of `number` nodes."""
        blocked = self.eligibility.blocked
        return np.ones(number, dtype=np.bool_) if blocked is None else ~blocked


def count_refined_leaves(
    request: PlacementRequest,
    room: FreeCapacity,
    worker: SinglePodShape,
    leader: SinglePodShape | None,
    *,
    outside_leaf_range: BoolVector | None,
    by_node: bool,
) -> LevelCounts:
    """Numbers of the leaves, each pod judged by its own rules.

    Args:
        request: slice level and size.
        room: free amounts.
        worker: the workers' shape.
        leader: the leader's, or None. Where workers may not run it can still sit.
        outside_leaf_range: leaves that take nothing, or None.
        by_node: leaves are many nodes, which count one by one.
    """
    tree = room.capacity.tree
    view = _count_by_node if by_node else _count_by_leaf
    pods, leader_fits, pods_with_leader = view(tree, room, worker, leader)
    if outside_leaf_range is not None:
        pods[outside_leaf_range] = 0
        pods_with_leader[outside_leaf_range] = 0
        leader_fits &= ~outside_leaf_range
    slices = _slices(request, pods)
    score = None if by_node else worker.eligibility.scores
    if score is not None and outside_leaf_range is not None:
        score = np.where(outside_leaf_range, 0, score)
    if leader is None:
        return LevelCounts(pods, slices, pods, slices, None, score)
    return LevelCounts(
        pods,
        slices,
        pods_with_leader,
        _slices(request, pods_with_leader),
        leader_fits.astype(np.int64),
        score,
    )


def node_exclusions(
    tree: TopologyTree,
    room: FreeCapacity,
    shape: SinglePodShape,
    outside_leaf_range: BoolVector | None,
) -> str:
    """`. Total nodes: T; excluded: ...` counted over nodes, where leaves are many nodes.

    A node is excluded by a resource when it is too small for one pod, or its leaf too full.
    """
    left = shape.allowed(len(tree.nodes))
    excluded_counts: dict[str, int] = {}
    if shape.eligibility.codes is not None:
        reasons = shape.eligibility.reasons
        numbers = np.bincount(shape.eligibility.codes, minlength=len(reasons) + 1)[1:]
        excluded_counts.update(zip(reasons, numbers.tolist(), strict=True))
    if outside_leaf_range is not None:
        excluded_counts["topologyDomain"] = int((left & outside_leaf_range[tree.node_leaves]).sum())
        left &= ~outside_leaf_range[tree.node_leaves]
    resources = sorted(shape.amounts)
    rows = [_pods_by_resource(tree, room, shape.amounts, resource) for resource in resources]
    fits = np.stack(rows)  # never empty: every pod asks for 1 of `pods`
    tightest, full = fits.argmin(axis=0), fits.min(axis=0) <= 0
    numbers = np.bincount(tightest[left & full], minlength=len(resources))
    for resource, number in zip(resources, numbers.tolist(), strict=True):
        excluded_counts[f'resource "{resource}"'] = number
    parts = sorted(f"{reason}: {number}" for reason, number in excluded_counts.items() if number)
    return f". Total nodes: {len(tree.nodes)}; excluded: {', '.join(parts)}" if parts else ""


def _count_by_leaf(
    tree: TopologyTree, room: FreeCapacity, worker: SinglePodShape, leader: SinglePodShape | None
) -> tuple[IntVector, BoolVector, IntVector]:
    """Workers, whether the leader fits, and workers beside it, leaf by leaf."""
    allowed = worker.allowed(tree.leaf_count)
    pods = np.where(allowed, fit(worker.amounts, room), 0)
    if leader is None:
        return pods, np.zeros(len(pods), dtype=np.bool_), pods.copy()
    leader_fits = leader.allowed(tree.leaf_count) & (fit(leader.amounts, room) > 0)
    return (
        pods,
        leader_fits,
        np.where(allowed, _fit_with_leader(room, worker, leader, leader_fits), 0),
    )


def _count_by_node(
    tree: TopologyTree, room: FreeCapacity, worker: SinglePodShape, leader: SinglePodShape | None
) -> tuple[IntVector, BoolVector, IntVector]:
    """As `_count_by_leaf`, where a leaf is many nodes: no more than they could take one by one.

    What is in use is known per leaf alone, so the nodes are taken as empty and the sum of what is
    free bounds the leaf: nothing is refused that could fit, and no pod is larger than its node.
    """
    allowed = worker.allowed(len(tree.nodes))
    one_by_one = np.where(allowed, _node_fit(tree, worker.amounts), 0)
    most = _sum_per_leaf(tree, one_by_one)
    pods = np.minimum(fit(worker.amounts, room), most)
    if leader is None:
        return pods, np.zeros(len(pods), dtype=np.bool_), pods.copy()
    hosts = leader.allowed(len(tree.nodes)) & (_node_fit(tree, leader.amounts) > 0)
    leader_fits = (fit(leader.amounts, room) > 0) & (
        _sum_per_leaf(tree, hosts.astype(np.int64)) > 0
    )
    taken = np.where(allowed, _node_fit(tree, worker.amounts, less=leader.amounts), 0)
    loss = np.full(tree.leaf_count, _UNREACHABLE, dtype=np.int64)
    np.minimum.at(loss, tree.node_leaves[hosts], (one_by_one - taken)[hosts])
    most_led = np.where(leader_fits, most - loss, most)
    return (
        pods,
        leader_fits,
        np.minimum(_fit_with_leader(room, worker, leader, leader_fits), most_led),
    )


def _fit_with_leader(
    room: FreeCapacity, worker: SinglePodShape, leader: SinglePodShape, leader_fits: BoolVector
) -> IntVector:
    """Workers by the free room of the leaves once the leader sits wherever it fits."""
    leaf_count = room.capacity.tree.leaf_count
    best = fit(worker.amounts, room)
    for resource, amount in worker.amounts.items():
        taken, free = leader.amounts.get(resource, 0), room.free_amounts(resource)
        if taken and free is not None:
            best = np.minimum(best, pods_that_fit(amount, free - taken * leader_fits, leaf_count))
    return np.maximum(best, 0)


def _node_fit(
    tree: TopologyTree, amounts: Mapping[str, int], less: Mapping[str, int] | None = None
) -> IntVector:
    """Shape (nodes,): pods that each node would take if it were empty, or held `less`."""
    best: IntVector | None = None
    for resource, amount in amounts.items():
        allocatable = _node_allocatable(tree, resource)
        if less is not None:
            allocatable = allocatable - less.get(resource, 0)
        fits = np.maximum(pods_that_fit(amount, allocatable, len(allocatable)), 0)
        best = fits if best is None else np.minimum(best, fits)
    return np.zeros(len(tree.nodes), dtype=np.int64) if best is None else best


def _pods_by_resource(
    tree: TopologyTree, room: FreeCapacity, amounts: Mapping[str, int], resource: str
) -> IntVector:
    """Shape (nodes,): pods by one resource, of the empty node and of what its leaf has free."""
    amount, allocatable = amounts[resource], _node_allocatable(tree, resource)
    leaf = pods_that_fit(amount, room.free_amounts(resource), tree.leaf_count)
    return np.minimum(pods_that_fit(amount, allocatable, len(allocatable)), leaf[tree.node_leaves])


def _node_allocatable(tree: TopologyTree, resource: str) -> IntVector:
    """Shape (nodes,): allocatable of one resource."""
    return np.array([node.allocatable.get(resource, 0) for node in tree.nodes], dtype=np.int64)


def _sum_per_leaf(tree: TopologyTree, numbers: IntVector) -> IntVector:
    sums = np.zeros(tree.leaf_count, dtype=np.int64)
    np.add.at(sums, tree.node_leaves, numbers)
    return sums


def _slices(request: PlacementRequest, pods: IntVector) -> IntVector:
    if request.slice_level != len(request.units) - 1:
        return np.zeros_like(pods)
    return pods if request.size == 1 else pods // request.size
