"""Tables on terminals of any width, and piped."""

from __future__ import annotations

import io
import re

import pytest

from rackgate_cli.tables import Grid, Heading, Line, fitted, plain, show, wrapped

MESSAGE = (
    "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in "
    "flavor tas, 64 more needed"
)
JOBS = Grid(
    ("JOB", "IN LOCALQUEUE", "WAIT", "REASON", "MESSAGE"),
    [
        ("job/tune-the-large-model", "1", "12m", "WaitingForQuota", MESSAGE),
        ("job/b", "2", "2d", "WaitingForQuota", ""),
    ],
)
FACTS = Grid((), [("reason", "WaitingForQuota"), ("message", MESSAGE)])
WIDTHS = (40, 60, 80, 120)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def words(grid: Grid) -> set[str]:
    return {word for row in (grid.headings, *grid.rows) for cell in row for word in cell.split()}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("grid", [JOBS, FACTS])
def test_no_word_is_split_at_any_width(grid: Grid, width: int) -> None:
    lines = [text for text, _ in fitted(grid, width)]
    assert max(map(len, lines)) <= width
    assert words(grid) == {word for line in lines for word in line.split()}


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_on_the_terminal_has_whole_words(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    show([Heading("PENDING"), Line(MESSAGE), JOBS], out)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    assert words(JOBS) <= {word for line in lines for word in line.split()}


def test_a_table_that_does_not_fit_is_one_block_for_each_row() -> None:
    lines = [text for text, _ in fitted(JOBS, 40)]
    assert lines[:4] == [
        "JOB            job/tune-the-large-model",
        "IN LOCALQUEUE  1",
        "WAIT           12m",
        "REASON         WaitingForQuota",
    ]
    second = lines.index("")
    assert lines[second + 1] == "JOB            job/b"
    assert not any(line.startswith("MESSAGE") for line in lines[second:])


def test_a_column_of_long_text_gets_the_rest_of_the_line() -> None:
    lines = [text for text, _ in fitted(FACTS, 60)]
    assert lines[0] == "reason   WaitingForQuota"
    assert lines[2].startswith(" " * 9)


def test_a_word_that_is_longer_than_the_terminal_stays_whole() -> None:
    name = "a" * 50
    assert wrapped(f"the {name} ends", 40) == f"the\n{name}\nends"
    assert name in [text for text, _ in fitted(Grid(("NAME",), [(name,)]), 40)][-1].split()


def test_wide_characters_take_two_columns() -> None:
    lines = [text for text, _ in fitted(Grid(("A", "B"), [("模型", "x"), ("abcd", "y")]), 40)]
    assert lines == ["A     B", "模型  x", "abcd  y"]


def test_piped_output_is_never_wrapped() -> None:
    out = io.StringIO()
    show([Line(MESSAGE * 3), JOBS], out)
    assert out.getvalue() == plain([Line(MESSAGE * 3), JOBS])
    assert len(out.getvalue().splitlines()) == 4


def test_a_table_without_rows_shows_its_headings() -> None:
    assert [text for text, _ in fitted(Grid(("A", "B"), []), 40)] == ["A  B"]
    assert list(fitted(Grid((), []), 40)) == []
