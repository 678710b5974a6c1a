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
class LimitRangeSummary:
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


def summarize_limit_ranges(ranges: Iterable[core.LimitRange]) -> LimitRangeSummary:
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
                _raise_to_maximum(requests, item.default_request)
                _raise_to_maximum(limits, item.default)
            if item.type in (CONTAINER, POD) and (
                item.min or item.max or item.max_limit_request_ratio
            ):
                constraints.append((found.metadata.name, item))
    return LimitRangeSummary(requests, limits, tuple(constraints))


@dataclass(frozen=True, slots=True)
class DefaultedPod:
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
class _Requirements:
    """Requests and limits of a container, or of the pod, while they are filled in."""

    path: str
    requests: dict[str, Quantity]
    limits: dict[str, Quantity]
    name: str = ""
    sidecar: bool = False

    def use_limits_as_requests(self) -> None:
        """A limit stands in for a request that is missing."""
        self.requests = self.limits | self.requests

    def apply_defaults(self, limits: LimitRangeSummary) -> None:
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


def apply_pod_defaults(
    spec: core.PodSpec, limits: LimitRangeSummary | None, runtime_class: core.RuntimeClass | None
) -> DefaultedPod:
    """The pod that the API server creates from a template.

    Args:
        spec: of the template, not changed.
        limits: of its namespace; None where that has no LimitRange.
        runtime_class: that of `spec.runtimeClassName`; None where it names none, or one that
            does not exist.

    Raises:
        QuantityError: a quantity of the template cannot be read.
    """
    containers = [
        _requirements_of(f".containers[{index}]", one, sidecar=False)
        for index, one in enumerate(spec.containers)
    ]
    init_containers = [
        _requirements_of(f".initContainers[{index}]", one, sidecar=one.restart_policy == "Always")
        for index, one in enumerate(spec.init_containers)
    ]
    all_requirements = [*containers, *init_containers]
    for requirements in all_requirements:
        requirements.use_limits_as_requests()
    pod = _Requirements(".resources", dict(spec.resources.requests), dict(spec.resources.limits))
    pod_level = bool(pod.requests or pod.limits)
    if pod_level:
        _pod_level_defaults(pod, containers, init_containers)
    if limits is not None:
        for requirements in all_requirements:
            requirements.apply_defaults(limits)
    overhead, problems = _resolve_overhead(spec, runtime_class)
    selector, tolerations = _resolve_scheduling(spec, runtime_class, problems)
    created = core.PodSpec(
        containers=tuple(requirements.container() for requirements in containers),
        init_containers=tuple(requirements.container() for requirements in init_containers),
        resources=core.Resources(requests=pod.requests, limits=pod.limits),
        overhead=overhead,
    )
    requests = pod_requests(created)
    for requirements in all_requirements:
        problems += _requirement_problems(requirements)
    if pod_level:
        problems += _requirement_problems(pod)
        problems += _pod_level_problems(pod, containers, init_containers)
    if limits is not None and limits.constraints:
        problems += _limit_range_problems(
            limits, all_requirements, _pod_totals(pod, containers, init_containers)
        )
    return DefaultedPod(requests, tuple(problems), selector, tolerations)


def _requirements_of(path: str, container: core.Container, *, sidecar: bool) -> _Requirements:
    own = container.resources
    return _Requirements(path, dict(own.requests), dict(own.limits), container.name, sidecar)


def _raise_to_maximum(total: dict[str, Quantity], more: Quantities) -> None:
    for resource, value in more.items():
        if resource not in total or exact_milli(value) > exact_milli(total[resource]):
            total[resource] = value


def _is_pod_level(resource: str) -> bool:
    return resource in _POD_LEVEL or resource.startswith(_HUGEPAGES)


def _may_overcommit(resource: str) -> bool:
    """Whether a request may be lower than its limit: not of extended resources and huge pages."""
    native = "/" not in resource or "kubernetes.io/" in resource
    return native and not resource.startswith(_HUGEPAGES)


