"""What a renderer makes of the documents: a table ends at the first line that is no row."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
RULE = re.compile(r"\|[-:| ]+\|")


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_no_row_stands_outside_of_its_table(page: Path) -> None:
    lines = [*page.read_text().splitlines(), ""]
    heads = [
        number
        for number, (before, line) in enumerate(itertools.pairwise(lines), start=1)
        if line.startswith("|") and not before.startswith("|")
    ]
    assert [lines[number] for number in heads if not RULE.fullmatch(lines[number + 1])] == []
