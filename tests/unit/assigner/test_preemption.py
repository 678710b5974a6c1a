"""Who gives way within one ClusterQueue, what is written of it, and what is kept for whom."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.features import Features
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import (
    Admit,
    Assignment,
    Decision,
    PodSetAssignment,
    Preempt,
    Requeue,
)
from tests.unit.assigner.builders import (
    admissions,
    cache_with,
    cluster_queue,
    cluster_queue_status_of,
    explanation_of,
    flavor,
    plan_cycle,
    podset,
    workload,
)

LATER, LATEST = "2026-08-01T13:00:00Z", "2026-08-01T14:00:00Z"
QUOTA = {"plain": {"cpu": "10"}}
EVICTED = {"Evicted": ("True", "Preempted", "")}


def world(policy: str = "LowerPriority", quotas: Any = None, **queue: Any) -> Cache:
    preemption = {"withinClusterQueue": policy}
    found = cluster_queue("cq", quotas or QUOTA, preemption=preemption, **queue)
    cache = cache_with(queue=found)
    cache.set_flavor(flavor("plain", None, {}))
    cache.set_flavor(flavor("other", None, {}))
    return cache


def runs(cache: Cache, name: str, cpu: int, priority: int = 0, **more: Any) -> None:
    taken = more.pop("flavor", "plain")
    assignment = Assignment(
        "cq", (PodSetAssignment("main", {"cpu": taken}, {"cpu": 1000 * cpu}, cpu),)
    )
    more.setdefault("version", "2")
    cache.set_workload(
        workload(name, [podset(count=cpu)], assignment=assignment, priority=priority, **more)
    )


def waits(cache: Cache, name: str, cpu: int, priority: int = 0, **more: Any) -> None:
    cache.set_workload(workload(name, [podset(count=cpu)], priority=priority, **more))


def preempted(decisions: list[Decision]) -> list[tuple[str, str]]:
    return [
        (found.workload.partition("/")[2], found.by.partition("/")[2])
        for found in decisions
        if isinstance(found, Preempt)
    ]


def held(decisions: list[Decision]) -> dict[str, str]:
    return {
        found.workload.partition("/")[2]: str(found.reason)
        for found in decisions
        if isinstance(found, Requeue)
    }


@pytest.mark.requirement("SLC-31")
def test_the_lowest_priority_gives_way_and_the_other_waits_for_its_quota() -> None:
    cache = world()
    runs(cache, "low", 5, 1)
    runs(cache, "middle", 5, 2)
    waits(cache, "high", 4, 3)
    preempt, hold = plan_cycle(cache)
    assert preempt == Preempt(
        "team/low",
        "team/high",
        "InClusterQueue",
        "Preempted to accommodate a workload (UID: uid-high, JobUID: job-high) due to "
        "prioritization in the ClusterQueue",
    )
    assert hold == Requeue(
        "team/high",
        "WaitingForPreemptedWorkloads",
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor "
        "plain, 4 more needed. Pending the preemption of 1 workload(s)",
    )


@pytest.mark.parametrize(
    ("policy", "priority", "created", "gives_way"),
    [
        ("Never", 0, LATER, False),
        ("LowerPriority", 0, LATER, True),
        ("LowerPriority", 1, LATER, False),
        ("LowerOrNewerEqualPriority", 0, LATER, True),
        ("LowerOrNewerEqualPriority", 1, LATEST, True),
        ("LowerOrNewerEqualPriority", 1, LATER, False),
        ("LowerOrNewerEqualPriority", 2, LATEST, False),
    ],
)
def test_only_those_that_the_policy_names_give_way(
    policy: str, priority: int, created: str, gives_way: bool
) -> None:
    cache = world(policy)
    runs(cache, "running", 10, priority, created=created)
    waits(cache, "waiting", 1, 1, created=LATER)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == ([("running", "waiting")] if gives_way else [])
    reason = "WaitingForPreemptedWorkloads" if gives_way else "WaitingForQuota"
    assert held(decisions) == {"waiting": reason}


def test_of_equal_ones_the_newest_reservation_gives_way() -> None:
    cache = world()
    runs(cache, "first", 5, reserved_at=LATER)
    runs(cache, "last", 5, reserved_at=LATEST)
    waits(cache, "high", 5, 1)
    assert preempted(plan_cycle(cache)) == [("last", "high")]


def test_who_turns_out_not_to_be_needed_is_given_back() -> None:
    cache = world()
    runs(cache, "small", 2, 1)
    runs(cache, "large", 8, 2)
    waits(cache, "high", 8, 3)
    assert preempted(plan_cycle(cache)) == [("large", "high")]


def test_no_one_gives_way_where_that_would_not_be_enough() -> None:
    cache = world()
    runs(cache, "low", 4, 1)
    runs(cache, "higher", 6, 9)
    waits(cache, "high", 5, 3)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == []
    assert held(decisions) == {"high": "WaitingForQuota"}


def test_another_flavor_with_room_comes_before_any_preemption() -> None:
    quotas = {"plain": {"cpu": "4"}, "other": {"cpu": "4"}}
    cache = world(quotas=quotas)
    runs(cache, "low", 4)
    waits(cache, "high", 4, 1)
    assert admissions(plan_cycle(cache))["high"].podsets[0].flavors == {"cpu": "other"}


def test_a_queue_that_stops_at_preemption_does_not_look_at_the_next_flavor() -> None:
    quotas = {"plain": {"cpu": "4"}, "other": {"cpu": "4"}}
    fungibility = {"whenCanPreempt": "MayStopSearch"}
    cache = world(quotas=quotas, flavorFungibility=fungibility)
    runs(cache, "low", 4)
    waits(cache, "high", 4, 1)
    assert preempted(plan_cycle(cache)) == [("low", "high")]


def test_what_is_given_up_is_kept_for_the_one_that_it_was_given_up_for() -> None:
    cache = world()
    runs(cache, "low", 10, 1)
    waits(cache, "high", 8, 3)
    waits(cache, "lower", 2, 2)
    waits(cache, "last", 1, 0)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == [("low", "high")]
    assert held(decisions) == {
        "high": "WaitingForPreemptedWorkloads",
        "lower": "WaitingForPreemptedWorkloads",
        "last": "WaitingForQuota",
    }
    last = next(d for d in decisions if isinstance(d, Requeue) and d.workload == "team/lower")
    assert "will fit after these preemptions complete" in last.message


def test_while_the_victim_stops_no_one_else_is_asked_and_nothing_is_taken() -> None:
    cache = world()
    runs(cache, "low", 6, 1, conditions=EVICTED)
    runs(cache, "other", 4, 1)
    waits(cache, "high", 6, 3)
    waits(cache, "small", 1, 0)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == []
    assert held(decisions) == {"high": "WaitingForPreemptedWorkloads", "small": "WaitingForQuota"}


def test_one_that_is_being_deleted_is_not_evicted_as_well() -> None:
    cache = world()
    cache.set_job("job-low", "team/lq")  # which is to be stopped first
    runs(cache, "low", 10, deleting=True)
    waits(cache, "high", 6, 3)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == []
    assert held(decisions) == {"high": "WaitingForPreemptedWorkloads"}


def test_when_the_quota_is_free_the_preemptor_gets_it_and_its_victim_waits() -> None:
    cache = world("LowerOrNewerEqualPriority")
    waits(cache, "old", 10, 1)
    waits(cache, "new", 10, 1, created=LATER, conditions=EVICTED)
    decisions = plan_cycle(cache)
    assert list(admissions(decisions)) == ["old"]
    runs(cache, "old", 10, 1)
    assert preempted(plan_cycle(cache)) == []
    assert held(plan_cycle(cache)) == {"new": "WaitingForQuota"}


def test_two_of_the_same_age_never_take_turns() -> None:
    cache = world("LowerOrNewerEqualPriority")
    runs(cache, "a", 10, 1)
    waits(cache, "b", 10, 1)
    assert preempted(plan_cycle(cache)) == []


def test_a_strict_queue_waits_behind_its_head_that_preempts() -> None:
    cache = world(queueingStrategy="StrictFIFO")
    runs(cache, "low", 6, 1)
    waits(cache, "high", 6, 3)
    waits(cache, "small", 1, 2)
    assert held(plan_cycle(cache)) == {
        "high": "WaitingForPreemptedWorkloads",
        "small": "PendingEvaluation",
    }


@pytest.mark.requirement("VAL-06")
def test_preemption_within_a_plain_queue_needs_no_word() -> None:
    (condition,) = cluster_queue_status_of(world(), "cq")["conditions"]
    assert condition["message"] == "Can admit new workloads"


@pytest.mark.requirement("SLC-31")
@pytest.mark.parametrize("cpu", [3, 9])
def test_a_resized_job_gives_way_with_all_its_slices_and_they_never_alone(cpu: int) -> None:
    """Also where a single slice would be enough, and has the lowest priority of all."""
    cache = world()
    runs(cache, "ray", 4, 1, elastic=True)
    runs(cache, "s1", 3, 0, parent="ray")
    runs(cache, "s2", 3, 0, parent="ray")
    waits(cache, "high", cpu, 3)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == [("ray", "high")]
    assert held(decisions) == {"high": "WaitingForPreemptedWorkloads"}


@pytest.mark.requirement("SLC-31")
def test_slices_of_a_job_that_gives_way_are_not_admitted_in_the_same_cycle() -> None:
    cache = world()
    runs(cache, "ray", 8, 1, elastic=True)
    waits(cache, "high", 4, 3)
    waits(cache, "s1", 1, 1, parent="ray")
    decisions = plan_cycle(cache, features=Features.of({"ElasticJobsViaWorkloadSlices": True}))
    assert preempted(decisions) == [("ray", "high")]
    assert held(decisions)["s1"] == "OnHold"


def test_a_slice_never_takes_the_place_of_its_own_parent() -> None:
    cache = world("LowerOrNewerEqualPriority")
    runs(cache, "ray", 10, 1, elastic=True, created=LATEST)
    waits(cache, "s1", 1, 1, parent="ray", created=LATER)
    decisions = plan_cycle(cache, features=Features.of({"ElasticJobsViaWorkloadSlices": True}))
    assert preempted(decisions) == []
    assert held(decisions) == {"s1": "WaitingForQuota"}


def test_an_admission_that_the_watch_has_not_shown_can_give_way_too() -> None:
    cache = world()
    waits(cache, "low", 10)
    (admit,) = plan_cycle(cache)
    assert isinstance(admit, Admit)
    cache.assume("team/low", admit.assignment)
    waits(cache, "high", 10, 1)
    assert preempted(plan_cycle(cache)) == [("low", "high")]


def test_what_waits_for_quota_says_so_when_asked() -> None:
    cache = world()
    runs(cache, "low", 10)
    waits(cache, "high", 10, 1)
    found = explanation_of(cache, "team/high")
    assert found is not None
    assert found.reason == "WaitingForPreemptedWorkloads"
    assert "are preempted for it" in found.summary
