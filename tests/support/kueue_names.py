"""The names of Kueue's API and configuration, from `kueue_names.tsv`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_suffix(".tsv")


def kueue_names(section: str) -> list[str]:
    """The names of a section: fields, keys, gates or config.

    Raises:
        ValueError: there is no such section.
    """
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    found = [name for kind, _, name in (line.partition("\t") for line in lines) if kind == section]
    if not found:
        raise ValueError(f'no section "{section}" in {FILE.name}')
    return found
