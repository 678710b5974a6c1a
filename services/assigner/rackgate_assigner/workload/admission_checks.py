"""States of the admission checks of a Workload: KEP-993, two-phase admission.

A ClusterQueue names AdmissionChecks. A Workload that reserves quota there gets one state for each
check that applies to its flavors, `Pending`. The controllers of the checks answer in
`status.admissionChecks`: `Ready`, `Retry` or `Rejected`. All functions return new lists; none
knows the time or the API server.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from rackgate.api.timestamps import parse_rfc3339
from rackgate.wire.kueue import AdmissionCheckState, Workload
from rackgate_assigner.quota.queues import CheckRule

PENDING: Final = "Pending"
READY: Final = "Ready"
RETRY: Final = "Retry"
REJECTED: Final = "Rejected"

MAX_RETRY_DELAY_S: Final = 300.0
MAX_RETRY_COUNT: Final = 2**31 - 1  # an int32 on the wire

States = tuple[AdmissionCheckState, ...]


def required_checks(rules: Iterable[CheckRule], flavors: Collection[str]) -> tuple[str, ...]:
    """Names of the checks that apply to a Workload with these flavors, in the queue's order."""
    return tuple(
        rule.name
        for rule in rules
        if not rule.on_flavors or not rule.on_flavors.isdisjoint(flavors)
    )


def flavors_of(workload: Workload) -> frozenset[str]:
    """Names of the flavors that are assigned to a Workload."""
    admission = workload.status.admission
    assignments = admission.pod_set_assignments if admission is not None else ()
    return frozenset(name for part in assignments for name in part.flavors.values())


def seeded(current: Sequence[AdmissionCheckState], required: Sequence[str], now: str) -> States:
    """States at the reservation of quota: all Pending.

    An answer from before the reservation is about another one, maybe with other flavors, so it
    does not count. What a check adds to pods it adds again.
    """
    retries = {state.name: state.retry_count for state in current}
    return tuple(
        AdmissionCheckState(name, PENDING, "", now, retry_count=retries.get(name))
        for name in required
    )


def synced(current: States, required: Sequence[str], now: str, *, admitted: bool) -> States:
    """The states, with those that the ClusterQueue requires now.

    Args:
        current: as stored.
        required: names of the checks that apply.
        now: RFC 3339 time of new states.
        admitted: an admitted Workload keeps states of checks that no longer apply: they say what
            was added to its pods.
    """
    present = {state.name for state in current}
    kept = tuple(state for state in current if admitted or state.name in required)
    missing = [name for name in required if name not in present]
    return (*kept, *(AdmissionCheckState(name, PENDING, "", now) for name in missing))


def reset(current: Iterable[AdmissionCheckState], now: str) -> States:
    """States after an eviction: all Pending.

    What they added to pods stays listed until the job has stopped and is restored: `released`.
    """
    return tuple(_reset_state(state, now) for state in current)


def _reset_state(state: AdmissionCheckState, now: str) -> AdmissionCheckState:
    if state.state == PENDING:
        return state
    count = state.retry_count
    if state.state == RETRY:
        count = min((count or 0) + 1, MAX_RETRY_COUNT)
    return replace(
        state,
        state=PENDING,
        message=f"Reset to Pending after eviction. Previously: {state.state}",
        last_transition_time=now,
        requeue_after_seconds=None,
        retry_count=count,
    )


def released(current: Iterable[AdmissionCheckState]) -> States:
    """States of a Workload whose job has stopped: nothing is added to its pods any more."""
    return tuple(
        replace(state, pod_set_updates=()) if state.pod_set_updates else state for state in current
    )


def all_ready(current: Iterable[AdmissionCheckState], required: Iterable[str]) -> bool:
    """Whether each required check is Ready."""
    ready = {state.name for state in current if state.state == READY}
    return ready.issuperset(required)


def names_in(current: Iterable[AdmissionCheckState], state: str) -> list[str]:
    """Names of the checks in a state, sorted."""
    return sorted(found.name for found in current if found.state == state)


def _default_delay_s(state: AdmissionCheckState) -> float:
    # The exponent is limited first, as a check may write any count.
    return min(2.0 ** min(state.retry_count or 0, 16), MAX_RETRY_DELAY_S)


def requeue_time(current: Iterable[AdmissionCheckState], now: datetime) -> datetime:
    """When a Workload is queued again after Retry: after the longest delay (KEP-3258).

    Each delay counts from the answer of its check. An answer in the future, by a wrong clock,
    counts from now. A check that names no delay gets one that doubles with each retry, so that its
    answers do not make the Workload reserve and release quota without a pause. It counts from now:
    the controller of the check may leave the time of an earlier answer.
    """
    return max([now, *(_end_of_delay(state, now) for state in current if state.state == RETRY)])


def _end_of_delay(state: AdmissionCheckState, now: datetime) -> datetime:
    if not state.requeue_after_seconds:
        return now + timedelta(seconds=_default_delay_s(state))
    answered_at = min(_time_of(state.last_transition_time, now), now)
    return answered_at + timedelta(seconds=state.requeue_after_seconds)


def _time_of(text: str, default: datetime) -> datetime:
    try:
        return parse_rfc3339(text)
    except ValueError:
        return default
