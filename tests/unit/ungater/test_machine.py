"""Expectations: what the machine does while its own writes are not seen yet."""

from __future__ import annotations

import msgspec
import pytest

from rackgate_ungater.state_machine.events import (
    Failure,
    PodGone,
    PodSeen,
    UngateAccepted,
    UngateFailed,
    WorkloadGone,
    WorkloadSeen,
)
from rackgate_ungater.state_machine.gated_objects import GatedPod, GatedWorkload, WorkloadKey
from rackgate_ungater.state_machine.records import Timeouts
from rackgate_ungater.state_machine.state_machine import StateMachine
from rackgate_ungater.state_machine.ungating_plan import Ungate
from tests.support.ungater_invariants import check_invariants
from tests.unit.ungater.builders import R1, R2, R3, PodBuilder, pod, podset, where, workload

KEY = WorkloadKey("team/train")


def machine_with(row: GatedWorkload, *pods: PodBuilder) -> StateMachine:
    machine = StateMachine(
        Timeouts(expectation_s=10, in_flight_s=60, rejection_backoff_s=1, rejection_backoff_max_s=8)
    )
    machine.handle(WorkloadSeen(row))
    for builder in pods:
        machine.handle(PodSeen(builder.build()))
    return machine


def act(machine: StateMachine, now: float = 0.0) -> list[Ungate]:
    """Propose and commit, as the reconciler does."""
    ungates = machine.propose(KEY, now).ungates
    machine.expect_ungates(ungates, now)
    check_invariants(machine)
    return ungates


def fail(machine: StateMachine, row: GatedPod, failure: Failure, now: float = 0.0) -> None:
    machine.handle(UngateFailed(row.uid, row.resource_version, failure, now))
    check_invariants(machine)


@pytest.mark.requirement("UNG-05", "UNG-07")
@pytest.mark.field_note("U1")
def test_nothing_more_is_released_while_a_release_is_not_seen() -> None:
    machine = machine_with(workload(podset((R1, 2))), pod(0))
    assert where(act(machine)) == {"pod-0": R1}
    machine.handle(PodSeen(pod(1).build()))
    proposal = machine.propose(KEY, 0.0)
    assert proposal.ungates == []
    assert proposal.awaiting_expectations == 2
    machine.handle(PodSeen(pod(0).ungated(R1).at(2).build()))
    assert where(act(machine)) == {"pod-1": R1}


@pytest.mark.requirement("UNG-06")
def test_an_accepted_request_alone_ends_no_expectation() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0))
    (ungate,) = act(machine)
    machine.handle(UngateAccepted(ungate.pod.uid, "1", 0.0))
    assert ungate.pod.uid in machine.expectations


@pytest.mark.requirement("UNG-06")
def test_an_expectation_ends_with_its_pod() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0), pod(1))
    (ungate,) = act(machine)
    machine.handle(PodGone(ungate.pod.uid))
    assert machine.expectations == {}
    assert where(act(machine)) == {"pod-1": R1}


@pytest.mark.requirement("UNG-06", "UNG-17")
def test_a_rejected_pod_pauses_and_the_others_go_on() -> None:
    machine = machine_with(workload(podset((R1, 2))), pod(0), pod(1))
    first, second = act(machine)
    machine.handle(PodSeen(pod(1).ungated(R1).at(2).build()))
    fail(machine, first.pod, Failure.REJECTED)
    machine.handle(PodSeen(pod(2).build()))
    assert where(act(machine)) == {"pod-2": R1}
    assert second.pod.uid not in machine.expectations


@pytest.mark.requirement("UNG-17")
def test_a_rejected_pod_is_read_and_tried_again_with_growing_pauses() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0))
    now, pauses = 0.0, []
    for _ in range(6):
        (ungate,) = act(machine, now)
        fail(machine, ungate.pod, Failure.REJECTED, now)
        assert act(machine, now) == []
        woken = machine.next_timer_at(KEY, now)
        assert woken is not None
        pauses.append(woken - now)
        now = woken
        assert machine.propose(KEY, now).reads == [ungate.pod]
        machine.handle(PodSeen(ungate.pod, live=True))
    assert pauses == [1, 2, 4, 8, 8, 8]


