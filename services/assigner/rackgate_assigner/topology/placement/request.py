"""Read a topology request against the levels of a tree.

The order of the checks decides which problem is reported first (conformance/tas, section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rackgate_assigner.topology.model import PodSetRequest, SliceLayer, TopologyRequest

# The API has int32; larger sizes never fit either.
SIZE_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A request read against the levels of a tree.

    Attributes:
        count: pods (workers) to place.
        size: pods per (outer) podset slice; 1 without slices.
        level: index of the requested level.
        slice_level: index of the level a slice must stay within.
        units: per level, pods that stay together there because of inner layers; 1 elsewhere.
        layers: slice layers as requested, outermost first.
        required: one domain of the requested level, or nothing.
        unconstrained: nothing is requested, or only slices, or `unconstrained: true`.
        least_free: domains with the least free capacity first, instead of best fit.
        required_level: with gate RackgateRequiredAndPreferred, the level of which one domain must
            fit everything while `level` is preferred; else None.
        need: slices to place (pods without slices).
    """

    count: int
    size: int
    level: int
    slice_level: int
    units: tuple[int, ...]
    layers: tuple[SliceLayer, ...]
    required: bool
    unconstrained: bool
    least_free: bool
    required_level: int | None = None
    need: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "need", self.count // self.size)


class RequestError(ValueError):
    """No capacity would be enough for this request on these levels; see the text."""


def read_placement_request(
    levels: Sequence[str],
    podset: PodSetRequest,
    count: int,
    layers: Sequence[SliceLayer],
    *,
    mixed_profile: bool,
    both_levels: bool = False,
) -> PlacementRequest:
    """Read a PodSet's request, with `count` and `layers` instead of its own.

    Args:
        levels: of the tree, coarsest first.
        podset: the workers.
        count: pods to place.
        layers: slice layers, outermost first.
        mixed_profile: least free for unconstrained requests, best fit for the others.
        both_levels: a preferred level counts together with a required one; else it is ignored.

    Raises:
        RequestError: the request does not make sense on these levels.
    """
    topology_request = podset.topology
    layers = [SliceLayer(layer.topology, min(layer.size, SIZE_LIMIT)) for layer in layers]
    size = layers[0].size if layers else 1
    if size <= 0:
        raise RequestError("slice topology requested, but slice size not provided")
    requested = topology_request or TopologyRequest(unconstrained=True)
    required_level = None
    if both_levels and requested.required is not None and requested.preferred is not None:
        required_level = _required_level(levels, requested.required, requested.preferred)
        requested = replace(requested, required=None)
    slices_only = bool(layers) and requested.required is None and requested.preferred is None
    unconstrained = requested.unconstrained or slices_only
    level = _requested_level(
        levels, requested, slices_only=slices_only, unconstrained=unconstrained
    )
    slice_level = _slice_level(levels, layers, level)
    units = _inner_units(levels, layers, slice_level)
    return PlacementRequest(
        count=count,
        size=size,
        level=level,
        slice_level=slice_level,
        units=units,
        layers=tuple(layers),
        required=requested.required is not None,
        unconstrained=unconstrained,
        least_free=unconstrained and mixed_profile,
        required_level=required_level,
    )


def _required_level(levels: Sequence[str], required: str, preferred: str) -> int:
    """Index of the required level, which the preferred one must not be above."""
    for named in (required, preferred):
        if named not in levels:
            raise RequestError(f"no requested topology level: {named}")
    if levels.index(preferred) < levels.index(required):
        raise RequestError(
            f"preferred topology level {preferred} is above the required topology level {required}"
        )
    return levels.index(required)


def _requested_level(
    levels: Sequence[str], requested: TopologyRequest, *, slices_only: bool, unconstrained: bool
) -> int:
    named = requested.required if requested.required is not None else requested.preferred
    if named is None:
        if slices_only:
            return 0
        if unconstrained:
            return len(levels) - 1
        raise RequestError("topology level not specified")
    if named not in levels:
        raise RequestError(f"no requested topology level: {named}")
    return levels.index(named)


def _slice_level(levels: Sequence[str], layers: Sequence[SliceLayer], level: int) -> int:
    if not layers:
        return len(levels) - 1
    named = layers[0].topology
    if named not in levels:
        raise RequestError(f"no requested topology level for slices: {named}")
    index = levels.index(named)
    if index < level:
        raise RequestError(
            f"podset slice topology {named} is above the podset topology {levels[level]}"
        )
    return index


def _inner_units(
    levels: Sequence[str], layers: Sequence[SliceLayer], slice_level: int
) -> tuple[int, ...]:
    units = [1] * len(levels)
    above = slice_level
    for parent, layer in pairwise(layers):
        if layer.topology not in levels:
            raise RequestError(
                f"no requested topology level for additional slice layer: {layer.topology}"
            )
        index = levels.index(layer.topology)
        if index <= above:
            raise RequestError(
                f"additional slice layer topology {layer.topology} "
                f"must be at a lower level than {parent.topology}"
            )
        if layer.size <= 0 or parent.size % layer.size:
            raise RequestError(
                f"additional slice layer size {layer.size} "
                f"must evenly divide parent layer size {parent.size}"
            )
        units[above + 1 : index + 1] = [layer.size] * (index - above)
        above = index
    return tuple(units)
