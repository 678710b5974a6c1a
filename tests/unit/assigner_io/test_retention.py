"""How long ended Workloads are kept, and what is never deleted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.plan import plan_job, plan_ownerless_workload
from rackgate_assigner.workload.elapsed import Elapsed, Moment
from rackgate_assigner.workload.retention import Retention
from tests.unit.assigner_io.builders import facts, job, workload

AT = datetime(2026, 8, 1, 12, tzinfo=UTC)
FINISHED = {"Finished": ("True", "Succeeded")}
DEACTIVATED = {"Requeued": ("False", "DeactivatedDueToRequeuingLimitExceeded")}
DELETIONS = (actions.DeleteJob, actions.DeleteWorkload)


def at(seconds: float) -> Elapsed:
    return Elapsed(Moment(AT + timedelta(seconds=seconds), 0.0))


@pytest.mark.parametrize(
    ("conditions", "active", "left_s"),
    [
        (FINISHED, True, 60),
        (FINISHED, False, 60),
        ({"Finished": ("False", "Pending")}, True, None),
        (DEACTIVATED, False, 20),
        (DEACTIVATED, True, None),
        ({"Requeued": ("False", "Deactivated")}, False, None),
        ({"Requeued": ("False", "PodsReadyTimeout")}, False, None),
        ({"Requeued": ("True", "Reactivated")}, False, None),
        # Its user has activated and deactivated it since.
        (
            {
                "Evicted": ("True", "DeactivatedDueToRequeuingLimitExceeded"),
                "Requeued": ("True", "Reactivated"),
            },
            False,
            None,
        ),
        ({}, False, None),
    ],
)
def test_a_time_runs_for_what_has_finished_and_for_what_rackgate_deactivated(
    conditions: dict[str, tuple[str, str]], active: bool, left_s: float | None
) -> None:
    own = workload(job(), active=active, conditions=conditions)
    assert Retention(100, 60).remaining_s(own, at(40)) == left_s
    assert Retention().remaining_s(own, at(40)) is None


def test_the_workload_of_a_finished_job_is_deleted_when_nothing_needs_it() -> None:
    of = job(suspend=False, started=True, finished="Complete", active=0)
    own = workload(of, conditions=FINISHED, finalizer=False)
    over = replace(facts(of, own), retention_over=True)
    step = plan_job(of, [own], over)
    assert isinstance(step, actions.DeleteWorkload)
    assert isinstance(plan_job(of, [own], facts(of, own)), actions.NoAction)
    assert isinstance(plan_job(of, [own], replace(over, live_pods=1)), actions.NoAction)
    held = workload(of, conditions=FINISHED)
    assert isinstance(plan_job(of, [held], over), actions.ReleaseFinalizer)
    assert isinstance(plan_job(of, [], over), actions.NoAction)  # and it is not created again


@pytest.mark.parametrize("suspend", [True, False])
def test_a_finished_workload_stays_while_its_job_has_not_finished(suspend: bool) -> None:
    """It could not be started: without its Workload it would be queued again, for ever."""
    of = job(suspend=suspend)
    own = workload(of, conditions={"Finished": ("True", "FailedToStart")}, finalizer=False)
    step = plan_job(of, [own], replace(facts(of, own), retention_over=True))
    assert not isinstance(step, DELETIONS)


def test_the_job_of_a_deactivated_workload_is_deleted_once_it_has_stopped() -> None:
    of = job()
    own = workload(of, active=False, conditions=DEACTIVATED)
    over = replace(facts(of, own), retention_over=True)
    step = plan_job(of, [own], over)
    assert isinstance(step, actions.DeleteJob)
    assert not isinstance(plan_job(of, [own], replace(over, live_pods=1)), DELETIONS)
    running = job(suspend=False, started=True)
    state = replace(facts(running, own), retention_over=True)
    assert not isinstance(plan_job(running, [own], state), DELETIONS)
    admitted = workload(of, admitted=True, active=False, conditions=DEACTIVATED)
    assert not isinstance(plan_job(of, [admitted], over), DELETIONS)
    again = workload(of, conditions=DEACTIVATED)
    assert not isinstance(plan_job(of, [again], over), DELETIONS)


def test_a_workload_without_a_job_is_deleted_only_if_it_has_finished() -> None:
    own = workload(None, conditions=FINISHED)
    step = plan_ownerless_workload(own, retention_over=True)
    assert isinstance(step, actions.DeleteWorkload)
    assert isinstance(plan_ownerless_workload(own), actions.NoAction)
    off = workload(None, active=False, conditions=DEACTIVATED)
    assert isinstance(plan_ownerless_workload(off, retention_over=True), actions.NoAction)
