"""The placement oracle's reading of requests, nodes and amounts; see `placement_oracle`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rackgate_assigner.core.model import NodeFacts, PodSetRequest, TopologyRequest

NO_LIMIT = 2**31 - 1
Amounts = dict[str, int]
# Toleration operator to whether it covers a taint's value (first) with its own (second).
COVERS: dict[str, Callable[[str, str], bool]] = {
    "Exists": lambda _taint, _own: True,
    "": lambda taint, own: taint == own,
    "Equal": lambda taint, own: taint == own,
    "Gt": lambda taint, own: taint.isdigit() and own.isdigit() and int(taint) > int(own),
    "Lt": lambda taint, own: taint.isdigit() and own.isdigit() and int(taint) < int(own),
}


class RefusedError(Exception):
    """The unit finds no place; the text says why."""


@dataclass
class Ask:
    count: int
    size: int
    level: int
    slice_level: int
    units: list[int]
    layers: Sequence[Any]
    required: bool
    unconstrained: bool
    best_fit: bool
    leaders: int
    tightest: Counter[str] = field(default_factory=Counter)

    @property
    def need(self) -> int:
        return self.count // self.size


def pod(requests: Any) -> Amounts:
    return {**requests, "pods": requests.get("pods", 0) + 1}


def fit(request: Amounts, free: Counter[str]) -> tuple[int, str]:
    """How many, and the resource that limits it."""
    return min(
        (NO_LIMIT if amount == 0 else max(0, free[name] // amount), name)
        for name, amount in request.items()
    )


def read(levels: list[str], workers: PodSetRequest, leader: PodSetRequest | None) -> Ask:
    request = workers.topology
    asked = request if request is not None else TopologyRequest(unconstrained=True)
    layers = asked.slices
    size = layers[0].size if layers else 1
    if size <= 0:
        raise RefusedError("slice topology requested, but slice size not provided")
    named = asked.required or asked.preferred
    slices_only = bool(layers) and not named
    unconstrained = asked.unconstrained or slices_only
    if named is None:
        if not unconstrained:
            raise RefusedError("topology level not specified")
        named = levels[0] if slices_only else levels[-1]
    if named not in levels:
        raise RefusedError(f"no requested topology level: {named}")
    slice_name = layers[0].topology if layers else levels[-1]
    if slice_name not in levels:
        raise RefusedError(f"no requested topology level for slices: {slice_name}")
    level, slice_level = levels.index(named), levels.index(slice_name)
    if slice_level < level:
        raise RefusedError(
            f"podset slice topology {slice_name} is above the podset topology {named}"
        )
    return Ask(
        workers.count,
        size,
        level,
        slice_level,
        read_layers(levels, layers),
        layers,
        asked.required is not None,
        unconstrained,
        not unconstrained,
        int(leader is not None),
    )


def read_layers(levels: list[str], layers: Sequence[Any]) -> list[int]:
    units = [1] * len(levels)
    for number in range(1, len(layers)):
        parent, layer = layers[number - 1], layers[number]
        if layer.topology not in levels:
            raise RefusedError(
                f"no requested topology level for additional slice layer: {layer.topology}"
            )
        above, level = levels.index(parent.topology), levels.index(layer.topology)
        if level <= above:
            raise RefusedError(
                f"additional slice layer topology {layer.topology} "
                f"must be at a lower level than {parent.topology}"
            )
        if parent.size % layer.size:
            raise RefusedError(
                f"additional slice layer size {layer.size} "
                f"must evenly divide parent layer size {parent.size}"
            )
        for between in range(above + 1, level + 1):
            units[between] = layer.size
    return units


def excluded(node: NodeFacts, workers: PodSetRequest, flavor: tuple[Any, ...]) -> str | None:
    """Taints and node selector; affinity is left to other tests."""
    for taint in node.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(
            t.effect in ("", taint.effect)
            and t.key in ("", taint.key)
            and COVERS[t.operator](taint.value, t.value)
            for t in (*workers.tolerations, *flavor)
        ):
            value = f"={taint.value}" if taint.value else ""
            return f'taint "{taint.key}{value}:{taint.effect}"'
    if any(node.labels.get(key) != value for key, value in workers.node_selector.items()):
        return "nodeSelector"
    return None
