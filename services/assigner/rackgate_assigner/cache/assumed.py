"""Grants that are charged before the watch shows their status write."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rackgate_assigner.workload.decisions import Grant
from rackgate_assigner.workload.info import WorkloadRow


def _reached(seen: str, written: str) -> bool:
    """Whether a watch that shows version `seen` has come to version `written`.

    Versions of one object are decimal numbers that grow (KEP-5504); others are only compared
    for equality.
    """
    if seen.isdecimal() and written.isdecimal():
        return int(seen) >= int(written)
    return seen == written


@dataclass(frozen=True, slots=True)
class Assumed:
    """One assumed grant.

    Attributes:
        uid: of the Workload it was given to: a namesake created later has no part in it.
        seen: resourceVersion that the decision was made on.
        written: resourceVersion that the status write was answered with, "" while unknown.
    """

    grant: Grant
    uid: str
    seen: str
    written: str = ""

    def confirmed(self, resource_version: str) -> Assumed:
        """The same, with the version that the write was answered with."""
        return replace(self, written=resource_version)

    def over(self, row: WorkloadRow) -> bool:
        """Whether the watch is to be believed from now on, whatever it shows."""
        if row.uid != self.uid or row.finished:
            return True
        if row.reserved is not None and row.resource_version != self.seen:
            return True
        return bool(self.written) and _reached(row.resource_version, self.written)
