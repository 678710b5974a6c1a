"""One search behind the gates that look closer at leaders and nodes: numbers, and the refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rackgate.features import Features
from rackgate.wire.core import Toleration
from rackgate_assigner.topology.capacity import per_pod
from rackgate_assigner.topology.experimental.fewest_domains import BoolVector
from rackgate_assigner.topology.experimental.refined_leaves import (
    Shape,
    node_exclusions,
    refined_leaves,
)
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.topology.placement.assign import Shortfall
from rackgate_assigner.topology.placement.count import Counts, Room
from rackgate_assigner.topology.placement.messages import excluded_text, refusal_text
from rackgate_assigner.topology.placement.node_matching import eligibility
from rackgate_assigner.topology.placement.request import Question


def takes_care(features: Features, room: Room, leader: PodSetRequest | None) -> bool:
    """Whether a gate of ours changes what leaves can take, or how a refusal is told."""
    if features.nodes_below_leaves and not room.capacity.tree.hosts:
        return True
    return leader is not None and (features.leader_rules or features.leader_messages)


@dataclass(frozen=True, slots=True)
class Case:
    """One question with its numbers.

    Attributes:
        counts: phase 1.
        worker, leader: shapes that were counted.
        leader_name: PodSet of the leader.
        fenced: leaves outside the domain that new pods must be in; None: no leaf_range.
        by_node: leaves are many nodes, which were judged one by one.
    """

    counts: Counts
    room: Room
    worker: Shape
    leader: Shape | None
    leader_name: str
    fenced: BoolVector | None
    by_node: bool
    features: Features

    def refusal(self, topology: str, shortfall: Shortfall) -> str:
        """The refusal's text; behind its gate it speaks of the leader."""
        counts = self.counts
        if shortfall.absent:
            return refusal_text(topology, counts, shortfall, "")
        if self.leader is None or not self.features.leader_messages:
            return refusal_text(topology, counts, shortfall, self._excluded(self.worker))
        leader = f'leader podset "{self.leader_name}"'
        lead = counts.level(len(counts.question.units) - 1).lead
        if lead is None or not lead.any():
            text = f'topology "{topology}" doesn\'t allow to fit {leader}'
            return text + self._excluded(self.leader)
        told = replace(shortfall, fitting=self._beside_leader(shortfall.level))
        excluded = f" together with {leader}{self._excluded(self.worker)}"
        return refusal_text(topology, counts, told, excluded)

    def _beside_leader(self, level: int) -> int:
        """Slices that fit with the leader: into the best domain, or into all of the level."""
        question, numbers = self.counts.question, self.counts.level(level)
        if numbers.lead is None or not numbers.lead.any():
            return 0
        hosts = numbers.lead >= 1
        if question.required or question.within is not None:
            return int(numbers.slices_led[hosts].max())
        loss = (numbers.slices - numbers.slices_led)[hosts].min()
        return int(numbers.slices.sum() - loss)

    def _excluded(self, shape: Shape) -> str:
        if self.by_node:
            return node_exclusions(self.counts.tree, self.room, shape, self.fenced)
        return excluded_text(self.room, shape.amounts, shape.judged, self.fenced)


def look_closely(
    question: Question,
    room: Room,
    workers: PodSetRequest,
    leader: PodSetRequest | None,
    *,
    flavor_tolerations: Sequence[Toleration],
    leaf_range: tuple[int, int] | None,
    features: Features,
) -> Case:
    """Count what every leaf can take, each pod by its own rules where the gates say so.

    Args:
        question: what is asked.
        room: free amounts.
        workers: their selector, affinity and tolerations count for the leader too, unless the
            gate gives it its own.
        leader: one pod of this PodSet, or None.
        flavor_tolerations: added by the flavor.
        leaf_range: leaf range that the pods must stay in.
        features: which rules count.
    """
    tree = room.capacity.tree
    by_node = features.nodes_below_leaves and not tree.hosts

    def shape(podset: PodSetRequest, rules: PodSetRequest) -> Shape:
        judged = eligibility(
            tree,
            rules,
            flavor_tolerations,
            soft_affinity=features.node_affinity_preferred and not by_node,
            every_node=by_node,
        )
        return Shape(per_pod(podset.requests), judged)

    fenced = None
    if leaf_range is not None:
        fenced = np.ones(tree.leaf_count, dtype=np.bool_)
        fenced[leaf_range[0] : leaf_range[1]] = False
    worker = shape(workers, workers)
    lead = None
    if leader is not None:
        lead = shape(leader, leader if features.leader_rules else workers)
    leaves = refined_leaves(question, room, worker, lead, fenced=fenced, by_node=by_node)
    return Case(
        Counts(tree, question, leaves),
        room,
        worker,
        lead,
        leader.name if leader is not None else "",
        fenced,
        by_node,
        features,
    )
