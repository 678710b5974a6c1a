"""Every kind of write that services make, so that each is cut short once before and once after.

    points = WritePoints()
    trap = points.trap(write, {"fieldManager": "m"}, body)    # of replica assigner-0, say

A point is a service, a verb, a resource, a field manager and the shape of what is written: which
fields, and which conditions with which status, whatever their values. The process that makes the
first write of a point dies before the write is applied, and the one that makes the next of it
dies when it was applied and before it is answered. A write that is repeated goes through in the
end, so that everything ends that would end without deaths.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.proxy_faults import Trap
from tests.support.proxy_records import Write

# Where shapes end: deeper fields differ from job to job.
DEPTH = 3
# Said of the fields of one entry, however many there are, and of each member alike.
_NUMBER = re.compile(r"/\d+(?=/|$)")
_MEMBER = re.compile(r"(members\.rackgate\.dev)/\w+")


@dataclass
class WritePoints:
    """Which points were seen, and how often the process died there.

    Attributes:
        most: deaths that are left; None: as many as there are points.
        deaths: by point, 1: before it was applied; 2: also after it was.
        rights: the verb and resource of each point that was seen, by service.
    """

    most: int | None = None
    deaths: dict[str, int] = field(default_factory=dict)
    rights: dict[tuple[str, str, str], set[str]] = field(default_factory=dict)

    def trap(self, write: Write, query: Mapping[str, str], body: bytes) -> Trap | None:
        """The death of the process that sends this write, if it is due; counts it."""
        name, _, pid = write.sender.partition("/")
        service, verb, resource = name.rpartition("-")[0], write.verb, write.resource
        point = f"{service}: {verb} {resource} {query.get('fieldManager', '')}{shape(body)}"
        self.rights.setdefault((service, verb, resource), set()).add(point)
        died = self.deaths.get(point, 0)
        if died == 2 or self.most == 0:
            return None
        self.deaths[point] = died + 1
        if self.most is not None:
            self.most -= 1
        return Trap(1, "after" if died else "before", lambda: _kill(int(pid)))

    @property
    def left(self) -> list[str]:
        """Points that were seen and where no process died before, or after."""
        seen = set().union(*self.rights.values()) if self.rights else set()
        return sorted(point for point in seen if self.deaths.get(point, 0) < 2)


def shape(body: bytes) -> str:
    """Which fields a write names: operations of a JSON patch, else paths of the object."""
    try:
        found = json.loads(body) if body else {}
    except ValueError:
        return " (no JSON)"
    if isinstance(found, list):
        operations = {f"{op['op']} {_NUMBER.sub('/*', op['path'])}" for op in found}
        return "".join(f" {text}" for text in sorted(operations) if not text.startswith("test "))
    return "".join(f" {path}" for path in sorted(set(_paths(found, ()))))


def _paths(value: Any, above: tuple[str, ...]) -> list[str]:
    if above == ("status", "conditions"):
        return [f"{entry.get('type')}={entry.get('status')}" for entry in value]
    if not isinstance(value, dict) or not value or len(above) == DEPTH:
        path = _MEMBER.sub(r"\1/*", ".".join(above))
        return [path] if above and above[0] not in ("apiVersion", "kind") else []
    return [path for key, part in value.items() for path in _paths(part, (*above, key))]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # another connection of the same process was quicker
