"""Rules of a pool, and of a workflow in it, beyond the types of their fields.

Input: models, or the valid parts of a workflow. Output: all rejections, in the order of the file.
No message or path is built for valid resources or for rejections that are not shown, because an
admission webhook must check 20,000 tasks in time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api.meta import LABEL_KEY, LABEL_VALUE, SUBDOMAIN
from rackgate.api.names import HOSTNAME_LABEL
from rackgate_osmo.model.rejections import (
    MAX_REJECTIONS,
    REJECTION_NOT_SHOWN,
    Location,
    Rejection,
    format_names,
    format_value,
    path_of,
)
from rackgate_osmo.model.workflow import (
    DEFAULT_RESOURCE,
    KAI,
    MAX_POOL_NAME,
    Pool,
    Requirement,
    Resource,
    TaskGroup,
    Workflow,
)

_LABEL: Final = re.compile(LABEL_KEY)
_VALUE: Final = re.compile(LABEL_VALUE)
_SUBDOMAIN: Final = re.compile(SUBDOMAIN)
_MAX_PREFIX: Final = 253
_MAX_LABEL_NAME: Final = 63
_SCHEDULERS: Final = (KAI, "kai-scheduler")
# A group becomes the value of a pod label, or a segment of one.
_GROUP: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def rejections_of_pool(pool: Pool) -> Iterator[Rejection]:
    """Rejections of a pool by the rules above the schema."""
    name = pool.name
    if len(name) > MAX_POOL_NAME or not _SUBDOMAIN.fullmatch(name):
        message = (
            f"{format_value(name)} cannot be part of an object's name: use 1 to {MAX_POOL_NAME} "
            "lower-case letters, digits, - and ., with a letter or digit at both ends"
        )
        yield Rejection("pool", "name", "name", name, message)
    if pool.topology_keys and pool.scheduler not in _SCHEDULERS:
        message = (
            f"pool {format_value(name)} of backend {format_value(pool.backend)} has topology keys, "
            f"but the backend's scheduler is {format_value(pool.scheduler)}: only {KAI} supports "
            f"them; use a backend with scheduler {KAI}, or remove the keys"
        )
        yield Rejection("pool", "scheduler", "topology_keys", pool.scheduler, message)
    keys: dict[str, int] = {}
    labels: dict[str, int] = {}
    for index, one in enumerate(pool.topology_keys):
        path = path_of("topology_keys", index)
        # KAI[topology-duplicate-label]; a duplicate key would make requirements ambiguous
        yield from _seen_before("key", one.key, keys, index, path)
        yield from _seen_before("label", one.label, labels, index, path)
        if not _is_label(one.label):
            message = (
                f"{format_value(one.label)} is not a valid node label: use a form such as "
                f'"rack" or "example.com/rack", with at most {_MAX_LABEL_NAME} characters after '
                "the slash and a lower-case DNS name before it"
            )
            yield Rejection("pool", "label", f"{path}.label", one.label, message)
        if one.label == HOSTNAME_LABEL and index < len(pool.topology_keys) - 1:
            # KAI[topology-hostname-not-last]
            message = f"{HOSTNAME_LABEL} is the finest level: its key must be the last one"
            yield Rejection("pool", "hostname-level", f"{path}.label", one.label, message)
    for label, value in pool.node_selector.items():
        path = path_of("node_selector", label)
        if not _is_label(label):
            message = f"{format_value(label)} is not a valid node label"
            yield Rejection("pool", "label", path, label, message)
        elif len(value) > _MAX_LABEL_NAME or not _VALUE.fullmatch(value):
            message = (
                f"{format_value(value)} is not a valid label value: use at most {_MAX_LABEL_NAME} "
                "letters, "
                "digits, -, _ and ., with a letter or digit at both ends"
            )
            yield Rejection("pool", "label-value", path, value, message)


def _seen_before(
    what: str, value: str, seen: dict[str, int], index: int, path: str
) -> Iterator[Rejection]:
    first = seen.setdefault(value, index)
    if first != index:
        message = f"duplicate {what} {format_value(value)}, first at topology_keys[{first}]: "
        message += f"use each {what} once"
        yield Rejection("pool", f"duplicate-{what}", f"{path}.{what}", value, message)


def _is_label(label: str) -> bool:
    """Whether it is a valid node label; the schema rejects only some invalid ones.

    KAI[topology-bad-label], KAI[topology-long-label-name]
    """
    prefix, slash, name = label.rpartition("/")
    within = len(prefix) <= _MAX_PREFIX and len(name) <= _MAX_LABEL_NAME
    return bool(within and _LABEL.fullmatch(label) and (prefix or not slash))


@dataclass(slots=True)
class _Users:
    """Tasks that use one resource: the first one, its group and task indices, and their number."""

    task: str
    at: tuple[int, int]
    count: int = 1

    def __str__(self) -> str:
        others = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"task {format_value(self.task)}{others}"


@dataclass(frozen=True, slots=True)
class ParsedWorkflow:
    """The valid parts of a workflow.

    Attributes:
        groups: task groups; a task whose resource is in `unread` is not checked.
        resources: those that are well-formed.
        unread: names of resources that exist but are malformed.
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


