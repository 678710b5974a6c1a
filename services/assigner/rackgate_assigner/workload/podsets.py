"""Projections of PodSets: templates decoded once, for placement and quota."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from rackgate.gang.nesting import PATH, NestingError, decode_nesting
from rackgate.jobframework.topology_request import request_errors
from rackgate.resources.pod_defaults import (
    DefaultedPod,
    LimitRangeSummary,
    PodProblem,
    apply_pod_defaults,
)
from rackgate.resources.pod_requests import pod_requests
from rackgate.resources.quantity import QuantityError
from rackgate.wire import core as wire
from rackgate.wire import kueue
from rackgate_assigner.topology.model import (
    PodSetRequest,
    SharedDomain,
    SliceLayer,
    TopologyRequest,
)
from rackgate_assigner.topology.placement.node_matching import node_affinity, selector_problem

_SHARED_LIMIT: Final = 4096
# The API server's default for `terminationGracePeriodSeconds`.
DEFAULT_GRACE_PERIOD_S: Final = 30

_template_decoder = msgspec.json.Decoder(wire.PodTemplate)
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class PodDefaults:
    """What LimitRanges and a RuntimeClass add to the pods of a template.

    Attributes:
        limits: of the namespace; None if it has no LimitRange.
        runtime_class: the class that the template names; None if none is named, or it is missing.
    """

    limits: LimitRangeSummary | None = None
    runtime_class: wire.RuntimeClass | None = None


NO_POD_DEFAULTS: Final = PodDefaults()


@dataclass(frozen=True, slots=True)
class Nesting:
    """Domains that PodSets share, as an annotation of their Workload says.

    Attributes:
        shared: by PodSet, coarsest first; those placed first come first.
        problem: why it cannot be read; None if it can.
    """

    shared: Mapping[str, tuple[SharedDomain, ...]] = field(default_factory=dict)
    problem: str | None = None

    @classmethod
    def read(cls, text: str, podsets: Sequence[str], namespace: str = "") -> Nesting:
        """Read the annotation of a Workload with these PodSets; "" stands for none."""
        if not text:
            return NO_NESTING
        try:
            found = decode_nesting(text)
        except NestingError as error:
            return cls(problem=str(error))
        unknown = [entry.podset for entry in found if entry.podset not in podsets]
        if unknown:
            return cls(problem=f'{PATH}: there is no PodSet "{unknown[0]}"')
        return cls(
            {
                entry.podset: tuple(
                    SharedDomain(
                        one.group,
                        one.level,
                        one.required,
                        f"{namespace}/{one.across}" if one.across else "",
                    )
                    for one in entry.within
                )
                for entry in found
            }
        )

    def turn(self, podset: str) -> int:
        """The place of a PodSet in the order of placement."""
        return list(self.shared).index(podset) if podset in self.shared else 0


NO_NESTING: Final = Nesting()


@dataclass(frozen=True, slots=True)
class Template:
    """The fields of a PodSet that pod_defaults may change; kept to decode each template once.

    Attributes:
        spec: the part of the pod's spec that pod_defaults read.
        excluded: prefixes of resources that count neither for quota nor for capacity.
        requests: per-pod amounts of the template alone, as `PodSetRequest.requests`.
    """

    spec: wire.PodSpec
    excluded: tuple[str, ...]
    requests: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _MemoizedPod:
    """The pods of a template under pod_defaults; both are kept, so that their ids stay unique."""

    template: Template
    pod_defaults: PodDefaults
    pod: DefaultedPod


_templates: dict[bytes, Template] = {}
_memoized_pods: dict[tuple[int, int, int], _MemoizedPod] = {}


@dataclass(frozen=True, slots=True)
class PodSetResources:
    """One PodSet: its placement request, and the shape it is compared by.

    Attributes:
        request: per-pod amounts, selectors and topology request; `previous` is never set.
        shape: equal for PodSets that get the same decision from the same state.
        problem: why the template can never be scheduled; None if it can.
        size: bytes of the template.
        min_count: the fewest pods that it may be admitted with; None: only all of them.
        template: what pod_defaults are applied to; None for a template that cannot be read.
        template_problem: `problem`, regardless of the pod_defaults.
        pod_defaults: the applied ones.
        grace_period_s: seconds that its pods may take to terminate.
    """

    request: PodSetRequest
    shape: Hashable
    problem: str | None = None
    size: int = 0
    min_count: int | None = None
    template: Template | None = field(default=None, compare=False, repr=False)
    template_problem: str | None = field(default=None, compare=False, repr=False)
    pod_defaults: PodDefaults = field(default=NO_POD_DEFAULTS, compare=False, repr=False)
    grace_period_s: int = DEFAULT_GRACE_PERIOD_S

    @property
    def runtime_class(self) -> str:
        """Name of the RuntimeClass that its pods have, "" for none."""
        return (self.template.spec.runtime_class_name or "") if self.template is not None else ""

    @property
    def template_requests(self) -> Mapping[str, int]:
        """Per-pod amounts of the template alone, without pod_defaults."""
        return self.request.requests if self.template is None else self.template.requests


def _topology_request(asked: kueue.PodSetTopologyRequest | None) -> TopologyRequest | None:
    """The request as the placement engine reads it; None without a level or slices."""
    if asked is None:
        return None
    slices = tuple(
        SliceLayer(layer.topology, layer.size)
        for layer in asked.podset_slice_required_topology_constraints
    )
    layered = bool(slices)
    if not slices and asked.pod_set_slice_required_topology:
        # Size 0 makes the engine report that the size was not provided.
        size = asked.pod_set_slice_size or 0
        slices = (SliceLayer(asked.pod_set_slice_required_topology, size),)
    unconstrained = bool(asked.unconstrained)
    if not (asked.required or asked.preferred or unconstrained or slices):
        return None
    return TopologyRequest(asked.required, asked.preferred, unconstrained, slices, layered)


def _shape_of(request: PodSetRequest, min_count: int | None) -> Hashable:
    affinity = request.node_affinity
    return (
        request.name,
        request.count,
        min_count,
        tuple(sorted(request.requests.items())),
        request.topology,
        request.group,
        request.shared,
        request.turn,
        tuple(sorted(request.node_selector.items())),
        request.tolerations,
        None if affinity is None else json.dumps(affinity, sort_keys=True),
    )


def podset_resources(
    index: int,
    podset: kueue.PodSet,
    excluded: tuple[str, ...],
    nesting: Nesting = NO_NESTING,
) -> PodSetResources:
    """Project a PodSet; unreadable fields are reported in `problem`. No pod_defaults are applied.

    Args:
        index: its position in `spec.podSets`.
        podset: as decoded by the watch.
        excluded: prefixes of resources that count neither for quota nor for capacity.
        nesting: of its Workload.
    """
    problem = _request_problem(f"spec.podSets[{index}]", podset) or nesting.problem
    path = f"spec.podSets[{podset.name}].template"
    spec, affinity = wire.PodSpec(), None
    requests: Mapping[str, int] = {}
    template: Template | None = None
    try:
        spec = _template_decoder.decode(podset.template).spec
        affinity = node_affinity(spec)
        template = _template_of(spec, excluded)
        requests = template.requests
    except (msgspec.MsgspecError, QuantityError, RecursionError) as error:
        problem = problem or f"{path}: {error}"
    problem = problem or selector_problem(f"{path}.spec", spec, affinity or {})
    negative = sorted(resource for resource, value in requests.items() if value < 0)
    if negative:
        problem = f"{path}: negative request of {negative[0]}"
    if spec.node_name:
        # No gate holds such a pod, and no assignment moves it.
        problem = problem or f"{path}.spec.nodeName: {spec.node_name!r} bypasses the queue"
    asked = podset.topology_request
    request = PodSetRequest(
        name=podset.name,
        count=podset.count,
        requests=requests,
        topology=_topology_request(asked),
        group=(asked.pod_set_group_name if asked else None) or None,
        node_selector=spec.node_selector,
        tolerations=spec.tolerations,
        node_affinity=affinity,
        shared=nesting.shared.get(podset.name, ()),
        turn=nesting.turn(podset.name),
    )
    min_count = _min_count(podset)
    row = PodSetResources(
        request,
        (_shape_of(request, min_count), problem),
        problem,
        len(podset.template),
        min_count,
        template,
        problem,
        grace_period_s=_grace_period_s(spec),
    )
    return with_defaults(row, NO_POD_DEFAULTS)


def _grace_period_s(spec: wire.PodSpec) -> int:
    given = spec.termination_grace_period_seconds
    return DEFAULT_GRACE_PERIOD_S if given is None else max(0, given)


def _min_count(podset: kueue.PodSet) -> int | None:
    """Its `minCount`; None if it is not less than its count, or is no number of pods."""
    fewest = podset.min_count
    return fewest if fewest is not None and 0 < fewest < podset.count else None


def _template_of(spec: wire.PodSpec, excluded: tuple[str, ...]) -> Template:
    """The fields that pod_defaults may change; equal ones are one object, as most are equal.

    Raises:
        QuantityError: a quantity cannot be read.
    """
    part = _spec_for_defaults(spec)
    key = _encode((part, excluded))
    known = _templates.get(key)
    if known is None:
        known = Template(part, excluded, without_excluded(pod_requests(part), excluded))
        if len(_templates) >= _SHARED_LIMIT:
            _templates.clear()  # parts in use stay in use
        _templates[key] = known
    return known


def _spec_for_defaults(spec: wire.PodSpec) -> wire.PodSpec:
    """The fields that `apply_pod_defaults` reads of a spec; others are not kept."""
    return wire.PodSpec(
        containers=spec.containers,
        init_containers=spec.init_containers,
        overhead=spec.overhead,
        resources=spec.resources,
        node_selector=spec.node_selector,
        tolerations=spec.tolerations,
        runtime_class_name=spec.runtime_class_name,
    )


def with_defaults(row: PodSetResources, pod_defaults: PodDefaults) -> PodSetResources:
    """The PodSet with these defaults instead of the previous ones."""
    template = row.template
    if template is None:
        return row
    memoized = _memoized_pod(template, pod_defaults)
    created, request = memoized.pod, row.request
    asked = (created.requests, created.node_selector, created.tolerations)
    if asked != (request.requests, request.node_selector, request.tolerations):
        requests, selector, tolerations = asked
        request = replace(
            request, requests=requests, node_selector=selector, tolerations=tolerations
        )
    problem = row.template_problem
    if problem is None and created.problems:
        problem = _problem_text(f"spec.podSets[{request.name}].template.spec", created.problems)
    if request is row.request and problem == row.problem:
        return (
            row
            if memoized.pod_defaults is row.pod_defaults
            else replace(row, pod_defaults=memoized.pod_defaults)
        )
    shape = (_shape_of(request, row.min_count), problem)
    return replace(
        row, request=request, shape=shape, problem=problem, pod_defaults=memoized.pod_defaults
    )


def _memoized_pod(template: Template, pod_defaults: PodDefaults) -> _MemoizedPod:
    """The pods of a template with defaults: computed once for all equal templates."""
    key = (id(template), id(pod_defaults.limits), id(pod_defaults.runtime_class))
    known = _memoized_pods.get(key)
    if known is None:
        pod = apply_pod_defaults(template.spec, pod_defaults.limits, pod_defaults.runtime_class)
        counted = without_excluded(pod.requests, template.excluded)
        requests = template.requests if counted == template.requests else counted
        known = _MemoizedPod(template, pod_defaults, replace(pod, requests=requests))
        if len(_memoized_pods) >= _SHARED_LIMIT:
            _memoized_pods.clear()  # parts in use stay in use
        _memoized_pods[key] = known
    return known


def _problem_text(path: str, problems: Sequence[PodProblem]) -> str:
    return "; ".join(
        f"{f'{found.kind}: ' if found.kind else ''}{path}{found.path}: {found.text}"
        for found in problems
    )


def without_excluded(requests: Mapping[str, int], prefixes: tuple[str, ...]) -> dict[str, int]:
    """Requests without the resources whose names start with one of the prefixes (C16)."""
    return {name: value for name, value in requests.items() if not name.startswith(prefixes)}


def _request_problem(path: str, podset: kueue.PodSet) -> str | None:
    """An object that our API schema rejects: an invalid count or topology request."""
    if podset.count < 0:
        return f"{path}.count: {podset.count} is not a number of pods"
    if podset.topology_request is None:
        return None
    asked = msgspec.to_builtins(podset.topology_request)
    errors = request_errors(asked, f"{path}.topologyRequest", count=podset.count)
    return "; ".join(map(str, errors)) or None
