"""One status write of the parent: slices taken in, pods given back, entries that are done with.

Everything that ends what a slice holds goes through this write, never through the slice itself: a
decision based on an older view of the slice is then bound to a version of the parent that is
gone, and fails. So no slice is counted twice, and none is given away twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rackgate.jobframework.generic_job import RequestedCount
from rackgate.topology.assignment import Domain
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from rackgate_assigner.workload_slices.merge import (
    can_merge,
    has_same_levels,
    merge_slice,
    scale_down,
)
from rackgate_assigner.workload_slices.model import MergedSlice, Parent, Phase, Slice

Live = Callable[[str], Mapping[Domain, int]]

MAX_MERGED_SLICES: Final = 1000  # entries that `status.foldedSlices` holds, as its schema says


@dataclass(frozen=True, slots=True)
class ParentUpdate:
    """Write counts, usage, places and entries of the parent together.

    Attributes:
        assignment: the admission as it is to be; None for a parent that holds nothing.
        merged: all entries of `status.foldedSlices`.
        newly_merged: slices whose pods `assignment` counts now.
        withdrawn: slices that hold something which counts no more.
        scaled_down: pods given back by PodSet.
    """

    assignment: Assignment | None
    merged: tuple[MergedSlice, ...]
    newly_merged: tuple[Slice, ...] = ()
    withdrawn: tuple[Slice, ...] = ()
    scaled_down: Mapping[str, int] | None = None


def open_slices(parent: Parent, slices: Sequence[Slice]) -> list[Slice]:
    """Slices that hold something of their own, by ordinal."""
    settled = {entry.uid for entry in parent.merged}
    found = [s for s in slices if s.assignment is not None and s.uid not in settled]
    return sorted(found, key=lambda piece: (piece.podset, piece.ordinal, piece.uid))


def plan_merge(
    parent: Parent, slices: Sequence[Slice], asked: Mapping[str, RequestedCount] | None, live: Live
) -> ParentUpdate | None:
    """The next status write of a parent, None when there is nothing to write.

    Args:
        parent: as seen.
        slices: all of its slices, as seen.
        asked: what its job asks for, by PodSet; None when that is not known, or no resize.
        live: asked only about PodSets that have to give pods back: pods that are there to stay,
            by domain.
    """
    if parent.phase is Phase.FINISHED:
        return None
    present = {piece.uid for piece in slices}
    kept = tuple(entry for entry in parent.merged if entry.uid in present)
    if parent.assignment is None or parent.phase is Phase.IDLE:
        return None if kept == parent.merged else ParentUpdate(parent.assignment, kept)
    assignments = {part.name: part for part in parent.assignment.podsets}
    newly_merged, withdrawn = _merge_slices(
        parent, open_slices(parent, slices)[: MAX_MERGED_SLICES - len(kept)], assignments, asked
    )
    scaled_down = _scale_down(assignments, parent, asked, live)
    entries = tuple(MergedSlice(piece.uid, piece.podset) for piece in (*newly_merged, *withdrawn))
    # Entries alone are taken out when the last of their slices is gone, not one by one.
    if not entries and not scaled_down and (kept or not parent.merged):
        return None
    podsets = tuple(assignments[part.name] for part in parent.assignment.podsets)
    assignment = replace(parent.assignment, podsets=podsets)
    return ParentUpdate(
        assignment, (*kept, *entries), tuple(newly_merged), tuple(withdrawn), scaled_down
    )


def _merge_slices(
    parent: Parent,
    pieces: Sequence[Slice],
    assignments: dict[str, PodSetAssignment],
    asked: Mapping[str, RequestedCount] | None,
) -> tuple[list[Slice], list[Slice]]:
    """Take slices into `assignments`; those, and slices whose assignment is taken back."""
    newly_merged, withdrawn, unmerged = [], [], []
    for piece in pieces:
        part = assignments.get(piece.podset)
        # Of a parent that leaves, its pods may run on until the job has stopped: paid for so far.
        lost = piece.evicted_or_finished and parent.phase is Phase.RUNNING
        if lost or not piece.matches_parent or part is None or piece.assignment is None:
            withdrawn.append(piece)
        elif can_merge(part, piece.assignment):
            newly_merged.append(piece)
            assignments[piece.podset] = merge_slice(part, piece.assignment)
        elif piece.deleting or not has_same_levels(part, piece.assignment):
            withdrawn.append(piece)  # no pod is released by places of other levels
        else:
            unmerged.append(piece)  # it runs beside its parent until both have stopped
    if asked is not None and parent.phase is Phase.RUNNING:
        withdrawn += _surplus_slices(unmerged, assignments, asked)
    return newly_merged, withdrawn


def _surplus_slices(
    unmerged: Sequence[Slice],
    assignments: Mapping[str, PodSetAssignment],
    asked: Mapping[str, RequestedCount],
) -> list[Slice]:
    """Slices beside their parent that its job does not ask for any more, highest ordinal first."""
    found = []
    for name, wanted in asked.items():
        beside = [piece for piece in unmerged if piece.podset == name]
        here = assignments[name].count if name in assignments else 0
        surplus = here + sum(piece.count for piece in beside) - wanted.pods
        for piece in reversed(beside):
            if surplus > 0:
                found.append(piece)
                surplus -= piece.count
    return found


def _scale_down(
    assignments: dict[str, PodSetAssignment],
    parent: Parent,
    asked: Mapping[str, RequestedCount] | None,
    live: Live,
) -> dict[str, int]:
    """Shrink what is more than the job asks for; pods given back by PodSet (SLC-24, 25)."""
    if asked is None or parent.phase is not Phase.RUNNING:
        return {}
    scaled_down = {}
    for name, part in assignments.items():
        wanted = asked[name].pods if name in asked else part.count
        if wanted < part.count:
            scaled_down[name] = part.count - wanted
            assignments[name] = scale_down(part, wanted, live(name))
    return scaled_down
