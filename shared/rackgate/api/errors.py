"""What a model refuses, in words for people: the path in the manifest, the value, what helps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rackgate.api.meta import DNS_LABEL, LABEL_KEY, LABEL_VALUE, QUANTITY, SUBDOMAIN

MAX_ERRORS: Final = 16
_MAX_SHOWN: Final = 64
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_PATTERN_ADVICE: Final = {
    SUBDOMAIN: ("is not an object name", "use lower-case letters, digits, - and ."),
    DNS_LABEL: ("is not a DNS label", "use at most 63 lower-case letters, digits and -"),
    LABEL_KEY: ("is not a label key", 'use a form such as "rack" or "example.com/rack"'),
    LABEL_VALUE: ("is not a label value", "use at most 63 letters, digits, -, _ and ."),
    QUANTITY: ("is not a quantity", 'use a form such as "500m", "4" or "1.5Gi"'),
}
_BOUND_ADVICE: Final = {
    "greater_than_equal": ("is too small", "use {ge} or more"),
    "less_than_equal": ("is too large", "use {le} or less"),
    "string_too_short": ("is too short", "use at least {min_length} characters"),
    "string_too_long": ("is too long", "use at most {max_length} characters"),
}
_TYPE_NAMES: Final = {
    "string": "a string",
    "int": "a whole number",
    "bool": "true or false",
    "dict": "an object",
    "model": "an object",
    "list": "a list",
}


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One refused field.

    Attributes:
        path: in wire names, as `spec.levels[2].nodeLabel`; empty for the object itself.
        problem: what was found.
        advice: what would help; may be empty.
    """

    path: str
    problem: str
    advice: str = ""

    def __str__(self) -> str:
        text = f"{self.problem}: {self.advice}" if self.advice else self.problem
        return f"{self.path}: {text}" if self.path else text


def _format_value(value: object) -> str:
    """A value in quotes, long ones cut; of containers only what they are."""
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= _MAX_SHOWN else f'"{value[:_MAX_SHOWN]}..."'
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return json.dumps(value, default=str)[:_MAX_SHOWN]


def _field_path(location: tuple[str | int, ...], inner: str) -> str:
    text = ""
    for part in location:
        if part == "[key]":
            continue  # pydantic's mark of a refused key: the key stands before it
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part)}]"
    return f"{text}.{inner}" if text and inner else text or inner


def _pattern_problem(value: object, context: Mapping[str, Any]) -> tuple[str, str]:
    pattern = str(context.get("pattern", ""))
    problem, advice = _PATTERN_ADVICE.get(
        pattern, ("has not the needed form", f"it must match {pattern}")
    )
    return f"value {_format_value(value)} {problem}", advice


def _length_problem(kind: str, context: Mapping[str, Any]) -> tuple[str, str]:
    found = context.get("actual_length")
    if kind == "too_short":
        return f"{found} entries are too few", f"{context['min_length']} are needed"
    limit = context["max_length"]
    many = f"more than {limit}" if found is None else str(found)
    return f"{many} entries are too many", f"at most {limit} are allowed"


def _type_problem(kind: str, value: object) -> tuple[str, str] | None:
    wanted = _TYPE_NAMES.get(kind.split("_", 1)[0])
    if wanted is None:
        return None
    return f"value {_format_value(value)} is not {wanted}", f"write {wanted}"


def _describe_error(detail: ErrorDetails) -> tuple[str, str]:
    """Problem and advice of one pydantic error."""
    kind, value, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    if kind == "missing":
        return "the field is missing", "add it"
    if kind == "string_pattern_mismatch":
        return _pattern_problem(value, context)
    if kind in ("too_short", "too_long"):
        return _length_problem(kind, context)
    if kind == "literal_error":
        return f"value {_format_value(value)} is not known", f"use one of {context.get('expected')}"
    if kind in _BOUND_ADVICE:
        problem, advice = _BOUND_ADVICE[kind]
        return f"value {_format_value(value)} {problem}", advice.format(**context)
    if kind == "value_error":
        return str(context.get("error", detail["msg"])), ""
    if kind in ("rule", "quantity"):
        return detail["msg"], ""
    return _type_problem(kind, value) or (f"value {_format_value(value)}: {detail['msg']}", "")


def field_problems(error: ValidationError) -> list[FieldProblem]:
    """The refused fields of a model, in the model's order, `MAX_ERRORS` at most."""
    problems = []
    for detail in error.errors(include_url=False)[:MAX_ERRORS]:
        inner = str(detail.get("ctx", {}).get("path", ""))
        problems.append(FieldProblem(_field_path(detail["loc"], inner), *_describe_error(detail)))
    return problems


def field_errors(error: ValidationError) -> list[str]:
    """Lines as `spec.levels[2].nodeLabel: value "Block/x" is not a label key: use ...`."""
    return [str(problem) for problem in field_problems(error)]
