"""A pod as the API server creates it from a template: its requests, or why it is rejected.

Steps, in the order of the API server (Kubernetes 1.36):

1. Defaults of a Pod (`SetDefaults_Pod`): limits stand in for missing requests of containers; then
   pod-level limits of huge pages and pod-level requests (gate PodLevelResources).
2. LimitRanger: defaults of the namespace's LimitRanges, for containers and init containers, where a
   limit or a request is still missing.
3. RuntimeClass: overhead, node selector and tolerations.
4. Validation of the result: requests within limits, pod-level resources against the containers',
   and the constraints of every LimitRange.

The requests are `resources.pod_requests` of the result. Templates are not changed.

Source: pkg/apis/core/v1/defaults.go, plugin/pkg/admission/limitranger, plugin/pkg/admission/
runtimeclass and pkg/apis/core/validation of k8s.io/kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rackgate.resources.pod_requests import effective_total, pod_requests
from rackgate.resources.quantity import exact_milli
from rackgate.wire import core

Quantity: TypeAlias = str | int | float
Quantities: TypeAlias = Mapping[str, Quantity]

CONTAINER: Final = "Container"
POD: Final = "Pod"
# Kueue's messages for Workloads whose pods the API server would reject.
OUTSIDE_LIMITS: Final = "resources didn't satisfy LimitRange constraints"
INVALID: Final = "resources validation failed"
_HUGEPAGES: Final = "hugepages-"
_POD_LEVEL: Final = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class PodProblem:
    """Why the API server would reject a pod.

    Attributes:
        kind: `OUTSIDE_LIMITS`, `INVALID`, or "" if the text is the whole message.
        path: below the pod's spec, such as `.containers[0]`.
    """

    kind: str
    path: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class LimitRangeSummary:
    """The LimitRanges of one namespace, merged.

    If several of them have different defaults for a resource, the API server uses any of them. The
    largest is counted here, so that no pod uses more than is charged for it.

    Attributes:
        requests: default requests of containers.
        limits: default limits of containers.
        constraints: LimitRange name and item, for items with constraints.
    """

    requests: Quantities
    limits: Quantities
    constraints: tuple[tuple[str, core.LimitRangeItem], ...]


def summarize_limit_ranges(ranges: Iterable[core.LimitRange]) -> LimitRangeSummary:
    """The LimitRanges of one namespace as one.

    Raises:
        QuantityError: a default cannot be parsed.
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


def _raise_to_maximum(total: dict[str, Quantity], more: Quantities) -> None:
    for resource, value in more.items():
        if resource not in total or exact_milli(value) > exact_milli(total[resource]):
            total[resource] = value


@dataclass(frozen=True, slots=True)
class DefaultedPod:
    """A pod as it is created.

    Attributes:
        requests: as returned by `pod_requests`.
        problems: why it is rejected; empty if it is created.
        node_selector: includes that of the RuntimeClass.
        tolerations: include those of the RuntimeClass.
    """

    requests: Mapping[str, int]
    problems: tuple[PodProblem, ...]
    node_selector: Mapping[str, str]
    tolerations: tuple[core.Toleration, ...]


@dataclass(slots=True)
class _Requirements:
    """Requests and limits of a container or of the pod, while defaults are applied."""

    path: str
    requests: dict[str, Quantity]
    limits: dict[str, Quantity]
    name: str = ""
    sidecar: bool = False

    @classmethod
    def of(cls, path: str, container: core.Container) -> _Requirements:
        own, sidecar = container.resources, container.restart_policy == "Always"
        return cls(path, dict(own.requests), dict(own.limits), container.name, sidecar)

    def container(self) -> core.Container:
        return core.Container(
            name=self.name,
            resources=core.Resources(requests=self.requests, limits=self.limits),
            restart_policy="Always" if self.sidecar else None,
        )


@dataclass(frozen=True, slots=True)
class _Totals:
    """Requests and limits of all containers together, in thousandths."""

    requests: dict[str, int]
    limits: dict[str, int]

    @classmethod
    def of(
        cls, containers: Sequence[_Requirements], init_containers: Sequence[_Requirements]
    ) -> _Totals:
        return cls(
            effective_total(
                (_milli(one.requests) for one in containers),
                ((_milli(one.requests), one.sidecar) for one in init_containers),
            ),
            effective_total(
                (_milli(one.limits) for one in containers),
                ((_milli(one.limits), one.sidecar) for one in init_containers),
            ),
        )


