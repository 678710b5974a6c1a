"""The next writes of a resize: one table over a job, its Workload and its slices (SLC-06..27).

Nothing is remembered between two looks. Every write changes an object, the change comes back as
a watch event, and the table is asked again; so a process may die after any of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rackgate.api.workload_names import slice_name
from rackgate.jobframework.generic_job import RequestedCount
from rackgate_assigner.workload_slices.merge_plan import Live, ParentUpdate, open_slices, plan_merge
from rackgate_assigner.workload_slices.model import Parent, Phase, Slice

# Slices made at one look: they are seen one by one, and the next look makes the rest.
BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class NewSlice:
    """A slice to be made."""

    name: str
    podset: str
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes that may go out together; each is about another object.

    Attributes:
        merge: the status of the parent.
        count_updates: counts of `spec.podSets` by name, for a parent whose status needs no write.
        create: slices to be made.
        delete: slices to be deleted, bound to the version seen: one that was admitted meanwhile
            is judged again.
        release: slices that are being deleted and may go: their finalizer is taken off.
    """

    merge: ParentUpdate | None = None
    count_updates: Mapping[str, int] | None = None
    create: tuple[NewSlice, ...] = ()
    delete: tuple[Slice, ...] = ()
    release: tuple[Slice, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is left to do."""
        return self == Plan()


def plan_resize(
    asked: Mapping[str, RequestedCount] | None,
    parent: Parent,
    slices: Sequence[Slice],
    *,
    taken: Container[str] = (),
    live: Live = lambda _podset: {},
) -> Plan:
    """What to write next.

    Args:
        asked: what the job asks for now, by PodSet of the parent. None when the job is not
            known, or asks for something that is no resize: then what was granted is taken in,
            and all else is left for others to decide.
        parent: its Workload.
        slices: all slices of that Workload.
        taken: names in use besides those of `slices`.
        live: see `plan_merge`.
    """
    merge = plan_merge(parent, slices, asked, live)
    missing, surplus = _balance(asked, parent, slices, merge)
    deletable = _deletable_uids(parent, slices)
    return Plan(
        merge=merge,
        count_updates=_count_updates(parent) if merge is None else None,
        create=_new_slices(missing, parent, slices, taken),
        delete=tuple(
            piece
            for piece in slices
            if piece.uid in deletable and _should_delete(piece, parent, surplus)
        ),
        release=tuple(piece for piece in slices if piece.deleting and piece.uid in deletable),
    )


def _balance(
    asked: Mapping[str, RequestedCount] | None,
    parent: Parent,
    slices: Sequence[Slice],
    merge: ParentUpdate | None,
) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """Pods that no slice asks for yet, by PodSet with their step; uids of slices in excess."""
    if asked is None or parent.phase is not Phase.RUNNING or parent.assignment is None:
        return {}, set()
    assignment = (
        parent.assignment if merge is None or merge.assignment is None else merge.assignment
    )
    missing, surplus = {}, set()
    for part in assignment.podsets:
        if part.name not in asked:
            continue
        wanted = asked[part.name]
        gap = wanted.pods - part.count - _unmerged_pods(parent, slices, merge, part.name)
        waiting = [piece for piece in slices if piece.podset == part.name and piece.is_pending]
        waiting.sort(key=lambda piece: (piece.ordinal, piece.uid))
        outstanding = sum(piece.count for piece in waiting)
        while waiting and outstanding > max(gap, 0):
            last = waiting.pop()
            outstanding -= last.count
            surplus.add(last.uid)
        if outstanding < gap:
            missing[part.name] = (gap - outstanding, max(wanted.slice_size, 1))
    return missing, surplus


def _unmerged_pods(
    parent: Parent, slices: Sequence[Slice], merge: ParentUpdate | None, podset: str
) -> int:
    """Pods of slices that hold what cannot be written into their parent's assignment."""
    settled = set() if merge is None else {entry.uid for entry in merge.merged}
    pieces = open_slices(parent, slices)
    return sum(s.count for s in pieces if s.podset == podset and s.uid not in settled)


def _new_slices(
    missing: Mapping[str, tuple[int, int]],
    parent: Parent,
    slices: Sequence[Slice],
    taken: Container[str],
) -> tuple[NewSlice, ...]:
    """Slices of one step each, under the smallest ordinals that no slice has.

    One that is being deleted still has its name. So repeating this makes nothing twice.
    """
    names = {piece.name for piece in slices}
    made: list[NewSlice] = []
    for podset, (pods, step) in missing.items():
        left, ordinal = pods, 0
        while left > 0 and len(made) < BATCH:
            name = slice_name(parent.name, podset, ordinal)
            ordinal += 1
            if name in names or name in taken:
                continue
            made.append(NewSlice(name, podset, min(step, left)))
            left -= step
    return tuple(made)


def _deletable_uids(parent: Parent, slices: Sequence[Slice]) -> set[str]:
    """Uids of the slices with which nothing that counts is lost."""
    if parent.phase in (Phase.IDLE, Phase.FINISHED):
        return {piece.uid for piece in slices}
    merged = {entry.uid for entry in parent.merged}
    return {piece.uid for piece in slices if piece.assignment is None or piece.uid in merged}


def _should_delete(piece: Slice, parent: Parent, surplus: Container[str]) -> bool:
    if piece.deleting:
        return False
    if piece.uid in surplus or parent.phase is not Phase.RUNNING:
        return True
    return piece.assignment is not None or not piece.is_pending


def _count_updates(parent: Parent) -> dict[str, int] | None:
    """The counts of the spec, brought in line with those granted (SLC-23)."""
    if parent.phase is not Phase.RUNNING or parent.assignment is None:
        return None
    counts = {part.name: part.count for part in parent.assignment.podsets}
    followed = {name: counts.get(name, count) for name, count in parent.counts.items()}
    return None if followed == dict(parent.counts) else followed
