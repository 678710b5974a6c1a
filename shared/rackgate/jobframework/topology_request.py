"""Topology requests: as annotations of a pod template, and as `topologyRequest` of a PodSet.

Users write annotations; `topology_request` converts them to the field of a Workload. Both
forms are validated here, for webhook and scheduler. The API server's schema already rejects most
of the same errors. The scheduler validates again, because Workloads are also created by hand, by
older versions, and while every webhook replica is down (P5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from rackgate.api.names import (
    MAX_LEVEL_KEY,
    PODSET_GROUP,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    SLICE_CONSTRAINTS,
    SLICE_REQUIRED_TOPOLOGY,
    SLICE_SIZE,
    UNCONSTRAINED_TOPOLOGY,
)
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.templates import Template, annotations_of

# Of a topologyRequest: which labels have the ranks of pods.
RANK_FIELDS: Final = ("podIndexLabel", "subGroupIndexLabel", "subGroupCount")
MAX_SIZE: Final = 2**31 - 1
MAX_CONSTRAINTS: Final = 3
MAX_REQUESTED_KEY: Final = 63  # longest level key a Workload can carry
LEVEL_HELP: Final = "use the nodeLabel of a level of the topology, as in its spec.levels"

# As in the schema of the API.
ONE_REQUEST: Final = "at most one of required, preferred and unconstrained may be set"
SLICE_PAIR: Final = "podSetSliceRequiredTopology and podSetSliceSize need each other"
SLICE_FORMS: Final = (
    "podsetSliceRequiredTopologyConstraints cannot be used with podSetSliceRequiredTopology"
    " and podSetSliceSize"
)
LAYERS: Final = "podsetSliceRequiredTopologyConstraints"
PLACEMENTS: Final = ("required", "preferred", "unconstrained")

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_DIGITS: Final = re.compile(r"\A[0-9]{1,10}\Z")
_LABEL_NAME: Final = re.compile(r"\A([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)\Z")
_SUBDOMAIN: Final = re.compile(
    r"\A[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z"
)

Annotations = Mapping[str, Any]
Request = Mapping[str, Any]


def is_label_key(key: str) -> bool:
    """Whether `key` is a node label key: an optional DNS prefix and `/`, then a label name."""
    if not key or len(key) > MAX_LEVEL_KEY:
        return False
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _SUBDOMAIN.match(prefix)):
        return False
    return len(name) <= 63 and _LABEL_NAME.match(name) is not None


def requests_topology(template: Template) -> bool:
    """Whether an annotation of the template requests topology."""
    annotations = annotations_of(template)
    wanted = (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, SLICE_REQUIRED_TOPOLOGY, SLICE_CONSTRAINTS)
    if any(key in annotations for key in wanted):
        return True
    return str(annotations.get(UNCONSTRAINED_TOPOLOGY, "false")) not in _FALSE


def topology_request(
    template: Template, *, index_label: str | None = None
) -> dict[str, Any] | None:
    """The `topologyRequest` of a PodSet, in camelCase, as its annotations say.

    Values are copied unchanged; values that cannot be parsed (a size that is not a number) are
    omitted. `topology_errors` reports them.

    Args:
        template: the pod template.
        index_label: label that carries a pod's rank, None when pods have none.

    Returns:
        None for a template without requests.
    """
    if not requests_topology(template):
        return None
    annotations = annotations_of(template)
    request: dict[str, Any] = {}
    for key, field in _FIELD_BY_ANNOTATION:
        if key in annotations:
            request[field] = str(annotations[key])
    if str(annotations.get(UNCONSTRAINED_TOPOLOGY, "false")) not in _FALSE:
        request["unconstrained"] = True
    size = _parse_size(annotations.get(SLICE_SIZE))
    if size is not None and SLICE_REQUIRED_TOPOLOGY in annotations:
        request["podSetSliceSize"] = size
    constraints = _parse_constraints(annotations.get(SLICE_CONSTRAINTS))
    if constraints:
        request["podsetSliceRequiredTopologyConstraints"] = constraints
    if index_label is not None:
        request["podIndexLabel"] = index_label
    return request


_FIELD_BY_ANNOTATION: Final = (
    (REQUIRED_TOPOLOGY, "required"),
    (PREFERRED_TOPOLOGY, "preferred"),
    (SLICE_REQUIRED_TOPOLOGY, "podSetSliceRequiredTopology"),
    (PODSET_GROUP, "podSetGroupName"),
)


def topology_errors(
    template: Template, path: str, *, count: int | None = None, both_levels: bool = False
) -> list[FieldError]:
    """Errors that are visible in the template's topology annotations alone.

    Args:
        template: the pod template.
        path: its path in the manifest, `spec.template` for a Job.
        count: pods of the PodSet, None when not known; slices must divide it.
        both_levels: a required and a preferred level may be requested together.

    Returns:
        Field errors in a fixed order; none for a template without requests.
    """
    annotations = annotations_of(template, path)
    annotations_path = f"{path}.metadata.annotations" if path else "metadata.annotations"
    errors = _exclusive_errors(annotations, annotations_path, both_levels=both_levels)
    return [*errors, *_annotation_errors(annotations, annotations_path, count)]


def _exclusive_errors(
    annotations: Annotations, annotations_path: str, *, both_levels: bool
) -> list[FieldError]:
    exclusive = (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, UNCONSTRAINED_TOPOLOGY)
    found = [key for key in exclusive if key in annotations]
    if len(found) < 2 or (both_levels and UNCONSTRAINED_TOPOLOGY not in found):
        return []
    names = ", ".join(f"{key}={shown(annotations[key])}" for key in found)
    return [
        FieldError(annotations_path, f"more than one topology request: {names}", "keep one of them")
    ]


def _annotation_errors(
    annotations: Annotations, path: str, count: int | None
) -> Iterator[FieldError]:
    """Errors of single annotations and pairs of them, in a fixed order."""
    for key in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, SLICE_REQUIRED_TOPOLOGY):
        if key in annotations:
            yield from level_key_errors(str(annotations[key]), f"{path}[{key}]")
    value = annotations.get(UNCONSTRAINED_TOPOLOGY)
    if value is not None and str(value) not in _TRUE | _FALSE:
        problem = f"{shown(value)} is not a boolean"
        yield FieldError(f"{path}[{UNCONSTRAINED_TOPOLOGY}]", problem, 'write "true"')
    level, size = SLICE_REQUIRED_TOPOLOGY, SLICE_SIZE
    for key, other, problem in (
        (level, size, "slices are requested without their size"),
        (size, level, "a slice size is set without the level of the slices"),
    ):
        if key in annotations and other not in annotations:
            yield FieldError(f"{path}[{key}]", problem, f"add {other}")
    if size in annotations:
        yield from size_errors(annotations[size], f"{path}[{size}]", count)
    if SLICE_CONSTRAINTS in annotations:
        yield from _constraint_errors(annotations, f"{path}[{SLICE_CONSTRAINTS}]", count)
    if PODSET_GROUP in annotations:
        yield from _group_errors(annotations, f"{path}[{PODSET_GROUP}]")


def level_key_errors(key: str, path: str) -> list[FieldError]:
    """Reject a value that is not a node label key, or is longer than a request allows."""
    if not is_label_key(key):
        return [FieldError(path, f"{shown(key)} is not a node label key", LEVEL_HELP)]
    if len(key) > MAX_REQUESTED_KEY:
        problem = f"{shown(key)} has {len(key)} characters, a request allows {MAX_REQUESTED_KEY}"
        return [FieldError(path, problem, "use a shorter level key in the topology")]
    return []


def size_errors(value: object, path: str, count: int | None) -> list[FieldError]:
    """Reject a value that is not a slice size, or does not divide the podset's `count`."""
    size = _parse_size(value)
    if size is None:
        problem = f"{shown(value)} is not a whole number of pods"
        return [FieldError(path, problem, f"use 1 to {MAX_SIZE}")]
    return _divisibility_errors(size, count, path)


