"""From sorted nodes to domains: every array of a tree follows from where the paths part."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rackgate.domains import Domain

IntVector: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Structure:
    """The domains of all levels; see `TopologyTree` for the meaning of the shared names.

    Attributes:
        node_offsets: shape (leaves + 1,): first node of each leaf.
    """

    paths: tuple[list[Domain], ...]
    parents: tuple[IntVector, ...]
    children: tuple[IntVector, ...]
    leaf_ranges: tuple[IntVector, ...]
    node_leaves: IntVector
    node_offsets: IntVector


def parting(path: Domain, before: Domain) -> int:
    """The first level at which two paths of one length differ; that length when they are equal."""
    return next((i for i, value in enumerate(before) if value != path[i]), len(path))


def splits_of(paths: Sequence[Domain]) -> IntVector:
    """Where each of the sorted paths parts from the one before it; 0 for the first."""
    found = [parting(path, before) for before, path in pairwise(paths)]
    return np.array([0, *found][: len(paths)], dtype=np.int64)


def structure(
    splits: IntVector,
    leaf_paths: list[Domain],
    depth: int,
    known: Sequence[tuple[list[Domain], bool]] = (),
) -> Structure:
    """Derive all arrays.

    Args:
        splits: shape (nodes,): the first level at which a node's path parts from that of the node
            before it, `depth` where it does not; 0 for the first node.
        leaf_paths: paths of the lowest level, in order.
        depth: number of levels.
        known: per level but the lowest, paths of the domains before, and whether all domains of
            now are among them; spares making them anew.
    """
    starts_leaf = splits < depth
    firsts = starts_leaf.nonzero()[0]
    leaf_splits = splits[firsts]
    starts = [(leaf_splits <= level).nonzero()[0] for level in range(depth)]
    leaf_ranges = tuple(np.append(places, len(firsts)) for places in starts)
    upper = []
    for level in range(depth - 1):
        before, complete = known[level] if known else ([], False)
        if complete and len(before) == len(starts[level]):
            upper.append(before)
        else:
            upper.append([leaf_paths[place][: level + 1] for place in starts[level].tolist()])
    parents = [np.zeros(len(starts[0]), dtype=np.int64)]
    parents += [
        np.searchsorted(above, below, side="right") - 1 for above, below in pairwise(starts)
    ]
    children = [
        np.searchsorted(below, ranges)
        for ranges, below in zip(leaf_ranges, starts[1:], strict=False)
    ]
    return Structure(
        (*upper, leaf_paths),
        tuple(parents),
        tuple(children),
        leaf_ranges,
        np.cumsum(starts_leaf) - 1,
        np.append(firsts, len(splits)),
    )


def found_at(paths: Sequence[Domain], path: Domain) -> int | None:
    """Where a path stands in a sorted list, or None."""
    at = bisect_left(paths, path)
    return at if at < len(paths) and paths[at] == path else None
