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
from rackgate_assigner.topology.order import Order

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
            np.repeat(counting(len(offsets) - 1), np.diff(offsets)) for offsets in self.children
        ]
        return (np.zeros(len(self.paths[0]), dtype=np.int64), *below)

    @cached_property
    def node_leaves(self) -> IntVector:
        """Shape (nodes,): leaf of every node."""
        leaves = len(self.node_offsets) - 1
        if int(self.node_offsets[-1]) == leaves:
            return counting(leaves)
        return np.repeat(counting(leaves), np.diff(self.node_offsets))


def counting(count: int) -> IntVector:
    """0, 1, 2 and so on, read-only; all that are asked for share one array."""
    global _counting  # noqa: PLW0603  # a table that only grows
    if count > len(_counting):
        _counting = np.arange(count + count // 8, dtype=np.int64)
        _counting.flags.writeable = False
    return _counting[:count]


_counting: IntVector = np.arange(0, dtype=np.int64)


def parting(path: Domain, before: Domain) -> int:
    """The first level at which two paths of one length differ; that length when they are equal."""
    return next((i for i, value in enumerate(before) if value != path[i]), len(path))


def built(paths: Sequence[Domain], depth: int) -> Structure:
    """Derive all domains from the paths of all nodes, which are sorted."""
    splits = [0, *(parting(path, before) for before, path in pairwise(paths))][: len(paths)]
    firsts = [[at for at, split in enumerate(splits) if split <= level] for level in range(depth)]
    offsets = np.array([*firsts[-1], len(paths)], dtype=np.int64)
    upper = [np.searchsorted(offsets, np.array([*starts, len(paths)])) for starts in firsts[:-1]]
    return Structure(
        tuple([paths[at][: level + 1] for at in firsts[level]] for level in range(depth)),
        (*upper, counting(len(offsets))),
        offsets,
    )


def followed(
    before: Structure,
    lost: Iterable[Domain],
    gained: Iterable[Domain],
    *,
    leaves: tuple[Order, Sequence[Domain]] | None = None,
) -> tuple[Structure, Order | None]:
    """The domains after nodes came and went, and the order of the leaves.

    No order means that the leaves are the same as before.

    Args:
        before: stays as it is.
        lost: path of each node that went.
        gained: path of each node that came.
        leaves: where every leaf is one node: the order of the nodes, and their paths now.
    """
    lowest = len(before.paths) - 1
    order: Order | None
    more: Mapping[Domain, int]
    if leaves is not None:
        order, paths = leaves
        offsets = counting(len(order) + 1)
        more = _counted(gained, lost)
    else:
        paths, offsets, order, more = _level(
            before.paths[-1], before.node_offsets, _counted(gained, lost)
        )
    upper = [(before.paths[level], before.leaf_ranges[level]) for level in range(lowest)]
    for level in range(lowest):
        inside: Counter[Domain] = Counter()
        for path, number in more.items():
            inside[path[: level + 1]] += number
        same_paths, ranges = upper[level]
        upper[level] = _level(same_paths, ranges, inside)[:2]
    found = Structure(
        (*(one for one, _ in upper), paths),
        (*(ranges for _, ranges in upper), counting(len(offsets))),
        offsets,
    )
    return found, order


def found_at(paths: Sequence[Domain], path: Domain) -> int | None:
    """Where a path stands in a sorted list, or None."""
    at = bisect_left(paths, path)
    return at if at < len(paths) and paths[at] == path else None


def _counted(gained: Iterable[Domain], lost: Iterable[Domain]) -> Counter[Domain]:
    more = Counter(gained)
    more.subtract(lost)
    return more


def _level(
    paths: Sequence[Domain], offsets: IntVector, more: Mapping[Domain, int]
) -> tuple[Sequence[Domain], IntVector, Order | None, dict[Domain, int]]:
    """One level after its domains gained or lost members.

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
    came: dict[Domain, int] = {}
    went: list[Domain] = []
    for path in changed:
        place = bisect_left(paths, path)
        if place == len(paths) or paths[place] != path:
            at.append(place)
            came[path] = more[path]
            continue
        sizes[place] += more[path]
        if not sizes[place]:
            gone.append(place)
            went.append(path)
    order = None
    if gone or at:
        order = Order(len(paths), gone, at)
        sizes = order.numbers(sizes)
        sizes[order.fresh] = list(came.values())
        paths = order.items(paths, list(came))
    found = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=found[1:])
    return paths, found, order, dict.fromkeys(came, 1) | dict.fromkeys(went, -1)
