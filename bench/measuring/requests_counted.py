"""Requests of the services, counted in the API server's audit log by what they do for a Job. Pure
but for reading the file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.playground import SERVICES

_FOLLOWING: Final = frozenset({"list", "watch"})
_APART: Final = frozenset({"leases"})
_EVENTS: Final = "events"
_REFUSED: Final = 400

Kind = tuple[str, str]


@dataclass
class Requests:
    """Requests of the services by (service, what), sorted by what they are for.

    Attributes:
        jobs: for Jobs, their Workloads and their queues.
        events: Events.
        pods: pods released.
        following: lists and watches.
    """

    jobs: Counter[Kind] = field(default_factory=Counter)
    events: Counter[Kind] = field(default_factory=Counter)
    pods: Counter[Kind] = field(default_factory=Counter)
    following: Counter[Kind] = field(default_factory=Counter)

    def groups(self) -> dict[str, Counter[Kind]]:
        """All groups by the name they are printed under."""
        return {
            "requests": self.jobs,
            "Events": self.events,
            "patches of pods": self.pods,
            "lists and watches": self.following,
        }


class RequestLog:
    """Reads the audit log on where it stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size

    def take(self) -> Requests:
        """What the services asked since the last call."""
        entries = []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                entries.append(json.loads(line))
        return counted(entries)


def counted(entries: Iterable[Mapping[str, Any]]) -> Requests:
    """Sort audit entries; Leases and everybody else's requests are left out."""
    found = Requests()
    for entry in entries:
        user = entry["user"].get("username", "").rpartition(":")[2]
        service = user.removeprefix("rackgate-")
        reference = entry.get("objectRef") or {}
        resource, verb = reference.get("resource", ""), entry["verb"]
        if service == user or service not in SERVICES or not resource or resource in _APART:
            continue
        # A watch is told of when it starts and when it ends.
        if entry["stage"] != ("ResponseStarted" if verb == "watch" else "ResponseComplete"):
            continue
        sub = f"/{reference['subresource']}" if "subresource" in reference else ""
        code = entry.get("responseStatus", {}).get("code", 200)
        what = f"{verb} {resource}{sub}{f' ({code})' if code >= _REFUSED else ''}"
        _group(found, verb, resource)[service, what] += 1
    return found


def _group(found: Requests, verb: str, resource: str) -> Counter[Kind]:
    if verb in _FOLLOWING:
        return found.following
    if resource == _EVENTS:
        return found.events
    return found.pods if (verb, resource) == ("patch", "pods") else found.jobs


def per_job(requests: Requests, jobs: int) -> dict[str, float]:
    """Each kind of request and the sum of each group, divided by the number of Jobs."""
    found: dict[str, float] = {}
    for group, kinds in requests.groups().items():
        found[group] = kinds.total() / jobs
        for (service, what), count in sorted(kinds.items()):
            found[f"{group}: {service}, {what}"] = count / jobs
    return found


def side_by_side(columns: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Figures of several runs as lines of a table, a group's sum before what it consists of.

    Args:
        columns: figures by the title of their column.
    """
    rows = dict.fromkeys(name for figures in columns.values() for name in figures)
    groups = list(dict.fromkeys(name.partition(":")[0] for name in rows))
    lines = [f"  {'per Job':52}" + "".join(f"{title:>12}" for title in columns)]
    for group in groups:
        listed = sorted(name for name in rows if name.startswith(f"{group}: "))
        for name in (group, *listed):
            title = name if name == group else "  " + name.partition(": ")[2]
            cells = (figures.get(name, 0.0) for figures in columns.values())
            lines.append(f"  {title:52}" + "".join(f"{cell:>12.2f}" for cell in cells))
    return lines