def rejections_of(parsed: ParsedWorkflow, pool: Pool, *, strict: bool = False) -> list[Rejection]:
    """All rejections by the rules of the pool and of the subgroup tree."""
    users = _users(parsed)
    found = [*_tasks(parsed), *_resources(parsed, users)]
    sound: set[str] = set()
    for name, user in users.items():
        resource = parsed.resources.get(name)
        if resource is not None and resource.topology:
            silent = len(found) >= MAX_REJECTIONS
            before = len(found)
            found += _requirements(parsed.where(name), resource, user, pool, silent=silent)
            if len(found) == before:
                sound.add(name)
    found += _conflicts(parsed, pool, sound)
    if strict:
        found += _mixed(parsed, pool, {name: users[name] for name in users if name in sound})
    return found


def rejections_of_workflow(workflow: Workflow, pool: Pool) -> list[Rejection]:
    """All rejections of a complete model."""
    return rejections_of(ParsedWorkflow(workflow.groups, workflow.resources), pool)


def _users(parsed: ParsedWorkflow) -> dict[str, _Users]:
    """The tasks that use each resource, by its name."""
    found: dict[str, _Users] = {}
    for at, group in enumerate(parsed.groups):
        for index, task in enumerate(group.tasks):
            name = task.resource or DEFAULT_RESOURCE
            user = found.get(name)
            if user is None:
                found[name] = _Users(task.name, (at, index))
            else:
                user.count += 1
    return found


def _tasks(parsed: ParsedWorkflow) -> Iterator[Rejection]:
    """Duplicate names, and groups without tasks."""
    groups: set[str] = set()
    for at, group in enumerate(parsed.groups):
        where = parsed.where_task(at, 0)[:-2]
        if group.name in groups:
            message = (
                f"duplicate task group {format_value(group.name)}: each group needs its own name"
            )
            yield _rejection("duplicate-group", (*where, "name"), group.name, message)
        groups.add(group.name)
        if not group.tasks:  # KAI rejects a PodGroup without pods. KAI[min-member-0]
            message = (
                f"task group {format_value(group.name)} has no tasks: add a task or remove the "
                "group"
            )
            yield _rejection("no-tasks", (*where, "tasks"), [], message)
        seen: set[str] = set()
        for index, task in enumerate(group.tasks):
            if task.name in seen and task.resource not in parsed.unread:
                message = (
                    f"duplicate task {format_value(task.name)} in group "
                    f"{format_value(group.name)}: each task needs its own name"
                )
                path = (*parsed.where_task(at, index), "name")
                yield _rejection("duplicate-task", path, task.name, message)
            seen.add(task.name)


def _resources(parsed: ParsedWorkflow, users: Mapping[str, _Users]) -> Iterator[Rejection]:
    """Resources that tasks name and that do not exist."""
    names = format_names(sorted(parsed.resources)[:16])
    for name, user in users.items():
        known = name in parsed.resources or name in parsed.unread
        if known or name == DEFAULT_RESOURCE:
            continue
        message = f"{user}: resource {format_value(name)} does not exist (resources: {names})"
        path = (*parsed.where_task(*user.at), "resource")
        yield _rejection("unknown-resource", path, name, message)


