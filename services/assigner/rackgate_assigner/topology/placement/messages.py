"""The texts of refusals, fixed byte for byte by the conformance data (section 10)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rackgate_assigner.topology.placement.assign import Shortfall
from rackgate_assigner.topology.placement.count import Counts, Room
from rackgate_assigner.topology.placement.node_matching import Eligibility
from rackgate_assigner.topology.tree import IntVector


def refusal_text(topology: str, counts: Counts, shortfall: Shortfall, excluded: str) -> str:
    """Say how much would have fitted, and which leaves were no help.

    Args:
        topology: the flavor's topology name.
        counts: phase 1.
        shortfall: where the search ended.
        excluded: from `excluded_text`; empty when no leaf was excluded.
    """
    question = counts.question
    if shortfall.absent:
        return f"no topology domains at level: {counts.tree.levels[shortfall.level]}"
    if len(question.layers) > 1:
        text = f'topology "{topology}" doesn\'t allow to fit{_layers_text(counts, shortfall)}'
    else:
        unit = "pod" if question.size == 1 else "slice"
        if shortfall.fitting == 0:
            text = f'topology "{topology}" doesn\'t allow to fit any of {question.need} {unit}(s)'
        else:
            text = (
                f'topology "{topology}" allows to fit only '
                f"{shortfall.fitting} out of {question.need} {unit}(s)"
            )
    return text + excluded


def excluded_text(
    room: Room,
    worker: Mapping[str, int],
    judged: Eligibility,
    fenced: npt.NDArray[np.bool_] | None,
) -> str:
    """`. Total nodes: T; excluded: ...`, or nothing when every leaf takes at least one pod.

    Args:
        room: free amounts.
        worker: amounts of one worker, with its 1 of `pods`.
        judged: taints, selector and affinity.
        fenced: leaves outside the domain that new pods must be in; None: no leaf_range.
    """
    leaf_count = room.capacity.tree.leaf_count
    tally: dict[str, int] = {}
    left = np.ones(leaf_count, dtype=np.bool_)
    if judged.blocked is not None:
        tally.update(zip(judged.reasons, judged.numbers, strict=True))
        left &= ~judged.blocked
    if fenced is not None:
        tally["topologyDomain"] = int(np.count_nonzero(left & fenced))
        left &= ~fenced
    # A leaf that takes no pod is told by the first resource, by name, that it has too little of.
    for resource in sorted(worker):
        short = left & _short(room.of(resource), worker[resource])
        tally[f'resource "{resource}"'] = int(np.count_nonzero(short))
        left ^= short
    parts = sorted(f"{reason}: {number}" for reason, number in tally.items() if number)
    return f". Total nodes: {leaf_count}; excluded: {', '.join(parts)}" if parts else ""


def _short(free: IntVector | None, amount: int) -> npt.NDArray[np.bool_] | bool:
    """Where there is too little of a resource for one pod."""
    if not amount:
        return False
    return True if free is None else free < amount


def _layers_text(counts: Counts, shortfall: Shortfall) -> str:
    """What fits per slice layer under the domain that came closest."""
    question = counts.question
    tree = counts.tree
    slices = counts.level(shortfall.level).slices
    places = (slices == slices.max()).nonzero()[0].tolist()
    hosts = tree.hosts and shortfall.level == len(tree.levels) - 1
    paths = tree.paths[shortfall.level]
    best = min(places, key=lambda at: paths[at][-1] if hosts else ",".join(paths[at]))
    start, end = tree.leaf_ranges[shortfall.level][best : best + 2].tolist()
    text = ""
    for layer in question.layers:
        level = tree.levels.index(layer.topology)
        first, last = np.searchsorted(tree.leaf_ranges[level], (start, end))
        fitting = int((counts.level(level).pods[first:last] // layer.size).sum())
        wanted = question.count // layer.size
        text += f"; {fitting}/{wanted} slice(s) fit on level {layer.topology}"
    return text
