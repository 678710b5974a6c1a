"""How far a resize has come, in the words of condition ResizeRequested (SLC-10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rackgate.api.names import ResizeReason
from rackgate.jobframework.generic_job import RequestedCount
from rackgate_assigner.workload_slices.model import Parent, Phase, Slice, admitted_pods


@dataclass(frozen=True, slots=True)
class Progress:
    """The wanted state of the condition."""

    resizing: bool
    reason: ResizeReason
    message: str


def progress(
    asked: Mapping[str, RequestedCount] | None, parent: Parent, slices: Sequence[Slice]
) -> Progress | None:
    """What to tell the user, None when a resize can neither be seen nor ruled out."""
    if parent.phase is Phase.IDLE:
        message = "the job is stopped: it is queued at the size that it asks for"
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
        waiting = [s for s in slices if s.podset == name and s.is_pending]
        waiting.sort(key=lambda piece: (piece.ordinal, piece.uid))
        texts.append(_podset_text(name, before, wanted, admitted.get(name, 0), waiting))
        reasons.add(_reason(before, wanted, waiting))
    if not texts:
        sizes = ", ".join(f"{name} {count}" for name, count in counts.items())
        return Progress(False, ResizeReason.RESIZED, f"all pods asked for are granted: {sizes}")
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
    text = f'podset "{name}" from {before} to {wanted} pods: asked {wanted}, granted {admitted}'
    if wanted < admitted:
        return f"{text}, {admitted - wanted} are given back"
    if wanted == admitted:
        return text
    text = f"{text}, waiting for {wanted - admitted}"
    inadmissible = next((piece for piece in waiting if piece.reason), None)
    if inadmissible is None:
        return text
    count = sum(bool(piece.reason) for piece in waiting)
    slices = "1 slice" if count == 1 else f"{count} slices"
    because = f"{text} in {slices} because {inadmissible.reason}"
    return f"{because}: {inadmissible.message}" if inadmissible.message else because
