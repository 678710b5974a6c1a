"""An explanation says which rule keeps each Workload that a pending one would need preempted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain.explanation import Explanation
from rackgate_assigner.explain.workload import explain
from rackgate_cli.explain.view import blocks
from tests.unit.assigner.builders import admit_all, cluster_queue, cohort, node, rebuild_matches
from tests.unit.assigner.test_scheduling_cycles import (
    LATER,
    STRATEGIES,
    rack_job,
    racks,
    runs,
    teams,
    waits,
)

EVICTED = {"Evicted": ("True", "Preempted", "")}
BORROWING = {
    "reclaimWithinCohort": "Any",
    "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 3},
}


def explained(cache: Cache, name: str = "mine", **more: Any) -> Explanation:
    found = explain(cache, f"team/{name}", cache.features, 5, **more)
    assert found is not None
    return found


def reasons(cache: Cache, **more: Any) -> dict[str, str]:
    found = explained(cache, **more)
    return {one.workload.partition("/")[2]: one.reason for one in found.not_preempted}


@pytest.mark.requirement("STR-07")
@pytest.mark.parametrize(
    ("policy", "holder", "reason"),
    [
        ("Never", {"priority": 0}, "withinClusterQueue"),
        ("LowerPriority", {"priority": 2}, "priority"),
        ("LowerPriority", {"priority": 3}, "priority"),
        ("LowerOrNewerEqualPriority", {"priority": 3}, "priority"),
        ("LowerOrNewerEqualPriority", {"priority": 2}, "older"),
        ("LowerPriority", {"priority": 0}, "notEnough"),
    ],
)
def test_the_rule_of_the_own_queue_is_named(
    policy: str, holder: dict[str, Any], reason: str
) -> None:
    cache = teams(4, 0, preemption={"withinClusterQueue": policy})
    runs(cache, "keeps", 1, priority=9)
    runs(cache, "other", 3, **holder)
    waits(cache, "mine", 4, priority=2, created=LATER)
    assert reasons(cache)["other"] == reason


@pytest.mark.parametrize(
    ("preemption", "holder", "reason"),
    [
        ({"reclaimWithinCohort": "Never"}, {}, "reclaimWithinCohort"),
        ({"reclaimWithinCohort": "LowerPriority"}, {"priority": 2}, "priority"),
    ],
)
def test_the_rule_of_the_cohort_is_named(
    preemption: dict[str, Any], holder: dict[str, Any], reason: str
) -> None:
    cache = teams(4, 0, 4, preemption=preemption)
    runs(cache, "own", 4, 2, priority=9)
    runs(cache, "other", 4, 1, **holder)
    waits(cache, "mine", 4, priority=2)
    assert reasons(cache)["other"] == reason


def test_each_workload_gets_its_own_rule() -> None:
    cache = teams(4, 0, 4, preemption={"reclaimWithinCohort": "Any"})
    runs(cache, "own", 2, 0, priority=9)
    runs(cache, "borrower", 2, 1)
    runs(cache, "other", 4, 2)
    waits(cache, "mine", 4, priority=2)
    assert reasons(cache) == {
        "borrower": "borrowWithinCohort",
        "other": "notBorrowing",
        "own": "withinClusterQueue",
    }


@pytest.mark.requirement("STR-07")
def test_a_queue_that_borrows_nothing_keeps_its_workloads() -> None:
    cache = teams(2, 4, preemption={"reclaimWithinCohort": "Any"})
    runs(cache, "other", 4, 1)
    waits(cache, "mine", 4)
    found = explained(cache)
    (one,) = found.not_preempted
    assert one.reason == "notBorrowing"
    assert one.text == 'its ClusterQueue "cq1" borrows none of the quota that is missing'
    assert f"team/other is not preempted: {one.text}" in found.summary


def test_a_cohort_that_borrows_nothing_keeps_its_workloads() -> None:
    """`cq1` borrows from its own Cohort, which is within its quota."""
    cache = teams(2, preemption={"reclaimWithinCohort": "Any"})
    cache.set_cohort(cohort("below", "all", {"plain": {"cpu": "4"}}))
    cache.set_cluster_queue(cluster_queue("cq1", {"plain": {"cpu": "0"}}, cohortName="below"))
    runs(cache, "other", 4, 1)
    waits(cache, "mine", 4)
    assert reasons(cache) == {"other": "notBorrowing"}
    assert 'Cohort "below"' in explained(cache).not_preempted[0].text


@pytest.mark.parametrize(
    ("preemption", "priority", "text"),
    [
        ({"reclaimWithinCohort": "Any"}, 1, "borrowWithinCohort.policy"),
        (BORROWING, 4, "above spec.preemption.borrowWithinCohort.maxPriorityThreshold 3"),
        (BORROWING, 9, "priority 9 is not lower than 5"),
    ],
)
def test_the_rule_for_a_workload_that_has_to_borrow_is_named(
    preemption: dict[str, Any], priority: int, text: str
) -> None:
    cache = teams(0, 0, 4, preemption=preemption)
    runs(cache, "other", 4, 1, priority=priority)
    waits(cache, "mine", 4, priority=5)
    (one,) = explained(cache).not_preempted
    assert one.reason == "borrowWithinCohort"
    assert text in one.text


def test_a_share_that_would_be_larger_is_named() -> None:
    cache = teams(0, 0, 8, preemption={"reclaimWithinCohort": "Any"})
    runs(cache, "mine-too", 3, 0)
    runs(cache, "other", 4, 1)
    waits(cache, "mine", 4)
    assert reasons(cache, fair_sharing=STRATEGIES) == {
        "other": "fairSharing",
        "mine-too": "withinClusterQueue",
    }


def test_the_domain_is_missing_even_without_those_that_may_be_preempted() -> None:
    """In each rack runs a Workload of a higher priority beside one of a lower."""
    cache = racks(cohortName="all")
    policy = {"withinClusterQueue": "LowerPriority"}
    cache.set_cluster_queue(cluster_queue("cq", {"tas": {"cpu": "640"}}, preemption=policy))
    for index in range(4):
        rack_job(cache, f"high{index}", 3, priority=9)
    admit_all(cache)
    for index in range(4):
        rack_job(cache, f"low{index}", 1)
    admit_all(cache)
    rack_job(cache, "mine", priority=5)
    found = explained(cache)
    by_kind = {one.workload.partition("/")[2][:-1]: one for one in found.not_preempted}
    assert sorted(by_kind) == ["high", "low"]
    assert by_kind["high"].reason == "priority"
    assert by_kind["low"].reason == "notEnough"
    assert by_kind["low"].text.endswith("the pods would not fit in a domain")


def test_a_workload_that_is_stopped_already_says_so() -> None:
    cache = teams(4, 0)
    runs(cache, "other", 4, conditions=EVICTED)
    waits(cache, "mine", 4, priority=2)
    assert reasons(cache) == {"other": "stopping"}


def test_nothing_is_listed_while_something_is_preempted() -> None:
    cache = teams(4, 0, preemption={"withinClusterQueue": "LowerPriority"})
    runs(cache, "other", 4)
    waits(cache, "mine", 4, priority=2)
    assert reasons(cache) == {}


def test_the_list_is_short_and_counts_the_others() -> None:
    cache = teams(12, 0)
    for index in range(12):
        runs(cache, f"w{index:02}", 1)
    waits(cache, "mine", 4)
    found = explained(cache)
    assert (len(found.not_preempted), found.more_not_preempted) == (5, 7)
    assert found.summary.count("not preempted") == 1
    text = repr(list(blocks(found)))
    assert "NOT PREEMPTED" in text
    assert "and 7 more" in text
    assert "moreNotPreempted" in msgspec.json.encode(found).decode()


def test_an_explanation_changes_nothing() -> None:
    cache = teams(0, 0, 8, preemption={"reclaimWithinCohort": "Any"})
    cache.set_node(node("a"))
    runs(cache, "other", 8, 1)
    waits(cache, "mine", 4)
    explained(cache, fair_sharing=STRATEGIES)
    assert rebuild_matches(cache) == []
