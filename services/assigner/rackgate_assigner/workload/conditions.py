"""Conditions of Workloads, as lists for server-side apply.

An apply must be complete for its field manager: a condition left out of it is deleted. So every
list contains all conditions of one manager, changed or not. One manager owns the conditions of
admission, the other those that follow from the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rackgate.api.names import (
    EvictionReason,
    FinishedReason,
    PendingReason,
    RequeuedReason,
    UnderlyingCause,
    WorkloadCondition,
)
from rackgate.wire.core import Condition
from rackgate.wire.kueue import Workload

MAX_MESSAGE: Final = 1024
TRUE: Final = "True"
FALSE: Final = "False"

ADMISSION_TYPES: Final = (
    WorkloadCondition.QUOTA_RESERVED,
    WorkloadCondition.ADMITTED,
    WorkloadCondition.EVICTED,
    WorkloadCondition.PREEMPTED,
    WorkloadCondition.REQUEUED,
    WorkloadCondition.DEACTIVATION_TARGET,
    WorkloadCondition.UNSUPPORTED_FIELDS,
)
JOB_TYPES: Final = (WorkloadCondition.PODS_READY, WorkloadCondition.FINISHED)
SLICE_TYPES: Final = (WorkloadCondition.RESIZE_REQUESTED,)

# Evictions after which the Workload is requeued at once; others need an action of a user.
REQUEUED_IMMEDIATELY: Final = frozenset(
    {
        EvictionReason.PREEMPTED,
        EvictionReason.NODE_FAILURES,
        EvictionReason.JOB_SUSPENDED,
        EvictionReason.JOB_CHANGED,
        EvictionReason.PODS_BEYOND_ADMISSION,
        EvictionReason.GANG_MEMBER_LOST,
    }
)
_REQUEUED_REASONS: Final[Mapping[str, RequeuedReason]] = {
    EvictionReason.CLUSTER_QUEUE_STOPPED: RequeuedReason.CLUSTER_QUEUE_RESTARTED,
    EvictionReason.LOCAL_QUEUE_STOPPED: RequeuedReason.LOCAL_QUEUE_RESTARTED,
}
# Reasons of a pending Workload in a queue that is stopped, or inactive for another reason.
_IN_INACTIVE_QUEUE: Final = frozenset({PendingReason.SUSPENDED, PendingReason.MISCONFIGURED})


@dataclass(frozen=True, slots=True)
class Change:
    """The desired state of one condition."""

    type: str
    status: str
    reason: str
    message: str


def truncate(message: str, limit: int = MAX_MESSAGE) -> str:
    """The message, truncated to `limit` characters with an ellipsis at the end."""
    return message if len(message) <= limit else f"{message[: limit - 3]}..."


def condition_list(
    current: Iterable[Condition],
    owned: Sequence[str],
    changes: Iterable[Change],
    *,
    now: str,
    generation: int,
    drop: Iterable[str] = (),
) -> list[dict[str, Any]]:
    """All conditions of one manager after `changes`.

    Args:
        current: conditions of the object, of every manager.
        owned: the types of this manager, in the order they are written.
        changes: desired states; each type at most once, each in `owned`.
        now: RFC 3339 time for transitions.
        generation: `metadata.generation` of the object that was decided on.
        drop: types to omit, which deletes them.

    Returns:
        Conditions as written on the wire. `lastTransitionTime` moves only when a status changes.
    """
    present = {c.type: c for c in current}
    wanted = {change.type: change for change in changes}
    left_out = set(drop)
    conditions: list[dict[str, Any]] = []
    for type_ in owned:
        if type_ in wanted:
            conditions.append(
                _updated_condition(present.get(type_), wanted[type_], now, generation)
            )
        elif type_ in present and type_ not in left_out:
            conditions.append(_unchanged_condition(present[type_], now))
    return conditions


def differs(current: Iterable[Condition], changes: Iterable[Change]) -> bool:
    """Whether any change differs from the current conditions."""
    present = {c.type: c for c in current}
    return any(not _is_same(present.get(change.type), change) for change in changes)


def unsupported_condition(without_effect: str) -> Change:
    """What is set in a job or its Workload and has no effect; without any, there is no condition.

    The Event has the same reason.
    """
    return Change(
        WorkloadCondition.UNSUPPORTED_FIELDS, TRUE, "UnsupportedField", truncate(without_effect)
    )


def ahead_of_text(uid: str) -> str:
    """What is added to the message of a Workload that is admitted ahead of the head of its queue.

    The head is named by its uid: it may be in a namespace that its reader does not know.
    """
    return f", ahead of the first workload of the queue (UID: {uid})" if uid else ""


def reserved_conditions(
    workload: Workload, cluster_queue: str, ahead_of: str = "", *, has_checks: bool = False
) -> list[Change]:
    """Conditions of a Workload that gets quota, and is admitted at once if it has no checks."""
    changes = [
        Change(
            WorkloadCondition.QUOTA_RESERVED,
            TRUE,
            "QuotaReserved",
            f"quota reserved in ClusterQueue {cluster_queue}{ahead_of_text(ahead_of)}",
        ),
        waiting_for_checks() if has_checks else admitted_condition(cluster_queue),
    ]
    evicted = workload.condition(WorkloadCondition.EVICTED)
    if evicted is not None and evicted.status == TRUE:
        message = truncate(f"previously: {evicted.message}")
        changes.append(Change(WorkloadCondition.EVICTED, FALSE, "QuotaReserved", message))
        changes += _requeued_conditions(workload)
    preempted = workload.condition(WorkloadCondition.PREEMPTED)
    if preempted is not None and preempted.status == TRUE:
        message = truncate(f"previously: {preempted.message}")
        changes.append(Change(WorkloadCondition.PREEMPTED, FALSE, "QuotaReserved", message))
    return changes


def admitted_condition(cluster_queue: str) -> Change:
    """The condition of a Workload that is admitted."""
    message = f"admitted by ClusterQueue {cluster_queue}"
    return Change(WorkloadCondition.ADMITTED, TRUE, "Admitted", message)


def waiting_for_checks() -> Change:
    """The condition of a Workload with quota whose admission checks are not all Ready."""
    message = "The workload has not all checks ready"
    return Change(WorkloadCondition.ADMITTED, FALSE, PendingReason.UNSATISFIED_CHECKS, message)


def waiting_for_topology() -> Change:
    """The condition of a Workload with quota and Ready checks that is to be placed."""
    message = "There are pending delayed topology requests"
    reason = PendingReason.PENDING_DELAYED_TOPOLOGY
    return Change(WorkloadCondition.ADMITTED, FALSE, reason, message)


def is_deactivated_while_pending(workload: Workload) -> bool:
    """Whether it was deactivated without quota, and its conditions do not say so."""
    idle = workload.metadata.deletion_timestamp or workload.is_true(WorkloadCondition.FINISHED)
    if idle or workload.spec.active or workload.status.admission is not None:
        return False
    evicted = workload.condition(WorkloadCondition.EVICTED)
    reserved = workload.condition(WorkloadCondition.QUOTA_RESERVED)
    reason = "" if reserved is None else reserved.reason
    by_eviction = evicted is not None and is_deactivation(evicted.reason)
    return reason != PendingReason.SUSPENDED and not (
        by_eviction and reason == PendingReason.MISCONFIGURED
    )


def pending_conditions(workload: Workload, reason: str, message: str) -> list[Change]:
    """Conditions of a Workload that stays pending."""
    changes = [Change(WorkloadCondition.QUOTA_RESERVED, FALSE, reason, truncate(message))]
    evicted = workload.condition(WorkloadCondition.EVICTED)
    if not workload.spec.active or evicted is None:
        return changes
    if is_deactivation(evicted.reason) or reason not in _IN_INACTIVE_QUEUE:
        changes += _requeued_conditions(workload)
    return changes


def evicted_conditions(
    workload: Workload, reason: str, message: str, cause: str = ""
) -> list[Change]:
    """Conditions that announce an eviction; quota is kept until the job has stopped.

    Args:
        workload: as decided on.
        reason: of the eviction.
        message: for the user.
        cause: reason of the condition Preempted.
    """
    again = TRUE if reason in REQUEUED_IMMEDIATELY else FALSE
    text = truncate(message)
    changes = [Change(WorkloadCondition.EVICTED, TRUE, reason, text)]
    if cause:
        changes.append(Change(WorkloadCondition.PREEMPTED, TRUE, cause, text))
    changes.append(Change(WorkloadCondition.REQUEUED, again, reason, text))
    return changes


def deactivation_target_conditions(cause: str, message: str) -> list[Change]:
    """Conditions of a Workload with quota that is about to be deactivated, and then evicted."""
    return [Change(WorkloadCondition.DEACTIVATION_TARGET, TRUE, cause, truncate(message))]


def deactivated_conditions(reason: str, message: str) -> list[Change]:
    """Conditions of a Workload whose request can never be satisfied."""
    text = truncate(message)
    cause = reason.removeprefix("DeactivatedDueTo")
    eviction = f"{EvictionReason.DEACTIVATED}DueTo{cause}"
    return [
        Change(WorkloadCondition.DEACTIVATION_TARGET, TRUE, cause, text),
        Change(WorkloadCondition.QUOTA_RESERVED, FALSE, PendingReason.MISCONFIGURED, text),
        Change(WorkloadCondition.EVICTED, TRUE, eviction, text),
        Change(WorkloadCondition.REQUEUED, FALSE, eviction, text),
    ]


def released_conditions(workload: Workload) -> list[Change]:
    """Conditions of an evicted Workload whose job has stopped: its quota is released."""
    eviction = workload.condition(WorkloadCondition.EVICTED)
    message = eviction.message if eviction is not None else "the quota reservation was released"
    reason: str = PendingReason.PENDING_EVALUATION
    retry = workload.status.requeue_state
    if retry is not None and retry.requeue_at and workload.spec.active:
        cause = eviction.reason if eviction is not None else ""
        reason, message = backoff_reason(retry.requeue_at, cause)
    elif eviction is not None and eviction.reason not in REQUEUED_IMMEDIATELY:
        reason = PendingReason.SUSPENDED
    return [
        Change(WorkloadCondition.QUOTA_RESERVED, FALSE, reason, truncate(message)),
        Change(
            WorkloadCondition.ADMITTED,
            FALSE,
            PendingReason.NO_RESERVATION,
            "the Workload has no reservation",
        ),
    ]


def backoff_reason(requeue_at: str, eviction: str = "") -> tuple[str, str]:
    """Reason and message of a Workload that is requeued only at `status.requeueState.requeueAt`.

    Args:
        requeue_at: RFC 3339 time of the requeue.
        eviction: reason of its eviction.
    """
    cause = "not all of its pods were ready in time"
    if eviction == EvictionReason.ADMISSION_CHECK:
        cause = "an admission check must be tried again"
    elif eviction == EvictionReason.GANG_TIMEOUT:
        cause = "not all pods of a gang were bound in time"
    return PendingReason.PENDING_EVALUATION, f"{cause}: queued again at {requeue_at}"


def backoff_finished_conditions() -> list[Change]:
    """The condition of a Workload whose backoff is over."""
    reason, message = RequeuedReason.BACKOFF_FINISHED, "The workload backoff was finished"
    return [Change(WorkloadCondition.REQUEUED, TRUE, reason, message)]


def finished_conditions(workload: Workload, reason: FinishedReason, message: str) -> list[Change]:
    """Conditions of a finished Workload; one that succeeded does not wait for pods."""
    changes = [Change(WorkloadCondition.FINISHED, TRUE, reason, truncate(message))]
    if reason == FinishedReason.SUCCEEDED and not workload.is_true(WorkloadCondition.PODS_READY):
        # Not all pods need have been ready: a JobSet may succeed with one of its Jobs.
        (ready,) = pods_ready_conditions(workload, ready=True)
        changes.append(replace(ready, message="the job has succeeded"))
    return changes


def outdated_when_finished(workload: Workload, reason: FinishedReason) -> tuple[str, ...]:
    """Conditions that are outdated once a Workload has finished.

    A failed job does not wait for pods, so `PodsReady` is removed.
    """
    known = workload.condition(WorkloadCondition.PODS_READY)
    waits = known is not None and known.status != TRUE
    over = reason != FinishedReason.SUCCEEDED and waits
    return (WorkloadCondition.PODS_READY,) if over else ()


def pods_ready_conditions(workload: Workload, *, ready: bool) -> list[Change]:
    """The condition PodsReady for the job's status, depending on the previous one."""
    type_ = WorkloadCondition.PODS_READY
    before = workload.condition(type_)
    lost = before is not None and (
        before.status == TRUE or before.reason == UnderlyingCause.WAIT_FOR_RECOVERY
    )
    recovered = before is not None and before.reason in (
        UnderlyingCause.WAIT_FOR_RECOVERY,
        "Recovered",
    )
    if ready:
        reason = "Recovered" if recovered else "Started"
        return [Change(type_, TRUE, reason, "all pods are ready or have succeeded")]
    if lost:
        return [
            Change(
                type_,
                FALSE,
                UnderlyingCause.WAIT_FOR_RECOVERY,
                "at least one pod is no longer ready",
            )
        ]
    return [Change(type_, FALSE, UnderlyingCause.WAIT_FOR_START, "not all pods are ready")]


