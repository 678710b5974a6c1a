"""What the demo's picture shows."""

from __future__ import annotations

import io

from rich.console import Console

from rackgate_cli.demo.story import BLOCK, RACK, BoundPod, picture

NODES = {f"n{place}": {BLOCK: "b1", RACK: "r1"} for place in range(3)}


def drawn(taken: dict[str, list[BoundPod]], letters: dict[str, str]) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(picture(NODES, taken, letters))
    shown = console.file
    assert isinstance(shown, io.StringIO)
    return shown.getvalue()


def test_a_host_that_runs_pods_of_several_shows_them_all() -> None:
    head, worker = BoundPod(0, "b1", "r1", "n1"), BoundPod(12, "b1", "r1", "n1")
    text = drawn({"head": [head], "workers": [worker]}, {"head": "H", "workers": "B"})
    assert "H0B12" in text
    assert text.count("·") == 2
