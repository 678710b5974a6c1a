"""Which rows a viewer may see. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TOPOLOGIES: Final = "topologies"
PLAIN_TOPOLOGIES: Final = "plainTopologies"
DOMAINS: Final = "domains"
HOSTS: Final = "hosts"
QUEUES: Final = "queues"
WORKLOADS: Final = "workloads"

TABLES: Final = (TOPOLOGIES, PLAIN_TOPOLOGIES, DOMAINS, HOSTS, QUEUES, WORKLOADS)


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of a viewer.

    Attributes:
        nodes: may list nodes: sees hosts, and the names of nodes.
        queues: may list ClusterQueues: sees these, Cohorts, and usage of domains above the hosts.
        namespaces: sees Workloads and LocalQueues of these; None: of all.
    """

    nodes: bool = False
    queues: bool = False
    namespaces: frozenset[str] | None = frozenset()

    def shown_as(self, table: str) -> str | None:
        """The name of a table in the answer; None if the viewer may not see it."""
        if table == HOSTS:
            return table if self.nodes else None
        if table == TOPOLOGIES:
            return table if self.nodes else None
        if table == PLAIN_TOPOLOGIES:
            return TOPOLOGIES if self.queues and not self.nodes else None
        if table == DOMAINS:
            return table if self.nodes or self.queues else None
        return table

    def may_see(self, namespace: str) -> bool:
        """Whether the viewer sees a row of a namespace, or of a queue without one."""
        if not namespace:
            return self.queues
        return self.namespaces is None or namespace in self.namespaces


EVERYTHING: Final = Access(nodes=True, queues=True, namespaces=None)
