"""A pod as the API server creates it from a template: what it requests, or why it is refused.

Steps, in the order of the API server (Kubernetes 1.36):

1. Defaults of a Pod (`SetDefaults_Pod`): limits stand in for missing requests of containers; then
   pod-level limits of huge pages and pod-level requests (gate PodLevelResources).
2. LimitRanger: defaults of the namespace's LimitRanges, for containers and init containers, each
   where a limit or a request is still missing.
3. RuntimeClass: overhead, node selector and tolerations.
4. Validation of the result: requests within limits, pod-level resources around the containers',
   and the constraints of every LimitRange.

The sum is `resources.pod_requests` of the result. Templates stay as they are.

Source: pkg/apis/core/v1/defaults.go, plugin/pkg/admission/limitranger, plugin/pkg/admission/
runtimeclass and pkg/apis/core/validation of k8s.io/kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rackgate.resources.pod_requests import pod_requests
from rackgate.resources.quantity import exact_milli
from rackgate.wire import core

Quantity: TypeAlias = str | int | float
Quantities: TypeAlias = Mapping[str, Quantity]

CONTAINER: Final = "Container"
POD: Final = "Pod"
# The words of Kueue for Workloads whose pods the API server would refuse.
OUTSIDE_LIMITS: Final = "resources didn't satisfy LimitRange constraints"
INVALID: Final = "resources validation failed"
_HUGEPAGES: Final = "hugepages-"
_POD_LEVEL: Final = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class PodProblem:
    """Why the API server would refuse a pod.

    Attributes:
        kind: `OUTSIDE_LIMITS`, `INVALID`, or "" where the text says it all.
        path: below the pod's spec, such as `.containers[0]`.
    """

    kind: str
    path: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The LimitRanges of one namespace, merged.

    Where several of them have different defaults for a resource, the API server takes one in no
    fixed order: then the largest is counted, so that no pod takes more than it is charged.

    Attributes:
        requests: default requests of containers.
        limits: default limits of containers.
        constraints: name of the LimitRange and its item, of those that limit anything.
    """

    requests: Quantities
    limits: Quantities
    constraints: tuple[tuple[str, core.LimitRangeItem], ...]


def limits_of(ranges: Iterable[core.LimitRange]) -> Limits:
    """The LimitRanges of one namespace as one.

    Raises:
        QuantityError: a default cannot be read.
    """
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}
    constraints = []
    for found in sorted(ranges, key=lambda one: one.metadata.name):
        for item in found.spec.limits:
            if item.type == CONTAINER:
                _raise_to(requests, item.default_request)
                _raise_to(limits, item.default)
            if item.type in (CONTAINER, POD) and (
                item.min or item.max or item.max_limit_request_ratio
            ):
                constraints.append((found.metadata.name, item))
    return Limits(requests, limits, tuple(constraints))


@dataclass(frozen=True, slots=True)
class Created:
    """A pod as it is created.

    Attributes:
        requests: as `pod_requests`.
        problems: why it is refused; empty when it is created.
        node_selector: with that of the RuntimeClass.
        tolerations: with those of the RuntimeClass.
    """

    requests: Mapping[str, int]
    problems: tuple[PodProblem, ...]
    node_selector: Mapping[str, str]
    tolerations: tuple[core.Toleration, ...]


@dataclass(slots=True)
class _Box:
    """Requests and limits of a container, or of the pod, while they are filled in."""

    path: str
    requests: dict[str, Quantity]
    limits: dict[str, Quantity]
    name: str = ""
    sidecar: bool = False

    def limits_as_requests(self) -> None:
        """A limit stands in for a request that is missing."""
        self.requests = self.limits | self.requests

    def defaulted(self, limits: Limits) -> None:
        """What is still missing comes from the LimitRanges."""
        self.limits = {**limits.limits, **self.limits}
        self.requests = {**limits.requests, **self.requests}

    def container(self) -> core.Container:
        """As `pod_requests` takes it."""
        return core.Container(
            name=self.name,
            resources=core.Resources(requests=self.requests, limits=self.limits),
            restart_policy="Always" if self.sidecar else None,
        )


