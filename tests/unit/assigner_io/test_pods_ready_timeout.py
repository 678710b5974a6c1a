"""Pods that are missing: how long they may, and when their Workload is queued again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from rackgate.api.names import UnderlyingCause
from rackgate.wire.kueue import RequeueState, Workload
from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.plan import plan_job
from rackgate_assigner.workload import conditions
from rackgate_assigner.workload.elapsed import Elapsed, ElapsedTimes, Moment
from rackgate_assigner.workload.pods_ready_timeout import (
    PodsReadyTimeouts,
    TimedOut,
    backoff_remaining_s,
)
from rackgate_assigner.workload.status import NO_REQUEUE, count_eviction, status_body
from tests.unit.assigner_io.builders import facts, job, workload

pytestmark = pytest.mark.requirement("TAS-32")

# When the conditions of `builders` last changed.
LOST = datetime(2026, 8, 1, 12, tzinfo=UTC)
MISSING = {"PodsReady": ("False", "WaitForRecovery")}
EVICTED = {"Evicted": ("True", "PodsReadyTimeout"), "Requeued": ("False", "PodsReadyTimeout")}
RETRY = RequeueState(1, "2026-08-01T12:10:00Z")


def after(seconds: float) -> datetime:
    return LOST + timedelta(seconds=seconds)


def with_tries(own: Workload, tries: RequeueState | None) -> Workload:
    status = msgspec.structs.replace(own.status, requeue_state=tries)
    return msgspec.structs.replace(own, status=status)


def at(moment: datetime) -> Elapsed:
    """Someone looks for the first time."""
    return Elapsed(Moment(moment, 0.0))


def left(timeouts: PodsReadyTimeouts, own: Workload, seconds: float) -> tuple[str, float] | None:
    """The cause and the seconds left, so long after the conditions of `builders` changed."""
    found = timeouts.missing_pods(own, at(after(seconds)))
    return None if found is None else (found.cause, found.remaining_s)


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        (None, ("WaitForStart", 260.0)),
        (("False", "WaitForStart"), ("WaitForStart", 260.0)),
        (("False", "PodsReady"), ("WaitForStart", 260.0)),  # as old versions of Kueue wrote it
        (("False", "WaitForRecovery"), ("WaitForRecovery", 20.0)),
        (("True", "Started"), None),
        (("True", "Recovered"), None),
    ],
)
def test_each_wait_has_its_own_time(
    ready: tuple[str, str] | None, expected: tuple[str, float] | None
) -> None:
    has = {"Admitted": ("True", "Admitted")} | ({} if ready is None else {"PodsReady": ready})
    own = workload(job(), admitted=True, conditions=has)
    assert left(PodsReadyTimeouts(300, 60), own, 40) == expected
    assert left(PodsReadyTimeouts(), own, 40) is None
    only = {"WaitForStart": PodsReadyTimeouts(None, 60), "WaitForRecovery": PodsReadyTimeouts(300)}
    if expected is not None:
        assert left(only[expected[0]], own, 40) is None


def test_a_job_that_starts_in_stages_has_a_time_for_its_start_alone() -> None:
    limit = PodsReadyTimeouts(60, 60)
    starting = workload(job(), admitted=True, conditions={"Admitted": ("True", "Admitted")})
    found = limit.missing_pods(starting, at(after(40)), staged=True)
    assert found is not None
    assert found.remaining_s == 20
    lost = workload(job(), admitted=True, conditions=MISSING)
    assert limit.missing_pods(lost, at(after(40)), staged=True) is None


def test_no_time_runs_without_a_condition_a_moment_or_a_fixed_size() -> None:
    limit = PodsReadyTimeouts(60, 60)
    for earlier in ({}, MISSING):
        reserved = {"Admitted": ("False", "UnsatisfiedAdmissionChecks"), **earlier}
        assert left(limit, workload(job(), admitted=True, conditions=reserved), 99) is None
    pending = {"Admitted": ("False", "NoReservation")}
    assert left(limit, workload(job(), conditions=pending), 99) is None
    own = workload(job(), admitted=True, conditions=MISSING)
    lost, begun = own.status.conditions
    for moment in (None, "soon"):
        odd = msgspec.structs.replace(lost, last_transition_time=moment)
        status = msgspec.structs.replace(own.status, conditions=(odd, begun))
        assert left(limit, msgspec.structs.replace(own, status=status), 99) is None
    meta = {"annotations": {"kueue.x-k8s.io/elastic-job": "true"}}
    elastic = workload(job(), admitted=True, conditions=MISSING, meta=meta)
    assert left(limit, elastic, 99) is None


@pytest.mark.parametrize(
    ("admitted", "left_s"),
    [("2026-08-01T11:00:00Z", 20), ("2026-08-01T12:00:30Z", 50), ("soon", 20), (None, 20)],
)
def test_no_time_runs_from_before_the_admission(admitted: str | None, left_s: float) -> None:
    own = workload(job(), admitted=True, conditions={**MISSING, "Admitted": ("True", "Admitted")})
    lost, begun = own.status.conditions
    begun = msgspec.structs.replace(begun, last_transition_time=admitted)
    status = msgspec.structs.replace(own.status, conditions=(lost, begun))
    own = msgspec.structs.replace(own, status=status)
    assert left(PodsReadyTimeouts(None, 60), own, 40) == ("WaitForRecovery", left_s)


@pytest.mark.parametrize(
    ("tries", "count", "pause_s"),
    [
        (None, 1, 60),
        (1, 2, 120),
        (2, 3, 240),
        (5, 6, 1000),
        (2**31 - 1, 2**31 - 1, 1000),
        (-5, 1, 60),
    ],
)
def test_each_eviction_doubles_the_pause_up_to_the_longest(
    tries: int | None, count: int, pause_s: int
) -> None:
    own = with_tries(workload(job()), None if tries is None else RequeueState(tries))
    cause = UnderlyingCause.WAIT_FOR_START
    found = PodsReadyTimeouts(60, 60, 60, 1000).time_out(own, cause, LOST)
    assert found.cause == cause
    assert found.requeue is not None
    assert found.requeue.count == count
    assert backoff_remaining_s(with_tries(own, found.requeue), at(LOST)) == pause_s


@pytest.mark.parametrize(
    ("limit", "tries", "again"),
    [(None, 10_000, True), (0, None, False), (2, 1, True), (2, 2, False), (2, 9, False)],
)
def test_too_many_evictions_deactivate(limit: int | None, tries: int | None, again: bool) -> None:
    own = with_tries(workload(job()), None if tries is None else RequeueState(tries))
    timeouts = PodsReadyTimeouts(60, limit=limit)
    found = timeouts.time_out(own, UnderlyingCause.WAIT_FOR_START, LOST)
    assert (found.requeue is not None) is again


@pytest.mark.parametrize(
    ("until", "left_s"), [("2026-08-01T12:00:30Z", 20), ("2026-08-01T12:00:05Z", 0), ("soon", 0)]
)
def test_a_pause_ends_at_its_time_or_when_that_cannot_be_read(until: str, left_s: float) -> None:
    own = with_tries(workload(job()), RequeueState(1, until))
    assert backoff_remaining_s(own, at(after(10))) == left_s
    assert backoff_remaining_s(with_tries(own, RequeueState(1)), at(LOST)) is None


@pytest.mark.parametrize("jump_s", [0, 3600, -3600])
def test_a_wall_clock_that_jumps_ends_no_timeout_early_or_late(jump_s: int) -> None:
    times = ElapsedTimes()
    first = times.at("w", Moment(after(10), 1000.0))
    assert (first.since("2026-08-01T12:00:00Z"), first.until("2026-08-01T12:01:00Z")) == (10, 50)
    later = times.at("w", Moment(after(15 + jump_s), 1005.0))
    assert (later.since("2026-08-01T12:00:00Z"), later.until("2026-08-01T12:01:00Z")) == (15, 45)


def test_a_time_that_began_under_a_clock_that_was_ahead_begins_now() -> None:
    times = ElapsedTimes()
    assert times.at("w", Moment(LOST, 0.0)).since("2026-08-01T13:00:00Z") == 0
    assert times.at("w", Moment(after(5), 5.0)).since("2026-08-01T13:00:00Z") == 5


def test_of_an_object_the_times_used_last_are_remembered_and_none_once_it_is_gone() -> None:
    times = ElapsedTimes()
    admitted = "2026-08-01T12:00:00Z"
    for number in range(20):
        now = Moment(LOST, float(number))
        assert times.at("w", now).since(admitted) == number
        times.at("w", now).since(f"2026-08-01T11:00:{number:02}Z")
    times.forget("w")
    assert times.at("w", Moment(LOST, 50.0)).since(admitted) == 0


def running(**more: Any) -> tuple[Any, Workload, Any]:
    of = job(suspend=False, started=True, **more)
    own = workload(of, admitted=True, conditions=MISSING)
    return of, own, facts(of, own)


@pytest.mark.parametrize(
    ("cause", "words"), [("WaitForStart", "ready in time"), ("WaitForRecovery", "ready again in")]
)
def test_a_job_whose_pods_stay_missing_is_evicted_with_a_time_to_come_back(
    cause: str, words: str
) -> None:
    of, own, found = running(ready=3)
    timed_out = TimedOut(UnderlyingCause(cause), RETRY)
    step = plan_job(of, [own], replace(found, timed_out=timed_out))
    assert isinstance(step, actions.EvictWorkload)
    assert (step.reason, step.requeue) == ("PodsReadyTimeout", RETRY)
    assert step.underlying_cause == cause
    assert step.message.startswith("Exceeded the PodsReady timeout ns/job-train-")
    assert words in step.message
    assert not isinstance(plan_job(of, [own], found), actions.EvictWorkload)


def test_one_that_was_evicted_too_often_is_deactivated() -> None:
    of, own, found = running(ready=3)
    timed_out = TimedOut(UnderlyingCause.WAIT_FOR_START, None)
    step = plan_job(of, [own], replace(found, timed_out=timed_out))
    assert isinstance(step, actions.DeactivateWorkload)
    assert step.cause == "RequeuingLimitExceeded"


@pytest.mark.parametrize("evicted", [False, True])
def test_a_deactivation_that_was_begun_is_completed_once(evicted: bool) -> None:
    """The process died between the two writes; meanwhile it may have been preempted."""
    of = job(suspend=False, started=True)
    target = {"DeactivationTarget": ("True", "RequeuingLimitExceeded")}
    has = {**target, **({"Evicted": ("True", "Preempted")} if evicted else {})}
    own = workload(of, admitted=True, conditions=has)
    step = plan_job(of, [own], facts(of, own))
    assert isinstance(step, actions.DeactivateWorkload)
    assert (step.cause, step.message) == ("RequeuingLimitExceeded", "RequeuingLimitExceeded it is")
    for done in (
        workload(of, admitted=True, active=False, conditions=has),
        workload(of, admitted=True, conditions={"DeactivationTarget": ("False", "Gone")}),
    ):
        assert not isinstance(plan_job(of, [done], facts(of, done)), actions.DeactivateWorkload)


@pytest.mark.parametrize("tries", [RETRY, RequeueState(3)])
def test_a_deactivated_workload_starts_over(tries: RequeueState) -> None:
    of = job()
    own = with_tries(workload(of, active=False), tries)
    assert isinstance(plan_job(of, [own], facts(of, own)), actions.RequeueWorkload)
    own = with_tries(own, NO_REQUEUE)
    assert not isinstance(plan_job(of, [own], facts(of, own)), actions.RequeueWorkload)


def test_evictions_are_counted_by_reason_and_cause() -> None:
    own = workload(job())
    firsts = []
    for cause in ("WaitForStart", "WaitForRecovery", "WaitForStart"):
        stats, first = count_eviction(own, "PodsReadyTimeout", cause)
        firsts.append(first)
        own = msgspec.structs.replace(
            own, status=msgspec.structs.replace(own.status, scheduling_stats=stats)
        )
    assert firsts == [True, True, False]
    written = msgspec.json.decode(status_body(own, [], None))["status"]["schedulingStats"]
    assert written["evictions"] == [
        {"reason": "PodsReadyTimeout", "underlyingCause": "WaitForStart", "count": 2},
        {"reason": "PodsReadyTimeout", "underlyingCause": "WaitForRecovery", "count": 1},
    ]


def test_the_eviction_is_reported_as_kueue_does_and_queues_nothing_again_yet() -> None:
    own = workload(job(), admitted=True, conditions=MISSING)
    told = {
        c.type: (c.status, c.reason)
        for c in conditions.evicted_conditions(own, "PodsReadyTimeout", "m")
    }
    assert told == {
        "Evicted": ("True", "PodsReadyTimeout"),
        "Requeued": ("False", "PodsReadyTimeout"),
    }


def test_its_quota_is_released_with_the_words_that_a_cycle_says() -> None:
    own = with_tries(workload(job(), admitted=True, conditions=EVICTED), RETRY)
    told = conditions.released_conditions(own)[0]
    assert (told.reason, told.message) == (
        "PendingEvaluation",
        "not all of its pods were ready in time: queued again at 2026-08-01T12:10:00Z",
    )


@pytest.mark.parametrize(
    ("paused", "active", "again"),
    [(5.0, True, False), (0.0, True, True), (5.0, False, True), (None, True, False)],
)
def test_it_is_queued_again_when_the_pause_is_over_or_it_was_deactivated(
    paused: float | None, active: bool, again: bool
) -> None:
    of = job()
    own = with_tries(workload(of, active=active, conditions=EVICTED), RETRY)
    step = plan_job(of, [own], replace(facts(of, own), requeue_in_s=paused))
    assert isinstance(step, actions.RequeueWorkload) is again


@pytest.mark.parametrize(
    ("tries", "given", "written"),
    [
        (None, None, None),
        (RETRY, None, {"count": 1, "requeueAt": RETRY.requeue_at}),
        (RETRY, RequeueState(1), {"count": 1}),
        (RETRY, NO_REQUEUE, None),
        (None, RETRY, {"count": 1, "requeueAt": RETRY.requeue_at}),
    ],
)
def test_an_apply_keeps_the_tries_unless_it_is_given_others(
    tries: RequeueState | None, given: RequeueState | None, written: object
) -> None:
    own = with_tries(workload(job()), tries)
    body = msgspec.json.decode(status_body(own, [], None, requeue=given))
    assert body["status"].get("requeueState") == written
