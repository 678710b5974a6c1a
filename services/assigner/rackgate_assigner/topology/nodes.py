"""Nodes, their labels and their names by number, shared by successive trees.

A node has a permanent number (`NodeRegistry`), and a tree is a sequence of such numbers. So if
nodes are added or removed, only numbers move:

- `Column`: one label of all nodes as codes; a rule is evaluated once per distinct value,
- `LeafIndex`: leaf by node name or hostname,
- `Overlay`: texts by name, for trees that differ in a few of them,
- `Memo`: results that depend on one tree and a key.

Invariant: shared data only grows. Complexity: an update costs O(changed nodes), and
one copy of the numbers if many of them changed or are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, starmap
from operator import eq
from typing import Any, Final, TypeAlias, TypeVar, overload

import numpy as np

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.topology.assignment import Domain
from rackgate_assigner.topology.model import BoolVector, IntVector, NodeInfo
from rackgate_assigner.topology.reordering import Reordering

T = TypeVar("T")
# A label key, None for the taints, or NAME_COLUMN.
ColumnKey: TypeAlias = str | tuple[str] | None

# Templates come from users, so the number of cached results is limited.
MEMO_LIMIT: Final = 64
# Columns of labels that nodes have. A template may ask for many of them in turns.
COLUMN_LIMIT: Final = 1024
# Removed nodes and names are kept up to this number, or this share of the others.
STALE_LIMIT: Final = 1024
STALE_SHARE: Final = 4
# After so many changed leaves or names, or lookups of names, all leaves are numbered again.
MOVES_LIMIT: Final = 32
LOOKUP_LIMIT: Final = 64


# Key of the column of node names.
NAME_COLUMN: Final = ("metadata.name",)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_INTEGER_LENGTH: Final = 4096
_INT64_LIMIT: Final = 2**63


# Labels.


class Column:
    """One property over all nodes.

    Attributes:
        codes: shape (nodes,): index into `values`.
        values: distinct values; None means absent. Shared: some may be of no node of this tree.
        index: code by value. Shared: it may have more values than these.
    """

    __slots__ = ("_integers", "codes", "index", "values")

    def __init__(self, codes: IntVector, values: list[Any], index: Mapping[Hashable, int]) -> None:
        self.codes, self.values, self.index = codes, values, index
        self._integers: tuple[BoolVector, IntVector] | None = None

    @property
    def integers(self) -> tuple[BoolVector, IntVector]:
        """By code: whether the value is a decimal integer of 64 bits, and that number."""
        if self._integers is None:
            found = [int64(value) for value in self.values]
            valid = np.array([number is not None for number in found], dtype=np.bool_)
            self._integers = valid, np.array([number or 0 for number in found], dtype=np.int64)
        return self._integers

    def among(self, values: Iterable[str | None]) -> BoolVector:
        """Shape (nodes,): whether the value of a node is one of these."""
        table = np.zeros(len(self.values), dtype=np.bool_)
        known = (self.index.get(value) for value in values)
        table[[code for code in known if code is not None and code < len(table)]] = True
        return table[self.codes]

    def where(self, rule: Callable[[Any], bool]) -> BoolVector:
        """Shape (nodes,): the rule for every node, called once per distinct value."""
        table = np.fromiter(map(rule, self.values), dtype=np.bool_, count=len(self.values))
        return table[self.codes]

    def map(self, number: Callable[[Any], int]) -> IntVector:
        """Shape (nodes,): the number of every node, called once per distinct value."""
        table = np.fromiter(map(number, self.values), dtype=np.int64, count=len(self.values))
        return table[self.codes]


class EncodedValues:
    """Values as small integers, for a list that only grows.

    Attributes:
        values: distinct values, by code.
    """

    __slots__ = ("_block", "_count", "_index", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._index: dict[Hashable, int] = {}
        self._block = np.zeros(0, dtype=np.int64)
        self._count = 0

    @classmethod
    def of(cls, codes: IntVector, values: Sequence[Any]) -> EncodedValues:
        """Values that have codes already; unused values are dropped."""
        found = cls()
        used, found._block = np.unique(codes, return_inverse=True)
        found._count = len(codes)
        found.values = [values[code] for code in used.tolist()]
        found._index = {value: code for code, value in enumerate(found.values)}
        return found

    def __len__(self) -> int:
        return self._count

    @property
    def index(self) -> Mapping[Hashable, int]:
        """Code by value."""
        return self._index

    @property
    def codes(self) -> IntVector:
        """Index into `values` of every member, read-only."""
        return self._block[: self._count]

    def extend(self, items: Iterable[Hashable]) -> None:
        """Append members."""
        index = self._index
        more = [index.setdefault(item, len(index)) for item in items]
        self.values.extend(islice(index, len(self.values), None))
        count = self._count + len(more)
        if count > len(self._block):
            block = np.zeros(count + count // 8, dtype=np.int64)
            block[: self._count] = self._block[: self._count]
            self._block = block
        self._block[self._count : count] = more
        self._count = count


class Memo:
    """Results that depend only on an immutable tree and a key; clears itself when full."""

    __slots__ = ("_limit", "_results")

    def __init__(self, limit: int = MEMO_LIMIT) -> None:
        self._limit = limit
        self._results: dict[Hashable, Any] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The result under `key`, computed on first use."""
        try:
            result: T = self._results[key]
        except KeyError:
            if len(self._results) >= self._limit:
                self._results.clear()
            result = self._results[key] = compute()
        return result

    def put(self, key: Hashable, result: object) -> None:
        """Store a result."""
        self._results[key] = result

    def items(self) -> ItemsView[Hashable, Any]:
        """All results, by key."""
        return self._results.items()


