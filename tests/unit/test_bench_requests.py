"""What `bench.requests` counts, and how `bench.soak` judges."""

from __future__ import annotations

from typing import Any

import pytest

from bench import requests, soak
from bench.measuring.requests_counted import counted, per_job, side_by_side


def entry(user: str, verb: str, resource: str, code: int = 200, sub: str = "") -> dict[str, Any]:
    reference = {"resource": resource, **({"subresource": sub} if sub else {})}
    return {
        "user": {"username": f"system:serviceaccount:rackgate-system:{user}"},
        "verb": verb,
        "objectRef": reference,
        "stage": "ResponseComplete",
        "responseStatus": {"code": code},
    }


ASKED = [
    entry("rackgate-assigner", "create", "workloads", 201),
    entry("rackgate-assigner", "create", "workloads", 409),
    entry("rackgate-assigner", "patch", "workloads", sub="status"),
    entry("rackgate-assigner", "create", "events", 201),
    entry("rackgate-assigner", "patch", "leases"),
    entry("rackgate-assigner", "watch", "pods"),
    entry("rackgate-ungater", "get", "workloads"),
    entry("rackgate-ungater", "patch", "pods"),
    entry("job-controller", "create", "pods", 201),
    {**entry("rackgate-ungater", "watch", "pods"), "stage": "ResponseStarted"},
]


def test_requests_of_the_services_are_counted_by_what_they_are_for() -> None:
    found = per_job(counted(ASKED), 2)
    assert found == {
        "requests": 2.0,
        "requests: assigner, create workloads": 0.5,
        "requests: assigner, create workloads (409)": 0.5,
        "requests: assigner, patch workloads/status": 0.5,
        "requests: ungater, get workloads": 0.5,
        "Events": 0.5,
        "Events: assigner, create events": 0.5,
        "patches of pods": 0.5,
        "patches of pods: ungater, patch pods": 0.5,
        "lists and watches": 0.5,
        "lists and watches: ungater, watch pods": 0.5,
    }


def test_two_runs_stand_side_by_side() -> None:
    lines = side_by_side(
        {"before": {"requests": 2.0, "requests: a": 2.0}, "now": {"requests": 1.0}}
    )
    assert [line.split() for line in lines[1:]] == [
        ["requests", "2.00", "1.00"],
        ["a", "2.00", "0.00"],
    ]


@pytest.mark.parametrize(("found", "holds"), [(8.0, True), (8.01, False)])
def test_more_than_eight_requests_fail(found: float, holds: bool) -> None:
    figures = {"free": {"requests": found, "Events": 2.0}}
    assert requests.judge(figures)[1] is holds


def test_more_than_two_events_fail() -> None:
    assert not requests.judge({"free": {"requests": 7.0, "Events": 2.1}})[1]


def samples(rise: float) -> soak.Samples:
    """1,000 Jobs: a steep first quarter, then a rise in bytes for each Job."""
    jobs = list(range(0, 1001, 50))
    mib = [50 + min(n, 250) / 25 + max(0, n - 250) * rise / 2**20 for n in jobs]
    return soak.Samples(jobs, mib)


@pytest.mark.parametrize(("rise", "holds"), [(0, True), (5_000, True), (20_000, False)])
def test_the_second_half_has_to_be_level(rise: float, holds: bool) -> None:
    found = {
        "assigner": soak.SoakResult(samples(rise), [{"rackgate.B": 5}, {"rackgate.B": 9}], [{}, {}])
    }
    lines, kept = soak.report(found, 1000)
    assert kept is holds, lines
    assert f"second half {rise:+.0f} bytes" in lines[1]


@pytest.mark.parametrize(
    ("name", "jobs", "holds"),
    [
        ("rackgate.a.B", 1_000, False),
        ("builtins.tuple", 1_000, True),
        ("builtins.tuple", 20_000, False),
    ],
)
def test_objects_that_stay_fail(name: str, jobs: int, holds: bool) -> None:
    found = {"assigner": soak.SoakResult(samples(0), [{name: 5}, {name: 5 + jobs}], [{}, {}])}
    lines, kept = soak.report(found, jobs)
    assert kept is holds
    assert f"  2.00 {name} a Job {'more, so far' if holds else 'STAY'}" in lines
