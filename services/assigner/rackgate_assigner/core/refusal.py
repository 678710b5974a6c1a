"""The texts of refusals, fixed byte for byte by the conformance data (section 10)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rackgate_assigner.core.choosing import Shortfall
from rackgate_assigner.core.counting import Counts, Room, pods_that_fit
from rackgate_assigner.core.matching import Eligibility
from rackgate_assigner.core.tree import IntVector


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
        fenced: leaves outside the domain that new pods must be in; None: no fence.
    """
    leaf_count = room.capacity.tree.leaf_count
    tally: dict[str, int] = {}
    left = np.ones(leaf_count, dtype=np.bool_)
    if judged.codes is not None:
        numbers = np.bincount(judged.codes, minlength=len(judged.reasons) + 1)[1:]
        tally.update(zip(judged.reasons, numbers.tolist(), strict=True))
        left &= judged.codes == 0
    if fenced is not None:
        tally["topologyDomain"] = int((left & fenced).sum())
        left &= ~fenced
    resources, tightest, fits = _tightest(worker, room)
    numbers = np.bincount(tightest[left & (fits <= 0)], minlength=len(resources))
    for resource, number in zip(resources, numbers.tolist(), strict=True):
        tally[f'resource "{resource}"'] = number
    parts = sorted(f"{reason}: {number}" for reason, number in tally.items() if number)
    return f". Total nodes: {leaf_count}; excluded: {', '.join(parts)}" if parts else ""


def _tightest(worker: Mapping[str, int], room: Room) -> tuple[list[str], IntVector, IntVector]:
    """Per leaf the resource that allows fewest pods (first name wins), and that number."""
    leaf_count = room.capacity.tree.leaf_count
    resources = sorted(worker)
    tightest = np.zeros(leaf_count, dtype=np.int64)
    fewest: IntVector | None = None
    for index, resource in enumerate(resources):
        fits = np.maximum(pods_that_fit(worker[resource], room.of(resource), leaf_count), 0)
        if fewest is None:
            fewest = fits
            continue
        tightest[fits < fewest] = index
        fewest = np.minimum(fewest, fits)
    return resources, tightest, np.zeros(0, dtype=np.int64) if fewest is None else fewest


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
