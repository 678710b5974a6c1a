"""Pods that are not all ready in time: `waitForPodsReady` (KEP-349, TAS-32).

An admitted job has `timeout` seconds from its admission to have all its pods ready, and
`recoveryTimeout` seconds to have them all ready again after one was lost. The times start with
`Admitted` and with the change of `PodsReady` to False, which the API server stores, so a restart or
a new leader does not reset them. After a timeout the Workload is evicted, and queued again after a
backoff that doubles with each such eviction; `status.requeueState` has the number of evictions and
the end of the backoff. After `backoffLimitCount` evictions it is deactivated instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from rackgate.api.names import UnderlyingCause, WorkloadCondition
from rackgate.api.timestamps import parse_rfc3339, rfc3339
from rackgate.wire.kueue import RequeueState, Workload
from rackgate_assigner.workload.elapsed import Elapsed

_MAX_COUNT: Final = 2**31 - 1  # an int32 on the wire


@dataclass(frozen=True, slots=True)
class MissingPods:
    """Why the pods of an admitted job are not all ready, and the seconds until that times out."""

    cause: UnderlyingCause
    remaining_s: float


@dataclass(frozen=True, slots=True)
class TimedOut:
    """What follows from a timeout.

    Attributes:
        cause: why the pods were not ready.
        requeue: the value of `status.requeueState` after the eviction; None: the Workload was
            evicted too often, so it is deactivated.
    """

    cause: UnderlyingCause
    requeue: RequeueState | None


@dataclass(frozen=True, slots=True)
class PodsReadyTimeouts:
    """The timeouts for missing pods, and the backoff after an eviction for them.

    Attributes:
        start_s: seconds from the admission until all pods are ready; None for no timeout.
        recovery_s: seconds from the loss of a pod until all are ready again; None for no timeout.
        base_s: backoff after the first eviction.
        max_s: longest backoff.
        limit: evictions after which the next timeout deactivates; None: it never does.
    """

    start_s: float | None = None
    recovery_s: float | None = None
    base_s: float = 60.0
    max_s: float = 3600.0
    limit: int | None = None

    @property
    def enabled(self) -> bool:
        """Whether there is any timeout."""
        return self.start_s is not None or self.recovery_s is not None

    def missing_pods(
        self, workload: Workload, elapsed: Elapsed, *, staged: bool = False
    ) -> MissingPods | None:
        """Why and how long its pods may still be missing; None if no timeout applies.

        None for elastic jobs: their missing pods may have been requested a moment ago.

        Args:
            workload: as stored.
            elapsed: the times of the Workload.
            staged: its job starts in stages: missing pods need not be lost once others were ready.
        """
        ready = workload.condition(WorkloadCondition.PODS_READY)
        if workload.elastic or (ready is not None and ready.status != "False"):
            return None
        admitted = workload.condition(WorkloadCondition.ADMITTED)
        if admitted is None or admitted.status != "True":
            return None
        since_admission = elapsed.since(admitted.last_transition_time)
        if ready is None or ready.reason != UnderlyingCause.WAIT_FOR_RECOVERY:
            return _missing(UnderlyingCause.WAIT_FOR_START, self.start_s, since_admission)
        if staged:
            return None
        since = elapsed.since(ready.last_transition_time)
        if since is not None and since_admission is not None:
            since = min(since, since_admission)
        return _missing(UnderlyingCause.WAIT_FOR_RECOVERY, self.recovery_s, since)

    def time_out(self, workload: Workload, cause: UnderlyingCause, now: datetime) -> TimedOut:
        """What follows if the pods of a Workload are still missing at `now`."""
        state = workload.status.requeue_state
        count = min(max(0, state.count if state is not None else 0) + 1, _MAX_COUNT)
        if self.limit is not None and count > self.limit:
            return TimedOut(cause, None)
        # The exponent is limited first, as any client may have written the count.
        pause_s = min(self.base_s * 2 ** min(count - 1, 32), self.max_s)
        return TimedOut(cause, RequeueState(count, rfc3339(now + timedelta(seconds=pause_s))))


def backoff_remaining_s(workload: Workload, elapsed: Elapsed) -> float | None:
    """Seconds until an evicted Workload is requeued; None when it does not back off.

    The end of the backoff and the condition `Evicted` are written together. If that condition is
    from the future, the clock of its writer was ahead: only the time between the two counts.
    """
    state = workload.status.requeue_state
    if state is None or state.requeue_at is None:
        return None
    left_s = elapsed.until(state.requeue_at)
    if left_s is None:
        return 0.0
    evicted = workload.condition(WorkloadCondition.EVICTED)
    since_s = elapsed.since(evicted.last_transition_time) if evicted is not None else None
    if evicted is None or since_s is None:
        return left_s
    evicted_at = parse_rfc3339(evicted.last_transition_time or "")
    pause_s = (parse_rfc3339(state.requeue_at) - evicted_at).total_seconds()
    return min(left_s, max(0.0, pause_s - since_s))


def _missing(
    cause: UnderlyingCause, timeout_s: float | None, since_s: float | None
) -> MissingPods | None:
    if timeout_s is None or since_s is None:
        return None
    return MissingPods(cause, timeout_s - since_s)
