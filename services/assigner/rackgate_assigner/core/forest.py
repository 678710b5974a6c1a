"""One tree and its numbers for every flavor with a topology; flavors that share nodes share usage.

A host is charged in every tree that holds it (C13). A coarser leaf, say a rack, belongs to one
flavor's nodes: it is charged in another tree only where the two flavors have a node in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rackgate.domains import Domain, TopologyAssignment
from rackgate_assigner.core.capacity import Capacity, charge_assignment
from rackgate_assigner.core.model import NodeFacts
from rackgate_assigner.core.queues import FlavorRow
from rackgate_assigner.core.rows import Charge
from rackgate_assigner.core.tree import TopologyTree


@dataclass(frozen=True, slots=True)
class Grove:
    """The tree of one flavor and the numbers over its leaves."""

    flavor: FlavorRow
    tree: TopologyTree
    capacity: Capacity

    def differences(self, other: Grove) -> list[str]:
        """What two groves of one flavor disagree on: `tree`, or `usage` and `free`."""
        if self.tree.paths != other.tree.paths or self.tree.nodes != other.tree.nodes:
            return ["tree"]
        return [
            what
            for what in ("usage", "free")
            if not np.array_equal(getattr(self.capacity, what), getattr(other.capacity, what))
        ]


def plant(
    flavors: Iterable[FlavorRow],
    nodes: Mapping[str, NodeFacts],
    kept: Mapping[str, TopologyTree],
) -> Forest:
    """Build the trees of all flavors whose topology is known; nothing is charged yet.

    Args:
        flavors: in any order; those without levels get no tree.
        nodes: by Node name.
        kept: trees by flavor name that are still right.
    """
    groves: dict[str, Grove] = {}
    for flavor in sorted(flavors, key=lambda flavor: flavor.name):
        if not flavor.levels:
            continue
        tree = kept.get(flavor.name)
        if tree is None:
            tree = TopologyTree.build(flavor.levels, nodes.values(), node_labels=flavor.node_labels)
        groves[flavor.name] = Grove(flavor, tree, Capacity(tree))
    return Forest(groves)


class Forest:
    """All trees, and the one way to charge them.

    Attributes:
        groves: by flavor name, in name order.
    """

    __slots__ = ("_shared", "groves")

    def __init__(
        self,
        groves: Mapping[str, Grove],
        shared: dict[tuple[str, str], frozenset[Domain]] | None = None,
    ) -> None:
        self.groves = groves
        self._shared = {} if shared is None else shared

    def copy(self) -> Forest:
        """A snapshot: numbers are shared until either side charges something."""
        groves = {
            name: Grove(grove.flavor, grove.tree, grove.capacity.copy())
            for name, grove in self.groves.items()
        }
        return Forest(groves, self._shared)

    def charge(self, charge: Charge, sign: int) -> None:
        """Charge (1) or give back (-1) a PodSet's assignment; unknown domains are ignored."""
        for grove in self.groves.values():
            assignment = self._part_of(grove, charge)
            if assignment is not None:
                charge_assignment(grove.capacity, charge.requests, assignment, sign)

    def charge_node(self, node: str, requests: Mapping[str, int], count: int) -> None:
        """Charge pods that are bound to a node and not placed by us; negative gives back."""
        for grove in self.groves.values():
            leaf = grove.tree.leaf_of_node(node)
            if leaf is not None:
                grove.capacity.charge_other(leaf, requests, count)

    def shared_nodes(self, first: str, second: str) -> int:
        """Number of nodes that two flavors have in common (TAS-33)."""
        other = self.groves[second].tree
        return sum(
            other.leaf_of_node(node.name) is not None for node in self.groves[first].tree.nodes
        )

    def _part_of(self, grove: Grove, charge: Charge) -> TopologyAssignment | None:
        """The part of an assignment that takes room in this tree."""
        assignment = charge.assignment
        if charge.by_host or charge.flavor == grove.flavor.name:
            return assignment
        if assignment.levels != grove.tree.assignment_levels:
            return None
        if charge.flavor not in self.groves:
            return assignment  # its nodes are no longer known: better too much than too little
        shared = self._shared_domains(charge.flavor, grove.flavor.name)
        domains = tuple(pair for pair in assignment.domains if pair[0] in shared)
        return TopologyAssignment(assignment.levels, domains) if domains else None

    def _shared_domains(self, first: str, second: str) -> frozenset[Domain]:
        pair = (min(first, second), max(first, second))
        found = self._shared.get(pair)
        if found is None:
            tree, other = self.groves[pair[0]].tree, self.groves[pair[1]].tree
            common = (tree.leaf_of_node(node.name) for node in other.nodes)
            found = frozenset(tree.values_of_leaf(leaf) for leaf in common if leaf is not None)
            self._shared[pair] = found
        return found
