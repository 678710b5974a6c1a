"""Quota of one ClusterQueue: nominal quota against the usage of its Workloads.

Cohorts and borrowing are not supported yet: a queue in a cohort gets its own nominal quota.
Messages are those of `conformance/quota`, section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rackgate.api.names import PendingReason
from rackgate.resources.quantity import format_amount
from rackgate_assigner.quota.queues import FlavorResource

# Severer reasons first; an empty reason is the least severe.
SEVERITY: Final[Mapping[str, int]] = {
    PendingReason.NO_MATCHING_FLAVOR: 4,
    PendingReason.EXCEEDS_MAX_QUOTA: 3,
    PendingReason.WAITING_FOR_QUOTA: 2,
    PendingReason.TOPOLOGY_PLACEMENT_FAILED: 1,
    "": 0,
}


class FlavorAssignmentMode(IntEnum):
    """How well a flavor meets a request; larger is better."""

    NO_FIT = 0
    NO_CANDIDATES = 1  # within nominal quota, but others use it
    PREEMPT = 2  # the same, and enough of them can be preempted
    FIT = 3


@dataclass(frozen=True, slots=True)
class QuotaCheck:
    """The result for one flavor, with the reason and text if it does not fit now."""

    mode: FlavorAssignmentMode
    reason: str = ""
    text: str = ""


FIT: Final = QuotaCheck(FlavorAssignmentMode.FIT)


def check_quota(
    pair: FlavorResource,
    amount: int,
    *,
    before: int,
    nominal: int,
    used: int,
    preemptible: int = 0,
) -> QuotaCheck:
    """Check one resource of one flavor.

    Args:
        pair: flavor and resource.
        amount: requested now, millicores for cpu, else base units.
        before: requested of the same pair by earlier PodSets of the Workload.
        nominal: quota of the pair.
        used: usage by admitted Workloads of the queue, and by those reserved in this cycle.
        preemptible: additional free quota after all candidates are preempted.
    """
    flavor, resource = pair
    requested = before + amount
    if requested > nominal:
        text = (
            f"insufficient quota for {resource} in flavor {flavor}, previously considered podsets "
            f"requests ({quantity(resource, before)}) + current podset request "
            f"({quantity(resource, amount)}) > maximum capacity ({quantity(resource, nominal)})"
        )
        return QuotaCheck(FlavorAssignmentMode.NO_FIT, PendingReason.EXCEEDS_MAX_QUOTA, text)
    available = max(0, nominal - used)
    if requested <= available:
        return FIT
    more = quantity(resource, requested - available)
    text = f"insufficient unused quota for {resource} in flavor {flavor}, {more} more needed"
    mode = (
        FlavorAssignmentMode.PREEMPT
        if requested <= nominal - used + preemptible
        else FlavorAssignmentMode.NO_CANDIDATES
    )
    return QuotaCheck(mode, PendingReason.WAITING_FOR_QUOTA, text)


_DECIMAL: Final = ("", "k", "M", "G", "T", "P", "E")


def quantity(resource: str, value: int) -> str:
    """Canonical text of an amount in messages: decimal suffixes as far as they divide ("1k")."""
    if resource in ("memory", "ephemeral-storage"):
        return format_amount(resource, value)
    if resource == "cpu":
        if value % 1000:
            return f"{value}m"
        value //= 1000
    power = 0
    while value and value % 1000 == 0 and power < len(_DECIMAL) - 1:
        value, power = value // 1000, power + 1
    return f"{value}{_DECIMAL[power]}"
