"""Every setting of a model: path, type, default and description.

For `--help` of the services, and for the page of settings.
"""

from __future__ import annotations

import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_WIDTH: Final = 96


class Setting(NamedTuple):
    """One setting, values as code in Markdown.

    Attributes:
        path: of the field, as in `--set`; `[]` after a list of blocks.
        type: with its bounds.
        default: as in YAML; "" for none, "required" if there must be a value.
        meaning: its description.
    """

    path: str
    type: str
    default: str
    meaning: str


_LIMITS: Final = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_NAMES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "path"}


def fields(model: type[BaseModel], at: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every field that holds a value, with its path; blocks are walked through."""
    for name, field in model.model_fields.items():
        path = f"{at}{field.alias or name}"
        inner, many = _block(field.annotation)
        if inner is not None and not many:
            yield from fields(inner, f"{path}.")
            continue
        yield path, field
        if inner is not None:
            yield from fields(inner, f"{path}[].")


def _block(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The block that an annotation holds, and whether it holds a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for inner in get_args(annotation):
        found, _ = _block(inner)
        if found is not None:
            return found, get_origin(annotation) is list
    return None, False


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(inner) for inner in arguments if inner is not type(None))
    if origin is list:
        inner = _type(arguments[0])
        return f"list of {inner if inner.endswith('object') else inner + 's'}"
    if origin is dict:
        return f"map of {_type(arguments[0])} to {_type(arguments[1])}"
    return _NAMES.get(annotation, "object")


def _kind(field: FieldInfo) -> str:
    limits = [
        f"{sign} {int(value) if value == int(value) else value}"
        for entry in field.metadata
        for key, sign in _LIMITS.items()
        if (value := getattr(entry, key, None)) is not None
    ]
    return ", ".join((_type(field.annotation), *limits))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float) and value.is_integer():
        return f"`{int(value)}`"
    if isinstance(value, list):
        return "<br>".join(f"`{entry}`" for entry in value)
    return f"`{value}`"


def described(model: type[BaseModel]) -> list[Setting]:
    """All settings of a model.

    Raises:
        ValueError: a field has no description.
    """
    rows = []
    for path, field in fields(model):
        if not field.description:
            raise ValueError(f"{model.__name__}: {path} has no description: add one in the model")
        rows.append(Setting(f"`{path}`", _kind(field), _default(field), field.description))
    # Blocks with defaults of their own, such as one budget for each purpose.
    return [_with_own_default(model, row) for row in rows]


def _with_own_default(model: type[BaseModel], row: Setting) -> Setting:
    path = row.path.strip("`")
    if "[]" in path or row.default == "required":
        return row
    value: Any = model.model_construct()
    field: FieldInfo | None = None
    for name in path.split("."):
        found = {f.alias or n: n for n, f in type(value).model_fields.items()}[name]
        field = type(value).model_fields[found]
        value = getattr(value, found)
    if field is None:
        return row
    copy = FieldInfo(annotation=field.annotation, default=value)
    return row._replace(default=_default(copy))


def settings_help(model: type[BaseModel]) -> str:
    """All settings as text for a terminal."""
    lines = []
    for row in described(model):
        path, kind, default, meaning = (_without_markdown(text) for text in row)
        shown = "required" if default == "required" else f"default {default}"
        lines.append(f"  {path} ({kind}{f', {shown}' if default else ''})")
        lines.append(
            textwrap.fill(
                meaning,
                _WIDTH,
                initial_indent=" " * 6,
                subsequent_indent=" " * 6,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    return "\n".join(lines)


def _without_markdown(text: str) -> str:
    return " ".join(text.replace("`", "").replace("<br>", ", ").split())
