"""Why a Workload is not granted anything in this cycle."""

from __future__ import annotations

from dataclasses import dataclass

from rackgate.api.names import PendingReason
from rackgate_assigner.scheduler.flavor_assigner import FlavorPlan
from rackgate_assigner.workload.decisions import TopologyNotFound


@dataclass(frozen=True, slots=True)
class Inadmissible:
    """Why a Workload waits.

    Attributes:
        rejected_flavors: flavors that had the quota and no place, as tried.
        preemption_plan: the plan, where others only have to give way for it.
    """

    reason: str
    message: str
    rejected_flavors: tuple[TopologyNotFound, ...] = ()
    preemption_plan: FlavorPlan | None = None


def inadmissible_until(requeue_at: str) -> Inadmissible:
    """Why a Workload is not looked at yet whose pods were not all ready again in time.

    Args:
        requeue_at: when it is, as in `status.requeueState`.
    """
    message = f"not all of its pods were ready again in time: queued again at {requeue_at}"
    return Inadmissible(PendingReason.PENDING_EVALUATION, message)