def general_reason(reason: str) -> str:
    """The reason of an eviction without its cause: Deactivated for DeactivatedDueTo<cause>."""
    return str(EvictionReason.DEACTIVATED) if is_deactivation(reason) else reason


def is_deactivation(reason: str) -> bool:
    """Whether an eviction reason means that `spec.active` was set to false."""
    return reason.startswith(EvictionReason.DEACTIVATED)


def _requeued_conditions(workload: Workload) -> list[Change]:
    """Requeued=True after an eviction that did not requeue the Workload."""
    eviction = workload.condition(WorkloadCondition.EVICTED)
    if eviction is None:
        return []
    reason = RequeuedReason.REACTIVATED if is_deactivation(eviction.reason) else None
    reason = reason or _REQUEUED_REASONS.get(eviction.reason)
    if reason is None:
        return []
    message = f"queued again after {eviction.reason}"
    return [Change(WorkloadCondition.REQUEUED, TRUE, reason, message)]


def _is_same(present: Condition | None, change: Change) -> bool:
    return present is not None and (present.status, present.reason, present.message) == (
        change.status,
        change.reason,
        change.message,
    )


def _updated_condition(
    present: Condition | None, change: Change, now: str, generation: int
) -> dict[str, Any]:
    since = present.last_transition_time if present and present.status == change.status else None
    return {
        "type": str(change.type),
        "status": change.status,
        "reason": str(change.reason),
        "message": change.message,
        "lastTransitionTime": since or now,
        "observedGeneration": generation,
    }


def _unchanged_condition(present: Condition, now: str) -> dict[str, Any]:
    return {
        "type": present.type,
        "status": present.status,
        "reason": present.reason,
        "message": present.message,
        "lastTransitionTime": present.last_transition_time or now,
        "observedGeneration": present.observed_generation,
    }
