"""Who may pass the head of a queue: one that waits for its targets, and one that lost to another.

`plain` and `other` are flavors without topology. See ADR 47.
"""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.features import Features
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Decision, Requeue
from tests.unit.assigner import test_scheduling_cycles as shared
from tests.unit.assigner.builders import admissions, plan_cycle
from tests.unit.assigner.test_preemption import held, preempted, runs, waits, world

OTHER = {"plain": {"cpu": "10"}, "other": {"cpu": "5"}}
BEHIND = "waiting for the preemptions of workload team/high ahead"


def waiting_preemptor(**queue: Any) -> Cache:
    """A queue whose head preempts a Workload in `plain`; `other` is too small for it."""
    cache = world(quotas=OTHER, **queue)
    runs(cache, "low", 10, 2)
    waits(cache, "high", 10, 3)
    return cache


def message(decisions: list[Decision], name: str) -> str:
    (found,) = (one for one in decisions if one.workload == f"team/{name}")
    assert isinstance(found, Requeue)
    return found.message


@pytest.mark.requirement("STR-07")
def test_a_follower_of_a_waiting_preemptor_gets_room_in_another_flavor() -> None:
    cache = waiting_preemptor()
    waits(cache, "small", 3, 1)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == [("low", "high")]
    assert held(decisions) == {"high": "WaitingForPreemptedWorkloads"}
    assert admissions(decisions)["small"].podsets[0].flavors == {"cpu": "other"}


@pytest.mark.requirement("STR-07")
def test_a_follower_of_a_waiting_preemptor_preempts_nobody() -> None:
    cache = waiting_preemptor()
    runs(cache, "elsewhere", 5, flavor="other")
    waits(cache, "small", 3, 1)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == [("low", "high")]
    assert admissions(decisions) == {}
    assert held(decisions)["small"] == "PendingEvaluation"
    assert message(decisions, "small") == BEHIND
    # When the preemptor is gone, it is its turn.
    cache.drop_workload("team/high")
    assert ("elsewhere", "small") in preempted(plan_cycle(cache))


@pytest.mark.requirement("STR-07")
def test_a_follower_never_takes_the_room_that_a_preemptor_waits_for() -> None:
    cache = world()
    evicted = {"Evicted": ("True", "Preempted", "")}
    runs(cache, "low", 6, conditions=evicted)
    waits(cache, "high", 10, 3)
    waits(cache, "small", 2, 2)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == []
    assert admissions(decisions) == {}
    assert held(decisions)["high"] == "WaitingForPreemptedWorkloads"
    cache.drop_workload("team/low")
    assert list(admissions(plan_cycle(cache))) == ["high"]


@pytest.mark.parametrize(
    ("strategy", "sticky"), [("BestEffortFIFO", False), ("StrictFIFO", True), ("StrictFIFO", False)]
)
def test_a_follower_waits_where_the_queue_is_strict_or_nobody_is_sticky(
    strategy: str, sticky: bool
) -> None:
    cache = waiting_preemptor(queueingStrategy=strategy)
    waits(cache, "small", 3, 1)
    decisions = plan_cycle(cache, features=Features.of({"RackgateStickyPreemptors": sticky}))
    assert preempted(decisions) == [("low", "high")]
    assert admissions(decisions) == {}
    strict = "StrictFIFO " if strategy == "StrictFIFO" else ""
    expected = f"waiting for the workloads ahead in {strict}ClusterQueue cq"
    assert message(decisions, "small") == expected


@pytest.mark.parametrize("strategy", ["BestEffortFIFO", "StrictFIFO"])
def test_a_head_that_lost_to_another_one_holds_up_a_strict_queue_alone(strategy: str) -> None:
    preemption = {"reclaimWithinCohort": "Any"}
    cache = shared.teams(8, 2, preemption=preemption, queueingStrategy=strategy)
    shared.runs(cache, "borrower", 6, 1)
    shared.waits(cache, "owner", 8)
    # It fits now, and not beside the owner, in this cycle and in all that follow.
    shared.waits(cache, "lost", 3, 1, priority=2)
    shared.waits(cache, "small", 2, 1, priority=1)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == [("borrower", "owner")]
    assert held(decisions)["lost"] == "WaitingForQuota"
    assert message(decisions, "lost") == (
        "Workload no longer fits after processing another workload"
    )
    assert list(admissions(decisions)) == (["small"] if strategy == "BestEffortFIFO" else [])