@pytest.mark.requirement("UNG-14")
def test_a_lost_answer_is_settled_by_a_live_read_only() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0), pod(1))
    (ungate,) = act(machine)
    fail(machine, ungate.pod, Failure.UNKNOWN_OUTCOME)
    proposal = machine.propose(KEY, 1000.0)
    assert proposal.ungates == []
    assert proposal.reads == [ungate.pod]
    machine.handle(PodSeen(pod(0).ungated(R1).at(2).build(), live=True))
    assert act(machine, 1000.0) == [], "it was written: the one place is taken"


@pytest.mark.requirement("UNG-14")
def test_a_lost_request_that_may_still_arrive_is_repeated_before_any_other() -> None:
    machine = machine_with(workload(podset((R2, 1), (R1, 1))), pod("m"), pod("n"))
    machine.handle(PodGone(pod("n").build().uid))
    (ungate,) = act(machine)
    assert ungate.domain == R2
    fail(machine, ungate.pod, Failure.UNKNOWN_OUTCOME)
    machine.handle(PodSeen(pod("a").build()))  # sorts first, would get R2 otherwise
    assert machine.propose(KEY, 1.0).reads == [ungate.pod]
    machine.handle(PodSeen(ungate.pod, live=True))
    assert where(act(machine, 1.0)) == {"m": R2, "a": R1}


@pytest.mark.requirement("UNG-14")
def test_a_lost_request_holds_its_podset_when_its_place_is_no_longer_admitted() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0), pod(1))
    (ungate,) = act(machine)
    fail(machine, ungate.pod, Failure.UNKNOWN_OUTCOME)
    machine.handle(WorkloadSeen(workload(podset((R2, 1)), version=2)))
    machine.propose(KEY, 1.0)
    machine.handle(PodSeen(ungate.pod, live=True))
    assert machine.propose(KEY, 1.0).ungates == []
    assert machine.propose(KEY, 61.0).reads == [ungate.pod], "no request lives that long"
    machine.handle(PodSeen(ungate.pod, live=True))
    assert where(act(machine, 61.0)) == {"pod-0": R2}


@pytest.mark.requirement("UNG-14")
def test_a_list_that_began_before_a_request_arrived_does_not_say_that_it_never_did() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(1))
    (ungate,) = act(machine)
    fail(machine, ungate.pod, Failure.UNKNOWN_OUTCOME)
    machine.handle(PodSeen(pod(0).build()))  # sorts first, and would get the place
    assert machine.propose(KEY, 61.0).reads == [ungate.pod]
    machine.handle(PodSeen(ungate.pod, live=True, listed=True))
    assert machine.propose(KEY, 61.0).ungates == []
    machine.handle(PodSeen(ungate.pod, live=True))
    assert where(act(machine, 61.0)) == {"pod-0": R1}


@pytest.mark.requirement("UNG-14")
def test_a_later_version_of_a_gated_pod_ends_the_question() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0))
    (ungate,) = act(machine)
    fail(machine, ungate.pod, Failure.UNKNOWN_OUTCOME)
    machine.handle(PodSeen(pod(0).at(2).build()))
    (again,) = act(machine)
    assert again.pod.resource_version == "2"


@pytest.mark.requirement("UNG-06", "UNG-07")
@pytest.mark.field_note("U15")
def test_after_a_conflict_the_pod_is_read_before_the_next_act() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0), pod(1))
    (ungate,) = act(machine)
    fail(machine, ungate.pod, Failure.CONFLICT)
    assert machine.propose(KEY, 0.0).ungates == []
    # Somebody else had taken the gate off, and sent the pod nowhere.
    machine.handle(PodSeen(pod(0).ungated(R3).at(2).build(), live=True))
    assert act(machine) == []


@pytest.mark.requirement("UNG-06")
def test_a_failure_of_an_earlier_request_says_nothing_about_the_next() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0))
    (first,) = act(machine)
    fail(machine, first.pod, Failure.UNKNOWN_OUTCOME)
    machine.handle(PodSeen(pod(0).at(2).build()))
    (second,) = act(machine)
    fail(machine, first.pod, Failure.CONFLICT)
    assert not machine.expectations[second.pod.uid].outcome_unknown


