"""Requeues: why a Workload stays pending, as its condition says it."""

from __future__ import annotations

import traceback

from rackgate.api.names import PendingReason
from rackgate_assigner.workload.conditions import truncate
from rackgate_assigner.workload.decisions import Inadmissible, Requeue
from rackgate_assigner.workload.info import WorkloadInfo


def requeue(info: WorkloadInfo, inadmissible: Inadmissible) -> Requeue:
    """The requeue of a Workload for this reason."""
    return Requeue(info.key, inadmissible.reason, truncate(inadmissible.message))


def requeue_after_error(info: WorkloadInfo, error: Exception) -> Requeue:
    """The requeue of a Workload whose decision failed with an internal error."""
    text = " ".join(str(error).split())[:200]
    message = (
        f"internal error while deciding about this workload: {type(error).__name__}: {text}; "
        "other workloads are not affected, the assigner's log has the details"
    )
    lines = "".join(traceback.format_exception(error))
    return Requeue(info.key, PendingReason.INTERNAL_ERROR, message, error=lines)
