"""ClusterQueues in Cohorts, and those that preempt for domains: what one plan decides of them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from rackgate.api import names
from rackgate.api.names import EvictionReason, PreemptedReason
from rackgate.features import Features
from rackgate.wire.kueue import EvictionCount, SchedulingStats
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.workload.decisions import (
    Assignment,
    Decision,
    PodSetAssignment,
    Preempt,
    Requeue,
)
from tests.unit.assigner.builders import (
    RACK,
    admissions,
    admit_all,
    cache_with,
    cluster_queue,
    cohort,
    domains,
    explanation_of,
    flavor,
    fx_a,
    local_queue,
    plan_cycle,
    podset,
    workload,
)
from tests.unit.assigner.test_activity import check
from tests.unit.assigner.test_preemption import held, preempted

LATER = "2026-08-01T13:00:00Z"
RECLAIM = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
STRATEGIES = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")


def teams(*quotas: int, preemption: Any = None, **queue: Any) -> Cache:
    """Queues `cq0`, `cq1` ... in Cohort `all`, each with quota in flavor `plain`."""
    cache = cache_with()
    cache.set_flavor(flavor("plain", None, {}))
    for index, quota in enumerate(quotas):
        found = {"plain": {"cpu": str(quota)}}
        spec = {"cohortName": "all", "preemption": preemption, **queue}
        cache.set_cluster_queue(cluster_queue(f"cq{index}", found, **spec))
        cache.set_local_queue(local_queue(f"lq{index}", f"cq{index}"))
    return cache


def waits(cache: Cache, name: str, cpu: int, queue: int = 0, **more: Any) -> None:
    podsets = more.pop("podsets", [podset(count=cpu)])
    cache.set_workload(workload(name, podsets, queue=f"lq{queue}", **more))


def runs(cache: Cache, name: str, cpu: int, queue: int = 0, **more: Any) -> None:
    part = PodSetAssignment("main", {"cpu": "plain"}, {"cpu": 1000 * cpu}, cpu)
    more.setdefault("version", "2")
    assignment = Assignment(f"cq{queue}", (part,))
    waits(cache, name, cpu, queue, assignment=assignment, **more)


def causes(decisions: list[Decision]) -> dict[str, str]:
    return {
        found.workload.partition("/")[2]: found.cause
        for found in decisions
        if isinstance(found, Preempt)
    }


@pytest.mark.requirement("STR-07")
def test_a_queue_borrows_what_the_others_of_its_cohort_do_not_use() -> None:
    cache = teams(4, 4)
    waits(cache, "first", 6)
    waits(cache, "second", 3)
    decisions = plan_cycle(cache)
    assert list(admissions(decisions)) == ["first"]
    assert held(decisions) == {"second": "WaitingForQuota"}


def test_what_was_admitted_in_a_plan_is_not_given_twice() -> None:
    cache = teams(4, 4)
    for index in range(5):
        waits(cache, f"w{index}", 2, index % 2)
    assert len(admissions(plan_cycle(cache))) == 4


@pytest.mark.requirement("STR-07")
def test_a_queue_reclaims_its_quota_from_the_one_that_borrowed_it() -> None:
    cache = teams(4, 4, preemption=RECLAIM)
    runs(cache, "own", 4, 1)
    runs(cache, "borrower", 3, 1)
    waits(cache, "mine", 4)
    decisions = plan_cycle(cache)
    assert causes(decisions) == {"borrower": PreemptedReason.IN_COHORT_RECLAMATION}
    (preempt,) = (found for found in decisions if isinstance(found, Preempt))
    assert preempt.message == (
        "Preempted to accommodate a workload (UID: uid-mine, JobUID: job-mine) due to reclamation "
        "within the cohort"
    )
    assert held(decisions) == {"mine": "WaitingForPreemptedWorkloads"}


def test_no_one_else_gets_what_a_head_waits_for() -> None:
    cache = teams(4, 4, preemption={"reclaimWithinCohort": "Any"})
    runs(cache, "own", 4, 1)
    runs(cache, "borrower", 4, 1, conditions={"Evicted": ("True", "Preempted", "")})
    waits(cache, "mine", 4)
    waits(cache, "other", 1, 1, priority=9)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == []
    assert held(decisions)["mine"] == "WaitingForPreemptedWorkloads"
    assert admissions(decisions) == {}


def test_a_queue_that_never_reclaims_waits() -> None:
    cache = teams(4, 4)
    runs(cache, "borrower", 8, 1)
    waits(cache, "mine", 1)
    assert held(plan_cycle(cache)) == {"mine": "WaitingForQuota"}


def test_a_cohort_has_quota_of_its_own_and_a_parent_that_lends() -> None:
    cache = teams(1, 1)
    cache.set_cohort(cohort("all", "org", {"plain": {"cpu": "2"}}))
    waits(cache, "some", 4)
    assert admissions(plan_cycle(cache)) != {}
    waits(cache, "many", 5)
    cache.drop_workload("team/some")
    assert held(plan_cycle(cache)) == {"many": "ExceedsMaxQuota"}
    cache.set_cohort(cohort("org", None, {"plain": {"cpu": "1"}}))
    assert list(admissions(plan_cycle(cache))) == ["many"]


@pytest.mark.parametrize("strategy", ["BestEffortFIFO", "StrictFIFO"])
def test_the_strategy_says_who_may_pass_a_head_that_does_not_fit(strategy: str) -> None:
    cache = teams(4, 4, queueingStrategy=strategy)
    runs(cache, "other", 6, 1)
    waits(cache, "big", 4, priority=1)
    waits(cache, "small", 2)
    decisions = plan_cycle(cache)
    if strategy == "BestEffortFIFO":
        assert list(admissions(decisions)) == ["small"]
    else:
        assert admissions(decisions) == {}
        (behind,) = (one for one in decisions if one.workload == "team/small")
        assert isinstance(behind, Requeue)
        assert behind.message == "waiting for the workloads ahead in StrictFIFO ClusterQueue cq0"


def test_a_head_that_can_never_fit_blocks_no_strict_queue() -> None:
    cache = teams(4, 4, queueingStrategy="StrictFIFO")
    waits(cache, "never", 9, priority=1)
    waits(cache, "small", 2)
    decisions = plan_cycle(cache)
    assert list(admissions(decisions)) == ["small"]
    assert held(decisions) == {"never": "ExceedsMaxQuota"}


def test_those_of_one_shape_wait_for_one_reason() -> None:
    cache = teams(4, 4)
    runs(cache, "other", 8, 1)
    for index in range(5):
        waits(cache, f"w{index}", 2)
    found = {(one.reason, one.message) for one in plan_cycle(cache) if isinstance(one, Requeue)}
    assert len(found) == 1


def test_a_workload_is_admitted_with_fewer_pods_in_a_cohort_too() -> None:
    cache = teams(4, 4)
    runs(cache, "other", 3, 1)
    waits(cache, "some", 8, podsets=[{**podset(count=8), "minCount": 2}])
    assert admissions(plan_cycle(cache))["some"].podsets[0].count == 5


@pytest.mark.requirement("STR-07")
def test_fair_sharing_preempts_until_the_shares_are_even() -> None:
    cache = teams(0, 0, 6, preemption=RECLAIM)
    for index in range(3):
        runs(cache, f"greedy{index}", 2, 1, reserved_at=f"2026-08-01T12:00:0{index}Z")
    waits(cache, "poor", 2)
    decisions = plan(cache.snapshot(), cache.features, fair_sharing=STRATEGIES)
    assert causes(decisions) == {"greedy2": PreemptedReason.IN_COHORT_FAIR_SHARING}
    assert causes(plan_cycle(cache)) == {}


@pytest.mark.requirement("STR-07")
@pytest.mark.parametrize(
    ("before", "expected"),
    [((), ["greedy1"]), (("greedy1",), ["greedy0"]), (("greedy0", "greedy1"), [])],
)
def test_who_was_preempted_before_is_not_preempted_for_an_equal_share(
    before: tuple[str, ...], expected: list[str]
) -> None:
    cache = teams(0, 0, 4, preemption=RECLAIM)
    for index in range(2):
        runs(cache, f"greedy{index}", 2, 1, reserved_at=f"2026-08-01T12:00:0{index}Z")
    for name in before:
        preempt_before(cache, name)
    waits(cache, "poor", 2)
    decisions = plan(cache.snapshot(), cache.features, fair_sharing=STRATEGIES)
    assert list(causes(decisions)) == expected
    as_kueue = Features.of({"RackgateNoMutualPreemption": False})
    decisions = plan(cache.snapshot(), as_kueue, fair_sharing=STRATEGIES)
    assert list(causes(decisions)) == ["greedy1"]


def preempt_before(cache: Cache, name: str) -> None:
    """An earlier admission of a Workload that runs in `cq1` ended with a preemption."""
    part = PodSetAssignment("main", {"cpu": "plain"}, {"cpu": 2000}, 2)
    info = cache.workloads[f"team/{name}"]
    found = workload(
        name,
        [podset(count=2)],
        queue="lq1",
        version="3",
        assignment=Assignment("cq1", (part,)),
        reserved_at=info.reserved_at,
    )
    counts = (EvictionCount(EvictionReason.PREEMPTED, "InCohortFairSharing", 1),)
    status = replace_struct(found.status, scheduling_stats=SchedulingStats(counts))
    cache.set_workload(replace_struct(found, status=status))


@pytest.mark.requirement("STR-07")
@pytest.mark.parametrize("policy", ["Any", "LowerPriority", "Never"])
@pytest.mark.parametrize("gate", [True, False])
def test_no_share_lets_preempt_a_workload_that_could_reclaim_its_quota_at_once(
    gate: bool, policy: str
) -> None:
    cache = teams(0, 2, 4, preemption=RECLAIM)
    light = cluster_queue(
        "cq0",
        {"plain": {"cpu": "0"}},
        cohortName="all",
        preemption=RECLAIM,
        fairSharing={"weight": "100"},
    )
    cache.set_cluster_queue(light)
    within = {"reclaimWithinCohort": policy}
    quota = {"plain": {"cpu": "2"}}
    cache.set_cluster_queue(cluster_queue("cq1", quota, cohortName="all", preemption=within))
    runs(cache, "large", 4, 1, reserved_at="2026-08-01T12:00:00Z")
    runs(cache, "small", 2, 1, reserved_at="2026-08-01T12:00:01Z")
    waits(cache, "poor", 5)
    features = Features.of({"RackgateNoMutualPreemption": gate})
    decisions = plan(cache.snapshot(), features, fair_sharing=STRATEGIES)
    # Without `large`, `small` is within the nominal quota of its queue.
    returns = gate and policy == "Any"
    assert sorted(causes(decisions)) == ([] if returns else ["large", "small"])


# With admission checks.

WAITS = {"Admitted": ("False", "UnsatisfiedAdmissionChecks", "")}


def checks_of(cache: Cache, name: str = "budget", controller: str = "example.com/budget") -> Any:
    """A queue's strategy with one active check."""
    cache.set_admission_check(check(name, controller, active=True))
    return {"admissionChecks": [{"name": name}]}


