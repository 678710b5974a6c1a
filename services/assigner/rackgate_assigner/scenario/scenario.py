"""Answer the scenarios of a file with the placement engine: `tas-scenario/1` in, JSON out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rackgate.features import Features
from rackgate.resources.quantity import QuantityError, amount
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.scenario.format import (
    FORMAT,
    Scenario,
    ScenarioAssignment,
    ScenarioError,
    ScenarioTopologyRequest,
    read_scenarios,
)
from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.model import (
    NodeInfo,
    Placement,
    PodSetRequest,
    Replacement,
    SliceLayer,
    TopologyRequest,
)
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.topology.placement.replace import replace
from rackgate_assigner.topology.tree import TopologyTree

__all__ = [
    "FORMAT",
    "Scenario",
    "ScenarioError",
    "answer",
    "answers",
    "podset_requests",
    "read_scenarios",
    "tree_and_capacity",
]

ENDED_PHASES = ("Succeeded", "Failed")


def answer(scenario: Scenario, path: str = "scenario") -> dict[str, Any]:
    """Place a scenario's PodSets.

    Args:
        scenario: from `read_scenarios`.
        path: of the scenario in the document, for messages.

    Returns:
        PodSet name to `{"assignment": ...}` or `{"failure": text}`, as `expected` in the data.

    Raises:
        ScenarioError: the engine rejects it.
    """
    try:
        return _to_expected(_place_podsets(scenario))
    except (QuantityError, ValueError) as error:
        raise ScenarioError(f"{path}: {error}") from error


def answers(text: bytes) -> Iterator[dict[str, Any]]:
    """Answer all scenarios of a file, as `{"id", "expected"}`, in its order.

    Raises:
        ScenarioError: as `read_scenarios` and `answer`.
    """
    for index, scenario in enumerate(read_scenarios(text)):
        yield {"id": scenario.id, "expected": answer(scenario, f"scenarios[{index}]")}


def tree_and_capacity(scenario: Scenario) -> tuple[TopologyTree, Capacity]:
    """The scenario's nodes, charged with its pods and usage."""
    nodes = [
        NodeInfo(
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
    """The scenario's PodSets."""
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
            previous=_assignment(podset.previous_assignment)
            if podset.previous_assignment is not None
            else None,
        )
        for podset in scenario.pod_sets
    ]


def _place_podsets(scenario: Scenario) -> Placement:
    tree, capacity = tree_and_capacity(scenario)
    podsets = podset_requests(scenario)
    replacement = scenario.replacement
    if replacement is not None and replacement.unhealthy_nodes:
        assignments = {name: _assignment(one) for name, one in replacement.assignments.items()}
        return replace(
            tree,
            capacity,
            podsets,
            Replacement(replacement.unhealthy_nodes, assignments, replacement.owned_by_single_pod),
            topology_name=scenario.flavor.topology,
            flavor_tolerations=scenario.flavor.tolerations,
            features=Features.of(scenario.gates),
        )
    return place(
        tree,
        capacity,
        podsets,
        topology_name=scenario.flavor.topology,
        flavor_tolerations=scenario.flavor.tolerations,
        simulate_empty=scenario.simulate_empty,
        features=Features.of(scenario.gates),
    )


def _to_expected(placement: Placement) -> dict[str, Any]:
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
    if placement.failure is not None:
        for name in placement.failure.members:
            result[name] = {"failure": placement.failure.message}
    return result


def _amounts(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    return {resource: amount(resource, value) for resource, value in quantities.items()}


def _topology(request: ScenarioTopologyRequest | None) -> TopologyRequest | None:
    if request is None:
        return None
    return TopologyRequest(
        required=request.required,
        preferred=request.preferred,
        unconstrained=request.unconstrained,
        slices=tuple(SliceLayer(layer.topology, layer.size) for layer in request.slices),
    )


def _assignment(assignment: ScenarioAssignment) -> TopologyAssignment:
    return TopologyAssignment(
        assignment.levels, tuple((domain.values, domain.count) for domain in assignment.domains)
    )
