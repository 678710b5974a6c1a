"""How long a Workload may be admitted in total: `spec.maximumExecutionTimeSeconds` (KEP-3125).

The time of the present admission starts with the condition `Admitted`. When the quota is released,
it is added to `status.accumulatedPastExecutionTimeSeconds`. A Workload that has used its time is
deactivated; if it is activated again, it has its whole time again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from rackgate.api.names import EvictionReason, UnderlyingCause, WorkloadCondition
from rackgate.wire.kueue import Workload
from rackgate_assigner.workload.elapsed import Elapsed

_MAX_COUNT: Final = 2**31 - 1  # an int32 on the wire
_EXCEEDED: Final = (
    f"{EvictionReason.DEACTIVATED}DueTo{UnderlyingCause.MAXIMUM_EXECUTION_TIME_EXCEEDED}"
)


def execution_time_limit(workload: Workload) -> float:
    """Seconds left for the present or next admission, from its start; inf without a maximum."""
    maximum = workload.spec.maximum_execution_time_seconds
    return inf if maximum is None else max(0.0, float(maximum - _past_s(workload)))


def _past_s(workload: Workload) -> int:
    return max(0, workload.status.accumulated_past_execution_time_seconds or 0)


@dataclass(frozen=True, slots=True)
class ExecutionTime:
    """Of an admitted Workload with a maximum.

    Attributes:
        remaining_s: seconds until it is deactivated.
        past_s: `status.accumulatedPastExecutionTimeSeconds` if its quota were released now.
    """

    remaining_s: float
    past_s: int


def execution_time(workload: Workload, elapsed: Elapsed) -> ExecutionTime | None:
    """The execution time of an admitted Workload; None without a maximum, or when it has ended."""
    maximum = workload.spec.maximum_execution_time_seconds
    admitted = workload.condition(WorkloadCondition.ADMITTED)
    if maximum is None or admitted is None or admitted.status != "True":
        return None
    if workload.is_true(WorkloadCondition.FINISHED):
        return None
    since_s = elapsed.since(admitted.last_transition_time)
    if since_s is None:
        return None
    used_s = _past_s(workload) + since_s
    evicted = workload.condition(WorkloadCondition.EVICTED)
    is_over = evicted is not None and (evicted.status, evicted.reason) == ("True", _EXCEEDED)
    return ExecutionTime(maximum - used_s, 0 if is_over else min(int(used_s), _MAX_COUNT))