def test_a_queue_with_checks_reserves_quota_of_its_cohort() -> None:
    cache = teams(4, 4)
    spec: dict[str, Any] = {"cohortName": "all", "admissionChecksStrategy": checks_of(cache)}
    cache.set_cluster_queue(cluster_queue("cq0", {"plain": {"cpu": "4"}}, **spec))
    waits(cache, "first", 6)
    waits(cache, "second", 3)
    decisions = plan_cycle(cache)
    found = admissions(decisions)
    assert list(found) == ["first"]
    assert found["first"].checks == ("budget",)
    assert held(decisions) == {"second": "WaitingForQuota"}
    runs(cache, "first", 6, conditions=WAITS)
    cache.drop_workload("team/second")
    waits(cache, "other", 3, 1)
    assert held(plan_cycle(cache)) == {"other": "WaitingForQuota"}, "reserved quota is in use"


def test_a_check_that_applies_to_other_flavors_delays_nothing() -> None:
    cache = teams(4)
    strategy = {"admissionChecks": [{"name": "budget", "onFlavors": ["other"]}]}
    checks_of(cache)
    spec: dict[str, Any] = {"cohortName": "all", "admissionChecksStrategy": strategy}
    cache.set_cluster_queue(cluster_queue("cq0", {"plain": {"cpu": "4"}}, **spec))
    waits(cache, "some", 4)
    assert admissions(plan_cycle(cache))["some"].checks == ()


