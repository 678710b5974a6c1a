"""Room that pods on their way out still take."""

from __future__ import annotations

import pytest

from tests.unit.assigner.builders import (
    admissions,
    admit_all,
    cache_with,
    node,
    plan_cycle,
    pod,
    podset,
    rebuild_matches,
    workload,
)


@pytest.mark.field_note("C4")
@pytest.mark.requirement("CAP-04")
def test_a_leaving_pod_of_an_admitted_workload_is_charged_once() -> None:
    """Its replacement stays gated until it is gone, so the two never need room together."""
    cache = cache_with([node("n", cpu="16")])
    cache.set_workload(workload("train", [podset(requests={"cpu": "8"})]))
    assignment = admit_all(cache)["train"]
    cache.set_workload(
        workload("train", [podset(requests={"cpu": "8"})], version="2", assignment=assignment)
    )
    cache.set_pod(pod("old", "n", cpu="8", workload="train", leaving=True))
    cache.set_workload(workload("other", [podset(requests={"cpu": "8"})]))
    assert list(admissions(plan_cycle(cache))) == ["other"]
    assert rebuild_matches(cache) == []


@pytest.mark.field_note("C4")
@pytest.mark.requirement("CAP-02")
def test_leaving_pods_of_an_evicted_workload_hold_their_room() -> None:
    cache = cache_with([node("n", cpu="8")])
    cache.set_workload(workload("train", [podset(requests={"cpu": "8"})]))
    assignment = admit_all(cache)["train"]
    cache.set_workload(
        workload("train", [podset(requests={"cpu": "8"})], version="2", assignment=assignment)
    )
    cache.set_pod(pod("old", "n", cpu="8", workload="train", leaving=True))
    cache.drop_workload("team/train")
    cache.set_workload(workload("other", [podset(requests={"cpu": "8"})]))
    assert admissions(plan_cycle(cache)) == {}
    cache.drop_pod("team/old")
    assert list(admissions(plan_cycle(cache))) == ["other"]
