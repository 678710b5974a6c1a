"""Nodes with numbers for good, shared by trees that follow one another.

A tree is a sequence of such numbers. What depends on a node alone is known by its number, and is
the same in every tree: it is looked up, and never has to move.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import starmap
from operator import eq
from typing import TypeVar, overload

from rackgate.topology.assignment import Domain
from rackgate_assigner.topology.columns import Column, EncodedValues, Memo
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.structure import IntVector

T = TypeVar("T")

# Nodes as no tree has them any more may be so many, and a share of the others.
STALE_LIMIT = 1024
STALE_SHARE = 4


class NodeSelection(Sequence[T]):
    """A sequence by the numbers of its members in a list; equal to a list of the same members."""

    __slots__ = ("_all", "_numbers")
    __hash__ = None  # type: ignore[assignment]  # as that of a list

    def __init__(self, members: list[T], numbers: IntVector) -> None:
        self._all, self._numbers = members, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> list[T]: ...

    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self._all[number] for number in self._numbers[at].tolist()]
        return self._all[self._numbers.item(at)]

    def __iter__(self) -> Iterator[T]:
        return map(self._all.__getitem__, self._numbers.tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NodeSelection | list):
            return NotImplemented
        return len(self) == len(other) and all(starmap(eq, zip(self, other, strict=True)))


class NodeRegistry:
    """Nodes as they are or were, by numbers that are only ever added to.

    Attributes:
        levels: node label keys, coarsest first; every node has them all.
        nodes: by number.
        paths: values of the levels, by number.
    """

    __slots__ = ("_columns", "_latest", "levels", "nodes", "paths")

    def __init__(self, levels: Sequence[str], nodes: Iterable[NodeInfo]) -> None:
        """Enter nodes of different names, with numbers from 0 on."""
        self.levels = levels
        self.nodes = list(nodes)
        self.paths: list[Domain] = list(map(self.path_of, self.nodes))
        self._latest = {node.name: number for number, node in enumerate(self.nodes)}
        self._columns = Memo()

    def path_of(self, node: NodeInfo) -> Domain:
        """Values of a node, one for each level."""
        return tuple(map(node.labels.__getitem__, self.levels))

    def add(self, node: NodeInfo) -> int:
        """The number of a node as it is; one that comes back as it was has the one it had."""
        number = self._latest.get(node.name)
        if number is None or self.nodes[number] != node:
            number = self._latest[node.name] = len(self.nodes)
            self.nodes.append(node)
            self.paths.append(self.path_of(node))
        return number

    def needs_compaction(self, used: int) -> bool:
        """Whether too many nodes are none of the `used` ones."""
        return len(self.nodes) > used + used // STALE_SHARE + STALE_LIMIT

    def column(
        self, key: Hashable, value_of: Callable[[NodeInfo], Hashable], numbers: IntVector
    ) -> Column:
        """One property of some nodes; found out once for each number.

        Args:
            key: what it is kept under.
            value_of: the property of a node.
            numbers: of the nodes.
        """
        coded = self._columns.get(key, EncodedValues)
        coded.extend(map(value_of, self.nodes[len(coded) :]))
        return Column(coded.codes.take(numbers), coded.values)

    def compact(self, numbers: IntVector) -> NodeRegistry:
        """A register of these nodes alone, with numbers from 0 on; columns at hand go along."""
        clone = NodeRegistry(self.levels, (self.nodes[number] for number in numbers.tolist()))
        for key, coded in self._columns.items():
            if len(coded) == len(self.nodes):
                clone._columns.put(key, EncodedValues.of(coded.codes.take(numbers), coded.values))
        return clone