class Overlay:
    """Texts by name; versions that differ in a few of them share the others."""

    __slots__ = ("_base", "_patch")

    # Differences that are collected before they are merged.
    LIMIT = 256

    def __init__(
        self, base: Mapping[str, str], patch: Mapping[str, str | None] | None = None
    ) -> None:
        self._base, self._patch = base, patch or {}

    def with_changes(self, changes: Mapping[str, str | None]) -> Overlay:
        """The next version; None removes a text."""
        patch = {**self._patch, **changes}
        if len(patch) <= self.LIMIT:
            return Overlay(self._base, patch)
        return Overlay(Overlay(self._base, patch).to_dict())

    def get(self, name: str) -> str | None:
        """The text of a name, if there is one."""
        return self._patch[name] if name in self._patch else self._base.get(name)

    def to_dict(self) -> dict[str, str]:
        """All texts by name."""
        found: dict[str, str | None] = {**self._base, **self._patch}
        return {name: text for name, text in found.items() if text is not None}


# Nodes.


class NodeSelection(Sequence[T]):
    """Members of a list, by number; equal to a list of the same members."""

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
    """Current and former nodes, by number.

    Attributes:
        levels: node label keys, coarsest first; every node has all of them.
        nodes: by number.
        paths: values of the levels, by number.
    """

    __slots__ = ("_columns", "_keys", "_keys_read", "_latest", "levels", "nodes", "paths")

    def __init__(
        self, levels: Sequence[str], nodes: Iterable[NodeInfo], paths: list[Domain]
    ) -> None:
        """Number nodes of different names, each with its path, from 0 on."""
        self.levels, self.nodes, self.paths = levels, list(nodes), paths
        self._latest = {node.name: number for number, node in enumerate(self.nodes)}
        self._columns = Memo(COLUMN_LIMIT)
        # Label keys of the first nodes.
        self._keys: set[str] = set()
        self._keys_read = 0

    def path_of(self, node: NodeInfo) -> Domain:
        """Values of a node, one for each level."""
        return tuple(map(node.labels.__getitem__, self.levels))

    def add(self, node: NodeInfo) -> int:
        """The number of a node; one that returns unchanged gets its former number."""
        number = self._latest.get(node.name)
        if number is None or self.nodes[number] != node:
            number = self._latest[node.name] = len(self.nodes)
            self.nodes.append(node)
            self.paths.append(self.path_of(node))
        return number

    def needs_compaction(self, used: int) -> bool:
        """Whether too many nodes are not among the `used` ones."""
        return len(self.nodes) > used + used // STALE_SHARE + STALE_LIMIT

    def column(self, key: ColumnKey, numbers: IntVector) -> Column:
        """One label of the nodes of these numbers, or their taints (None); computed once."""
        if not self._is_known(key):
            return Column(np.zeros(len(numbers), dtype=np.int64), [None], {None: 0})
        coded = self._columns.get(key, EncodedValues)
        coded.extend(map(partial(column_value, key), self.nodes[len(coded) :]))
        return Column(coded.codes.take(numbers), coded.values, coded.index)

    def _is_known(self, key: ColumnKey) -> bool:
        """Whether any node may have a value: users may name more keys than nodes have."""
        if key is None or key == NAME_COLUMN:
            return True
        for node in islice(self.nodes, self._keys_read, None):
            self._keys.update(node.labels)
        self._keys_read = len(self.nodes)
        return key in self._keys

    def compact(self, numbers: IntVector) -> NodeRegistry:
        """A registry of these nodes alone, numbered from 0 on; complete columns are kept."""
        used = numbers.tolist()
        paths = [self.paths[number] for number in used]
        clone = NodeRegistry(self.levels, (self.nodes[number] for number in used), paths)
        for key, coded in self._columns.items():
            if len(coded) == len(self.nodes):
                clone._columns.put(key, EncodedValues.of(coded.codes.take(numbers), coded.values))
        return clone


