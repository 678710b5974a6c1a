"""Parsing of settings layers into nested camelCase mappings, and wording of their faults."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

# Kubernetes injects RACKGATE_WEBHOOK_PORT=tcp://10.0.0.1:443 for a Service of that name.
SERVICE_LINK = re.compile(r"^(tcp|udp|sctp)://")


class SettingsError(ValueError):
    """The configuration is wrong; `lines` holds one fault each."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)


def from_flags(flags: Sequence[str]) -> dict[str, Any]:
    """`a.b=value` entries as a nested mapping; later entries win.

    Raises:
        SettingsError: an entry without `=`, or a value that is not YAML.
    """
    layer: dict[str, Any] = {}
    for flag in flags:
        path, equals, text = flag.partition("=")
        if not equals or not path:
            raise SettingsError([f'--set "{flag}": expected key=value'])
        _put(layer, path.split("."), _scalar(f"--set {path}", text))
    return layer


def from_environment(
    model: type[BaseModel], prefix: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Variables `PREFIX` + field names joined by `__`, as a nested mapping.

    Names that are no field are left alone: Kubernetes puts variables with the same prefix
    into every Pod beside a Service of that name.
    """
    layer: dict[str, Any] = {}
    for name, text in sorted(environ.items()):
        if not name.startswith(prefix) or SERVICE_LINK.match(text):
            continue
        path = _field_path(model, name.removeprefix(prefix).lower().split("__"))
        if path:
            _put(layer, path, _scalar(name, text))
    return layer


def unknown_keys(model: type[BaseModel], layer: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """One line for each key of `layer` that `model` has no field for."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    for key, value in layer.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f' (did you mean "{near[0]}"?)' if near else ""
            yield f'{at}unknown key "{key}"{hint}'.replace(".unknown", ": unknown")
        elif isinstance(value, Mapping) and (inner := _inner_model(fields[key])):
            yield from unknown_keys(inner, value, f"{at}{key}.")


def validation_lines(error: ValidationError) -> list[str]:
    """Pydantic's faults as `path: what is wrong (found ...)`."""
    lines = []
    for fault in error.errors(include_url=False):
        path = ".".join(str(part) for part in fault["loc"])
        text = fault["msg"].removeprefix("Value error, ")
        message = text[:1].lower() + text[1:]
        if not isinstance(fault["input"], Mapping | BaseModel):
            message += f" (found {fault['input']!r})"
        lines.append(f"{path}: {message}" if path else message)
    return lines


def _scalar(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError([f"{name}: value is not YAML: {text!r}"]) from error


def _put(layer: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        inner = layer.setdefault(key, {})
        if not isinstance(inner, dict):
            inner = layer[key] = {}
        layer = inner
    layer[path[-1]] = value


def _field_path(model: type[BaseModel], parts: Sequence[str]) -> list[str]:
    """The camelCase path of snake_case `parts`, or [] when there is no such field."""
    field = model.model_fields.get(parts[0])
    if field is None:
        return []
    head = field.alias or parts[0]
    if len(parts) == 1:
        return [head]
    inner = _inner_model(field)
    rest = _field_path(inner, parts[1:]) if inner else []
    return [head, *rest] if rest else []


def _inner_model(field: FieldInfo) -> type[BaseModel] | None:
    """The settings block that `field` holds, also when it is optional."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
