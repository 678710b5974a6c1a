"""The `tas-scenario/1` format: read a file, and check that every scenario can be answered.

An error names the path in the document, the value there and what it must be:
`scenarios[3].podSets[0].count: "two": must be a whole number`. The limits are those of the API
server if it has one. Other limits are far above real values, and keep time and memory proportional
to the file.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Final, NoReturn

import msgspec

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.features import PLACEMENT_GATES
from rackgate.resources.quantity import QuantityError, amount
from rackgate.topology.assignment import LEVELS, MAX_LEVEL_LENGTH, MAX_PODS, MAX_VALUE, shown
from rackgate.wire.core import PodSpec, Taint, Toleration
from rackgate_assigner.topology.placement.node_matching import node_affinity

FORMAT: Final = "tas-scenario/1"
# In larger files the value of an error is not searched for: that takes many times the memory.
_LOCATE_LIMIT_BYTES: Final = 64 << 20
_LONGEST_NUMBER: Final = 100  # digits of a number in a message
MAX_NODES: Final = 1 << 17  # sums over so many nodes stay exact, see `rackgate.resources.quantity`
MAX_PODSETS: Final = 1000
MAX_ENTRIES: Final = 1000  # of any list or map of one node or PodSet
MAX_NAME: Final = 253
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
OPERATORS: Final = ("", "Equal", "Exists", "Gt", "Lt")
_QUANTITY: Final = 'must be a quantity such as "500m", "4" or "1.5Gi"'
PHASES: Final = ("", "Pending", "Running", "Succeeded", "Failed", "Unknown")


class ScenarioError(ValueError):
    """A file or a scenario cannot be read or answered; the text begins with the path."""


class ScenarioObject(msgspec.Struct, frozen=True, rename="camel"):
    """Base of the format's objects; unknown fields are ignored."""


class ScenarioFlavor(ScenarioObject, frozen=True):
    """The flavor all nodes belong to."""

    topology: str
    node_labels: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()


class ScenarioNode(ScenarioObject, frozen=True):
    """A node."""

    name: str
    labels: dict[str, str] = {}
    allocatable: dict[str, str | int | float] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True


class ScenarioPod(ScenarioObject, frozen=True):
    """A pod that TAS did not place; `requests` are of the whole pod."""

    name: str = ""
    requests: dict[str, str | int | float] = {}
    node: str | None = None
    phase: str = ""


class ScenarioUsage(ScenarioObject, frozen=True):
    """Pods that TAS placed; `requests` are per pod."""

    values: tuple[str, ...]
    count: int
    requests: dict[str, str | int | float] = {}


class ScenarioDomain(ScenarioObject, frozen=True):
    """Pods of one domain."""

    values: tuple[str, ...]
    count: int


class ScenarioAssignment(ScenarioObject, frozen=True):
    """An assignment, one entry per domain."""

    levels: tuple[str, ...]
    domains: tuple[ScenarioDomain, ...]


class ScenarioLayer(ScenarioObject, frozen=True):
    """One layer of PodSet slices."""

    topology: str
    size: int = 0


class ScenarioTopologyRequest(ScenarioObject, frozen=True):
    """A topology request."""

    required: str | None = None
    preferred: str | None = None
    unconstrained: bool = False
    slices: tuple[ScenarioLayer, ...] = ()


class ScenarioPodSet(ScenarioObject, frozen=True):
    """A PodSet to place; `requests` are per pod."""

    name: str
    count: int
    requests: dict[str, str | int | float] = {}
    topology_request: ScenarioTopologyRequest | None = None
    group: str | None = None
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    node_affinity: dict[str, Any] | None = None
    previous_assignment: ScenarioAssignment | None = None


class ScenarioReplacement(ScenarioObject, frozen=True):
    """Nodes became unhealthy under admitted PodSets."""

    unhealthy_nodes: tuple[str, ...] = ()
    assignments: dict[str, ScenarioAssignment] = {}
    owned_by_single_pod: bool = False


class Scenario(ScenarioObject, frozen=True):
    """PodSets to place on a cluster, and the expected answer if the file has one."""

    id: str
    levels: tuple[str, ...]
    flavor: ScenarioFlavor
    nodes: tuple[ScenarioNode, ...]
    pod_sets: tuple[ScenarioPodSet, ...]
    gates: dict[str, bool] = {}
    pods: tuple[ScenarioPod, ...] = ()
    usage: tuple[ScenarioUsage, ...] = ()
    simulate_empty: bool = False
    replacement: ScenarioReplacement | None = None
    expected: dict[str, Any] | None = None
    title: str = ""
    tags: tuple[str, ...] = ()


class _Header(ScenarioObject, frozen=True):
    format: Any = None


class _File(ScenarioObject, frozen=True):
    scenarios: tuple[Scenario, ...]


def read_scenarios(text: bytes) -> tuple[Scenario, ...]:
    """Read a scenario file; every scenario in it can be answered.

    Raises:
        ScenarioError: not JSON, another format, or an invalid field.
    """
    scenarios = _decode_scenarios(text)
    for index, scenario in enumerate(scenarios):
        _check_scenario(scenario, f"scenarios[{index}]")
    return scenarios


# Decoding, and where a document is wrong.


def _decode_scenarios(text: bytes) -> tuple[Scenario, ...]:
    if not text.strip():
        raise ScenarioError(f"the file is empty: a {FORMAT} document is required")
    try:
        # Another format explains all other errors.
        header = msgspec.json.decode(text, type=_Header)
        if header.format != FORMAT:
            raise ScenarioError(f'format: {shown(header.format)}: must be "{FORMAT}"')
        return msgspec.json.decode(text, type=_File).scenarios
    except msgspec.ValidationError as error:
        raise ScenarioError(_locate_error(str(error), text)) from error
    except RecursionError as error:
        raise ScenarioError("the file is nested too deeply to be read") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(_explain_unreadable(str(error), text)) from error


