"""What a workflow must obey on a pool, beyond the form of its fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rackgate_osmo.model.model import (
    DEFAULT_RESOURCE,
    Pool,
    Requirement,
    Resource,
    TaskGroup,
    Workflow,
)
from rackgate_osmo.model.rejections import (
    MAX_REFUSALS,
    UNSHOWN,
    Location,
    Refusal,
    listed,
    path_of,
    shown,
)

# A group becomes (a part of) the value of a pod label.
_GROUP: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class Users:
    """Tasks that use one resource: the first, by the indices of its group and its own, and all."""

    __slots__ = ("at", "count", "task")

    def __init__(self, task: str, at: tuple[int, int]) -> None:
        self.task, self.at, self.count = task, at, 1

    def __str__(self) -> str:
        """`task "t1"`, with the number of others."""
        others = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"task {shown(self.task)}{others}"


@dataclass(frozen=True, slots=True)
class Written:
    """A workflow as far as it could be read.

    Attributes:
        groups: task groups; a task whose resource is in `unread` is not judged.
        resources: those that have the right form.
        unread: names of resources that are there, but not in the right form.
        where: path of a resource by name.
        where_task: path of a task by the indices of its group and its own.
    """

    groups: Sequence[TaskGroup]
    resources: Mapping[str, Resource]
    unread: Collection[str] = ()
    where: Callable[[str], Location] = field(default=lambda name: ("resources", name))
    where_task: Callable[[int, int], Location] = field(
        default=lambda group, task: ("workflow", "groups", group, "tasks", task)
    )


def refusals_of(written: Written, pool: Pool, *, strict: bool = False) -> list[Refusal]:
    """Everything that the pool's and the tree's rules refuse."""
    users = _users(written)
    found = [*_tasks(written), *_resources(written, users)]
    keys = frozenset(key.key for key in pool.topology_keys)
    sound: set[str] = set()
    groups: set[str] = set()
    for name, user in users.items():
        resource = written.resources.get(name)
        if resource is None or not resource.topology:
            continue
        if _is_sound(resource, keys, groups):
            sound.add(name)
        else:
            silent = len(found) >= MAX_REFUSALS
            found += _requirements(written.where(name), resource, user, pool, silent=silent)
    found += _conflicts(written, pool, sound)
    if strict:
        found += _mixed(written, pool, {name: users[name] for name in users if name in sound})
    return found


def refusals_of_workflow(workflow: Workflow, pool: Pool) -> list[Refusal]:
    """The same for a model."""
    return refusals_of(Written(workflow.groups, workflow.resources), pool)


def _users(written: Written) -> dict[str, Users]:
    """Who uses each resource, by its name."""
    found: dict[str, Users] = {}
    for at, group in enumerate(written.groups):
        for index, task in enumerate(group.tasks):
            name = task.resource or DEFAULT_RESOURCE
            user = found.get(name)
            if user is None:
                found[name] = Users(task.name, (at, index))
            else:
                user.count += 1
    return found


def _tasks(written: Written) -> Iterator[Refusal]:
    """Names that are used twice, and groups without tasks."""
    groups: set[str] = set()
    for at, group in enumerate(written.groups):
        where = written.where_task(at, 0)[:-2]
        if group.name in groups:
            message = f"task group {shown(group.name)} is there twice: name each group once"
            yield Refusal(
                "submission", "duplicate-group", path_of(*where, "name"), group.name, message
            )
        groups.add(group.name)
        if not group.tasks:  # a PodGroup of none is refused. KAI[min-member-0]
            message = f"task group {shown(group.name)} has no tasks: add one or take the group out"
            yield Refusal("submission", "no-tasks", path_of(*where, "tasks"), [], message)
        if len({task.name for task in group.tasks}) < len(group.tasks):
            yield from _twice(written, at, group)


def _twice(written: Written, at: int, group: TaskGroup) -> Iterator[Refusal]:
    seen: set[str] = set()
    for index, task in enumerate(group.tasks):
        if task.name in seen and task.resource not in written.unread:
            message = (
                f"task {shown(task.name)} is there twice in group {shown(group.name)}: "
                "name each task once"
            )
            path = path_of(*written.where_task(at, index), "name")
            yield Refusal("submission", "duplicate-task", path, task.name, message)
        seen.add(task.name)


def _resources(written: Written, users: Mapping[str, Users]) -> Iterator[Refusal]:
    """Resources that tasks name and that are not there."""
    names = listed(sorted(written.resources)[:16])
    for name, user in users.items():
        known = name in written.resources or name in written.unread
        if known or name == DEFAULT_RESOURCE:
            continue
        message = f"{user}: resource {shown(name)} is not there (resources: {names})"
        path = path_of(*written.where_task(*user.at), "resource")
        yield Refusal("submission", "unknown-resource", path, name, message)


def _is_sound(resource: Resource, keys: Collection[str], groups: set[str]) -> bool:
    """Whether `_requirements` has nothing to refuse; told without a word or path being made.

    Args:
        resource: with at least one requirement.
        keys: those of the pool.
        groups: known to be label values; found ones are added.
    """
    seen: set[str] = set()
    for one in resource.topology:
        key, group = one.key, one.group
        if key in seen or key not in keys:
            return False
        seen.add(key)
        if group not in groups:
            if not _GROUP.fullmatch(group):
                return False
            groups.add(group)
    return True


def _requirements(
    where: Location, resource: Resource, user: Users, pool: Pool, *, silent: bool
) -> Iterator[Refusal]:
    """Keys that the pool does not have or that come twice, and groups that make no name.

    Args:
        where: path of the resource.
        resource: to be judged.
        user: whose resource it is.
        pool: whose keys there are.
        silent: nobody would read the words.
    """
    keys = {key.key for key in pool.topology_keys}
    seen: set[str] = set()
    for index, one in enumerate(resource.topology):
        if silent:
            bad = (one.key not in keys or one.key in seen) + (not _GROUP.fullmatch(one.group))
            yield from [UNSHOWN] * bad
            seen.add(one.key)
            continue
        path = path_of(*where, "topology", index)
        if one.key not in keys:
            message = _no_key(one.key, user, pool)
            yield Refusal("submission", "unknown-key", f"{path}.key", one.key, message)
        elif one.key in seen:
            message = f"{user}: key {shown(one.key)} comes twice: name each key once per resource"
            yield Refusal("submission", "duplicate-key", f"{path}.key", one.key, message)
        seen.add(one.key)
        if not _GROUP.fullmatch(one.group):
            message = (
                f"{user}: group {shown(one.group)} of key {shown(one.key)} is no label value: use "
                "1 to 63 letters, digits, -, _ and ., with a letter or digit at both ends"
            )
            yield Refusal("submission", "group", f"{path}.group", one.group, message)


def _no_key(key: str, user: Users, pool: Pool) -> str:
    text = f"{user}: key {shown(key)} is not in pool {shown(pool.name)}"
    for own in pool.topology_keys:
        if own.label == key:
            text += f"; that is the node label of key {shown(own.key)}: write the key"
    return f"{text} (its keys, coarsest first: {listed(own.key for own in pool.topology_keys)})"


def _conflicts(written: Written, pool: Pool, sound: Collection[str]) -> Iterator[Refusal]:
    """Nodes of a tree that some tasks require and others prefer."""
    if not _types_differ(written, sound):
        return
    positions = {key.key: level for level, key in enumerate(pool.topology_keys)}
    for group in written.groups:
        names = {task.resource or DEFAULT_RESOURCE: task.name for task in reversed(group.tasks)}
        used = [name for name in reversed(names) if name in sound]
        yield from _conflicts_of(written, used, names, positions)


def _types_differ(written: Written, sound: Collection[str]) -> bool:
    """Whether any key and group is required here and preferred there: seldom, and soon told."""
    # Those that read alike are mostly one object.
    differing = {id(one): one for name in sound for one in written.resources[name].topology}
    types: dict[tuple[str, str], str] = {}
    return any(
        types.setdefault((one.key, one.group), one.requirementType) != one.requirementType
        for one in differing.values()
    )


def _conflicts_of(
    written: Written,
    used: Sequence[str],
    tasks: Mapping[str, str],
    positions: Mapping[str, int],
) -> Iterator[Refusal]:
    wishes = {
        name: {positions[one.key]: (index, one) for index, one in enumerate(requirements)}
        for name in used
        for requirements in (written.resources[name].topology,)
    }
    levels = sorted({level for wish in wishes.values() for level in wish})
    # By path from the root: who came first, and what it asked for.
    seen: dict[tuple[str | None, ...], tuple[str, Requirement]] = {}
    for name in used:
        path: tuple[str | None, ...] = ()
        for level in levels:
            index, one = wishes[name].get(level, (0, None))
            path = (*path, one.group if one else None)
            if one is None:
                continue
            other, first = seen.setdefault(path, (name, one))
            if first.requirementType != one.requirementType:
                message = (
                    f"task {shown(tasks[name])} has group {shown(one.group)} of key "
                    f"{shown(one.key)} {one.requirementType}, but task {shown(tasks[other])} has "
                    f"it {first.requirementType}: use one type, or another group"
                )
                where = path_of(*written.where(name), "topology", index, "requirementType")
                yield Refusal("submission", "conflict", where, one.requirementType, message)


def _mixed(written: Written, pool: Pool, users: Mapping[str, Users]) -> Iterator[Refusal]:
    """Tasks with requirements that do not use the keys of the first such task."""
    order = [key.key for key in pool.topology_keys]
    first: tuple[Users, set[str]] | None = None
    for name, user in users.items():
        keys = {one.key for one in written.resources[name].topology}
        if first is None:
            first = user, keys
        if keys == first[1]:
            continue
        message = (
            f"{user}: keys {listed(key for key in order if key in keys)}, but {first[0]}: keys "
            f"{listed(key for key in order if key in first[1])}: all tasks with requirements must "
            "use the same keys"
        )
        path = path_of(*written.where(name), "topology")
        yield Refusal("submission", "mixed-keys", path, sorted(keys), message)
