from __future__ import annotations

import pytest

from rackgate.api.names import ResizeReason
from rackgate.jobframework.generic_job import RequestedCount
from rackgate_assigner.workload_slices.model import Phase
from rackgate_assigner.workload_slices.resize_plan import progress
from tests.unit.assigner.slices.builders import admitted, parent, waiting


def asked(pods: int) -> dict[str, RequestedCount]:
    return {"a": RequestedCount(pods)}


@pytest.mark.requirement("SLC-10")
@pytest.mark.field_note("E19")
def test_the_user_reads_what_was_asked_admitted_and_why_the_rest_waits() -> None:
    message = "0 of 1 cpu left in flavor f"
    held = [waiting(n, reason="WaitingForQuota", message=message) for n in (3, 4, 5)]
    slices = [admitted(0), admitted(1), admitted(2), *held]
    found = progress(asked(8), parent(2), slices)
    assert found is not None
    assert (found.resizing, found.reason) == (True, ResizeReason.WAITING_FOR_SLICES)
    assert found.message == (
        'podset "a" from 2 to 8 pods: 8 requested, 5 admitted, 3 pending in 3 slices'
        " because WaitingForQuota: 0 of 1 cpu left in flavor f"
    )


@pytest.mark.requirement("SLC-10")
def test_a_resize_is_reported_from_its_detection_to_its_end() -> None:
    up = progress(asked(3), parent(2), [])
    assert up is not None
    assert (up.resizing, up.reason) == (True, ResizeReason.SCALING_UP)
    assert up.message == 'podset "a" from 2 to 3 pods: 3 requested, 2 admitted, 1 pending'
    down = progress(asked(1), parent(2), [])
    assert down is not None
    assert (down.resizing, down.reason) == (True, ResizeReason.SCALING_DOWN)
    assert down.message == 'podset "a" from 2 to 1 pods: 1 requested, 2 admitted, 1 to be released'
    following = progress(asked(3), parent(3, asked_before=2), [])
    assert following is not None
    assert following.resizing
    done = progress(asked(3), parent(3), [])
    assert done is not None
    assert (done.resizing, done.reason) == (False, ResizeReason.RESIZED)
    assert done.message == "all requested pods are admitted: a 3"


def test_nothing_is_said_of_a_job_that_is_unknown_or_being_stopped() -> None:
    assert progress(None, parent(2), []) is None
    assert progress(asked(3), parent(2, phase=Phase.EVICTING), []) is None
    assert progress(asked(3), parent(2, phase=Phase.FINISHED), []) is None


def test_a_stopped_job_is_resized_by_no_one() -> None:
    found = progress(asked(3), parent(2, phase=Phase.IDLE), [])
    assert found is not None
    assert not found.resizing