def apply_pod_defaults(
    spec: core.PodSpec, limits: LimitRangeSummary | None, runtime_class: core.RuntimeClass | None
) -> DefaultedPod:
    """The pod that the API server creates from a template.

    Args:
        spec: spec of the template; not changed.
        limits: LimitRanges of its namespace; None if there is none.
        runtime_class: the class of `spec.runtimeClassName`; None if it is not set or does not
            exist.

    Raises:
        QuantityError: a quantity of the template cannot be parsed.
    """
    containers = [
        _Requirements.of(f".containers[{index}]", one) for index, one in enumerate(spec.containers)
    ]
    init_containers = [
        _Requirements.of(f".initContainers[{index}]", one)
        for index, one in enumerate(spec.init_containers)
    ]
    all_requirements = [*containers, *init_containers]
    for requirements in all_requirements:
        requirements.requests = requirements.limits | requirements.requests
    pod = _Requirements(".resources", dict(spec.resources.requests), dict(spec.resources.limits))
    pod_level = bool(pod.requests or pod.limits)
    if pod_level:
        _apply_pod_level_defaults(pod, _Totals.of(containers, init_containers))
    if limits is not None:
        for requirements in all_requirements:
            requirements.limits = {**limits.limits, **requirements.limits}
            requirements.requests = {**limits.requests, **requirements.requests}
    overhead, problems = _resolve_overhead(spec, runtime_class)
    selector, tolerations = _resolve_scheduling(spec, runtime_class, problems)
    requests = pod_requests(
        core.PodSpec(
            containers=tuple(requirements.container() for requirements in containers),
            init_containers=tuple(requirements.container() for requirements in init_containers),
            resources=core.Resources(requests=pod.requests, limits=pod.limits),
            overhead=overhead,
        )
    )
    for requirements in all_requirements:
        problems += _requirement_problems(requirements)
    if pod_level:
        problems += _requirement_problems(pod)
        problems += _pod_level_problems(pod, containers, _Totals.of(containers, init_containers))
    if limits is not None and limits.constraints:
        whole = _pod_requirements(pod, _Totals.of(containers, init_containers))
        problems += _limit_range_problems(limits, all_requirements, whole)
    return DefaultedPod(requests, tuple(problems), selector, tolerations)


def _is_pod_level(resource: str) -> bool:
    return resource in _POD_LEVEL or resource.startswith(_HUGEPAGES)


def _may_overcommit(resource: str) -> bool:
    """Whether a request may be lower than its limit; not for extended resources and huge pages."""
    native = "/" not in resource or "kubernetes.io/" in resource
    return native and not resource.startswith(_HUGEPAGES)


def _milli(quantities: Quantities) -> dict[str, int]:
    return {resource: exact_milli(value) for resource, value in quantities.items()}


def _format_milli(milli: int) -> str:
    whole, rest = divmod(milli, 1000)
    return f"{milli}m" if rest else str(whole)


def _apply_pod_level_defaults(pod: _Requirements, totals: _Totals) -> None:
    """`defaultHugePagePodLimits`, then `defaultPodRequests`."""
    for resource, value in totals.limits.items():
        if resource.startswith(_HUGEPAGES) and resource not in pod.requests:
            pod.limits.setdefault(resource, _format_milli(value))
    if not pod.limits:
        return
    for resource, value in totals.requests.items():
        if _is_pod_level(resource) and _may_overcommit(resource):
            pod.requests.setdefault(resource, _format_milli(value))
    for resource, limit in pod.limits.items():
        if _is_pod_level(resource):
            pod.requests.setdefault(resource, limit)


def _resolve_overhead(
    spec: core.PodSpec, runtime_class: core.RuntimeClass | None
) -> tuple[dict[str, Quantity], list[PodProblem]]:
    """The overhead of the pod, and why the overhead of the template is rejected."""
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
    """Node selector and tolerations, including those of the RuntimeClass."""
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