def test_a_workload_that_waits_for_its_checks_can_be_preempted() -> None:
    cache = teams(4, 4, preemption=RECLAIM)
    runs(cache, "own", 4, 1)
    runs(cache, "borrower", 3, 1, conditions=WAITS)
    waits(cache, "mine", 4)
    assert causes(plan_cycle(cache)) == {"borrower": PreemptedReason.IN_COHORT_RECLAMATION}


# With topology.


def racks(**queue: Any) -> Cache:
    """FX-A: four racks of two nodes with 8 cpu each; quota for all of them."""
    spec: dict[str, Any] = {"preemption": {"withinClusterQueue": "LowerPriority"}, **queue}
    return cache_with(fx_a(), queue=cluster_queue("cq", {"tas": {"cpu": "64"}}, **spec))


def rack_job(cache: Cache, name: str, count: int = 4, priority: int = 0, **more: Any) -> None:
    podsets = [podset(count=count, requests={"cpu": "4"}, topology={"required": RACK})]
    cache.set_workload(workload(name, podsets, priority=priority, **more))


def filled(**queue: Any) -> tuple[Cache, dict[str, str]]:
    """A job of each priority in each rack; the rack of each."""
    cache = racks(**queue)
    for index in range(4):
        rack_job(cache, f"low{index}", priority=index)
    found = admit_all(cache)
    where = {name: next(iter(domains(one))).rpartition("-")[0] for name, one in found.items()}
    assert len(set(where.values())) == 4
    return cache, where


