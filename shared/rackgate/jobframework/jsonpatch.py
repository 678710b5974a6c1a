"""JSON patches (RFC 6902) on the few fields that Rackgate writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

JsonPatchOp: TypeAlias = dict[str, Any]


def pointer(*parts: str) -> str:
    """A JSON pointer; `~` and `/` inside a part are escaped (`/` becomes `~1`)."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def value_test(path: str, value: object) -> JsonPatchOp:
    """The operation after which a patch fails as a whole if the value at `path` is another one."""
    return {"op": "test", "path": path, "value": value}


def name_tests(path: str, name: str) -> tuple[JsonPatchOp, ...]:
    """A test that a list still has the entry of this name at `path`; none without a name."""
    return (value_test(path, name),) if name else ()


def with_preconditions(
    operations: Iterable[JsonPatchOp], *, uid: str, resource_version: str
) -> list[JsonPatchOp]:
    """The operations behind `test`s of uid and resourceVersion: stale patches fail as a whole."""
    return [
        value_test("/metadata/uid", uid),
        value_test("/metadata/resourceVersion", resource_version),
        *operations,
    ]


def with_tests(
    operations: Iterable[JsonPatchOp], *, uid: str, tests: Iterable[JsonPatchOp] = ()
) -> list[JsonPatchOp]:
    """The operations behind `test`s of the uid and of what they depend on.

    For writes that end the use of quota. Bound to a version, they would conflict as long as a user
    keeps changing something else in the object.
    """
    return [value_test("/metadata/uid", uid), *tests, *operations]


def value_patch(prefix: str, key: str, have: Mapping[str, Any], want: object) -> list[JsonPatchOp]:
    """Replace `have[key]` as a whole with `want`; if `want` is None or empty, remove it.

    Nothing is emitted when both are equal; absent, null and empty count as equal, because the
    API server stores them alike.
    """
    current = have.get(key)
    if (current or None) == (want or None):
        return []
    path = prefix + pointer(key)
    if want is None:
        return [{"op": "remove", "path": path}]
    return [{"op": "replace" if key in have else "add", "path": path, "value": want}]


def map_patch(
    prefix: str, key: str, have: Mapping[str, Any], want: Mapping[str, Any] | None
) -> list[JsonPatchOp]:
    """Make the map `have[key]` equal to `want` key by key; create or remove the map if needed."""
    current = have.get(key)
    if not current or not want:
        return value_patch(prefix, key, have, None if want is None else dict(want))
    inside = prefix + pointer(key)
    removed = [
        {"op": "remove", "path": inside + pointer(name)} for name in current if name not in want
    ]
    written = [
        {
            "op": "replace" if name in current else "add",
            "path": inside + pointer(name),
            "value": value,
        }
        for name, value in want.items()
        if name not in current or current[name] != value
    ]
    return removed + written
