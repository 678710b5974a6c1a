"""One search behind the gates that look closer at leaders and nodes: numbers, and the refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rackgate.features import Features
from rackgate.wire.core import Toleration
from rackgate_assigner.topology.capacity import single_pod_requests
from rackgate_assigner.topology.experimental.fewest_domains import BoolVector
from rackgate_assigner.topology.experimental.refined_leaves import (
    SinglePodShape,
    count_refined_leaves,
    node_exclusions,
)
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.topology.placement.assign import Shortfall
from rackgate_assigner.topology.placement.count import DomainCounts, FreeCapacity
from rackgate_assigner.topology.placement.messages import exclusion_text, not_fit_message
from rackgate_assigner.topology.placement.node_matching import match_nodes
from rackgate_assigner.topology.placement.request import PlacementRequest


def needs_refined_counts(
    features: Features, room: FreeCapacity, leader: PodSetRequest | None
) -> bool:
    """Whether a gate of ours changes what leaves can take, or how a refusal is told."""
    if features.nodes_below_leaves and not room.capacity.tree.lowest_is_hostname:
        return True
    return leader is not None and (features.leader_rules or features.leader_messages)


@dataclass(frozen=True, slots=True)
class RefinedCounts:
    """One request with its numbers.

    Attributes:
        counts: phase 1.
        worker, leader: shapes that were counted.
        leader_name: PodSet of the leader.
        outside_leaf_range: leaves outside the domain that new pods must be in; None: no leaf_range.
        by_node: leaves are many nodes, which were judged one by one.
    """

    counts: DomainCounts
    room: FreeCapacity
    worker: SinglePodShape
    leader: SinglePodShape | None
    leader_name: str
    outside_leaf_range: BoolVector | None
    by_node: bool
    features: Features

    def not_fit_message(self, topology: str, shortfall: Shortfall) -> str:
        """The refusal's text; behind its gate it speaks of the leader."""
        counts = self.counts
        if shortfall.absent:
            return not_fit_message(topology, counts, shortfall, "")
        if self.leader is None or not self.features.leader_messages:
            return not_fit_message(topology, counts, shortfall, self._exclusions(self.worker))
        leader = f'leader podset "{self.leader_name}"'
        leader_fits = counts.level(len(counts.request.units) - 1).leader_fits
        if leader_fits is None or not leader_fits.any():
            text = f'topology "{topology}" doesn\'t allow to fit {leader}'
            return text + self._exclusions(self.leader)
        shortfall_with_leader = replace(
            shortfall, fitting=self._slices_with_leader(shortfall.level)
        )
        excluded = f" together with {leader}{self._exclusions(self.worker)}"
        return not_fit_message(topology, counts, shortfall_with_leader, excluded)

    def _slices_with_leader(self, level: int) -> int:
        """Slices that fit with the leader: into the best domain, or into all of the level."""
        request, numbers = self.counts.request, self.counts.level(level)
        if numbers.leader_fits is None or not numbers.leader_fits.any():
            return 0
        hosts = numbers.leader_fits >= 1
        if request.required or request.required_level is not None:
            return int(numbers.slices_with_leader[hosts].max())
        loss = (numbers.slices - numbers.slices_with_leader)[hosts].min()
        return int(numbers.slices.sum() - loss)

    def _exclusions(self, shape: SinglePodShape) -> str:
        if self.by_node:
            return node_exclusions(self.counts.tree, self.room, shape, self.outside_leaf_range)
        return exclusion_text(self.room, shape.amounts, shape.eligibility, self.outside_leaf_range)


def count_refined(
    request: PlacementRequest,
    room: FreeCapacity,
    workers: PodSetRequest,
    leader: PodSetRequest | None,
    *,
    flavor_tolerations: Sequence[Toleration],
    leaf_range: tuple[int, int] | None,
    features: Features,
) -> RefinedCounts:
    """Count what every leaf can take, each pod by its own rules where the gates say so.

    Args:
        request: what is asked.
        room: free amounts.
        workers: their selector, affinity and tolerations count for the leader too, unless the
            gate gives it its own.
        leader: one pod of this PodSet, or None.
        flavor_tolerations: added by the flavor.
        leaf_range: leaf range that the pods must stay in.
        features: which rules count.
    """
    tree = room.capacity.tree
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

    outside_leaf_range = None
    if leaf_range is not None:
        outside_leaf_range = np.ones(tree.leaf_count, dtype=np.bool_)
        outside_leaf_range[leaf_range[0] : leaf_range[1]] = False
    worker = shape(workers, workers)
    leader_shape = None
    if leader is not None:
        leader_shape = shape(leader, leader if features.leader_rules else workers)
    leaves = count_refined_leaves(
        request, room, worker, leader_shape, outside_leaf_range=outside_leaf_range, by_node=by_node
    )
    return RefinedCounts(
        DomainCounts(tree, request, leaves),
        room,
        worker,
        leader_shape,
        leader.name if leader is not None else "",
        outside_leaf_range,
        by_node,
        features,
    )
