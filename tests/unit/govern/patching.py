"""Applies JSON patches the strict way of RFC 6902, as the API server does."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any


class PatchError(AssertionError):
    """An operation that the API server would refuse."""


def apply_patch(document: Mapping[str, Any], operations: Iterable[Mapping[str, Any]]) -> Any:
    """The patched copy; parents must exist, `replace`, `remove` and `test` need their target."""
    result: Any = copy.deepcopy(dict(document))
    for operation in operations:
        *parents, last = _parts(operation["path"])
        holder = result
        for part in parents:
            holder = _child(holder, part)
        _apply(holder, last, operation)
    return result


def _parts(path: str) -> list[str]:
    if not path.startswith("/"):
        raise PatchError(f"{path!r} is no pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def _child(holder: Any, part: str) -> Any:
    key: Any = int(part) if isinstance(holder, list) else part
    try:
        return holder[key]
    except (KeyError, IndexError, TypeError) as error:
        raise PatchError(f"no parent {part!r}") from error


def _apply(holder: Any, last: str, operation: Mapping[str, Any]) -> None:
    key: Any = int(last) if isinstance(holder, list) else last
    verb, value = operation["op"], copy.deepcopy(operation.get("value"))
    if holder is None or isinstance(holder, str):
        raise PatchError(f"no parent for {last!r}")
    present = key in holder if isinstance(holder, dict) else 0 <= key < len(holder)
    if verb == "add":
        holder[key] = value
    elif not present:
        raise PatchError(f"{verb} {operation['path']}: nothing there")
    elif verb == "replace":
        holder[key] = value
    elif verb == "remove":
        del holder[key]
    elif verb != "test" or holder[key] != value:
        raise PatchError(f"{verb} {operation['path']} failed")
