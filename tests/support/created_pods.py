"""Draws pod templates, LimitRanges and RuntimeClasses, and sums what an API server answered.

The sum is written anew, in fractions and without a default of any kind: what an API server
answers has all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import ceil
from random import Random
from typing import Any

from tests.support.objects import Object

# Quantities in rising order, by resource.
SIZES: Mapping[str, Sequence[str]] = {
    "cpu": ("50m", "100m", "0.25", "500m", "1", "1500m", "2", "3"),
    "memory": ("32Mi", "64Mi", "100M", "128Mi", "1G", "1Gi", "2Gi", "3Gi"),
    "ephemeral-storage": ("1Mi", "10Mi", "64Mi", "128Mi", "1Gi", "2Gi", "3Gi", "4Gi"),
}
HUGE = ("hugepages-2Mi", ("2Mi", "4Mi", "8Mi"))
DEVICE = ("example.com/device", ("1", "2"))
_UNITS = {"m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(1000)} | {
    unit: Fraction(base**power)
    for base, units in ((1000, ("M", "G")), (1024, ("Ki", "Mi", "Gi")))
    for power, unit in enumerate(units, 2 if base == 1000 else 1)
}


def _resources(rng: Random, often: float, *, limits: float = 0.5) -> Object:
    """Requests within limits; either may be missing, for each resource."""
    requests: Object = {}
    upper: Object = {}
    for resource, sizes in SIZES.items():
        if rng.random() > often:
            continue
        low, high = sorted(rng.choices(range(len(sizes)), k=2))
        which = rng.random()
        if which > limits:
            requests[resource] = sizes[low]
        else:
            upper[resource] = sizes[high]
            if which < limits / 2:
                requests[resource] = sizes[low]
    return {"requests": requests, "limits": upper}


def _container(rng: Random, name: str) -> Object:
    found = _resources(rng, 0.5)
    for (resource, sizes), often in ((HUGE, 0.15), (DEVICE, 0.2)):
        if rng.random() < often and ("cpu" in found["limits"] or resource == DEVICE[0]):
            found["limits"][resource] = rng.choice(sizes)
            if rng.random() < 0.5:
                found["requests"][resource] = found["limits"][resource]
    kept = {key: value for key, value in found.items() if value}
    return {"name": name, "image": "registry.example/train:1", "resources": kept}


def template(rng: Random, classes: Sequence[str]) -> Object:
    """A pod's spec, as a Job's template has it."""
    spec: Object = {
        "restartPolicy": "Never",
        "containers": [_container(rng, f"c{index}") for index in range(rng.choice((1, 1, 2, 3)))],
    }
    starting = [_container(rng, f"i{index}") for index in range(rng.choice((0, 0, 1, 2, 3)))]
    for one in starting:
        if rng.random() < 0.5:
            one["restartPolicy"] = "Always"
    if starting:
        spec["initContainers"] = starting
    if rng.random() < 0.35:
        whole = _resources(rng, 0.8, limits=0.7)
        for part in whole.values():
            part.pop("ephemeral-storage", None)
        if "cpu" in whole["limits"] and rng.random() < 0.2:
            whole["limits"][HUGE[0]] = "64Mi"
        spec["resources"] = {key: value for key, value in whole.items() if value}
    if classes and rng.random() < 0.4:
        spec["runtimeClassName"] = rng.choice(classes)
    if rng.random() < 0.2:
        spec["nodeSelector"] = {"zone": rng.choice("ab")}
    return spec


def limit_range(rng: Random, name: str, resources: Sequence[str]) -> Object:
    """A LimitRange with an item for containers, one for pods, or both."""
    items = []
    kinds = rng.choice((("Container",), ("Container",), ("Pod",), ("Container", "Pod")))
    for kind in kinds:
        item: Object = {"type": kind}
        for resource in resources:
            sizes = SIZES[resource]
            low, request, default, high = sorted(rng.choices(range(len(sizes)), k=4))
            if kind == "Container" and rng.random() < 0.7:
                item.setdefault("defaultRequest", {})[resource] = sizes[request]
            if kind == "Container" and rng.random() < 0.6:
                item.setdefault("default", {})[resource] = sizes[default]
            if rng.random() < 0.3:
                item.setdefault("min", {})[resource] = sizes[min(low, 2)]
            if rng.random() < 0.3:
                item.setdefault("max", {})[resource] = sizes[max(high, 5)]
            if rng.random() < 0.15:
                item.setdefault("maxLimitRequestRatio", {})[resource] = rng.choice(("2", "4", "8"))
        if len(item) > 1:
            items.append(item)
    fallback = {"type": "Container", "defaultRequest": {resources[0]: SIZES[resources[0]][1]}}
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": name},
        "spec": {"limits": items or [fallback]},
    }


def runtime_class(
    name: str, overhead: Mapping[str, str] | None = None, **scheduling: Any
) -> Object:
    """A RuntimeClass."""
    found: Object = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": "kata",
    }
    if overhead is not None:
        found["overhead"] = {"podFixed": dict(overhead)}
    if scheduling:
        found["scheduling"] = scheduling
    return found


def _number(text: str) -> Fraction:
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text)
    assert match is not None, text
    return Fraction(match[1]) * _UNITS[match[2]]


def _added(parts: Iterable[Mapping[str, Fraction]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for part in parts:
        for resource, value in part.items():
            total[resource] = total.get(resource, Fraction(0)) + value
    return total


def _requests(resources: Mapping[str, Any]) -> dict[str, Fraction]:
    return {name: _number(value) for name, value in resources.get("requests", {}).items()}


def answered_sum(spec: Mapping[str, Any]) -> dict[str, int]:
    """What a pod that was created takes of a node: millicores, else base units."""
    running = [_requests(one["resources"]) for one in spec["containers"]]
    sidecars: list[dict[str, Fraction]] = []
    phases: list[dict[str, Fraction]] = []
    for one in spec.get("initContainers", ()):
        if one.get("restartPolicy") == "Always":
            sidecars.append(_requests(one["resources"]))
            phases.append(_added(sidecars))
        else:
            phases.append(_added([*sidecars, _requests(one["resources"])]))
    phases.append(_added([*running, *sidecars]))
    names = {resource for phase in phases for resource in phase}
    total = {name: max(phase.get(name, Fraction(0)) for phase in phases) for name in names}
    total |= _requests(spec.get("resources", {}))
    overhead = {name: _number(value) for name, value in spec.get("overhead", {}).items()}
    total = _added([total, overhead])
    return {
        name: ceil(value * 1000) if name == "cpu" else ceil(value) for name, value in total.items()
    }
