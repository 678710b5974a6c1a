"""Topology requests that no flavor offered can ever meet (VAL-02, VAL-03, VAL-04)."""

from __future__ import annotations

from collections.abc import Sequence

from rackgate_assigner.core.flavors import Offer
from rackgate_assigner.core.model import PodSetRequest
from rackgate_assigner.core.queues import FlavorRow


def _offered(offer: Offer, podset: PodSetRequest) -> list[FlavorRow]:
    """Flavors with a known topology among which the PodSet's resources could choose."""
    wanted = set(podset.requests) | {"pods"}
    groups = [group for group in offer.queue.groups if wanted.intersection(group.covered)]
    names = dict.fromkeys(name for group in groups or offer.queue.groups for name in group.flavors)
    flavors = [offer.flavors[name] for name in names if name in offer.flavors]
    return [flavor for flavor in flavors if flavor.levels]


def unknown_levels(offer: Offer, podsets: Sequence[PodSetRequest]) -> list[str]:
    """Field errors for required and preferred levels that no offered topology has.

    A level that one of the flavors has is no error: the others are skipped. A PodSet that is
    offered no flavor with a topology waits instead: its queue may still get one.
    """
    errors = []
    for index, podset in enumerate(podsets):
        asked = podset.topology
        level = (asked.required or asked.preferred) if asked else None
        flavors = _offered(offer, podset)
        if asked is None or level is None or not flavors:
            continue
        if any(level in flavor.levels for flavor in flavors):
            continue
        field = "required" if asked.required else "preferred"
        there = dict.fromkeys(
            f'topology "{flavor.topology}" (levels: {", ".join(flavor.levels)})'
            for flavor in flavors
        )
        errors.append(
            f'spec.podSets[{index}].topologyRequest.{field}: level "{level}" is not in '
            + " nor in ".join(there)
        )
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