def as_created(
    spec: core.PodSpec, limits: Limits | None, runtime_class: core.RuntimeClass | None
) -> Created:
    """The pod that the API server creates from a template.

    Args:
        spec: of the template, not changed.
        limits: of its namespace; None where that has no LimitRange.
        runtime_class: that of `spec.runtimeClassName`; None where it names none, or one that
            does not exist.

    Raises:
        QuantityError: a quantity of the template cannot be read.
    """
    running = [
        _box(f".containers[{index}]", one, sidecar=False)
        for index, one in enumerate(spec.containers)
    ]
    starting = [
        _box(f".initContainers[{index}]", one, sidecar=one.restart_policy == "Always")
        for index, one in enumerate(spec.init_containers)
    ]
    boxes = [*running, *starting]
    for box in boxes:
        box.limits_as_requests()
    pod = _Box(".resources", dict(spec.resources.requests), dict(spec.resources.limits))
    whole = bool(pod.requests or pod.limits)
    if whole:
        _pod_level_defaults(pod, running, starting)
    if limits is not None:
        for box in boxes:
            box.defaulted(limits)
    overhead, problems = _overhead(spec, runtime_class)
    selector, tolerations = _scheduling(spec, runtime_class, problems)
    created = core.PodSpec(
        containers=tuple(box.container() for box in running),
        init_containers=tuple(box.container() for box in starting),
        resources=core.Resources(requests=pod.requests, limits=pod.limits),
        overhead=overhead,
    )
    requests = pod_requests(created)
    for box in boxes:
        problems += _invalid(box)
    if whole:
        problems += _invalid(pod)
        problems += _inconsistent(pod, running, starting)
    if limits is not None and limits.constraints:
        problems += _outside(limits, boxes, _sums(pod, running, starting))
    return Created(requests, tuple(problems), selector, tolerations)


def _box(path: str, container: core.Container, *, sidecar: bool) -> _Box:
    own = container.resources
    return _Box(path, dict(own.requests), dict(own.limits), container.name, sidecar)


def _raise_to(total: dict[str, Quantity], more: Quantities) -> None:
    for resource, value in more.items():
        if resource not in total or exact_milli(value) > exact_milli(total[resource]):
            total[resource] = value


def _is_pod_level(resource: str) -> bool:
    return resource in _POD_LEVEL or resource.startswith(_HUGEPAGES)


def _overcommits(resource: str) -> bool:
    """Whether a request may be lower than its limit: not of extended resources and huge pages."""
    native = "/" not in resource or "kubernetes.io/" in resource
    return native and not resource.startswith(_HUGEPAGES)


def _text(milli: int) -> str:
    whole, rest = divmod(milli, 1000)
    return f"{milli}m" if rest else str(whole)


# Pod-level resources.


def _sum(
    running: Sequence[Mapping[str, int]], starting: Sequence[tuple[Mapping[str, int], bool]]
) -> dict[str, int]:
    """Max of the running phase and every init phase; sidecars stay from their start on."""
    total: dict[str, int] = {}
    for one in running:
        _add(total, one)
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for one, sidecar in starting:
        if sidecar:
            _add(total, one)
            _add(sidecars, one)
            phase = dict(sidecars)
        else:
            phase = dict(one)
            _add(phase, sidecars)
        for resource, value in phase.items():
            peak[resource] = max(peak.get(resource, value), value)
    for resource, value in peak.items():
        total[resource] = max(total.get(resource, value), value)
    return total


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for resource, value in more.items():
        total[resource] = total.get(resource, 0) + value


def _milli(quantities: Quantities) -> dict[str, int]:
    return {resource: exact_milli(value) for resource, value in quantities.items()}


