"""The live trees: events are noted as they come, and taken in together when trees are asked for.

Noting costs the same at any size of the cluster. Taking in patches what the noted nodes and flavors
change; only a flavor that is new, or asks for other nodes, gets its tree built from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from rackgate_assigner.cache.flavor_topologies import (
    FlavorTopologies,
    FlavorTopology,
    build_flavor_topology,
)
from rackgate_assigner.cache.hostnames import Hostnames
from rackgate_assigner.quota.queues import FlavorInfo
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.tree import TopologyTree, hostname, select_nodes, takes_part
from rackgate_assigner.topology.update import NodeState, update_tree
from rackgate_assigner.workload.info import Charge, PodShape
from rackgate_assigner.workload.topology_usage import TopologyUsage, non_tas_usage_of_leaf

# Building from scratch is cheaper than amending when one node in so many has changed.
REBUILD_FRACTION = 4
# Below that many changes nobody needs to count.
MIN_CHANGES_FOR_REBUILD = 64


class Trees:
    """Trees of all flavors with a topology, charged with all that is known to take room.

    Attributes:
        usage: what assignments take, also of what has no tree at the moment.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeInfo],
        flavors: Mapping[str, FlavorInfo],
        pods: Mapping[str, Mapping[PodShape, int]],
        charges: Callable[[], Iterable[Charge]],
    ) -> None:
        """Prepare; all arguments are read when needed.

        Args:
            nodes: by Node name.
            flavors: by name.
            pods: by Node name, how many pods of each shape are charged to it.
            charges: of all Workloads, as they were given to `charge`.
        """
        self.usage = TopologyUsage()
        self._nodes, self._flavors = nodes, flavors
        self._pods, self._charges = pods, charges
        self._flavor_topologies: FlavorTopologies | None = None
        self._hostnames = Hostnames()
        self._changed_nodes: set[str] = set()
        self._changed_hosts: set[str] = set()
        self._changed_flavors: set[str] = set()

    # Events.

    def record_node_change(self, old: NodeInfo | None, new: NodeInfo | None) -> None:
        """A node came, went or changed; `nodes` shows it already."""
        for facts in (old, new):
            if facts is None:
                continue
            host = hostname(facts)
            if host is not None:
                change = self._hostnames.add if facts is new else self._hostnames.drop
                change(host, facts.name)
                self._changed_hosts.add(host)
            self._changed_nodes.add(facts.name)
        if self._flavor_topologies is None or self._rebuild_is_cheaper():
            # Planting looks at every node. A standby, which never asks, would note every name.
            self._flavor_topologies = None
            self._changed_nodes, self._changed_hosts = set(), set()

    def record_flavor_change(self, name: str) -> None:
        """A flavor came, went or changed; `flavors` shows it already."""
        self._changed_flavors.add(name)

    def charge(self, charge: Charge, sign: int) -> None:
        """An assignment was given (1) or taken back (-1)."""
        self.usage.add(charge, sign)
        if self._flavor_topologies is not None:
            self._flavor_topologies.charge(charge, sign)

    def charge_node(self, node: str, shape: PodShape, sign: int) -> None:
        """A pod not placed by us takes room of a node (1), or takes it no more (-1)."""
        if self._flavor_topologies is not None:
            self._flavor_topologies.charge_node(node, dict(shape), sign)

    # Questions.

    def affects_any_tree(self, node: str) -> bool:
        """Whether charges to a node can matter to anyone; yes while trees are to be planted."""
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
        """The trees with everything charged: for reading, and good until the next event."""
        if self._flavor_topologies is None:
            self._flavor_topologies = self._build_all()
        elif self._changed_nodes or self._changed_flavors:
            # Should taking in ever fail, the next question plants from scratch.
            before, self._flavor_topologies = self._flavor_topologies, None
            self._flavor_topologies = self._updated(before)
        self._changed_nodes, self._changed_hosts, self._changed_flavors = set(), set(), set()
        return self._flavor_topologies

    # From scratch.

    def _rebuild_is_cheaper(self) -> bool:
        return (
            len(self._changed_nodes)
            > MIN_CHANGES_FOR_REBUILD + len(self._nodes) // REBUILD_FRACTION
        )

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
        """Charge everything to trees that nothing is charged to yet."""
        by_flavor = [flavor_topologies.by_flavor[name] for name in names]
        for charge in self._charges() if by_flavor else ():
            for flavor_topology in by_flavor:
                flavor_topologies.charge_flavor_topology(flavor_topology, charge, 1)
        for flavor_topology in by_flavor:
            for node, shapes in self._pods.items():
                leaf = flavor_topology.tree.leaf_of_node(node)
                if leaf is not None:
                    for shape, count in shapes.items():
                        flavor_topology.capacity.charge_other(leaf, dict(shape), count)

    # From what was there before.

    def _updated(self, before: FlavorTopologies) -> FlavorTopologies:
        by_flavor = dict(before.by_flavor)
        built = self._update_flavors(by_flavor)
        names = self._changed_nodes.union(*map(self._hostnames.nodes, self._changed_hosts))
        changed_leaves: dict[str, set[int]] = {}
        for name in by_flavor.keys() - built:
            by_flavor[name], changed_leaves[name] = self._update_nodes(by_flavor[name], names)
        flavor_topologies = FlavorTopologies(by_flavor)
        self._charge_all(flavor_topologies, sorted(built))
        for name, leaves in changed_leaves.items():
            self._charge_leaves(flavor_topologies, flavor_topologies.by_flavor[name], leaves)
        return flavor_topologies

    def _update_flavors(self, by_flavor: dict[str, FlavorTopology]) -> set[str]:
        """Bring the set of trees up to date; those that were built anew are not charged yet."""
        built = set()
        for name in self._changed_flavors:
            row, flavor_topology = self._flavors.get(name), by_flavor.pop(name, None)
            if row is None or not row.levels:
                continue
            if flavor_topology is not None and _has_same_tree(flavor_topology.flavor, row):
                by_flavor[name] = FlavorTopology(
                    row, flavor_topology.tree, flavor_topology.capacity
                )
            else:
                by_flavor[name] = build_flavor_topology(row, self._nodes.values())
                built.add(name)
        return built

    def _update_nodes(
        self, flavor_topology: FlavorTopology, names: set[str]
    ) -> tuple[FlavorTopology, set[int]]:
        """The FlavorTopology with some nodes as they are now, and the leaves to charge."""
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


def _has_same_tree(before: FlavorInfo, row: FlavorInfo) -> bool:
    return (before.levels, before.node_labels) == (row.levels, row.node_labels)
