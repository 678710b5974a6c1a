"""A PodGroup as a tree of subgroups, each with the levels that it names and its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rackgate_osmo.model.workflow import SUBGROUP_LABEL, Built, KaiVersion, Object


@dataclass(slots=True)
class SubGroup:
    """A PodGroup, with the name "", or one of its subgroups.

    Attributes:
        required: index of the required level in the Topology, or None; `preferred` likewise.
        tasks: names of its tasks, including those of the subgroups below.
    """

    name: str
    required: int | None
    preferred: int | None
    children: list[SubGroup] = field(default_factory=list)
    tasks: tuple[str, ...] = ()

    @property
    def level(self) -> int | None:
        """The level that it names, preferably the required one."""
        return self.required if self.required is not None else self.preferred

    @property
    def constrained(self) -> bool:
        """Whether it names a level."""
        return self.level is not None

    def order(self) -> list[SubGroup]:
        """Its subgroups in KAI's order: by the bytes of their names, groups before leaves."""
        return sorted(
            self.children, key=lambda subgroup: (not subgroup.children, subgroup.name.encode())
        )

    def walk(self) -> Iterator[SubGroup]:
        """This one and all below."""
        yield self
        for subgroup in self.children:
            yield from subgroup.walk()


def subgroup_of_built(built: Built, index: int, group: str) -> SubGroup:
    """The PodGroup of the task group at `index`, as a tree."""
    levels = levels_of(built)
    members: dict[str, list[str]] = {}
    for (owner, task), marks in built.pods.items():
        if owner == group:
            members.setdefault(marks.labels.get(SUBGROUP_LABEL, ""), []).append(task)
    spec = built.pod_groups[index]["spec"]
    top = _subgroup("", spec, levels)
    found = {"": top}
    listed = spec.get("subGroups", ())
    for sub in listed:
        found[sub["name"]] = _subgroup(sub["name"], sub, levels)
    for sub in listed:
        found[sub.get("parent", "")].children.append(found[sub["name"]])
    _gather(top, members)
    return top


def levels_of(built: Built) -> tuple[str, ...]:
    """Node labels of the Topology, coarsest first."""
    listed = built.topology["spec"]["levels"] if built.topology is not None else ()
    return tuple(level["nodeLabel"] for level in listed)


def hides_level(subgroup: SubGroup, finest: int, kai: KaiVersion, *, nested: bool = False) -> bool:
    """Whether KAI finds no domain for a subgroup if all candidates are in one finer domain.

    Args:
        subgroup: of a PodGroup.
        finest: index of the Topology's last level.
        kai: version of the scheduler.
        nested: whether a parent is constrained, too. Then a finer preference helps on 0.13 only.
    """
    level = subgroup.required
    if level is None and kai is KaiVersion.V0_10:
        level = subgroup.preferred
    if level is None or level == finest:
        return False
    if subgroup.preferred == finest:
        return nested and kai is not KaiVersion.V0_13
    return subgroup.preferred is None or kai is not KaiVersion.V0_13


def _subgroup(name: str, spec: Object, levels: Sequence[str]) -> SubGroup:
    constraint = spec.get("topologyConstraint", {})
    required, preferred = (
        levels.index(level) if (level := constraint.get(field_)) in levels else None
        for field_ in ("requiredTopologyLevel", "preferredTopologyLevel")
    )
    return SubGroup(name, required, preferred)


def _gather(subgroup: SubGroup, members: Mapping[str, Sequence[str]]) -> None:
    own = tuple(members.get(subgroup.name, ()))
    for below in subgroup.children:
        _gather(below, members)
    subgroup.tasks = own + tuple(task for below in subgroup.children for task in below.tasks)