# A path of msgspec: `$.scenarios[0].nodes[3].labels[...]`, without the key.
_AT: Final = re.compile(r"(?P<problem>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"(?P<key>[^.\[\]]+)|\[(?P<index>\d+|\.\.\.)\]")
_EXPECTED: Final = re.compile(r"Expected `(?P<kinds>[^`]+)`(?:, got `(?P<got>[^`]+)`)?")
_KINDS: Final = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
}


class _UnusableNumber(str):
    """Text of a number that JSON does not have, or that is too long."""

    __slots__ = ()


def _locate_error(error_text: str, text: bytes) -> str:
    """A message of msgspec as `path: value: what it must be`."""
    match = _AT.fullmatch(error_text)
    problem, path = (match["problem"], match["path"] or "") if match else (error_text, "")
    expected = _EXPECTED.match(problem)
    got = expected["got"] if expected else None
    steps = [step["key"] or step["index"] for step in _STEP.finditer(path)]
    document = _load_document(text)
    found = None if document is None else next(_find_at_path(document[0], steps, "", got), None)
    if expected:
        kinds = " or ".join(_KINDS.get(kind, kind) for kind in expected["kinds"].split(" | "))
        problem = f"must be {kinds}"
    else:
        problem = f"{problem[:1].lower()}{problem[1:].replace('`', chr(34))}"
    if found is None:
        return f"{path or 'the document'}: {problem}"
    place, value = found
    if problem.startswith("object missing"):
        return f"{place or 'the document'}: {problem.removeprefix('object ')}"
    return f"{place or 'the document'}: {_value(value)}: {problem}"


def _value(value: object) -> str:
    return str(value)[:_LONGEST_NUMBER] if isinstance(value, _UnusableNumber) else shown(value)


def _explain_unreadable(error_text: str, text: bytes) -> str:
    """Why the text is not JSON; with the path of a number that JSON does not have."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"the file is not UTF-8: {error.reason} (byte {error.start})"
    if text.startswith(codecs.BOM_UTF8):
        return "the file begins with a byte order mark: save it without"
    document = _load_document(text)
    for place, value in _scalar_values(document[0]) if document else ():
        if isinstance(value, _UnusableNumber) and value.strip("-").isalpha():
            return f"{place}: {value}: JSON has no such number"
    return f"the file is not JSON: {error_text.removeprefix('JSON is malformed: ')}"


def _load_document(text: bytes) -> tuple[Any] | None:
    """The document as plain data, in a tuple; None when it cannot be read at all."""
    if len(text) > _LOCATE_LIMIT_BYTES:
        return None

    def number(digits: str) -> int | _UnusableNumber:
        return int(digits) if len(digits) <= _LONGEST_NUMBER else _UnusableNumber(digits)

    def fraction(digits: str) -> float | _UnusableNumber:
        return value if math.isfinite(value := float(digits)) else _UnusableNumber(digits)

    try:
        return (
            json.loads(
                text, parse_constant=_UnusableNumber, parse_int=number, parse_float=fraction
            ),
        )
    except (ValueError, RecursionError):
        return None


def _find_at_path(
    value: Any, steps: list[str], place: str, got: str | None
) -> Iterator[tuple[str, object]]:
    """Values at the steps below a value, with their full paths; `...` is any key of an object."""
    if not steps:
        if got is None or _kind(value) == got:
            yield place, value
        return
    step, rest = steps[0], steps[1:]
    if step == "..." and isinstance(value, dict):
        for key, inner in value.items():
            yield from _find_at_path(inner, rest, f"{place}[{shown(key)}]", got)
    elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
        yield from _find_at_path(value[int(step)], rest, f"{place}[{step}]", got)
    elif isinstance(value, dict) and step in value:
        yield from _find_at_path(value[step], rest, f"{place}.{step}" if place else step, got)


def _below(place: str, key: str) -> str:
    if not key.isidentifier() or len(key) > _LONGEST_NUMBER:
        return f"{place}[{shown(key)}]"
    return f"{place}.{key}" if place else key


def _scalar_values(value: Any) -> Iterator[tuple[str, object]]:
    """Every value that is not an object or a list, with its path."""
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        place, found = pending.pop()
        if isinstance(found, dict):
            pending += [(_below(place, key), inner) for key, inner in found.items()]
        elif isinstance(found, list):
            pending += [(f"{place}[{index}]", inner) for index, inner in enumerate(found)]
        else:
            yield place, found


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, _UnusableNumber):
        return "int"
    kinds = {bool: "bool", int: "int", float: "float", str: "str", list: "array", dict: "object"}
    return kinds[type(value)]


# Checks.


def _check_scenario(scenario: Scenario, path: str) -> None:
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
    # An unknown level is no error here: it has an answer with Kueue's message.
    for field, level in (("required", request.required), ("preferred", request.preferred)):
        if level is None:
            continue
        _check_length(level, f"{path}.{field}", MAX_LEVEL_LENGTH)
        if request.unconstrained:
            _reject(f"{path}.unconstrained", True, f"must not be set together with {field}")
    _check_size(request.slices, f"{path}.slices", LEVELS)
    for index, layer in enumerate(request.slices):
        _check_length(layer.topology, f"{path}.slices[{index}].topology", MAX_LEVEL_LENGTH)
        # The same applies to a first layer without a size.
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
    # There may be assignments of other PodSets, but at least one must be of these.
    if replacement.assignments and not set(known).intersection(replacement.assignments):
        _check_one_of(next(iter(replacement.assignments)), known, f"{path}.assignments", "PodSet")
