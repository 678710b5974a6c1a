"""Backfill never delays the head of a StrictFIFO queue: drawn states and histories."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import inf
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota_scenario.format import QuotaScenario
from rackgate_assigner.quota_scenario.scenario import PendingQueues, build_state
from rackgate_assigner.scheduler.backfill import expected_start
from rackgate_assigner.scheduler.nomination.nominate_head import is_good, nominate_head
from rackgate_assigner.scheduler.nomination.nomination import PendingWorkload
from tests.property.test_quota_cycle import free_of, usage_of
from tests.support.backfill_history import History, Run, start

RACK = "rack"
REQUESTS = ({"required": "rack"}, {"preferred": "rack"}, {"unconstrained": True})
LIMITS = (60, 300, 600, 900, 1200, 3600)


def node(index: int) -> dict[str, Any]:
    labels = {"rack": f"r{index // 2}", "kubernetes.io/hostname": f"n{index}"}
    return {"name": f"n{index}", "labels": labels, "allocatable": {"cpu": "4", "pods": "110"}}


@st.composite
def worlds(draw: st.DrawFn, *, monotone: bool = False) -> tuple[QuotaScenario, list[Run]]:
    """A StrictFIFO queue `q`, another one `o` that shares its quota, and Workloads of both.

    Those of `o` arrive first. With `monotone` more free capacity never keeps a head from starting.
    """
    topology = draw(st.booleans())
    flavors = 1 if topology and monotone else draw(st.integers(1, 2))
    names = [f"f{index}" for index in range(flavors)]
    workloads, limits = [], []
    late = draw(st.integers(3, 14))  # younger ones arrive when others run
    for index in range(draw(st.integers(3, 14))):
        count = 1 if monotone else draw(st.sampled_from([1, 1, 2]))
        podsets = [_podset(draw, f"p{number}", topology, monotone) for number in range(count)]
        workloads.append(
            {
                "namespace": "ns",
                "name": f"w{index:02}",
                "queue": "o" if index < 3 and draw(st.booleans()) else "q",
                "created": index,
                "podSets": podsets,
            }
        )
        limits.append(draw(st.sampled_from([*LIMITS, None])))
    document = {
        "id": "drawn",
        "flavors": [{"name": name, **({"topology": "t"} if topology else {})} for name in names],
        "topologies": [{"name": "t", "levels": ["rack", "kubernetes.io/hostname"]}],
        "nodes": [node(index) for index in range(4)],
        "clusterQueues": [
            {
                "name": name,
                "cohort": "c",
                "queueingStrategy": "StrictFIFO" if name == "q" else "BestEffortFIFO",
                "resourceGroups": [
                    {
                        "resources": ["cpu"],
                        "flavors": [
                            {
                                "name": flavor,
                                "quotas": {"cpu": {"nominal": str(draw(st.integers(2, 8)))}},
                            }
                            for flavor in names
                        ],
                    }
                ],
            }
            for name in ("q", "o")
        ],
        "localQueues": [
            {"namespace": "ns", "name": name, "clusterQueue": name} for name in ("q", "o")
        ],
        "workloads": workloads,
    }
    scenario = QuotaScenario.model_validate_json(json.dumps(document))
    state = build_state(scenario)
    waiting = {one.key: one for one in PendingQueues(scenario, state).waiting()}
    runs = []
    for index, (workload, limit) in enumerate(zip(workloads, limits, strict=True)):
        lasts_s = inf if limit is None else float(limit)
        arrives = 0.0 if workload["queue"] == "o" else 1.0 if index < late else 200.0
        pending = waiting[f"ns/{workload['name']}"]
        runs.append(Run(pending, lasts_s, lasts_s, arrives))
    return scenario, runs


def _podset(draw: st.DrawFn, name: str, topology: bool, monotone: bool) -> dict[str, Any]:
    count = draw(st.integers(1, 4))
    found: dict[str, Any] = {
        "name": name,
        "count": count,
        "requests": {"cpu": str(draw(st.integers(1, 3)))},
    }
    if not monotone and count > 1 and draw(st.booleans()):
        found["minCount"] = 1
    if topology:
        found["topologyRequest"] = draw(st.sampled_from(REQUESTS))
    return found


def without_competitors(scenario: QuotaScenario, runs: Iterable[Run]) -> list[Run]:
    """Without those of `o` that would compete with the head while it does not fit."""
    history = History(build_state(scenario), with_backfill=False)
    own = [run for run in runs if run.workload.cluster_queue == "o"]
    history.run(Run(run.workload, run.lasts_s, inf) for run in own)
    return [
        run
        for run in runs
        if run.workload.cluster_queue == "q" or run.workload.key in history.admitted
    ]


def both(scenario: QuotaScenario, runs: list[Run]) -> tuple[History, History]:
    histories = tuple(History(build_state(scenario), with_backfill=flag) for flag in (True, False))
    for history in histories:
        history.run(runs)
    return histories[0], histories[1]


def first_head(history: History) -> str:
    """The first Workload that others were behind."""
    assume(history.expected)
    return next(iter(history.expected))


@given(worlds())
def test_no_head_starts_later_with_backfill_than_without(
    world: tuple[QuotaScenario, list[Run]],
) -> None:
    scenario, runs = world
    filled, plain = both(scenario, without_competitors(scenario, runs))
    head = first_head(plain)
    assert next(iter(filled.expected)) == head
    assert filled.admitted.get(head, inf) <= plain.admitted.get(head, inf)


@given(worlds(monotone=True), st.data())
def test_every_head_starts_by_each_expected_start_also_if_workloads_end_early(
    world: tuple[QuotaScenario, list[Run]], data: st.DataObject
) -> None:
    scenario, runs = world
    early = [_ended_early(run, data.draw(st.sampled_from([0.1, 0.5, 0.9, 1.0]))) for run in runs]
    filled, _ = both(scenario, without_competitors(scenario, early))
    for head, found in filled.expected.items():
        times = [start.at for _, start in found if start is not None]
        assert times == sorted(times, reverse=True)
        for at in times:
            assert filled.admitted[head] <= at


def _ended_early(run: Run, share: float) -> Run:
    takes_s = inf if run.lasts_s == inf else run.lasts_s * share
    return Run(run.workload, run.lasts_s, takes_s, run.arrives)


@given(worlds(), st.data())
def test_nothing_is_admitted_ahead_of_a_head_without_an_expected_start(
    world: tuple[QuotaScenario, list[Run]], data: st.DataObject
) -> None:
    scenario, runs = world
    endless = [Run(run.workload, inf, run.lasts_s, run.arrives) for run in runs]
    filled, plain = both(scenario, endless)
    assert filled.backfilled == set()
    assert filled.admitted == plain.admitted


@st.composite
def blocked(draw: st.DrawFn, *, monotone: bool = False) -> tuple[QuotaScenario, list[Run], Run]:
    """Workloads that hold quota, and one more of `q` that does not fit."""
    scenario, runs = draw(worlds(monotone=monotone))
    state = build_state(scenario)
    admitted: list[Run] = []
    for run in runs:
        found = nominate_head(state, run.workload)
        if not is_good(found):
            assume(run.workload.cluster_queue == "q" and admitted)
            return scenario, admitted, run
        start(state, run, found.assignment(run.workload.cluster_queue), 0.0)
        admitted.append(run)
    assume(False)
    raise AssertionError


def state_of(scenario: QuotaScenario, runs: list[Run], since: float = 0.0) -> QuotaState:
    """The state after these were admitted in their order, without those that end until `since`."""
    state = build_state(scenario)
    for run in runs:
        found = nominate_head(state, run.workload)
        start(state, run, found.assignment(run.workload.cluster_queue), 0.0)
    for run in runs:
        if run.lasts_s <= since:
            state.remove(run.workload.key)
    return state


def slow_start(scenario: QuotaScenario, runs: list[Run], head: PendingWorkload) -> float | None:
    """The first end after which the head starts, in a state of its own for each of them."""
    for end in sorted({run.lasts_s for run in runs} - {inf}):
        if is_good(nominate_head(state_of(scenario, runs, end), head)):
            return end
    return None


@given(blocked())
def test_the_expected_start_is_that_of_a_slow_search(
    drawn: tuple[QuotaScenario, list[Run], Run],
) -> None:
    scenario, runs, head = drawn
    state = state_of(scenario, runs)
    usage, free = usage_of(state), free_of(state)
    running = sorted(one.key for one in state.running)
    found = expected_start(state, head.workload, 0.0)
    assert (None if found is None else found.at) == slow_start(scenario, runs, head.workload)
    assert (usage_of(state), free_of(state)) == (usage, free)
    assert sorted(one.key for one in state.running) == running
