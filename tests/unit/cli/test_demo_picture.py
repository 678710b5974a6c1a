"""The pictures and lines of the demo, in wide and narrow terminals, and in a pipe."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from rackgate_cli.demo.job import JobStory
from rackgate_cli.demo.story import BLOCK, RACK, BoundPod, picture

NODES = {
    f"n{rack}{host}": {BLOCK: f"block-{rack // 2}", RACK: f"rack-{rack}"}
    for rack in range(4)
    for host in range(8)
}
BOUND = {
    "train-b": [
        BoundPod(host, NODES[f"n0{host}"][BLOCK], "rack-0", f"n0{host}") for host in range(8)
    ]
}


def drawn(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(picture(NODES, BOUND, {"train-b": "B"}, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_host_of_a_picture_is_cut(width: int) -> None:
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    assert [f"B{rank}" in text.split() for rank in range(8)] == [True] * 8
    assert text.count("·") == 24
    assert [text.count(f"rack-{rack}") for rack in range(4)] == [1] * 4


@pytest.mark.parametrize("width", [40, 80])
def test_a_line_is_wrapped_between_words_and_below_its_text(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    unused: Any = None
    text = "train-c pending (TopologyPlacementFailed): only 4 of 28 pods"
    JobStory(unused, console, 1).say(text)
    assert isinstance(console.file, io.StringIO)
    first, *more = console.file.getvalue().splitlines()
    assert first[5:9] == " s  "
    assert all(line.startswith(" " * 9) for line in more)
    words = " ".join([first[9:], *(line[9:] for line in more)]).split()
    assert words == text.split()