def _requested(running: Sequence[_Box], starting: Sequence[_Box]) -> dict[str, int]:
    """Requests of all containers, in thousandths."""
    return _sum(
        [_milli(box.requests) for box in running],
        [(_milli(box.requests), box.sidecar) for box in starting],
    )


def _limited(running: Sequence[_Box], starting: Sequence[_Box]) -> dict[str, int]:
    """Limits of all containers, in thousandths."""
    return _sum(
        [_milli(box.limits) for box in running],
        [(_milli(box.limits), box.sidecar) for box in starting],
    )


def _pod_level_defaults(pod: _Box, running: Sequence[_Box], starting: Sequence[_Box]) -> None:
    """`defaultHugePagePodLimits`, then `defaultPodRequests`."""
    for resource, value in _limited(running, starting).items():
        if resource.startswith(_HUGEPAGES) and resource not in pod.requests:
            pod.limits.setdefault(resource, _text(value))
    if not pod.limits:
        return
    for resource, value in _requested(running, starting).items():
        if _is_pod_level(resource) and _overcommits(resource):
            pod.requests.setdefault(resource, _text(value))
    for resource, limit in pod.limits.items():
        if _is_pod_level(resource):
            pod.requests.setdefault(resource, limit)


# RuntimeClass.


def _overhead(
    spec: core.PodSpec, runtime_class: core.RuntimeClass | None
) -> tuple[dict[str, Quantity], list[PodProblem]]:
    """The overhead of the pod, and why its own is refused."""
    name = spec.runtime_class_name
    if name and runtime_class is None:
        text = f'RuntimeClass "{name}" not found: no pod is created before it exists'
        return spec.overhead, [PodProblem("", ".runtimeClassName", text)]
    fixed = runtime_class.overhead if runtime_class is not None else None
    if fixed is None:
        if not spec.overhead:
            return {}, []
        text = "Pod Overhead set without corresponding RuntimeClass defined Overhead"
        return spec.overhead, [PodProblem("", ".overhead", text)]
    if spec.overhead and _milli(spec.overhead) != _milli(fixed.pod_fixed):
        text = f"Pod's Overhead doesn't match the Overhead of RuntimeClass \"{name}\""
        return fixed.pod_fixed, [PodProblem("", ".overhead", text)]
    return fixed.pod_fixed, []


def _scheduling(
    spec: core.PodSpec, runtime_class: core.RuntimeClass | None, problems: list[PodProblem]
) -> tuple[Mapping[str, str], tuple[core.Toleration, ...]]:
    """Node selector and tolerations, with those of the RuntimeClass."""
    found = runtime_class.scheduling if runtime_class is not None else None
    if found is None:
        return spec.node_selector, spec.tolerations
    for key, value in found.node_selector.items():
        own = spec.node_selector.get(key, value)
        if own != value:
            text = (
                f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; "
                f"pod.spec.nodeSelector[{key}] = {own}"
            )
            problems.append(PodProblem("", ".nodeSelector", text))
    more = tuple(one for one in found.tolerations if one not in spec.tolerations)
    return {**spec.node_selector, **found.node_selector}, (*spec.tolerations, *more)


# Validation.


def _invalid(box: _Box) -> Iterator[PodProblem]:
    """Requests that do not go with the limits, as `validateResourceRequirements` says."""
    for resource, request in sorted(box.requests.items()):
        limit, text = box.limits.get(resource), ""
        if limit is None:
            continue
        if exact_milli(request) != exact_milli(limit) and not _overcommits(resource):
            text = f"request {request} must be equal to {resource} limit of {limit}"
        elif exact_milli(request) > exact_milli(limit):
            text = f"request {request} must be less than or equal to {resource} limit of {limit}"
        if text:
            yield PodProblem(INVALID, box.path, text)


