"""Rejections: the field, the value found, and what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

At: TypeAlias = Literal["pool", "submission"]
Location: TypeAlias = tuple[str | int, ...]

MAX_REJECTIONS: Final = 100
MAX_SHOWN: Final = 128
_PLAIN: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_]*")
_TYPES: Final = {
    "string": "a string",
    "int": "a whole number",
    "dict": "a mapping",
    "model": "a mapping",
    "list": "a list",
    "tuple": "a list",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """One rejected field.

    Attributes:
        at: `pool` if saving the pool is rejected, else `submission`.
        why: class of the error, for programs, for instance `duplicate-key`.
        path: as in the file, for instance `topology_keys[2].label`.
        value: the value found; None if the field is missing.
        message: what was found and what is allowed, for people, without the path.
    """

    at: At
    why: str
    path: str
    value: Any
    message: str

    def __str__(self) -> str:
        """`path: message`."""
        return f"{self.path}: {self.message}" if self.path else self.message


# Stands for a rejection beyond `MAX_REJECTIONS`: counted, without a message.
REJECTION_NOT_SHOWN: Final = Rejection("submission", "more", "", None, "")


class RejectedError(ValueError):
    """A pool or a workflow is rejected.

    Attributes:
        rejections: in the order of the file, at most `MAX_REJECTIONS`; if there are more, a last
            one says how many were left out.
    """

    def __init__(self, rejections: Iterable[Rejection]) -> None:
        self.rejections = _bounded(tuple(rejections))
        super().__init__("\n".join(map(str, self.rejections)))


def _bounded(rejections: tuple[Rejection, ...]) -> tuple[Rejection, ...]:
    left = len(rejections) - MAX_REJECTIONS
    if left <= 0:
        return rejections
    rest = Rejection(rejections[0].at, "more", "", left, f"{left} more rejections are not shown")
    return (*rejections[:MAX_REJECTIONS], rest)


def format_value(value: object) -> str:
    """A value in quotes, printable and truncated; of a container only its type."""
    if value == "":
        return "''"  # `""` would look like an error in the message
    if isinstance(value, str):
        text = value if len(value) <= MAX_SHOWN else f"{value[: MAX_SHOWN - 1]}…"
        quoted = json.dumps(text, ensure_ascii=False)
        return quoted.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple | set):
        return "a list"
    try:
        return json.dumps(value, default=str)[:MAX_SHOWN]
    except ValueError:  # an integer with more digits than Python prints
        return "a number too long to show"


def format_names(values: Iterable[str]) -> str:
    """Names for a message, without quotes; `none` when there are none."""
    return ", ".join(format_value(value)[1:-1] for value in values) or "none"


def path_of(*location: str | int) -> str:
    """A path in the notation of messages: `resources.default.topology[0].key`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part) and len(part) <= MAX_SHOWN:
            text += f".{part}" if text else part
        else:
            text += f"[{format_value(part)}]"
    return text


def rejections_of_validation_error(
    error: ValidationError,
    model: type[BaseModel],
    at: At,
    prefix: Sequence[str | int] = (),
    already_reported: int = 0,
) -> list[Rejection]:
    """Rejections for the errors of pydantic, with our messages.

    Args:
        error: raised while `model` was validated.
        model: has the allowed fields, for the message about an unknown one.
        at: where it is rejected.
        prefix: path to the data of the model.
        already_reported: number of earlier rejections. Beyond `MAX_REJECTIONS` no message is built,
            because hundreds of thousands of messages take seconds.
    """
    room, count = max(0, MAX_REJECTIONS - already_reported), error.error_count()
    details = error.errors(include_url=False)[:room] if room else []
    shown_ones = [_rejection_of_detail(one, model, at, (*prefix, *one["loc"])) for one in details]
    return [*shown_ones, *[REJECTION_NOT_SHOWN] * (count - len(shown_ones))]


def _rejection_of_detail(
    detail: ErrorDetails, model: type[BaseModel], at: At, where: Location
) -> Rejection:
    kind, value = detail["type"], detail.get("input")
    context = detail.get("ctx", {})
    path = path_of(*where)
    if kind == "extra_forbidden":
        message = _unknown(str(where[-1]), _allowed(model, detail["loc"]))
        return Rejection(at, "unknown-field", path, value, message)
    if kind == "literal_error" and where[-1] != "requirementType":
        message = f"{format_value(value)} is not one of {context['expected']}"
        return Rejection(at, "type", path, value, message)
    if kind == "literal_error":
        message = f"{format_value(value)} is not a valid requirementType: use required or preferred"
        return Rejection(at, "requirement-type", path, value, message)
    if kind == "missing":
        return Rejection(at, "missing", path, None, "a value is required")
    if kind == "quantity":
        return Rejection(at, "quantity", path, value, f"{format_value(value)} {detail['msg']}")
    if kind in ("too_long", "string_too_long"):
        what = "entries" if kind == "too_long" else "characters"
        message = f"more than {context['max_length']} {what}: use {context['max_length']} at most"
        return Rejection(at, "too-long", path, value, message)
    if kind == "string_too_short":
        return Rejection(
            at, "empty", path, value, f"{format_value(value)} is empty: a name is required"
        )
    wanted = _TYPES.get(kind.split("_", 1)[0])
    message = (
        f"{format_value(value)} is not {wanted}"
        if wanted
        else f"{format_value(value)}: {detail['msg']}"
    )
    if wanted == "a string" and isinstance(value, int | float):
        message += ": put it in quotes"
    return Rejection(at, "type", path, value, message)


def _unknown(name: str, allowed: Sequence[str]) -> str:
    near = get_close_matches(name[:MAX_SHOWN], allowed, n=1, cutoff=0.6)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return f"unknown field {format_value(name)}{hint} (allowed: {', '.join(allowed)})"


def _allowed(model: type[BaseModel], location: Location) -> list[str]:
    """Fields of the model that has the unknown field; `location` leads there from `model`."""
    for part in location[:-1]:
        if isinstance(part, str):
            model = _inner(model, part) or model
    return list(model.model_fields)


def _inner(model: type[BaseModel], field: str) -> type[BaseModel] | None:
    """The model of the entries of a list."""
    known = model.model_fields.get(field)
    arguments = get_args(known.annotation) if known else ()
    entry = getattr(arguments[0], "__origin__", arguments[0]) if arguments else None
    return entry if isinstance(entry, type) and issubclass(entry, BaseModel) else None
