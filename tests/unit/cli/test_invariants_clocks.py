"""Clocks that do not agree: what is noticed, what is corrected, and what no rule depends on."""

from __future__ import annotations

import json

import pytest

from rackgate_cli.invariants.probe import difference, warning
from rackgate_invariants.rows.projections import pod_row
from tests.support.sound_cluster import EARLY, LATE, NOW, other_pod, rules, sound

DATE = "Thu, 01 Jan 2026 12:00:00 GMT"


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize(
    ("own", "expected"),
    [(NOW, 0.0), (NOW + 4, 0.0), (NOW - 4, 0.0), (NOW + 312, 312.0), (NOW - 45, -45.0)],
)
def test_clocks_agree_within_what_rounding_and_the_way_explain(own: float, expected: float) -> None:
    assert difference(DATE, own) == expected


@pytest.mark.parametrize("date", ["", "yesterday", "Thu, 99 Jan 2026 12:00:00 GMT"])
def test_a_date_that_cannot_be_read_is_no_difference(date: str) -> None:
    assert difference(date, NOW) == 0.0


def test_a_difference_is_reported_with_its_direction() -> None:
    assert warning(0.0) == ""
    assert "312 s ahead of the API server's" in warning(312.0)
    assert "45 s behind the API server's" in warning(-45.0)


def test_a_quota_lowered_after_an_admission_is_judged_by_one_clock() -> None:
    """The assigner's clock may be hours ahead: its own condition would seem to come later."""
    world = sound()
    queue = world.cluster_queues[0]
    quota = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    quota["nominalQuota"] = "8"
    lowered = {"time": "2026-01-01T10:30:00Z", "fieldsV1": {"f:spec": {"f:resourceGroups": {}}}}
    queue["metadata"]["managedFields"] = [lowered]
    for condition in world.workload["status"]["conditions"]:
        condition["lastTransitionTime"] = LATE
    written = {"manager": "rackgate-admission", "subresource": "status", "time": EARLY}
    world.workload["metadata"]["managedFields"] = [written]
    assert rules(world) == []
    written["time"] = LATE
    assert rules(world) == ["over-quota", "pods-over-quota"]


def test_a_pod_is_never_bound_before_it_was_created() -> None:
    """The scheduler's clock may be behind: the pod came after the admission all the same."""
    late = other_pod("daemon", "n1")
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": EARLY}
    late["metadata"]["creationTimestamp"] = LATE
    late["status"] = {"conditions": [scheduled]}
    row = pod_row(json.dumps(late).encode())
    assert row.scheduled_at == row.created_at
    world = sound()
    world.pods.append(late)
    assert rules(world) == []
