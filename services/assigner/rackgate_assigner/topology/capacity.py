"""The numbers that change: free room and usage per leaf, with cheap snapshots.

Rows are stored per resource, so that one resource over all leaves is contiguous; the public
matrices are their transposes, shape (leaves, resources).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.topology.capacity_cache import CapacityCache
from rackgate_assigner.topology.leaf_array import LeafArray
from rackgate_assigner.topology.reordering import Reordering
from rackgate_assigner.topology.tree import (
    AMOUNT_LIMIT,
    PODS,
    IntMatrix,
    IntVector,
    TopologyTree,
    align_resource_rows,
)

# One charge of one resource on one leaf; a thousand of them still fit into int64.
CHARGE_LIMIT = 2**53
# What one leaf can be charged with in all.
SUM_LIMIT = 2**62


class Capacity:
    """Allocatable, TAS usage and usage of other pods over the leaves of a tree.

    A resource that is not among `resources` offers nothing: charging it changes nothing, and a
    request for it never fits.

    Attributes:
        tree: the tree whose leaves these are.
        resources: column names, sorted; always with `pods`.
        rows: resource name to column number.
        cache: numbers derived from the free amounts, with the leaves that changed since. A
            snapshot starts without.
    """

    __slots__ = (
        "_array",
        "_is_shared",
        "cache",
        "resources",
        "rows",
        "tree",
    )

    def __init__(self, tree: TopologyTree, resources: Iterable[str] | None = None) -> None:
        """Start with everything free.

        Args:
            tree: the domains.
            resources: columns to keep; by default all that some node of the tree offers.
        """
        self.tree = tree
        self.resources = tree.resources if resources is None else tuple(sorted({PODS, *resources}))
        self.rows = {name: row for row, name in enumerate(self.resources)}
        # One block for both, so that a snapshot's first charge allocates and copies once.
        numbers = np.zeros((2, len(self.resources), tree.leaf_count), dtype=np.int64)
        numbers[0] = _select_rows(tree, self.resources)
        self._array, self._is_shared = LeafArray(numbers), False
        self.cache: CapacityCache[Any] = CapacityCache()

    @property
    def _free(self) -> IntMatrix:
        rows: IntMatrix = self._array.array()[0]
        return rows

    @property
    def _usage(self) -> IntMatrix:
        rows: IntMatrix = self._array.array()[1]
        return rows

    @property
    def allocatable(self) -> IntMatrix:
        """Shape (leaves, resources), read-only: what the nodes offer (CAP-01)."""
        return _read_only_view(_select_rows(self.tree, self.resources))

    @property
    def usage(self) -> IntMatrix:
        """Shape (leaves, resources), read-only: what TAS placed."""
        return _read_only_view(self._usage)

    @property
    def other_usage(self) -> IntMatrix:
        """Shape (leaves, resources), a copy: what pods not placed by TAS take (CAP-03)."""
        other: IntMatrix = self.allocatable - (self._free + self._usage).T
        return other

    @property
    def free(self) -> IntMatrix:
        """Shape (leaves, resources), read-only; negative where a leaf is over-committed."""
        return _read_only_view(self._free)

    def free_row(self, row: int, *, simulate_empty: bool = False) -> IntVector:
        """One resource over all leaves; with `simulate_empty` as if nothing were placed by TAS.

        Read-only without `simulate_empty`: the caller copies before it writes.
        """
        if simulate_empty:
            empty: IntVector = self._free[row] + self._usage[row]
            return empty
        vector: IntVector = self._free[row]
        return vector

    def charge(self, leaf: int, requests: Mapping[str, int], count: int) -> None:
        """Charge `count` pods placed by TAS: count x (requests + 1 pod).

        Args:
            leaf: leaf id of the tree.
            requests: per pod, whole numbers, without the implied 1 of `pods`.
            count: pods; negative gives back.
        """
        amounts = self._amounts(requests, count)
        self._ensure_writable((leaf,))
        self._usage[:, leaf] += amounts
        self._free[:, leaf] -= amounts

    def charge_other(self, leaf: int, requests: Mapping[str, int], count: int = 1) -> None:
        """Charge pods that TAS did not place; they stay with `simulate_empty`.

        Many pods at once are charged like one after another, so the limit is that of a sum.
        """
        amounts = self._amounts(requests, count, SUM_LIMIT)
        self._ensure_writable((leaf,))
        self._free[:, leaf] -= amounts

    def charge_leaves(
        self, leaves: Sequence[int], requests: Mapping[str, int], counts: Sequence[int]
    ) -> None:
        """`charge` for many leaves at once; a leaf may occur more than once."""
        if not leaves:
            return
        columns = [self._amounts(requests, count) for count in sorted(set(counts))]
        order = {count: i for i, count in enumerate(sorted(set(counts)))}
        amounts = np.stack(columns, axis=1)[:, [order[count] for count in counts]]
        where = np.array(leaves, dtype=np.int64)
        self._ensure_writable(leaves)
        np.add.at(self._usage.T, where, amounts.T)
        np.subtract.at(self._free.T, where, amounts.T)

    def copy(self) -> Capacity:
        """A snapshot: shares the numbers until either side charges something."""
        clone = object.__new__(Capacity)
        clone.tree, clone.resources, clone.rows = self.tree, self.resources, self.rows
        clone._array = self._array
        clone._is_shared = self._is_shared = True
        clone.cache = CapacityCache()
        return clone

    def move_to_tree(self, tree: TopologyTree, leaves: Reordering | None) -> Capacity:
        """The same charges on the next tree; then call `set_leaf` for every touched leaf.

        To go on with instead of this one, which gives its numbers away.

        Args:
            tree: amended from this one's; its resources become the columns.
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
        """Set what is charged to a leaf, whatever was charged before.

        Args:
            leaf: leaf id of the tree.
            usage: by resource, what TAS placed.
            other: by resource, what pods not placed by TAS take.
        """
        allocatable_of_leaf = self.tree.allocatable_of_leaf(leaf)
        column = np.zeros((2, len(self.resources)), dtype=np.int64)
        for row, name in enumerate(self.resources):
            used, taken = _clamp_sum(usage.get(name, 0)), _clamp_sum(other.get(name, 0))
            column[:, row] = allocatable_of_leaf.get(name, 0) - used - taken, used
        if np.array_equal(self._array.column(leaf), column):
            return  # nothing to copy a shared block for
        if (self._is_shared or self._array.has_pending) and not self._array.is_pending_full:
            self.cache.mark_changed((leaf,))
            self._array, self._is_shared = self._array.with_column(leaf, column), False
            return
        self._ensure_writable((leaf,))
        self._array.array()[..., leaf] = column

    def _ensure_writable(self, leaves: Iterable[int]) -> None:
        """Before these leaves are written to."""
        self.cache.mark_changed(leaves)
        if self._is_shared:
            self._array, self._is_shared = LeafArray(self._array.array().copy()), False

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
    """What `count` pods take in one charge, by resource; negative gives back."""
    return {
        name: max(-limit, min(limit, amount * count))
        for name, amount in single_pod_requests(requests).items()
    }


