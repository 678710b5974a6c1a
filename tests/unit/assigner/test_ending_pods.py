"""A preemptor waits for pods that end anyway, instead of preempting a Workload that runs."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate_assigner.cache.cache import Cache
from tests.unit.assigner.builders import (
    admissions,
    domains,
    node,
    plan_cycle,
    pod,
    rebuild_matches,
)
from tests.unit.assigner.test_living import is_job_pod
from tests.unit.assigner.test_preemption import held, preempted
from tests.unit.assigner.test_scheduling_cycles import filled, rack_job, runs, teams, waits

WITHIN = {"withinClusterQueue": "LowerPriority"}
ANY = {"reclaimWithinCohort": "Any"}


def deleted_job(cache: Cache, pods: int, *, queue: int = 0, leaving: bool = True) -> None:
    """A job whose Workload is gone, and whose pods live."""
    cache.set_job("job-gone", f"team/lq{queue}")
    for index in range(pods):
        cache.set_pod(is_job_pod(f"gone-{index}", "job-gone", leaving=leaving))
    cache.drop_job("job-gone")


def team_cache(preemption: Any = WITHIN) -> Cache:
    cache = teams(4, 0, preemption=preemption)
    cache.set_node(node("a", cpu="64"))
    return cache


@pytest.mark.requirement("STR-07")
def test_a_preemptor_waits_for_the_pods_of_a_deleted_job_and_preempts_nothing() -> None:
    cache = team_cache()
    runs(cache, "low", 2)
    deleted_job(cache, 2)
    waits(cache, "high", 2, priority=9)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == []
    assert held(decisions) == {"high": "WaitingForPreemptedWorkloads"}
    assert rebuild_matches(cache) == []
    for index in range(2):
        cache.drop_pod(f"team/gone-{index}")
    assert list(admissions(plan_cycle(cache))) == ["high"]
    assert rebuild_matches(cache) == []


def test_what_is_not_freed_by_ending_pods_is_preempted() -> None:
    cache = team_cache()
    runs(cache, "low", 2)
    deleted_job(cache, 2)
    waits(cache, "high", 4, priority=9)
    assert preempted(plan_cycle(cache)) == [("low", "high")]


@pytest.mark.requirement("STR-07")
def test_pods_that_run_on_without_their_job_are_not_waited_for() -> None:
    """They may never end: their owner can be removed from them."""
    cache = team_cache()
    runs(cache, "low", 2)
    deleted_job(cache, 2, leaving=False)
    waits(cache, "high", 2, priority=9)
    assert preempted(plan_cycle(cache)) == [("low", "high")]


def test_one_pod_that_runs_on_is_enough_not_to_be_waited_for() -> None:
    cache = team_cache()
    runs(cache, "low", 2)
    deleted_job(cache, 2)
    cache.set_pod(is_job_pod("gone-1", "job-gone"))
    waits(cache, "high", 2, priority=9)
    assert preempted(plan_cycle(cache)) == [("low", "high")]
    cache.set_pod(is_job_pod("gone-1", "job-gone", leaving=True))
    assert preempted(plan_cycle(cache)) == []
    assert rebuild_matches(cache) == []


def test_an_owner_waits_for_ending_pods_of_the_queue_that_borrowed() -> None:
    cache = team_cache(ANY)
    runs(cache, "borrower", 2, 1)
    deleted_job(cache, 2, queue=1)
    waits(cache, "mine", 2)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == []
    assert held(decisions) == {"mine": "WaitingForPreemptedWorkloads"}


def test_a_workload_whose_own_pods_end_is_admitted_when_they_are_gone() -> None:
    """It is pending again, so it is both: who waits, and whose pods end."""
    cache = team_cache()
    waits(cache, "again", 4, priority=3)
    cache.set_job("job-again", "team/lq0")
    for index in range(4):
        cache.set_pod(is_job_pod(f"p{index}", "job-again", leaving=True))
    decisions = plan_cycle(cache)
    assert held(decisions) == {"again": "WaitingForPreemptedWorkloads"}
    assert preempted(decisions) == []
    for index in range(4):
        cache.drop_pod(f"team/p{index}")
    assert list(admissions(plan_cycle(cache))) == ["again"]


@pytest.mark.requirement("STR-07")
def test_a_preemptor_waits_for_the_rack_in_which_pods_end() -> None:
    """Pods end in one of four racks, and Workloads run in the others."""
    cache, where = filled()
    cache.set_job("job-gone", "team/lq")
    for node_number in (1, 2):
        for number in range(2):
            host = f"{where['low3']}-{node_number}"
            key = f"gone-{node_number}-{number}"
            cache.set_pod(pod(key, host, cpu="4", workload="low3", owner="job-gone", leaving=True))
    cache.drop_workload("team/low3")
    cache.drop_job("job-gone")
    rack_job(cache, "high", priority=9)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == []
    assert held(decisions) == {"high": "WaitingForPreemptedWorkloads"}
    assert rebuild_matches(cache) == []
    for key in list(cache.pods.rows):
        cache.drop_pod(key)
    found = admissions(plan_cycle(cache))
    assert {host.rpartition("-")[0] for host in domains(found["high"])} == {where["low3"]}


def test_what_ending_pods_use_follows_pods_and_nodes() -> None:
    """A Workload that stands for ending pods is kept while nothing of them changes."""
    cache = team_cache()
    deleted_job(cache, 2)

    def found() -> Any:
        return cache.quota_usage().running.get("uid:job-gone")

    first = found()
    assert first.charges[0].assignment.domains == ((("a",), 2),)
    assert found() is first
    cache.set_node(node("b", cpu="64"))
    assert found().charges == first.charges
    cache.drop_pod("team/gone-0")
    assert found().charges[0].assignment.domains == ((("a",), 1),)
    cache.drop_node("a")
    assert found() is None, "their end would not be seen"
    cache.set_node(node("a", cpu="64"))
    assert found().charges[0].assignment.domains == ((("a",), 1),)
    cache.drop_pod("team/gone-1")
    assert found() is None
