"""What Workloads take of topologies, kept by host and by domain.

Trees are charged as assignments come and go. A leaf that is new, or whose nodes changed, is
charged from here: what it holds is looked up instead of charging every Workload once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.topology.assignment import Domain
from rackgate_assigner.topology.capacity import SUM_LIMIT, charge_amounts
from rackgate_assigner.topology.tree import TopologyTree, hostname
from rackgate_assigner.workload.info import Charge, PodShape

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
        """Add (1) or take away (-1) one PodSet's assignment."""
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
        """What assignments take of one leaf, by resource.

        Args:
            flavor: whose tree it is.
            tree: the tree.
            leaf: a leaf of it.
            shares_leaf: whether what another flavor placed in this very leaf takes room of it.
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
        """Charges of a leaf that is no host, by its path."""
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
    """What pods not placed by TAS take of one leaf, by resource.

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
