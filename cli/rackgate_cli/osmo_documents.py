"""YAML and JSON as users write pools and workflows: plain data, no alias, no key twice."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from rackgate_cli.errors import UsageError

STDIN: Final = "-"
MAX_BYTES: Final = 16 * 2**20
MAX_DEPTH: Final = 100

# Workflows of ten thousand tasks take seconds without libyaml.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_documents(path: str) -> list[Any]:
    """The documents of a file, empty ones left out; a document that is a list counts as several.

    Args:
        path: of YAML or JSON; "-" for standard input.

    Raises:
        UsageError: it cannot be read, is too large, or holds what no API server could be sent.
    """
    raw = _read(path)
    try:
        _refuse_bombs(raw)
        found = [_as_json(document) for document in yaml.load_all(raw, Loader=_Loader)]
    except (yaml.YAMLError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())[:300]
        raise UsageError(f'"{path}" is no YAML of plain data: {said}') from error
    flat: list[Any] = []
    for document in found:
        flat += document if isinstance(document, list) else [document]
    return [document for document in flat if document is not None]


def _refuse_bombs(raw: bytes) -> None:
    """Refuse what is small as text, and huge as data or slow to read.

    Raises:
        YAMLError: there is an alias, or one part inside too many others; or this is no YAML.
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


def dump_documents(documents: list[Any]) -> str:
    """Objects as YAML, in the order of their fields, each document begun by `---`."""
    text: str = yaml.dump_all(
        documents,
        Dumper=_Dumper,
        sort_keys=False,
        explicit_start=True,
        default_flow_style=False,
        width=1000,
    )
    return text


def _read(path: str) -> bytes:
    try:
        if path == STDIN:
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: no file has such a name
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f'"{path[:200]}" cannot be read: {reason or error}') from error
    if len(raw) > MAX_BYTES:
        raise UsageError(f'"{path}" is larger than {MAX_BYTES >> 20} MiB')
    return raw


def _as_json(document: Any) -> Any:
    # YAML knows bytes, sets and numbers that JSON does not.
    return json.loads(json.dumps(document, allow_nan=False))


class _Loader(_Base):  # type: ignore[misc]  # its base is chosen when this module is loaded
    """Times stay text.

    A key that is there twice is refused, as the last one would win; and so is one that is no text
    (`NO` is false to YAML), as it would become another word.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if key.value in seen:
                    raise yaml.YAMLError(f'"{key.value}" is there twice, again in line {line}')
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


def _no_time(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """A pattern of numbers without those to the base of 60, such as 12:30 for 750."""
    return re.compile(f"(?![^:]*:)(?:{pattern.pattern})", pattern.flags)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, _no_time(pattern) if tag in _NUMBERS else pattern)
        for tag, pattern in pairs
        if tag != f"{_TAG}timestamp"
    ]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # as _Loader
    """Writes every object out: readers above refuse aliases, and equal parts are frequent."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