def charge_assignment(
    capacity: Capacity,
    requests: Mapping[str, int],
    assignment: TopologyAssignment,
    sign: int = 1,
) -> None:
    """Charge (sign 1) or give back (sign -1) all pods of a PodSet's assignment.

    Domains that are no leaf of the tree any more are ignored.

    Args:
        capacity: changed in place.
        requests: per pod, without the implied 1 of `pods`.
        assignment: as stored; a hostname-lowest one is charged to the leaf that holds the host,
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
    """Leaf of this tree that holds a domain of an assignment stored with `levels`, or None."""
    if tuple(levels) == tree.assignment_levels:
        return tree.leaf_of_values(values)
    if values and levels and levels[-1] == HOSTNAME_LABEL:
        return tree.leaf_of_host(values[-1])
    return None


def charge_host(
    capacities: Iterable[Capacity],
    host: str,
    requests: Mapping[str, int],
    count: int,
    *,
    tas: bool = True,
) -> None:
    """Charge pods on one host to every tree that has it: flavors that share nodes share usage.

    Args:
        capacities: one per flavor; those without the host stay as they are.
        host: value of the hostname label.
        requests: per pod, without the implied 1 of `pods`.
        count: pods; negative gives back.
        tas: False for pods that TAS did not place.
    """
    for capacity in capacities:
        leaf = capacity.tree.leaf_of_host(host)
        if leaf is not None:
            (capacity.charge if tas else capacity.charge_other)(leaf, requests, count)


def _clamp_sum(amount: int) -> int:
    return max(-SUM_LIMIT, min(SUM_LIMIT, amount))


def _read_only_view(rows: IntMatrix) -> IntMatrix:
    view = rows.T
    view.flags.writeable = False
    return view


def _select_rows(tree: TopologyTree, resources: Sequence[str]) -> IntMatrix:
    if tuple(resources) == tree.resources:
        return tree.allocatable
    return align_resource_rows(tree.allocatable, tree.resources, resources)
