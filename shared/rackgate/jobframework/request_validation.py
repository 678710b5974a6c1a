"""A Workload's `topologyRequest`: what it alone shows to be wrong, for webhook and engine alike.

The API server's schema refuses most of this already. The engine asks again, since Workloads are
also written by hand, by older versions, and while every webhook replica is down (P5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rackgate.jobframework.errors import FieldError
from rackgate.jobframework.topology_request import (
    MAX_CONSTRAINTS,
    layer_errors,
    level_key_errors,
    size_errors,
)

# As the schema of the API says it.
ONE_REQUEST: Final = "at most one of required, preferred and unconstrained may be set"
SLICE_PAIR: Final = "podSetSliceRequiredTopology and podSetSliceSize need each other"
SLICE_FORMS: Final = (
    "podsetSliceRequiredTopologyConstraints cannot be used with podSetSliceRequiredTopology"
    " and podSetSliceSize"
)
LAYERS: Final = "podsetSliceRequiredTopologyConstraints"
KINDS: Final = ("required", "preferred", "unconstrained")

Request = Mapping[str, Any]


def request_errors(request: Request, path: str, *, count: int | None) -> list[FieldError]:
    """Everything wrong with a `topologyRequest` but `exclusive_errors`, in a fixed order.

    Args:
        request: in camelCase; null and empty fields count as absent.
        path: its path in the manifest, `spec.podSets[0].topologyRequest`.
        count: pods of the PodSet, None when not known; slices must divide it.
    """
    if not request:
        return []
    return [
        *_level_errors(request, path),
        *_pair_errors(request, path),
        *_slice_errors(request, path, count),
        *_layer_errors(request, path, count),
    ]


def exclusive_errors(request: Request, path: str, *, both_levels: bool = False) -> list[FieldError]:
    """Refuse more than one kind of placement; with `both_levels` two levels count as one."""
    kinds = [field for field in KINDS if request.get(field)]
    if len(kinds) < 2 or (both_levels and "unconstrained" not in kinds):
        return []
    return [FieldError(path, ONE_REQUEST)]


def _level_errors(request: Request, path: str) -> list[FieldError]:
    fields = ("required", "preferred", "podSetSliceRequiredTopology")
    return [
        error
        for field in fields
        if request.get(field) is not None
        for error in level_key_errors(str(request[field]), f"{path}.{field}")
    ]


def _pair_errors(request: Request, path: str) -> list[FieldError]:
    level, size = request.get("podSetSliceRequiredTopology"), request.get("podSetSliceSize")
    errors = []
    if (level is None) != (size is None):
        errors.append(FieldError(f"{path}.podSetSliceSize", SLICE_PAIR))
    if request.get(LAYERS) and (level is not None or size is not None):
        errors.append(FieldError(f"{path}.{LAYERS}", SLICE_FORMS))
    return errors


def _slice_errors(request: Request, path: str, count: int | None) -> list[FieldError]:
    size = request.get("podSetSliceSize")
    return [] if size is None else size_errors(size, f"{path}.podSetSliceSize", count)


def _layer_errors(request: Request, path: str, count: int | None) -> list[FieldError]:
    layers = _layer_objects(request.get(LAYERS))
    where = f"{path}.{LAYERS}"
    if len(layers) > MAX_CONSTRAINTS:
        problem = f"{len(layers)} layers, at most {MAX_CONSTRAINTS} can be asked for"
        return [FieldError(where, problem, "keep the outermost layers that matter")]
    errors = []
    for index, layer in enumerate(layers):
        level, size = str(layer.get("topology", "")), layer.get("size")
        errors += level_key_errors(level, f"{where}[{index}].topology")
        errors += size_errors(size, f"{where}[{index}].size", None if index else count)
    return errors + layer_errors(layers, where)


def _layer_objects(found: object) -> list[Request]:
    if not isinstance(found, (list, tuple)):
        return []
    return [layer for layer in found if isinstance(layer, Mapping)]