@pytest.mark.requirement("STR-07")
def test_a_rack_is_freed_by_the_least_important_job_that_fills_it() -> None:
    cache, _ = filled()
    rack_job(cache, "high", priority=9)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == [("low0", "high")]
    assert held(decisions) == {"high": "WaitingForPreemptedWorkloads"}


def test_the_rack_that_was_freed_is_kept_for_the_one_that_freed_it() -> None:
    cache, where = filled()
    rack_job(cache, "high", priority=9)
    evicted = {"Evicted": ("True", "Preempted", "")}
    given = cache.assumed["team/low0"].value
    rack_job(cache, "low0", assignment=given, conditions=evicted, version="9")
    rack_job(cache, "small", 1, priority=8)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == []
    assert admissions(decisions) == {}
    cache.drop_workload("team/low0")
    found = admissions(plan_cycle(cache))
    assert {host.rpartition("-")[0] for host in domains(found["high"])} == {where["low0"]}


def test_no_one_is_preempted_if_the_preemptor_would_still_not_fit() -> None:
    cache, _ = filled()
    rack_job(cache, "huge", 5, priority=9)
    assert preempted(plan_cycle(cache)) == []


def test_no_one_is_preempted_for_room_on_nodes_that_are_cordoned() -> None:
    cache, where = filled()
    for node in list(cache.nodes.values()):
        if node.name.startswith(where["low0"]):
            cache.put_node(type(node)(node.name, node.labels, node.allocatable, unschedulable=True))
    rack_job(cache, "high", priority=9)
    assert [target for target, _ in preempted(plan_cycle(cache))] == ["low1"]


def test_quota_is_reserved_without_domains_before_the_checks() -> None:
    cache = racks(cohortName="all")
    strategy = checks_of(cache)
    cache.set_cluster_queue(
        cluster_queue(
            "cq", {"tas": {"cpu": "64"}}, cohortName="all", admissionChecksStrategy=strategy
        )
    )
    for name in [node.name for node in cache.nodes.values()][2:]:
        cache.drop_node(name)
    for name in ("a", "b"):
        rack_job(cache, name)
    rack_job(cache, "large", 5)
    decisions = plan_cycle(cache)
    found = admissions(decisions)
    assert sorted(found) == ["a", "b"], "the one rack is free for both until the checks are Ready"
    for one in found.values():
        (part,) = one.podsets
        assert (one.checks, part.delayed, part.topology) == (("budget",), "Pending", None)
    assert held(decisions) == {"large": "TopologyPlacementFailed"}
    admit_all(cache)
    assert [cache.usages[f"team/{name}"].charges for name in found] == [(), ()]
    used = cache.quota_usage().tree.queues["cq"].usage
    assert list(used.values()) == [32_000]


