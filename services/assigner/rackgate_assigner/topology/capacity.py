"""Free capacity and usage per leaf of a tree, with cheap snapshots.

- `Capacity` has two numbers per resource and leaf: free capacity, and usage placed by TAS. Charging
  a pod subtracts from the first and adds to the second; pods that TAS did not place only subtract.
- `Capacity.copy` is a snapshot: both sides share one block until one of them charges something.
- `Capacity.move_to_tree` keeps the charges when nodes are added or removed (`update.update_tree`).
- `CapacityCache` keeps values derived from the free capacity, and the leaves charged since.

Rows are stored per resource, so that one resource over all leaves is contiguous. The public
matrices are their transposes, shape (leaves, resources).
Invariants: amounts are clamped so that sums stay within int64; a snapshot never changes.
Complexity: a charge costs O(resources), the first one after a copy also one copy of the block.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.topology.model import IntMatrix, IntVector
from rackgate_assigner.topology.reordering import Reordering
from rackgate_assigner.topology.tree import AMOUNT_LIMIT, PODS, TopologyTree, align_resource_rows

T = TypeVar("T")

# One charge of one resource on one leaf; a thousand of them still fit into int64.
CHARGE_LIMIT: Final = 2**53
# Limit of all charges of one leaf.
SUM_LIMIT: Final = 2**62
# Changes of leaves that are collected before the numbers are copied.
PENDING_LIMIT: Final = 32
# Cached values of one capacity; each is a few arrays over the leaves.
CACHE_SIZE: Final = 8
# So many leaves are charged faster one by one than together.
FEW_LEAVES: Final = 5
# Leaves charged since; a value that lags further behind is dropped.
CHANGES_LIMIT: Final = 8_192


class Capacity:
    """Free capacity and usage over the leaves of a tree.

    If a resource is not in `resources`, no node offers it: charging it changes nothing, and a
    request for it never fits.

    Attributes:
        tree: the tree whose leaves these are.
        resources: of the tree: names, sorted; always with `pods`.
        rows: row by resource name.
        cache: values derived from the free capacity; empty in a snapshot.
    """

    __slots__ = ("_array", "_is_shared", "cache", "resources", "rows", "tree")

    def __init__(self, tree: TopologyTree) -> None:
        """Start with everything free, for all resources that some node offers."""
        self.tree = tree
        self.resources = tree.resources
        self.rows = {name: row for row, name in enumerate(self.resources)}
        # One block for both, so that a snapshot's first charge allocates and copies once.
        numbers = np.zeros((2, len(self.resources), tree.leaf_count), dtype=np.int64)
        self._array, self._is_shared = LeafArray(numbers), False
        self.cache: CapacityCache[Any] = CapacityCache()
        numbers[0] = tree.allocatable

    @property
    def allocatable(self) -> IntMatrix:
        """Shape (leaves, resources), read-only: what the nodes offer (CAP-01)."""
        return _read_only_view(self.tree.allocatable)

    @property
    def usage(self) -> IntMatrix:
        """Shape (leaves, resources), read-only: what TAS placed."""
        return _read_only_view(self.free_and_usage()[1])

    @property
    def free(self) -> IntMatrix:
        """Shape (leaves, resources), read-only; negative for over-committed leaves."""
        return _read_only_view(self.free_and_usage()[0])

    def free_and_usage(self) -> tuple[IntMatrix, IntMatrix]:
        """Both shape (resources, leaves), not a copy: read-only."""
        free, usage = self._array.array()
        return free, usage

    def free_row(self, row: int) -> IntVector:
        """Shape (leaves,), not a copy: free amount of one resource."""
        vector: IntVector = self._array.array()[0, row]
        return vector

    def charge(self, leaf: int, requests: Mapping[str, int], count: int) -> None:
        """Charge `count` pods placed by TAS; a negative count releases them.

        `requests` are per pod, whole numbers, without the implied 1 of `pods`.
        """
        amounts = self._amounts(requests, count)
        free, usage = self._writable((leaf,))
        free[:, leaf] -= amounts
        usage[:, leaf] += amounts

    def charge_other(self, leaf: int, requests: Mapping[str, int], count: int = 1) -> None:
        """Charge pods that TAS did not place; they stay with `simulate_empty`.

        The limit is that of a sum, because many pods may be charged at once.
        """
        amounts = self._amounts(requests, count, SUM_LIMIT)
        self._writable((leaf,))[0, :, leaf] -= amounts

    def charge_leaves(
        self, leaves: Sequence[int], requests: Mapping[str, int], counts: Sequence[int]
    ) -> None:
        """`charge` for many leaves at once; a leaf may occur more than once."""
        if not leaves:
            return
        by_count = {count: self._amounts(requests, count) for count in set(counts)}
        if len(leaves) <= FEW_LEAVES:
            free, usage = self._writable(leaves)
            for leaf, count in zip(leaves, counts, strict=True):
                free[:, leaf] -= by_count[count]
                usage[:, leaf] += by_count[count]
            return
        amounts = np.stack([by_count[count] for count in counts], axis=1)
        where = np.array(leaves, dtype=np.int64)
        free, usage = self._writable(leaves)
        np.subtract.at(free.T, where, amounts.T)
        np.add.at(usage.T, where, amounts.T)

    def copy(self) -> Capacity:
        """A snapshot; both sides share the numbers until one of them charges something."""
        clone = object.__new__(Capacity)
        clone.tree, clone.resources, clone.rows = self.tree, self.resources, self.rows
        clone._array = self._array
        clone._is_shared = self._is_shared = True
        clone.cache = CapacityCache()
        return clone

    def move_to_tree(self, tree: TopologyTree, leaves: Reordering | None) -> Capacity:
        """The same charges on the next tree; then call `set_leaf` for every changed leaf.

        Do not use this capacity any more: the new one may write to its arrays.

        Args:
            tree: updated from this one's; its resources are kept.
            leaves: their order; None: the same leaves.
        """
        clone = object.__new__(Capacity)
        clone.tree, clone.resources = tree, tree.resources
        clone.rows = {name: row for row, name in enumerate(tree.resources)}
        clone.cache = CapacityCache()
        clone._array, clone._is_shared = self._array, self._is_shared
        if leaves is not None:
            clone._array, clone._is_shared = self._array.reorder(leaves), False
        if tree.resources != self.resources:
            numbers = align_resource_rows(clone._array.array(), self.resources, tree.resources)
            clone._array, clone._is_shared = LeafArray(numbers), False
        return clone

    def set_leaf(self, leaf: int, usage: Mapping[str, int], other: Mapping[str, int]) -> None:
        """Replace the charges of a leaf, by resource: pods that TAS placed, and other pods."""
        allocatable_of_leaf = self.tree.allocatable_of_leaf(leaf)
        column = np.zeros((2, len(self.resources)), dtype=np.int64)
        for row, name in enumerate(self.resources):
            used, taken = _clamp_sum(usage.get(name, 0)), _clamp_sum(other.get(name, 0))
            column[:, row] = allocatable_of_leaf.get(name, 0) - used - taken, used
        if np.array_equal(self._array.column(leaf), column):
            return  # a shared block need not be copied
        if (self._is_shared or self._array.has_pending) and not self._array.is_pending_full:
            self.cache.mark_changed((leaf,))
            self._array, self._is_shared = self._array.with_column(leaf, column), False
            return
        self._writable((leaf,))[..., leaf] = column

    def _writable(self, leaves: Iterable[int]) -> IntMatrix:
        """Shape (2, resources, leaves): a block of our own, before these leaves are written to."""
        self.cache.mark_changed(leaves)
        if self._is_shared:
            self._array, self._is_shared = LeafArray(self._array.array().copy()), False
        return self._array.array()

    def _amounts(
        self, requests: Mapping[str, int], count: int, limit: int = CHARGE_LIMIT
    ) -> IntVector:
        amounts = np.zeros(len(self.resources), dtype=np.int64)
        for name, amount in charge_amounts(requests, count, limit).items():
            row = self.rows.get(name)
            if row is not None:
                amounts[row] = amount
        return amounts


def single_pod_requests(requests: Mapping[str, int]) -> dict[str, int]:
    """Requests of one pod with the 1 of `pods` that every pod needs, clamped to int64-safe size."""
    amounts = {name: max(0, min(AMOUNT_LIMIT, amount)) for name, amount in requests.items()}
    amounts[PODS] = amounts.get(PODS, 0) + 1
    return amounts


def charge_amounts(
    requests: Mapping[str, int], count: int, limit: int = CHARGE_LIMIT
) -> dict[str, int]:
    """Usage of `count` pods in one charge, by resource."""
    return {
        name: max(-limit, min(limit, amount * count))
        for name, amount in single_pod_requests(requests).items()
    }


def charge_assignment(
    capacity: Capacity, requests: Mapping[str, int], assignment: TopologyAssignment, sign: int = 1
) -> None:
    """Charge (sign 1) or release (sign -1) all pods of a PodSet's assignment.

    Domains that are no longer leaves of the tree are ignored.

    Args:
        capacity: changed in place.
        requests: per pod, without the implied 1 of `pods`.
        assignment: as stored. With hostnames it is charged to the leaves that hold the hosts,
            whatever the lowest level of this tree is, so that flavors can share nodes.
        sign: 1 or -1.
    """
    leaves: list[int] = []
    counts: list[int] = []
    for values, count in assignment.domains:
        leaf = leaf_of_assigned_domain(capacity.tree, assignment.levels, values)
        if leaf is not None:
            leaves.append(leaf)
            counts.append(sign * count)
    capacity.charge_leaves(leaves, requests, counts)


def leaf_of_assigned_domain(
    tree: TopologyTree, levels: Sequence[str], values: Sequence[str]
) -> int | None:
    """Leaf of this tree that contains a domain of an assignment with `levels`, or None."""
    if tuple(levels) == tree.assignment_levels:
        return tree.leaf_of_values(values)
    if values and levels and levels[-1] == HOSTNAME_LABEL:
        return tree.leaf_of_host(values[-1])
    return None


def _clamp_sum(amount: int) -> int:
    return max(-SUM_LIMIT, min(SUM_LIMIT, amount))


def _read_only_view(rows: IntMatrix) -> IntMatrix:
    view = rows.T
    view.flags.writeable = False
    return view


# Numbers over leaves that move, and the cache.


class LeafArray:
    """Numbers of shape (..., leaves) over leaves that move.

    Copying all numbers for one added node would be the slowest step of an update. So moves and
    changed leaves are collected, and applied together at the next read.

    Attributes:
        has_pending: `array` returns a new block.
    """

    __slots__ = ("_columns", "_numbers", "_reordering", "has_pending")

    def __init__(self, numbers: IntMatrix, order: Reordering | None = None) -> None:
        """Start from numbers (not copied), and how their leaves have moved since."""
        self._numbers, self._reordering = numbers, order
        self._columns: dict[int, IntMatrix] = {}
        self.has_pending = order is not None

    def array(self) -> IntMatrix:
        """The numbers over the leaves as they are now; not a copy."""
        if self.has_pending:
            numbers = self._numbers
            numbers = (
                numbers.copy()
                if self._reordering is None
                else self._reordering.reorder_array(numbers)
            )
            for leaf, column in self._columns.items():
                numbers[..., leaf] = column
            self._numbers, self._reordering, self._columns = numbers, None, {}
            self.has_pending = False
        return self._numbers

    def column(self, leaf: int) -> IntMatrix:
        """The numbers of one leaf, read-only."""
        if leaf in self._columns:
            return self._columns[leaf]
        at = leaf if self._reordering is None else self._reordering.old_index(leaf)
        if at is None:
            return np.zeros(self._numbers.shape[:-1], dtype=np.int64)
        found: IntMatrix = self._numbers[..., at]
        return found

    def reorder(self, order: Reordering) -> LeafArray:
        """The same numbers over the leaves in their new order, 0 for new ones. This one stays."""
        if not self.has_pending:
            return LeafArray(self._numbers, order)
        whole = order if self._reordering is None else self._reordering.compose(order)
        places = {leaf: order.new_index(leaf) for leaf in self._columns}
        if len(whole.removed) + len(whole.insertions) + len(places) > PENDING_LIMIT:
            return LeafArray(self.array(), order)
        clone = LeafArray(self._numbers, whole)
        clone._columns = {
            place: self._columns[leaf] for leaf, place in places.items() if place is not None
        }
        return clone

    def with_column(self, leaf: int, column: IntMatrix) -> LeafArray:
        """The same numbers, with another value for one leaf. This one stays."""
        clone = LeafArray(self._numbers, self._reordering)
        clone._columns = {**self._columns, leaf: column}
        clone.has_pending = True
        return clone

    @property
    def is_pending_full(self) -> bool:
        """Whether writing into the numbers is cheaper than one more changed leaf."""
        return len(self._columns) >= PENDING_LIMIT


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    seen: int


class CapacityCache(Generic[T]):
    """Values by key for one capacity; the least recently used are dropped.

    While the cache is empty, charges are not recorded.
    """

    __slots__ = ("_changed", "_entries")

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry[T]] = {}
        self._changed: list[int] = []

    def __len__(self) -> int:
        return len(self._entries)

    def mark_changed(self, leaves: Iterable[int]) -> None:
        """These leaves were charged."""
        if self._entries:
            self._changed.extend(leaves)
            if len(self._changed) > CHANGES_LIMIT:
                self._trim()

    def clear(self) -> None:
        """Everything may have changed."""
        self._entries.clear()
        self._changed.clear()

    def pop(self, key: Hashable) -> tuple[T, IntVector] | None:
        """Remove the value under `key`; return it with the leaves charged since `put`, ascending.

        The caller updates it and puts it back, so a failed update is not cached.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        changed = self._changed[entry.seen :]
        return entry.value, np.array(sorted(set(changed)), dtype=np.int64)

    def put(self, key: Hashable, value: T) -> None:
        """Cache a value that is correct now."""
        self._entries.pop(key, None)
        if len(self._entries) >= CACHE_SIZE:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = _Entry(value, len(self._changed))

    def _trim(self) -> None:
        cut = len(self._changed) // 2
        self._entries = {key: one for key, one in self._entries.items() if one.seen >= cut}
        for entry in self._entries.values():
            entry.seen -= cut
        del self._changed[:cut]