def _divisibility_errors(size: int, count: int | None, path: str) -> list[FieldError]:
    if count is None or count % size == 0:
        return []
    problem = f"slices of {size} pods do not divide the podset's {count} pods"
    return [FieldError(path, problem, "use a size that divides the count")]


def _constraint_errors(
    annotations: Annotations, path: str, count: int | None
) -> Iterator[FieldError]:
    found = [
        key for key in (SLICE_REQUIRED_TOPOLOGY, SLICE_SIZE, PODSET_GROUP) if key in annotations
    ]
    if found:
        problem = f"cannot be combined with {', '.join(found)}"
        yield FieldError(path, problem, "keep one way to request slices")
    layers = _parse_constraints(annotations[SLICE_CONSTRAINTS])
    if layers is None or not 1 <= len(layers) <= MAX_CONSTRAINTS:
        problem = f"{shown(annotations[SLICE_CONSTRAINTS])} is not a list of 1 to 3 layers"
        yield FieldError(path, problem, 'write [{"topology": "<level>", "size": <pods>}, ...]')
        return
    for index, layer in enumerate(layers):
        yield from level_key_errors(layer["topology"], f"{path}[{index}].topology")
    yield from layer_errors(layers, path)
    yield from _divisibility_errors(layers[0]["size"], count, f"{path}[0].size")


