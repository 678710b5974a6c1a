"""Data from files and requests, made a pool or a workflow, or refused with everything wrong in it.

Every part is judged on its own, so that one mistake does not hide the next: a resource of the
wrong form is told beside an unknown key in another. Sizes are bounded before anything is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from rackgate.api.meta import LABEL_KEY, LABEL_VALUE, SUBDOMAIN
from rackgate.api.names import HOSTNAME_LABEL
from rackgate_osmo.model.model import (
    KAI,
    MAX_KEYS,
    MAX_NAME,
    MAX_POOL_NAME,
    MAX_RESOURCES,
    Name,
    Pool,
    Resource,
    Workflow,
)
from rackgate_osmo.model.rejections import (
    At,
    Location,
    RejectedError,
    Rejection,
    format_value,
    path_of,
    rejections_of_validation_error,
)
from rackgate_osmo.model.rules import ParsedWorkflow, rejections_of
from rackgate_osmo.model.task_groups import UNREAD, read_groups

_LABEL: Final = re.compile(LABEL_KEY)
_VALUE: Final = re.compile(LABEL_VALUE)
_SUBDOMAIN: Final = re.compile(SUBDOMAIN)
_MAX_PREFIX: Final = 253
_MAX_LABEL_NAME: Final = 63
_SCHEDULERS: Final = (KAI, "kai-scheduler")
_OPTIONAL: Final = ("topology_keys", "node_selector", "tolerations", "gpu_toleration")
_name: Final = TypeAdapter(Name)


def read_pool(data: Any) -> Pool:
    """A pool from data, for instance of a YAML file. Fields beyond topology's are ignored.

    Raises:
        RejectedError: with everything that is wrong.
    """
    if not isinstance(data, Mapping):
        raise RejectedError([_not_a_mapping("pool", "", data)])
    keys = data.get("topology_keys")
    if isinstance(keys, list | tuple) and len(keys) > MAX_KEYS:
        # KAI[topology-17-levels]
        message = f"{len(keys)} keys are too many: KAI takes {MAX_KEYS} levels at most"
        raise RejectedError([Rejection("pool", "levels", "topology_keys", len(keys), message)])
    # ParsedWorkflow without a value, a field reads as null.
    empty = [field for field in _OPTIONAL if field in data and data[field] is None]
    data = {name: value for name, value in data.items() if name not in empty}
    try:
        pool = Pool.model_validate(data)
    except ValidationError as error:
        raise RejectedError(rejections_of_validation_error(error, Pool, "pool")) from error
    if found := list(rejections_of_pool(pool)):
        raise RejectedError(found)
    return pool


def rejections_of_pool(pool: Pool) -> Iterator[Rejection]:
    """What is wrong with a pool beyond the form of its fields."""
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
            "but the "
            f"backend's scheduler is {format_value(pool.scheduler)}: only {KAI} takes them; use a "
            "backend with it, or take the keys out"
        )
        yield Rejection("pool", "scheduler", "topology_keys", pool.scheduler, message)
    keys: dict[str, int] = {}
    labels: dict[str, int] = {}
    for index, one in enumerate(pool.topology_keys):
        path = path_of("topology_keys", index)
        # KAI[topology-duplicate-label], and of a key no requirement could tell which is meant
        yield from _seen_before("key", one.key, keys, index, path)
        yield from _seen_before("label", one.label, labels, index, path)
        if not _is_label(one.label):
            message = (
                f"{format_value(one.label)} is a label that no node can carry: use a form such as "
                f'"rack" or "example.com/rack", with at most {_MAX_LABEL_NAME} characters after '
                "the slash and a lower-case DNS name before it"
            )
            yield Rejection("pool", "label", f"{path}.label", one.label, message)
        if one.label == HOSTNAME_LABEL and index < len(pool.topology_keys) - 1:
            # KAI[topology-hostname-not-last]
            message = f"{HOSTNAME_LABEL} is the finest level there is: put its key last"
            yield Rejection("pool", "hostname-level", f"{path}.label", one.label, message)
    for label, value in pool.node_selector.items():
        path = path_of("node_selector", label)
        if not _is_label(label):
            message = f"{format_value(label)} is a label that no node can carry"
            yield Rejection("pool", "label", path, label, message)
        elif len(value) > _MAX_LABEL_NAME or not _VALUE.fullmatch(value):
            message = (
                f"{format_value(value)} is no value of a label: use at most {_MAX_LABEL_NAME} "
                "letters, "
                "digits, -, _ and ., with a letter or digit at both ends"
            )
            yield Rejection("pool", "label-value", path, value, message)


def _seen_before(
    what: str, value: str, seen: dict[str, int], index: int, path: str
) -> Iterator[Rejection]:
    first = seen.setdefault(value, index)
    if first != index:
        message = f"{what} {format_value(value)} is there twice, first at topology_keys[{first}]: "
        message += f"name each {what} once"
        yield Rejection("pool", f"duplicate-{what}", f"{path}.{what}", value, message)


def _is_label(label: str) -> bool:
    """Whether a node can carry it: the schema refuses some of the others only.

    KAI[topology-bad-label], KAI[topology-long-label-name]
    """
    prefix, slash, name = label.rpartition("/")
    within = len(prefix) <= _MAX_PREFIX and len(name) <= _MAX_LABEL_NAME
    return bool(within and _LABEL.fullmatch(label) and (prefix or not slash))


def read_workflow(data: Any, pool: Pool, *, strict: bool = False) -> Workflow:
    """A workflow from data, judged by the keys of the pool it is submitted to.

    Args:
        data: `{workflow: {name, groups, resources}, resources}`, resources in either place or
            both, or the inner mapping alone. `tasks` in place of `groups` is one group
            `<task>-group` for each task. Other fields of groups and tasks are carried.
        pool: where it is submitted.
        strict: all tasks with requirements must use one set of keys.

    Raises:
        RejectedError: with everything that is wrong.
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
    groups, where_task = read_groups(body, inside, found)
    unread = {*resources.unread, UNREAD}
    workflow_data = ParsedWorkflow(groups, resources.read, unread, resources.where, where_task)
    found += rejections_of(workflow_data, pool, strict=strict)
    if found:
        raise RejectedError(found)
    # Every part is validated; as a whole it would be once more.
    return Workflow.model_construct(name=name, groups=groups, resources=resources.read)


class _Resources:
    """Resources of both places, each judged on its own."""

    def __init__(
        self, places: Mapping[Location, Mapping[Any, Any]], found: list[Rejection]
    ) -> None:
        self.read: dict[str, Resource] = {}
        self.unread: set[str] = set()
        self._prefix: dict[str, Location] = {}
        # Workflows repeat themselves: fewer objects are quicker to make and to collect.
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
                    f"{format_value(name)} is no name of a resource: use 1 to {MAX_NAME} characters"
                )
                found.append(Rejection("submission", "name", path_of(*prefix), name, message))
                continue
            if name in self._prefix:
                message = f"resource {format_value(name)} is in {path_of(*self._prefix[name])} too"
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
        found.append(Rejection("submission", "missing", path, None, "the field is missing: add it"))
        return ""
    try:
        return _name.validate_python(body["name"], strict=True)
    except ValidationError as error:
        found += rejections_of_validation_error(error, Workflow, "submission", (*inside, "name"))
        return ""


def _not_a_mapping(at: At, path: str, value: object) -> Rejection:
    return Rejection(at, "type", path, value, f"{format_value(value)} is not a mapping: write one")
