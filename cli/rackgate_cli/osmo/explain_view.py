"""The answer of `rackgate osmo explain` as headings, lines and tables for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rackgate_cli.tables import Block, Grid, Heading, Line
from rackgate_osmo.explain.explanation import (
    DomainRoom,
    Group,
    KeyRoom,
    LeftOut,
    Shortage,
    Subgroup,
    WorkflowExplanation,
)

ROWS: Final = 100  # subgroups of one task group
PLACES: Final = 8  # domains of one subgroup
_ANSWERS: Final = {
    "scheduled": "can be placed",
    "partly": "can be placed in part",
    "pending": "cannot be placed",
    "undecided": "not decided",
}
_KAI: Final = {
    "scheduled": "scheduled",
    "partly": "some task groups stay pending",
    "pending": "stays pending",
    "unknown": "cannot be known",
}


def blocks(found: WorkflowExplanation) -> Iterator[Block]:
    """Everything worth reading, the answer first."""
    title = f"workflow {found.workflow} in pool {found.pool}"
    yield Line(f"{title}: {_ANSWERS[found.answer]}", "bold")
    well = found.answer == found.kai_result == "scheduled"
    yield Line(found.summary, "green" if well else "yellow")
    yield from (Line(f"warning: {text}", "red") for text in found.warnings)
    if found.left_out:
        reasons = ", ".join(f"{one.why}: {one.nodes}" for one in found.left_out)
        yield Line(f"nodes left out: {sum(one.nodes for one in found.left_out)} ({reasons})")
    # Those that are asked about first; else in the order in which KAI takes them.
    for group in sorted(found.groups, key=_well):
        yield from _group(group, found)
    yield Heading("TOPOLOGY")
    yield Grid(
        ("KEY", "LABEL", "DOMAINS", "NODES WITHOUT", "MOST ROOM (PODS)"),
        [_key(key) for key in found.keys],
    )
    yield Line(f"nodes that pods may use: {found.nodes}")
    if found.left_out:
        yield Heading("NODES LEFT OUT")
        yield Grid(("NODES", "WHY", "FOR EXAMPLE"), [_left(one) for one in found.left_out])


def _well(group: Group) -> bool:
    return group.answer == group.kai.result == "scheduled"


def _group(group: Group, found: WorkflowExplanation) -> Iterator[Block]:
    yield Heading(f"TASK GROUP {group.name} (PodGroup {group.pod_group})")
    yield Line(group.summary)
    if group.shortages:
        yield Grid(
            ("MISSING AT", "SUBGROUP", "PODS", "TAKES", "MISSING", "INSIDE", "CLOSEST"),
            [_shortage(one) for one in group.shortages],
        )
    placed = group.answer == "scheduled"
    rows = [_subgroup(one, placed) for one in group.subgroups[:ROWS]]
    if rows:
        yield Grid(("SUBGROUP", "ASKED", "PODS", "WHERE"), rows)
    more = len(group.subgroups) - ROWS
    if more > 0:
        yield Line(f"and {more} more subgroups; --json has them all")
    if not group.complete:
        yield Line("the search for further preferences was cut off; give it more --steps", "yellow")
    yield from _kai(group, found)


def _kai(group: Group, found: WorkflowExplanation) -> Iterator[Block]:
    if group.running:
        yield Line(f"on nodes: {_domains(group.running)}")
    kai = group.kai
    style = "" if kai.result == group.answer else "yellow"
    yield Line(f"KAI v{found.kai_version} ({found.profile}): {_KAI[kai.result]}", style)
    for one in kai.deviations:
        yield Grid((), [("because", f"{one.name}: {one.text}"), ("what would help", one.help)])


def _subgroup(one: Subgroup, placed: bool) -> tuple[str, ...]:
    asked = f'{one.key} "{one.group}" {one.type}' if one.type != "none" else "-"
    where = _domains(one.places) if one.places else "/".join(one.domain or ()) or "-"
    if placed and one.type == "preferred" and not one.together:
        where = f"{where} (not in one {one.key})"
    return one.name or "(all pods)", asked, str(one.pods), where


def _domains(places: Sequence[DomainRoom]) -> str:
    parts = [f"{_path(place.domain)}: {place.pods}" for place in places[:PLACES]]
    more = len(places) - PLACES
    if more > 0:
        parts.append(f"and {more} more")
    return ", ".join(parts)


def _path(domain: Sequence[str]) -> str:
    return "/".join(value or "-" for value in domain) or "any node"


def _shortage(one: Shortage) -> tuple[str, ...]:
    return (
        f'{one.key} "{one.group}"' if one.key else "all nodes",
        one.subgroup or "(all pods)",
        str(one.pods),
        str(one.takes),
        str(one.missing),
        _path(one.within) if one.within else "-",
        _domains(one.rooms) or "-",
    )


def _key(key: KeyRoom) -> tuple[str, ...]:
    without = str(key.unlabelled) if key.unlabelled else "-"
    return key.key, key.label, str(key.domains), without, _domains(key.best) or "-"


def _left(one: LeftOut) -> tuple[str, ...]:
    names = ", ".join(one.names) + (", ..." if one.nodes > len(one.names) else "")
    return str(one.nodes), one.why, names
