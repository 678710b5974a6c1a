"""Since when pods wait for their gangs, and when an Event about it is due. Pure.

Most gangs wait only until their last pod exists, so an Event is due after some time. It is due once
for each gang and reason, until the reason changes. Pods that belong to no gang are reported at
once, and again if there are others, but at most once per minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rackgate.gang.membership import Mismatch
from rackgate.gang.readiness import Waiting
from rackgate_ungater.state_machine.gangs import GangDecision, HeldPods
from rackgate_ungater.state_machine.gated_objects import WorkloadKey

HOLD_REASONS: Final[tuple[str, ...]] = (*Waiting, *Mismatch)
GANG_WAITING_S: Final = 10.0
WORKLOAD_MISSING_S: Final = 60.0
MISMATCH_EVERY_S: Final = 60.0


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

    def is_due(self, now: float) -> bool:
        if self.held.reason in list(Mismatch):
            return self.reported != self.held.message and (
                self.reported_at is None or now - self.reported_at >= MISMATCH_EVERY_S
            )
        missing = self.held.reason == Waiting.WORKLOAD_MISSING
        after_s = WORKLOAD_MISSING_S if missing else GANG_WAITING_S
        return self.reported_at is None and now - self.since >= after_s


class GangWaits:
    """The pods that wait for their gangs, by Workload."""

    def __init__(self) -> None:
        self._waits: dict[WorkloadKey, dict[tuple[str, str], _Wait]] = {}

    def update(self, key: WorkloadKey, decision: GangDecision, now: float) -> None:
        """Record what waits now."""
        known = self._waits.pop(key, {})
        waits = {}
        for held in decision.held:
            wait = known.get((held.subject, held.reason)) or _Wait(held, now)
            wait.held = held
            waits[held.subject, held.reason] = wait
        if waits:
            self._waits[key] = waits

    def due(self, key: WorkloadKey, now: float) -> list[HeldPods]:
        """What is to be reported now; it counts as reported."""
        found = [wait for wait in self._waits.get(key, {}).values() if wait.is_due(now)]
        for wait in found:
            wait.reported_at, wait.reported = now, wait.held.message
        return [wait.held for wait in found]

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
