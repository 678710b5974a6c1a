"""What a renderer makes of the documents, and what a page must say."""

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


@pytest.mark.requirement("GNG-15")
@pytest.mark.parametrize(
    "words",
    [
        "Released together is not running together",
        "sets up devices and pulls images in its own time",
        "Set a start timeout in your application",
        "Then the time runs out, and the gang tries again",
        "If your nodes are scaled up on demand after the admission, set",
        "Nodes that are reserved for a gang are idle until its last pod is bound",
        "Nothing is promised about pods that another scheduler places",
    ],
)
def test_the_page_of_gangs_says_what_simultaneous_release_does_not_promise(words: str) -> None:
    page = (DOCS / "concepts" / "gangs.md").read_text()
    section = page.split("## What simultaneous release does not promise")[1].split("\n## ")[0]
    assert words in " ".join(section.replace("*", "").split())
