"""Phase 1 with Rackgate's own gates: leaders by their own rules, and nodes below leaves.

By default a leader counts by the workers' selector, affinity and tolerations, and without a
hostname level single nodes are not checked; ADR 13 describes the consequences. Here

- RackgateLeaderRules matches the leader by its own selector, affinity and tolerations,
- RackgateLeaderRefusals makes the message of a shortfall name the leader,
- RackgateNodesBelowLeaves matches the nodes of a leaf one by one.

The counts are not cached: each request counts all leaves, in O(nodes x resources).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rackgate.features import Features
from rackgate.wire.core import Toleration
from rackgate_assigner.topology.capacity import single_pod_requests
from rackgate_assigner.topology.model import BoolVector, IntVector, PlacementRequest, PodSetRequest
from rackgate_assigner.topology.placement.assign import Shortfall, not_fit_message
from rackgate_assigner.topology.placement.count import (
    UNREACHABLE,
    DomainCounts,
    FreeCapacity,
    LevelCounts,
    any_pod_fits,
    exclusion_text,
    fit,
    fit_with_leader,
    format_exclusions,
    pods_that_fit,
    slices_of_leaves,
)
from rackgate_assigner.topology.placement.node_matching import Eligibility, match_nodes
from rackgate_assigner.topology.tree import TopologyTree


@dataclass(frozen=True, slots=True)
class SinglePodShape:
    """One pod: its requests, with its 1 of `pods`, and the nodes it may run on."""

    amounts: Mapping[str, int]
    eligibility: Eligibility

    def allowed(self, number: int) -> BoolVector:
        """Shape (number,): nodes that taints, selector and affinity allow."""
        blocked = self.eligibility.blocked
        return np.ones(number, dtype=np.bool_) if blocked is None else ~blocked


def count_refined(
    request: PlacementRequest,
    free: FreeCapacity,
    workers: PodSetRequest,
    leader: PodSetRequest | None,
    *,
    flavor_tolerations: Sequence[Toleration],
    outside_leaf_range: BoolVector | None,
    features: Features,
) -> tuple[DomainCounts, Callable[[str, Shortfall], str]]:
    """Count the capacity of every leaf; leaves of `outside_leaf_range` count 0.

    Returns:
        The counts, and the message of a topology's shortfall; behind its gate it names the leader.
    """
    tree = free.capacity.tree
    by_node = features.nodes_below_leaves and not tree.lowest_is_hostname

    def shape(podset: PodSetRequest, rules: PodSetRequest) -> SinglePodShape:
        eligibility = match_nodes(
            tree,
            rules,
            flavor_tolerations,
            soft_affinity=features.node_affinity_preferred and not by_node,
            match_every_node=by_node,
        )
        return SinglePodShape(single_pod_requests(podset.requests), eligibility)

    worker = shape(workers, workers)
    leader_shape = None
    if leader is not None:
        leader_shape = shape(leader, leader if features.leader_rules else workers)
    pods, leader_fits, pods_with_leader = (_count_by_node if by_node else _count_by_leaf)(
        free, worker, leader_shape
    )
    score = None if by_node else worker.eligibility.scores
    if outside_leaf_range is not None:
        pods[outside_leaf_range] = 0
        pods_with_leader[outside_leaf_range] = 0
        leader_fits &= ~outside_leaf_range
        score = None if score is None else np.where(outside_leaf_range, 0, score)
    slices = slices_of_leaves(request, pods)
    leaves = LevelCounts(pods, slices, pods, slices, None, score)
    if leader is not None:
        slices_with_leader = slices_of_leaves(request, pods_with_leader)
        fits = leader_fits.astype(np.int64)
        leaves = LevelCounts(pods, slices, pods_with_leader, slices_with_leader, fits, score)
    counts = DomainCounts(tree, request, leaves)

    def exclusions(pod: SinglePodShape) -> str:
        if by_node:
            return _node_exclusions(free, pod, outside_leaf_range)
        return exclusion_text(free, pod.amounts, pod.eligibility, outside_leaf_range)

    def message(topology: str, shortfall: Shortfall) -> str:
        if shortfall.absent:
            return not_fit_message(topology, counts, shortfall, "")
        if leader is None or leader_shape is None or not features.leader_messages:
            return not_fit_message(topology, counts, shortfall, exclusions(worker))
        leader_text = f'leader podset "{leader.name}"'
        if leaves.leader_fits is None or not leaves.leader_fits.any():
            text = f'topology "{topology}" doesn\'t allow to fit {leader_text}'
            return text + exclusions(leader_shape)
        with_leader = replace(shortfall, fitting=_slices_with_leader(counts, shortfall.level))
        excluded = f" together with {leader_text}{exclusions(worker)}"
        return not_fit_message(topology, counts, with_leader, excluded)

    return counts, message


def _slices_with_leader(counts: DomainCounts, level: int) -> int:
    """Slices that fit with the leader: into the best domain, or into the whole level."""
    request, numbers = counts.request, counts.level(level)
    if numbers.leader_fits is None or not numbers.leader_fits.any():
        return 0
    hosts = numbers.leader_fits >= 1
    if request.required or request.required_level is not None:
        return int(numbers.slices_with_leader[hosts].max())
    loss = (numbers.slices - numbers.slices_with_leader)[hosts].min()
    return int(numbers.slices.sum() - loss)


def _count_by_leaf(
    free: FreeCapacity, worker: SinglePodShape, leader: SinglePodShape | None
) -> tuple[IntVector, BoolVector, IntVector]:
    """Shapes (leaves,): workers, whether the leader fits, and workers that fit with it.

    Where workers may not run, the leader still may.
    """
    leaf_count = free.capacity.tree.leaf_count
    pods = fit(worker.amounts, free) * worker.allowed(leaf_count)
    if leader is None:
        return pods, np.zeros(leaf_count, dtype=np.bool_), pods.copy()
    hosts = leader.allowed(leaf_count) & any_pod_fits(leader.amounts, free)
    return pods, hosts, fit_with_leader(worker.amounts, leader.amounts, pods, hosts * 1, free)


def _count_by_node(
    free: FreeCapacity, worker: SinglePodShape, leader: SinglePodShape | None
) -> tuple[IntVector, BoolVector, IntVector]:
    """As `_count_by_leaf`, if a leaf has many nodes: no more than fit on them one by one.

    Usage is known per leaf only. So the nodes count as empty, and the free capacity of the
    leaf is the upper limit: no pod that could fit is rejected, and no pod is larger than its node.
    """
    tree = free.capacity.tree
    allowed = worker.allowed(len(tree.nodes))
    one_by_one = np.where(allowed, _node_fit(tree, worker.amounts), 0)
    most = _sum_per_leaf(tree, one_by_one)
    by_leaf = fit(worker.amounts, free)
    pods = np.minimum(by_leaf, most)
    if leader is None:
        return pods, np.zeros(len(pods), dtype=np.bool_), pods.copy()
    hosts = leader.allowed(len(tree.nodes)) & (_node_fit(tree, leader.amounts) > 0)
    leader_fits = any_pod_fits(leader.amounts, free) & (
        _sum_per_leaf(tree, hosts.astype(np.int64)) > 0
    )
    taken = np.where(allowed, _node_fit(tree, worker.amounts, less=leader.amounts), 0)
    loss = np.full(tree.leaf_count, UNREACHABLE, dtype=np.int64)
    np.minimum.at(loss, tree.node_leaves[hosts], (one_by_one - taken)[hosts])
    most_beside = np.where(leader_fits, most - loss, most)
    beside = fit_with_leader(worker.amounts, leader.amounts, by_leaf, leader_fits * 1, free)
    return pods, leader_fits, np.minimum(beside, most_beside)


def _node_fit(
    tree: TopologyTree, amounts: Mapping[str, int], less: Mapping[str, int] | None = None
) -> IntVector:
    """Shape (nodes,): pods that fit on each node if it is empty, or has usage `less`."""
    best: IntVector | None = None
    for resource, amount in amounts.items():
        allocatable = _node_allocatable(tree, resource)
        if less is not None:
            allocatable = allocatable - less.get(resource, 0)
        fits = np.maximum(pods_that_fit(amount, allocatable, len(allocatable)), 0)
        best = fits if best is None else np.minimum(best, fits)
    return np.zeros(len(tree.nodes), dtype=np.int64) if best is None else best


def _node_exclusions(
    free: FreeCapacity, shape: SinglePodShape, outside_leaf_range: BoolVector | None
) -> str:
    """As `exclusion_text`, counted in nodes.

    A node is excluded by a resource if it is too small for one pod, or its leaf too full.
    """
    tree = free.capacity.tree
    left = shape.allowed(len(tree.nodes))
    excluded: dict[str, int] = {}
    if shape.eligibility.codes is not None:
        excluded.update(zip(shape.eligibility.reasons, shape.eligibility.numbers, strict=True))
    if outside_leaf_range is not None:
        outside = outside_leaf_range[tree.node_leaves]
        excluded["topologyDomain"] = int((left & outside).sum())
        left &= ~outside
    resources = sorted(shape.amounts)
    rows = [_pods_by_resource(free, shape.amounts[resource], resource) for resource in resources]
    fits = np.stack(rows)  # never empty: every pod requests 1 of `pods`
    tightest, full = fits.argmin(axis=0), fits.min(axis=0) <= 0
    numbers = np.bincount(tightest[left & full], minlength=len(resources))
    for resource, number in zip(resources, numbers.tolist(), strict=True):
        excluded[f'resource "{resource}"'] = number
    return format_exclusions(len(tree.nodes), excluded)


def _pods_by_resource(free: FreeCapacity, amount: int, resource: str) -> IntVector:
    """Shape (nodes,): pods by one resource, of the empty node and of what its leaf has free."""
    tree = free.capacity.tree
    allocatable = _node_allocatable(tree, resource)
    leaf = pods_that_fit(amount, free.free_amounts(resource), tree.leaf_count)
    return np.minimum(pods_that_fit(amount, allocatable, len(allocatable)), leaf[tree.node_leaves])


def _node_allocatable(tree: TopologyTree, resource: str) -> IntVector:
    """Shape (nodes,)."""
    return np.array([node.allocatable.get(resource, 0) for node in tree.nodes], dtype=np.int64)


def _sum_per_leaf(tree: TopologyTree, numbers: IntVector) -> IntVector:
    """Shape (leaves,)."""
    sums = np.zeros(tree.leaf_count, dtype=np.int64)
    np.add.at(sums, tree.node_leaves, numbers)
    return sums
