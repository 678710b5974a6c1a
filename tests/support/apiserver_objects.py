"""Paths, selectors and patches of the fake API server: pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


def status_body(code: int, reason: str, message: str) -> bytes:
    """A Status object."""
    return json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
        }
    ).encode()


class RejectedRequest(Exception):  # noqa: N818 - a refusal on the wire, not an error of the test
    """The answer is this Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.body = status_body(code, reason, message)


@dataclass(frozen=True)
class Target:
    """What a path is about."""

    full_name: str
    plural: str
    namespace: str = ""
    name: str = ""
    sub: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def holds(self, item: Object) -> bool:
        """Whether `item` is in the collection."""
        return self.namespace in ("", item["metadata"].get("namespace", ""))

    @classmethod
    def parse(cls, path: str) -> Target:
        parts = path.strip("/").split("/")
        group = parts[1] if parts[0] == "apis" else ""
        rest = parts[3:] if group else parts[2:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        if not rest or parts[0] not in ("api", "apis"):
            raise RejectedRequest(404, "NotFound", f"the server could not find {path}")
        plural, name, sub = [*rest, "", ""][:3]
        return cls(f"{plural}.{group}" if group else plural, plural, namespace, name, sub)


def selected(item: Object, query: Mapping[str, str]) -> bool:
    """Equality, inequality and existence of labels; metadata.name and spec fields."""
    labels = item["metadata"].get("labels", {})
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, equals, value = term.partition("=")
        if key.endswith("!"):
            if labels.get(key[:-1]) == value:
                return False
            continue
        if key not in labels or (equals and labels[key] != value.lstrip("=")):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = term.replace("!=", "=!").partition("=")
        found: Any = item
        for part in path.split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        if (str(found) == value.lstrip("!=")) == value.startswith("!"):
            return False
    return True


def apply_patch(known: Object, kind: str, body: bytes) -> Object:
    """`known` after a patch of content type `kind`. Apply merges, knowing no managers."""
    patch = json.loads(body)
    if kind.startswith("application/json-patch"):
        return _json_patched(copy.deepcopy(known), patch)
    return merged(known, patch, strategic="strategic" in kind)


def merged(known: Object, patch: Object, *, strategic: bool = False) -> Object:
    """JSON merge; strategic lists of named items merge by name and know `$patch: delete`."""
    result = copy.deepcopy(known)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            inner = result.get(key)
            result[key] = merged(
                inner if isinstance(inner, dict) else {}, value, strategic=strategic
            )
        elif strategic and _named(value):
            result[key] = _merged_list(result.get(key, []), value)
            if not result[key]:
                del result[key]
        else:
            result[key] = copy.deepcopy(value)
    return result


def _named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(i, dict) and "name" in i for i in value)


def _merged_list(known: list[Object], patch: list[Object]) -> list[Object]:
    items = {item["name"]: item for item in known}
    for item in patch:
        if item.get("$patch") == "delete":
            items.pop(item["name"], None)
        else:
            items[item["name"]] = merged(items.get(item["name"], {}), item, strategic=True)
    return list(items.values())


def _json_patched(item: Object, operations: list[Object]) -> Object:
    for operation in operations:
        parts = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        parent: Any = item
        try:
            for part in parts[:-1]:
                parent = parent[int(part)] if isinstance(parent, list) else parent[part]
            _json_operation(parent, parts[-1], operation)
        except (KeyError, IndexError, TypeError) as error:
            raise RejectedRequest(
                422, "Invalid", f"{operation['op']} {operation['path']}"
            ) from error
    return item


def _json_operation(parent: Any, last: str, operation: Object) -> None:
    value = operation.get("value")
    at: Any = last
    if isinstance(parent, list):
        at = len(parent) if last == "-" else int(last)
    match operation["op"]:
        case "test":
            if parent[at] != value:
                raise RejectedRequest(422, "Invalid", f"test of {operation['path']} failed")
        case "add" if isinstance(parent, list):
            parent.insert(at, value)
        case "add":
            parent[at] = value
        case "replace":
            parent[at]
            parent[at] = value
        case "remove":
            del parent[at]
