"""Why a Workload is not granted anything in this cycle."""

from __future__ import annotations

from dataclasses import dataclass

from rackgate_assigner.core.admission.flavors import FlavorPlan
from rackgate_assigner.core.decisions import TopologyRefusal


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
