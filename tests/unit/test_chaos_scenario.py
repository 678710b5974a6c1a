"""What the chaos suite draws, without running it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos import limits
from tests.chaos.injector import WINDOWS
from tests.chaos.job_options import UserAction
from tests.chaos.runner import Report
from tests.chaos.scenario import LARGEST_SKEW_S, LEASE_S, Fault, brief, draw
from tests.chaos.summary import never_injected
from tests.support.playground import SERVICES


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


def test_a_scenario_tells_all_its_faults_for_replay() -> None:
    lines = list(draw(3).lines())
    assert lines[0].startswith("seed 3: ")
    composites = len(draw(3).sets) + len(draw(3).elastic)
    assert len(lines) == 1 + composites + len(draw(3).faults)


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