def column_value(key: Hashable, node: NodeInfo) -> Hashable:
    """The value of a column for a node: a label's value, or its taints under the key None."""
    if key is None:
        return node.taints or None
    return node.name if key == NAME_COLUMN else node.labels.get(str(key))


def int64(value: object) -> int | None:
    """The number of a decimal integer within 64 bits, as node selectors compare them."""
    # Longer texts are no such number, and reading them takes quadratic time.
    if not isinstance(value, str) or len(value) > _INTEGER_LENGTH or not _INTEGER.fullmatch(value):
        return None
    found = int(value)
    return found if -_INT64_LIMIT <= found < _INT64_LIMIT else None


# Names.


def hostname(node: NodeInfo) -> str | None:
    """Hostname label of a node; it may differ from the node's name."""
    return node.labels.get(HOSTNAME_LABEL)


def hostname_differs(node: NodeInfo) -> bool:
    """Whether a node's hostname label is missing, or differs from its name."""
    return hostname(node) != node.name


class LeafIndex:
    """Leaf by name, for one version of a tree.

    A dict of every node's leaf would have to be rebuilt whenever one node is added or removed,
    because all leaves after it move. Here each name has a permanent number, and a version has only
    an array by that number and how its leaves have moved since.
    """

    __slots__ = ("_leaves", "_lookups", "_numbers", "_patch", "_reordering")

    def __init__(self, numbers: dict[str, int], leaves: IntVector) -> None:
        """Start without moves.

        `numbers` are shared with other versions. `leaves` are by number, -1 where no node has the
        name; larger numbers are of later versions.
        """
        self._numbers, self._leaves = numbers, leaves
        self._reordering: Reordering | None = None
        self._patch: dict[str, int | None] = {}
        self._lookups = 0

    @classmethod
    def of(cls, names: Iterable[str | None], leaves: IntVector) -> LeafIndex:
        """Number the names of all nodes (None: no name); for a shared name the last node counts.

        `leaves` has shape (nodes,): the leaf of each node.
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
        """Whether most names are of removed nodes."""
        return len(self._numbers) > 2 * nodes + STALE_LIMIT

    def with_changes(self, order: Reordering | None, leaves: Mapping[str, int | None]) -> LeafIndex:
        """The index of the next version.

        Args:
            order: of the leaves; None: all keep their positions.
            leaves: new leaf by name, if another node has the name now, or the node is on
                another leaf; None: no node has it.
        """
        for name in leaves:
            self._numbers.setdefault(name, len(self._numbers))
        before = self._reordering
        steps = sum(
            len(one.removed) + len(one.insertions) for one in (before, order) if one is not None
        )
        if steps + len(self._patch) + len(leaves) > MOVES_LIMIT:
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
        leaf, order = self._stored_leaf(name), self._reordering
        return leaf if leaf is None or order is None else order.new_index(leaf)

    def _apply_pending(self) -> None:
        """Number the leaves again; no lookup changes."""
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
