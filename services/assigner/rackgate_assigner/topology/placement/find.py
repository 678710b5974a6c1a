"""One search on one snapshot: both phases for a unit, and the room carried between units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.core import Toleration
from rackgate_assigner.topology.capacity import Capacity, per_pod
from rackgate_assigner.topology.experimental.balanced import balanced_shares
from rackgate_assigner.topology.experimental.careful import look_closely, takes_care
from rackgate_assigner.topology.experimental.packing import packed_shares, packs
from rackgate_assigner.topology.model import PodSetRequest, SliceLayer
from rackgate_assigner.topology.placement.assign import Shortfall, choose_start, descend
from rackgate_assigner.topology.placement.count import Counts, Room
from rackgate_assigner.topology.placement.count_cache import Shape, count_domains
from rackgate_assigner.topology.placement.distribute import Shares
from rackgate_assigner.topology.placement.messages import excluded_text, refusal_text
from rackgate_assigner.topology.placement.node_matching import eligibility
from rackgate_assigner.topology.placement.request import Question, RequestError, read_question
from rackgate_assigner.topology.tree import TopologyTree


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a unit goes: pods per leaf id, in path order, only positive counts."""

    workers: Mapping[int, int] = field(default_factory=dict)
    leader: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, shares: Shares, *, led: bool) -> Spot:
        """The place that leaves were given, in any order."""
        shares = sorted(shares)
        return cls(
            {leaf: pods for leaf, pods, _ in shares if pods > 0},
            {leaf: lead for leaf, _, lead in shares if lead > 0} if led else {},
        )


class Search:
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
        self.room = Room(capacity, simulate_empty=simulate_empty)

    def assume(self, spots: Mapping[int, int], podset: PodSetRequest) -> None:
        """Take the pods of a PodSet from the room of those that follow."""
        self.room.assume(list(spots), list(spots.values()), per_pod(podset.requests))

    def find(
        self,
        workers: PodSetRequest,
        count: int,
        leader: PodSetRequest | None = None,
        *,
        layers: Sequence[SliceLayer] | None = None,
        leaf_range: tuple[int, int] | None = None,
    ) -> Spot | str:
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
        asked = workers.topology.slices if workers.topology else ()
        try:
            question = read_question(
                self.tree.levels,
                workers,
                count,
                asked if layers is None else layers,
                mixed_profile=self.features.profile_mixed,
                both_levels=self.features.required_and_preferred,
            )
        except RequestError as error:
            return str(error)
        if layers is None and count % question.size:
            return (
                f'podset "{workers.name}": count {count} is not a multiple of '
                f"the slice size {question.size}"
            )
        if takes_care(self.features, self.room, leader):
            return self._careful_answer(question, workers, leader, leaf_range)
        return self._answer(question, workers, leader, leaf_range)

    def _careful_answer(
        self,
        question: Question,
        workers: PodSetRequest,
        leader: PodSetRequest | None,
        leaf_range: tuple[int, int] | None,
    ) -> Spot | str:
        """`_answer` behind the gates that look closer at leaders and nodes."""
        case = look_closely(
            question,
            self.room,
            workers,
            leader,
            flavor_tolerations=self.flavor_tolerations,
            leaf_range=leaf_range,
            features=self.features,
        )
        shares = self._shares(case.counts)
        if isinstance(shares, Shortfall):
            return case.refusal(self.topology, shares)
        return Spot.of(shares, led=case.counts.led)

    def _answer(
        self,
        question: Question,
        workers: PodSetRequest,
        leader: PodSetRequest | None,
        leaf_range: tuple[int, int] | None,
    ) -> Spot | str:
        judged = eligibility(
            self.tree,
            workers,
            self.flavor_tolerations,
            soft_affinity=self.features.node_affinity_preferred,
        )
        fenced = None
        if leaf_range is not None:
            fenced = np.ones(self.tree.leaf_count, dtype=np.bool_)
            fenced[leaf_range[0] : leaf_range[1]] = False
        shape = Shape(
            per_pod(workers.requests),
            per_pod(leader.requests) if leader is not None else None,
            judged,
            fenced,
        )
        counts = count_domains(self.tree, question, self.room, shape)
        shares = self._shares(counts)
        if isinstance(shares, Shortfall):
            excluded = ""
            if not shares.absent:
                excluded = excluded_text(self.room, shape.worker, judged, fenced)
            return refusal_text(self.topology, counts, shares, excluded)
        return Spot.of(shares, led=counts.led)

    def _shares(self, counts: Counts) -> Shares | Shortfall:
        question = counts.question
        spreads = not (question.required or question.unconstrained or question.within is not None)
        if self.features.balanced_placement and spreads:
            shares = balanced_shares(counts)
            if shares is not None:
                return shares
        if packs(self.features):
            return packed_shares(counts, self.room, self.features)
        start = choose_start(counts)
        return start if isinstance(start, Shortfall) else descend(counts, start)


def to_assignment(tree: TopologyTree, spots: Mapping[int, int]) -> TopologyAssignment:
    """The stored form of pods per leaf: in path order, hostname alone in the host case."""
    paths = tree.paths[-1]
    part = slice(-1 if tree.hosts else 0, None)
    return TopologyAssignment(
        tree.assignment_levels,
        tuple([(paths[leaf][part], spots[leaf]) for leaf in sorted(spots)]),
    )


def merged(before: Mapping[int, int], new: Mapping[int, int]) -> dict[int, int]:
    """Pods per leaf, equal leaves added up."""
    pods = dict(before)
    for leaf, count in new.items():
        pods[leaf] = pods.get(leaf, 0) + count
    return pods
