"""One status write of the parent: slices are merged, pods released, old entries removed.

Every change that ends the usage of a slice goes through this write, never through the slice itself:
a decision based on an older view of the slice is then bound to an outdated version of the parent,
and fails. So no slice counts twice.

`merge_slice` and `scale_down` compute count, usage and topology of one PodSet; `plan_merge` decides
which slices are merged or withdrawn and which PodSets scale down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rackgate.jobframework.generic_job import RequestedCount
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate.wire.kueue import MergedSlice
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from rackgate_assigner.workload_slices.model import Parent, Phase, Slice


def can_merge(part: PodSetAssignment, piece: PodSetAssignment) -> bool:
    """Whether the assignment of a slice can be added to that of its PodSet.

    Not with other flavors: a queue may cover an additional resource now. Nor with other amounts for
    each pod: a LimitRange or a RuntimeClass may add something else now.
    """
    if not has_same_levels(part, piece):
        return False
    same = dict(part.flavors) == dict(piece.flavors) and _has_same_usage_per_pod(part, piece)
    return same or not part.flavors


def _has_same_usage_per_pod(part: PodSetAssignment, piece: PodSetAssignment) -> bool:
    """Whether a pod of either is charged the same; uneven usage is from pods of both kinds."""
    if not part.count or not piece.count:
        return True
    return all(
        -(-part.usage.get(resource, 0) // part.count)
        == -(-piece.usage.get(resource, 0) // piece.count)
        for resource in {*part.usage, *piece.usage}
    )


def has_same_levels(part: PodSetAssignment, piece: PodSetAssignment) -> bool:
    """Whether the assignments of a slice and of its PodSet have the same levels.

    A flavor may have got a topology, or a Topology other levels, while the job ran.
    """
    if part.topology is None or piece.topology is None:
        return part.topology is piece.topology or not part.count
    return part.topology.levels == piece.topology.levels


def merge_slice(part: PodSetAssignment, piece: PodSetAssignment) -> PodSetAssignment:
    """A PodSet's assignment merged with that of a slice; `can_merge` is true.

    Domains keep their order, which is the order of ranks: pods in new domains get the next ranks.
    """
    usage = dict(part.usage)
    for resource, amount in piece.usage.items():
        usage[resource] = usage.get(resource, 0) + amount
    return replace(
        part,
        flavors=part.flavors or piece.flavors,
        usage=usage,
        count=part.count + piece.count,
        topology=_merge_topology(part.topology, piece.topology),
    )


def _merge_topology(
    part: TopologyAssignment | None, piece: TopologyAssignment | None
) -> TopologyAssignment | None:
    if part is None or piece is None:
        return part or piece
    counts = dict(part.domains)
    for domain, count in piece.domains:
        counts[domain] = counts.get(domain, 0) + count
    return TopologyAssignment(part.levels, tuple(counts.items()))


def scale_down(part: PodSetAssignment, count: int, live: Mapping[Domain, int]) -> PodSetAssignment:
    """A PodSet's assignment with fewer pods.

    Args:
        part: the current assignment.
        count: remaining pods, at most as many as before.
        live: pods that stay, by domain.

    Returns:
        Usage in proportion; domains as in `scale_down_topology`.
    """
    # Pods of one template cost the same; if the sum is uneven, round up.
    usage = {name: -(-amount * count // part.count) for name, amount in part.usage.items()}
    topology = None
    if part.topology is not None:
        topology = scale_down_topology(part.topology, part.count - count, live)
    return replace(part, usage=usage, count=count, topology=topology)


def scale_down_topology(
    assignment: TopologyAssignment, fewer: int, live: Mapping[Domain, int]
) -> TopologyAssignment | None:
    """An assignment for fewer pods; None if no pod is left.

    Pods are removed in this order: from domains without live pods, from the surplus of other
    domains, and then from domains with live pods; each time from the last domain to the first, so
    that the lowest ranks stay.

    Args:
        assignment: the current one.
        fewer: number of pods to remove.
        live: pods that will stay, by domain.
    """
    counts = dict(assignment.domains)
    backwards = [domain for domain, _ in reversed(assignment.domains)]
    empty = [domain for domain in backwards if not live.get(domain)]
    for domains, kept in ((empty, {}), (backwards, live), (backwards, {})):
        for domain in domains:
            taken = min(fewer, max(counts[domain] - kept.get(domain, 0), 0))
            counts[domain] -= taken
            fewer -= taken
    left = tuple((domain, count) for domain, count in counts.items() if count)
    return TopologyAssignment(assignment.levels, left) if left else None


Live = Callable[[str], Mapping[Domain, int]]

MAX_MERGED_SLICES: Final = 1000  # entries that `status.foldedSlices` holds, as its schema says


@dataclass(frozen=True, slots=True)
class ParentUpdate:
    """Write counts, usage, domains and entries of the parent together.

    Attributes:
        assignment: the desired admission; None for a parent without one.
        merged: all entries of `status.foldedSlices`.
        newly_merged: slices whose pods `assignment` counts now.
        withdrawn: slices whose assignment no longer counts.
        scaled_down: released pods by PodSet.
    """

    assignment: Assignment | None
    merged: tuple[MergedSlice, ...]
    newly_merged: tuple[Slice, ...] = ()
    withdrawn: tuple[Slice, ...] = ()
    scaled_down: Mapping[str, int] | None = None


def open_slices(parent: Parent, slices: Sequence[Slice]) -> list[Slice]:
    """Admitted slices that are not merged yet, by ordinal."""
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
        asked: pods that its job requests, by PodSet; None when unknown, or no resize.
        live: for PodSets that scale down: pods that stay, by domain.
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
    # Entries alone are removed when the last of their slices is gone, not one by one.
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
    """Merge slices into `assignments`; returns merged and withdrawn slices."""
    newly_merged, withdrawn, unmerged = [], [], []
    for piece in pieces:
        part = assignments.get(piece.podset)
        # Under a parent that is evicted its pods stay charged until the job has stopped.
        lost = piece.evicted_or_finished and parent.phase is Phase.RUNNING
        if lost or not piece.matches_parent or part is None or piece.assignment is None:
            withdrawn.append(piece)
        elif can_merge(part, piece.assignment):
            newly_merged.append(piece)
            assignments[piece.podset] = merge_slice(part, piece.assignment)
        elif piece.deleting or not has_same_levels(part, piece.assignment):
            withdrawn.append(piece)  # no pod is ungated with domains of other levels
        else:
            unmerged.append(piece)  # it runs in addition to its parent until both have stopped
    if asked is not None and parent.phase is Phase.RUNNING:
        withdrawn += _surplus_slices(unmerged, assignments, asked)
    return newly_merged, withdrawn


def _surplus_slices(
    unmerged: Sequence[Slice],
    assignments: Mapping[str, PodSetAssignment],
    asked: Mapping[str, RequestedCount],
) -> list[Slice]:
    """Unmerged slices that the job no longer requests, highest ordinal first."""
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
    """Scale down to what the job requests; released pods by PodSet (SLC-24, 25)."""
    if asked is None or parent.phase is not Phase.RUNNING:
        return {}
    scaled_down = {}
    for name, part in assignments.items():
        wanted = asked[name].pods if name in asked else part.count
        if wanted < part.count:
            scaled_down[name] = part.count - wanted
            assignments[name] = scale_down(part, wanted, live(name))
    return scaled_down
