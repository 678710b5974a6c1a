"""What the chaos suite draws, without running it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.fates import Fate
from tests.chaos.scenario import LARGEST_SKEW_S, Fault, brief, draw
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


def test_every_scenario_can_end() -> None:
    for seed in range(50):
        scenario = draw(seed)
        assert all(1 <= scenario.replicas[service] <= 3 for service in SERVICES)
        assert all(abs(offset) <= LARGEST_SKEW_S for offset in scenario.offsets.values())
        assert all(plan.at < scenario.seconds for plan in scenario.faults)
        for job in scenario.jobs:
            assert job.at < scenario.seconds
            assert job.fate is Fate.NONE or job.at < job.fate_at <= scenario.seconds
            # A Job that asks for a rack finds all hosts of one free some time.
            assert job.pods * job.cpu <= 64
        assert {job.fate for job in scenario.jobs} >= set(Fate) - {Fate.NONE}


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
            assert jobset.fate is Fate.NONE or jobset.at < jobset.fate_at <= scenario.seconds
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
