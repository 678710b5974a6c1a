"""YAML and JSON as users write pools and workflows: plain data, no alias, no key twice."""

from __future__ import annotations

from typing import Any, Final

import yaml

from rackgate_cli.errors import UsageError
from rackgate_cli.input_files import read_upto
from rackgate_cli.plain_yaml import plain_documents

MAX_BYTES: Final = 16 * 2**20


def read_documents(path: str) -> list[Any]:
    """The documents of a file, empty ones left out; a document that is a list counts as several.

    Args:
        path: of YAML or JSON; "-" for standard input.

    Raises:
        UsageError: it cannot be read, is too large, or holds what no API server could be sent.
    """
    raw = read_upto(path, MAX_BYTES)
    if len(raw) > MAX_BYTES:
        raise UsageError(f'"{path}" is larger than {MAX_BYTES >> 20} MiB')
    flat: list[Any] = []
    for document in plain_documents(path, raw):
        flat += document if isinstance(document, list) else [document]
    return [document for document in flat if document is not None]


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


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # chosen here
    """Writes every object out: readers above refuse aliases, and equal parts are frequent."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
