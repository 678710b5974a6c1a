"""Task groups from data: valid ones as models, in place of the others something to go on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter, ValidationError

from rackgate_osmo.model.model import MAX_GROUPS, MAX_NAME, MAX_TASKS, Task, TaskGroup
from rackgate_osmo.model.rejections import (
    Location,
    Rejection,
    format_value,
    path_of,
    rejections_of_validation_error,
)

# Path of a task, from the indices of its group and its own.
Where: TypeAlias = Callable[[int, int], Location]

# Resource of a task of the wrong form; longer than any name that is read.
UNREAD: Final = "\0" * (MAX_NAME + 1)

_groups: Final = TypeAdapter(tuple[TaskGroup, ...])
_tasks: Final = TypeAdapter(tuple[Task, ...])


def read_groups(
    body: Mapping[Any, Any], inside: Location, found: list[Rejection]
) -> tuple[tuple[TaskGroup, ...], Where]:
    """The task groups of a workflow.

    Args:
        body: holds `groups`, or `tasks`, each of which is a group of its own then.
        inside: path of the body.
        found: refusals are added here.

    Returns:
        The groups, in which what has the wrong form stands as a task of the resource `UNREAD`;
        and the way from indices to a path.
    """
    field = "groups" if body.get("groups") or not body.get("tasks") else "tasks"
    given, prefix = body.get(field), (*inside, field)

    def where(group: int, task: int) -> Location:
        return (*prefix, group) if field == "tasks" else (*prefix, group, "tasks", task)

    if field == "groups" and body.get("tasks"):
        message = "groups and tasks exclude each other: move the tasks into a group"
        path = path_of(*inside, "tasks")
        found.append(Rejection("submission", "groups-and-tasks", path, body["tasks"], message))
    if rejection := _invalid_list(given, prefix):
        found.append(rejection)
    if rejection or given is None:
        return (), where
    try:
        if field == "tasks":
            return tuple(map(_alone, _tasks.validate_python(given))), where
        return _groups.validate_python(given), where
    except ValidationError as error:
        found += rejections_of_validation_error(error, TaskGroup, "submission", prefix)
    if field == "tasks":
        return tuple(map(_alone, _readable_tasks(given))), where
    return tuple(_readable(group, index) for index, group in enumerate(given)), where


def _invalid_list(given: Any, prefix: Location) -> Rejection | None:
    """A list that is none, is empty or too long to be read."""
    path = path_of(*prefix)
    if given is None:
        message = "no task groups: list at least one under groups"
        return Rejection("submission", "missing", path, None, message)
    if not isinstance(given, list | tuple):
        message = f"{format_value(given)} is not a list: write a list"
        return Rejection("submission", "type", path, given, message)
    if not given:
        message = "the list is empty: add at least one"
        return Rejection("submission", "empty", path, given, message)
    if len(given) > MAX_GROUPS:
        message = f"{len(given)} entries are too many: {MAX_GROUPS} at most"
        return Rejection("submission", "too-long", path, len(given), message)
    tasks = sum(map(_length, given))
    if tasks > MAX_TASKS:
        message = f"{tasks} tasks are too many: {MAX_TASKS} at most"
        return Rejection("submission", "too-long", path, tasks, message)
    return None


def _length(group: Any) -> int:
    tasks = group.get("tasks") if isinstance(group, Mapping) else None
    return len(tasks) if isinstance(tasks, Sequence) else 0


def _alone(task: Task) -> TaskGroup:
    """A task that is written without a group gets one of its own, as OSMO does it."""
    return TaskGroup.model_construct(name=f"{task.name}-group", tasks=(task,))


def _readable(given: Any, index: int) -> TaskGroup:
    fields = given if isinstance(given, Mapping) else {}
    name, tasks = fields.get("name"), fields.get("tasks")
    if not isinstance(name, str):
        name = f"{UNREAD}{index}"
    if not isinstance(tasks, list | tuple) or not tasks:
        tasks = [None]
    return TaskGroup.model_construct(name=name, tasks=_readable_tasks(tasks))


def _readable_tasks(given: Sequence[Any]) -> tuple[Task, ...]:
    return tuple(_readable_task(task, index) for index, task in enumerate(given))


def _readable_task(given: Any, index: int) -> Task:
    try:
        return Task.model_validate(given)
    except ValidationError:
        return Task.model_construct(name=f"{UNREAD}{index}", resource=UNREAD)
