"""Lost pods that stay missing: how long they may, and when their Workload is queued again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from rackgate.wire.kueue import RequeueState, Workload
from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.plan import plan_job
from rackgate_assigner.node_replacement.recovery_timeout import RecoveryTimeout, backoff_remaining_s
from rackgate_assigner.workload import conditions
from rackgate_assigner.workload.status import NO_REQUEUE, status_body
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


@pytest.mark.parametrize(
    ("ready", "left_s"),
    [
        (("False", "WaitForRecovery"), 20.0),
        (("False", "WaitForStart"), None),
        (("True", "Started"), None),
        (("True", "Recovered"), None),
    ],
)
def test_the_time_runs_from_the_loss_of_a_pod_alone(
    ready: tuple[str, str], left_s: float | None
) -> None:
    own = workload(job(), admitted=True, conditions={"PodsReady": ready})
    assert RecoveryTimeout(timeout_s=60).remaining_s(own, after(40)) == left_s
    assert RecoveryTimeout().remaining_s(own, after(40)) is None


def test_no_time_runs_without_a_condition_a_moment_or_a_fixed_size() -> None:
    limit = RecoveryTimeout(timeout_s=60)
    assert limit.remaining_s(workload(job(), admitted=True), LOST) is None
    own = workload(job(), admitted=True, conditions=MISSING)
    (lost,) = own.status.conditions
    for moment in (None, "soon"):
        odd = msgspec.structs.replace(lost, last_transition_time=moment)
        status = msgspec.structs.replace(own.status, conditions=(odd,))
        assert limit.remaining_s(msgspec.structs.replace(own, status=status), after(99)) is None
    meta = {"annotations": {"kueue.x-k8s.io/elastic-job": "true"}}
    elastic = workload(job(), admitted=True, conditions=MISSING, meta=meta)
    assert limit.remaining_s(elastic, after(99)) is None


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
    assert RecoveryTimeout(timeout_s=60).remaining_s(own, after(40)) == left_s


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
    found = RecoveryTimeout(60, 60, 1000).next_requeue_state(own, LOST)
    assert found.count == count
    assert backoff_remaining_s(with_tries(own, found), LOST) == pause_s


@pytest.mark.parametrize(
    ("until", "left_s"), [("2026-08-01T12:00:30Z", 20), ("2026-08-01T12:00:05Z", 0), ("soon", 0)]
)
def test_a_pause_ends_at_its_time_or_when_that_cannot_be_read(until: str, left_s: float) -> None:
    own = with_tries(workload(job()), RequeueState(1, until))
    assert backoff_remaining_s(own, after(10)) == left_s
    assert backoff_remaining_s(with_tries(own, RequeueState(1)), LOST) is None


def running(**more: Any) -> tuple[Any, Workload, Any]:
    of = job(suspend=False, started=True, **more)
    own = workload(of, admitted=True, conditions=MISSING)
    return of, own, facts(of, own)


def test_a_job_whose_lost_pods_stay_missing_is_evicted_with_a_time_to_come_back() -> None:
    of, own, found = running(ready=3)
    step = plan_job(of, [own], replace(found, recovery_requeue=RETRY))
    assert isinstance(step, actions.EvictWorkload)
    assert (step.reason, step.requeue) == ("PodsReadyTimeout", RETRY)
    assert step.message.startswith("Exceeded the PodsReady timeout ns/job-train-")
    assert not isinstance(plan_job(of, [own], found), actions.EvictWorkload)


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
        "not all of its pods were ready again in time: queued again at 2026-08-01T12:10:00Z",
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
