"""Templates of eqGroups: a pod template, or one of its short forms.

Short forms: `resources` alone or beside `spec`, and the fields of the pod's spec without `spec`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from rackgate.gang.levels import Object
from rackgate.jobframework.errors import FieldError, shown
from rackgate.resources.pod_defaults import apply_pod_defaults
from rackgate.resources.quantity import QuantityError, exact_milli
from rackgate.wire import core

_BESIDE_SPEC: Final = ("metadata", "resources", "spec")
_CONTAINERS: Final = ("containers", "initContainers")


def canonical_template(template: Object, name: str) -> dict[str, Any]:
    """The pod template that a template stands for.

    Args:
        template: without errors, see `template_errors`.
        name: of the container that `resources` without a container becomes.
    """
    rest = dict(template)
    resources = rest.pop("resources", None)
    whole = {"metadata": rest.pop("metadata")} if "metadata" in rest else {}
    spec = dict(rest.get("spec", rest))
    if resources is not None:
        containers = spec.get("containers") or [{"name": name}]
        index = _without_resources(containers)
        given = {**containers[index], "resources": resources}
        spec["containers"] = [*containers[:index], given, *containers[index + 1 :]]
    return {**whole, "spec": spec} if spec or "spec" in rest else whole


def _without_resources(containers: list[dict[str, Any]]) -> int:
    """Index of the first container without resources; their number if all have some."""
    bare = (index for index, one in enumerate(containers) if not one.get("resources"))
    return next(bare, len(containers))


def template_errors(template: Object, path: str) -> list[FieldError]:
    """What is wrong with the form of a template and with its quantities."""
    if "spec" in template:
        beside = [field for field in template if field not in _BESIDE_SPEC]
        if beside:
            wanted = "move it into spec, or leave out spec"
            return [FieldError(f"{path}.{field}", "stands beside spec", wanted) for field in beside]
        inner = f"{path}.spec"
    else:
        inner = path
    spec = template.get("spec", {k: v for k, v in template.items() if k not in _BESIDE_SPEC})
    for field, found in (("spec", spec), ("resources", template.get("resources", {}))):
        if not isinstance(found, Mapping):
            return [FieldError(f"{path}.{field}", f"{shown(found)} is not an object")]
    try:
        msgspec.convert(spec, core.PodSpec)
        msgspec.convert(template.get("resources", {}), core.Resources)
    except msgspec.ValidationError as error:
        help_text = "use a pod template, its resources or its spec"
        return [FieldError(path, f"is not a pod template: {error}", help_text)]
    containers = spec.get("containers") or []
    if "resources" in template and containers and _without_resources(containers) >= len(containers):
        wanted = "name the resources in one place"
        problem = "no container takes it: all have resources of their own"
        return [FieldError(f"{path}.resources", problem, wanted)]
    return [*_quantity_errors({"resources": template.get("resources")}, path, spec, inner)]


def _quantity_errors(template: Object, path: str, spec: Object, inner: str) -> Iterator[FieldError]:
    holders = [(template, path), (spec, inner)]
    holders += [
        (container, f"{inner}.{kind}[{index}]")
        for kind in _CONTAINERS
        for index, container in enumerate(spec.get(kind) or ())
    ]
    for holder, where in holders:
        for kind in ("requests", "limits"):
            amounts = (holder.get("resources") or {}).get(kind) or {}
            yield from _bad_quantities(amounts, f"{where}.resources.{kind}")
    yield from _bad_quantities(spec.get("overhead") or {}, f"{inner}.overhead")
    for index, volume in enumerate(spec.get("volumes") or ()):
        folder = volume.get("emptyDir") if isinstance(volume, Mapping) else None
        limit = folder.get("sizeLimit") if isinstance(folder, Mapping) else None
        if limit is not None:
            yield from _bad_quantity(limit, f"{inner}.volumes[{index}].emptyDir.sizeLimit")


def _bad_quantities(amounts: Object, path: str) -> Iterator[FieldError]:
    for resource, amount in amounts.items():
        yield from _bad_quantity(amount, f"{path}[{resource}]")


def _bad_quantity(amount: Any, path: str) -> Iterator[FieldError]:
    try:
        found = exact_milli(amount)
    except QuantityError as error:
        problem, _, wanted = str(error).partition(": ")
        yield FieldError(path, problem, wanted)
        return
    if found < 0:
        yield FieldError(path, f"{shown(amount)} is negative", "use 0 or more")


def requests_of(template: Object) -> Mapping[str, int]:
    """What one pod of a canonical template requests, with the API server's defaults."""
    spec = msgspec.convert(template.get("spec", {}), core.PodSpec)
    return apply_pod_defaults(spec, None, None).requests
