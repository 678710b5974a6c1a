"""Why a Workload is not granted anything in this cycle."""

from __future__ import annotations

from dataclasses import dataclass

from rackgate.api.names import PendingReason
from rackgate_assigner.scheduler.flavor_assigner import FlavorPlan
from rackgate_assigner.workload.decisions import TopologyRefusal


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a Workload waits.

    Attributes:
        refused: flavors that had the quota and no place, as tried.
        short: the plan, where others only have to give way for it.
    """

    reason: str
    message: str
    refused: tuple[TopologyRefusal, ...] = ()
    short: FlavorPlan | None = None


def backing_off(requeue_at: str) -> Refusal:
    """Why a Workload is not looked at yet whose pods were not all ready again in time.

    Args:
        requeue_at: when it is, as in `status.requeueState`.
    """
    message = f"not all of its pods were ready again in time: queued again at {requeue_at}"
    return Refusal(PendingReason.PENDING_EVALUATION, message)
