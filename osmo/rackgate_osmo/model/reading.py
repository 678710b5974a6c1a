"""Decodes pools and workflows from files and requests, or rejects them with all errors.

Every element is checked separately, so that one error does not hide the next: a malformed resource
is reported together with an unknown key in another. Sizes are limited before parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from rackgate_osmo.model.rejections import (
    At,
    Location,
    RejectedError,
    Rejection,
    format_value,
    path_of,
    rejections_of_validation_error,
)
from rackgate_osmo.model.rules import ParsedWorkflow, rejections_of, rejections_of_pool
from rackgate_osmo.model.workflow import (
    MAX_GROUPS,
    MAX_KEYS,
    MAX_NAME,
    MAX_RESOURCES,
    MAX_TASKS,
    Name,
    Pool,
    Resource,
    Task,
    TaskGroup,
    Workflow,
)

# Resource of a malformed task; longer than any valid name.
_UNREAD: Final = "\0" * (MAX_NAME + 1)
_OPTIONAL: Final = ("topology_keys", "node_selector", "tolerations", "gpu_toleration")
_name: Final = TypeAdapter(Name)
_groups: Final = TypeAdapter(tuple[TaskGroup, ...])
_tasks: Final = TypeAdapter(tuple[Task, ...])


def read_pool(data: Any) -> Pool:
    """A pool from data, for instance of a YAML file. Fields unrelated to topology are ignored.

    Raises:
        RejectedError: with all errors.
    """
    if not isinstance(data, Mapping):
        raise RejectedError([_not_a_mapping("pool", "", data)])
    keys = data.get("topology_keys")
    if isinstance(keys, list | tuple) and len(keys) > MAX_KEYS:
        # KAI[topology-17-levels]
        message = f"{len(keys)} keys are too many: KAI supports at most {MAX_KEYS} levels"
        raise RejectedError([Rejection("pool", "levels", "topology_keys", len(keys), message)])
    # In YAML, a field without a value is null.
    empty = [field for field in _OPTIONAL if field in data and data[field] is None]
    data = {name: value for name, value in data.items() if name not in empty}
    try:
        pool = Pool.model_validate(data)
    except ValidationError as error:
        raise RejectedError(rejections_of_validation_error(error, Pool, "pool")) from error
    if found := list(rejections_of_pool(pool)):
        raise RejectedError(found)
    return pool


def read_workflow(data: Any, pool: Pool, *, strict: bool = False) -> Workflow:
    """A workflow from data, checked against the keys of the pool that it is submitted to.

    Args:
        data: `{workflow: {name, groups, resources}, resources}`, with resources at either level or
            both, or the inner mapping alone. `tasks` instead of `groups` means one group
            `<task>-group` for each task. Other fields of groups and tasks are kept.
        pool: where it is submitted.
        strict: reject tasks whose requirements use different sets of keys.

    Raises:
        RejectedError: with all errors.
    """
    if not isinstance(data, Mapping):
        raise RejectedError([_not_a_mapping("submission", "", data)])
    inside: Location = ("workflow",) if "workflow" in data else ()
    body = data["workflow"] if inside else data
    if not isinstance(body, Mapping):
        raise RejectedError([_not_a_mapping("submission", "workflow", body)])
    found: list[Rejection] = []
    places: dict[Location, Mapping[Any, Any]] = {("resources",): data}
    places[(*inside, "resources")] = body
    resources = _Resources(places, found)
    name = _read_name(body, inside, found)
    groups, where_task = _read_groups(body, inside, found)
    unread = {*resources.unread, _UNREAD}
    workflow_data = ParsedWorkflow(groups, resources.read, unread, resources.where, where_task)
    found += rejections_of(workflow_data, pool, strict=strict)
    if found:
        raise RejectedError(found)
    # Every element is validated already; validating the whole would repeat that.
    return Workflow.model_construct(name=name, groups=groups, resources=resources.read)


class _Resources:
    """Resources of both levels, each checked separately."""

    def __init__(
        self, places: Mapping[Location, Mapping[Any, Any]], found: list[Rejection]
    ) -> None:
        self.read: dict[str, Resource] = {}
        self.unread: set[str] = set()
        self._prefix: dict[str, Location] = {}
        # Requirements repeat: sharing equal ones saves time in construction and garbage collection.
        self._requirements: dict[tuple[Any, ...], Any] = {}
        for prefix, holder in places.items():
            given = holder.get("resources")
            if given is None:
                continue
            if not isinstance(given, Mapping):
                found.append(_not_a_mapping("submission", path_of(*prefix), given))
            elif len(given) > MAX_RESOURCES:
                message = f"{len(given)} resources are too many: {MAX_RESOURCES} at most"
                path = path_of(*prefix)
                found.append(Rejection("submission", "too-long", path, len(given), message))
                self.unread.update(name for name in given if isinstance(name, str))
            else:
                self._take(prefix, given, found)

    def where(self, name: str) -> Location:
        """Path of a resource."""
        return (*self._prefix.get(name, ("resources",)), name)

    def _take(self, prefix: Location, given: Mapping[Any, Any], found: list[Rejection]) -> None:
        for name, value in given.items():
            if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
                message = (
                    f"{format_value(name)} is not a resource name: use 1 to {MAX_NAME} characters"
                )
                found.append(Rejection("submission", "name", path_of(*prefix), name, message))
                continue
            if name in self._prefix:
                message = f"resource {format_value(name)} is also in {path_of(*self._prefix[name])}"
                path = path_of(*prefix, name)
                found.append(Rejection("submission", "duplicate-resource", path, name, message))
                continue
            self._prefix[name] = prefix
            try:
                self.read[name] = Resource.model_validate(
                    {} if value is None else value, context=self._requirements
                )
            except ValidationError as error:
                self.unread.add(name)
                found += rejections_of_validation_error(
                    error, Resource, "submission", (*prefix, name), len(found)
                )


def _read_name(body: Mapping[Any, Any], inside: Location, found: list[Rejection]) -> str:
    if "name" not in body:
        path = path_of(*inside, "name")
        found.append(Rejection("submission", "missing", path, None, "a value is required"))
        return ""
    try:
        return _name.validate_python(body["name"], strict=True)
    except ValidationError as error:
        found += rejections_of_validation_error(error, Workflow, "submission", (*inside, "name"))
        return ""


def _not_a_mapping(at: At, path: str, value: object) -> Rejection:
    return Rejection(at, "type", path, value, f"{format_value(value)} is not a mapping")


# -- task groups -----------------------------------------------------------------------------


def _read_groups(
    body: Mapping[Any, Any], inside: Location, found: list[Rejection]
) -> tuple[tuple[TaskGroup, ...], Callable[[int, int], Location]]:
    """The task groups of a workflow, and a function from the indices of a task to its path.

    A malformed task is replaced by a task with the resource `__UNREAD`. Without `groups`, each of
    `tasks` is a group of its own.
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
    """The rejection of a value that is not a list, is empty, or has too many entries or tasks."""
    path = path_of(*prefix)
    if given is None:
        message = "no task groups: list at least one under groups"
        return Rejection("submission", "missing", path, None, message)
    if not isinstance(given, list | tuple):
        message = f"{format_value(given)} is not a list"
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
    """The group that OSMO creates for a task that is written without one."""
    return TaskGroup.model_construct(name=f"{task.name}-group", tasks=(task,))


def _readable(given: Any, index: int) -> TaskGroup:
    fields = given if isinstance(given, Mapping) else {}
    name, tasks = fields.get("name"), fields.get("tasks")
    if not isinstance(name, str):
        name = f"{_UNREAD}{index}"
    if not isinstance(tasks, list | tuple) or not tasks:
        tasks = [None]
    return TaskGroup.model_construct(name=name, tasks=_readable_tasks(tasks))


def _readable_tasks(given: Sequence[Any]) -> tuple[Task, ...]:
    return tuple(_readable_task(task, index) for index, task in enumerate(given))


def _readable_task(given: Any, index: int) -> Task:
    try:
        return Task.model_validate(given)
    except ValidationError:
        return Task.model_construct(name=f"{_UNREAD}{index}", resource=_UNREAD)
