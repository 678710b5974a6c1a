"""Small trees and requests for the engine's tests, written as paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rackgate.features import Features
from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.model import (
    NodeInfo,
    Placement,
    PodSetRequest,
    SliceLayer,
    TopologyRequest,
)
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.topology.tree import TopologyTree

BLOCK, RACK, HOST = "block", "rack", "kubernetes.io/hostname"
LEVELS = (BLOCK, RACK, HOST)


def node(path: str, *, levels: tuple[str, ...] = LEVELS, name: str = "", **facts: Any) -> NodeInfo:
    """A node at `block/rack/host`, named like its host unless said otherwise."""
    values = path.split("/")
    labels = {**dict(zip(levels, values, strict=True)), **facts.pop("labels", {})}
    offers = {"cpu": 4, "pods": 110, **facts.pop("offers", {})}
    return NodeInfo(name or values[-1], labels, offers, **facts)


def capacity(
    rooms: Mapping[str, int], *, levels: tuple[str, ...] = LEVELS, **facts: Any
) -> Capacity:
    """One node per path with that many cpu."""
    nodes = [
        node(path, levels=levels, name=path, offers={"cpu": cpu}, **facts)
        for path, cpu in rooms.items()
    ]
    return Capacity(TopologyTree.build(levels, nodes))


def podset(
    count: int,
    *,
    cpu: int = 1,
    name: str = "main",
    slices: Mapping[str, int] | None = None,
    required: str | None = None,
    preferred: str | None = None,
    unconstrained: bool = False,
    **rest: Any,
) -> PodSetRequest:
    """A PodSet; without any topology argument nothing is asked."""
    layers = tuple(SliceLayer(level, size) for level, size in (slices or {}).items())
    asked = bool(layers or required or preferred or unconstrained)
    return PodSetRequest(
        name,
        count,
        {"cpu": cpu},
        TopologyRequest(required, preferred, unconstrained, layers) if asked else None,
        **rest,
    )


def ask(
    room: Capacity,
    *podsets: PodSetRequest,
    gates: Mapping[str, bool] | None = None,
    **options: Any,
) -> Placement:
    """Place on the capacity's tree, for topology `t`."""
    features = Features.of(gates)
    return place(room.tree, room, podsets, topology_name="t", features=features, **options)


def spots(placement: Placement, name: str = "main") -> dict[str, int]:
    """Pods per last value, in the assignment's order."""
    return {values[-1]: count for values, count in placement.assignments[name].domains}


def refusal(placement: Placement) -> str:
    """The refusal's text; fails when everything was placed."""
    assert placement.failure is not None
    return placement.failure.message
