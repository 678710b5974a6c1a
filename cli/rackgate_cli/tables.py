"""Headings, lines and tables: in color on a terminal, else as plain aligned text.

On a terminal, long cells continue on the next line between words; words are never split. A table
whose words do not fit side by side is shown as one block for each row. Text that is piped is never
wrapped.

Cells contain untrusted text of a cluster or a file: control characters, invisible ones and those
that change the direction of text are escaped, and no cell is parsed as markup.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias

MAX_CELL = 512
# A column of long texts is at least this wide.
_LEAST_TEXT = 20


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
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)

    def put(text: str, style: str = "") -> None:
        # The lines are broken already; a longer word is left to the terminal.
        console.print(Text(text, style=style), soft_wrap=True)

    for block in blocks:
        if isinstance(block, Heading):
            console.print()
            put(wrapped(clean(block.text), console.width), "bold")
        elif isinstance(block, Line):
            put(wrapped(clean(block.text), console.width), block.style)
        else:
            for text, style in fitted(block, console.width):
                put(text, style)


def fitted(grid: Grid, width: int) -> Iterator[tuple[str, str]]:
    """The lines of a table on a terminal of this width, with their styles."""
    rows = [[clean(cell) for cell in row] for row in grid.rows]
    columns = max((len(row) for row in (grid.headings, *rows)), default=0)
    rows = [[*row, *([""] * (columns - len(row)))] for row in rows]
    widths = _column_widths([*([grid.headings] if grid.headings else []), *rows], width)
    if widths is None:
        yield from _stacked(grid.headings, rows, width)
        return
    styled = [(grid.headings, "dim")] if grid.headings else []
    for row, style in [*styled, *((row, "") for row in rows)]:
        cells = [_wrap(cell, limit) for cell, limit in zip(row, widths, strict=True)]
        for line in range(max(map(len, cells))):
            parts = [cell[line] if line < len(cell) else "" for cell in cells]
            yield _joined(parts, widths), style


def _column_widths(rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Widths with which all columns fit and no word is split; None if there are none."""
    if not rows:
        return []
    columns = list(zip(*rows, strict=True))
    least = [max(max(map(_cells, cell.split()), default=0) for cell in cells) for cells in columns]
    most = [max(map(_cells, cells)) for cells in columns]
    left = width - 2 * (len(columns) - 1) - sum(least)
    if left < 0:
        return None
    widths = list(least)
    # Those that need little get it first, so that one long text takes what remains.
    order = sorted(range(len(columns)), key=lambda at: most[at] - least[at])
    for at in order:
        more = min(most[at] - least[at], left)
        widths[at] += more
        left -= more
    longest = max(range(len(columns)), key=lambda at: most[at])
    if widths[longest] < min(most[longest], _LEAST_TEXT):
        return None
    return widths


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell + " " * (width - _cells(cell)) for cell, width in zip(cells, widths, strict=True)
    )
    return "  ".join(padded).rstrip()


def _stacked(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> Iterator[tuple[str, str]]:
    """Each row as lines `HEADING  cell`; without headings, the first cell is the heading."""
    for at, row in enumerate(rows):
        if at and headings:
            yield "", ""
        pairs = (
            [pair for pair in zip(headings, row, strict=True) if pair[1]]
            if headings
            else [(row[0], "  ".join(filter(None, row[1:])))]
        )
        indent = max((_cells(name) for name, _ in pairs), default=0) + 2
        if not headings or indent > width // 2:
            indent = 2
            for name, text in pairs:
                yield wrapped(name, width), "dim"
                for line in _wrap(text, width - indent):
                    yield " " * indent + line, ""
            continue
        for name, text in pairs:
            first, *more = _wrap(text, width - indent)
            yield f"{name}{' ' * (indent - _cells(name))}{first}", ""
            for line in more:
                yield " " * indent + line, ""


def wrapped(text: str, width: int) -> str:
    """Text in lines of at most this width, broken between words only."""
    return "\n".join(_wrap(text, width))


def _wrap(text: str, width: int) -> list[str]:
    if _cells(text) <= width:
        return [text]
    lines = [""]
    for word in text.split():
        if lines[-1] and _cells(lines[-1]) + 1 + _cells(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines


def _cells(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
