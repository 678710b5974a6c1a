"""The next writes of a resize, from a job, its Workload and its slices (SLC-06..27).

1. Merge admitted slices into their parent, and scale down what the job no longer requests
   (`merge_plan`).
2. Create pending slices for pods that no slice requests yet; delete those in excess.
3. Delete slices that are merged or belong to no running parent, then remove their finalizers.

`progress` describes the resize for condition ResizeRequested (SLC-10). No state is kept between two
plans: every write changes an object, its watch event leads to the next plan, and a process may end
after any write.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rackgate.api.names import ResizeReason, slice_name
from rackgate.jobframework.generic_job import RequestedCount
from rackgate_assigner.workload_slices.merge_plan import Live, ParentUpdate, open_slices, plan_merge
from rackgate_assigner.workload_slices.model import NewSlice, Parent, Phase, Slice, admitted_pods

# Slices of one plan: the watch shows them one by one, and the next plan creates the rest.
BATCH: Final = 64


# Phases in which a parent needs no slice.
_ENDED: Final = (Phase.IDLE, Phase.FINISHED)


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes that may be sent together; each is about another object.

    Attributes:
        merge: the status of the parent.
        count_updates: counts of `spec.podSets` by name, for a parent whose status needs no write.
        create: slices to create.
        delete: slices to delete.
        release: slices that are being deleted and lose their finalizer.
        no_slice_is_needed: also one that was admitted meanwhile is deleted. Otherwise the deletion
            is bound to the version seen, and such a slice is planned again.
    """

    merge: ParentUpdate | None = None
    count_updates: Mapping[str, int] | None = None
    create: tuple[NewSlice, ...] = ()
    delete: tuple[Slice, ...] = ()
    release: tuple[Slice, ...] = ()
    no_slice_is_needed: bool = False


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
        asked: pods that the job requests, by PodSet of the parent. None if the job is unknown, or
            its change is not a resize: then admitted slices are merged and nothing else happens.
        parent: its Workload.
        slices: all slices of that Workload.
        taken: names in use in addition to those of `slices`.
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
        no_slice_is_needed=parent.phase in _ENDED,
    )


def _balance(
    asked: Mapping[str, RequestedCount] | None,
    parent: Parent,
    slices: Sequence[Slice],
    merge: ParentUpdate | None,
) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """Pods that no slice requests yet, by PodSet with their step; uids of slices in excess."""
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
        waiting = _pending_slices(slices, part.name)
        outstanding = sum(piece.count for piece in waiting)
        while waiting and outstanding > max(gap, 0):
            last = waiting.pop()
            outstanding -= last.count
            surplus.add(last.uid)
        if outstanding < gap:
            missing[part.name] = (gap - outstanding, max(wanted.slice_size, 1))
    return missing, surplus


def _pending_slices(slices: Sequence[Slice], podset: str) -> list[Slice]:
    waiting = [piece for piece in slices if piece.podset == podset and piece.is_pending]
    waiting.sort(key=lambda piece: (piece.ordinal, piece.uid))
    return waiting


def _unmerged_pods(
    parent: Parent, slices: Sequence[Slice], merge: ParentUpdate | None, podset: str
) -> int:
    """Pods of admitted slices that cannot be merged."""
    settled = set() if merge is None else {entry.uid for entry in merge.merged}
    pieces = open_slices(parent, slices)
    return sum(s.count for s in pieces if s.podset == podset and s.uid not in settled)


def _new_slices(
    missing: Mapping[str, tuple[int, int]],
    parent: Parent,
    slices: Sequence[Slice],
    taken: Container[str],
) -> tuple[NewSlice, ...]:
    """Slices of one step each, with the smallest ordinals that no slice has.

    A slice that is being deleted still has its name, so a repeated call creates nothing twice.
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
    """Uids of slices without an assignment that counts."""
    if parent.phase in _ENDED:
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
    """The counts of the spec, set to those admitted (SLC-23)."""
    if parent.phase is not Phase.RUNNING or parent.assignment is None:
        return None
    counts = {part.name: part.count for part in parent.assignment.podsets}
    followed = {name: counts.get(name, count) for name, count in parent.counts.items()}
    return None if followed == dict(parent.counts) else followed


@dataclass(frozen=True, slots=True)
class Progress:
    """The desired state of the condition."""

    resizing: bool
    reason: ResizeReason
    message: str


def progress(
    asked: Mapping[str, RequestedCount] | None, parent: Parent, slices: Sequence[Slice]
) -> Progress | None:
    """Progress of a resize, None when it is unknown whether there is one."""
    if parent.phase is Phase.IDLE:
        message = "the job is stopped: it is queued at the size that it requests"
        return Progress(False, ResizeReason.RESIZED, message)
    if asked is None or parent.phase is not Phase.RUNNING or parent.assignment is None:
        return None
    counts = {part.name: part.count for part in parent.assignment.podsets}
    admitted = admitted_pods(parent, list(slices))
    texts, reasons = [], set()
    for name, before in parent.counts.items():
        wanted = asked[name].pods if name in asked else before
        if wanted == before == counts.get(name, 0):
            continue
        waiting = _pending_slices(slices, name)
        texts.append(_podset_text(name, before, wanted, admitted.get(name, 0), waiting))
        reasons.add(_reason(before, wanted, waiting))
    if not texts:
        sizes = ", ".join(f"{name} {count}" for name, count in counts.items())
        return Progress(False, ResizeReason.RESIZED, f"all requested pods are admitted: {sizes}")
    order = (ResizeReason.WAITING_FOR_SLICES, ResizeReason.SCALING_UP, ResizeReason.SCALING_DOWN)
    return Progress(True, next(r for r in order if r in reasons), "; ".join(texts))


def _reason(before: int, wanted: int, waiting: Sequence[Slice]) -> ResizeReason:
    if wanted < before:
        return ResizeReason.SCALING_DOWN
    if any(piece.reason for piece in waiting):
        return ResizeReason.WAITING_FOR_SLICES
    return ResizeReason.SCALING_UP


def _podset_text(
    name: str, before: int, wanted: int, admitted: int, waiting: Sequence[Slice]
) -> str:
    text = (
        f'podset "{name}" from {before} to {wanted} pods: {wanted} requested, {admitted} admitted'
    )
    if wanted < admitted:
        return f"{text}, {admitted - wanted} to be released"
    if wanted == admitted:
        return text
    text = f"{text}, {wanted - admitted} pending"
    inadmissible = next((piece for piece in waiting if piece.reason), None)
    if inadmissible is None:
        return text
    count = sum(bool(piece.reason) for piece in waiting)
    slices = "1 slice" if count == 1 else f"{count} slices"
    because = f"{text} in {slices} because {inadmissible.reason}"
    return f"{because}: {inadmissible.message}" if inadmissible.message else because
