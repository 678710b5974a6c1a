"""Nodes by the value of their hostname label.

Assignments, pods and `status.unhealthyNodes` all identify a node by that value, even if it
differs from the Node's name (C15). Usually one node has it, but nothing enforces that.
"""

from __future__ import annotations

from collections.abc import Iterable

from rackgate.api.names import HOSTNAME_LABEL
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.placement.node_matching import BLOCKING_EFFECTS


class Hosts:
    """Which nodes have which hostname label, and which hosts are healthy.

    Attributes:
        version: rises whenever a host changes.
    """

    def __init__(self, nodes: Iterable[NodeInfo] = ()) -> None:
        self._nodes: dict[str, NodeInfo] = {}
        # Names of nodes; a set only where several nodes share a label.
        self._by_host: dict[str, str | set[str]] = {}
        self._healthy: set[str] = set()
        self.version = 0
        for node in nodes:
            self.put(node)

    def put(self, node: NodeInfo) -> set[str]:
        """A node was added or changed; returns the hosts that changed."""
        old = self._nodes.get(node.name)
        if old is not None and (old is node or _health(old) == _health(node)):
            self._nodes[node.name] = node
            return set()
        changed = set() if old is None else self.drop(node.name)
        self._nodes[node.name] = node
        host = node.labels.get(HOSTNAME_LABEL)
        if host is None:
            return changed
        names = self._by_host.get(host)
        if names is None:
            self._by_host[host] = node.name
        elif isinstance(names, str):
            self._by_host[host] = {names, node.name}
        else:
            names.add(node.name)
        self._update_health(host)
        changed.add(host)
        return changed

    def drop(self, name: str) -> set[str]:
        """A node is deleted; returns the hosts that changed."""
        old = self._nodes.pop(name, None)
        host = old.labels.get(HOSTNAME_LABEL) if old is not None else None
        if host is None:
            return set()
        names = self._by_host[host]
        if not isinstance(names, str):
            names.discard(name)
        if isinstance(names, str) or not names:
            del self._by_host[host]
        self._update_health(host)
        return {host}

    def node_names(self, host: str) -> Iterable[str]:
        """Names of the nodes with this hostname label."""
        names = self._by_host.get(host, ())
        return (names,) if isinstance(names, str) else names

    def node(self, host: str) -> NodeInfo | None:
        """The node of a host: if several nodes have the label, the first that is ready."""
        names = self._by_host.get(host, ())
        if isinstance(names, str):
            return self._nodes[names]
        found = [self._nodes[name] for name in sorted(names)]
        return next((node for node in found if node.ready), found[0] if found else None)

    def is_healthy(self, host: str) -> bool:
        """Whether the host's node accepts pods: ready, not cordoned, without blocking taints."""
        return host in self._healthy

    def has_node(self, name: str) -> bool:
        """Whether a Node of this object name exists."""
        return name in self._nodes

    def host_of(self, name: str) -> str | None:
        """The host of the Node of this object name."""
        node = self._nodes.get(name)
        return node.labels.get(HOSTNAME_LABEL) if node is not None else None

    def _update_health(self, host: str) -> None:
        self.version += 1
        node = self.node(host)
        open_ = node is not None and node.ready and not node.unschedulable
        if node and open_ and not any(t.effect in BLOCKING_EFFECTS for t in node.taints):
            self._healthy.add(host)
        else:
            self._healthy.discard(host)


def _health(node: NodeInfo) -> tuple[object, ...]:
    """The fields that determine health, without the node's resources."""
    return node.labels.get(HOSTNAME_LABEL), node.ready, node.unschedulable, node.taints
