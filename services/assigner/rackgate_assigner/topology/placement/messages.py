"""The texts of refusals, fixed byte for byte by the conformance data (section 10)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rackgate_assigner.topology.placement.assign import Shortfall
from rackgate_assigner.topology.placement.count import DomainCounts, FreeCapacity
from rackgate_assigner.topology.placement.node_matching import Eligibility
from rackgate_assigner.topology.tree import IntVector


def not_fit_message(
    topology: str, counts: DomainCounts, shortfall: Shortfall, excluded: str
) -> str:
    """Say how much would have fitted, and which leaves were no help.

    Args:
        topology: the flavor's topology name.
        counts: phase 1.
        shortfall: where the search ended.
        excluded: from `exclusion_text`; empty when no leaf was excluded.
    """
    request = counts.request
    if shortfall.absent:
        return f"no topology domains at level: {counts.tree.levels[shortfall.level]}"
    if len(request.layers) > 1:
        text = f'topology "{topology}" doesn\'t allow to fit{_layers_text(counts, shortfall)}'
    else:
        unit = "pod" if request.size == 1 else "slice"
        if shortfall.fitting == 0:
            text = f'topology "{topology}" doesn\'t allow to fit any of {request.need} {unit}(s)'
        else:
            text = (
                f'topology "{topology}" allows to fit only '
                f"{shortfall.fitting} out of {request.need} {unit}(s)"
            )
    return text + excluded


def exclusion_text(
    room: FreeCapacity,
    worker: Mapping[str, int],
    eligibility: Eligibility,
    outside_leaf_range: npt.NDArray[np.bool_] | None,
) -> str:
    """`. Total nodes: T; excluded: ...`, or nothing when every leaf takes at least one pod.

    Args:
        room: free amounts.
        worker: amounts of one worker, with its 1 of `pods`.
        eligibility: taints, selector and affinity.
        outside_leaf_range: leaves outside the domain that new pods must be in; None: no leaf_range.
    """
    leaf_count = room.capacity.tree.leaf_count
    excluded_counts: dict[str, int] = {}
    left = np.ones(leaf_count, dtype=np.bool_)
    if eligibility.blocked is not None:
        excluded_counts.update(zip(eligibility.reasons, eligibility.numbers, strict=True))
        left &= ~eligibility.blocked
    if outside_leaf_range is not None:
        excluded_counts["topologyDomain"] = int(np.count_nonzero(left & outside_leaf_range))
        left &= ~outside_leaf_range
    # A leaf that takes no pod is told by the first resource, by name, that it has too little of.
    for resource in sorted(worker):
        short = left & _is_insufficient(room.free_amounts(resource), worker[resource])
        excluded_counts[f'resource "{resource}"'] = int(np.count_nonzero(short))
        left ^= short
    parts = sorted(f"{reason}: {number}" for reason, number in excluded_counts.items() if number)
    return f". Total nodes: {leaf_count}; excluded: {', '.join(parts)}" if parts else ""


def _is_insufficient(free: IntVector | None, amount: int) -> npt.NDArray[np.bool_] | bool:
    """Where there is too little of a resource for one pod."""
    if not amount:
        return False
    return True if free is None else free < amount


def _layers_text(counts: DomainCounts, shortfall: Shortfall) -> str:
    """What fits per slice layer under the domain that came closest."""
    request = counts.request
    tree = counts.tree
    slices = counts.level(shortfall.level).slices
    places = (slices == slices.max()).nonzero()[0].tolist()
    hosts = tree.lowest_is_hostname and shortfall.level == len(tree.levels) - 1
    paths = tree.paths[shortfall.level]
    best = min(places, key=lambda at: paths[at][-1] if hosts else ",".join(paths[at]))
    start, end = tree.leaf_ranges[shortfall.level][best : best + 2].tolist()
    text = ""
    for layer in request.layers:
        level = tree.levels.index(layer.topology)
        first, last = np.searchsorted(tree.leaf_ranges[level], (start, end))
        fitting = int((counts.level(level).pods[first:last] // layer.size).sum())
        wanted = request.count // layer.size
        text += f"; {fitting}/{wanted} slice(s) fit on level {layer.topology}"
    return text
