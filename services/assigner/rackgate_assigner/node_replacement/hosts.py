"""Nodes by the value of their hostname label. Pure.

That value is the one identity that assignments, pods and `status.unhealthyNodes` share, also where
it differs from the Node's name (C15).
"""

from __future__ import annotations

from rackgate.api.names import HOSTNAME_LABEL
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.placement.node_matching import BLOCKING_EFFECTS


class Hosts:
    """Which node stands behind a host; kept by events, asked by decisions."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeInfo] = {}
        self._by_host: dict[str, set[str]] = {}
        self._healthy: set[str] = set()

    def put(self, node: NodeInfo) -> set[str]:
        """A node was added or changed; returns the hosts that look different now."""
        old = self._nodes.get(node.name)
        if old is not None and (old is node or _health(old) == _health(node)):
            self._nodes[node.name] = node
            return set()
        changed = self.drop(node.name)
        self._nodes[node.name] = node
        host = node.labels.get(HOSTNAME_LABEL)
        if host is not None:
            self._by_host.setdefault(host, set()).add(node.name)
            self._update_health(host)
            changed.add(host)
        return changed

    def drop(self, name: str) -> set[str]:
        """A node is gone; returns the hosts that look different now."""
        old = self._nodes.pop(name, None)
        host = old.labels.get(HOSTNAME_LABEL) if old is not None else None
        if host is None:
            return set()
        named = self._by_host[host]
        named.discard(name)
        if not named:
            del self._by_host[host]
        self._update_health(host)
        return {host}

    def node(self, host: str) -> NodeInfo | None:
        """The node behind a host: of several with one label the first that is ready."""
        found = [self._nodes[name] for name in sorted(self._by_host.get(host, ()))]
        return next((node for node in found if node.ready), found[0] if found else None)

    def is_healthy(self, host: str) -> bool:
        """Whether the host's node takes any pod: ready, not cordoned, without blocking taints."""
        return host in self._healthy

    def has_node(self, name: str) -> bool:
        """Whether there is a Node of this object name."""
        return name in self._nodes

    def host_of(self, name: str) -> str | None:
        """The host of the Node of this object name."""
        node = self._nodes.get(name)
        return node.labels.get(HOSTNAME_LABEL) if node is not None else None

    def _update_health(self, host: str) -> None:
        node = self.node(host)
        self._healthy.discard(host)
        if node is None or not node.ready or node.unschedulable:
            return
        if not any(taint.effect in BLOCKING_EFFECTS for taint in node.taints):
            self._healthy.add(host)


def _health(node: NodeInfo) -> tuple[object, ...]:
    """What decides about health: not what the node offers."""
    return node.labels.get(HOSTNAME_LABEL), node.ready, node.unschedulable, node.taints
