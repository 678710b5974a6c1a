"""What is read off a job, its Workload and its slices before a resize is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rackgate_assigner.workload.decisions import Grant, PodSetGrant


class Phase(StrEnum):
    """Where the Workload of a resizable job stands.

    RUNNING holds quota and goes on. LEAVING holds quota and is about to lose it: slices are taken
    in, so that what runs stays paid for until the job has stopped, and none is asked for. IDLE
    holds nothing and may be admitted again. OVER will never hold anything again.
    """

    RUNNING = "running"
    LEAVING = "leaving"
    IDLE = "idle"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the job asks for in one PodSet now.

    Attributes:
        pods: in all, never negative.
        step: pods that come and go together, and so share one slice; at least 1.
    """

    pods: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class Folded:
    """An entry of `status.foldedSlices`."""

    uid: str
    podset: str


@dataclass(frozen=True, slots=True)
class Parent:
    """The Workload of a resizable job.

    Attributes:
        name: its slices are named after it.
        counts: `spec.podSets[].count` by name, in order.
        grant: `status.admission`; None while nothing is held.
        folded: `status.foldedSlices`.
    """

    name: str
    phase: Phase
    counts: Mapping[str, int]
    grant: Grant | None = None
    folded: tuple[Folded, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """A workload slice.

    Attributes:
        ordinal: from its name. Slices are ordered by it, never by their age: many are made
            within one second.
        count: pods that it asks for.
        grant: what it holds; None while it waits.
        lost: evicted or finished: what it holds grants nothing any more.
        deleting: a deletion is under way; its finalizer keeps it.
        fits: its one PodSet is that of the parent, template and all.
        reason: why it waits, as last written.
        message: the same in words.
    """

    name: str
    uid: str
    podset: str
    ordinal: int
    count: int
    grant: PodSetGrant | None = None
    lost: bool = False
    deleting: bool = False
    fits: bool = True
    reason: str = ""
    message: str = ""

    @property
    def waits(self) -> bool:
        """Whether it may still be admitted."""
        return self.grant is None and self.fits and not (self.lost or self.deleting)


def granted(parent: Parent, slices: tuple[Slice, ...] | list[Slice]) -> dict[str, int]:
    """Pods of each PodSet that may run now (SLC-14).

    A slice counts while it is admitted, not evicted, not being deleted, and not yet counted by
    its parent: exactly once, in whichever order its events are seen (SLC-15).
    """
    if parent.phase is not Phase.RUNNING or parent.grant is None:
        return dict.fromkeys(parent.counts, 0)
    settled = {entry.uid for entry in parent.folded}
    counts = {part.name: part.count for part in parent.grant.podsets}
    for piece in slices:
        if piece.uid in settled or piece.grant is None or piece.lost or piece.deleting:
            continue
        counts[piece.podset] = counts.get(piece.podset, 0) + piece.grant.count
    return counts