def _inconsistent(
    pod: _Box, running: Sequence[_Box], starting: Sequence[_Box]
) -> Iterator[PodProblem]:
    """Containers that do not fit their pod, as `validatePodResourceConsistency` says."""
    for resource, value in sorted(_requested(running, starting).items()):
        whole = pod.requests.get(resource)
        if whole is not None and value > exact_milli(whole):
            text = (
                f"{resource} request {whole} must be greater than or equal to aggregate container "
                f"requests of {_text(value)}"
            )
            yield PodProblem(INVALID, pod.path, text)
    for resource, value in sorted(_limited(running, starting).items()):
        whole = pod.limits.get(resource)
        if resource.startswith(_HUGEPAGES) and whole is not None and value > exact_milli(whole):
            text = (
                f"{resource} limit {whole} must be greater than or equal to aggregate container "
                f"limits of {_text(value)}"
            )
            yield PodProblem(INVALID, pod.path, text)
    for box in running:
        for resource, limit in sorted(box.limits.items()):
            whole = pod.limits.get(resource)
            if whole is not None and exact_milli(limit) > exact_milli(whole):
                text = (
                    f"{resource} limit {limit} must be less than or equal to pod limits of {whole}"
                )
                yield PodProblem(INVALID, box.path, text)


def _sums(pod: _Box, running: Sequence[_Box], starting: Sequence[_Box]) -> _Box:
    """What LimitRanger holds against limits of type Pod: pod-level cpu and memory come first."""

    def told(total: Mapping[str, int], own: Quantities) -> dict[str, Quantity]:
        found: dict[str, Quantity] = {name: _text(value) for name, value in total.items()}
        return found | {name: value for name, value in own.items() if name in _POD_LEVEL}

    return _Box(
        "",
        told(_requested(running, starting), pod.requests),
        told(_limited(running, starting), pod.limits),
    )


def _outside(limits: Limits, boxes: Sequence[_Box], whole: _Box) -> Iterator[PodProblem]:
    """What LimitRanger refuses."""
    for name, item in limits.constraints:
        for box in boxes if item.type == CONTAINER else (whole,):
            for text in _violations(item, box):
                yield PodProblem(OUTSIDE_LIMITS, box.path, f'{text} (LimitRange "{name}")')


def _violations(item: core.LimitRangeItem, box: _Box) -> Iterator[str]:
    for resource, bound in sorted(item.min.items()):
        yield from _below(
            f"minimum {resource} usage per {item.type} is {bound}", bound, box, resource
        )
    for resource, bound in sorted(item.max.items()):
        yield from _above(
            f"maximum {resource} usage per {item.type} is {bound}", bound, box, resource
        )
    for resource, bound in sorted(item.max_limit_request_ratio.items()):
        about = f"{resource} max limit to request ratio per {item.type} is {bound}"
        yield from _ratio(about, bound, box, resource)


def _below(about: str, bound: Quantity, box: _Box, resource: str) -> Iterator[str]:
    request, limit = box.requests.get(resource), box.limits.get(resource)
    if request is None:
        yield f"{about}, but no request is specified"
    elif exact_milli(request) < exact_milli(bound):
        yield f"{about}, but request is {request}"
    elif limit is not None and exact_milli(limit) < exact_milli(bound):
        yield f"{about}, but limit is {limit}"


def _above(about: str, bound: Quantity, box: _Box, resource: str) -> Iterator[str]:
    request, limit = box.requests.get(resource), box.limits.get(resource)
    if limit is None:
        yield f"{about}, but no limit is specified"
    elif exact_milli(limit) > exact_milli(bound):
        yield f"{about}, but limit is {limit}"
    elif request is not None and exact_milli(request) > exact_milli(bound):
        yield f"{about}, but request is {request}"


def _ratio(about: str, bound: Quantity, box: _Box, resource: str) -> Iterator[str]:
    request = exact_milli(box.requests.get(resource, 0))
    limit = exact_milli(box.limits.get(resource, 0))
    if not request:
        yield f"{about}, but no request is specified or request is 0"
    elif not limit:
        yield f"{about}, but no limit is specified or limit is 0"
    elif limit * 1000 > exact_milli(bound) * request:
        yield f"{about}, but provided ratio is {limit / request:f}"
