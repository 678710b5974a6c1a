"""The demo's pictures: racks, hosts and ranks in a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rackgate_cli.demo.story import BLOCK, DEMO_JOBS, RACK, BoundPod

COLOURS = {
    "A": "bold black on cyan",
    "B": "bold black on yellow",
    "C": "bold black on green",
    "L": "bold black on magenta",
    "H": "bold black on magenta",
}
LETTERS = {act.name: act.letter for act in DEMO_JOBS}


def picture(
    nodes: Mapping[str, Mapping[str, str]],
    taken: Mapping[str, list[BoundPod]],
    letters: Mapping[str, str] = LETTERS,
) -> RenderableType:
    """A table of who runs where: a row per rack, a cell per host, `A3` = rank 3 of Job A.

    A host that runs pods of several shows them all: `H0B2`.

    Args:
        nodes: labels by node name.
        taken: seats by job name.
        letters: letter by job name.
    """
    on_host: dict[str, list[str]] = {}
    for name, letter in letters.items():
        for seat in taken.get(name, ()):
            on_host.setdefault(seat.host, []).append(f"{letter}{seat.rank}")
    width = max([4, *(len("".join(cells)) for cells in on_host.values())])
    racks: dict[tuple[str, str], list[str]] = {}
    for name in sorted(nodes):
        racks.setdefault((nodes[name][BLOCK], nodes[name][RACK]), []).append(name)
    table = Table(title="who runs in which rack", title_justify="left", pad_edge=False)
    table.add_column("block")
    table.add_column("rack")
    table.add_column("hosts: job and rank")
    last = None
    for (block, rack), hosts in sorted(racks.items()):
        line = Text()
        for host in hosts:
            cells = on_host.get(host, ["·"])
            line.append(f"{''.join(cells):^{width}}", style=COLOURS.get(cells[-1][0], "dim"))
            line.append(" ")
        table.add_row("" if block == last else block, rack, line)
        last = block
    return table


def live(
    nodes: Mapping[str, Mapping[str, str]],
    taken: Mapping[str, list[BoundPod]],
    states: Mapping[str, str],
) -> RenderableType:
    """The live view: the picture, and a line per Job with its state."""
    jobs = Table(pad_edge=False)
    for heading in ("job", "asks for", "pods", "state"):
        jobs.add_column(heading)
    for act in DEMO_JOBS:
        if act.name not in states:
            continue
        level = act.level.rsplit("-", 1)[-1]
        kind = "required" if "required" in act.annotation else "preferred"
        jobs.add_row(
            Text(f" {act.letter} {act.name} ", style=COLOURS[act.letter]),
            f"{kind} {level}",
            f"{len(taken.get(act.name, []))}/{act.count}",
            states[act.name],
        )
    return Group(picture(nodes, taken), jobs)
