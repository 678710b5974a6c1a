"""Pods that do not recover: the second timeout of `waitForPodsReady` (KEP-349, TAS-32).

A running job whose pods were all ready has `recoveryTimeout` seconds to have them all ready again.
The time starts with the change of `PodsReady` to False, which the API server stores, so a restart
or a new leader does not reset it. It never starts before the admission of the current run. After
the timeout the Workload is evicted, and queued again after a backoff that doubles with each such
eviction; `status.requeueState` has the end of the backoff.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from rackgate.api.names import WorkloadCondition
from rackgate.api.timestamps import parse_rfc3339, rfc3339
from rackgate.wire.kueue import RequeueState, Workload

_MAX_COUNT: Final = 2**31 - 1  # an int32 on the wire
WAIT_FOR_RECOVERY: Final = "WaitForRecovery"


@dataclass(frozen=True, slots=True)
class RecoveryTimeout:
    """The timeout for missing pods, and the backoff after an eviction for them.

    Attributes:
        timeout_s: seconds from the loss; None for no timeout.
        base_s: backoff after the first eviction.
        max_s: longest backoff.
    """

    timeout_s: float | None = None
    base_s: float = 60.0
    max_s: float = 3600.0

    def remaining_s(self, workload: Workload, now: datetime) -> float | None:
        """Seconds until missing pods time out; None if no timeout applies.

        None for elastic jobs: their missing pods may have been requested a moment ago. (The same
        applies to kinds whose `staged` is true.)
        """
        ready = workload.condition(WorkloadCondition.PODS_READY)
        if self.timeout_s is None or ready is None or workload.elastic:
            return None
        since = _parse_timestamp(ready.last_transition_time)
        if (ready.status, ready.reason) != ("False", WAIT_FOR_RECOVERY) or since is None:
            return None
        admitted = workload.condition(WorkloadCondition.ADMITTED)
        start = _parse_timestamp(admitted.last_transition_time) if admitted is not None else None
        since = since if start is None else max(since, start)
        return self.timeout_s - (now - since).total_seconds()

    def next_requeue_state(self, workload: Workload, now: datetime) -> RequeueState:
        """The value of `status.requeueState` after an eviction at `now`."""
        state = workload.status.requeue_state
        count = min(max(0, state.count if state is not None else 0) + 1, _MAX_COUNT)
        # The exponent is limited first, as any client may have written the count.
        pause_s = min(self.base_s * 2 ** min(count - 1, 32), self.max_s)
        return RequeueState(count, rfc3339(now + timedelta(seconds=pause_s)))


def backoff_remaining_s(workload: Workload, now: datetime) -> float | None:
    """Seconds until an evicted Workload is requeued; None when it does not back off."""
    state = workload.status.requeue_state
    if state is None or state.requeue_at is None:
        return None
    until = _parse_timestamp(state.requeue_at)
    return 0.0 if until is None else max(0.0, (until - now).total_seconds())


def _parse_timestamp(text: str | None) -> datetime | None:
    """A timestamp of the API server; None if it is not one."""
    try:
        return parse_rfc3339(text or "")
    except ValueError:
        return None