def _requirement_problems(requirements: _Requirements) -> Iterator[PodProblem]:
    """Requests that contradict the limits, as `validateResourceRequirements` reports them."""
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
    pod: _Requirements, containers: Sequence[_Requirements], totals: _Totals
) -> Iterator[PodProblem]:
    """Containers that exceed their pod, as `validatePodResourceConsistency` reports them."""
    hugepages = {
        resource: value
        for resource, value in totals.limits.items()
        if resource.startswith(_HUGEPAGES)
    }
    for noun, total, own in (
        ("request", totals.requests, pod.requests),
        ("limit", hugepages, pod.limits),
    ):
        for resource, value in sorted(total.items()):
            bound = own.get(resource)
            if bound is not None and value > exact_milli(bound):
                text = (
                    f"{resource} {noun} {bound} must be greater than or equal to aggregate "
                    f"container {noun}s of {_format_milli(value)}"
                )
                yield PodProblem(INVALID, pod.path, text)
    for requirements in containers:
        for resource, limit in sorted(requirements.limits.items()):
            bound = pod.limits.get(resource)
            if bound is not None and exact_milli(limit) > exact_milli(bound):
                text = (
                    f"{resource} limit {limit} must be less than or equal to pod limits of {bound}"
                )
                yield PodProblem(INVALID, requirements.path, text)


def _pod_requirements(pod: _Requirements, totals: _Totals) -> _Requirements:
    """What LimitRanger compares with constraints of type Pod: pod-level cpu and memory first."""

    def with_pod_level(total: Mapping[str, int], own: Quantities) -> dict[str, Quantity]:
        found: dict[str, Quantity] = {name: _format_milli(value) for name, value in total.items()}
        return found | {name: value for name, value in own.items() if name in _POD_LEVEL}

    return _Requirements(
        "", with_pod_level(totals.requests, pod.requests), with_pod_level(totals.limits, pod.limits)
    )


def _limit_range_problems(
    limits: LimitRangeSummary, all_requirements: Sequence[_Requirements], whole: _Requirements
) -> Iterator[PodProblem]:
    for name, item in limits.constraints:
        for requirements in all_requirements if item.type == CONTAINER else (whole,):
            for text in _violations(item, requirements):
                yield PodProblem(OUTSIDE_LIMITS, requirements.path, f'{text} (LimitRange "{name}")')


def _violations(item: core.LimitRangeItem, requirements: _Requirements) -> Iterator[str]:
    requests, limits = requirements.requests, requirements.limits
    for resource, bound in sorted(item.min.items()):
        if text := _minimum_violation(bound, requests.get(resource), limits.get(resource)):
            yield f"minimum {resource} usage per {item.type} is {bound}, but {text}"
    for resource, bound in sorted(item.max.items()):
        if text := _maximum_violation(bound, requests.get(resource), limits.get(resource)):
            yield f"maximum {resource} usage per {item.type} is {bound}, but {text}"
    for resource, bound in sorted(item.max_limit_request_ratio.items()):
        if text := _ratio_violation(bound, requests.get(resource, 0), limits.get(resource, 0)):
            yield f"{resource} max limit to request ratio per {item.type} is {bound}, but {text}"


def _minimum_violation(bound: Quantity, request: Quantity | None, limit: Quantity | None) -> str:
    if request is None:
        return "no request is specified"
    if exact_milli(request) < exact_milli(bound):
        return f"request is {request}"
    if limit is not None and exact_milli(limit) < exact_milli(bound):
        return f"limit is {limit}"
    return ""


def _maximum_violation(bound: Quantity, request: Quantity | None, limit: Quantity | None) -> str:
    if limit is None:
        return "no limit is specified"
    if exact_milli(limit) > exact_milli(bound):
        return f"limit is {limit}"
    if request is not None and exact_milli(request) > exact_milli(bound):
        return f"request is {request}"
    return ""


def _ratio_violation(bound: Quantity, request: Quantity, limit: Quantity) -> str:
    if not exact_milli(request):
        return "no request is specified or request is 0"
    if not exact_milli(limit):
        return "no limit is specified or limit is 0"
    if exact_milli(limit) * 1000 > exact_milli(bound) * exact_milli(request):
        return f"provided ratio is {exact_milli(limit) / exact_milli(request):f}"
    return ""
