"""Numbers of the leaves behind gates of ours: leaders by their own rules, nodes below leaves.

The default counts a leader by the workers' selector, affinity and tolerations, and without a host
level looks at no node at all; see ADR 13 for what that lets through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rackgate_assigner.topology.experimental.fewest_domains import BoolVector
from rackgate_assigner.topology.placement.count import LevelCounts, Room, fit, pods_that_fit
from rackgate_assigner.topology.placement.node_matching import Eligibility
from rackgate_assigner.topology.placement.request import Question
from rackgate_assigner.topology.tree import IntVector, TopologyTree

_FAR = 2**62


@dataclass(frozen=True, slots=True)
class Shape:
    """One pod: its amounts, with its 1 of `pods`, and where it may run."""

    amounts: Mapping[str, int]
    judged: Eligibility

    def allowed(self, number: int) -> BoolVector:
        """Where taints, selector and affinity let it be, of `number` nodes."""
        blocked = self.judged.blocked
        return np.ones(number, dtype=np.bool_) if blocked is None else ~blocked


def refined_leaves(
    question: Question,
    room: Room,
    worker: Shape,
    leader: Shape | None,
    *,
    fenced: BoolVector | None,
    by_node: bool,
) -> LevelCounts:
    """Numbers of the leaves, each pod judged by its own rules.

    Args:
        question: slice level and size.
        room: free amounts.
        worker: the workers' shape.
        leader: the leader's, or None. Where workers may not run it can still sit.
        fenced: leaves that take nothing, or None.
        by_node: leaves are many nodes, which count one by one.
    """
    tree = room.capacity.tree
    view = _nodes if by_node else _leaves
    pods, lead, pods_led = view(tree, room, worker, leader)
    if fenced is not None:
        pods[fenced] = 0
        pods_led[fenced] = 0
        lead &= ~fenced
    slices = _slices(question, pods)
    score = None if by_node else worker.judged.scores
    if score is not None and fenced is not None:
        score = np.where(fenced, 0, score)
    if leader is None:
        return LevelCounts(pods, slices, pods, slices, None, score)
    return LevelCounts(
        pods, slices, pods_led, _slices(question, pods_led), lead.astype(np.int64), score
    )


def node_exclusions(tree: TopologyTree, room: Room, shape: Shape, fenced: BoolVector | None) -> str:
    """`. Total nodes: T; excluded: ...` counted over nodes, where leaves are many nodes.

    A node is excluded by a resource when it is too small for one pod, or its leaf too full.
    """
    left = shape.allowed(len(tree.nodes))
    tally: dict[str, int] = {}
    if shape.judged.codes is not None:
        reasons = shape.judged.reasons
        numbers = np.bincount(shape.judged.codes, minlength=len(reasons) + 1)[1:]
        tally.update(zip(reasons, numbers.tolist(), strict=True))
    if fenced is not None:
        tally["topologyDomain"] = int((left & fenced[tree.node_leaves]).sum())
        left &= ~fenced[tree.node_leaves]
    resources = sorted(shape.amounts)
    rows = [_both(tree, room, shape.amounts, resource) for resource in resources]
    fits = np.stack(rows)  # never empty: every pod asks for 1 of `pods`
    tightest, full = fits.argmin(axis=0), fits.min(axis=0) <= 0
    numbers = np.bincount(tightest[left & full], minlength=len(resources))
    for resource, number in zip(resources, numbers.tolist(), strict=True):
        tally[f'resource "{resource}"'] = number
    parts = sorted(f"{reason}: {number}" for reason, number in tally.items() if number)
    return f". Total nodes: {len(tree.nodes)}; excluded: {', '.join(parts)}" if parts else ""


def _leaves(
    tree: TopologyTree, room: Room, worker: Shape, leader: Shape | None
) -> tuple[IntVector, BoolVector, IntVector]:
    """Workers, whether the leader fits, and workers beside it, leaf by leaf."""
    allowed = worker.allowed(tree.leaf_count)
    pods = np.where(allowed, fit(worker.amounts, room), 0)
    if leader is None:
        return pods, np.zeros(len(pods), dtype=np.bool_), pods.copy()
    lead = leader.allowed(tree.leaf_count) & (fit(leader.amounts, room) > 0)
    return pods, lead, np.where(allowed, _beside(room, worker, leader, lead), 0)


def _nodes(
    tree: TopologyTree, room: Room, worker: Shape, leader: Shape | None
) -> tuple[IntVector, BoolVector, IntVector]:
    """As `_leaves`, where a leaf is many nodes: no more than they could take one by one.

    What is in use is known per leaf alone, so the nodes are taken as empty and the sum of what is
    free bounds the leaf: nothing is refused that could fit, and no pod is larger than its node.
    """
    allowed = worker.allowed(len(tree.nodes))
    one_by_one = np.where(allowed, _node_fit(tree, worker.amounts), 0)
    most = _per_leaf(tree, one_by_one)
    pods = np.minimum(fit(worker.amounts, room), most)
    if leader is None:
        return pods, np.zeros(len(pods), dtype=np.bool_), pods.copy()
    hosts = leader.allowed(len(tree.nodes)) & (_node_fit(tree, leader.amounts) > 0)
    lead = (fit(leader.amounts, room) > 0) & (_per_leaf(tree, hosts.astype(np.int64)) > 0)
    taken = np.where(allowed, _node_fit(tree, worker.amounts, less=leader.amounts), 0)
    loss = np.full(tree.leaf_count, _FAR, dtype=np.int64)
    np.minimum.at(loss, tree.node_leaves[hosts], (one_by_one - taken)[hosts])
    most_led = np.where(lead, most - loss, most)
    return pods, lead, np.minimum(_beside(room, worker, leader, lead), most_led)


def _beside(room: Room, worker: Shape, leader: Shape, lead: BoolVector) -> IntVector:
    """Workers by the free room of the leaves once the leader sits wherever it fits."""
    leaf_count = room.capacity.tree.leaf_count
    best = fit(worker.amounts, room)
    for resource, amount in worker.amounts.items():
        taken, free = leader.amounts.get(resource, 0), room.of(resource)
        if taken and free is not None:
            best = np.minimum(best, pods_that_fit(amount, free - taken * lead, leaf_count))
    return np.maximum(best, 0)


def _node_fit(
    tree: TopologyTree, amounts: Mapping[str, int], less: Mapping[str, int] | None = None
) -> IntVector:
    """Shape (nodes,): pods that each node would take if it were empty, or held `less`."""
    best: IntVector | None = None
    for resource, amount in amounts.items():
        offers = _offers(tree, resource)
        if less is not None:
            offers = offers - less.get(resource, 0)
        fits = np.maximum(pods_that_fit(amount, offers, len(offers)), 0)
        best = fits if best is None else np.minimum(best, fits)
    return np.zeros(len(tree.nodes), dtype=np.int64) if best is None else best


def _both(tree: TopologyTree, room: Room, amounts: Mapping[str, int], resource: str) -> IntVector:
    """Shape (nodes,): pods by one resource, of the empty node and of what its leaf has free."""
    amount, offers = amounts[resource], _offers(tree, resource)
    leaf = pods_that_fit(amount, room.of(resource), tree.leaf_count)
    return np.minimum(pods_that_fit(amount, offers, len(offers)), leaf[tree.node_leaves])


def _offers(tree: TopologyTree, resource: str) -> IntVector:
    """Shape (nodes,): allocatable of one resource."""
    return np.array([node.allocatable.get(resource, 0) for node in tree.nodes], dtype=np.int64)


def _per_leaf(tree: TopologyTree, numbers: IntVector) -> IntVector:
    sums = np.zeros(tree.leaf_count, dtype=np.int64)
    np.add.at(sums, tree.node_leaves, numbers)
    return sums


def _slices(question: Question, pods: IntVector) -> IntVector:
    if question.slice_level != len(question.units) - 1:
        return np.zeros_like(pods)
    return pods if question.size == 1 else pods // question.size
