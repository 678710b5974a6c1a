"""The topology trees of all flavors, charged with everything that uses their nodes.

`FlavorTopologies` is one tree with its capacity for every flavor that has a topology. A host is
charged in every tree that contains it (C13). A coarser leaf, say a rack, belongs to the nodes of
one flavor: it is charged in another tree only where the two flavors share a node.

`Trees` keeps them up to date. Events are recorded as they come, at a cost that does not depend on
the size of the cluster, and applied together when a cycle asks for its snapshot. Only the changed
nodes of a tree are updated (`topology.update`); a flavor that is new, or selects other nodes, gets
its tree built from scratch. A leaf that is new, or whose nodes changed, is charged from
`TopologyUsage`, which keeps all charges by host and by domain: no Workload is charged again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias, TypeVar

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.cache.hosts import Hosts
from rackgate_assigner.cache.usage import WorkloadUsage
from rackgate_assigner.quota.queues import FlavorInfo
from rackgate_assigner.topology.capacity import (
    SUM_LIMIT,
    Capacity,
    charge_amounts,
    charge_assignment,
    leaf_of_assigned_domain,
)
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.nodes import hostname
from rackgate_assigner.topology.tree import TopologyTree, select_nodes, takes_part
from rackgate_assigner.topology.update import NodeState, update_tree
from rackgate_assigner.workload.info import Charge, PodShape


@dataclass(frozen=True, slots=True)
class FlavorTopology:
    """The tree of one flavor and the capacity of its leaves."""

    flavor: FlavorInfo
    tree: TopologyTree
    capacity: Capacity


def build_flavor_topology(flavor: FlavorInfo, nodes: Iterable[NodeInfo]) -> FlavorTopology:
    """Build the tree of a flavor whose levels are known; nothing is charged yet."""
    tree = TopologyTree.build(flavor.levels, nodes, node_labels=flavor.node_labels)
    return FlavorTopology(flavor, tree, Capacity(tree))


class FlavorTopologies:
    """All trees, and the only way to charge them.

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
                name: replace(flavor_topology, capacity=flavor_topology.capacity.copy())
                for name, flavor_topology in self.by_flavor.items()
            }
        )

    def charge(self, charge: Charge, sign: int) -> None:
        """Charge (1) or release (-1) a PodSet's assignment; unknown domains are ignored."""
        for flavor_topology in self.by_flavor.values():
            self.charge_flavor_topology(flavor_topology, charge, sign)

    def charge_flavor_topology(
        self, flavor_topology: FlavorTopology, charge: Charge, sign: int
    ) -> None:
        """`charge` for one tree alone."""
        assignment = self._assignment_charged_in(flavor_topology, charge)
        if assignment is not None:
            charge_assignment(flavor_topology.capacity, charge.requests, assignment, sign)

    def flavors_charged_by(self, charge: Charge) -> Iterator[str]:
        """Flavors whose trees a PodSet's assignment is charged to; with some that it may be."""
        for name, flavor_topology in self.by_flavor.items():
            assignment = self._assignment_charged_in(flavor_topology, charge)
            if assignment is not None and (
                not charge.by_host
                or any(
                    flavor_topology.tree.leaf_of_host(values[-1]) is not None
                    for values, _ in assignment.domains
                    if values
                )
            ):
                yield name

    def flavors_with_node(self, node: str) -> Iterator[str]:
        """Flavors whose trees have a node."""
        for name, flavor_topology in self.by_flavor.items():
            if flavor_topology.tree.leaf_of_node(node) is not None:
                yield name

    def charge_node(self, node: str, requests: Mapping[str, int], count: int) -> None:
        """Charge pods that are bound to a node and not placed by TAS; a negative count releases."""
        for flavor_topology in self.by_flavor.values():
            leaf = flavor_topology.tree.leaf_of_node(node)
            if leaf is not None:
                flavor_topology.capacity.charge_other(leaf, requests, count)

    def capacity_with(self, flavor_topology: FlavorTopology, charges: Iterable[Charge]) -> Capacity:
        """A copy of the capacity of a tree in which these pods stay with `simulate_empty`."""
        capacity = flavor_topology.capacity.copy()
        for charge in charges:
            assignment = self._assignment_charged_in(flavor_topology, charge)
            for values, count in () if assignment is None else assignment.domains:
                leaf = leaf_of_assigned_domain(capacity.tree, charge.assignment.levels, values)
                if leaf is not None:
                    capacity.charge_other(leaf, charge.requests, count)
        return capacity

    def shared_nodes(self, first: str, second: str) -> int:
        """Number of nodes that two flavors have in common (TAS-33)."""
        other = self.by_flavor[second].tree
        return sum(
            other.leaf_of_node(node.name) is not None for node in self.by_flavor[first].tree.nodes
        )

    def _assignment_charged_in(
        self, flavor_topology: FlavorTopology, charge: Charge
    ) -> TopologyAssignment | None:
        """The domains of an assignment that use capacity of this tree."""
        assignment = charge.assignment
        if charge.by_host or charge.flavor == flavor_topology.flavor.name:
            return assignment
        if assignment.levels != flavor_topology.tree.assignment_levels:
            return None
        if charge.flavor not in self.by_flavor:
            return assignment  # The nodes are unknown: charge too much rather than too little.
        domains = tuple(
            pair
            for pair in assignment.domains
            if (leaf := flavor_topology.tree.leaf_of_values(pair[0])) is not None
            and self.shares_leaf(charge.flavor, flavor_topology.tree, leaf)
        )
        return TopologyAssignment(assignment.levels, domains) if domains else None

    def shares_leaf(self, flavor: str, tree: TopologyTree, leaf: int) -> bool:
        """Whether pods that a flavor placed in a leaf above the hosts use its capacity too.

        They do where the flavor has a node of the leaf, and where its nodes are not known.
        """
        flavor_topology = self.by_flavor.get(flavor)
        return flavor_topology is None or any(
            flavor_topology.tree.leaf_of_node(node.name) is not None
            for node in tree.nodes_of_leaf(leaf)
        )


