"""What KAI does with each of a workflow's task groups, whichever comes first.

KAI takes PodGroups one after another, older ones first. How old they are is not known here: those
of one submission are created one after another, and one that is added to a workflow later is
younger than those that wait, whatever its name. So each group is judged as if it came first, and
then again with all others before it that KAI may place. What rules every place out rules it out
beside others, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rackgate_osmo.explain import reasons
from rackgate_osmo.explain.certainty import Certainty, Piece
from rackgate_osmo.explain.nodes import View
from rackgate_osmo.explain.prediction import Foretold, Objects, foretell
from rackgate_osmo.explain.room import Shape


@dataclass(frozen=True, slots=True)
class Asked:
    """A task group.

    Attributes:
        objects: what KAI is given.
        running: its pods that are on nodes.
        alone: whether it fits without the other groups, once the pods that terminate are gone;
            None: not decided.
    """

    objects: Objects
    running: int
    alone: bool | None

    @property
    def pods(self) -> int:
        """Number of its pods."""
        return len(self.objects.top.tasks)


def foretell_all(
    view: View, certain: Certainty, asked: Sequence[Asked], steps: int
) -> list[Foretold]:
    """What KAI does with each PodGroup of a workflow.

    Args:
        view: without the workflow's pending pods.
        certain: of the view.
        asked: the PodGroups; their order does not matter.
        steps: as for `foretell`.
    """
    first = [_first(view, certain, one, steps) for one in asked]
    pieces = [_pieces(one, found) for one, found in zip(asked, first, strict=True)]
    return [
        found if one.running else _among(found, one.objects, certain, others)
        for one, found, others in zip(asked, first, _others(pieces), strict=True)
    ]


def _first(view: View, certain: Certainty, one: Asked, steps: int) -> Foretold:
    """What KAI does with a group that comes first."""
    if not one.running:
        return foretell(view, one.objects, certain, one.alone, steps)
    if one.running < one.pods:
        return Foretold("unknown", (reasons.partly(one.running, one.pods),))
    return Foretold("scheduled")


def _pieces(one: Asked, found: Foretold) -> list[Piece]:
    """The pods of a group that KAI may place before another one."""
    if one.running:
        return one.objects.missing(one.running)
    return [] if found.result == "pending" else one.objects.pieces()


def _others(pieces: Sequence[Sequence[Piece]]) -> Iterator[list[Piece]]:
    """For each group the pieces of all others; those that are bound to no domain as one."""
    for mine in range(len(pieces)):
        theirs = [piece for at, some in enumerate(pieces) if at != mine for piece in some]
        loose: Counter[Shape] = Counter()
        for piece in theirs:
            if not piece.level:
                loose.update(piece.kinds)
        bound = [piece for piece in theirs if piece.level]
        yield [*bound, Piece(0, loose)] if loose else bound


def _among(
    first: Foretold, objects: Objects, certain: Certainty, others: Sequence[Piece]
) -> Foretold:
    """What KAI does with a group if others may come before it, wherever it puts them."""
    if not others or first.result == "pending":
        return first
    if first.result == "scheduled" and certain.places(objects.top, objects.shapes, others):
        return first
    return Foretold("unknown", (*first.reasons, reasons.groups_before()))
