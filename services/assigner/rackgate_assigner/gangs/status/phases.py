"""The phase of a gang group, in words of pod phases, from the phases of its pods. Pure.

A gang is as far as its least number of pods. So the phase is that of the first of these sums that
is enough: pods that succeeded, with those that run, with those whose node does not answer, with
those that are pending. A pod is pending, too, while it is gated, is not bound, or pulls its images.
If no sum is enough and a pod failed, the group has failed: nothing takes its place.

Source: STR-17.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final


class PodPhase(StrEnum):
    """`status.phase` of a pod, and the phase of a gang group."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


# Of several gangs, the first one of these is shown.
_LEAST_FAR: Final = (
    PodPhase.FAILED,
    PodPhase.UNKNOWN,
    PodPhase.PENDING,
    PodPhase.RUNNING,
    PodPhase.SUCCEEDED,
)


def pod_phase(text: str) -> PodPhase:
    """The phase of a pod; one that has none yet is pending."""
    try:
        return PodPhase(text)
    except ValueError:
        return PodPhase.UNKNOWN if text else PodPhase.PENDING


def gang_phase(pods: Mapping[PodPhase, int], least: int) -> PodPhase:
    """The phase of one gang.

    Args:
        pods: by phase, without those that are being deleted.
        least: pods that start together; 0 if it is no gang: all of its pods count.
    """
    total = sum(pods.values())
    least = least or max(1, total)
    succeeded = pods.get(PodPhase.SUCCEEDED, 0)
    running = succeeded + pods.get(PodPhase.RUNNING, 0)
    unknown = running + pods.get(PodPhase.UNKNOWN, 0)
    pending = unknown + pods.get(PodPhase.PENDING, 0)
    if succeeded >= least and succeeded == pending:
        return PodPhase.SUCCEEDED
    if running >= least:
        return PodPhase.RUNNING
    if unknown >= least:
        return PodPhase.UNKNOWN
    return PodPhase.FAILED if pending < least and pending < total else PodPhase.PENDING


def least_far(phases: Iterable[PodPhase]) -> PodPhase | None:
    """The phase that stands for several gangs; None without any."""
    return min(phases, key=_LEAST_FAR.index, default=None)


def phase_fields(groups: Mapping[str, PodPhase]) -> dict[str, Any]:
    """The fields of a status that show the phases of gang groups, by their names."""
    phase = least_far(groups.values())
    if phase is None:
        return {}
    listed = [{"name": name, "phase": str(found)} for name, found in groups.items()]
    return {"podPhase": str(phase), "gangGroups": listed}
