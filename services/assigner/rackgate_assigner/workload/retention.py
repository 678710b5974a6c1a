"""How long ended Workloads are kept: `objectRetentionPolicies.workloads` (KEP-1618).

A finished Workload is deleted so long after its job has finished. A Workload that Rackgate
deactivated is deleted together with its job, so long after its deactivation. The times start with
the conditions `Finished` and `Requeued`. `Evicted` says too little: it stays True until the next
admission, also while its user activates and deactivates the Workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rackgate.api.names import EvictionReason, WorkloadCondition
from rackgate.wire.kueue import Workload
from rackgate_assigner.workload.elapsed import Elapsed

_BY_RACKGATE: Final = f"{EvictionReason.DEACTIVATED}DueTo"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long Workloads are kept; None: forever.

    Attributes:
        after_finished_s: seconds after condition Finished.
        after_deactivated_s: seconds after Rackgate deactivated a Workload.
    """

    after_finished_s: float | None = None
    after_deactivated_s: float | None = None

    def remaining_s(self, workload: Workload, elapsed: Elapsed) -> float | None:
        """Seconds until a Workload, or its job, may be deleted; None if it is kept."""
        finished = workload.condition(WorkloadCondition.FINISHED)
        if finished is not None and finished.status == "True":
            return _remaining(self.after_finished_s, elapsed, finished.last_transition_time)
        requeued = workload.condition(WorkloadCondition.REQUEUED)
        if workload.spec.active or requeued is None or requeued.status != "False":
            return None
        if not requeued.reason.startswith(_BY_RACKGATE):
            return None  # its user deactivated it
        return _remaining(self.after_deactivated_s, elapsed, requeued.last_transition_time)


def _remaining(limit_s: float | None, elapsed: Elapsed, timestamp: str | None) -> float | None:
    since_s = None if limit_s is None else elapsed.since(timestamp)
    return None if limit_s is None or since_s is None else limit_s - since_s