def _format_milli(milli: int) -> str:
    pod_level, rest = divmod(milli, 1000)
    return f"{milli}m" if rest else str(pod_level)


# Pod-level resources.


def _aggregate(
    containers: Sequence[Mapping[str, int]],
    init_containers: Sequence[tuple[Mapping[str, int], bool]],
) -> dict[str, int]:
    """Max of the running phase and every init phase; sidecars stay from their start on."""
    total: dict[str, int] = {}
    for one in containers:
        _add(total, one)
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for one, sidecar in init_containers:
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


def _aggregate_requests(
    containers: Sequence[_Requirements], init_containers: Sequence[_Requirements]
) -> dict[str, int]:
    """Requests of all containers, in thousandths."""
    return _aggregate(
        [_milli(requirements.requests) for requirements in containers],
        [(_milli(requirements.requests), requirements.sidecar) for requirements in init_containers],
    )


def _aggregate_limits(
    containers: Sequence[_Requirements], init_containers: Sequence[_Requirements]
) -> dict[str, int]:
    """Limits of all containers, in thousandths."""
    return _aggregate(
        [_milli(requirements.limits) for requirements in containers],
        [(_milli(requirements.limits), requirements.sidecar) for requirements in init_containers],
    )


def _pod_level_defaults(
    pod: _Requirements,
    containers: Sequence[_Requirements],
    init_containers: Sequence[_Requirements],
) -> None:
    """`defaultHugePagePodLimits`, then `defaultPodRequests`."""
    for resource, value in _aggregate_limits(containers, init_containers).items():
        if resource.startswith(_HUGEPAGES) and resource not in pod.requests:
            pod.limits.setdefault(resource, _format_milli(value))
    if not pod.limits:
        return
    for resource, value in _aggregate_requests(containers, init_containers).items():
        if _is_pod_level(resource) and _may_overcommit(resource):
            pod.requests.setdefault(resource, _format_milli(value))
    for resource, limit in pod.limits.items():
        if _is_pod_level(resource):
            pod.requests.setdefault(resource, limit)


# RuntimeClass.


