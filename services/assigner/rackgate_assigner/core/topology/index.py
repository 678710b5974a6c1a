"""Names to leaves, for trees that follow one another: the names are shared, the numbers are not.

A dict of every node's leaf would have to be made anew whenever one node comes or goes, because all
leaves behind it move. Here each name has a number for good, and a version of the tree only has an
array by that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rackgate_assigner.core.topology.order import Order
from rackgate_assigner.core.topology.structure import IntVector

# Names that no node has any more are kept until they are this many more than the others.
SPARE = 1024


class Index:
    """Leaf by name, as of one version of a tree."""

    __slots__ = ("_leaves", "_numbers", "_of_nodes")

    def __init__(self, numbers: dict[str, int], of_nodes: IntVector, leaves: IntVector) -> None:
        """Prepare.

        Args:
            numbers: of all names; only ever added to, by any version that shares it.
            of_nodes: shape (nodes,): number of each node's name, -1 for none.
            leaves: shape (nodes,): leaf of each node. Of nodes with one name the last counts.
        """
        self._numbers, self._of_nodes = numbers, of_nodes
        self._leaves = np.full(len(numbers), -1, dtype=np.int64)
        named = of_nodes >= 0
        self._leaves[of_nodes[named]] = leaves[named]

    @classmethod
    def of(cls, names: Iterable[str | None], leaves: IntVector) -> Index:
        """Number the names of all nodes; None for a node without one."""
        numbers: dict[str, int] = {}
        found = [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in names]
        return cls(numbers, np.array(found, dtype=np.int64), leaves)

    def get(self, name: str) -> int | None:
        """The leaf, or None when no node of this version has the name."""
        number = self._numbers.get(name)
        # Names of later versions have numbers beyond what this one has leaves for.
        if number is None or number >= len(self._leaves):
            return None
        leaf = self._leaves.item(number)
        return leaf if leaf >= 0 else None

    @property
    def wasteful(self) -> bool:
        """Whether most names are those of nodes that are gone."""
        return len(self._numbers) > 2 * len(self._of_nodes) + SPARE

    def amended(
        self, order: Order | None, names: Mapping[int, str | None], leaves: IntVector
    ) -> Index:
        """The index of the next version.

        Args:
            order: of the nodes; None: all stay where they are.
            names: of nodes that are new or have another name now, by new position.
            leaves: shape (nodes,): leaf of each node.
        """
        of_nodes = self._of_nodes.copy() if order is None else order.numbers(self._of_nodes)
        for position, name in names.items():
            of_nodes[position] = (
                -1 if name is None else self._numbers.setdefault(name, len(self._numbers))
            )
        return Index(self._numbers, of_nodes, leaves)
