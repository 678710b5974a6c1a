"""One search on one snapshot: both phases for a unit, and the room carried between units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.core import Toleration
from rackgate_assigner.topology.capacity import Capacity, single_pod_requests
from rackgate_assigner.topology.experimental.balanced import balance_shares
from rackgate_assigner.topology.experimental.packing import changes_packing, pack_shares
from rackgate_assigner.topology.experimental.refined_counts import (
    count_refined,
    needs_refined_counts,
)
from rackgate_assigner.topology.model import PodSetRequest, SliceLayer
from rackgate_assigner.topology.placement.assign import (
    Shortfall,
    assign_to_leaves,
    find_fit_domains,
)
from rackgate_assigner.topology.placement.count import DomainCounts, FreeCapacity
from rackgate_assigner.topology.placement.count_cache import GroupShape, count_domains
from rackgate_assigner.topology.placement.distribute import Shares
from rackgate_assigner.topology.placement.messages import exclusion_text, not_fit_message
from rackgate_assigner.topology.placement.node_matching import match_nodes
from rackgate_assigner.topology.placement.request import (
    PlacementRequest,
    RequestError,
    read_placement_request,
)
from rackgate_assigner.topology.tree import TopologyTree


@dataclass(frozen=True, slots=True)
class LeafAssignment:
    """Where a unit goes: pods per leaf id, in path order, only positive counts."""

    workers: Mapping[int, int] = field(default_factory=dict)
    leader: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, shares: Shares, *, has_leader: bool) -> LeafAssignment:
        """The place that leaves were given, in any order."""
        shares = sorted(shares)
        return cls(
            {leaf: pods for leaf, pods, _ in shares if pods > 0},
            {leaf: leaders for leaf, _, leaders in shares if leaders > 0} if has_leader else {},
        )


class PlacementSearch:
    """A walk over the PodSets of one Workload.

    Attributes:
        room: what is free, less what was assumed by this walk.
    """

    def __init__(
        self,
        tree: TopologyTree,
        capacity: Capacity,
        topology: str,
        flavor_tolerations: Sequence[Toleration],
        features: Features,
        *,
        simulate_empty: bool = False,
    ) -> None:
        if capacity.tree is not tree:
            raise ValueError("capacity belongs to another tree")
        self.tree = tree
        self.topology = topology
        self.flavor_tolerations = tuple(flavor_tolerations)
        self.features = features
        self.room = FreeCapacity(capacity, simulate_empty=simulate_empty)

    def assume(self, pods_by_leaf: Mapping[int, int], podset: PodSetRequest) -> None:
        """Take the pods of a PodSet from the room of those that follow."""
        self.room.assume(
            list(pods_by_leaf), list(pods_by_leaf.values()), single_pod_requests(podset.requests)
        )

    def find_topology_assignment(
        self,
        workers: PodSetRequest,
        count: int,
        leader: PodSetRequest | None = None,
        *,
        layers: Sequence[SliceLayer] | None = None,
        leaf_range: tuple[int, int] | None = None,
    ) -> LeafAssignment | str:
        """Find a place without taking it.

        Args:
            workers: whose topology request, selector, affinity and tolerations count.
            count: workers to place.
            leader: one pod of this PodSet goes with them.
            layers: slice layers instead of those of the request.
            leaf_range: leaf range that the pods must stay in.

        Returns:
            The place, or the refusal's text.
        """
        requested = workers.topology.slices if workers.topology else ()
        try:
            request = read_placement_request(
                self.tree.levels,
                workers,
                count,
                requested if layers is None else layers,
                mixed_profile=self.features.profile_mixed,
                both_levels=self.features.required_and_preferred,
            )
        except RequestError as error:
            return str(error)
        if layers is None and count % request.size:
            return (
                f'podset "{workers.name}": count {count} is not a multiple of '
                f"the slice size {request.size}"
            )
        if needs_refined_counts(self.features, self.room, leader):
            return self._find_with_refined_counts(request, workers, leader, leaf_range)
        return self._find_with_cached_counts(request, workers, leader, leaf_range)

    def _find_with_refined_counts(
        self,
        request: PlacementRequest,
        workers: PodSetRequest,
        leader: PodSetRequest | None,
        leaf_range: tuple[int, int] | None,
    ) -> LeafAssignment | str:
        """`_find_with_cached_counts` behind the gates that look closer at leaders and nodes."""
        refined = count_refined(
            request,
            self.room,
            workers,
            leader,
            flavor_tolerations=self.flavor_tolerations,
            leaf_range=leaf_range,
            features=self.features,
        )
        shares = self._distribute(refined.counts)
        if isinstance(shares, Shortfall):
            return refined.not_fit_message(self.topology, shares)
        return LeafAssignment.of(shares, has_leader=refined.counts.has_leader)

    def _find_with_cached_counts(
        self,
        request: PlacementRequest,
        workers: PodSetRequest,
        leader: PodSetRequest | None,
        leaf_range: tuple[int, int] | None,
    ) -> LeafAssignment | str:
        eligibility = match_nodes(
            self.tree,
            workers,
            self.flavor_tolerations,
            soft_affinity=self.features.node_affinity_preferred,
        )
        outside_leaf_range = None
        if leaf_range is not None:
            outside_leaf_range = np.ones(self.tree.leaf_count, dtype=np.bool_)
            outside_leaf_range[leaf_range[0] : leaf_range[1]] = False
        shape = GroupShape(
            single_pod_requests(workers.requests),
            single_pod_requests(leader.requests) if leader is not None else None,
            eligibility,
            outside_leaf_range,
        )
        counts = count_domains(self.tree, request, self.room, shape)
        shares = self._distribute(counts)
        if isinstance(shares, Shortfall):
            excluded = ""
            if not shares.absent:
                excluded = exclusion_text(self.room, shape.worker, eligibility, outside_leaf_range)
            return not_fit_message(self.topology, counts, shares, excluded)
        return LeafAssignment.of(shares, has_leader=counts.has_leader)

    def _distribute(self, counts: DomainCounts) -> Shares | Shortfall:
        request = counts.request
        may_spread = not (
            request.required or request.unconstrained or request.required_level is not None
        )
        if self.features.balanced_placement and may_spread:
            shares = balance_shares(counts)
            if shares is not None:
                return shares
        if changes_packing(self.features):
            return pack_shares(counts, self.room, self.features)
        start = find_fit_domains(counts)
        return start if isinstance(start, Shortfall) else assign_to_leaves(counts, start)


def to_assignment(tree: TopologyTree, pods_by_leaf: Mapping[int, int]) -> TopologyAssignment:
    """The stored form of pods per leaf: in path order, hostname alone in the host case."""
    paths = tree.paths[-1]
    path_values = slice(-1 if tree.lowest_is_hostname else 0, None)
    return TopologyAssignment(
        tree.assignment_levels,
        tuple([(paths[leaf][path_values], pods_by_leaf[leaf]) for leaf in sorted(pods_by_leaf)]),
    )


def merge_pods_by_leaf(before: Mapping[int, int], new: Mapping[int, int]) -> dict[int, int]:
    """Pods per leaf, equal leaves added up."""
    pods = dict(before)
    for leaf, count in new.items():
        pods[leaf] = pods.get(leaf, 0) + count
    return pods
