"""One tree and its numbers for every flavor with a topology; flavors that share nodes share usage.

A host is charged in every tree that holds it (C13). A coarser leaf, say a rack, belongs to one
flavor's nodes: it is charged in another tree only where the two flavors have a node in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.quota.queues import FlavorRow
from rackgate_assigner.topology.capacity import Capacity, charge_assignment
from rackgate_assigner.topology.model import NodeFacts
from rackgate_assigner.topology.tree import TopologyTree
from rackgate_assigner.workload.info import Charge


@dataclass(frozen=True, slots=True)
class Grove:
    """The tree of one flavor and the numbers over its leaves."""

    flavor: FlavorRow
    tree: TopologyTree
    capacity: Capacity


def plant(flavor: FlavorRow, nodes: Iterable[NodeFacts]) -> Grove:
    """Build the tree of a flavor whose levels are known; nothing is charged yet."""
    tree = TopologyTree.build(flavor.levels, nodes, node_labels=flavor.node_labels)
    return Grove(flavor, tree, Capacity(tree))


class Forest:
    """All trees, and the one way to charge them.

    Attributes:
        groves: by flavor name, in name order.
    """

    __slots__ = ("groves",)

    def __init__(self, groves: Mapping[str, Grove]) -> None:
        self.groves = {name: groves[name] for name in sorted(groves)}

    def copy(self) -> Forest:
        """A snapshot: numbers are shared until either side charges something."""
        return Forest(
            {
                name: Grove(grove.flavor, grove.tree, grove.capacity.copy())
                for name, grove in self.groves.items()
            }
        )

    def charge(self, charge: Charge, sign: int) -> None:
        """Charge (1) or give back (-1) a PodSet's assignment; unknown domains are ignored."""
        for grove in self.groves.values():
            self.charge_grove(grove, charge, sign)

    def charge_grove(self, grove: Grove, charge: Charge, sign: int) -> None:
        """`charge` for one tree alone."""
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
        domains = tuple(
            pair for pair in assignment.domains if self._has_part_in(charge.flavor, grove, pair[0])
        )
        return TopologyAssignment(assignment.levels, domains) if domains else None

    def _has_part_in(self, flavor: str, grove: Grove, values: Domain) -> bool:
        leaf = grove.tree.leaf_of_values(values)
        return leaf is not None and self.shares(flavor, grove.tree, leaf)

    def shares(self, flavor: str, tree: TopologyTree, leaf: int) -> bool:
        """Whether pods that a flavor placed in a leaf above the hosts take room of this tree too.

        They do where the flavor has a node of the leaf, and where its nodes are not known.
        """
        grove = self.groves.get(flavor)
        return grove is None or any(
            grove.tree.leaf_of_node(node.name) is not None for node in tree.nodes_of_leaf(leaf)
        )
