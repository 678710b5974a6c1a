"""One status write of the parent: slices taken in, pods given back, entries that are done with.

Everything that ends what a slice holds goes through this write, never through the slice itself: a
decision based on an older view of the slice is then bound to a version of the parent that is
gone, and fails. So no slice is counted twice, and none is given away twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rackgate.topology.assignment import Domain
from rackgate_assigner.workload.decisions import Grant, PodSetGrant
from rackgate_assigner.workload_slices.merge import alike, can_join, joined, shrunk
from rackgate_assigner.workload_slices.model import Asked, Folded, Parent, Phase, Slice

Live = Callable[[str], Mapping[Domain, int]]

MAX_MERGED_SLICES: Final = 1000  # entries that `status.foldedSlices` holds, as its schema says


@dataclass(frozen=True, slots=True)
class Settle:
    """Write counts, usage, places and entries of the parent together.

    Attributes:
        grant: the admission as it is to be; None for a parent that holds nothing.
        folded: all entries of `status.foldedSlices`.
        taken_in: slices whose pods `grant` counts now.
        withdrawn: slices that hold something which counts no more.
        shrunk: pods given back by PodSet.
    """

    grant: Grant | None
    folded: tuple[Folded, ...]
    taken_in: tuple[Slice, ...] = ()
    withdrawn: tuple[Slice, ...] = ()
    shrunk: Mapping[str, int] | None = None


def open_slices(parent: Parent, slices: Sequence[Slice]) -> list[Slice]:
    """Slices that hold something of their own, by ordinal."""
    settled = {entry.uid for entry in parent.folded}
    found = [s for s in slices if s.grant is not None and s.uid not in settled]
    return sorted(found, key=lambda piece: (piece.podset, piece.ordinal, piece.uid))


def plan_fold(
    parent: Parent, slices: Sequence[Slice], asked: Mapping[str, Asked] | None, live: Live
) -> Settle | None:
    """The next status write of a parent, None when there is nothing to write.

    Args:
        parent: as seen.
        slices: all of its slices, as seen.
        asked: what its job asks for, by PodSet; None when that is not known, or no resize.
        live: asked only about PodSets that have to give pods back: pods that are there to stay,
            by domain.
    """
    if parent.phase is Phase.OVER:
        return None
    present = {piece.uid for piece in slices}
    kept = tuple(entry for entry in parent.folded if entry.uid in present)
    if parent.grant is None or parent.phase is Phase.IDLE:
        return None if kept == parent.folded else Settle(parent.grant, kept)
    grants = {part.name: part for part in parent.grant.podsets}
    taken_in, withdrawn = _sorted_out(
        parent, open_slices(parent, slices)[: MAX_MERGED_SLICES - len(kept)], grants, asked
    )
    given_back = _give_back(grants, parent, asked, live)
    entries = tuple(Folded(piece.uid, piece.podset) for piece in (*taken_in, *withdrawn))
    # Entries alone are taken out when the last of their slices is gone, not one by one.
    if not entries and not given_back and (kept or not parent.folded):
        return None
    podsets = tuple(grants[part.name] for part in parent.grant.podsets)
    grant = replace(parent.grant, podsets=podsets)
    return Settle(grant, (*kept, *entries), tuple(taken_in), tuple(withdrawn), given_back)


def _sorted_out(
    parent: Parent,
    pieces: Sequence[Slice],
    grants: dict[str, PodSetGrant],
    asked: Mapping[str, Asked] | None,
) -> tuple[list[Slice], list[Slice]]:
    """Take slices into `grants`; those, and slices whose grant is taken back."""
    taken_in, withdrawn, apart = [], [], []
    for piece in pieces:
        part = grants.get(piece.podset)
        # Of a parent that leaves, its pods may run on until the job has stopped: paid for so far.
        lost = piece.lost and parent.phase is Phase.RUNNING
        if lost or not piece.fits or part is None or piece.grant is None:
            withdrawn.append(piece)
        elif can_join(part, piece.grant):
            taken_in.append(piece)
            grants[piece.podset] = joined(part, piece.grant)
        elif piece.deleting or not alike(part, piece.grant):
            withdrawn.append(piece)  # no pod is released by places of other levels
        else:
            apart.append(piece)  # it runs beside its parent until both have stopped
    if asked is not None and parent.phase is Phase.RUNNING:
        withdrawn += _too_many(apart, grants, asked)
    return taken_in, withdrawn


def _too_many(
    apart: Sequence[Slice],
    grants: Mapping[str, PodSetGrant],
    asked: Mapping[str, Asked],
) -> list[Slice]:
    """Slices beside their parent that its job does not ask for any more, highest ordinal first."""
    found = []
    for name, wanted in asked.items():
        beside = [piece for piece in apart if piece.podset == name]
        here = grants[name].count if name in grants else 0
        surplus = here + sum(piece.count for piece in beside) - wanted.pods
        for piece in reversed(beside):
            if surplus > 0:
                found.append(piece)
                surplus -= piece.count
    return found


def _give_back(
    grants: dict[str, PodSetGrant],
    parent: Parent,
    asked: Mapping[str, Asked] | None,
    live: Live,
) -> dict[str, int]:
    """Shrink what is more than the job asks for; pods given back by PodSet (SLC-24, 25)."""
    if asked is None or parent.phase is not Phase.RUNNING:
        return {}
    given_back = {}
    for name, part in grants.items():
        wanted = asked[name].pods if name in asked else part.count
        if wanted < part.count:
            given_back[name] = part.count - wanted
            grants[name] = shrunk(part, wanted, live(name))
    return given_back
