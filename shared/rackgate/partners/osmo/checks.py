"""Traps of the real KAI that neither schema nor webhook tells of, seen without placing anything.

Judged are the objects that `build_podgroups` makes, so a profile that works round a trap is not
warned of it. Without nodes a trap is told where it is possible; with nodes, where it is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rackgate.partners.osmo.model import KaiVersion, Object, Pool, Profile, TaskGroup, Workflow
from rackgate.partners.osmo.node import Node
from rackgate.partners.osmo.podgroups import build_podgroups
from rackgate.partners.osmo.tree import tree_of

Labels = Mapping[str, str]

# Tasks of a PodGroup with subgroups from which on KAI's cycle takes a quarter of a minute.
MANY_TASKS: Final = 200


@dataclass(frozen=True, slots=True)
class Warning_:  # noqa: N801 - `Warning` is taken by the language
    """A trap.

    Attributes:
        why: class of trap: `unlabelled-nodes`, `one-domain`, `sibling-order`, `dots` or
            `long-cycle`.
        path: field that it begins with.
        message: what KAI does.
        help: what helps.
    """

    why: str
    path: str
    message: str
    help: str


@dataclass(slots=True)
class _Part:
    """A PodGroup or a subgroup, as KAI sees it: levels are indices into the Topology."""

    name: str
    required: int | None
    preferred: int | None
    size: int = 0
    parts: list[_Part] = field(default_factory=list)

    @property
    def constrained(self) -> bool:
        return self.required is not None or self.preferred is not None

    def walk(self) -> Iterator[_Part]:
        yield self
        for part in self.parts:
            yield from part.walk()


@dataclass(frozen=True, slots=True)
class _Case:
    """One PodGroup with what it is checked against.

    Attributes:
        path: of the task group.
        levels: node labels of the Topology.
        nodes: labels of the nodes that carry all of `levels`; None: nodes are not known.
    """

    path: str
    group: TaskGroup
    top: _Part
    levels: Sequence[str]
    profile: Profile
    kai: KaiVersion
    nodes: Sequence[tuple[str, ...]] | None


def check(
    pool: Pool,
    workflow: Workflow,
    *,
    profile: Profile = Profile.SEED,
    kai: KaiVersion = KaiVersion.V0_13,
    nodes: Sequence[Labels] | None = None,
) -> tuple[Warning_, ...]:
    """What KAI would do wrong with a workflow.

    Args:
        pool: as `read_pool` returns it.
        workflow: as `read_workflow` returns it.
        profile: of the objects.
        kai: that takes them.
        nodes: labels of every node of the pool; None: not known.

    Raises:
        RefusedError: as `build_podgroups`.
    """
    # Without `nodes`: what is applied lists every key of the pool, in any profile.
    built = build_podgroups(pool, workflow, profile=profile, kai=kai)
    if built.topology is None:
        return ()
    levels = [level["nodeLabel"] for level in built.topology["spec"]["levels"]]
    whole = None if nodes is None else _carrying(nodes, levels)
    cases = []
    for index, group in enumerate(workflow.groups):
        top = _part_of(built.pod_groups[index], levels, tree_of(group, workflow, pool, profile))
        case = _Case(f"groups[{index}]", group, top, levels, profile, kai, whole)
        if any(part.constrained for part in top.walk()):
            cases.append(case)
    if not cases:
        return ()
    return (
        *_unlabelled(cases, pool, workflow, levels, nodes),
        *(_dots(pool, levels, whole) if whole is not None else ()),
        *(one for case in cases for one in _one_domain(case)),
        *(one for case in cases for one in _sibling_order(case)),
        *(one for case in cases for one in _long_cycle(case)),
    )


def _part_of(pod_group: Object, levels: Sequence[str], root: Node) -> _Part:
    """The tree of a PodGroup, with the number of tasks of each part."""
    sizes = {node.name: node.size for node in root.subgroups()}
    spec = pod_group["spec"]
    top = _part("", spec, levels, root.size)
    found = {"": top}
    for sub in spec.get("subGroups", ()):
        part = _part(sub["name"], sub, levels, sizes[sub["name"]])
        found[part.name] = part
        found[sub.get("parent", "")].parts.append(part)
    return top


def _part(name: str, spec: Object, levels: Sequence[str], size: int) -> _Part:
    constraint = spec.get("topologyConstraint", {})
    required, preferred = (
        levels.index(level) if (level := constraint.get(field_)) in levels else None
        for field_ in ("requiredTopologyLevel", "preferredTopologyLevel")
    )
    return _Part(name, required, preferred, size)


def _carrying(nodes: Sequence[Labels], levels: Sequence[str]) -> list[tuple[str, ...]]:
    """Label values of the nodes that carry all labels."""
    return [
        tuple(node[level] for level in levels)
        for node in nodes
        if all(level in node for level in levels)
    ]


def _unlabelled(
    cases: Sequence[_Case],
    pool: Pool,
    workflow: Workflow,
    levels: Sequence[str],
    nodes: Sequence[Labels] | None,
) -> Iterator[Warning_]:
    help_ = "label every node of the pool with each of these keys, or take keys out of the pool"
    positions = {key.label: index for index, key in enumerate(pool.topology_keys)}
    if nodes is not None:
        for level in levels:
            bare = sum(level not in node for node in nodes)
            if bare:
                yield Warning_(
                    "unlabelled-nodes",
                    f"topology_keys[{positions[level]}].label",
                    f"{bare} of {len(nodes)} nodes do not carry {level}; KAI counts only nodes "
                    "that carry the labels of all keys, whatever key a workflow asks for, also for "
                    "a mere preference",
                    help_,
                )
        return
    used = {one.key for resource in workflow.resources.values() for one in resource.topology}
    for level in levels:
        key = pool.topology_keys[positions[level]].key
        if key not in used:
            yield Warning_(
                "unlabelled-nodes",
                f"topology_keys[{positions[level]}].label",
                f'no task asks for key "{key}", but KAI counts only nodes that carry its label '
                f"{level} too; without it the workflow stays pending",
                help_,
            )
    for case in cases:
        weak = [part for part in case.top.walk() if not part.parts and part.constrained]
        soft = sum(part.size for part in weak if part.required is None)
        if soft and case.top.required is None:
            yield Warning_(
                "unlabelled-nodes",
                f"{case.path}.tasks",
                f"{soft} of {case.top.size} tasks require nothing of their own, but KAI keeps them "
                "off nodes that lack the label of any key of the pool, as for a mere preference",
                help_,
            )


def _dots(
    pool: Pool, levels: Sequence[str], nodes: Sequence[tuple[str, ...]]
) -> Iterator[Warning_]:
    positions = {key.label: index for index, key in enumerate(pool.topology_keys)}
    for depth, level in enumerate(levels, start=1):
        domains: dict[str, set[tuple[str, ...]]] = {}
        for node in nodes:
            domains.setdefault(".".join(node[:depth]), set()).add(node[:depth])
        alike = sorted(min(found) for found in domains.values() if len(found) > 1)
        if alike:
            one = alike[0]
            other = max(domains[".".join(one)])
            yield Warning_(
                "dots",
                f"topology_keys[{positions[level]}].label",
                f"KAI joins label values with dots and takes {'/'.join(one)} and "
                f"{'/'.join(other)} for one domain of {level}: a required domain may be "
                f"placed over both ({_times(len(alike), 'such clash', 'such clashes')})",
                "take the dots out of the label values, or make the values of the finer key unique",
            )
            return  # finer levels clash with it


def _one_domain(case: _Case) -> Iterator[Warning_]:
    finest = len(case.levels) - 1

    def visit(part: _Part, depths: Sequence[int]) -> Iterator[Warning_]:
        level = part.required if part.required is not None else part.preferred
        if level is not None and level < finest and _sees_no_level(part, finest, case.kai):
            spot = _single(case.nodes, depths, level)
            if spot is not None:
                yield _told(case, part, level, spot)
        inner = depths
        if part.required is not None:
            inner = range(part.required + 1, (part.preferred or part.required) + 2)
        elif part.preferred is not None:
            inner = range(part.preferred + 2)
        for below in part.parts:
            yield from visit(below, inner)

    yield from visit(case.top, (0,))


def _sees_no_level(part: _Part, finest: int, kai: KaiVersion) -> bool:
    """Whether KAI finds no domain for a part when all candidates are in one finer domain."""
    if part.preferred == finest:
        return False
    if part.required is None:
        return kai is KaiVersion.V0_10
    return part.preferred is None or kai is not KaiVersion.V0_13


def _single(
    nodes: Sequence[tuple[str, ...]] | None, depths: Sequence[int], level: int
) -> tuple[str, ...] | None:
    """A finer domain that holds all candidates; () where nodes are not known; None: none does."""
    if nodes is None:
        return ()
    for depth in depths:
        domains: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        for node in nodes:
            domains.setdefault(node[:depth], set()).add(node[: level + 2])
        for finer in domains.values():
            if len(finer) == 1:
                return next(iter(finer))
    return None


def _told(case: _Case, part: _Part, level: int, spot: tuple[str, ...]) -> Warning_:
    label, finer = case.levels[level], case.levels[level + 1]
    who = f'subgroup "{part.name}"' if part.name else "the whole group"
    asks = "requires" if part.required is not None else "prefers"
    when = (
        f"as is the case with {'/'.join(spot)}"
        if spot
        else f"for instance a {label} with a single {finer}"
    )
    return Warning_(
        "one-domain",
        case.path,
        f"{who} {asks} one {label}; when all nodes that KAI can choose from lie in one {finer}, "
        f"{when}, KAI does not see the {label} and leaves the group pending although there is room",
        "use the robust profile"
        if case.profile is Profile.SEED
        else f"add nodes in a second {finer}",
    )


def _sibling_order(case: _Case) -> Iterator[Warning_]:
    for part in case.top.walk():
        order = sorted(part.parts, key=lambda one: (not one.parts, one.name.encode()))
        smallest: _Part | None = None
        for one in order:
            if smallest is not None and one.size > smallest.size and _requires(one):
                yield Warning_(
                    "sibling-order",
                    case.path,
                    f'KAI places subgroup "{smallest.name}" ({smallest.size} tasks) before '
                    f'"{one.name}" ({one.size} tasks), by the order of their names, each into the '
                    "fullest domain that fits, and does not go back: the larger one may find its "
                    "room taken",
                    "use the robust profile, whose names put larger groups first, or rename groups "
                    "so that larger ones sort first"
                    if case.profile is Profile.SEED
                    else "give the larger group its own task group, submitted first",
                )
                break
            if smallest is None or one.size < smallest.size:
                smallest = one


def _requires(part: _Part) -> bool:
    return any(one.required is not None for one in part.walk())


def _long_cycle(case: _Case) -> Iterator[Warning_]:
    if case.top.size >= MANY_TASKS and case.top.parts:
        yield Warning_(
            "long-cycle",
            f"{case.path}.tasks",
            f"KAI places all {case.top.size} tasks of the group in one scheduling cycle and "
            "schedules nothing else meanwhile; 200 tasks were seen to take 16 seconds, 1000 tasks "
            "70 seconds, on two cores",
            "split the group where its tasks need not start together",
        )


def _times(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
