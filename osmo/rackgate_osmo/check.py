"""Finds known defects of KAI that a workflow would trigger, without placing anything.

Neither KAI's schemas nor its webhooks report these defects. The checks read the objects that
`build_podgroups` returns, so a defect that the profile avoids gives no warning. Each cause is
reported once. Without nodes, only causes in the workflow are found; with nodes, also causes in
their labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rackgate_osmo.model.task_resources import Requests, is_overcounted, requests_of
from rackgate_osmo.model.workflow import KaiVersion, Pool, Profile, Workflow
from rackgate_osmo.render.podgroups import build_podgroups
from rackgate_osmo.render.subgroups import SubGroup, hides_level, levels_of, subgroup_of_built

Labels = Mapping[str, str]

# With so many tasks in a PodGroup with subgroups, one cycle of KAI takes about 15 seconds.
MANY_TASKS: Final = 200


@dataclass(frozen=True, slots=True)
class KaiWarning:
    """One finding: what KAI does, what helps, and the field that causes it."""

    why: str  # class of the finding, such as `one-domain`
    path: str
    message: str
    help: str


@dataclass(frozen=True, slots=True)
class _Case:
    """One PodGroup and what it is checked against.

    Attributes:
        path: of the task group.
        sizes: what its tasks request, by task name.
        levels: node labels of the Topology.
        nodes: labels of the nodes that carry all of `levels`; None if the nodes are not known.
    """

    path: str
    top: SubGroup
    sizes: Mapping[str, Requests]
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
) -> tuple[KaiWarning, ...]:
    """What KAI would do wrong with a workflow; each cause once, at the first field that has it.

    Args:
        pool: accepted by `read_pool`.
        workflow: accepted by `read_workflow`.
        profile: profile that the objects are built with.
        kai: version of KAI that schedules them.
        nodes: labels of every node of the pool; None if they are not known.
    """
    # Without `nodes`: the Topology that is applied lists every key of the pool, in any profile.
    built = build_podgroups(pool, workflow, profile=profile, kai=kai)
    if built.topology is None:
        return ()
    levels = levels_of(built)
    whole = None
    if nodes is not None:
        carrying = [node for node in nodes if all(level in node for level in levels)]
        whole = [tuple(node[level] for level in levels) for node in carrying]
    cases = []
    for index, group in enumerate(workflow.groups):
        top = subgroup_of_built(built, index, group.name)
        if any(subgroup.constrained for subgroup in top.walk()):
            sizes = {task.name: requests_of(workflow.resource_of(task)) for task in group.tasks}
            path = f"groups[{index}]"
            cases.append(_Case(path, top, sizes, levels, profile, kai, whole))
    if not cases:
        return ()
    return (
        *(_unlabelled(levels, nodes) if nodes is not None else ()),
        *(_dots(pool, levels, whole) if whole is not None else ()),
        *_once(cases, _one_domain),
        *_once(cases, _sibling_order),
        *_once(cases, _mixed_sizes),
        *_once(cases, _long_cycle),
    )


def _once(
    cases: Sequence[_Case], find: Callable[[_Case], Iterator[KaiWarning]]
) -> Iterator[KaiWarning]:
    """The first finding, with the number of the others in its message."""
    found = [one for case in cases for one in find(case)]
    more = len(found) - 1
    if more > 0:
        also = f" ({_times(more, 'place', 'places')} more in this workflow)"
        yield replace(found[0], message=found[0].message + also)
    else:
        yield from found


def _unlabelled(levels: Sequence[str], nodes: Sequence[Labels]) -> Iterator[KaiWarning]:
    bare = sum(any(level not in node for level in levels) for node in nodes)
    if bare:
        lacking = {level: sum(level not in node for node in nodes) for level in levels}
        shown = ", ".join(f"{level} on {count}" for level, count in lacking.items() if count)
        yield KaiWarning(
            "unlabelled-nodes",
            "topology_keys",
            f"{bare} of {len(nodes)} nodes lack a label of the pool's keys ({shown}). For any "
            "constraint, also a preference, KAI uses only nodes that carry the labels of all keys, "
            "also of those that the workflow does not use",
            "label every node of the pool with each of these keys, or remove keys from the pool",
        )


def _dots(
    pool: Pool, levels: Sequence[str], nodes: Sequence[tuple[str, ...]]
) -> Iterator[KaiWarning]:
    positions = {key.label: index for index, key in enumerate(pool.topology_keys)}
    for depth, level in enumerate(levels, start=1):
        domains: dict[str, set[tuple[str, ...]]] = {}
        for node in nodes:
            domains.setdefault(".".join(node[:depth]), set()).add(node[:depth])
        alike = sorted(min(found) for found in domains.values() if len(found) > 1)
        if alike:
            one = alike[0]
            other = max(domains[".".join(one)])
            yield KaiWarning(
                "dots",
                f"topology_keys[{positions[level]}].label",
                f"KAI joins label values with dots, and so {'/'.join(one)} and {'/'.join(other)} "
                f"are one domain of {level} for it: it may place pods that require one domain "
                f"across both ({_times(len(alike), 'such pair', 'such pairs')})",
                "remove the dots from the label values, or make the values of the finer key unique",
            )
            return  # finer levels have the same clash


def _one_domain(case: _Case) -> Iterator[KaiWarning]:
    finest = len(case.levels) - 1

    def visit(subgroup: SubGroup, depths: Sequence[int], nested: bool) -> Iterator[KaiWarning]:
        level = subgroup.level
        if level is not None and hides_level(subgroup, finest, case.kai, nested=nested):
            finer_domain = _single(case.nodes, depths, level)
            if finer_domain is not None:
                yield _hidden_level(case, subgroup, level, finer_domain)
        inner = depths
        if subgroup.required is not None:
            inner = range(subgroup.required + 1, (subgroup.preferred or subgroup.required) + 2)
        elif subgroup.preferred is not None:
            inner = range(subgroup.preferred + 2)
        for below in subgroup.children:
            yield from visit(below, inner, nested or subgroup.constrained)

    yield from visit(case.top, (0,), False)


def _single(
    nodes: Sequence[tuple[str, ...]] | None, depths: Sequence[int], level: int
) -> tuple[str, ...] | None:
    """The finer domain with all candidates; () if nodes are not known; None if there is none."""
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


def _hidden_level(
    case: _Case, subgroup: SubGroup, level: int, finer_domain: tuple[str, ...]
) -> KaiWarning:
    label, finer = case.levels[level], case.levels[level + 1]
    asks = "requires" if subgroup.required is not None else "prefers"
    when = (
        f"as is the case with {'/'.join(finer_domain)}"
        if finer_domain
        else f"for instance a {label} with a single {finer}"
    )
    return KaiWarning(
        "one-domain",
        case.path,
        f"{_called(subgroup)} {asks} one {label}. If all nodes that KAI can choose from are in one "
        f"{finer}, {when}, KAI does not find the {label} and leaves the group pending although it "
        "fits",
        "use the robust profile"
        if case.profile is Profile.SEED
        else f"add nodes in a second {finer}",
    )


def _sibling_order(case: _Case) -> Iterator[KaiWarning]:
    for subgroup in case.top.walk():
        smallest: SubGroup | None = None
        for one in subgroup.order():
            if smallest is not None and len(one.tasks) > len(smallest.tasks) and _requires(one):
                yield KaiWarning(
                    "sibling-order",
                    case.path,
                    f'KAI places subgroup "{smallest.name}" ({len(smallest.tasks)} tasks) before '
                    f'"{one.name}" ({len(one.tasks)} tasks), by the order of their names, and '
                    "does not backtrack: the larger one may not fit any more",
                    "use the robust profile, whose names put larger groups first, or rename groups "
                    "so that larger ones sort first"
                    if case.profile is Profile.SEED
                    else "give the larger group its own task group, submitted first",
                )
                break
            if smallest is None or len(one.tasks) < len(smallest.tasks):
                smallest = one


def _requires(subgroup: SubGroup) -> bool:
    return any(one.required is not None for one in subgroup.walk())


def _mixed_sizes(case: _Case) -> Iterator[KaiWarning]:
    fixable = case.profile is Profile.SEED and not _requires(case.top)
    for subgroup in case.top.walk():
        if subgroup.constrained and is_overcounted([case.sizes[task] for task in subgroup.tasks]):
            yield KaiWarning(
                "mixed-sizes",
                case.path,
                f"the tasks of {_called(subgroup)} have several sizes, and KAI counts each as "
                "large as the largest, resource by resource, because all or none use GPUs: it "
                "may leave them pending although they fit, also for a preference",
                "give them one size, or move tasks of another size to a task group of their own"
                + ("; if nothing is required, use the robust profile" if fixable else ""),
            )
            return  # the subgroups below contain the same tasks


def _long_cycle(case: _Case) -> Iterator[KaiWarning]:
    if len(case.top.tasks) >= MANY_TASKS and case.top.children:
        yield KaiWarning(
            "long-cycle",
            f"{case.path}.tasks",
            f"KAI places all {len(case.top.tasks)} tasks of the group in one scheduling cycle and "
            "schedules nothing else during that time; on two cores, 200 tasks took 16 seconds and "
            "1000 tasks 70 seconds",
            "split the group if not all of its tasks must start together",
        )


def _times(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _called(subgroup: SubGroup) -> str:
    return f'subgroup "{subgroup.name}"' if subgroup.name else "the whole group"