# A flavor (None: every one that has the host), the shape of the pods, and how many in one charge.
Item: TypeAlias = tuple[str | None, PodShape, int]
# By item, how many charges of it there are.
Items: TypeAlias = dict[Item, int]

Place = TypeVar("Place")


class TopologyUsage:
    """Charges of all assignments, whether or not their flavor has a tree.

    Attributes:
        hosts: by hostname, of assignments whose lowest level is the hostname.
        domains: by levels and values, of all others.
    """

    __slots__ = ("domains", "hosts")

    def __init__(self) -> None:
        self.hosts: dict[str, Items] = {}
        self.domains: dict[tuple[tuple[str, ...], Domain], Items] = {}

    def add(self, charge: Charge, sign: int) -> None:
        """Add (1) or remove (-1) one PodSet's assignment."""
        shape = tuple(sorted(charge.requests.items()))
        levels = charge.assignment.levels
        if levels[-1:] == (HOSTNAME_LABEL,):
            flavor = None if charge.by_host else charge.flavor
            for values, count in charge.assignment.domains:
                if values:
                    _add(self.hosts, values[-1], (flavor, shape, count), sign)
            return
        for values, count in charge.assignment.domains:
            _add(self.domains, (levels, values), (charge.flavor, shape, count), sign)

    def of_leaf(
        self, flavor: str, tree: TopologyTree, leaf: int, shares_leaf: Callable[[str], bool]
    ) -> dict[str, int]:
        """What assignments use of one leaf, by resource.

        Args:
            flavor: whose tree it is.
            tree: the tree.
            leaf: a leaf of it.
            shares_leaf: whether assignments of another flavor to this leaf use its capacity.
        """
        total: dict[str, int] = {}
        for (owner, shape, count), times in self.items_of_hosts(tree, leaf):
            if owner is None or owner == flavor:
                add_amounts(total, charge_amounts(dict(shape), count), times)
        for (owner, shape, count), times in self.items_of_path(tree, leaf):
            if owner is not None and (owner == flavor or shares_leaf(owner)):
                add_amounts(total, charge_amounts(dict(shape), count), times)
        return total

    def items_of_hosts(self, tree: TopologyTree, leaf: int) -> Iterator[tuple[Item, int]]:
        """Charges of the hosts of a leaf; one with an owner counts in the owner's tree alone."""
        hosts = {hostname(node) for node in tree.nodes_of_leaf(leaf)}
        for host in hosts:
            if host is not None and tree.leaf_of_host(host) == leaf:
                yield from self.hosts.get(host, {}).items()

    def items_of_path(self, tree: TopologyTree, leaf: int) -> Iterator[tuple[Item, int]]:
        """Charges of a leaf above the hosts, by its path."""
        if not tree.lowest_is_hostname:
            yield from self.domains.get((tree.levels, tree.paths[-1][leaf]), {}).items()

    def leaves_charged_by(self, flavors: set[str], tree: TopologyTree) -> set[int]:
        """Leaves of a tree, above the hosts, that some of these flavors placed pods in."""
        if tree.lowest_is_hostname or not flavors:
            return set()
        found = {
            tree.leaf_of_values(values)
            for (levels, values), items in self.domains.items()
            if levels == tree.levels and any(owner in flavors for owner, _, _ in items)
        }
        return {leaf for leaf in found if leaf is not None}


