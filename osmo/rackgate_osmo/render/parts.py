"""A PodGroup as a tree of parts, each with the levels that it names and its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rackgate_osmo.model.model import SUBGROUP_LABEL, Built, KaiVersion, Object


@dataclass(slots=True)
class Part:
    """A PodGroup or one of its subgroups.

    Attributes:
        name: of the subgroup; "" for the PodGroup.
        required: index of a level of the Topology, or None.
        preferred: likewise.
        tasks: names of its tasks, those of the parts below too.
    """

    name: str
    required: int | None
    preferred: int | None
    parts: list[Part] = field(default_factory=list)
    tasks: tuple[str, ...] = ()

    @property
    def constrained(self) -> bool:
        """Whether it names a level."""
        return self.required is not None or self.preferred is not None

    def order(self) -> list[Part]:
        """Its parts as KAI takes them: by the bytes of their names, groups before leaves."""
        return sorted(self.parts, key=lambda part: (not part.parts, part.name.encode()))

    def walk(self) -> Iterator[Part]:
        """This part and all below."""
        yield self
        for part in self.parts:
            yield from part.walk()


def part_of(built: Built, index: int, group: str) -> Part:
    """The PodGroup of the task group at `index`, as a tree.

    Args:
        built: PodGroups, their Topology and the marks of pods.
        index: of the PodGroup.
        group: name of its task group.
    """
    levels = levels_of(built)
    members: dict[str, list[str]] = {}
    for (owner, task), marks in built.pods.items():
        if owner == group:
            members.setdefault(marks.labels.get(SUBGROUP_LABEL, ""), []).append(task)
    spec = built.pod_groups[index]["spec"]
    top = _part("", spec, levels)
    found = {"": top}
    listed = spec.get("subGroups", ())
    for sub in listed:
        found[sub["name"]] = _part(sub["name"], sub, levels)
    for sub in listed:
        found[sub.get("parent", "")].parts.append(found[sub["name"]])
    _gather(top, members)
    return top


def levels_of(built: Built) -> tuple[str, ...]:
    """Node labels of the Topology, coarsest first."""
    listed = built.topology["spec"]["levels"] if built.topology is not None else ()
    return tuple(level["nodeLabel"] for level in listed)


def hides_level(part: Part, finest: int, kai: KaiVersion, *, nested: bool = False) -> bool:
    """Whether KAI finds no domain for a part when all candidates are in one finer domain.

    Args:
        part: of a PodGroup.
        finest: index of the Topology's last level.
        kai: the scheduler.
        nested: whether something above constrains it, too. A finer preference was seen to help
            there on 0.13 alone.
    """
    level = part.required
    if level is None and kai is KaiVersion.V0_10:
        level = part.preferred
    if level is None or level == finest:
        return False
    if part.preferred == finest:
        return nested and kai is not KaiVersion.V0_13
    return part.preferred is None or kai is not KaiVersion.V0_13


def _part(name: str, spec: Object, levels: Sequence[str]) -> Part:
    constraint = spec.get("topologyConstraint", {})
    required, preferred = (
        levels.index(level) if (level := constraint.get(field_)) in levels else None
        for field_ in ("requiredTopologyLevel", "preferredTopologyLevel")
    )
    return Part(name, required, preferred)


def _gather(part: Part, members: Mapping[str, Sequence[str]]) -> None:
    own = tuple(members.get(part.name, ()))
    for below in part.parts:
        _gather(below, members)
    part.tasks = own + tuple(task for below in part.parts for task in below.tasks)
