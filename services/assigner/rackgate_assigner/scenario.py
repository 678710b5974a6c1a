"""Placement questions and answers as JSON: the `tas-scenario/1` format. Pure: text in, data out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rackgate.domains import TopologyAssignment
from rackgate.quantity import QuantityError, amount
from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.core.capacity import Capacity
from rackgate_assigner.core.model import (
    NodeFacts,
    Placement,
    PodSetRequest,
    Replacement,
    SliceLayer,
    TopologyRequest,
)
from rackgate_assigner.core.placement import place, replace
from rackgate_assigner.core.tree import TopologyTree

FORMAT = "tas-scenario/1"
ENDED_PHASES = ("Succeeded", "Failed")


class ScenarioError(ValueError):
    """The text is no scenario file, or a scenario in it cannot be read."""


class _View(msgspec.Struct, frozen=True, rename="camel"):
    """Base of the format's objects; unknown fields are ignored."""


class _Flavor(_View, frozen=True):
    topology: str
    node_labels: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()


class _Node(_View, frozen=True):
    name: str
    labels: dict[str, str] = {}
    allocatable: dict[str, str | int | float] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True


class _Pod(_View, frozen=True):
    name: str = ""
    requests: dict[str, str | int | float] = {}
    node: str | None = None
    phase: str = ""


class _Usage(_View, frozen=True):
    values: tuple[str, ...]
    count: int
    requests: dict[str, str | int | float] = {}


class _Domain(_View, frozen=True):
    values: tuple[str, ...]
    count: int


class _Assignment(_View, frozen=True):
    levels: tuple[str, ...]
    domains: tuple[_Domain, ...]


class _Layer(_View, frozen=True):
    topology: str
    size: int = 0


class _TopologyRequest(_View, frozen=True):
    required: str | None = None
    preferred: str | None = None
    unconstrained: bool = False
    slices: tuple[_Layer, ...] = ()


class _PodSet(_View, frozen=True):
    name: str
    count: int
    requests: dict[str, str | int | float] = {}
    topology_request: _TopologyRequest | None = None
    group: str | None = None
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    node_affinity: dict[str, Any] | None = None
    previous_assignment: _Assignment | None = None


class _Replacement(_View, frozen=True):
    unhealthy_nodes: tuple[str, ...] = ()
    assignments: dict[str, _Assignment] = {}
    owned_by_single_pod: bool = False


class Scenario(_View, frozen=True):
    """One placement question, with the expected answer where the file knows one."""

    id: str
    levels: tuple[str, ...]
    flavor: _Flavor
    nodes: tuple[_Node, ...]
    pod_sets: tuple[_PodSet, ...]
    gates: dict[str, bool] = {}
    pods: tuple[_Pod, ...] = ()
    usage: tuple[_Usage, ...] = ()
    simulate_empty: bool = False
    replacement: _Replacement | None = None
    expected: dict[str, Any] | None = None
    title: str = ""
    tags: tuple[str, ...] = ()


class _File(_View, frozen=True):
    format: str
    scenarios: tuple[Scenario, ...]


def read_scenarios(text: bytes) -> tuple[Scenario, ...]:
    """Decode a scenario file.

    Raises:
        ScenarioError: no JSON, another format, or a field of the wrong kind (with its path).
    """
    try:
        file = msgspec.json.decode(text, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"not a {FORMAT} file: {error}") from error
    if file.format != FORMAT:
        raise ScenarioError(f'format is "{file.format}", only "{FORMAT}" can be read')
    return file.scenarios


def answer(scenario: Scenario) -> dict[str, Any]:
    """Place a scenario's PodSets.

    Returns:
        PodSet name to `{"assignment": ...}` or `{"failure": text}`, as `expected` in the data.

    Raises:
        ScenarioError: a quantity, gate or level list that makes no sense.
    """
    try:
        return _answer_of(_solve(scenario))
    except (QuantityError, ValueError) as error:
        raise ScenarioError(f'scenario "{scenario.id}": {error}') from error


