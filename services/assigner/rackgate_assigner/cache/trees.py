"""The live trees: events are noted as they come, and taken in together when trees are asked for.

Noting costs the same at any size of the cluster. Taking in patches what the noted nodes and flavors
change; only a flavor that is new, or asks for other nodes, gets its tree built from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from rackgate_assigner.cache.flavor_topologies import Forest, Grove, plant
from rackgate_assigner.cache.hostnames import Hostnames
from rackgate_assigner.quota.queues import FlavorRow
from rackgate_assigner.topology.model import NodeFacts
from rackgate_assigner.topology.tree import TopologyTree, hostname, sift, takes_part
from rackgate_assigner.topology.update import State, amended
from rackgate_assigner.workload.info import Charge, PodShape
from rackgate_assigner.workload.usage import Usage, others_of_leaf

# Building from scratch is cheaper than amending when one node in so many has changed.
BULK = 4
# Below that many changes nobody needs to count.
FEW = 64


class Trees:
    """Trees of all flavors with a topology, charged with all that is known to take room.

    Attributes:
        usage: what assignments take, also of what has no tree at the moment.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeFacts],
        flavors: Mapping[str, FlavorRow],
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
        self.usage = Usage()
        self._nodes, self._flavors = nodes, flavors
        self._pods, self._charges = pods, charges
        self._forest: Forest | None = None
        self._hostnames = Hostnames()
        self._noted_nodes: set[str] = set()
        self._noted_hosts: set[str] = set()
        self._noted_flavors: set[str] = set()

    # Events.

    def note_node(self, old: NodeFacts | None, new: NodeFacts | None) -> None:
        """A node came, went or changed; `nodes` shows it already."""
        for facts in (old, new):
            if facts is None:
                continue
            host = hostname(facts)
            if host is not None:
                change = self._hostnames.add if facts is new else self._hostnames.drop
                change(host, facts.name)
                self._noted_hosts.add(host)
            self._noted_nodes.add(facts.name)
        if self._forest is None or self._bulky():
            # Planting looks at every node. A standby, which never asks, would note every name.
            self._forest = None
            self._noted_nodes, self._noted_hosts = set(), set()

    def note_flavor(self, name: str) -> None:
        """A flavor came, went or changed; `flavors` shows it already."""
        self._noted_flavors.add(name)

    def charge(self, charge: Charge, sign: int) -> None:
        """An assignment was given (1) or taken back (-1)."""
        self.usage.add(charge, sign)
        if self._forest is not None:
            self._forest.charge(charge, sign)

    def charge_node(self, node: str, shape: PodShape, sign: int) -> None:
        """A pod not placed by us takes room of a node (1), or takes it no more (-1)."""
        if self._forest is not None:
            self._forest.charge_node(node, dict(shape), sign)

    # Questions.

    def hold(self, node: str) -> bool:
        """Whether charges to a node can matter to anyone; yes while trees are to be planted."""
        if self._forest is None or self._noted_flavors:
            return True
        facts = self._nodes.get(node) if node in self._noted_nodes else None
        if facts is not None and any(
            flavor.levels and takes_part(facts, flavor.node_labels, flavor.levels)
            for flavor in self._flavors.values()
        ):
            return True
        return any(
            grove.tree.leaf_of_node(node) is not None for grove in self._forest.groves.values()
        )

    def forest(self) -> Forest:
        """The trees with everything charged: for reading, and good until the next event."""
        if self._forest is None:
            self._forest = self._planted()
        elif self._noted_nodes or self._noted_flavors:
            # Should taking in ever fail, the next question plants from scratch.
            before, self._forest = self._forest, None
            self._forest = self._taken_in(before)
        self._noted_nodes, self._noted_hosts, self._noted_flavors = set(), set(), set()
        return self._forest

    # From scratch.

    def _bulky(self) -> bool:
        return len(self._noted_nodes) > FEW + len(self._nodes) // BULK

    def _planted(self) -> Forest:
        forest = Forest(
            {
                flavor.name: plant(flavor, self._nodes.values())
                for flavor in self._flavors.values()
                if flavor.levels
            }
        )
        self._charge_all(forest, forest.groves)
        return forest

    def _charge_all(self, forest: Forest, names: Iterable[str]) -> None:
        """Charge everything to trees that nothing is charged to yet."""
        groves = [forest.groves[name] for name in names]
        for charge in self._charges() if groves else ():
            for grove in groves:
                forest.charge_grove(grove, charge, 1)
        for grove in groves:
            for node, shapes in self._pods.items():
                leaf = grove.tree.leaf_of_node(node)
                if leaf is not None:
                    for shape, count in shapes.items():
                        grove.capacity.charge_other(leaf, dict(shape), count)

    # From what was there before.

    def _taken_in(self, before: Forest) -> Forest:
        groves = dict(before.groves)
        built = self._take_in_flavors(groves)
        names = self._noted_nodes.union(*map(self._hostnames.nodes, self._noted_hosts))
        touched: dict[str, set[int]] = {}
        for name in groves.keys() - built:
            groves[name], touched[name] = self._amend(groves[name], names)
        forest = Forest(groves)
        self._charge_all(forest, sorted(built))
        for name, leaves in touched.items():
            self._charge_leaves(forest, forest.groves[name], leaves)
        return forest

    def _take_in_flavors(self, groves: dict[str, Grove]) -> set[str]:
        """Bring the set of trees up to date; those that were built anew are not charged yet."""
        built = set()
        for name in self._noted_flavors:
            row, grove = self._flavors.get(name), groves.pop(name, None)
            if row is None or not row.levels:
                continue
            if grove is not None and _same_tree(grove.flavor, row):
                groves[name] = Grove(row, grove.tree, grove.capacity)
            else:
                groves[name] = plant(row, self._nodes.values())
                built.add(name)
        return built

    def _amend(self, grove: Grove, names: set[str]) -> tuple[Grove, set[int]]:
        """The grove with some nodes as they are now, and the leaves that have to be charged."""
        amendment = amended(grove.tree, self._states(grove.flavor, names))
        tree = amendment.tree
        touched = set(amendment.touched)
        if not tree.hosts:
            # Which of two nodes with one hostname counts, and whose nodes a leaf has as well,
            # can change without any change to this tree.
            touched.update(leaf for leaf in map(tree.leaf_of_node, names) if leaf is not None)
            touched.update(self.usage.leaves_charged_by(self._noted_flavors, tree))
        gained = set(tree.resources) - set(grove.tree.resources)
        if gained:
            touched.update(self._leaves_with(gained, tree))
        if tree is grove.tree:
            return grove, touched
        capacity = grove.capacity.moved(tree, amendment.leaves)
        return Grove(grove.flavor, tree, capacity), touched

    def _states(self, flavor: FlavorRow, names: set[str]) -> dict[str, State]:
        known = [self._nodes[name] for name in names if name in self._nodes]
        taking, skipped = sift(known, flavor.node_labels, flavor.levels)
        states: dict[str, State] = dict.fromkeys(names)
        return states | skipped | {node.name: node for node in taking}

    def _leaves_with(self, resources: set[str], tree: TopologyTree) -> Iterator[int]:
        """Leaves charged with a resource that no node offered before."""
        for leaf in range(tree.leaf_count):
            shapes = [shape for (_, shape, _), _ in self.usage.items_of_hosts(tree, leaf)]
            shapes += [shape for (_, shape, _), _ in self.usage.items_of_path(tree, leaf)]
            for node in tree.nodes_of_leaf(leaf):
                shapes += self._pods.get(node.name, ())
            if any(resource in resources for shape in shapes for resource, _ in shape):
                yield leaf

    def _charge_leaves(self, forest: Forest, grove: Grove, leaves: Iterable[int]) -> None:
        tree, capacity = grove.tree, grove.capacity

        for leaf in leaves:

            def shares(flavor: str, leaf: int = leaf) -> bool:
                return forest.shares(flavor, tree, leaf)

            usage = self.usage.of_leaf(grove.flavor.name, tree, leaf, shares)
            capacity.put(leaf, usage, others_of_leaf(tree, leaf, self._pods))


def _same_tree(before: FlavorRow, row: FlavorRow) -> bool:
    return (before.levels, before.node_labels) == (row.levels, row.node_labels)
