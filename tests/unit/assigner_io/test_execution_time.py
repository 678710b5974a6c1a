"""How long a Workload may be admitted in total, and what follows when it was."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from rackgate.wire.kueue import Workload
from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.patches import spec_ops, workload_body
from rackgate_assigner.jobs.plan import plan_job, plan_ownerless_workload
from rackgate_assigner.jobs.state import Priority
from rackgate_assigner.workload.elapsed import Elapsed, Moment
from rackgate_assigner.workload.execution_time import ExecutionTime, execution_time
from rackgate_assigner.workload.status import leftover_ops, status_body
from tests.unit.assigner_io.builders import facts, job, workload

# When the conditions of `builders` last changed.
ADMITTED_AT = datetime(2026, 8, 1, 12, tzinfo=UTC)
LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
ADMITTED = {"Admitted": ("True", "Admitted")}
EXCEEDED = "DeactivatedDueToMaximumExecutionTimeExceeded"


def limited(own: Workload, maximum: int | None, past: int | None = None, **status: Any) -> Workload:
    """A Workload with a maximum, and with the time of earlier admissions."""
    return msgspec.structs.replace(
        own,
        spec=msgspec.structs.replace(own.spec, maximum_execution_time_seconds=maximum),
        status=msgspec.structs.replace(
            own.status, accumulated_past_execution_time_seconds=past, **status
        ),
    )


def at(seconds: float) -> Elapsed:
    return Elapsed(Moment(ADMITTED_AT + timedelta(seconds=seconds), 0.0))


@pytest.mark.parametrize(
    ("maximum", "past", "expected"),
    [
        (100, None, ExecutionTime(60, 40)),
        (100, 30, ExecutionTime(30, 70)),
        (30, None, ExecutionTime(-10, 40)),
        (100, -5, ExecutionTime(60, 40)),
        (100, 2**31 - 1, ExecutionTime(100 - 40 - (2**31 - 1), 2**31 - 1)),
        (None, 30, None),
    ],
)
def test_the_time_of_all_admissions_counts(
    maximum: int | None, past: int | None, expected: ExecutionTime | None
) -> None:
    own = limited(workload(job(), admitted=True, conditions=ADMITTED), maximum, past)
    assert execution_time(own, at(40)) == expected


@pytest.mark.parametrize(
    "conditions",
    [
        {},
        {"Admitted": ("False", "NoReservation")},
        {**ADMITTED, "Finished": ("True", "Succeeded")},
    ],
)
def test_no_time_runs_while_it_is_not_admitted_or_when_it_is_over(
    conditions: dict[str, tuple[str, str]],
) -> None:
    assert execution_time(limited(workload(job(), conditions=conditions), 10), at(40)) is None


def test_a_moment_that_cannot_be_read_starts_no_time() -> None:
    own = workload(job(), admitted=True, conditions=ADMITTED)
    (admitted,) = own.status.conditions
    odd = msgspec.structs.replace(admitted, last_transition_time="soon")
    assert execution_time(limited(own, 10, conditions=(odd,)), at(40)) is None


@pytest.mark.parametrize(
    ("reason", "past"), [(EXCEEDED, 0), ("Deactivated", 40), ("Preempted", 40)]
)
def test_it_starts_over_only_after_its_time_was_exceeded(reason: str, past: int) -> None:
    conditions = {**ADMITTED, "Evicted": ("True", reason)}
    own = limited(workload(job(), admitted=True, conditions=conditions), 30)
    found = execution_time(own, at(40))
    assert found is not None
    assert found.past_s == past


def test_a_job_whose_time_is_over_is_deactivated_and_not_evicted() -> None:
    of = job(suspend=False, started=True)
    own = workload(of, admitted=True, conditions=ADMITTED)
    step = plan_job(of, [own], replace(facts(of, own), execution=ExecutionTime(0, 40)))
    assert isinstance(step, actions.DeactivateWorkload)
    assert step.cause == "MaximumExecutionTimeExceeded"
    for left in (ExecutionTime(1, 40), None):
        step = plan_job(of, [own], replace(facts(of, own), execution=left))
        assert not isinstance(step, actions.DeactivateWorkload)


def test_a_job_that_has_ended_is_finished_however_late_that_is_seen() -> None:
    of = job(suspend=False, started=True, finished="Complete", active=0)
    own = workload(of, admitted=True, conditions=ADMITTED)
    step = plan_job(of, [own], replace(facts(of, own), execution=ExecutionTime(-99, 40)))
    assert isinstance(step, actions.FinishWorkload)


def test_a_release_writes_the_time_until_then() -> None:
    of = job()
    own = workload(of, admitted=True, conditions={**ADMITTED, "Evicted": ("True", "Preempted")})
    step = plan_job(of, [own], replace(facts(of, own), execution=ExecutionTime(5, 40)))
    assert step == actions.ReleaseQuota(own, 40)
    assert plan_job(of, [own], facts(of, own)) == actions.ReleaseQuota(own, None)


def test_a_workload_without_a_job_has_its_time_as_well() -> None:
    own = workload(None, admitted=True, conditions=ADMITTED)
    step = plan_ownerless_workload(own, execution=ExecutionTime(0, 40))
    assert isinstance(step, actions.DeactivateWorkload)
    step = plan_ownerless_workload(own, execution=ExecutionTime(9, 40))
    assert isinstance(step, actions.NoAction)
    conditions = {**ADMITTED, "Evicted": ("True", EXCEEDED)}
    own = workload(None, admitted=True, active=False, conditions=conditions)
    step = plan_ownerless_workload(own, execution=ExecutionTime(0, 0))
    assert step == actions.ReleaseQuota(own, 0)
    half = workload(
        None, admitted=True, conditions={"DeactivationTarget": ("True", "RequeuingLimitExceeded")}
    )
    assert isinstance(plan_ownerless_workload(half), actions.DeactivateWorkload)


@pytest.mark.parametrize(
    ("past", "given", "written", "removed"),
    [
        (None, None, None, False),
        (30, None, 30, False),
        (30, 70, 70, False),
        (None, 70, 70, False),
        (30, 0, None, True),
        (None, 0, None, False),
    ],
)
def test_an_apply_keeps_the_time_unless_it_is_given_another(
    past: int | None, given: int | None, written: int | None, removed: bool
) -> None:
    own = limited(workload(job()), 100, past)
    body = msgspec.json.decode(status_body(own, [], None, past_execution_s=given))
    assert body["status"].get("accumulatedPastExecutionTimeSeconds") == written
    ops = leftover_ops(own, (), [], admission=True, requeue=None, past_execution_s=given)
    assert [op["path"] for op in ops] == (
        ["/status/accumulatedPastExecutionTimeSeconds"] if removed else []
    )


@pytest.mark.parametrize(
    ("label", "maximum"),
    [
        ("60", 60),
        ("0060", 60),
        ("2147483647", 2**31 - 1),
        ("2147483648", None),
        ("99999999999999999999", None),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("1h", None),
        ("", None),
        ("٣", None),
        ("6\n", None),
    ],
)
def test_the_label_of_a_job_becomes_the_maximum_of_its_workload(
    label: str, maximum: int | None
) -> None:
    of = job(labels={LABEL: label})
    spec = workload_body(of, "w", Priority())["spec"]
    assert spec.get("maximumExecutionTimeSeconds") == maximum


def test_a_pending_workload_follows_the_label() -> None:
    path = "/spec/maximumExecutionTimeSeconds"
    with_label, without = job(labels={LABEL: "60"}), job()
    for of, present, ops in (
        (with_label, None, [{"op": "add", "path": path, "value": 60}]),
        (with_label, 50, [{"op": "add", "path": path, "value": 60}]),
        (with_label, 60, []),
        (without, 50, [{"op": "remove", "path": path}]),
        (without, None, []),
    ):
        own = limited(workload(of), present)
        assert list(spec_ops(of, own, facts(of, own))) == ops
