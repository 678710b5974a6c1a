"""Headings, lines and tables: in color on a terminal, else as plain aligned text.

Cells contain untrusted text of a cluster or a file: control characters, invisible ones and those
that change the direction of text are escaped, and no cell is parsed as markup.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias

MAX_CELL = 512


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A paragraph; `style` is a rich style."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows under headings; no headings for pairs of key and value."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


Block: TypeAlias = Heading | Line | Grid


def clean(text: object) -> str:
    """The text on one line with control and format characters escaped, safe for a terminal."""
    found = str(text)
    if not found.isascii() or not found.isprintable():
        found = "".join(_shown(char) for char in found)
    return found if len(found) <= MAX_CELL else f"{found[: MAX_CELL - 1]}…"


def _shown(char: str) -> str:
    # C*: control, format (bidi, zero width), surrogate, private, unassigned; Z*: line separators.
    category = unicodedata.category(char)
    if category.startswith("C") or category in ("Zl", "Zp"):
        return char.encode("unicode_escape").decode("ascii")
    return char


def show(blocks: Iterable[Block], out: TextIO | None = None) -> None:
    """Print blocks, in color if `out` is a terminal and NO_COLOR is not set."""
    stream = sys.stdout if out is None else out
    if stream.isatty():
        _show_rich(list(blocks), stream)
    else:
        stream.write(plain(blocks))


def show_json(value: Any) -> None:
    """Print JSON, escaped, so that names from a cluster cannot control the terminal."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def plain(blocks: Iterable[Block]) -> str:
    """Blocks as aligned text, with an empty line between sections."""
    text: list[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            text.append(f"\n{clean(block.text)}")
        elif isinstance(block, Line):
            text.append(clean(block.text))
        else:
            text += _aligned(block)
    return "".join(f"{line}\n" for line in text).lstrip("\n")


def _aligned(grid: Grid) -> list[str]:
    rows = [[clean(cell) for cell in row] for row in grid.rows]
    if grid.headings:
        rows.insert(0, list(grid.headings))
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _show_rich(blocks: Sequence[Block], stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for block in blocks:
        if isinstance(block, Heading):
            console.print()
            console.print(Text(clean(block.text), style="bold"))
        elif isinstance(block, Line):
            console.print(Text(clean(block.text), style=block.style))
        else:
            table = Table(box=None, pad_edge=False, show_header=bool(block.headings))
            width = len(block.headings) or max((len(row) for row in block.rows), default=0)
            for column in range(width):
                heading = block.headings[column] if block.headings else ""
                table.add_column(Text(heading, style="dim"), overflow="fold")
            for row in block.rows:
                table.add_row(*(Text(clean(cell)) for cell in row))
            console.print(table)
