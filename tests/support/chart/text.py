"""YAML with template actions in it: the text of a template from an object.

An object is what YAML gives: mappings, lists and scalars. Where a value decides, it has one of the
nodes below instead of a value. Strings may name the namespace of the installation, which becomes
that of the release.
"""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass
from typing import Any, Final

import yaml

from rackgate.api.names import SYSTEM_NAMESPACE

WIDTH: Final = 110
# `{{` of the text itself, such as labels in alerts: Helm prints what is in backquotes.
_BRACES: Final = {"{{": "{{`{{`}}"}


@dataclass(frozen=True)
class If:
    """What is there under a condition; in a list, `then` and `otherwise` are lists of items."""

    condition: str
    then: Any
    otherwise: Any = None


@dataclass(frozen=True)
class Expression:
    """A scalar that an action prints."""

    text: str


@dataclass(frozen=True)
class Tree:
    """A mapping or list that an action prints as YAML."""

    text: str


@dataclass(frozen=True)
class Optional:
    """A mapping or list of the values, left out if it is empty; with key "", its own fields."""

    value: str


def template(entry: Any) -> str:
    """The text of a template that gives this object."""
    return "\n".join(_mapping(entry, 0)) + "\n"


def _mapping(entry: dict[str, Any], indent: int) -> list[str]:
    lines = []
    for key, value in entry.items():
        lines += _field(key, value, indent)
    return lines


def _field(key: str, value: Any, indent: int) -> list[str]:
    pad, name = " " * indent, scalar(key, indent)
    if isinstance(value, If):
        lines = [f"{pad}{{{{- if {value.condition} }}}}", *_field(key, value.then, indent)]
        if value.otherwise is not None:
            lines += [f"{pad}{{{{- else }}}}", *_field(key, value.otherwise, indent)]
        return [*lines, f"{pad}{{{{- end }}}}"]
    if isinstance(value, Optional):
        inner = f"{pad}{name}: {{{{- toYaml . | nindent {indent + 2} }}}}"
        if not key:
            inner = f"{pad}{{{{- toYaml . | nindent {indent} }}}}"
        return [f"{pad}{{{{- with {value.value} }}}}", inner, f"{pad}{{{{- end }}}}"]
    if isinstance(value, Tree):
        return [f"{pad}{name}: {{{{- {value.text} | nindent {indent + 2} }}}}"]
    if isinstance(value, Expression):
        return [f"{pad}{name}: {{{{ {value.text} }}}}"]
    if isinstance(value, dict) and value:
        return [f"{pad}{name}:", *_mapping(value, indent + 2)]
    if isinstance(value, list) and value:
        return [f"{pad}{name}:", *_items(value, indent + 2)]
    return [f"{pad}{name}: {scalar(value, indent + 2)}"]


def _items(entries: list[Any], indent: int) -> list[str]:
    pad, lines = " " * indent, list[str]()
    for entry in entries:
        if isinstance(entry, If):
            lines += [f"{pad}{{{{- if {entry.condition} }}}}", *_items(entry.then, indent)]
            if entry.otherwise is not None:
                lines += [f"{pad}{{{{- else }}}}", *_items(entry.otherwise, indent)]
            lines.append(f"{pad}{{{{- end }}}}")
        elif isinstance(entry, Tree):  # items, each of them with its dash
            lines.append(f"{pad}{{{{- {entry.text} | nindent {indent} }}}}")
        elif isinstance(entry, Expression):
            lines.append(f"{pad}- {{{{ {entry.text} }}}}")
        elif isinstance(entry, dict) and entry:
            first, *rest = _mapping(entry, indent + 2)
            lines += [f"{pad}- {first.lstrip()}", *rest]
        elif isinstance(entry, list) and entry:
            raise TypeError("lists of lists are not needed")
        else:
            lines.append(f"{pad}- {scalar(entry, indent + 2)}")
    return lines


def scalar(value: Any, indent: int) -> str:
    """A scalar, or an empty mapping or list, after its key; further lines have this indent."""
    if not isinstance(value, str):
        return json.dumps(value)
    if SYSTEM_NAMESPACE in value and "\n" not in value:
        return _moved(json.dumps(value, ensure_ascii=False))
    if "\n" in value or len(value) + indent > WIDTH:
        block = _block(value, indent)
        if block:
            return _moved(block)
    text = yaml.safe_dump(value, width=2**30, allow_unicode=True).removesuffix("...\n")
    return _moved(text.strip() if "\n" not in text.strip() else json.dumps(value))


def _block(value: str, indent: int) -> str:
    """Literal if it has lines, else folded; empty if neither gives this text back."""
    if "\n" in value:
        style, lines = "|" if value.endswith("\n") else "|-", value.removesuffix("\n").split("\n")
    else:
        style = ">-"
        lines = textwrap.wrap(value, WIDTH - indent, break_long_words=False, break_on_hyphens=False)
    text = "\n".join([style, *(" " * indent + line if line else "" for line in lines)])
    try:
        back = yaml.safe_load(f"key: {text}")["key"]
    except yaml.YAMLError:
        return ""
    return text if back == value else ""


def _moved(text: str) -> str:
    text = re.sub(r"\{\{", lambda found: _BRACES[found.group()], text)
    return text.replace(SYSTEM_NAMESPACE, "{{ .Release.Namespace }}")
