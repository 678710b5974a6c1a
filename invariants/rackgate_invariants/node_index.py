"""Nodes by name and host, the flavors of each node, and the levels of each flavor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rackgate.api import names
from rackgate.topology.assignment import Domain
from rackgate_invariants.rows.rows import FlavorRow, NodeRow, PodRow, PodSetRow, TopologyRow

HOST_LEVELS: Final = (names.HOSTNAME_LABEL,)


class NodeIndex:
    """Nodes by name and host, and the levels of flavors."""

    def __init__(
        self,
        nodes: Iterable[NodeRow],
        flavors: Iterable[FlavorRow],
        topologies: Iterable[TopologyRow],
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.hosts: dict[str, NodeRow] = {}
        for node in self.nodes.values():
            host = node.labels.get(names.HOSTNAME_LABEL)
            if host:
                self.hosts[host] = node
        self.flavors = {flavor.name: flavor for flavor in flavors}
        levels = {topology.name: topology.levels for topology in topologies}
        self._levels = {
            flavor.name: levels.get(flavor.topology, ()) for flavor in self.flavors.values()
        }
        self._flavors_by_node: dict[str, frozenset[str]] = {}
        self._shared: dict[frozenset[str], frozenset[str]] = {}

    def uses_quota(self, pod: PodRow) -> bool:
        """Whether a pod uses quota: it is bound, and has not ended.

        A pod that is being deleted uses quota until it is gone, except on a node that is gone or
        not ready, where no kubelet reports that it ended.
        """
        if not (pod.node and pod.terminating and self.nodes):
            return bool(pod.node)
        node = self.nodes.get(pod.node)
        return node is not None and node.ready

    def flavors_of_node(self, node: str) -> frozenset[str]:
        """Flavors whose labels a node has; nodes with equal flavors share one object."""
        found = self._flavors_by_node.get(node)
        if found is None:
            row = self.nodes.get(node)
            fitting = frozenset(
                name
                for name, flavor in self.flavors.items()
                if row is not None and flavor.labels.items() <= row.labels.items()
            )
            found = self._flavors_by_node[node] = self._shared.setdefault(fitting, fitting)
        return found

    def levels_of(self, podset: PodSetRow) -> tuple[str, ...]:
        """All levels of the topology that a PodSet was placed in, coarsest first."""
        return self._levels.get(flavor_of(podset), ())

    def path(
        self, levels: tuple[str, ...], domain: Domain, target_levels: tuple[str, ...]
    ) -> Domain | None:
        """The domain of coarser levels that contains a domain.

        Args:
            levels: of `domain`.
            domain: one value per level.
            target_levels: of the result.

        Returns:
            One value per target level; None if the node is gone or has other labels.
        """
        if levels[: len(target_levels)] == target_levels:
            return domain[: len(target_levels)]
        node = self.hosts.get(domain[-1]) if levels == HOST_LEVELS else None
        if node is None:
            return None
        found = tuple([node.labels.get(level, "") for level in target_levels])
        return found if all(found) else None


def flavor_of(podset: PodSetRow) -> str:
    """The flavor whose topology a PodSet is placed in: the first by name (they share one)."""
    return min(podset.flavors.values(), default="")
