"""Since when pods wait for their gangs, and when an Event about it is due. Pure.

Most gangs wait only until their last pod exists, so an Event is due after some time. It is due once
for each gang and reason, until the reason changes. Pods that belong to no gang are reported at
once, and again if there are others, but at most once per minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from rackgate.gang.membership import Mismatch
from rackgate.gang.readiness import Waiting
from rackgate_ungater.state_machine.gangs import GangDecision, HeldPods
from rackgate_ungater.state_machine.gated_objects import WorkloadKey

HOLD_REASONS: Final[tuple[str, ...]] = (
    *Waiting,
    *(reason for reason in Mismatch if reason is not Mismatch.NOT_HELD),
)
GANG_WAITING_S: Final = 10.0
WORKLOAD_MISSING_S: Final = 60.0
MISMATCH_EVERY_S: Final = 60.0

# UID of the Workload of gangs, what waits, and why.
_Reason: TypeAlias = tuple[str, str, str]


@dataclass(slots=True)
class _Wait:
    """One reason of one gang.

    Attributes:
        since: monotonic seconds.
        reported_at: when the last Event was due.
        reported: its text.
    """

    held: HeldPods
    since: float
    reported_at: float | None = None
    reported: str = ""

    def due_at(self) -> float | None:
        """When the next Event is due; None if there is nothing to report."""
        if self.held.reason in list(Mismatch):
            if self.reported == self.held.message:
                return None
            return self.since if self.reported_at is None else self.reported_at + MISMATCH_EVERY_S
        if self.reported_at is not None:
            return None
        missing = self.held.reason == Waiting.WORKLOAD_MISSING
        return self.since + (WORKLOAD_MISSING_S if missing else GANG_WAITING_S)


class GangWaits:
    """The pods that wait for their gangs, by Workload."""

    def __init__(self) -> None:
        self._waits: dict[WorkloadKey, dict[_Reason, _Wait]] = {}

    def update(self, key: WorkloadKey, decision: GangDecision, now: float) -> None:
        """Record what waits now."""
        known = self._waits.pop(key, {})
        waits = {}
        for held in decision.held:
            # Gangs of several Workloads of gangs may have one name.
            of = held.workload.uid if held.workload is not None else ""
            reason = of, held.subject, held.reason
            wait = known.get(reason) or _Wait(held, now)
            wait.held = held
            waits[reason] = wait
        if waits:
            self._waits[key] = waits

    def due(self, key: WorkloadKey, now: float) -> list[HeldPods]:
        """What is to be reported now; it counts as reported."""
        waits = self._waits.get(key, {}).values()
        found = [wait for wait in waits if (at := wait.due_at()) is not None and at <= now]
        for wait in found:
            wait.reported_at, wait.reported = now, wait.held.message
        return [wait.held for wait in found]

    def next_due_at(self, key: WorkloadKey) -> float | None:
        """When the next Event about a Workload is due, without any further event of a watch."""
        times = (wait.due_at() for wait in self._waits.get(key, {}).values())
        return min((at for at in times if at is not None), default=None)

    def forget(self, key: WorkloadKey) -> None:
        """The Workload is gone."""
        self._waits.pop(key, None)

    def count(self, reason: str, counts: Callable[[WorkloadKey], bool]) -> int:
        """Pods that wait for a reason, in the Workloads for which `counts` is true."""
        return sum(
            len(wait.held.pods)
            for key, waits in self._waits.items()
            if counts(key)
            for wait in waits.values()
            if wait.held.reason == reason
        )