def test_heads_of_two_queues_may_reserve_for_the_same_domains() -> None:
    cache = racks()
    spec: dict[str, Any] = {"cohortName": "all", "admissionChecksStrategy": checks_of(cache)}
    for queue in ("cq", "cq1"):
        cache.set_cluster_queue(cluster_queue(queue, {"tas": {"cpu": "32"}}, **spec))
    cache.set_local_queue(local_queue("lq1", "cq1"))
    for name in [node.name for node in cache.nodes.values()][2:]:
        cache.drop_node(name)
    rack_job(cache, "a")
    rack_job(cache, "b", queue="lq1")
    assert sorted(admissions(plan_cycle(cache))) == ["a", "b"]


def test_one_with_checks_that_waits_for_its_targets_holds_quota_and_no_domains() -> None:
    cache, _ = filled(cohortName="all")
    policy = {"withinClusterQueue": "LowerPriority"}
    strategy = checks_of(cache)
    spec: dict[str, Any] = {
        "cohortName": "all",
        "preemption": policy,
        "admissionChecksStrategy": strategy,
    }
    cache.set_cluster_queue(cluster_queue("cq", {"tas": {"cpu": "80"}}, **spec))
    rack_job(cache, "high", priority=9)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == [("low0", "high")]
    assert held(decisions) == {"high": "WaitingForPreemptedWorkloads"}


def test_nodes_that_a_check_provides_need_not_exist_before() -> None:
    cache = racks()
    strategy = checks_of(cache, "nodes", names.PROVISIONING_CONTROLLER)
    spec: dict[str, Any] = {"cohortName": "all", "admissionChecksStrategy": strategy}
    cache.set_cluster_queue(cluster_queue("cq", {"tas": {"cpu": "64"}}, **spec))
    rack_job(cache, "large", 5)
    lifted = Features.of({"TASWithProvisioningRequest": True})
    found = admissions(plan_cycle(cache, features=lifted))["large"]
    assert (found.checks, found.podsets[0].delayed) == (("nodes",), "Pending")


def test_two_jobs_of_one_priority_never_preempt_each_other_in_turn() -> None:
    cache = racks(preemption={"withinClusterQueue": "LowerOrNewerEqualPriority"})
    for index in range(5):
        rack_job(cache, f"w{index}", created=f"2026-08-01T12:00:0{index}Z")
    admit_all(cache)
    assert preempted(plan_cycle(cache)) == []


@pytest.mark.requirement("SLC-31")
def test_a_resized_job_in_a_cohort_is_preempted_with_all_its_slices() -> None:
    cache = teams(4, 8, preemption=RECLAIM)
    runs(cache, "ray", 6, 1, elastic=True)
    runs(cache, "s1", 3, 1, parent="ray")
    runs(cache, "s2", 3, 1, parent="ray")
    waits(cache, "mine", 4)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == [("ray", "mine")]


def test_a_slice_borrows_what_is_free_and_preempts_no_one() -> None:
    features = {"ElasticJobsViaWorkloadSlices": True}
    cache = cache_with(features=features)
    cache.set_flavor(flavor("plain", None, {}))
    for index, quota in enumerate((4, 4)):
        spec: dict[str, Any] = {"cohortName": "all", "preemption": RECLAIM}
        queue = cluster_queue(f"cq{index}", {"plain": {"cpu": str(quota)}}, **spec)
        cache.set_cluster_queue(queue)
        cache.set_local_queue(local_queue(f"lq{index}", f"cq{index}"))
    runs(cache, "ray", 4, elastic=True)
    runs(cache, "other", 2, 1)
    cache.set_workload(workload("s1", [podset(count=2)], queue="lq0", parent="ray"))
    cache.set_workload(workload("s2", [podset(count=1)], queue="lq0", parent="ray", created=LATER))
    decisions = plan_cycle(cache)
    assert list(admissions(decisions)) == ["s1"]
    assert preempted(decisions) == []
    assert held(decisions) == {"s2": "WaitingForQuota"}