def add_amounts(total: dict[str, int], amounts: Mapping[str, int], times: int) -> None:
    """Add amounts by resource so many times."""
    for resource, amount in amounts.items():
        total[resource] = total.get(resource, 0) + amount * times


def non_tas_usage_of_leaf(
    tree: TopologyTree, leaf: int, pods: Mapping[str, Mapping[PodShape, int]]
) -> dict[str, int]:
    """What pods not placed by TAS use of one leaf, by resource.

    Args:
        tree: the tree.
        leaf: a leaf of it.
        pods: by Node name, how many of each shape are charged to it.
    """
    total: dict[str, int] = {}
    for node in tree.nodes_of_leaf(leaf):
        for shape, count in pods.get(node.name, {}).items():
            add_amounts(total, charge_amounts(dict(shape), count, SUM_LIMIT), 1)
    return total


def _add(places: dict[Place, Items], place: Place, item: Item, sign: int) -> None:
    items = places.get(place)
    if items is None:
        items = places[place] = {}
    times = items.get(item, 0) + sign
    if times:
        items[item] = times
        return
    del items[item]
    if not items:
        del places[place]


# Building from scratch is cheaper than updating when one node in so many has changed.
REBUILD_FRACTION = 4
# With fewer changes than this a tree is always updated.
MIN_CHANGES_FOR_REBUILD = 64


