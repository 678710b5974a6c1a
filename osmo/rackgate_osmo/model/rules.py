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
    MAX_REJECTIONS,
    REJECTION_NOT_SHOWN,
    Location,
    Rejection,
    format_names,
    format_value,
    path_of,
)

# A group becomes (a part of) the value of a pod label.
_GROUP: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class ResourceUsers:
    """Tasks that use one resource: the first, by the indices of its group and its own, and all."""

    __slots__ = ("at", "count", "task")

    def __init__(self, task: str, at: tuple[int, int]) -> None:
        self.task, self.at, self.count = task, at, 1

    def __str__(self) -> str:
        """`task "t1"`, with the number of others."""
        others = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"task {format_value(self.task)}{others}"


@dataclass(frozen=True, slots=True)
class ParsedWorkflow:
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


def rejections_of(
    workflow_data: ParsedWorkflow, pool: Pool, *, strict: bool = False
) -> list[Rejection]:
    """Everything that the pool's and the tree's rules refuse."""
    users = _users(workflow_data)
    found = [*_tasks(workflow_data), *_resources(workflow_data, users)]
    keys = frozenset(key.key for key in pool.topology_keys)
    sound: set[str] = set()
    groups: set[str] = set()
    for name, user in users.items():
        resource = workflow_data.resources.get(name)
        if resource is None or not resource.topology:
            continue
        if _is_sound(resource, keys, groups):
            sound.add(name)
        else:
            silent = len(found) >= MAX_REJECTIONS
            found += _requirements(workflow_data.where(name), resource, user, pool, silent=silent)
    found += _conflicts(workflow_data, pool, sound)
    if strict:
        found += _mixed(workflow_data, pool, {name: users[name] for name in users if name in sound})
    return found


def rejections_of_workflow(workflow: Workflow, pool: Pool) -> list[Rejection]:
    """The same for a model."""
    return rejections_of(ParsedWorkflow(workflow.groups, workflow.resources), pool)


def _users(workflow_data: ParsedWorkflow) -> dict[str, ResourceUsers]:
    """Who uses each resource, by its name."""
    found: dict[str, ResourceUsers] = {}
    for at, group in enumerate(workflow_data.groups):
        for index, task in enumerate(group.tasks):
            name = task.resource or DEFAULT_RESOURCE
            user = found.get(name)
            if user is None:
                found[name] = ResourceUsers(task.name, (at, index))
            else:
                user.count += 1
    return found


def _tasks(workflow_data: ParsedWorkflow) -> Iterator[Rejection]:
    """Names that are used twice, and groups without tasks."""
    groups: set[str] = set()
    for at, group in enumerate(workflow_data.groups):
        where = workflow_data.where_task(at, 0)[:-2]
        if group.name in groups:
            message = f"task group {format_value(group.name)} is there twice: name each group once"
            yield Rejection(
                "submission", "duplicate-group", path_of(*where, "name"), group.name, message
            )
        groups.add(group.name)
        if not group.tasks:  # a PodGroup of none is refused. KAI[min-member-0]
            message = (
                f"task group {format_value(group.name)} has no tasks: add one or take the group out"
            )
            yield Rejection("submission", "no-tasks", path_of(*where, "tasks"), [], message)
        if len({task.name for task in group.tasks}) < len(group.tasks):
            yield from _duplicate_tasks(workflow_data, at, group)


def _duplicate_tasks(
    workflow_data: ParsedWorkflow, at: int, group: TaskGroup
) -> Iterator[Rejection]:
    seen: set[str] = set()
    for index, task in enumerate(group.tasks):
        if task.name in seen and task.resource not in workflow_data.unread:
            message = (
                f"task {format_value(task.name)} is there twice in group "
                f"{format_value(group.name)}: "
                "name each task once"
            )
            path = path_of(*workflow_data.where_task(at, index), "name")
            yield Rejection("submission", "duplicate-task", path, task.name, message)
        seen.add(task.name)


