"""The domains of all levels: which there are, and how many leaves and nodes make up each."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rackgate.topology.assignment import Domain
from rackgate_assigner.topology.reordering import Reordering

IntVector: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Structure:
    """The domains of all levels; see `TopologyTree` for the meaning of the shared names.

    Attributes:
        node_offsets: shape (leaves + 1,): first node of each leaf.
    """

    paths: tuple[Sequence[Domain], ...]
    leaf_ranges: tuple[IntVector, ...]
    node_offsets: IntVector

    @cached_property
    def children(self) -> tuple[IntVector, ...]:
        """Per level but the lowest, offsets (domains + 1) into the next level."""
        lowest = len(self.paths) - 1
        return tuple(
            ranges if level + 1 == lowest else np.searchsorted(self.leaf_ranges[level + 1], ranges)
            for level, ranges in enumerate(self.leaf_ranges[:-1])
        )

    @cached_property
    def parents(self) -> tuple[IntVector, ...]:
        """Per level, each domain's parent one level up; zeros at the highest level."""
        below = [
            np.repeat(index_range(len(offsets) - 1), np.diff(offsets)) for offsets in self.children
        ]
        return (np.zeros(len(self.paths[0]), dtype=np.int64), *below)

    @cached_property
    def node_leaves(self) -> IntVector:
        """Shape (nodes,): leaf of every node."""
        leaves = len(self.node_offsets) - 1
        if int(self.node_offsets[-1]) == leaves:
            return index_range(leaves)
        return np.repeat(index_range(leaves), np.diff(self.node_offsets))


def index_range(count: int) -> IntVector:
    """0, 1, 2 and so on, read-only; all that are asked for share one array."""
    global _shared_range  # noqa: PLW0603  # a table that only grows
    if count > len(_shared_range):
        _shared_range = np.arange(count + count // 8, dtype=np.int64)
        _shared_range.flags.writeable = False
    return _shared_range[:count]


_shared_range: IntVector = np.arange(0, dtype=np.int64)


def first_different_level(path: Domain, before: Domain) -> int:
    """The first level at which two paths of one length differ; that length when they are equal."""
    return next((i for i, value in enumerate(before) if value != path[i]), len(path))


def build_structure(paths: Sequence[Domain], depth: int) -> Structure:
    """Derive all domains from the paths of all nodes, which are sorted."""
    splits = [0, *(first_different_level(path, before) for before, path in pairwise(paths))][
        : len(paths)
    ]
    firsts = [[at for at, split in enumerate(splits) if split <= level] for level in range(depth)]
    offsets = np.array([*firsts[-1], len(paths)], dtype=np.int64)
    upper = [np.searchsorted(offsets, np.array([*starts, len(paths)])) for starts in firsts[:-1]]
    return Structure(
        tuple([paths[at][: level + 1] for at in firsts[level]] for level in range(depth)),
        (*upper, index_range(len(offsets))),
        offsets,
    )


def update_structure(
    before: Structure,
    removed: Iterable[Domain],
    added: Iterable[Domain],
    *,
    leaves: tuple[Reordering, Sequence[Domain]] | None = None,
) -> tuple[Structure, Reordering | None]:
    """The domains after nodes came and went, and the order of the leaves.

    No order means that the leaves are the same as before.

    Args:
        before: stays as it is.
        removed: path of each node that went.
        added: path of each node that came.
        leaves: where every leaf is one node: the order of the nodes, and their paths now.
    """
    lowest = len(before.paths) - 1
    order: Reordering | None
    more: Mapping[Domain, int]
    if leaves is not None:
        order, paths = leaves
        offsets = index_range(len(order) + 1)
        more = _member_changes(added, removed)
    else:
        paths, offsets, order, more = _update_level(
            before.paths[-1], before.node_offsets, _member_changes(added, removed)
        )
    upper = [(before.paths[level], before.leaf_ranges[level]) for level in range(lowest)]
    for level in range(lowest):
        inside: Counter[Domain] = Counter()
        for path, number in more.items():
            inside[path[: level + 1]] += number
        same_paths, ranges = upper[level]
        upper[level] = _update_level(same_paths, ranges, inside)[:2]
    found = Structure(
        (*(one for one, _ in upper), paths),
        (*(ranges for _, ranges in upper), index_range(len(offsets))),
        offsets,
    )
    return found, order


def find_path(paths: Sequence[Domain], path: Domain) -> int | None:
    """Where a path stands in a sorted list, or None."""
    at = bisect_left(paths, path)
    return at if at < len(paths) and paths[at] == path else None


def _member_changes(added: Iterable[Domain], removed: Iterable[Domain]) -> Counter[Domain]:
    more = Counter(added)
    more.subtract(removed)
    return more


def _update_level(
    paths: Sequence[Domain], offsets: IntVector, more: Mapping[Domain, int]
) -> tuple[Sequence[Domain], IntVector, Reordering | None, dict[Domain, int]]:
    """One level after its domains added or removed members.

    Args:
        paths: of the domains before.
        offsets: first member of each domain, and how many there are.
        more: members that each domain has more now.

    Returns:
        The paths and offsets now, the order of the domains (None: as before), and the domains
        that came (1) and went (-1).
    """
    changed = sorted(path for path, number in more.items() if number)
    if not changed:
        return paths, offsets, None, {}
    sizes = np.diff(offsets)
    gone: list[int] = []
    at: list[int] = []
    new_domains: dict[Domain, int] = {}
    removed_domains: list[Domain] = []
    for path in changed:
        place = bisect_left(paths, path)
        if place == len(paths) or paths[place] != path:
            at.append(place)
            new_domains[path] = more[path]
            continue
        sizes[place] += more[path]
        if not sizes[place]:
            gone.append(place)
            removed_domains.append(path)
    order = None
    if gone or at:
        order = Reordering(len(paths), gone, at)
        sizes = order.reorder_array(sizes)
        sizes[order.inserted] = list(new_domains.values())
        paths = order.reorder_items(paths, list(new_domains))
    found = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=found[1:])
    return paths, found, order, dict.fromkeys(new_domains, 1) | dict.fromkeys(removed_domains, -1)