class Trees:
    """Trees of all flavors with a topology, charged with everything that uses their nodes.

    Attributes:
        usage: charges of all assignments, also of flavors without a tree at the moment.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeInfo],
        flavors: Mapping[str, FlavorInfo],
        pods: Mapping[str, Mapping[PodShape, int]],
        usages: Mapping[str, WorkloadUsage],
        hosts: Hosts,
    ) -> None:
        """Prepare; all arguments are read when needed.

        Args:
            nodes: by Node name.
            flavors: by name.
            pods: by Node name, how many pods of each shape are charged to it.
            usages: of all Workloads; their charges as they were given to `charge`.
            hosts: nodes by hostname label; shows a change before it is recorded here.
        """
        self.usage = TopologyUsage()
        self._nodes, self._flavors = nodes, flavors
        self._pods, self._usages = pods, usages
        self._flavor_topologies: FlavorTopologies | None = None
        self._hosts = hosts
        self._changed_nodes: set[str] = set()
        self._changed_hosts: set[str] = set()
        self._changed_flavors: set[str] = set()

    # Events.

    def record_node_change(self, old: NodeInfo | None, new: NodeInfo | None) -> None:
        """A node was added, deleted or changed; `nodes` shows it already."""
        for facts in (old, new):
            if facts is None:
                continue
            host = hostname(facts)
            if host is not None:
                self._changed_hosts.add(host)
            self._changed_nodes.add(facts.name)
        limit = MIN_CHANGES_FOR_REBUILD + len(self._nodes) // REBUILD_FRACTION
        if self._flavor_topologies is None or len(self._changed_nodes) > limit:
            # A build reads every node. A standby never asks for trees: it would record every name.
            self._flavor_topologies = None
            self._changed_nodes, self._changed_hosts = set(), set()

    def record_flavor_change(self, name: str) -> None:
        """A flavor was added, deleted or changed; `flavors` shows it already."""
        self._changed_flavors.add(name)

    def charge(self, charge: Charge, sign: int) -> None:
        """An assignment was added (1) or released (-1)."""
        self.usage.add(charge, sign)
        if self._flavor_topologies is not None:
            self._flavor_topologies.charge(charge, sign)

    def charge_node(self, node: str, shape: PodShape, sign: int) -> None:
        """A pod not placed by TAS uses a node (1), or no longer does (-1)."""
        if self._flavor_topologies is not None:
            self._flavor_topologies.charge_node(node, dict(shape), sign)

    # Reading.

    def flavors_charged_by(self, charge: Charge) -> Iterable[str] | None:
        """Flavors whose trees an assignment is charged to; None while trees are not built.

        Nodes that changed since the trees were updated are not looked at.
        """
        found = self._flavor_topologies
        return None if found is None else found.flavors_charged_by(charge)

    def flavors_with_node(self, node: str) -> Iterable[str] | None:
        """As `flavors_charged_by`, for a pod that is charged to its node."""
        found = self._flavor_topologies
        return None if found is None else found.flavors_with_node(node)

    def affects_any_tree(self, node: str) -> bool:
        """Whether charges to a node can affect any decision; true until trees are built."""
        if self._flavor_topologies is None or self._changed_flavors:
            return True
        facts = self._nodes.get(node) if node in self._changed_nodes else None
        if facts is not None and any(
            flavor.levels and takes_part(facts, flavor.node_labels, flavor.levels)
            for flavor in self._flavors.values()
        ):
            return True
        return any(
            flavor_topology.tree.leaf_of_node(node) is not None
            for flavor_topology in self._flavor_topologies.by_flavor.values()
        )

    def flavor_topologies(self) -> FlavorTopologies:
        """The trees with everything charged; read-only, and valid until the next event."""
        if self._flavor_topologies is None:
            self._flavor_topologies = self._build_all()
        elif self._changed_nodes or self._changed_flavors:
            # If the update fails, the next call builds from scratch.
            before, self._flavor_topologies = self._flavor_topologies, None
            self._flavor_topologies = self._updated(before)
        self._changed_nodes, self._changed_hosts, self._changed_flavors = set(), set(), set()
        return self._flavor_topologies

    # From scratch.

    def _build_all(self) -> FlavorTopologies:
        flavor_topologies = FlavorTopologies(
            {
                flavor.name: build_flavor_topology(flavor, self._nodes.values())
                for flavor in self._flavors.values()
                if flavor.levels
            }
        )
        self._charge_all(flavor_topologies, flavor_topologies.by_flavor)
        return flavor_topologies

    def _charge_all(self, flavor_topologies: FlavorTopologies, names: Iterable[str]) -> None:
        """Charge everything to trees that are new."""
        by_flavor = [flavor_topologies.by_flavor[name] for name in names]
        for usage in self._usages.values() if by_flavor else ():
            for charge, flavor_topology in product(usage.charges, by_flavor):
                flavor_topologies.charge_flavor_topology(flavor_topology, charge, 1)
        for flavor_topology in by_flavor:
            for node, shapes in self._pods.items():
                leaf = flavor_topology.tree.leaf_of_node(node)
                if leaf is not None:
                    for shape, count in shapes.items():
                        flavor_topology.capacity.charge_other(leaf, dict(shape), count)

    # From the previous trees.

    def _updated(self, before: FlavorTopologies) -> FlavorTopologies:
        by_flavor = dict(before.by_flavor)
        built = self._update_flavors(by_flavor)
        names = self._changed_nodes.union(*map(self._hosts.node_names, self._changed_hosts))
        changed_leaves: dict[str, set[int]] = {}
        for name in by_flavor.keys() - built:
            by_flavor[name], changed_leaves[name] = self._update_nodes(by_flavor[name], names)
        flavor_topologies = FlavorTopologies(by_flavor)
        self._charge_all(flavor_topologies, sorted(built))
        for name, leaves in changed_leaves.items():
            self._charge_leaves(flavor_topologies, flavor_topologies.by_flavor[name], leaves)
        return flavor_topologies

    def _update_flavors(self, by_flavor: dict[str, FlavorTopology]) -> set[str]:
        """Update the set of trees; returns those that were built and are not charged yet."""
        built = set()
        for name in self._changed_flavors:
            row, flavor_topology = self._flavors.get(name), by_flavor.pop(name, None)
            if row is None or not row.levels:
                continue
            if flavor_topology is not None and (row.levels, row.node_labels) == (
                flavor_topology.flavor.levels,
                flavor_topology.flavor.node_labels,
            ):
                by_flavor[name] = replace(flavor_topology, flavor=row)
            else:
                by_flavor[name] = build_flavor_topology(row, self._nodes.values())
                built.add(name)
        return built

    def _update_nodes(
        self, flavor_topology: FlavorTopology, names: set[str]
    ) -> tuple[FlavorTopology, set[int]]:
        """One tree with these nodes as they are now, and the leaves to charge again."""
        update = update_tree(flavor_topology.tree, self._node_states(flavor_topology.flavor, names))
        tree = update.tree
        changed_leaves = set(update.changed_leaves)
        if not tree.lowest_is_hostname:
            # Which of two nodes with one hostname counts, and whose nodes a leaf has as well,
            # can change without any change to this tree.
            changed_leaves.update(
                leaf for leaf in map(tree.leaf_of_node, names) if leaf is not None
            )
            changed_leaves.update(self.usage.leaves_charged_by(self._changed_flavors, tree))
        new_resources = set(tree.resources) - set(flavor_topology.tree.resources)
        if new_resources:
            changed_leaves.update(self._leaves_with_resources(new_resources, tree))
        if tree is flavor_topology.tree:
            return flavor_topology, changed_leaves
        capacity = flavor_topology.capacity.move_to_tree(tree, update.leaves)
        return FlavorTopology(flavor_topology.flavor, tree, capacity), changed_leaves

    def _node_states(self, flavor: FlavorInfo, names: set[str]) -> dict[str, NodeState]:
        known = [self._nodes[name] for name in names if name in self._nodes]
        taking, skipped = select_nodes(known, flavor.node_labels, flavor.levels)
        states: dict[str, NodeState] = dict.fromkeys(names)
        return states | skipped | {node.name: node for node in taking}

    def _leaves_with_resources(self, resources: set[str], tree: TopologyTree) -> Iterator[int]:
        """Leaves charged with a resource that no node offered before."""
        for leaf in range(tree.leaf_count):
            shapes = [shape for (_, shape, _), _ in self.usage.items_of_hosts(tree, leaf)]
            shapes += [shape for (_, shape, _), _ in self.usage.items_of_path(tree, leaf)]
            for node in tree.nodes_of_leaf(leaf):
                shapes += self._pods.get(node.name, ())
            if any(resource in resources for shape in shapes for resource, _ in shape):
                yield leaf

    def _charge_leaves(
        self,
        flavor_topologies: FlavorTopologies,
        flavor_topology: FlavorTopology,
        leaves: Iterable[int],
    ) -> None:
        tree, capacity = flavor_topology.tree, flavor_topology.capacity

        for leaf in leaves:

            def shares_leaf(flavor: str, leaf: int = leaf) -> bool:
                return flavor_topologies.shares_leaf(flavor, tree, leaf)

            usage = self.usage.of_leaf(flavor_topology.flavor.name, tree, leaf, shares_leaf)
            capacity.set_leaf(leaf, usage, non_tas_usage_of_leaf(tree, leaf, self._pods))
