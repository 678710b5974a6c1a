"""Placements and refusals of OSMO workflows in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rackgate_osmo import Kind, Node, Pool
from rackgate_osmo.explain import explanation
from rackgate_osmo.explain.placement import GroupPlacement
from rackgate_osmo.explain.requests import TaskGroupRequests
from rackgate_osmo.explain.room import MISSING, Room, Shape, format_path
from rackgate_osmo.explain.shortage import Shortage

_TYPES: Final[dict[Kind, explanation.Requirement]] = {
    Kind.REQUIRED: "required",
    Kind.PREFERRED: "preferred",
    Kind.FILLER: "none",
}
_DOES: Final[dict[explanation.KaiResult, str]] = {
    "scheduled": "places it",
    "partly": "places a part of it",
    "pending": "leaves it pending",
}
_NAMES: Final = 5  # subgroups named in a sentence


def shown(path: Sequence[str]) -> str:
    """A domain in a sentence."""
    return "/".join(value or "-" for value in format_path(path))


def counted(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def subgroup_entries(
    room: Room, pool: Pool, group_requests: TaskGroupRequests, placement: GroupPlacement | None
) -> tuple[explanation.Subgroup, ...]:
    """Every node of the tree; where its pods go, if they do."""
    found = []
    for node in group_requests.nodes():
        key = pool.topology_keys[node.level].key
        group = explanation.Subgroup(
            name=node.name, key=key, group=node.group, type=_TYPES[node.kind], pods=node.size
        )
        found.append(group if placement is None else _with_places(group, room, node, placement))
    if not found and placement is not None:
        places = _places(room, group_requests.root, placement)
        plain = explanation.Subgroup(
            name="", key="", group="", type="none", pods=group_requests.root.size, places=places
        )
        return (plain,)
    return tuple(found)


def _with_places(
    group: explanation.Subgroup, room: Room, node: Node, placement: GroupPlacement
) -> explanation.Subgroup:
    paths = {
        room.path_of_leaf(leaf)[: node.level + 1]
        for below in node.leaves()
        for nodes in placement.pods.get(id(below), ())
        for leaf in nodes
    }
    together = len(paths) == 1 and MISSING not in next(iter(paths))[-1:]
    return msgspec.structs.replace(
        group,
        together=together,
        domain=format_path(next(iter(paths))) if together else None,
        places=() if node.children else _places(room, node, placement),
    )


def _places(
    room: Room, leaf: Node, placement: GroupPlacement
) -> tuple[explanation.DomainRoom, ...]:
    sums: dict[tuple[str, ...], int] = {}
    for nodes in placement.pods.get(id(leaf), ()):
        for node, pods in nodes.items():
            path = format_path(room.path_of_leaf(node))
            sums[path] = sums.get(path, 0) + pods
    return tuple(
        explanation.DomainRoom(domain=path, pods=pods) for path, pods in sorted(sums.items())
    )


def shortage_entry(found: Shortage, room: Room, pool: Pool, top: int) -> explanation.Shortage:
    """A shortage with its sentence."""
    node = found.node
    key = pool.topology_keys[node.level].key if node is not None else ""
    return explanation.Shortage(
        subgroup=node.name if node is not None else "",
        key=key,
        group=node.group if node is not None else "",
        pods=found.pods,
        takes=found.takes,
        missing=found.missing,
        missing_nodes=found.nodes,
        rooms=tuple(
            explanation.DomainRoom(domain=format_path(spare.domain), pods=spare.pods)
            for spare in found.rooms[:top]
        ),
        within=format_path(found.within),
        beside=tuple(_called(other) for other in found.beside),
        text=_sentence(found, room, pool, key),
    )


def _called(node: Node) -> str:
    return node.name or node.group or "all pods"


def _sentence(found: Shortage, room: Room, pool: Pool, key: str) -> str:
    node, pods = found.node, counted(found.pods, "pod")
    inside = f" in {shown(found.within)}" if found.within else ""
    missing = f"{counted(found.missing, 'pod')} missing"
    if not room.nodes:
        return f"{counted(found.pods, 'pod')}: there is no node that pods may use"
    if not found.nodes:
        missing += ", and no node is large enough, even an empty one"
    else:
        missing += f", as many as {counted(found.nodes, 'empty node')} would take"
    if node is None or (found.rooms and found.rooms[0].domain == found.within and not found.beside):
        where = f"{key} {shown(found.within)}" if found.within else "the nodes"
        take = "takes" if found.within else "take"
        who = f'group "{node.group}" of {pods}' if node is not None else pods
        return f"{who}: {where} {take} {found.takes}, {missing}"
    who = f'group "{node.group}" of {pods}'
    if found.unlabelled:
        label = pool.topology_keys[node.level].label
        return f'{who}: no node{inside} carries the label {label} of key "{key}"'
    if found.beside:
        names = [_called(other) for other in found.beside]
        others = ", ".join(names[:_NAMES])
        if len(names) > _NAMES:
            others += f" and {len(names) - _NAMES} more"
        return f"{who}: no {key}{inside} is left for it beside {others}; {missing}"
    best = found.rooms[0]
    return (
        f"{who}: no {key}{inside} takes it; the best, {shown(best.domain)}, takes {best.pods}, "
        f"{missing}"
    )


def key_entries(
    room: Room, pool: Pool, group_requests: Sequence[TaskGroupRequests], top: int
) -> tuple[explanation.KeyRoom, ...]:
    """The pool's keys on these nodes: how many domains, and which have most room."""
    pods: dict[Shape, int] = {}
    for one in group_requests:
        for shape in one.tasks.values():
            pods[shape] = pods.get(shape, 0) + 1
    fits = room.fits(max(pods, key=lambda shape: pods[shape]))
    found = []
    for level, key in enumerate(pool.topology_keys, start=1):
        domains = [at for at in range(room.domains(level)) if room.labelled(level, at)]
        sums = room.sums(level, fits)
        best = sorted(domains, key=lambda at: (-sums[at], at))[:top]
        found.append(
            explanation.KeyRoom(
                key=key.key,
                label=key.label,
                domains=len(domains),
                unlabelled=sum(key.label not in node.labels for node in room.nodes),
                best=tuple(
                    explanation.DomainRoom(domain=format_path(room.path(level, at)), pods=sums[at])
                    for at in best
                ),
            )
        )
    return tuple(found)