@pytest.mark.requirement("UNG-06", "UNG-07", "UNG-18")
def test_an_unseen_release_is_looked_up_after_a_while() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0))
    (ungate,) = act(machine)
    machine.handle(UngateAccepted(ungate.pod.uid, "1", 5.0))
    assert machine.next_timer_at(KEY, 5.0) == 15.0
    assert machine.propose(KEY, 14.0).reads == []
    proposal = machine.propose(KEY, 15.0)
    assert (proposal.reads, proposal.overdue) == ([ungate.pod], 1)
    machine.handle(PodSeen(pod(0).ungated(R1).at(2).build(), live=True))
    assert machine.expectations == {}


@pytest.mark.requirement("UNG-18")
def test_a_watch_behind_a_live_read_changes_nothing() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0))
    machine.handle(PodSeen(pod(0).ungated(R1).at(9).build(), live=True))
    machine.handle(PodSeen(pod(0).at(4).build()))
    assert act(machine) == []


@pytest.mark.requirement("UNG-18")
def test_a_late_read_does_not_add_a_deleted_pod_back() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0))
    machine.handle(PodGone(pod(0).build().uid))
    machine.handle(PodSeen(pod(0).ungated(R1).build(), live=True))
    assert machine.pods == {}


@pytest.mark.requirement("UNG-18", "UNG-16")
def test_a_watch_behind_a_list_adds_no_pod_of_an_earlier_run_back() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0).rank(0))
    machine.handle(PodGone(pod(0).build().uid, version=7))
    machine.handle(PodSeen(pod(0).rank(0).at(5).build()))
    machine.handle(PodSeen(pod(1).rank(0).at(6).build(), live=True, listed=True))
    assert where(act(machine)) == {"pod-1": R1}
    machine.handle(PodSeen(pod(0).rank(0).at(8).build()))
    assert len(machine.pods) == 2, "what happened after the list counts"


def test_a_pod_that_returns_to_the_watch_is_known_again() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0))
    machine.handle(PodGone(pod(0).build().uid))  # its label was taken away
    machine.handle(PodSeen(pod(0).at(3).build()))
    assert where(act(machine)) == {"pod-0": R1}


@pytest.mark.requirement("UNG-18", "OPS-07")
def test_events_that_are_reported_again_add_no_pod_back() -> None:
    machine = machine_with(workload(podset((R1, 1))))
    ungated = pod(0).ungated(R1)
    for builder in (pod(0).at(2), ungated.at(3), ungated.terminal().at(4)):
        machine.handle(PodSeen(builder.build()))
    for builder in (pod(0).at(2), ungated.at(3)):
        machine.handle(PodSeen(builder.build()))
    check_invariants(machine)
    assert machine.pods == {}, "else an ended pod would hold its place for ever"


@pytest.mark.requirement("UNG-15")
def test_a_workload_with_an_unanswered_request_is_not_handed_over() -> None:
    machine = machine_with(workload(podset((R1, 2))), pod(0), pod(1))
    first, second = act(machine)
    assert machine.workloads_in_flight(0.0) == {}, "awaited, and the answer decides"
    fail(machine, first.pod, Failure.UNKNOWN_OUTCOME, 5.0)
    fail(machine, second.pod, Failure.CONFLICT, 5.0)
    assert machine.workloads_in_flight(5.0) == {KEY: 65.0}
    assert machine.workloads_in_flight(65.0) == {}, "no request lives that long"
    machine.handle(PodSeen(pod(0).at(2).build()))
    assert machine.workloads_in_flight(5.0) == {}, "bound to a version that has passed"


@pytest.mark.requirement("STR-05", "UNG-10")
@pytest.mark.field_note("U2")
def test_a_deletion_is_overdue_by_how_long_it_was_watched_whatever_the_time_of_day() -> None:
    stuck = pod("old").ungated(R3).terminating(grace_s=40).at(3)
    machine = machine_with(workload(podset((R1, 1))), stuck, pod(0))
    assert act(machine, 100.0) == []
    over = 100.0 + 40 + machine.timeouts.deletion_overdue_s
    assert machine.next_timer_at(KEY, 100.0) == over
    assert act(machine, over - 1) == []
    assert where(act(machine, over)) == {"pod-0": R1}
    machine.handle(PodGone(stuck.build().uid))
    check_invariants(machine)


