"""How much room the domains of a topology have, for people and dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.tree import PODS, TopologyTree


@dataclass(frozen=True, slots=True)
class LevelFreeCapacity:
    """The domains of one level.

    Attributes:
        key: node label.
        domains: how many there are.
        idle: of these, how many have no pod that was placed by topology.
        largest_free: by resource, the most that one domain has free; cpu in millicores.
    """

    key: str
    domains: int
    idle: int
    largest_free: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FreeCapacitySummary:
    """All levels of one flavor's topology.

    Attributes:
        levels: coarsest first.
        free: by resource, over all nodes; a node that is over-committed has nothing free.
    """

    levels: tuple[LevelFreeCapacity, ...]
    free: Mapping[str, int]


def summarize_free_capacity(tree: TopologyTree, capacity: Capacity) -> FreeCapacitySummary:
    """Count what is free in each domain; a sum over leaves never offsets one with another."""
    if not tree.leaf_count:
        return FreeCapacitySummary(
            tuple(LevelFreeCapacity(key, 0, 0, {}) for key in tree.levels),
            dict.fromkeys(capacity.resources, 0),
        )
    free = np.maximum(capacity.free.T, 0)
    placed = capacity.usage.T[capacity.rows[PODS]]
    levels = []
    for level, key in enumerate(tree.levels):
        starts = tree.leaf_ranges[level][:-1]
        sums = np.add.reduceat(free, starts, axis=1).max(axis=1).tolist()
        levels.append(
            LevelFreeCapacity(
                key=key,
                domains=len(starts),
                idle=int((np.add.reduceat(placed, starts) == 0).sum()),
                largest_free=dict(zip(capacity.resources, sums, strict=True)),
            )
        )
    whole = free.sum(axis=1).tolist()
    return FreeCapacitySummary(tuple(levels), dict(zip(capacity.resources, whole, strict=True)))
