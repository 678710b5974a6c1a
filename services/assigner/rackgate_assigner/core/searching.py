"""One search on one snapshot: both phases for a unit, and the room carried between units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rackgate.domains import TopologyAssignment
from rackgate.wire.core import Toleration
from rackgate_assigner.core.asking import Question, RequestError, read_question
from rackgate_assigner.core.balanced import balanced_shares
from rackgate_assigner.core.capacity import Capacity, per_pod
from rackgate_assigner.core.choosing import Shortfall, choose_start, descend
from rackgate_assigner.core.counting import Counts, Room, count_leaves
from rackgate_assigner.core.gates import Gates
from rackgate_assigner.core.handing import Shares
from rackgate_assigner.core.matching import eligibility
from rackgate_assigner.core.model import PodSetRequest, SliceLayer
from rackgate_assigner.core.refusal import excluded_text, refusal_text
from rackgate_assigner.core.tree import TopologyTree


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a unit goes: pods per leaf id, in path order, only positive counts."""

    workers: Mapping[int, int] = field(default_factory=dict)
    leader: Mapping[int, int] = field(default_factory=dict)


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
        gates: Gates,
        *,
        simulate_empty: bool = False,
    ) -> None:
        if capacity.tree is not tree:
            raise ValueError("capacity belongs to another tree")
        self.tree = tree
        self.topology = topology
        self.flavor_tolerations = tuple(flavor_tolerations)
        self.gates = gates
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
        fence: tuple[int, int] | None = None,
    ) -> Spot | str:
        """Find a place without taking it.

        Args:
            workers: whose topology request, selector, affinity and tolerations count.
            count: workers to place.
            leader: one pod of this PodSet goes with them.
            layers: slice layers instead of those of the request.
            fence: leaf range that the pods must stay in.

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
                mixed_profile=self.gates.mixed_profile,
            )
        except RequestError as error:
            return str(error)
        if layers is None and count % question.size:
            return (
                f'podset "{workers.name}": count {count} is not a multiple of '
                f"the slice size {question.size}"
            )
        return self._answer(question, workers, leader, fence)

    def _answer(
        self,
        question: Question,
        workers: PodSetRequest,
        leader: PodSetRequest | None,
        fence: tuple[int, int] | None,
    ) -> Spot | str:
        judged = eligibility(
            self.tree, workers, self.flavor_tolerations, soft_affinity=self.gates.soft_affinity
        )
        worker = per_pod(workers.requests)
        fenced = blocked = None
        if fence is not None:
            fenced = np.ones(self.tree.leaf_count, dtype=np.bool_)
            fenced[fence[0] : fence[1]] = False
        if judged.blocked is not None or fenced is not None:
            blocked = fenced if judged.blocked is None else judged.blocked
            if judged.blocked is not None and fenced is not None:
                blocked = judged.blocked | fenced
        score = judged.scores
        if score is not None and blocked is not None:
            score = np.where(blocked, 0, score)
        leader_amounts = per_pod(leader.requests) if leader is not None else None
        leaves = count_leaves(
            question, self.room, worker, leader_amounts, blocked=blocked, score=score
        )
        counts = Counts(self.tree, question, leaves)
        shares = self._shares(counts)
        if isinstance(shares, Shortfall):
            excluded = "" if shares.absent else excluded_text(self.room, worker, judged, fenced)
            return refusal_text(self.topology, counts, shares, excluded)
        shares.sort()
        return Spot(
            {leaf: pods for leaf, pods, _ in shares if pods > 0},
            {leaf: lead for leaf, _, lead in shares if lead > 0} if counts.led else {},
        )

    def _shares(self, counts: Counts) -> Shares | Shortfall:
        question = counts.question
        if self.gates.balanced and not question.required and not question.unconstrained:
            shares = balanced_shares(counts)
            if shares is not None:
                return shares
        start = choose_start(counts)
        return start if isinstance(start, Shortfall) else descend(counts, start)


def to_assignment(tree: TopologyTree, spots: Mapping[int, int]) -> TopologyAssignment:
    """The stored form of pods per leaf: in path order, hostname alone in the host case."""
    return TopologyAssignment(
        tree.assignment_levels,
        tuple((tree.values_of_leaf(leaf), spots[leaf]) for leaf in sorted(spots)),
    )


def merged(before: Mapping[int, int], new: Mapping[int, int]) -> dict[int, int]:
    """Pods per leaf, equal leaves added up."""
    pods = dict(before)
    for leaf, count in new.items():
        pods[leaf] = pods.get(leaf, 0) + count
    return pods