@pytest.mark.requirement("UNG-10")
def test_a_count_of_zero_releases_nothing_and_a_missing_one_is_the_assignments() -> None:
    given = podset((R1, 1))
    for count, released in ((0, 0), (None, 1), (1, 1)):
        row = msgspec.structs.replace(given, count=count)
        assert len(act(machine_with(workload(row), pod(0)))) == released


@pytest.mark.requirement("UNG-11")
def test_a_workload_that_is_gone_or_not_admitting_releases_nothing() -> None:
    assert act(machine_with(workload(podset((R1, 1)), admitted=False), pod(0))) == []
    machine = machine_with(workload(podset((R1, 1))), pod(0))
    machine.handle(WorkloadGone(KEY, "workload-uid"))
    assert act(machine) == []
    assert [orphan.name for orphan in machine.orphans()] == ["pod-0"]


@pytest.mark.requirement("UNG-02")
@pytest.mark.field_note("U8")
def test_a_pod_of_another_owner_neither_counts_nor_is_released() -> None:
    forged = pod("forged").of(owner="somebody").ungated(R1)
    machine = machine_with(workload(podset((R1, 1))), forged, pod("x").of(owner=""), pod(0))
    assert where(act(machine)) == {"pod-0": R1}


@pytest.mark.requirement("UNG-07")
def test_podsets_hold_each_for_itself() -> None:
    row = workload(podset((R1, 2)), podset((R2, 1), name="leader"))
    machine = machine_with(row, pod(0))
    act(machine)
    machine.handle(PodSeen(pod(1).build()))
    machine.handle(PodSeen(pod("lead").of("leader").build()))
    assert where(act(machine)) == {"lead": R2}


@pytest.mark.requirement("UNG-16")
def test_after_readmission_pods_of_the_old_run_fill_no_new_room() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod("old").ungated(R1).at(3))
    machine.handle(WorkloadSeen(workload(podset((R2, 2)), version=7)))
    machine.handle(PodSeen(pod("old").ungated(R1).terminating().at(4).build()))
    for n in (0, 1):
        machine.handle(PodSeen(pod(n).build()))
    assert where(act(machine)) == {"pod-0": R2}
    machine.handle(PodSeen(pod(0).ungated(R2).at(8).build()))
    machine.handle(PodGone(pod("old").build().uid))
    assert where(act(machine)) == {"pod-1": R2}


@pytest.mark.requirement("UNG-01")
def test_events_that_add_no_work_wake_no_one() -> None:
    machine = machine_with(workload(podset((R1, 2))))
    assert machine.handle(PodSeen(pod(0).build())) == KEY
    assert machine.handle(PodSeen(pod(0).at(2).build())) is None, "only the version moved"
    assert machine.handle(PodSeen(pod(0).ungated(R1).at(3).build())) is None, "nobody waits"
    assert machine.handle(PodSeen(pod(0).ungated(R1).terminal().at(4).build())) is None
    assert machine.handle(PodSeen(pod(1).build())) == KEY
    assert machine.handle(WorkloadSeen(workload(podset((R1, 2)), version=2))) is None


def test_an_unreadable_assignment_is_reported_and_releases_nothing() -> None:
    broken = podset((R1, 1))
    broken = type(broken)(broken.name, broken.count, b'{"levels":["a"],"slices":7}')
    proposal = machine_with(workload(broken), pod(0)).propose(KEY, 0.0)
    assert proposal.ungates == []
    assert [report.reason for report in proposal.reports] == ["AssignmentUnreadable"]


def test_nothing_is_kept_of_what_is_gone() -> None:
    machine = machine_with(workload(podset((R1, 1))), pod(0))
    act(machine)
    machine.handle(WorkloadGone(KEY, "workload-uid"))
    machine.handle(PodGone(pod(0).build().uid))
    assert (machine.workload_states, machine.pods, machine.expectations) == ({}, {}, {})