def _resources(
    workflow_data: ParsedWorkflow, users: Mapping[str, ResourceUsers]
) -> Iterator[Rejection]:
    """Resources that tasks name and that are not there."""
    names = format_names(sorted(workflow_data.resources)[:16])
    for name, user in users.items():
        known = name in workflow_data.resources or name in workflow_data.unread
        if known or name == DEFAULT_RESOURCE:
            continue
        message = f"{user}: resource {format_value(name)} is not there (resources: {names})"
        path = path_of(*workflow_data.where_task(*user.at), "resource")
        yield Rejection("submission", "unknown-resource", path, name, message)


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
    where: Location, resource: Resource, user: ResourceUsers, pool: Pool, *, silent: bool
) -> Iterator[Rejection]:
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
            yield from [REJECTION_NOT_SHOWN] * bad
            seen.add(one.key)
            continue
        path = path_of(*where, "topology", index)
        if one.key not in keys:
            message = _no_key(one.key, user, pool)
            yield Rejection("submission", "unknown-key", f"{path}.key", one.key, message)
        elif one.key in seen:
            message = (
                f"{user}: key {format_value(one.key)} comes twice: name each key once per resource"
            )
            yield Rejection("submission", "duplicate-key", f"{path}.key", one.key, message)
        seen.add(one.key)
        if not _GROUP.fullmatch(one.group):
            message = (
                f"{user}: group {format_value(one.group)} of key {format_value(one.key)} is no "
                "label value: use "
                "1 to 63 letters, digits, -, _ and ., with a letter or digit at both ends"
            )
            yield Rejection("submission", "group", f"{path}.group", one.group, message)


def _no_key(key: str, user: ResourceUsers, pool: Pool) -> str:
    text = f"{user}: key {format_value(key)} is not in pool {format_value(pool.name)}"
    for own in pool.topology_keys:
        if own.label == key:
            text += f"; that is the node label of key {format_value(own.key)}: write the key"
    return (
        f"{text} (its keys, coarsest first: {format_names(own.key for own in pool.topology_keys)})"
    )


def _conflicts(
    workflow_data: ParsedWorkflow, pool: Pool, sound: Collection[str]
) -> Iterator[Rejection]:
    """Nodes of a tree that some tasks require and others prefer."""
    if not _types_differ(workflow_data, sound):
        return
    positions = {key.key: level for level, key in enumerate(pool.topology_keys)}
    for group in workflow_data.groups:
        names = {task.resource or DEFAULT_RESOURCE: task.name for task in reversed(group.tasks)}
        used = [name for name in reversed(names) if name in sound]
        yield from _conflicts_of(workflow_data, used, names, positions)


def _types_differ(workflow_data: ParsedWorkflow, sound: Collection[str]) -> bool:
    """Whether any key and group is required here and preferred there: seldom, and soon told."""
    # Those that read alike are mostly one object.
    differing = {id(one): one for name in sound for one in workflow_data.resources[name].topology}
    types: dict[tuple[str, str], str] = {}
    return any(
        types.setdefault((one.key, one.group), one.requirementType) != one.requirementType
        for one in differing.values()
    )


def _conflicts_of(
    workflow_data: ParsedWorkflow,
    used: Sequence[str],
    tasks: Mapping[str, str],
    positions: Mapping[str, int],
) -> Iterator[Rejection]:
    wishes = {
        name: {positions[one.key]: (index, one) for index, one in enumerate(requirements)}
        for name in used
        for requirements in (workflow_data.resources[name].topology,)
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
                    f"task {format_value(tasks[name])} has group {format_value(one.group)} of key "
                    f"{format_value(one.key)} {one.requirementType}, but task "
                    f"{format_value(tasks[other])} has "
                    f"it {first.requirementType}: use one type, or another group"
                )
                where = path_of(*workflow_data.where(name), "topology", index, "requirementType")
                yield Rejection("submission", "conflict", where, one.requirementType, message)


def _mixed(
    workflow_data: ParsedWorkflow, pool: Pool, users: Mapping[str, ResourceUsers]
) -> Iterator[Rejection]:
    """Tasks with requirements that do not use the keys of the first such task."""
    order = [key.key for key in pool.topology_keys]
    first: tuple[ResourceUsers, set[str]] | None = None
    for name, user in users.items():
        keys = {one.key for one in workflow_data.resources[name].topology}
        if first is None:
            first = user, keys
        if keys == first[1]:
            continue
        message = (
            f"{user}: keys {format_names(key for key in order if key in keys)}, but {first[0]}: "
            "keys "
            f"{format_names(key for key in order if key in first[1])}: all tasks with requirements "
            "must "
            "use the same keys"
        )
        path = path_of(*workflow_data.where(name), "topology")
        yield Rejection("submission", "mixed-keys", path, sorted(keys), message)
