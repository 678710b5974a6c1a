"""Counts, usage and places of a PodSet that takes in a slice, or gives pods back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.workload.decisions import PodSetAssignment


def can_merge(part: PodSetAssignment, piece: PodSetAssignment) -> bool:
    """Whether what a slice was given can be written into what its PodSet was given.

    Not with other flavors: a queue may cover a further resource by now. Nor with other amounts for
    each pod: a LimitRange or a RuntimeClass may add something else by now.
    """
    if not has_same_levels(part, piece):
        return False
    same = dict(part.flavors) == dict(piece.flavors) and _has_same_usage_per_pod(part, piece)
    return same or not part.flavors


def _has_same_usage_per_pod(part: PodSetAssignment, piece: PodSetAssignment) -> bool:
    """Whether a pod of either is charged the same; usage in odd sums is of pods of both kinds."""
    if not part.count or not piece.count:
        return True
    return all(
        -(-part.usage.get(resource, 0) // part.count)
        == -(-piece.usage.get(resource, 0) // piece.count)
        for resource in {*part.usage, *piece.usage}
    )


def has_same_levels(part: PodSetAssignment, piece: PodSetAssignment) -> bool:
    """Whether places of a slice and of its PodSet are of the same levels.

    A flavor may have got a topology, or a Topology other levels, while the job ran.
    """
    if part.topology is None or piece.topology is None:
        return part.topology is piece.topology or not part.count
    return part.topology.levels == piece.topology.levels


def merge_slice(part: PodSetAssignment, piece: PodSetAssignment) -> PodSetAssignment:
    """A PodSet's assignment together with that of a slice; `can_merge` holds.

    Domains keep their order, which is that of the ranks: pods in new domains get the next ranks.
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
        part: as held.
        count: pods that are left, at most as many as before.
        live: pods that are there to stay, by domain.

    Returns:
        Usage in proportion, and places taken from where no pods are first, see
        `scale_down_topology`.
    """
    # Pods of one template cost the same; should the sum be odd, it is never too little.
    usage = {name: -(-amount * count // part.count) for name, amount in part.usage.items()}
    topology = None
    if part.topology is not None:
        topology = scale_down_topology(part.topology, part.count - count, live)
    return replace(part, usage=usage, count=count, topology=topology)


def scale_down_topology(
    assignment: TopologyAssignment, fewer: int, live: Mapping[Domain, int]
) -> TopologyAssignment | None:
    """An assignment for fewer pods; None when no pod is left.

    Places go in this order: of domains without pods, of what others have beyond their pods, and
    then with pods; from the last domain to the first each time, so that the lowest ranks stay.

    Args:
        assignment: as held.
        fewer: pods to take away.
        live: pods that are there to stay, by domain.
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
