"""How far the resize of an elastic Workload has come, and what its slices wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain import workload as workload_explanation
from rackgate_assigner.explain.explanation import Explanation, Remedy, Resize
from rackgate_assigner.workload.info import WorkloadInfo


def with_resize(
    explanation: Explanation, cache: Cache, asked: Mapping[str, int] | None, top: int
) -> Explanation:
    """An explanation of an elastic Workload that runs, with its resize.

    What the first slice that waits is told about quota, topology and remedies stands for all: they
    ask for the same, one after another.

    Args:
        explanation: about the Workload itself.
        cache: the cluster.
        asked: what its job asks for now, by PodSet; None where that could not be read.
        top: names to list.
    """
    row = cache.workloads[explanation.workload]
    if not row.elastic or row.parent or row.reserved is None:
        return explanation
    mine = [one for one in cache.workloads.values() if one.parent == row.key]
    slices = sorted((one for one in mine if one.owner_uid == row.uid), key=lambda one: one.key)
    first = next((one for one in slices if one.pending), None)
    why = (
        None
        if first is None
        else workload_explanation.explain(cache, first.key, cache.features, top)
    )
    lines = []
    for part in row.reserved.podsets:
        own = [one for one in slices if any(p.request.name == part.name for p in one.podsets)]
        line = _line(row, part.name, part.count, own, top)
        if asked is not None:
            line = msgspec.structs.replace(line, asked=asked.get(part.name, line.asked))
        if why is not None and why.workload in line.slices:
            line = msgspec.structs.replace(line, because=why.summary.rstrip("."))
        lines.append(line)
    explanation = msgspec.structs.replace(explanation, resizes=tuple(lines))
    if why is None:
        return explanation
    grows = "; ".join(_resize_text(line) for line in lines if line.waiting)
    return msgspec.structs.replace(
        explanation,
        summary=f"It is admitted, and grows: {grows}.",
        changes=_changes(explanation.workload, why),
        quota=why.quota,
        flavors=why.flavors,
        queue=why.queue,
    )


def _changes(parent: str, why: Explanation) -> tuple[Remedy, ...]:
    """What would help a slice; not that its own parent gives back what it runs on."""
    own = [
        line
        for line in why.quota
        if line.missing != "0"
        and not line.more_holders
        and {holder.name for holder in line.holders} == {parent}
    ]
    if not own:
        return why.changes
    more = (
        Remedy(
            kind="quota",
            value=line.missing,
            when="perhaps",
            text=f"{line.missing} more {line.resource} of quota in flavor {line.flavor}: "
            "what is in use there is this job's own",
        )
        for line in own
    )
    return (*(change for change in why.changes if change.kind != "quota"), *more)


def _line(
    row: WorkloadInfo, podset: str, count: int, slices: Sequence[WorkloadInfo], top: int
) -> Resize:
    """One PodSet and its slices, asking for no more than they do."""
    beside = sum(
        _pods(one) for one in slices if one.uid not in row.merged_slices and _is_admitted(one)
    )
    waiting = [one for one in slices if one.pending]
    pods = sum(_pods(one) for one in waiting)
    return Resize(
        podset=podset,
        asked=count + beside + pods,
        granted=count + beside,
        waiting=pods,
        slices=tuple(one.key for one in waiting[:top]),
        more_slices=max(0, len(waiting) - top),
        because=next((one.pending_message or one.pending_reason for one in waiting), ""),
    )


def _is_admitted(row: WorkloadInfo) -> bool:
    return row.reserved is not None and row.admitted and not (row.evicted or row.deleting)


def _pods(row: WorkloadInfo) -> int:
    if row.reserved is not None:
        return sum(part.count for part in row.reserved.podsets)
    return sum(podset.request.count for podset in row.podsets)


def _resize_text(line: Resize) -> str:
    because = f" because {line.because[:1].lower()}{line.because[1:]}" if line.because else ""
    return (
        f"{line.podset} asked {line.asked}, granted {line.granted}, "
        f"waiting for {line.waiting}{because}"
    )
