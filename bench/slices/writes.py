"""Writes by who made them, counted in the API server's audit log."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# Written all the time, whatever else is done.
_HEARTBEATS: Final = frozenset({"leases", "nodes"})
_ADMIN: Final = "bench"
_CONFLICT: Final = 409

Writes = Counter[tuple[str, str]]


class AuditLog:
    """Reads on where it stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size

    def take(self) -> Writes:
        """Writes since the last call, by (who, "verb resource"); conflicts are marked as such.

        Requests to nodes and Leases are left out.
        """
        found: Writes = Counter()
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in _whole_lines(file):
                self._offset += len(line)
                write = _write_in(json.loads(line))
                if write is not None:
                    found[write] += 1
        return found


def _whole_lines(file: io.BufferedReader) -> list[bytes]:
    return [line for line in file if line.endswith(b"\n")]


def _write_in(entry: dict[str, Any]) -> tuple[str, str] | None:
    reference = entry.get("objectRef") or {}
    resource = reference.get("resource", "")
    if entry["stage"] != "ResponseComplete" or entry["verb"] not in _WRITES:
        return None
    if resource in _HEARTBEATS:
        return None
    sub = f"/{reference['subresource']}" if "subresource" in reference else ""
    refused = entry.get("responseStatus", {}).get("code") == _CONFLICT
    what = f"{entry['verb']} {resource}{sub}{' (conflict)' if refused else ''}"
    return _who(entry["user"].get("username", "")), what


def _who(user: str) -> str:
    """A short name: `system:serviceaccount:kube-system:job-controller` -> `job-controller`."""
    name = user.rpartition(":")[2].removeprefix("rackgate-")
    return _ADMIN if "admin" in name else name
