"""The next action for a Workload with quota: what its admission checks have answered. Pure.

`plan_checks` reads one Workload and the checks that its ClusterQueue names. Every action changes
the Workload, and the plan is computed again from what is stored; so a process may end after any of
them, and answers may come late, twice or never. In order of precedence:

1. A check is Rejected: the Workload is deactivated, and then evicted by the scheduling cycle.
2. A check asks for a Retry: the Workload is evicted; its checks start again.
3. The states are kept in sync with the checks that the ClusterQueue names.
4. All checks are Ready: the Workload is admitted, or placed first if it is to be placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rackgate.api.names import WorkloadCondition
from rackgate.wire.kueue import Workload
from rackgate_assigner.quota.queues import CheckRule
from rackgate_assigner.workload import admission_checks, conditions
from rackgate_assigner.workload.admission_checks import States
from rackgate_assigner.workload.conditions import Change
from rackgate_assigner.workload.decisions import DELAYED_PENDING

RETRY_MESSAGE = "At least one admission check is false"


@dataclass(frozen=True, slots=True)
class WriteChecks:
    """Write states of checks and conditions."""

    states: States
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmitAfterChecks:
    """Admit: all checks are Ready, and nothing is left to be placed."""

    states: States


@dataclass(frozen=True, slots=True)
class RetryChecks:
    """Evict, and queue again after the delay that the checks ask for."""

    message: str


@dataclass(frozen=True, slots=True)
class RejectWorkload:
    """Deactivate."""

    message: str


Action: TypeAlias = WriteChecks | AdmitAfterChecks | RetryChecks | RejectWorkload


def plan_checks(workload: Workload, rules: Sequence[CheckRule] | None, now: str) -> Action | None:
    """The next action for one Workload, None if there is none.

    Args:
        workload: as stored.
        rules: of its ClusterQueue; None if that does not exist.
        now: RFC 3339 time of new states.
    """
    if not _counts(workload):
        return None
    current = workload.status.admission_checks
    admitted = workload.is_true(WorkloadCondition.ADMITTED)
    required = tuple(state.name for state in current)
    if rules is not None:
        required = admission_checks.required_checks(rules, admission_checks.flavors_of(workload))
    answers = [state for state in current if state.name in required]
    rejected = admission_checks.names_in(answers, admission_checks.REJECTED)
    if rejected:
        return RejectWorkload(_rejection(rejected)) if workload.spec.active else None
    if not workload.spec.active:
        return None  # the scheduling cycle evicts it
    if admission_checks.names_in(answers, admission_checks.RETRY):
        return RetryChecks(RETRY_MESSAGE)
    states = admission_checks.synced(current, required, now, admitted=admitted)
    if admitted:
        return WriteChecks(states) if states != current else None
    if rules is None:
        return None  # whether more checks apply is not known
    if not admission_checks.all_ready(states, required):
        return _wait(workload, states, conditions.waiting_for_checks())
    if _awaits_topology(workload):
        return _wait(workload, states, conditions.waiting_for_topology())
    return AdmitAfterChecks(states)


def _counts(workload: Workload) -> bool:
    """Whether the answers count: with quota, and neither leaving nor a slice."""
    return (
        workload.status.admission is not None
        and workload.is_true(WorkloadCondition.QUOTA_RESERVED)
        and not workload.is_true(WorkloadCondition.EVICTED)
        and not workload.is_true(WorkloadCondition.FINISHED)
        and workload.metadata.deletion_timestamp is None
        and workload.parent is None
    )


def _wait(workload: Workload, states: States, reason: Change) -> WriteChecks | None:
    changed = conditions.differs(workload.status.conditions, [reason])
    if states == workload.status.admission_checks and not changed:
        return None
    return WriteChecks(states, (reason,))


def _awaits_topology(workload: Workload) -> bool:
    admission = workload.status.admission
    assignments = admission.pod_set_assignments if admission is not None else ()
    return any(part.delayed_topology_request == DELAYED_PENDING for part in assignments)


def _rejection(rejected: Sequence[str]) -> str:
    listed = ", ".join(f'"{name}"' for name in rejected)
    return f"AdmissionCheck in Rejected state: {listed}"
