"""Grants that are charged before the watch shows their status write."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rackgate_assigner.workload.decisions import Assignment
from rackgate_assigner.workload.info import WorkloadInfo


def _reached(seen: str, written: str) -> bool:
    """Whether a watch that shows version `seen` has come to version `written`.

    Versions of one object are decimal numbers that grow (KEP-5504); others are only compared
    for equality.
    """
    if seen.isdecimal() and written.isdecimal():
        return int(seen) >= int(written)
    return seen == written


@dataclass(frozen=True, slots=True)
class AssumedAssignment:
    """One assumed assignment.

    Attributes:
        uid: of the Workload it was given to: a namesake created later has no part in it.
        seen: resourceVersion that the decision was made on.
        written: resourceVersion that the status write was answered with, "" while unknown.
    """

    assignment: Assignment
    uid: str
    seen: str
    written: str = ""

    def with_written_version(self, resource_version: str) -> AssumedAssignment:
        """The same, with the version that the write was answered with."""
        return replace(self, written=resource_version)

    def is_superseded_by(self, info: WorkloadInfo) -> bool:
        """Whether the watch is to be believed from now on, whatever it shows."""
        if info.uid != self.uid or info.finished:
            return True
        if info.reserved is not None and info.resource_version != self.seen:
            return True
        return bool(self.written) and _reached(info.resource_version, self.written)