def with_summary(found: explanation.WorkflowExplanation) -> explanation.WorkflowExplanation:
    """The answer with its summary: what is possible, and what KAI does, told apart."""
    possible = _possible(found)
    return msgspec.structs.replace(found, summary=f"{possible} {_of_kai(found)}".strip())


def _possible(found: explanation.WorkflowExplanation) -> str:
    pods = counted(sum(group.pods for group in found.groups), "pod")
    if all(group.running for group in found.groups) and found.answer == "scheduled":
        return f"Running: its {pods} are on nodes."
    if found.answer == "scheduled":
        return f"Possible: there is a place for its {pods}."
    if any(group.kai.deviations and group.running for group in found.groups):
        some = [group for group in found.groups if group.running and group.kai.deviations]
        half = ", ".join(group.name for group in some)
        return f"Not decided: of {half} only a part of the pods runs."
    waiting = [group.name for group in found.groups if group.answer != "scheduled"]
    names = ", ".join(waiting[:_NAMES]) + (", ..." if len(waiting) > _NAMES else "")
    if found.answer == "undecided":
        return f"Not decided: the search for {names} was cut off; give it more --steps."
    if found.together:
        return (
            f"Possible for all at once, but KAI takes task groups one after another, and {names} "
            "may find no place after the others. Submit it first."
        )
    if found.answer == "partly":
        return f"Not possible for all: {names} finds no place after the others."
    return f"Not possible: there is no place for {names}."


def _of_kai(found: explanation.WorkflowExplanation) -> str:
    kai = f"KAI v{found.kai_version}"
    wrong = [group for group in found.groups if group.kai.deviations]
    names = ", ".join(sorted({one.name for group in wrong for one in group.kai.deviations}))
    which = ", ".join(group.name for group in wrong[:_NAMES])
    if all(group.running for group in found.groups) and found.kai_result == "scheduled":
        return ""
    if found.kai_result == "unknown":
        return f"What {kai} does with {which} cannot be known: {names}."
    if not wrong and found.answer == found.kai_result:
        return f"{kai} does the same."
    if not wrong:
        return f"{kai} {_DOES[found.kai_result]}."
    return f"But {kai} leaves {which} pending: {names}."
