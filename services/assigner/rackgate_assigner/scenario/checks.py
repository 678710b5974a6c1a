"""What a placement question must be so that it has an answer. Pure.

The limits are those of the API server where it has one, and else beyond anything real: they keep
time and memory in proportion to the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Final, NoReturn

import msgspec

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.features import PLACEMENT_GATES
from rackgate.resources.quantity import QuantityError, amount
from rackgate.topology.assignment import LEVELS, MAX_LEVEL_LENGTH, MAX_PODS, MAX_VALUE, shown
from rackgate.wire.core import PodSpec, Taint, Toleration
from rackgate_assigner.scenario.format import (
    Scenario,
    ScenarioAssignment,
    ScenarioError,
    ScenarioNode,
    ScenarioPod,
    ScenarioPodSet,
    ScenarioReplacement,
    ScenarioTopologyRequest,
    ScenarioUsage,
)
from rackgate_assigner.topology.placement.node_matching import node_affinity

MAX_NODES: Final = 1 << 17  # sums over so many nodes stay exact, see `rackgate.resources.quantity`
MAX_PODSETS: Final = 1000
MAX_ENTRIES: Final = 1000  # of any list or map of one node or PodSet
MAX_NAME: Final = 253
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
OPERATORS: Final = ("", "Equal", "Exists", "Gt", "Lt")
_QUANTITY: Final = 'must be a quantity such as "500m", "4" or "1.5Gi"'
PHASES: Final = ("", "Pending", "Running", "Succeeded", "Failed", "Unknown")


def check_scenario(scenario: Scenario, path: str) -> None:
    """Refuse what has no answer.

    Args:
        scenario: fields of the right kinds.
        path: where it stands in the document.

    Raises:
        ScenarioError: path of the field, the value found, and what it must be.
    """
    _check_length(scenario.id, f"{path}.id", MAX_NAME)
    _check_levels(scenario.levels, f"{path}.levels")
    _check_length(scenario.flavor.topology, f"{path}.flavor.topology", MAX_NAME)
    _check_labels(scenario.flavor.node_labels, f"{path}.flavor.nodeLabels")
    _check_tolerations(scenario.flavor.tolerations, f"{path}.flavor.tolerations")
    for gate in scenario.gates:
        _check_one_of(gate, sorted(PLACEMENT_GATES), f"{path}.gates", "feature gate")
    _check_size(scenario.nodes, f"{path}.nodes", MAX_NODES)
    _check_unique([node.name for node in scenario.nodes], f"{path}.nodes", ".name")
    for index, node in enumerate(scenario.nodes):
        _check_node(node, f"{path}.nodes[{index}]")
    for index, pod in enumerate(scenario.pods):
        _check_pod(pod, f"{path}.pods[{index}]")
    for index, usage in enumerate(scenario.usage):
        _check_usage(usage, scenario.levels, f"{path}.usage[{index}]")
    _check_podsets(scenario, f"{path}.podSets")
    if scenario.replacement is not None:
        _check_replacement(scenario.replacement, scenario, f"{path}.replacement")


def _reject(path: str, found: object, problem: str) -> NoReturn:
    raise ScenarioError(f"{path}: {shown(found)}: {problem}")


def _check_length(text: str, path: str, most: int, least: int = 0) -> None:
    if not least <= len(text) <= most:
        _reject(path, text, f"must have {least} to {most} characters, it has {len(text)}")


def _check_size(values: Sized, path: str, most: int = MAX_ENTRIES) -> None:
    if len(values) > most:
        raise ScenarioError(f"{path}: {len(values)} entries: must be no more than {most}")


def _check_count(value: int, path: str, least: int = 0) -> None:
    if not least <= value <= MAX_PODS:
        _reject(path, value, f"must be a whole number from {least} to {MAX_PODS}")


def _check_one_of(value: str, known: Iterable[str], path: str, what: str) -> None:
    if value not in known:
        listed = ", ".join(one for one in known if one)
        _reject(path, value, f"unknown {what} (known: {listed})")


def _check_unique(names: Sequence[str], path: str, field: str = "") -> None:
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if first.setdefault(name, index) != index:
            _reject(f"{path}[{index}]{field}", name, f"is in {path}[{first[name]}]{field} already")


def _check_levels(levels: Sequence[str], path: str) -> None:
    if not 1 <= len(levels) <= LEVELS:
        raise ScenarioError(f"{path}: {len(levels)} levels: must be 1 to {LEVELS}")
    for index, level in enumerate(levels):
        _check_length(level, f"{path}[{index}]", MAX_LEVEL_LENGTH, 1)
        if level == HOSTNAME_LABEL and index + 1 < len(levels):
            _reject(f"{path}[{index}]", level, "can only be the last level")
    _check_unique(levels, path)


def _check_labels(labels: Mapping[str, str], path: str) -> None:
    _check_size(labels, path)
    for key, value in labels.items():
        if len(key) > MAX_LEVEL_LENGTH:
            _reject(path, key, f"keys must not be longer than {MAX_LEVEL_LENGTH} characters")
        if len(value) > MAX_VALUE:
            _check_length(value, f"{path}[{shown(key)}]", MAX_VALUE)


def _check_amounts(amounts: Mapping[str, str | int | float], path: str) -> None:
    _check_size(amounts, path)
    for resource, value in amounts.items():
        try:
            negative = amount(resource, value) < 0
        except QuantityError:
            _reject(f"{path}[{shown(resource)}]", value, _QUANTITY)
        if negative:
            _reject(f"{path}[{shown(resource)}]", value, "must not be negative")
        if len(resource) > MAX_LEVEL_LENGTH:
            _reject(path, resource, f"names must not be longer than {MAX_LEVEL_LENGTH} characters")


def _check_taints(taints: Sequence[Taint], path: str) -> None:
    _check_size(taints, path)
    for index, taint in enumerate(taints):
        _check_length(taint.key, f"{path}[{index}].key", MAX_LEVEL_LENGTH)
        _check_length(taint.value, f"{path}[{index}].value", MAX_VALUE)
        _check_one_of(taint.effect, EFFECTS, f"{path}[{index}].effect", "effect")


def _check_tolerations(tolerations: Sequence[Toleration], path: str) -> None:
    _check_size(tolerations, path)
    for index, toleration in enumerate(tolerations):
        _check_length(toleration.key, f"{path}[{index}].key", MAX_LEVEL_LENGTH)
        _check_length(toleration.value, f"{path}[{index}].value", MAX_VALUE)
        _check_one_of(toleration.operator, OPERATORS, f"{path}[{index}].operator", "operator")
        _check_one_of(toleration.effect, ("", *EFFECTS), f"{path}[{index}].effect", "effect")


def _check_node(node: ScenarioNode, path: str) -> None:
    _check_length(node.name, f"{path}.name", MAX_NAME, 1)
    _check_labels(node.labels, f"{path}.labels")
    _check_amounts(node.allocatable, f"{path}.allocatable")
    if node.taints:
        _check_taints(node.taints, f"{path}.taints")


def _check_pod(pod: ScenarioPod, path: str) -> None:
    _check_length(pod.name, f"{path}.name", MAX_NAME)
    _check_one_of(pod.phase, PHASES, f"{path}.phase", "phase")
    _check_amounts(pod.requests, f"{path}.requests")


def _check_usage(usage: ScenarioUsage, levels: Sequence[str], path: str) -> None:
    if not 1 <= len(usage.values) <= len(levels):
        problem = f"must be 1 to {len(levels)}, of the lowest levels"
        raise ScenarioError(f"{path}.values: {len(usage.values)} values: {problem}")
    _check_count(usage.count, f"{path}.count")
    _check_amounts(usage.requests, f"{path}.requests")


def _check_podsets(scenario: Scenario, path: str) -> None:
    _check_size(scenario.pod_sets, path, MAX_PODSETS)
    _check_unique([podset.name for podset in scenario.pod_sets], path, ".name")
    groups: dict[str, int] = {}
    for index, podset in enumerate(scenario.pod_sets):
        place = f"{path}[{index}]"
        _check_podset(podset, scenario.levels, place)
        if podset.group:
            _check_length(podset.group, f"{place}.group", MAX_NAME)
            groups[podset.group] = groups.get(podset.group, 0) + 1
            if groups[podset.group] > 2:
                _reject(f"{place}.group", podset.group, "has two members already")


def _check_podset(podset: ScenarioPodSet, levels: Sequence[str], path: str) -> None:
    _check_length(podset.name, f"{path}.name", MAX_NAME, 1)
    _check_count(podset.count, f"{path}.count")
    _check_amounts(podset.requests, f"{path}.requests")
    if podset.topology_request is not None:
        _check_request(podset.topology_request, f"{path}.topologyRequest")
    _check_labels(podset.node_selector, f"{path}.nodeSelector")
    _check_tolerations(podset.tolerations, f"{path}.tolerations")
    _check_affinity(podset, f"{path}.nodeAffinity")
    if podset.previous_assignment is not None:
        _check_assignment(podset.previous_assignment, levels, f"{path}.previousAssignment")


def _check_request(request: ScenarioTopologyRequest, path: str) -> None:
    """Levels are not looked up here: the answer for an unknown one is a refusal in fixed words."""
    for field, level in (("required", request.required), ("preferred", request.preferred)):
        if level is None:
            continue
        _check_length(level, f"{path}.{field}", MAX_LEVEL_LENGTH)
        if request.unconstrained:
            _reject(f"{path}.unconstrained", True, f"must not be set together with {field}")
    _check_size(request.slices, f"{path}.slices", LEVELS)
    for index, layer in enumerate(request.slices):
        _check_length(layer.topology, f"{path}.slices[{index}].topology", MAX_LEVEL_LENGTH)
        # The first may have no size: its answer is a refusal in fixed words, too.
        _check_count(layer.size, f"{path}.slices[{index}].size", 1 if index else 0)


def _check_affinity(podset: ScenarioPodSet, path: str) -> None:
    if podset.node_affinity is None:
        return
    _check_size(_nested_values(podset.node_affinity), path)
    try:
        node_affinity(PodSpec(affinity={"nodeAffinity": podset.node_affinity}))
    except msgspec.ValidationError as error:
        error_text, _, place = str(error).removesuffix("`").partition(" - at `$.nodeAffinity")
        raise ScenarioError(f"{path}{place}: {error_text[:1].lower()}{error_text[1:]}") from error


def _nested_values(value: object) -> list[object]:
    """Everything in an object, however deep."""
    found: list[object] = []
    pending = [value]
    while pending and len(found) <= MAX_ENTRIES:
        inner = pending.pop()
        children = inner.values() if isinstance(inner, dict) else inner
        if isinstance(children, list | type({}.values())):
            found += children
            pending += children
    return found


def _check_assignment(assignment: ScenarioAssignment, levels: Sequence[str], path: str) -> None:
    width = len(assignment.levels)
    short = levels[-1:] if levels[-1] == HOSTNAME_LABEL else levels
    if tuple(assignment.levels) not in (tuple(levels), tuple(short)):
        problem = (
            f"must be those of the topology (levels: {', '.join(levels)}), or the host's alone"
        )
        raise ScenarioError(f"{path}.levels: {shown(', '.join(assignment.levels))}: {problem}")
    for index, domain in enumerate(assignment.domains):
        if len(domain.values) != width:
            problem = f"must be {width}, one for each level"
            raise ScenarioError(
                f"{path}.domains[{index}].values: {len(domain.values)} values: {problem}"
            )
        _check_count(domain.count, f"{path}.domains[{index}].count", 1)
    names = ["/".join(domain.values) for domain in assignment.domains]
    if len({domain.values for domain in assignment.domains}) != len(names):
        _check_unique(names, f"{path}.domains", ".values")


def _check_replacement(replacement: ScenarioReplacement, scenario: Scenario, path: str) -> None:
    for index, name in enumerate(replacement.unhealthy_nodes):
        _check_length(name, f"{path}.unhealthyNodes[{index}]", MAX_NAME, 1)
    _check_unique(replacement.unhealthy_nodes, f"{path}.unhealthyNodes")
    for name, assignment in replacement.assignments.items():
        _check_assignment(assignment, scenario.levels, f"{path}.assignments[{shown(name)}]")
    known = [podset.name for podset in scenario.pod_sets]
    # Assignments of PodSets that are not asked about are usual, but one must be.
    if replacement.assignments and not set(known).intersection(replacement.assignments):
        _check_one_of(next(iter(replacement.assignments)), known, f"{path}.assignments", "PodSet")
