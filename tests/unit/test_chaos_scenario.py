"""What the chaos suite draws, without running it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import pytest

from rackgate_invariants.rules.quota_tree import QuotaNode, Total, quota_nodes
from tests.chaos import gangs, limits
from tests.chaos.composites import AUTOSCALER_CPU, HEAD_CPU
from tests.chaos.gangs import GangAction, GangKind, GangPlan
from tests.chaos.injector import WINDOWS
from tests.chaos.job_options import UserAction
from tests.chaos.queues import (
    ANNEX,
    NO_CLASS,
    ORG,
    PRIORITIES,
    PRODUCTION,
    QUEUES,
    RESEARCH,
    Change,
    changed,
    manifest,
)
from tests.chaos.rayjobs import QUEUE as RAYJOB_QUEUE
from tests.chaos.rayjobs import cpu_used
from tests.chaos.runner import Report
from tests.chaos.scenario import LARGEST_SKEW_S, LEASE_S, Fault, Scenario, brief, draw
from tests.chaos.summary import COLUMNS, line, never_injected, never_shared, row
from tests.chaos.watcher import UNSEEN, as_drawn
from tests.support.playground import SERVICES

CPU = ("pool", "cpu")


def test_a_seed_draws_the_same_scenario_every_time() -> None:
    assert draw(5) == draw(5)
    assert draw(5) != draw(6)
    assert brief(7) == brief(7)


@pytest.mark.requirement("OPS-12")
def test_twenty_seeds_inject_every_fault_several_times() -> None:
    counts = Counter(plan.fault for seed in range(20) for plan in draw(seed).faults)
    assert set(counts) == set(Fault)
    assert min(counts.values()) >= 6


@pytest.mark.requirement("OPS-12")
def test_twenty_seeds_kill_stop_and_scale_each_service() -> None:
    plans = [plan for seed in range(20) for plan in draw(seed).faults]
    killing = {Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.KILL_ALL}
    for faults in (killing, {Fault.PAUSE}, {Fault.SCALE}):
        assert {plan.service for plan in plans if plan.fault in faults} == set(SERVICES)
    assert all(plan.seconds > LEASE_S for plan in plans if plan.fault is Fault.PAUSE)
    assert all(plan.rate == 0.1 for plan in plans if plan.fault is Fault.LOSE)
    assert all(plan.value == 2.0 for plan in plans if plan.fault is Fault.LATENCY)


def test_every_scenario_can_end() -> None:
    for seed in range(50):
        scenario = draw(seed)
        assert all(1 <= scenario.replicas[service] <= 3 for service in SERVICES)
        assert all(abs(offset) <= LARGEST_SKEW_S for offset in scenario.offsets.values())
        assert all(plan.at < scenario.seconds for plan in scenario.faults)
        for job in scenario.jobs:
            assert job.at < scenario.seconds
            assert job.user_action is UserAction.NONE or job.at < job.fate_at <= scenario.seconds
            # A Job that asks for a rack finds all hosts of one free some time.
            assert job.pods * job.cpu <= 64
        assert {job.user_action for job in scenario.jobs} >= set(UserAction) - {UserAction.NONE}


def test_all_rayjobs_of_a_scenario_run_beside_each_other() -> None:
    drawn = [draw(seed) for seed in range(50)]
    for scenario in drawn:
        assert sum(map(cpu_used, scenario.rayjobs)) <= RAYJOB_QUEUE.cpu * 1000
        for plan in scenario.rayjobs:
            assert plan.at < scenario.seconds
            assert plan.user_action is UserAction.NONE or plan.at < plan.fate_at <= scenario.seconds
    plans = [plan for scenario in drawn for plan in scenario.rayjobs]
    actions = {UserAction.NONE, UserAction.SUSPEND, UserAction.DELETE}
    assert {plan.user_action for plan in plans} == actions
    assert {plan.own_submitter for plan in plans} == {True, False}


def test_a_scenario_tells_all_its_faults_for_replay() -> None:
    lines = list(draw(3).lines())
    assert lines[0].startswith("seed 3: ")
    composites = len(draw(3).sets) + len(draw(3).elastic) + len(draw(3).rayjobs)
    queues = len(draw(3).tree) + len(draw(3).changes)
    assert len(lines) == 1 + queues + composites + len(draw(3).gangs) + len(draw(3).faults)


def test_every_scenario_has_jobsets_and_elastic_jobs_that_fit() -> None:
    for seed in range(50):
        scenario = draw(seed)
        assert scenario.sets
        assert {plan.ray for plan in scenario.elastic} == {False, True}
        for jobset in scenario.sets:
            assert (
                jobset.user_action is UserAction.NONE
                or jobset.at < jobset.fate_at <= scenario.seconds
            )
            assert jobset.replicas * jobset.pods * jobset.cpu <= 64
        for plan in scenario.elastic:
            assert plan.at < plan.sizes[0][0]
            assert list(plan.sizes) == sorted(plan.sizes, key=lambda entry: entry[0])
            assert plan.sizes[-1][0] <= scenario.seconds
        # They run until the end: a rack that others want whole is left.
        largest = [max(size for _, size in plan.sizes) * plan.cpu for plan in scenario.elastic]
        assert sum(largest) <= 64


@pytest.mark.requirement("OPS-12")
def test_every_job_fits_beside_all_elastic_jobs() -> None:
    for scenario in (*map(draw, range(50)), brief(7)):
        used: defaultdict[str, Total] = defaultdict(Counter)
        for plan in scenario.elastic:
            largest = max([plan.size, *(size for _, size in plan.sizes)])
            head = HEAD_CPU + AUTOSCALER_CPU if plan.ray else 0
            used[f"pool-{plan.queue}"][CPU] += round(1000 * (head + largest * plan.cpu))
        # What comes after an elastic job makes it give way.
        jobs = [(job.queue, job.pods * job.cpu) for job in scenario.jobs if not job.after]
        jobs += [(plan.queue, 1 + plan.replicas * plan.pods * plan.cpu) for plan in scenario.sets]
        nodes = nodes_of(scenario)
        for queue, cpu in jobs:
            used[f"pool-{queue}"][CPU] += 1000 * cpu
            over = [node.subject for node in nodes if is_over(node, used)]
            assert not over, (scenario.seed, queue, cpu)
            used[f"pool-{queue}"][CPU] -= 1000 * cpu


def nodes_of(scenario: Scenario) -> list[QuotaNode]:
    """The tree of a scenario, as the checker of invariants counts it."""
    rows = as_drawn(scenario.tree, "pool")
    queues = {f"pool-{plan.name}" for plan in scenario.tree if plan.is_queue}
    return quota_nodes(
        [row for name, row in rows.items() if name in queues],
        [row for name, row in rows.items() if name not in queues],
    )


def is_over(node: QuotaNode, used: Mapping[str, Total]) -> bool:
    limit = node.limit(CPU)
    return limit is not None and node.usage(CPU, used) > limit


def test_the_short_scenario_cannot_end_without_a_preemption() -> None:
    scenario = brief(7)
    (elastic,) = scenario.elastic
    (reclaim,) = (job for job in scenario.jobs if job.after == elastic.name)
    least = min([elastic.size, *(size for _, size in elastic.sizes)])
    used: defaultdict[str, Total] = defaultdict(Counter)
    used[f"pool-{elastic.queue}"][CPU] = 1000 * least * elastic.cpu
    used[f"pool-{reclaim.queue}"][CPU] = 1000 * reclaim.pods * reclaim.cpu
    assert [node.subject for node in nodes_of(scenario) if is_over(node, used)]


def test_quota_is_short_and_policies_differ() -> None:
    scenarios = [draw(seed) for seed in range(limits.SEEDS)]
    for scenario in scenarios:
        assert {job.queue for job in scenario.jobs} == set(QUEUES)
        requested = sum(job.pods * job.cpu for job in scenario.jobs)
        assert requested > sum(plan.cpu for plan in scenario.tree)
        (first,) = (plan.preemption for plan in scenario.tree if plan.name == PRODUCTION)
        assert first is not None
        assert (first["withinClusterQueue"], first["reclaimWithinCohort"]) == (
            "LowerPriority",
            "Any",
        )
        cohorts = {plan.name for plan in scenario.tree if not plan.is_queue}
        assert all(plan.cohort in cohorts for plan in scenario.tree if plan.is_queue)
    trees = [plan for scenario in scenarios for plan in scenario.tree]
    assert {plan.name for plan in trees} == {*QUEUES, ORG, RESEARCH, ANNEX}
    for limit in ("borrowing", "lending"):
        assert {getattr(plan, limit) is None for plan in trees if plan.is_queue} == {False, True}
    jobs = [job for scenario in scenarios for job in scenario.jobs]
    assert {job.priority for job in jobs} == {NO_CLASS, *PRIORITIES}


def test_every_other_seed_has_gangs_that_fit_beside_the_raycluster() -> None:
    for seed in range(50):
        scenario = draw(seed)
        assert bool(scenario.gangs) is (seed % 2 == 1)
        if not scenario.gangs:
            assert not any(plan.gang_per_job for plan in scenario.sets)
            continue
        assert {plan.kind for plan in scenario.gangs} == set(GangKind)
        assert {plan.action for plan in scenario.gangs} == set(GangAction)
        used = {plan.name: plan.pods * plan.cpu for plan in scenario.gangs}
        assert len(used) == len(scenario.gangs)
        kept = sum(used[plan.name] for plan in scenario.gangs if not plan.ends)
        assert max(used.values()) <= gangs.QUEUE.cpu - kept
        assert sum(used.values()) > gangs.QUEUE.cpu, "some of them wait"
        assert all(plan.at <= plan.action_at <= scenario.seconds for plan in acting(scenario))
        assert all(
            plan.indexed
            for plan in scenario.jobs
            if plan.user_action is UserAction.HOLD and plan.pods > 1
        )
    per_job = [plan.gang_per_job for seed in range(1, 20, 2) for plan in draw(seed).sets]
    assert set(per_job) == {False, True}


def acting(scenario: Scenario) -> list[GangPlan]:
    return [plan for plan in scenario.gangs if plan.action is not GangAction.NONE]


def test_every_change_is_drawn_alike_and_taken_back() -> None:
    changes = [(draw(seed), change) for seed in range(20) for change in draw(seed).changes]
    assert Counter(change.change for _, change in changes) == dict.fromkeys(Change, 10)
    for scenario, change in changes:
        (plan,) = (it for it in scenario.tree if it.name == change.name)
        assert manifest(changed(plan, change.change), "pool") != manifest(plan, "pool")
        assert change.at < scenario.seconds


def test_an_elastic_job_wants_the_size_that_was_written_last() -> None:
    plan = brief(7).elastic[0]
    assert [plan.wanted(second) for second in (0, 3, 6.9, 7, 99)] == [2, 6, 6, 3, 5]
    assert plan.last == 5
    assert plan.cpu_used == 10


@pytest.mark.requirement("OPS-12")
def test_a_run_of_twenty_seeds_begins_nothing_that_would_end_after_forty_minutes() -> None:
    allowed = limits.Allowance(begun=100.0, seeds=20)
    assert allowed.ends == 100.0 + 40 * 60
    assert allowed.scenario_s(100.0) == limits.SCENARIO_LIMIT_S
    assert allowed.scenario_s(allowed.ends - 170) == 170
    assert allowed.scenario_s(allowed.ends - 140) == 0
    assert limits.Allowance(begun=0.0, seeds=1).ends == 40 * 60
    assert limits.Allowance(begun=0.0, seeds=100).ends == 5 * 40 * 60


@pytest.mark.requirement("OPS-12")
def test_a_storm_that_met_no_request_has_struck_no_one() -> None:
    quiet, busy = Report(draw(0)), Report(draw(1))
    assert never_injected([quiet]) == [fault.value for fault in Fault]
    storms = {fault.value for fault in WINDOWS}
    for report in (quiet, busy):
        report.faults.update(fault.value for fault in Fault)
    assert set(never_injected([quiet, busy])) == storms
    busy.counts.update(kind.value for kind in WINDOWS.values())
    assert never_injected([quiet, busy]) == []


@pytest.mark.requirement("OPS-12")
def test_a_run_without_preemption_or_borrowing_shows() -> None:
    quiet, busy = Report(draw(0)), Report(draw(1))
    assert "preempted: NONE" in line(quiet)
    wanted = ["preempted InClusterQueue", "preempted InCohortReclamation", "borrowed"]
    assert never_shared([quiet]) == wanted
    busy.preemptions.update({"InClusterQueue": 2})
    assert never_shared([quiet, busy]) == wanted[1:]
    busy.preemptions.update({"InCohortReclamation": 3, UNSEEN: 1})
    busy.borrowed_cpu = 7
    assert never_shared([quiet, busy]) == []
    assert row(busy)[COLUMNS.index("preempted") :][:3] == ["6", "3", "7"]
    assert "2 InClusterQueue, 3 InCohortReclamation, 1 unseen; 7 CPU" in line(busy)
