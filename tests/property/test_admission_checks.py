"""Admission checks: whatever is answered, and whenever, no job runs past a check."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rackgate.wire.core import Condition, Meta
from rackgate.wire.kueue import (
    Admission,
    AdmissionCheckState,
    PodSetAssignment,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)
from rackgate_assigner.admission_checks.plan import (
    AdmitAfterChecks,
    RejectWorkload,
    RetryChecks,
    WriteChecks,
    plan_checks,
)
from rackgate_assigner.quota.queues import CheckRule
from rackgate_assigner.workload import admission_checks

NAMES = ("a", "b", "c")
NOW = "2026-08-01T12:00:00Z"


@dataclass(frozen=True)
class Answer:
    """The controller of a check writes a state."""

    name: str
    state: str


@dataclass(frozen=True)
class Rules:
    """The ClusterQueue names these checks now."""

    named: tuple[CheckRule, ...]


answers = st.builds(
    Answer,
    st.sampled_from((*NAMES, "unknown")),
    st.sampled_from(("Pending", "Ready", "Retry", "Rejected")),
)
rules = st.lists(
    st.builds(
        CheckRule,
        st.sampled_from(NAMES),
        st.sampled_from((frozenset(), frozenset({"tas"}), frozenset({"other"}))),
    ),
    max_size=3,
    unique_by=lambda rule: rule.name,
).map(tuple)
events = st.lists(
    st.one_of(answers, rules.map(Rules), st.sampled_from(("evict", "reserve", "act", "act"))),
    max_size=25,
)


def reserve(own: Workload, required: tuple[str, ...]) -> Workload:
    """What the scheduler writes."""
    states = admission_checks.seeded(own.status.admission_checks, required, NOW)
    admission = Admission("cq", (PodSetAssignment("main", {"cpu": "tas"}, count=1),))
    status = replace(own.status, admission=admission, admission_checks=states)
    return with_conditions(replace(own, status=status), QuotaReserved="True", Admitted="False")


def evict(own: Workload) -> Workload:
    """What an eviction and the release after it write."""
    states = admission_checks.released(admission_checks.reset(own.status.admission_checks, NOW))
    status = replace(own.status, admission=None, admission_checks=states)
    return with_conditions(replace(own, status=status), QuotaReserved="False", Admitted="False")


def with_conditions(own: Workload, **states: str) -> Workload:
    conditions = tuple(Condition(type_, status) for type_, status in states.items())
    return replace(own, status=replace(own.status, conditions=conditions))


def answered(own: Workload, name: str, state: str) -> Workload:
    """The controller of a check writes its state, also if nothing was asked."""
    others = [found for found in own.status.admission_checks if found.name != name]
    found = (*others, AdmissionCheckState(name, state, "", NOW))
    return replace(own, status=replace(own.status, admission_checks=found))


@given(rules, events)
def test_a_workload_is_admitted_only_by_answers_to_its_own_reservation(
    named: tuple[CheckRule, ...], history: list[Answer | Rules | str]
) -> None:
    own = Workload(Meta("w", "team"), WorkloadSpec(), WorkloadStatus())
    ready: set[str] = set()  # answers to this reservation, as they are now
    for event in history:
        holds, admitted = own.status.admission is not None, own.is_true("Admitted")
        required = admission_checks.required_checks(named, {"tas"})
        if isinstance(event, Answer):
            own = answered(own, event.name, event.state)
            new = {event.name} if event.state == "Ready" and holds else set()
            ready = (ready - {event.name}) | new
        elif isinstance(event, Rules):
            named = event.named
        elif event == "evict" and holds:
            own, ready = evict(own), set()
        elif event == "reserve" and not holds and own.spec.active:
            own, ready = reserve(own, required), set()
        elif event == "act":
            action = plan_checks(own, named, NOW)
            match action:
                case AdmitAfterChecks(states):
                    assert holds
                    assert not admitted
                    assert ready.issuperset(required)
                    own = replace(own, status=replace(own.status, admission_checks=states))
                    own = with_conditions(own, QuotaReserved="True", Admitted="True")
                case WriteChecks(states):
                    assert {state.name for state in states} >= set(required)
                    own = replace(own, status=replace(own.status, admission_checks=states))
                    reached = plan_checks(own, named, NOW)
                    assert reached is None or isinstance(reached, WriteChecks)
                    assert reached is None or reached.states == states, "states settle at once"
                case RetryChecks() | RejectWorkload():
                    shown = {s.name: s.state for s in own.status.admission_checks}
                    assert {"Retry", "Rejected"} & {shown.get(name) for name in required}
                    own, ready = evict(own), set()
                case None:
                    pass
