"""The `tas-scenario/1` format: JSON in, data of the right kinds out. Pure.

What is of the wrong kind is told by its path in the document, the value found there and what it
must be: `scenarios[3].podSets[0].count: "two": must be a whole number`.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from rackgate.topology.assignment import shown
from rackgate.wire.core import Taint, Toleration

FORMAT: Final = "tas-scenario/1"
# Beyond this, a value found is not looked up for the message: that takes many times the space.
_LOCATE_LIMIT_BYTES: Final = 64 << 20
_LONGEST_NUMBER: Final = 100  # digits that are read as a number for a message


class ScenarioError(ValueError):
    """The text is no scenario file, or a scenario in it cannot be read; begins with the path."""


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
    """A pod that was not placed by topology; `requests` are those of the whole pod."""

    name: str = ""
    requests: dict[str, str | int | float] = {}
    node: str | None = None
    phase: str = ""


class ScenarioUsage(ScenarioObject, frozen=True):
    """Pods that were placed by topology; `requests` are per pod."""

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
    """What a PodSet asks of the topology."""

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
    """A node broke under admitted PodSets."""

    unhealthy_nodes: tuple[str, ...] = ()
    assignments: dict[str, ScenarioAssignment] = {}
    owned_by_single_pod: bool = False


class Scenario(ScenarioObject, frozen=True):
    """One placement question, with the expected answer where the file knows one."""

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


def decode_scenarios(text: bytes) -> tuple[Scenario, ...]:
    """The scenarios of a file, every field of its kind; whether they make sense is not asked.

    Raises:
        ScenarioError: no JSON, another format, or a field of the wrong kind.
    """
    if not text.strip():
        raise ScenarioError(f"the file is empty: a {FORMAT} document is needed")
    try:
        # First the format: another one explains everything else.
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


# Where msgspec says what is wrong: `$.scenarios[0].nodes[3].labels[...]`; the key is not said.
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
    """Text of a number that is none, or that nobody can use."""

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
    """Why the text is no JSON; the path of a number that JSON does not know."""
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
    """What is at the steps below a value, with its full path; `...` is any key of an object."""
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
    """Every value that holds no others, with its path."""
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
