"""The nodes of a pool as domains of its keys, and how many pods fit in each.

The placement engine of the assigner does the counting: its `TopologyTree` builds the domains, its
`Capacity` keeps the free capacity, and its `fit` counts the pods that fit on a node. Two things
differ from a flavor's topology. A node without a label is included, in a domain without a value:
groups that name the level may not use it, all others may. And the lowest level is always the node,
so that sums over a domain do not hide fragmentation.

Level 0 is the whole cluster; level `i` is the pool's i-th key. Leaves are nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from rackgate.api.names import HOSTNAME_LABEL
from rackgate_assigner.topology.capacity import Capacity, single_pod_requests
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.placement.count import FreeCapacity, fit
from rackgate_assigner.topology.tree import TopologyTree

# Not a valid label value: those have no control characters.
MISSING: Final = "\x00"


class BoundPod(NamedTuple):
    """A bound pod that has not ended; `requests` without the implied 1 of `pods`."""

    node: str
    requests: Mapping[str, int]
    namespace: str = ""
    group: str = ""  # name of its PodGroup
    terminating: bool = False


@dataclass(frozen=True, slots=True)
class Nodes:
    """A pool's nodes, usable or not, and the other nodes of the cluster."""

    nodes: tuple[NodeInfo, ...]
    pods: tuple[BoundPod, ...] = ()
    warnings: tuple[str, ...] = ()
    others: tuple[NodeInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """What one pod requests: sorted amounts without the implied 1 of `pods`, and excluded nodes."""

    requests: tuple[tuple[str, int], ...] = ()
    excluded: frozenset[str] = frozenset()

    def covers(self, other: Shape) -> bool:
        """Whether a pod of the other shape fits on every node where one of this shape fits."""
        mine = dict(self.requests)
        enough = all(mine.get(name, 0) >= amount for name, amount in other.requests)
        return enough and self.excluded >= other.excluded


class Room:
    """Domains of the nodes, and their free capacity.

    Attributes:
        tree: its levels are the pool's keys, and the node as the lowest level.
        capacity: charge pods to it.
        nodes: in the order of the leaves.
    """

    def __init__(self, labels: Sequence[str], nodes: Iterable[NodeInfo]) -> None:
        self.depth = len(labels)
        by_name = {node.name: node for node in nodes}
        levels = {f"level-{index}": label for index, label in enumerate(labels)}
        plain = [
            replace(
                node,
                labels={
                    HOSTNAME_LABEL: name,
                    **{level: node.labels.get(label, MISSING) for level, label in levels.items()},
                },
                taints=(),
                unschedulable=False,
                ready=True,
            )
            for name, node in by_name.items()
        ]
        self.tree = TopologyTree.build([*levels, HOSTNAME_LABEL], plain)
        self.capacity = Capacity(self.tree)
        self.nodes = [by_name[node.name] for node in self.tree.nodes]

    def charge_pods(self, pods: Iterable[BoundPod]) -> None:
        """Charge those of the pods that are bound to these nodes."""
        for pod in pods:
            leaf = self.tree.leaf_of_node(pod.node)
            if leaf is not None:
                self.capacity.charge(leaf, pod.requests, 1)

    def copy(self) -> Room:
        """A copy with its own capacity."""
        twin = object.__new__(Room)
        twin.depth, twin.tree, twin.nodes = self.depth, self.tree, self.nodes
        twin.capacity = self.capacity.copy()
        return twin

    def domains(self, level: int) -> int:
        """Number of domains of a level."""
        return 1 if level == 0 else len(self.tree.paths[level - 1])

    def leaves(self, level: int, domain: int) -> tuple[int, int]:
        """Range of leaves of a domain, end exclusive."""
        if level == 0:
            return 0, self.tree.leaf_count
        start, end = self.tree.leaf_ranges[level - 1][domain : domain + 2].tolist()
        return start, end

    def within(self, level: int, domain: int, below: int) -> range:
        """Domains of the level `below` inside a domain of the level `level`."""
        start, end = domain, domain + 1
        for at in range(level, below):
            if at == 0:
                start, end = 0, self.domains(1)
            else:
                offsets = self.tree.children[at - 1]
                start, end = int(offsets[start]), int(offsets[end])
        return range(start, end)

    def parent(self, level: int, domain: int) -> int:
        """The domain one level up."""
        return 0 if level <= 1 else int(self.tree.parents[level - 1][domain])

    def path(self, level: int, domain: int) -> tuple[str, ...]:
        """Label values of a domain, coarsest first; `MISSING` for a label that nodes lack."""
        return () if level == 0 else self.tree.paths[level - 1][domain]

    def labelled(self, level: int, domain: int) -> bool:
        """Whether the nodes of a domain carry the label of its level."""
        return level == 0 or self.path(level, domain)[-1] != MISSING

    def path_of_leaf(self, leaf: int) -> tuple[str, ...]:
        """Label values of a node, one for each key."""
        return self.tree.paths[-1][leaf][:-1]

    def fits(self, shape: Shape) -> list[int]:
        """How many pods of a shape still fit on each node."""
        free = FreeCapacity(self.capacity, simulate_empty=False)
        counts = fit(single_pod_requests(dict(shape.requests)), free)
        for name in shape.excluded:
            leaf = self.tree.leaf_of_node(name)
            if leaf is not None:
                counts[leaf] = 0
        found: list[int] = counts.tolist()
        return found

    def sums(self, level: int, amounts: Sequence[int]) -> list[int]:
        """Amounts by node, summed by domain of a level."""
        if level == 0 or not amounts:
            return [sum(amounts)] * self.domains(level)
        starts = self.tree.leaf_ranges[level - 1][:-1]
        found: list[int] = np.add.reduceat(np.array(amounts, dtype=np.int64), starts).tolist()
        return found

    def free(self, resource: str) -> list[int]:
        """Free amount of a resource on each node, never negative."""
        row = self.capacity.rows.get(resource)
        if row is None:
            return [0] * self.tree.leaf_count
        found: list[int] = np.maximum(self.capacity.free_row(row), 0).tolist()
        return found


def format_path(path: Sequence[str]) -> tuple[str, ...]:
    """A domain for output, with "" for a label that nodes lack."""
    return tuple("" if value == MISSING else value for value in path)
