"""Users' YAML as plain data: no aliases, duplicate keys, or values that JSON lacks."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import yaml

from rackgate_cli.errors import UsageError
from rackgate_cli.input_files import read_upto

MAX_DEPTH: Final = 100

# Workflows of ten thousand tasks take seconds without libyaml.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_plain_yaml(name: str, most: int) -> list[Any]:
    """The documents of a YAML or JSON file of at most `most` bytes, as JSON types.

    Raises:
        UsageError: it cannot be read or decoded, is too large, or has a value that JSON lacks.
    """
    raw = read_upto(name, most)
    if len(raw) > most:
        raise UsageError(f'"{name}" is larger than {most >> 20} MiB')
    return decode_plain_yaml(raw, name)


def decode_plain_yaml(raw: bytes, name: str) -> list[Any]:
    """The documents of YAML or JSON, as JSON types; `name` is for messages.

    Raises:
        UsageError: it cannot be decoded, or has a value that JSON lacks.
    """
    try:
        _reject_yaml_bombs(raw)
        # YAML knows bytes, sets and numbers that JSON does not.
        documents = json.dumps(list(yaml.load_all(raw, Loader=_Loader)), allow_nan=False)
        return list(json.loads(documents))
    except (AttributeError, LookupError) as error:  # raised by the parser, without a line number
        said = "a value does not fit the tag before it, such as !!bool or !!timestamp"
        raise UsageError(f'"{name}" is not plain YAML data: {said}') from error
    except (TypeError, ValueError, OverflowError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())[:300]
        raise UsageError(f'"{name}" is not plain YAML data: {said}') from error


def _reject_yaml_bombs(raw: bytes) -> None:
    """Reject small files that expand to huge data or are slow to read.

    Raises:
        YAMLError: it has an alias, is nested too deep, or is malformed.
    """
    depth = 0
    for event in yaml.parse(raw, Loader=_Base):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(f"nested more than {MAX_DEPTH} deep")


class _Loader(_Base):  # type: ignore[misc]  # its base is chosen when this module is loaded
    """Keeps times as text and rejects ambiguous keys.

    YAML would use the last of duplicate keys, and would read some keys not as text (`NO` is
    false).
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
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
        return super().construct_mapping(node, deep)


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


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # dynamic base
    """Writes no aliases, because they are rejected when read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
