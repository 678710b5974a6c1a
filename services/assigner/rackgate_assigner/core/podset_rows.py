"""PodSets as rows: templates decoded once, into what placement and quota ask of them."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import msgspec

from rackgate.govern.requests import request_errors
from rackgate.quantity import QuantityError
from rackgate.resources import pod_requests
from rackgate.wire import core as wire
from rackgate.wire import kueue
from rackgate_assigner.core.engine.affinity import node_affinity
from rackgate_assigner.core.model import PodSetRequest, SliceLayer, TopologyRequest

_template_decoder = msgspec.json.Decoder(wire.PodTemplate)


@dataclass(frozen=True, slots=True)
class PodSetRow:
    """One PodSet: what placement asks, ready to be handed over, and the shape it is compared by.

    Attributes:
        request: per-pod amounts, selectors and topology request; `previous` is never set.
        shape: equal for PodSets that get the same answer from the same state.
        problem: why the template cannot be scheduled at all; None when it can.
        size: bytes of the template.
    """

    request: PodSetRequest
    shape: Hashable
    problem: str | None = None
    size: int = 0


def _topology_request(asked: kueue.PodSetTopologyRequest | None) -> TopologyRequest | None:
    """The request in the engine's terms; None when neither a level nor slices are asked for."""
    if asked is None:
        return None
    slices = tuple(
        SliceLayer(layer.topology, layer.size)
        for layer in asked.podset_slice_required_topology_constraints
    )
    layered = bool(slices)
    if not slices and asked.pod_set_slice_required_topology:
        # Size 0 makes the engine answer that the size was not provided.
        size = asked.pod_set_slice_size or 0
        slices = (SliceLayer(asked.pod_set_slice_required_topology, size),)
    unconstrained = bool(asked.unconstrained)
    if not (asked.required or asked.preferred or unconstrained or slices):
        return None
    return TopologyRequest(asked.required, asked.preferred, unconstrained, slices, layered)


def _shape_of(request: PodSetRequest) -> Hashable:
    affinity = request.node_affinity
    return (
        request.name,
        request.count,
        tuple(sorted(request.requests.items())),
        request.topology,
        request.group,
        tuple(sorted(request.node_selector.items())),
        request.tolerations,
        None if affinity is None else json.dumps(affinity, sort_keys=True),
    )


def podset_row(index: int, podset: kueue.PodSet, excluded: tuple[str, ...]) -> PodSetRow:
    """Project a PodSet; what cannot be read is named in `problem`.

    Args:
        index: its place in `spec.podSets`.
        podset: as the watch decoded it.
        excluded: prefixes of resources that count neither for quota nor for room.
    """
    problem = _asked_problem(f"spec.podSets[{index}]", podset)
    spec, requests, affinity = wire.PodSpec(), {}, None
    try:
        spec = _template_decoder.decode(podset.template).spec
        requests = without_excluded(pod_requests(spec), excluded)
        affinity = node_affinity(spec)
    except (msgspec.MsgspecError, QuantityError, RecursionError) as error:
        problem = problem or f"spec.podSets[{podset.name}].template: {error}"
    negative = sorted(resource for resource, value in requests.items() if value < 0)
    if negative:
        problem = f"spec.podSets[{podset.name}].template: negative request of {negative[0]}"
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
    )
    return PodSetRow(request, (_shape_of(request), problem), problem, len(podset.template))


def without_excluded(requests: Mapping[str, int], prefixes: tuple[str, ...]) -> dict[str, int]:
    """Requests without the resources whose names start with one of the prefixes (C16)."""
    return {name: value for name, value in requests.items() if not name.startswith(prefixes)}


def _asked_problem(path: str, podset: kueue.PodSet) -> str | None:
    """What no API server of ours stores: a count or a topology request that makes no sense."""
    if podset.count < 0:
        return f"{path}.count: {podset.count} is not a number of pods"
    if podset.topology_request is None:
        return None
    asked = msgspec.to_builtins(podset.topology_request)
    errors = request_errors(asked, f"{path}.topologyRequest", count=podset.count)
    return "; ".join(map(str, errors)) or None
