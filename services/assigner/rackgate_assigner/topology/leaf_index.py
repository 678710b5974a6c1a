"""Names to leaves, for trees that follow one another: the names are shared, the numbers are not.

A dict of every node's leaf would have to be made anew whenever one node comes or goes, because all
leaves behind it move. Here each name has a number for good, and a version of the tree only has an
array by that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rackgate_assigner.topology.reordering import Reordering
from rackgate_assigner.topology.structure import IntVector

# Names that no node has any more are kept until they are this many more than the others.
STALE_LIMIT = 1024
# So many leaves or names may have changed, or names been asked for, before the leaves are numbered.
PENDING_LIMIT = 32
LOOKUP_LIMIT = 64


class LeafIndex:
    """Leaf by name, as of one version of a tree.

    How the leaves moved is noted, and looked up for each name that is asked about; for many names
    the leaves are numbered anew.
    """

    __slots__ = ("_leaves", "_lookups", "_numbers", "_patch", "_reordering")

    def __init__(self, numbers: dict[str, int], leaves: IntVector) -> None:
        """Prepare.

        Args:
            numbers: of all names; only ever added to, by any index that shares it.
            leaves: by number, -1 where no node has the name. Names with numbers beyond are those
                of later versions.
        """
        self._numbers, self._leaves = numbers, leaves
        self._reordering: Reordering | None = None
        self._patch: dict[str, int | None] = {}
        self._lookups = 0

    @classmethod
    def of(cls, names: Iterable[str | None], leaves: IntVector) -> LeafIndex:
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
        if self._reordering is not None or self._patch:
            self._lookups += 1
            if self._lookups <= LOOKUP_LIMIT:
                return self._patch[name] if name in self._patch else self._moved_leaf(name)
            self._apply_pending()
        return self._stored_leaf(name)

    def __len__(self) -> int:
        return len(self._numbers)

    def needs_compaction(self, nodes: int) -> bool:
        """Whether most names are those of nodes that are gone."""
        return len(self._numbers) > 2 * nodes + STALE_LIMIT

    def with_changes(self, order: Reordering | None, leaves: Mapping[str, int | None]) -> LeafIndex:
        """The index of the next version.

        Args:
            order: of the leaves; None: all stay where they are.
            leaves: new leaf by name, wherever another node has the name now, or the node with the
                name another leaf; None: nobody has it.
        """
        for name in leaves:
            self._numbers.setdefault(name, len(self._numbers))
        before = self._reordering
        steps = sum(
            len(one.removed) + len(one.insertions) for one in (before, order) if one is not None
        )
        if steps + len(self._patch) + len(leaves) > PENDING_LIMIT:
            self._apply_pending()
            before = None
        clone = LeafIndex(self._numbers, self._leaves)
        clone._reordering = before if order is None else order
        if before is not None and order is not None:
            clone._reordering = before.compose(order)
        clone._patch = {
            name: leaf if leaf is None or order is None else order.new_index(leaf)
            for name, leaf in self._patch.items()
        }
        clone._patch |= leaves
        return clone

    def _stored_leaf(self, name: str) -> int | None:
        number = self._numbers.get(name)
        if number is None or number >= len(self._leaves):
            return None
        leaf = self._leaves.item(number)
        return leaf if leaf >= 0 else None

    def _moved_leaf(self, name: str) -> int | None:
        leaf = self._stored_leaf(name)
        return (
            leaf if leaf is None or self._reordering is None else self._reordering.new_index(leaf)
        )

    def _apply_pending(self) -> None:
        """Number the leaves anew; says the same of every name."""
        if self._reordering is None and not self._patch:
            return
        found = (
            self._leaves.copy()
            if self._reordering is None
            else self._reordering.map_indices(self._leaves)
        )
        at = {self._numbers[name]: leaf for name, leaf in self._patch.items()}
        more = max(at, default=0) + 1 - len(found)
        if more > 0:
            found = np.append(found, np.full(more, -1, dtype=np.int64))
        for number, leaf in at.items():
            found[number] = -1 if leaf is None else leaf
        self._leaves, self._reordering, self._patch = found, None, {}
