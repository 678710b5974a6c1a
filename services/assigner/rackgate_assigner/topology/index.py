"""Names to leaves, for trees that follow one another: the names are shared, the numbers are not.

A dict of every node's leaf would have to be made anew whenever one node comes or goes, because all
leaves behind it move. Here each name has a number for good, and a version of the tree only has an
array by that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rackgate_assigner.topology.order import Order
from rackgate_assigner.topology.structure import IntVector

# Names that no node has any more are kept until they are this many more than the others.
SPARE = 1024
# So many leaves or names may have changed, or names been asked for, before the leaves are numbered.
NOTED_LIMIT = 32
LOOKUPS = 64


class Index:
    """Leaf by name, as of one version of a tree.

    How the leaves moved is noted, and looked up for each name that is asked about; for many names
    the leaves are numbered anew.
    """

    __slots__ = ("_asked", "_leaves", "_numbers", "_order", "_patch")

    def __init__(self, numbers: dict[str, int], leaves: IntVector) -> None:
        """Prepare.

        Args:
            numbers: of all names; only ever added to, by any index that shares it.
            leaves: by number, -1 where no node has the name. Names with numbers beyond are those
                of later versions.
        """
        self._numbers, self._leaves = numbers, leaves
        self._order: Order | None = None
        self._patch: dict[str, int | None] = {}
        self._asked = 0

    @classmethod
    def of(cls, names: Iterable[str | None], leaves: IntVector) -> Index:
        """Number the names of all nodes, None for none; of nodes with one name the last counts.

        Args:
            names: of the nodes, in order.
            leaves: shape (nodes,): leaf of each node.
        """
        pairs = zip(names, leaves.tolist(), strict=True)
        last = {name: leaf for name, leaf in pairs if name is not None}
        numbers = {name: number for number, name in enumerate(last)}
        return cls(numbers, np.fromiter(last.values(), dtype=np.int64, count=len(last)))

    def get(self, name: str) -> int | None:
        """The leaf, or None when no node of this version has the name."""
        if self._order is not None or self._patch:
            self._asked += 1
            if self._asked <= LOOKUPS:
                return self._patch[name] if name in self._patch else self._moved(name)
            self._settle()
        return self._settled(name)

    def __len__(self) -> int:
        return len(self._numbers)

    def wasteful(self, nodes: int) -> bool:
        """Whether most names are those of nodes that are gone."""
        return len(self._numbers) > 2 * nodes + SPARE

    def amended(self, order: Order | None, leaves: Mapping[str, int | None]) -> Index:
        """The index of the next version.

        Args:
            order: of the leaves; None: all stay where they are.
            leaves: new leaf by name, wherever another node has the name now, or the node with the
                name another leaf; None: nobody has it.
        """
        for name in leaves:
            self._numbers.setdefault(name, len(self._numbers))
        before = self._order
        steps = sum(len(one.gone) + len(one.at) for one in (before, order) if one is not None)
        if steps + len(self._patch) + len(leaves) > NOTED_LIMIT:
            self._settle()
            before = None
        twin = Index(self._numbers, self._leaves)
        twin._order = before if order is None else order
        if before is not None and order is not None:
            twin._order = before.then(order)
        twin._patch = {
            name: leaf if leaf is None or order is None else order.place(leaf)
            for name, leaf in self._patch.items()
        }
        twin._patch |= leaves
        return twin

    def _settled(self, name: str) -> int | None:
        number = self._numbers.get(name)
        if number is None or number >= len(self._leaves):
            return None
        leaf = self._leaves.item(number)
        return leaf if leaf >= 0 else None

    def _moved(self, name: str) -> int | None:
        leaf = self._settled(name)
        return leaf if leaf is None or self._order is None else self._order.place(leaf)

    def _settle(self) -> None:
        """Number the leaves anew; says the same of every name."""
        if self._order is None and not self._patch:
            return
        found = self._leaves.copy() if self._order is None else self._order.renumbered(self._leaves)
        at = {self._numbers[name]: leaf for name, leaf in self._patch.items()}
        more = max(at, default=0) + 1 - len(found)
        if more > 0:
            found = np.append(found, np.full(more, -1, dtype=np.int64))
        for number, leaf in at.items():
            found[number] = -1 if leaf is None else leaf
        self._leaves, self._order, self._patch = found, None, {}