def layer_errors(layers: Sequence[Mapping[str, Any]], path: str) -> list[FieldError]:
    """Reject slice layers that are not within the layers above them.

    Args:
        layers: coarsest first, each with `topology` and `size`; invalid sizes are skipped.
        path: of the list.
    """
    errors = []
    for index, (above, layer) in enumerate(pairwise(layers), start=1):
        outer, size = _parse_size(above.get("size")), _parse_size(layer.get("size"))
        if outer and size and outer % size:
            problem = f"size {size} does not divide size {outer} of the layer above"
            errors.append(FieldError(f"{path}[{index}].size", problem, "use a divisor"))
        if layer.get("topology") in [other.get("topology") for other in layers[:index]]:
            problem = f"level {shown(layer.get('topology'))} appears twice"
            errors.append(FieldError(f"{path}[{index}].topology", problem, "use a finer level"))
    return errors


def _group_errors(annotations: Annotations, path: str) -> Iterator[FieldError]:
    name = str(annotations[PODSET_GROUP])
    if not name or len(name) > 256 or name.isdigit():
        problem = f"{shown(name)} is not a group name"
        yield FieldError(path, problem, "use 1 to 256 characters, not a number")
    if REQUIRED_TOPOLOGY not in annotations and PREFERRED_TOPOLOGY not in annotations:
        problem = "a podset group needs a required or preferred topology"
        yield FieldError(path, problem, f"add {REQUIRED_TOPOLOGY}")


def _parse_size(value: object) -> int | None:
    """A slice size of 1 to 2^31-1, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    if isinstance(value, str):
        if not _DIGITS.match(value):
            return None
        value = int(value)
    return value if 1 <= value <= MAX_SIZE else None


def _parse_constraints(value: object) -> list[dict[str, Any]] | None:
    """The layers of a constraints annotation, None when it cannot be read."""
    if not isinstance(value, str) or len(value) > 4096:
        return None
    try:
        layers = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(layers, list):
        return None
    read = []
    for layer in layers:
        if not isinstance(layer, dict) or set(layer) != {"topology", "size"}:
            return None
        size = _parse_size(layer["size"]) if not isinstance(layer["size"], str) else None
        if size is None or not isinstance(layer["topology"], str):
            return None
        read.append({"topology": layer["topology"], "size": size})
    return read


# The `topologyRequest` of a Workload.


def request_errors(request: Request, path: str, *, count: int | None) -> list[FieldError]:
    """Errors of a `topologyRequest` other than `exclusive_errors`, in a fixed order.

    Args:
        request: in camelCase; null and empty fields count as absent.
        path: its path in the manifest, `spec.podSets[0].topologyRequest`.
        count: pods of the PodSet, None when not known; slices must divide it.
    """
    return list(_request_errors(request, path, count))


def exclusive_errors(request: Request, path: str, *, both_levels: bool = False) -> list[FieldError]:
    """Reject more than one kind of placement; with `both_levels` two levels count as one."""
    kinds = [field for field in PLACEMENTS if request.get(field)]
    if len(kinds) < 2 or (both_levels and "unconstrained" not in kinds):
        return []
    return [FieldError(path, ONE_REQUEST)]


def _request_errors(request: Request, path: str, count: int | None) -> Iterator[FieldError]:
    for field in ("required", "preferred", "podSetSliceRequiredTopology"):
        if request.get(field) is not None:
            yield from level_key_errors(str(request[field]), f"{path}.{field}")
    level, size = request.get("podSetSliceRequiredTopology"), request.get("podSetSliceSize")
    where, found = f"{path}.{LAYERS}", request.get(LAYERS)
    if (level is None) != (size is None):
        yield FieldError(f"{path}.podSetSliceSize", SLICE_PAIR)
    if found and (level is not None or size is not None):
        yield FieldError(where, SLICE_FORMS)
    if size is not None:
        yield from size_errors(size, f"{path}.podSetSliceSize", count)
    listed = found if isinstance(found, (list, tuple)) else ()
    layers = [layer for layer in listed if isinstance(layer, Mapping)]
    if len(layers) > MAX_CONSTRAINTS:
        problem = f"{len(layers)} layers, at most {MAX_CONSTRAINTS} can be requested"
        yield FieldError(where, problem, "keep the outermost layers that matter")
        return
    for index, layer in enumerate(layers):
        yield from level_key_errors(str(layer.get("topology", "")), f"{where}[{index}].topology")
        inner_count = None if index else count
        yield from size_errors(layer.get("size"), f"{where}[{index}].size", inner_count)
    yield from layer_errors(layers, where)
