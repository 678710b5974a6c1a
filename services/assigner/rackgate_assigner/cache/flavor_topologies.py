"""One tree and its numbers for every flavor with a topology; flavors that share nodes share usage.

A host is charged in every tree that holds it (C13). A coarser leaf, say a rack, belongs to one
flavor's nodes: it is charged in another tree only where the two flavors have a node in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.quota.queues import FlavorInfo
from rackgate_assigner.topology.capacity import Capacity, charge_assignment
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.tree import TopologyTree
from rackgate_assigner.workload.info import Charge


@dataclass(frozen=True, slots=True)
class FlavorTopology:
    """The tree of one flavor and the numbers over its leaves."""

    flavor: FlavorInfo
    tree: TopologyTree
    capacity: Capacity


def build_flavor_topology(flavor: FlavorInfo, nodes: Iterable[NodeInfo]) -> FlavorTopology:
    """Build the tree of a flavor whose levels are known; nothing is charged yet."""
    tree = TopologyTree.build(flavor.levels, nodes, node_labels=flavor.node_labels)
    return FlavorTopology(flavor, tree, Capacity(tree))


class FlavorTopologies:
    """All trees, and the one way to charge them.

    Attributes:
        by_flavor: by flavor name, in name order.
    """

    __slots__ = ("by_flavor",)

    def __init__(self, by_flavor: Mapping[str, FlavorTopology]) -> None:
        self.by_flavor = {name: by_flavor[name] for name in sorted(by_flavor)}

    def copy(self) -> FlavorTopologies:
        """A snapshot: numbers are shared until either side charges something."""
        return FlavorTopologies(
            {
                name: FlavorTopology(
                    flavor_topology.flavor, flavor_topology.tree, flavor_topology.capacity.copy()
                )
                for name, flavor_topology in self.by_flavor.items()
            }
        )

    def charge(self, charge: Charge, sign: int) -> None:
        """Charge (1) or give back (-1) a PodSet's assignment; unknown domains are ignored."""
        for flavor_topology in self.by_flavor.values():
            self.charge_flavor_topology(flavor_topology, charge, sign)

    def charge_flavor_topology(
        self, flavor_topology: FlavorTopology, charge: Charge, sign: int
    ) -> None:
        """`charge` for one tree alone."""
        assignment = self._assignment_charged_in(flavor_topology, charge)
        if assignment is not None:
            charge_assignment(flavor_topology.capacity, charge.requests, assignment, sign)

    def charge_node(self, node: str, requests: Mapping[str, int], count: int) -> None:
        """Charge pods that are bound to a node and not placed by us; negative gives back."""
        for flavor_topology in self.by_flavor.values():
            leaf = flavor_topology.tree.leaf_of_node(node)
            if leaf is not None:
                flavor_topology.capacity.charge_other(leaf, requests, count)

    def shared_nodes(self, first: str, second: str) -> int:
        """Number of nodes that two flavors have in common (TAS-33)."""
        other = self.by_flavor[second].tree
        return sum(
            other.leaf_of_node(node.name) is not None for node in self.by_flavor[first].tree.nodes
        )

    def _assignment_charged_in(
        self, flavor_topology: FlavorTopology, charge: Charge
    ) -> TopologyAssignment | None:
        """The part of an assignment that takes room in this tree."""
        assignment = charge.assignment
        if charge.by_host or charge.flavor == flavor_topology.flavor.name:
            return assignment
        if assignment.levels != flavor_topology.tree.assignment_levels:
            return None
        if charge.flavor not in self.by_flavor:
            return assignment  # its nodes are no longer known: better too much than too little
        domains = tuple(
            pair
            for pair in assignment.domains
            if self._takes_room_in(charge.flavor, flavor_topology, pair[0])
        )
        return TopologyAssignment(assignment.levels, domains) if domains else None

    def _takes_room_in(self, flavor: str, flavor_topology: FlavorTopology, values: Domain) -> bool:
        leaf = flavor_topology.tree.leaf_of_values(values)
        return leaf is not None and self.shares_leaf(flavor, flavor_topology.tree, leaf)

    def shares_leaf(self, flavor: str, tree: TopologyTree, leaf: int) -> bool:
        """Whether pods that a flavor placed in a leaf above the hosts take room of this tree too.

        They do where the flavor has a node of the leaf, and where its nodes are not known.
        """
        flavor_topology = self.by_flavor.get(flavor)
        return flavor_topology is None or any(
            flavor_topology.tree.leaf_of_node(node.name) is not None
            for node in tree.nodes_of_leaf(leaf)
        )