# For metrics.


@dataclass(frozen=True, slots=True)
class LevelFreeCapacity:
    """The domains of one level.

    Attributes:
        key: node label.
        domains: how many there are.
        idle: of these, domains without a pod that TAS placed.
        largest_free: by resource, the largest free amount of one domain; cpu in millicores.
        fragmented: by resource, what is free in domains with pods that TAS placed.
    """

    key: str
    domains: int
    idle: int
    largest_free: Mapping[str, int]
    fragmented: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FreeCapacitySummary:
    """All levels of one flavor's topology.

    Attributes:
        levels: coarsest first.
        free: by resource, over all leaves.
    """

    levels: tuple[LevelFreeCapacity, ...]
    free: Mapping[str, int]


def summarize_free_capacity(tree: TopologyTree, capacity: Capacity) -> FreeCapacitySummary:
    """Free capacity of each domain; an over-committed leaf counts as 0."""
    if not tree.leaf_count:
        return FreeCapacitySummary(
            tuple(LevelFreeCapacity(key, 0, 0, {}, {}) for key in tree.levels),
            dict.fromkeys(capacity.resources, 0),
        )
    free = np.maximum(capacity.free.T, 0)
    placed = capacity.usage.T[capacity.rows[PODS]]
    levels = []
    for level, key in enumerate(tree.levels):
        starts = tree.leaf_ranges[level][:-1]
        sums = np.add.reduceat(free, starts, axis=1)
        is_idle = np.add.reduceat(placed, starts) == 0
        levels.append(
            LevelFreeCapacity(
                key=key,
                domains=len(starts),
                idle=int(is_idle.sum()),
                largest_free=_by_resource(capacity, sums.max(axis=1)),
                fragmented=_by_resource(capacity, (sums * ~is_idle).sum(axis=1)),
            )
        )
    return FreeCapacitySummary(tuple(levels), _by_resource(capacity, free.sum(axis=1)))


def _by_resource(capacity: Capacity, amounts: IntVector) -> dict[str, int]:
    return dict(zip(capacity.resources, amounts.tolist(), strict=True))
