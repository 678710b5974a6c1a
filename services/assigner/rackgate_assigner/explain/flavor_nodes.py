"""Nodes that a flavor's tree excludes, and why; and flavors that share nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rackgate.api.names import HOSTNAME_LABEL
from rackgate_assigner.explain.explanation import Rule
from rackgate_assigner.quota.queues import FlavorInfo
from rackgate_assigner.topology.model import NodeInfo

SHOWN_NAMES = 3


def missing_levels(node: NodeInfo, flavor: FlavorInfo) -> tuple[str, ...]:
    """Level labels that a node of the flavor lacks, coarsest first (TAS-04)."""
    return tuple(level for level in flavor.levels if level not in node.labels)


def skipping_rule(node: NodeInfo, flavor: FlavorInfo) -> Rule | None:
    """The rule that excludes a node from a flavor's tree, or None.

    Unlike `reason_to_skip`, this checks labels first: a node of another flavor is not relevant, and
    missing level labels are a mistake, whether or not the node is ready.
    """
    labels = node.labels
    if any(labels.get(key) != value for key, value in flavor.node_labels.items()):
        return "flavorLabels"
    if missing_levels(node, flavor):
        return "missingLevel"
    if not node.ready:
        return "notReady"
    return "unschedulable" if node.unschedulable else None


@dataclass(slots=True)
class Survey:
    """One pass over the nodes for all flavors with a topology; `add` may be called repeatedly.

    Attributes:
        skipped: excluded nodes that have a flavor's labels, by flavor and rule.
        lacking: names by flavor and missing level labels.
        shared: number of nodes that count for both, by pair of flavor names in order.
    """

    flavors: tuple[FlavorInfo, ...]
    skipped: dict[tuple[str, Rule], int] = field(default_factory=dict)
    lacking: dict[str, dict[tuple[str, ...], list[str]]] = field(default_factory=dict)
    shared: dict[tuple[str, str], int] = field(default_factory=dict)
    _hosts: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, flavors: Iterable[FlavorInfo]) -> Survey:
        """An empty survey for the flavors with a known topology."""
        found = sorted((row for row in flavors if row.levels), key=lambda row: row.name)
        return cls(tuple(found))

    def add(self, nodes: Iterable[NodeInfo]) -> None:
        """Count more nodes."""
        for node in nodes:
            taking = [flavor.name for flavor in self.flavors if self._takes_part(node, flavor)]
            for index, first in enumerate(taking):
                for second in taking[index + 1 :]:
                    self.shared[first, second] = self.shared.get((first, second), 0) + 1

    def _takes_part(self, node: NodeInfo, flavor: FlavorInfo) -> bool:
        rule = skipping_rule(node, flavor)
        if rule == "flavorLabels":
            return False
        if rule is None and flavor.levels[-1] == HOSTNAME_LABEL:
            host = (flavor.name, node.labels[HOSTNAME_LABEL])
            if host in self._hosts:
                rule = "hostname"
            self._hosts.add(host)
        if rule is None:
            return True
        self.skipped[flavor.name, rule] = self.skipped.get((flavor.name, rule), 0) + 1
        if rule == "missingLevel":
            groups = self.lacking.setdefault(flavor.name, {})
            groups.setdefault(missing_levels(node, flavor), []).append(node.name)
        return False

    def overlaps_of(self, flavor: str) -> dict[str, int]:
        """Nodes shared with other flavors, by their names."""
        return {
            (second if first == flavor else first): count
            for (first, second), count in sorted(self.shared.items())
            if flavor in (first, second)
        }

    def missing_levels_text(self, flavor: str) -> str:
        """Which nodes lack which level labels; "" if none does."""
        groups = self.lacking.get(flavor, {})
        parts = []
        for missing, found in sorted(groups.items()):
            shown = ", ".join(sorted(found)[:SHOWN_NAMES])
            more = f" and {len(found) - SHOWN_NAMES} more" if len(found) > SHOWN_NAMES else ""
            keys = ", ".join(f'"{key}"' for key in missing)
            parts.append(f"{shown}{more}: no label {keys}")
        return "; ".join(parts)
