"""The page of the values of the Helm chart, from their schema."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.support.chart.values import rows
from tests.support.reference import page, table

PURPOSE: Final = "This page lists every value of the Helm chart `deploy/helm/rackgate`."
INTRODUCTION: Final = """\
[Install Rackgate](../tasks/install.md#install-with-helm) shows how to use the chart. Helm rejects unknown keys,
values of another type and values out of range with their paths, also inside of `config`."""
_LIMITS: Final = (("minimum", "≥"), ("maximum", "≤"))


def _type(found: dict[str, Any]) -> str:
    if "enum" in found:
        return " or ".join(f"`{value}`" if value else "empty" for value in found["enum"])
    kind = found.get("type", "object")
    name = " or ".join(kind) if isinstance(kind, list) else kind
    limits = [f"{sign} {found[key]}" for key, sign in _LIMITS if key in found]
    return ", ".join((name, *limits))


def _default(value: Any) -> str:
    if value == "":
        return ""
    if isinstance(value, list) and value:
        return "<br>".join(f"`{entry}`" for entry in value)
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def text() -> str:
    """The page."""
    head = ("Value", "Type", "Default", "Meaning")
    found = [
        (f"`{path}`", _type(one), _default(one["default"]), one["description"])
        for path, one in rows()
    ]
    return page("Values of the Helm chart", PURPOSE, INTRODUCTION, table(head, found))
