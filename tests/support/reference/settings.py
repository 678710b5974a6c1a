"""The page of settings, from the models that the services read their configuration with."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rackgate.runtime.settings import BaseServiceSettings
from rackgate_assigner.settings import AssignerSettings
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_webhook.settings import WebhookSettings
from tests.support.reference import page, table

SERVICES: Final[tuple[tuple[str, type[BaseServiceSettings]], ...]] = (
    ("webhook", WebhookSettings),
    ("assigner", AssignerSettings),
    ("ungater", UngaterConfiguration),
)
PURPOSE: Final = "This page lists every setting of the webhook, the assigner and the ungater."
INTRODUCTION: Final = """\
A service reads its settings from three places. A later one overrides an earlier one:

1. The YAML file that `--config FILE` names. It starts with `apiVersion` and `kind`.
2. Environment variables. A name is `RACKGATE_`, the service, and the path of the field in snake case, in
   capitals, joined by `__`: `RACKGATE_ASSIGNER_LEADER_ELECTION__LEASE_DURATION=4`.
3. The flag `--set`, once for each field: `--set leaderElection.leaseDuration=4`.

Values of variables and flags are YAML. A service does not start with an unknown key, an unknown feature
gate or a value out of range. It reports every such fault with the path of the field. An environment variable
that matches no field is ignored.

```yaml
apiVersion: config.rackgate.dev/v1alpha1
kind: AssignerConfiguration
leaderElection:
  leaseDuration: 15
featureGates:
  ElasticJobsViaWorkloadSlices: true
```

All durations are numbers of seconds. [Feature gates](feature-gates.md) have a page of their own."""
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


def described(model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    """Rows of all fields of a model.

    Raises:
        ValueError: a field has no description.
    """
    rows = []
    for path, field in fields(model):
        if not field.description:
            raise ValueError(f"{model.__name__}: {path} has no description: add one in the model")
        rows.append((f"`{path}`", _kind(field), _default(field), field.description))
    # Blocks with defaults of their own, such as one budget for each purpose.
    return [_with_own_default(model, row) for row in rows]


def _with_own_default(
    model: type[BaseModel], row: tuple[str, str, str, str]
) -> tuple[str, str, str, str]:
    path = row[0].strip("`")
    if "[]" in path or row[2] == "required":
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
    return (row[0], row[1], _default(copy), row[3])


def text() -> str:
    """The page."""
    common = {row[0]: row for row in described(BaseServiceSettings)}
    head = ("Field", "Type", "Default", "Meaning")
    blocks = [
        f"## All services\n\n{table(head, [r for k, r in common.items() if k != '`kind`'])}",
    ]
    for service, model in SERVICES:
        own = [row for row in described(model) if row != common.get(row[0])]
        kind = model.model_fields["kind"].default
        blocks.append(
            f"## {service.capitalize()}\n\n`kind: {kind}`. Variables begin with"
            f" `RACKGATE_{service.upper()}_`.\n\n"
            + table(head, [row for row in own if row[0] != "`kind`"])
        )
    return page("Settings", PURPOSE, INTRODUCTION, *blocks)
