"""Slow second answer to "which subgroups?", from the rules' text alone.

Works on the documents as users write them, on paths of single tasks, without a tree. Shares no
code with `rackgate_osmo`. Names are left open but for the plain ones, see `plain_names`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

Document = dict[str, Any]
# Per level in play what the task's node is: a group, or FILLER, which equals no group.
Path = tuple[Any, ...]
FILLER: Final = ("filler",)


class Step(NamedTuple):
    """One level of a task's path."""

    label: str
    group: Any
    field: str


class Answer(NamedTuple):
    """What one PodGroup holds, subgroups by their path."""

    top: dict[str, str]
    min_member: int | None
    subgroups: list[dict[str, Any]]
    tasks: dict[Any, frozenset[str]]


class ConflictError(ValueError):
    """One node is both required and preferred."""


def answer(pool: Document, document: Document, group: Document) -> Answer:
    """The PodGroup of one task group.

    Raises:
        ConflictError: rule 4 refuses the workflow.
    """
    paths = {task["name"]: steps_of(pool, document, group, task) for task in group["tasks"]}
    _reject_conflicts(paths)
    depth = len(next(iter(paths.values())))
    hoisted = 0
    while hoisted < depth and len({_place(path[: hoisted + 1]) for path in paths.values()}) == 1:
        hoisted += 1
    some = next(iter(paths.values()))
    top = _top(pool, some[:hoisted])
    if hoisted == depth:
        return Answer(top, len(paths), [], {None: frozenset(paths)})
    return Answer(top, None, *_subgroups(pool, paths, hoisted, depth))


def steps_of(
    pool: Document, document: Document, group: Document, task: Document
) -> tuple[Step, ...]:
    """Rules 1 to 3: a step for every level that any task of the group names."""
    used = {one["key"] for other in group["tasks"] for one in _requirements(document, other)}
    own = {one["key"]: one for one in _requirements(document, task)}
    steps = []
    for level in pool["topology_keys"]:
        if level["key"] not in used:
            continue
        requirement = own.get(level["key"])
        if requirement is None:
            steps.append(Step(level["label"], FILLER, "preferredTopologyLevel"))
        else:
            kind = requirement.get("requirementType", "required")
            steps.append(
                Step(level["label"], requirement.get("group", "default"), f"{kind}TopologyLevel")
            )
    return tuple(steps)


def _requirements(document: Document, task: Document) -> list[Document]:
    resource = document["resources"].get(task.get("resource", "default")) or {}
    found: list[Document] = resource.get("topology", [])
    return found


def _place(steps: tuple[Step, ...]) -> Path:
    return tuple(step.group for step in steps)


def _reject_conflicts(paths: dict[str, tuple[Step, ...]]) -> None:
    kinds: dict[Path, set[str]] = {}
    for path in paths.values():
        for end in range(1, len(path) + 1):
            kinds.setdefault(_place(path[:end]), set()).add(path[end - 1].field)
    if any(len(found) > 1 for found in kinds.values()):
        raise ConflictError


def _top(pool: Document, steps: tuple[Step, ...]) -> dict[str, str]:
    """Rule 5: of the shared levels the finest required one, and a finer preferred one."""
    found: dict[str, str] = {}
    for step in steps:  # coarse to fine
        if step.field == "requiredTopologyLevel":
            found = {step.field: step.label}
        else:
            found[step.field] = step.label
    return {"topology": f"osmo-pool-{pool['name']}-topology", **found} if found else {}


def _subgroups(
    pool: Document, paths: dict[str, tuple[Step, ...]], hoisted: int, depth: int
) -> tuple[list[dict[str, Any]], dict[Any, frozenset[str]]]:
    """Rules 6 and 7."""
    found: dict[Path, dict[str, Any]] = {}
    tasks: dict[Any, set[str]] = {}
    for task, path in paths.items():
        for end in range(hoisted + 1, depth + 1):
            place = _place(path[hoisted:end])
            entry = found.setdefault(place, {"name": place})
            entry["topologyConstraint"] = {
                "topology": f"osmo-pool-{pool['name']}-topology",
                path[end - 1].field: path[end - 1].label,
            }
            if end > hoisted + 1:
                entry["parent"] = place[:-1]
        leaf = _place(path[hoisted:])
        found[leaf]["minMember"] = found[leaf].get("minMember", 0) + 1
        tasks.setdefault(leaf, set()).add(task)
    return list(found.values()), {place: frozenset(names) for place, names in tasks.items()}


def plain_names(subgroups: list[dict[str, Any]]) -> list[str]:
    """Rule 9: names of all nodes that need no digest."""
    texts = Counter(
        "-".join("zz-any" if part == FILLER else part.lower() for part in entry["name"])
        for entry in subgroups
    )
    return [text for text, count in texts.items() if count == 1 and len(text) <= 63]
