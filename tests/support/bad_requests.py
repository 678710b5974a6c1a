"""Topology requests that make no sense, each with the field a refusal must name.

Written as in a Workload's `topologyRequest`; webhook and engine are shown the same table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.support.objects import HOST, RACK

LAYERS = "podsetSliceRequiredTopologyConstraints"


class BadRequest(NamedTuple):
    """A request of a PodSet of 8 pods, and where its fault is.

    Attributes:
        field: path below `spec.podSets[0].topologyRequest`, with its dot; "" for the whole.
    """

    request: dict[str, Any]
    field: str


def layers(*pairs: tuple[str, int]) -> dict[str, Any]:
    """Slice layers from (level, size)."""
    return {LAYERS: [{"topology": level, "size": size} for level, size in pairs]}


def sliced(level: str | None, size: int | None) -> dict[str, Any]:
    """Slices of one layer; None leaves a field out."""
    pair = {"podSetSliceRequiredTopology": level, "podSetSliceSize": size}
    return {field: value for field, value in pair.items() if value is not None}


BAD_REQUESTS = {
    "required and preferred": BadRequest({"required": RACK, "preferred": RACK}, ""),
    "required and unconstrained": BadRequest({"required": RACK, "unconstrained": True}, ""),
    "preferred and unconstrained": BadRequest({"preferred": RACK, "unconstrained": True}, ""),
    "all three": BadRequest({"required": RACK, "preferred": RACK, "unconstrained": True}, ""),
    "required is no label key": BadRequest({"required": "a//b"}, ".required"),
    "required is empty": BadRequest({"required": ""}, ".required"),
    "required is too long": BadRequest({"required": "a" * 64}, ".required"),
    "preferred is no label key": BadRequest({"preferred": "-rack"}, ".preferred"),
    "slice level is no label key": BadRequest(sliced("ra ck", 2), ".podSetSliceRequiredTopology"),
    "slice level without size": BadRequest(sliced(RACK, None), ".podSetSliceSize"),
    "slice size without level": BadRequest(sliced(None, 2), ".podSetSliceSize"),
    "slice size 0": BadRequest(sliced(RACK, 0), ".podSetSliceSize"),
    "negative slice size": BadRequest(sliced(RACK, -2), ".podSetSliceSize"),
    "huge slice size": BadRequest(sliced(RACK, 2**31 - 1), ".podSetSliceSize"),
    "slice size that does not divide": BadRequest(sliced(RACK, 3), ".podSetSliceSize"),
    "slice size above the count": BadRequest(sliced(RACK, 16), ".podSetSliceSize"),
    "layers and slices": BadRequest({**layers((RACK, 4)), **sliced(RACK, 4)}, f".{LAYERS}"),
    "layers and a size": BadRequest({**layers((RACK, 4)), **sliced(None, 4)}, f".{LAYERS}"),
    "four layers": BadRequest(
        layers(("a", 8), ("b", 4), ("c", 2), ("d", 1)),
        f".{LAYERS}",
    ),
    "layer level is no label key": BadRequest(layers(("a//b", 4)), f".{LAYERS}[0].topology"),
    "layer size 0": BadRequest(layers((RACK, 0)), f".{LAYERS}[0].size"),
    "outer layer does not divide": BadRequest(layers((RACK, 3)), f".{LAYERS}[0].size"),
    "inner layer does not divide": BadRequest(
        layers((RACK, 4), (HOST, 3)),
        f".{LAYERS}[1].size",
    ),
    "inner layer is larger": BadRequest(layers((RACK, 2), (HOST, 4)), f".{LAYERS}[1].size"),
    "layer twice": BadRequest(layers((RACK, 4), (RACK, 2)), f".{LAYERS}[1].topology"),
    "inner layer negative": BadRequest(layers((RACK, 4), (HOST, -1)), f".{LAYERS}[1].size"),
}
GOOD_REQUESTS = {
    "required": {"required": RACK},
    "preferred": {"preferred": RACK},
    "unconstrained": {"unconstrained": True},
    "not unconstrained": {"required": RACK, "unconstrained": False},
    "slices": sliced(RACK, 4),
    "slices in a required level": {"required": RACK, **sliced(HOST, 2)},
    "one layer": layers((RACK, 4)),
    "two layers": layers((RACK, 4), (HOST, 2)),
    "layers of one size": layers((RACK, 4), (HOST, 4)),
    "a group": {"required": RACK, "podSetGroupName": "g"},
    "ranks alone": {"podIndexLabel": "example.com/index"},
}
