"""Topology requests that no offered flavor can ever satisfy (VAL-02, VAL-03, VAL-04)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rackgate.jobframework.topology_request import ONE_REQUEST
from rackgate_assigner.quota.queues import FlavorInfo
from rackgate_assigner.scheduler.nomination.offer import Offer
from rackgate_assigner.topology.model import PodSetRequest, TopologyRequest


def _offered(offer: Offer, podset: PodSetRequest) -> list[FlavorInfo]:
    """Flavors with a known topology that the PodSet's resources could use."""
    wanted = set(podset.requests) | {"pods"}
    groups = [group for group in offer.queue.groups if wanted.intersection(group.covered)]
    names = dict.fromkeys(name for group in groups or offer.queue.groups for name in group.flavors)
    flavors = [offer.flavors[name] for name in names if name in offer.flavors]
    return [flavor for flavor in flavors if flavor.levels]


def _asked_levels(asked: TopologyRequest, path: str) -> Iterator[tuple[str, str]]:
    """Field path and level of everything that a request names."""
    if asked.required:
        yield f"{path}.required", asked.required
    if asked.preferred:
        yield f"{path}.preferred", asked.preferred
    for index, layer in enumerate(asked.slices):
        field = ".podSetSliceRequiredTopology"
        if asked.layered:
            field = f".podsetSliceRequiredTopologyConstraints[{index}].topology"
        yield f"{path}{field}", layer.topology


def unknown_levels(offer: Offer, podsets: Sequence[PodSetRequest]) -> list[str]:
    """Field errors for levels that no offered topology has, those of slices included.

    A level that one of the flavors has is no error: the others are skipped. A PodSet that is
    offered no flavor with a topology is pending instead: its queue may still get one.
    """
    errors = []
    for index, podset in enumerate(podsets):
        flavors = _offered(offer, podset)
        if podset.topology is None or not flavors:
            continue
        path = f"spec.podSets[{index}].topologyRequest"
        for field, level in _asked_levels(podset.topology, path):
            if any(level in flavor.levels for flavor in flavors):
                continue
            there = dict.fromkeys(
                f'topology "{flavor.topology}" (levels: {", ".join(flavor.levels)})'
                for flavor in flavors
            )
            errors.append(f'{field}: level "{level}" is not in {" nor in ".join(there)}')
    return errors


def misordered_levels(offer: Offer, podsets: Sequence[PodSetRequest]) -> list[str]:
    """Field errors for preferred levels above the required one in every offered topology."""
    errors = []
    for index, podset in enumerate(podsets):
        asked = podset.topology
        if asked is None or not asked.required or not asked.preferred:
            continue
        pair = {asked.required, asked.preferred}
        flavors = [one for one in _offered(offer, podset) if pair.issubset(one.levels)]
        orders = [tuple(filter(pair.__contains__, flavor.levels)) for flavor in flavors]
        if flavors and all(found == (asked.preferred, asked.required) for found in orders):
            there = dict.fromkeys(
                f'topology "{flavor.topology}" (levels: {", ".join(flavor.levels)})'
                for flavor in flavors
            )
            errors.append(
                f'spec.podSets[{index}].topologyRequest.preferred: level "{asked.preferred}" is '
                f'above the required level "{asked.required}" in {" and in ".join(there)}'
            )
    return errors


def conflicting_requests(
    podsets: Sequence[PodSetRequest], *, both_levels: bool = False
) -> list[str]:
    """Field errors for PodSets that request more than one of the three kinds of placement.

    With `both_levels` a required and a preferred level count as one.
    """
    errors = []
    for index, podset in enumerate(podsets):
        asked = podset.topology
        levels = (asked.required, asked.preferred) if asked else ()
        named = sum(map(bool, levels))
        if (asked and asked.unconstrained and named) or (named > 1 and not both_levels):
            errors.append(f"spec.podSets[{index}].topologyRequest: {ONE_REQUEST}")
    return errors


def missing_requests(podsets: Sequence[PodSetRequest]) -> list[str]:
    """Field errors for PodSets that name no level although another one does (VAL-04)."""

    def names_level(podset: PodSetRequest) -> bool:
        asked = podset.topology
        return asked is not None and bool(asked.required or asked.preferred)

    first = next((i for i, podset in enumerate(podsets) if names_level(podset)), None)
    if first is None:
        return []
    return [
        f"spec.podSets[{index}].topologyRequest: a required or preferred level is missing, "
        f"while spec.podSets[{first}] names one"
        for index, podset in enumerate(podsets)
        if not names_level(podset)
    ]
