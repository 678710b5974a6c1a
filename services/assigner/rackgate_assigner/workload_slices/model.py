"""What is read off a job, its Workload and its slices before a resize is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment


class Phase(StrEnum):
    """Where the Workload of a resizable job stands.

    RUNNING holds quota and goes on. EVICTING holds quota and is about to lose it: slices are taken
    in, so that what runs stays paid for until the job has stopped, and none is asked for. IDLE
    holds nothing and may be admitted again. FINISHED will never hold anything again.
    """

    RUNNING = "running"
    EVICTING = "leaving"
    IDLE = "idle"
    FINISHED = "over"


@dataclass(frozen=True, slots=True)
class RequestedCount:
    """What the job asks for in one PodSet now.

    Attributes:
        pods: in all, never negative.
        slice_size: pods that come and go together, and so share one slice; at least 1.
    """

    pods: int
    slice_size: int = 1


@dataclass(frozen=True, slots=True)
class MergedSlice:
    """An entry of `status.foldedSlices`."""

    uid: str
    podset: str


@dataclass(frozen=True, slots=True)
class Parent:
    """The Workload of a resizable job.

    Attributes:
        name: its slices are named after it.
        counts: `spec.podSets[].count` by name, in order.
        assignment: `status.admission`; None while nothing is held.
        merged: `status.foldedSlices`.
    """

    name: str
    phase: Phase
    counts: Mapping[str, int]
    assignment: Assignment | None = None
    merged: tuple[MergedSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """A workload slice.

    Attributes:
        ordinal: from its name. Slices are ordered by it, never by their age: many are made
            within one second.
        count: pods that it asks for.
        assignment: what it holds; None while it waits.
        evicted_or_finished: evicted or finished: what it holds grants nothing any more.
        deleting: a deletion is under way; its finalizer keeps it.
        matches_parent: its one PodSet is that of the parent, template and all.
        reason: why it waits, as last written.
        message: the same in words.
    """

    name: str
    uid: str
    podset: str
    ordinal: int
    count: int
    assignment: PodSetAssignment | None = None
    evicted_or_finished: bool = False
    deleting: bool = False
    matches_parent: bool = True
    reason: str = ""
    message: str = ""

    @property
    def is_pending(self) -> bool:
        """Whether it may still be admitted."""
        return (
            self.assignment is None
            and self.matches_parent
            and not (self.evicted_or_finished or self.deleting)
        )


def admitted_pods(parent: Parent, slices: tuple[Slice, ...] | list[Slice]) -> dict[str, int]:
    """Pods of each PodSet that may run now (SLC-14).

    A slice counts while it is admitted, not evicted, not being deleted, and not yet counted by
    its parent: exactly once, in whichever order its events are seen (SLC-15).
    """
    if parent.phase is not Phase.RUNNING or parent.assignment is None:
        return dict.fromkeys(parent.counts, 0)
    settled = {entry.uid for entry in parent.merged}
    counts = {part.name: part.count for part in parent.assignment.podsets}
    for piece in slices:
        if (
            piece.uid in settled
            or piece.assignment is None
            or piece.evicted_or_finished
            or piece.deleting
        ):
            continue
        counts[piece.podset] = counts.get(piece.podset, 0) + piece.assignment.count
    return counts
