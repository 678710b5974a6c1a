"""Which domain comes closest to holding a PodSet: what `explain` adds to a refusal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackgate.domains import Domain
from rackgate_assigner.core.capacity import per_pod
from rackgate_assigner.core.counting import Room, fit
from rackgate_assigner.core.forest import Grove
from rackgate_assigner.core.matching import eligibility
from rackgate_assigner.core.model import PodSetRequest


@dataclass(frozen=True, slots=True)
class Nearest:
    """The domain of one level that holds most pods of a shape.

    Attributes:
        level: label key.
        domains: how many domains the level has.
        domain: values, coarsest first; ties go to the first path.
        fits: pods that it holds at this moment.
    """

    level: str
    domains: int
    domain: Domain
    fits: int


def nearest(grove: Grove, podset: PodSetRequest) -> list[Nearest]:
    """The best domain of every level for one PodSet alone, coarsest level first.

    Taints, selectors and affinity count where the hostname is the lowest level, as in placement.
    """
    tree = grove.tree
    if not tree.leaf_count:
        return []
    fits = fit(per_pod(podset.requests), Room(grove.capacity, simulate_empty=False))
    judged = eligibility(tree, podset, grove.flavor.tolerations, soft_affinity=False)
    if judged.blocked is not None:
        fits = np.where(judged.blocked, 0, fits)
    found = []
    for level, paths in enumerate(tree.paths):
        sums = np.add.reduceat(fits, tree.leaf_ranges[level][:-1])
        best = int(np.argmax(sums))
        found.append(Nearest(tree.levels[level], len(paths), paths[best], int(sums[best])))
    return found