def test_a_plan_that_fails_for_one_workload_says_so_and_decides_the_others() -> None:
    cache = teams(4, 4)
    waits(cache, "lost", 1, podsets=[podset(requests={"unknown.io/gpu": "1"})])
    waits(cache, "fine", 1, 1)
    decisions = plan_cycle(cache)
    assert list(admissions(decisions)) == ["fine"]
    assert held(decisions) == {"lost": "NoMatchingFlavor"}


def test_an_explanation_counts_what_can_be_borrowed_and_names_who_uses_it() -> None:
    cache = teams(4, 4)
    runs(cache, "other", 5, 1)
    waits(cache, "some", 4)
    found = explanation_of(cache, "team/some")
    assert found is not None
    (line,) = found.quota
    assert (line.nominal, line.used, line.available, line.missing) == ("4", "0", "3", "1")
    assert not line.never
    assert [holder.name for holder in line.holders] == ["team/other"]
    waits(cache, "huge", 9)
    huge = explanation_of(cache, "team/huge")
    assert huge is not None
    assert huge.quota[0].never


@pytest.mark.parametrize("sticky", [True, False])
def test_a_preemptor_gets_what_was_freed_for_it_before_its_victim(sticky: bool) -> None:
    """The victim would have the smaller share."""
    cache = teams(0, 0, 4)
    runs(cache, "held", 2)
    reserved = {"QuotaReserved": ("False", "WaitingForPreemptedWorkloads", "")}
    waits(cache, "preemptor", 2, conditions=reserved)
    waits(cache, "victim", 2, 1)
    features = Features.of({"RackgateStickyPreemptors": sticky})
    decisions = plan(cache.snapshot(), features, fair_sharing=STRATEGIES)
    assert list(admissions(decisions)) == ["preemptor" if sticky else "victim"]


def test_what_a_plan_would_admit_and_then_preempt_waits_instead() -> None:
    cache = teams(8, 2, preemption=RECLAIM)
    waits(cache, "impossible", 20, priority=9)
    waits(cache, "owner", 8)
    waits(cache, "borrower", 6, 1)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == []
    assert list(admissions(decisions)) == ["owner"]
    assert held(decisions) == {"impossible": "ExceedsMaxQuota", "borrower": "WaitingForQuota"}


def test_a_slice_gets_nothing_while_more_is_in_use_than_there_is() -> None:
    cache = cache_with(features={"ElasticJobsViaWorkloadSlices": True})
    cache.set_flavor(flavor("plain", None, {}))
    queue = cluster_queue("cq0", {"plain": {"cpu": "4"}}, cohortName="all")
    cache.set_cluster_queue(queue)
    cache.set_local_queue(local_queue("lq0", "cq0"))
    runs(cache, "ray", 4, elastic=True)
    runs(cache, "other", 2)
    cache.set_workload(workload("s1", [podset(count=1)], queue="lq0", parent="ray"))
    decisions = plan_cycle(cache)
    assert admissions(decisions) == {}


@pytest.mark.parametrize("cpu", [3, 30])
def test_a_slice_that_can_never_fit_blocks_no_strict_queue(cpu: int) -> None:
    cache = cache_with(features={"ElasticJobsViaWorkloadSlices": True})
    cache.set_flavor(flavor("plain", None, {}))
    spec: dict[str, Any] = {"cohortName": "all", "queueingStrategy": "StrictFIFO"}
    cache.set_cluster_queue(cluster_queue("cq0", {"plain": {"cpu": "6"}}, **spec))
    cache.set_local_queue(local_queue("lq0", "cq0"))
    runs(cache, "ray", 2, elastic=True)
    runs(cache, "other", 3)
    sliced = [podset(requests={"cpu": str(cpu)})]
    runs(cache, "big", 0, elastic=True, podsets=[podset(count=0, requests={"cpu": str(cpu)})])
    cache.set_workload(workload("s1", sliced, queue="lq0", parent="big", priority=9))
    waits(cache, "small", 1)
    assert bool(admissions(plan_cycle(cache))) == (cpu == 30)