def answers(text: bytes) -> Iterator[dict[str, Any]]:
    """Answers to all scenarios of a file as `{"id", "expected"}`, in its order.

    Raises:
        ScenarioError: as `read_scenarios` and `answer`.
    """
    for scenario in read_scenarios(text):
        yield {"id": scenario.id, "expected": answer(scenario)}


def tree_and_capacity(scenario: Scenario) -> tuple[TopologyTree, Capacity]:
    """The scenario's nodes, charged with its pods and usage."""
    nodes = [
        NodeFacts(
            name=node.name,
            labels=node.labels,
            allocatable=_amounts(node.allocatable),
            taints=node.taints,
            unschedulable=node.unschedulable,
            ready=node.ready,
        )
        for node in scenario.nodes
    ]
    tree = TopologyTree.build(scenario.levels, nodes, node_labels=scenario.flavor.node_labels)
    capacity = Capacity(tree)
    for pod in scenario.pods:
        leaf = tree.leaf_of_node(pod.node) if pod.node else None
        if leaf is not None and pod.phase not in ENDED_PHASES:
            capacity.charge_other(leaf, _amounts(pod.requests))
    for usage in scenario.usage:
        leaf = tree.leaf_of_values(usage.values)
        if leaf is not None:
            capacity.charge(leaf, _amounts(usage.requests), usage.count)
    return tree, capacity


def podset_requests(scenario: Scenario) -> list[PodSetRequest]:
    """The scenario's PodSets as the engine takes them."""
    return [
        PodSetRequest(
            name=podset.name,
            count=podset.count,
            requests=_amounts(podset.requests),
            topology=_topology(podset.topology_request),
            group=podset.group,
            node_selector=podset.node_selector,
            tolerations=podset.tolerations,
            node_affinity=podset.node_affinity,
            previous=_assignment(podset.previous_assignment),
        )
        for podset in scenario.pod_sets
    ]


def _solve(scenario: Scenario) -> Placement:
    tree, capacity = tree_and_capacity(scenario)
    podsets = podset_requests(scenario)
    broken = scenario.replacement
    if broken is not None and broken.unhealthy_nodes:
        current = {name: _assignment(given) for name, given in broken.assignments.items()}
        return replace(
            tree,
            capacity,
            podsets,
            Replacement(
                broken.unhealthy_nodes,
                {name: given for name, given in current.items() if given is not None},
                broken.owned_by_single_pod,
            ),
            topology_name=scenario.flavor.topology,
            flavor_tolerations=scenario.flavor.tolerations,
            gates=scenario.gates,
        )
    return place(
        tree,
        capacity,
        podsets,
        topology_name=scenario.flavor.topology,
        flavor_tolerations=scenario.flavor.tolerations,
        simulate_empty=scenario.simulate_empty,
        gates=scenario.gates,
    )


def _answer_of(placement: Placement) -> dict[str, Any]:
    result: dict[str, Any] = {
        name: {
            "assignment": {
                "levels": list(assignment.levels),
                "domains": [
                    {"values": list(values), "count": count} for values, count in assignment.domains
                ],
            }
        }
        for name, assignment in placement.assignments.items()
    }
    if placement.refused is not None:
        for name in placement.refused.members:
            result[name] = {"failure": placement.refused.message}
    return result


def _amounts(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    return {resource: amount(resource, value) for resource, value in quantities.items()}


def _topology(request: _TopologyRequest | None) -> TopologyRequest | None:
    if request is None:
        return None
    return TopologyRequest(
        required=request.required,
        preferred=request.preferred,
        unconstrained=request.unconstrained,
        slices=tuple(SliceLayer(layer.topology, layer.size) for layer in request.slices),
    )


def _assignment(given: _Assignment | None) -> TopologyAssignment | None:
    if given is None:
        return None
    return TopologyAssignment(
        given.levels, tuple((domain.values, domain.count) for domain in given.domains)
    )
