"""Users' YAML as plain data: no duplicate keys, or values that JSON lacks.

Aliases are rejected unless the caller accepts them: then as many as expand to data of a sane size.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import yaml

from rackgate_cli.errors import UsageError
from rackgate_cli.input_files import read_upto

MAX_DEPTH: Final = 100
# Values that the aliases of a file may add; a manifest with more is an attack.
MAX_ALIASED: Final = 100_000
# A longer text counts as several values: an alias of it is as large.
LONG_VALUE: Final = 64

# Workflows of ten thousand tasks take seconds without libyaml.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_plain_yaml(name: str, most: int, *, aliases: bool = False) -> list[Any]:
    """The documents of a YAML or JSON file of at most `most` bytes, as JSON types.

    Args:
        name: of the file; "-" for standard input.
        most: bytes.
        aliases: accept anchors, aliases and merge keys.

    Raises:
        UsageError: it cannot be read or decoded, is too large, or has a value that JSON lacks.
    """
    raw = read_upto(name, most)
    if len(raw) > most:
        raise UsageError(f'"{name}" is larger than {most >> 20} MiB')
    return decode_plain_yaml(raw, name, aliases=aliases)


def decode_plain_yaml(raw: bytes, name: str, *, aliases: bool = False) -> list[Any]:
    """The documents of YAML or JSON, as JSON types; `name` is for messages.

    Raises:
        UsageError: it cannot be decoded, or has a value that JSON lacks.
    """
    try:
        _reject_yaml_bombs(raw, aliases=aliases)
        # YAML knows bytes, sets and numbers that JSON does not.
        documents = json.dumps(list(yaml.load_all(raw, Loader=_Loader)), allow_nan=False)
        return list(json.loads(documents))
    except (AttributeError, LookupError) as error:  # raised by the parser, without a line number
        said = "a value does not fit the tag before it, such as !!bool or !!timestamp"
        raise UsageError(f'"{name}" is not plain YAML data: {said}') from error
    except (TypeError, ValueError, OverflowError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())[:300]
        raise UsageError(f'"{name}" is not plain YAML data: {said}') from error


@dataclass(slots=True)
class _Open:
    """A value that is being read: how many values it has, itself included, and how deep it is."""

    anchor: str | None = None
    size: int = 1
    height: int = 0

    def add(self, size: int, height: int) -> None:
        """Count a value inside."""
        self.size += size
        self.height = max(self.height, height + 1)


def _reject_yaml_bombs(raw: bytes, *, aliases: bool) -> None:
    """Reject small files that expand to huge data or are slow to read.

    Raises:
        YAMLError: its aliases are not accepted or expand to too much, it is nested too deep, or is
            malformed.
    """
    opened: list[_Open] = []
    anchors: dict[str, tuple[int, int]] = {}  # size and height
    aliased = 0
    for event in yaml.parse(raw, Loader=_Base):
        if isinstance(event, yaml.DocumentStartEvent):
            opened, anchors = [_Open()], {}
        elif isinstance(event, yaml.AliasEvent):
            if not aliases:
                raise yaml.YAMLError("aliases are not supported")
            size, height = _aliased(event.anchor, anchors, opened)
            aliased += size
            if aliased > MAX_ALIASED:
                raise yaml.YAMLError(f"aliases expand to more than {MAX_ALIASED} values")
            opened[-1].add(size, height)
            _check_depth(len(opened) - 1 + height)
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append(_Open(event.anchor))
            _check_depth(len(opened) - 1)
        elif isinstance(event, yaml.CollectionEndEvent | yaml.ScalarEvent):
            ended = (
                opened.pop()
                if isinstance(event, yaml.CollectionEndEvent)
                else _Open(size=1 + len(event.value) // LONG_VALUE)
            )
            anchor = event.anchor if isinstance(event, yaml.ScalarEvent) else ended.anchor
            if anchor is not None:
                anchors[anchor] = (ended.size, ended.height)
            opened[-1].add(ended.size, ended.height)


def _aliased(
    anchor: str | None, anchors: Mapping[str, tuple[int, int]], opened: Sequence[_Open]
) -> tuple[int, int]:
    """Size and height of what an alias stands for."""
    if any(one.anchor == anchor for one in opened):
        raise yaml.YAMLError(f'alias "{anchor}" stands for itself')
    if anchor is None or anchor not in anchors:
        raise yaml.YAMLError(f'found undefined alias "{anchor}"')
    return anchors[anchor]


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise yaml.YAMLError(f"nested more than {MAX_DEPTH} deep")


class _Loader(_Base):  # type: ignore[misc]  # its base is chosen when this module is loaded
    """Keeps times as text and rejects ambiguous keys.

    YAML would use the last of duplicate keys, and would read some keys not as text (`NO` is
    false).
    """

    def flatten_mapping(self, node: Any) -> None:
        # Merge keys (`<<`) add keys that the mapping itself may replace, so check only once.
        if id(node) not in self._checked:
            self._checked[id(node)] = node
            self._reject_ambiguous_keys(node)
        super().flatten_mapping(node)

    @cached_property
    def _checked(self) -> dict[int, Any]:
        """The mappings that were checked, by id; ids are not reused while these are kept."""
        return {}

    def _reject_ambiguous_keys(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if key.value in seen:
                    raise yaml.YAMLError(f'duplicate key "{key.value}" in line {line}')
                if key.tag in _NO_TEXT:
                    found = json.dumps(self.construct_object(key))
                    raise yaml.YAMLError(
                        f'"{key.value}" in line {line} is read as {found}, not as text: '
                        "put it in quotes"
                    )
                seen.add(key.value)


_TAG: Final = "tag:yaml.org,2002:"
_NO_TEXT: Final = {f"{_TAG}{name}" for name in ("bool", "float", "int", "null")}
_NUMBERS: Final = {f"{_TAG}float", f"{_TAG}int"}


def _without_base60(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """A pattern of numbers without base-60 numbers, such as 12:30 for 750."""
    return re.compile(f"(?![^:]*:)(?:{pattern.pattern})", pattern.flags)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, _without_base60(pattern) if tag in _NUMBERS else pattern)
        for tag, pattern in pairs
        if tag != f"{_TAG}timestamp"
    ]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def dump_documents(documents: list[Any]) -> str:
    """Objects as YAML, in the order of their fields, each document after `---`."""
    text: str = yaml.dump_all(
        documents,
        Dumper=_Dumper,
        sort_keys=False,
        explicit_start=True,
        default_flow_style=False,
        width=1000,
    )
    return text


def show_yaml(value: Any) -> None:
    """Print a YAML document; characters outside ASCII are escaped."""
    sys.stdout.write(dump_documents([value]))


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # dynamic base
    """Writes no aliases, because they are rejected when read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