def _requirements(
    where: Location, resource: Resource, user: _Users, pool: Pool, *, silent: bool
) -> Iterator[Rejection]:
    """Keys that the pool lacks, duplicate keys, and groups that cannot be part of a name."""
    keys = {key.key for key in pool.topology_keys}
    seen: set[str] = set()
    for index, one in enumerate(resource.topology):
        bad = (one.key not in keys or one.key in seen) + (not _GROUP.fullmatch(one.group))
        if silent or not bad:
            yield from [REJECTION_NOT_SHOWN] * bad
            seen.add(one.key)
            continue
        path = (*where, "topology", index)
        if one.key not in keys:
            message = _no_key(one.key, user, pool)
            yield _rejection("unknown-key", (*path, "key"), one.key, message)
        elif one.key in seen:
            message = (
                f"{user}: duplicate key {format_value(one.key)}: use each key once per resource"
            )
            yield _rejection("duplicate-key", (*path, "key"), one.key, message)
        seen.add(one.key)
        if not _GROUP.fullmatch(one.group):
            message = (
                f"{user}: group {format_value(one.group)} of key {format_value(one.key)} is not "
                "a valid label value: use 1 to 63 letters, digits, -, _ and ., with a letter or "
                "digit at both ends"
            )
            yield _rejection("group", (*path, "group"), one.group, message)


def _no_key(key: str, user: _Users, pool: Pool) -> str:
    text = f"{user}: key {format_value(key)} is not in pool {format_value(pool.name)}"
    for own in pool.topology_keys:
        if own.label == key:
            text += f"; that is the node label of key {format_value(own.key)}: use the key"
    return (
        f"{text} (its keys, coarsest first: {format_names(own.key for own in pool.topology_keys)})"
    )


def _conflicts(parsed: ParsedWorkflow, pool: Pool, sound: Collection[str]) -> Iterator[Rejection]:
    """Subgroups that some tasks require and others prefer."""
    if not _types_differ(parsed, sound):
        return
    positions = {key.key: level for level, key in enumerate(pool.topology_keys)}
    for group in parsed.groups:
        names = {task.resource or DEFAULT_RESOURCE: task.name for task in reversed(group.tasks)}
        used = [name for name in reversed(names) if name in sound]
        yield from _conflicts_of(parsed, used, names, positions)


def _types_differ(parsed: ParsedWorkflow, sound: Collection[str]) -> bool:
    """Whether any key and group is both required and preferred. Rare and cheap."""
    # Equal requirements are mostly one object.
    differing = {id(one): one for name in sound for one in parsed.resources[name].topology}
    types: dict[tuple[str, str], str] = {}
    return any(
        types.setdefault((one.key, one.group), one.requirementType) != one.requirementType
        for one in differing.values()
    )


def _conflicts_of(
    parsed: ParsedWorkflow,
    used: Sequence[str],
    tasks: Mapping[str, str],
    positions: Mapping[str, int],
) -> Iterator[Rejection]:
    asked = {
        name: {positions[one.key]: (index, one) for index, one in enumerate(requirements)}
        for name in used
        for requirements in (parsed.resources[name].topology,)
    }
    levels = sorted({level for one in asked.values() for level in one})
    # By path from the root: the first user, and its requirement.
    seen: dict[tuple[str | None, ...], tuple[str, Requirement]] = {}
    for name in used:
        path: tuple[str | None, ...] = ()
        for level in levels:
            index, one = asked[name].get(level, (0, None))
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
                where = (*parsed.where(name), "topology", index, "requirementType")
                yield _rejection("conflict", where, one.requirementType, message)


def _mixed(parsed: ParsedWorkflow, pool: Pool, users: Mapping[str, _Users]) -> Iterator[Rejection]:
    """Tasks with requirements whose keys differ from those of the first such task."""
    order = [key.key for key in pool.topology_keys]
    first: tuple[_Users, set[str]] | None = None
    for name, user in users.items():
        keys = {one.key for one in parsed.resources[name].topology}
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
        where = (*parsed.where(name), "topology")
        yield _rejection("mixed-keys", where, sorted(keys), message)


def _rejection(why: str, where: Location, value: Any, message: str) -> Rejection:
    return Rejection("submission", why, path_of(*where), value, message)