def _resolve_overhead(
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


def _resolve_scheduling(
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


def _requirement_problems(requirements: _Requirements) -> Iterator[PodProblem]:
    """Requests that do not go with the limits, as `validateResourceRequirements` says."""
    for resource, request in sorted(requirements.requests.items()):
        limit, text = requirements.limits.get(resource), ""
        if limit is None:
            continue
        if exact_milli(request) != exact_milli(limit) and not _may_overcommit(resource):
            text = f"request {request} must be equal to {resource} limit of {limit}"
        elif exact_milli(request) > exact_milli(limit):
            text = f"request {request} must be less than or equal to {resource} limit of {limit}"
        if text:
            yield PodProblem(INVALID, requirements.path, text)


def _pod_level_problems(
    pod: _Requirements,
    containers: Sequence[_Requirements],
    init_containers: Sequence[_Requirements],
) -> Iterator[PodProblem]:
    """Containers that do not fit their pod, as `validatePodResourceConsistency` says."""
    for resource, value in sorted(_aggregate_requests(containers, init_containers).items()):
        pod_level = pod.requests.get(resource)
        if pod_level is not None and value > exact_milli(pod_level):
            text = (
                f"{resource} request {pod_level} must be greater than or equal to aggregate "
                "container "
                f"requests of {_format_milli(value)}"
            )
            yield PodProblem(INVALID, pod.path, text)
    for resource, value in sorted(_aggregate_limits(containers, init_containers).items()):
        pod_level = pod.limits.get(resource)
        if (
            resource.startswith(_HUGEPAGES)
            and pod_level is not None
            and value > exact_milli(pod_level)
        ):
            text = (
                f"{resource} limit {pod_level} must be greater than or equal to aggregate "
                "container "
                f"limits of {_format_milli(value)}"
            )
            yield PodProblem(INVALID, pod.path, text)
    for requirements in containers:
        for resource, limit in sorted(requirements.limits.items()):
            pod_level = pod.limits.get(resource)
            if pod_level is not None and exact_milli(limit) > exact_milli(pod_level):
                text = (
                    f"{resource} limit {limit} must be less than or equal to pod limits of "
                    f"{pod_level}"
                )
                yield PodProblem(INVALID, requirements.path, text)


def _pod_totals(
    pod: _Requirements,
    containers: Sequence[_Requirements],
    init_containers: Sequence[_Requirements],
) -> _Requirements:
    """What LimitRanger holds against limits of type Pod: pod-level cpu and memory come first."""

    def with_pod_level(total: Mapping[str, int], own: Quantities) -> dict[str, Quantity]:
        found: dict[str, Quantity] = {name: _format_milli(value) for name, value in total.items()}
        return found | {name: value for name, value in own.items() if name in _POD_LEVEL}

    return _Requirements(
        "",
        with_pod_level(_aggregate_requests(containers, init_containers), pod.requests),
        with_pod_level(_aggregate_limits(containers, init_containers), pod.limits),
    )


def _limit_range_problems(
    limits: LimitRangeSummary, all_requirements: Sequence[_Requirements], pod_level: _Requirements
) -> Iterator[PodProblem]:
    """What LimitRanger refuses."""
    for name, item in limits.constraints:
        for requirements in all_requirements if item.type == CONTAINER else (pod_level,):
            for text in _violations(item, requirements):
                yield PodProblem(OUTSIDE_LIMITS, requirements.path, f'{text} (LimitRange "{name}")')


def _violations(item: core.LimitRangeItem, requirements: _Requirements) -> Iterator[str]:
    for resource, bound in sorted(item.min.items()):
        yield from _minimum_problems(
            f"minimum {resource} usage per {item.type} is {bound}", bound, requirements, resource
        )
    for resource, bound in sorted(item.max.items()):
        yield from _maximum_problems(
            f"maximum {resource} usage per {item.type} is {bound}", bound, requirements, resource
        )
    for resource, bound in sorted(item.max_limit_request_ratio.items()):
        constraint = f"{resource} max limit to request ratio per {item.type} is {bound}"
        yield from _ratio_problems(constraint, bound, requirements, resource)


def _minimum_problems(
    constraint: str, bound: Quantity, requirements: _Requirements, resource: str
) -> Iterator[str]:
    request, limit = requirements.requests.get(resource), requirements.limits.get(resource)
    if request is None:
        yield f"{constraint}, but no request is specified"
    elif exact_milli(request) < exact_milli(bound):
        yield f"{constraint}, but request is {request}"
    elif limit is not None and exact_milli(limit) < exact_milli(bound):
        yield f"{constraint}, but limit is {limit}"


def _maximum_problems(
    constraint: str, bound: Quantity, requirements: _Requirements, resource: str
) -> Iterator[str]:
    request, limit = requirements.requests.get(resource), requirements.limits.get(resource)
    if limit is None:
        yield f"{constraint}, but no limit is specified"
    elif exact_milli(limit) > exact_milli(bound):
        yield f"{constraint}, but limit is {limit}"
    elif request is not None and exact_milli(request) > exact_milli(bound):
        yield f"{constraint}, but request is {request}"


def _ratio_problems(
    constraint: str, bound: Quantity, requirements: _Requirements, resource: str
) -> Iterator[str]:
    request = exact_milli(requirements.requests.get(resource, 0))
    limit = exact_milli(requirements.limits.get(resource, 0))
    if not request:
        yield f"{constraint}, but no request is specified or request is 0"
    elif not limit:
        yield f"{constraint}, but no limit is specified or limit is 0"
    elif limit * 1000 > exact_milli(bound) * request:
        yield f"{constraint}, but provided ratio is {limit / request:f}"
