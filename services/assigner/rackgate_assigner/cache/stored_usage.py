"""The usage history of a LocalQueue in its status, for admission fair sharing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rackgate.api.timestamps import parse_rfc3339, rfc3339
from rackgate.resources.quantity import QuantityError, format_mean, parse_mean
from rackgate.wire.kueue import QueueStatus
from rackgate_assigner.quota.admission_fair_sharing import Amounts


def stored_usage(status: QueueStatus) -> tuple[Amounts, float] | None:
    """What a LocalQueue has consumed, and when that was computed (seconds, wall clock).

    None if the status does not show it, or shows it in a form that no controller writes.
    """
    found = (status.fair_sharing or {}).get("admissionFairSharingStatus") or {}
    try:
        consumed = {
            str(resource): parse_mean(value)
            for resource, value in (found.get("consumedResources") or {}).items()
        }
        return consumed, parse_rfc3339(found["lastUpdate"]).timestamp()
    except (KeyError, AttributeError, TypeError, ValueError, QuantityError):
        return None


def usage_status(consumed: Amounts, wall_s: float) -> dict[str, Any]:
    """`status.fairSharing` of a LocalQueue; resources whose amount rounds to zero are left out.

    Args:
        consumed: in units by resource.
        wall_s: when this was computed.
    """
    texts = {name: format_mean(name, consumed[name]) for name in sorted(consumed)}
    return {
        "weightedShare": 0,  # as Kueue writes it: the field is required
        "admissionFairSharingStatus": {
            "consumedResources": {name: text for name, text in texts.items() if text != "0"},
            "lastUpdate": rfc3339(datetime.fromtimestamp(wall_s, UTC)),
        },
    }


def usage_status_differs(
    present: Mapping[str, Any] | None, wanted: Mapping[str, Any] | None
) -> bool:
    """Whether the history in a status has to be written.

    The time alone does not count while nothing was consumed: an idle LocalQueue is not written in
    every interval.
    """
    if present == wanted:
        return False
    both = [(found or {}).get("admissionFairSharingStatus") for found in (present, wanted)]
    return any(found is None or found.get("consumedResources") for found in both)
