"""What holds after every scheduling cycle, in the data of Kueue and in drawn clusters."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota_scenario.format import QuotaScenario, read_quota_scenarios
from rackgate_assigner.quota_scenario.scenario import PendingQueues, build_state
from rackgate_assigner.scheduler.nomination.nomination import PendingWorkload
from rackgate_assigner.scheduler.quota_cycle import (
    HeadAdmission,
    HeadResult,
    RequeueReason,
    run_cycle,
)
from rackgate_assigner.workload.info import Charge, quota_usage

DATA = Path(__file__).parents[1] / "conformance" / "data" / "quota"
SETS = ("table-cases", "generated-public", "generated-topology", "generated-rare")


@cache
def scenarios(name: str) -> tuple[QuotaScenario, ...]:
    return read_quota_scenarios(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))


POLICIES = ("Never", "LowerPriority", "LowerOrNewerEqualPriority")
TOPOLOGY = {"name": "t", "levels": ["rack", "kubernetes.io/hostname"]}
REQUESTS = ({"required": "rack"}, {"preferred": "rack"}, {"unconstrained": True})


def node(index: int) -> dict[str, Any]:
    labels = {"rack": f"r{index // 2}", "kubernetes.io/hostname": f"n{index}"}
    return {"name": f"n{index}", "labels": labels, "allocatable": {"cpu": "4", "pods": "110"}}


@st.composite
def cluster_queues(draw: st.DrawFn, name: str) -> dict[str, Any]:
    quota: dict[str, Any] = {"nominal": str(draw(st.integers(0, 6)))}
    for limit in ("borrowingLimit", "lendingLimit"):
        if draw(st.booleans()):
            quota[limit] = str(draw(st.integers(0, 6)))
    flavors = [{"name": "f", "quotas": {"cpu": quota}}]
    preemption: dict[str, Any] = {
        "withinClusterQueue": draw(st.sampled_from(POLICIES)),
        "reclaimWithinCohort": draw(st.sampled_from([*POLICIES, "Any"])),
    }
    if draw(st.booleans()):
        preemption["borrowWithinCohort"] = {"policy": "LowerPriority"}
    return {
        "name": name,
        "cohort": draw(st.sampled_from(["a", "b"])),
        "resourceGroups": [{"resources": ["cpu"], "flavors": flavors}],
        "preemption": preemption,
        "fairWeight": draw(st.sampled_from(["0", "1", "2"])),
    }


@st.composite
def clusters(draw: st.DrawFn) -> QuotaScenario:
    """Up to three ClusterQueues below two Cohorts; Workloads wait, and none holds quota."""
    names = [f"q{index}" for index in range(draw(st.integers(1, 3)))]
    topology = draw(st.booleans())
    workloads = []
    for index in range(draw(st.integers(1, 12))):
        podset: dict[str, Any] = {
            "name": "main",
            "count": draw(st.integers(1, 5)),
            "requests": {"cpu": str(draw(st.integers(0, 3)))},
        }
        if draw(st.booleans()):
            podset["minCount"] = 1
        if topology:
            podset["topologyRequest"] = draw(st.sampled_from(REQUESTS))
        workload = {
            "namespace": "ns",
            "name": f"w{index}",
            "queue": draw(st.sampled_from(names)),
            "priority": draw(st.integers(0, 2)),
            "created": draw(st.integers(0, 9)),
            "podSets": [podset],
        }
        workloads.append(workload)
    document: dict[str, Any] = {
        "id": "drawn",
        "flavors": [{"name": "f", **({"topology": "t"} if topology else {})}],
        "topologies": [TOPOLOGY],
        "nodes": [node(index) for index in range(4)],
        "cohorts": [{"name": "b", "parent": "a"}],
        "clusterQueues": [draw(cluster_queues(name)) for name in names],
        "localQueues": [{"namespace": "ns", "name": name, "clusterQueue": name} for name in names],
        "workloads": workloads,
    }
    if draw(st.booleans()):
        document["fairSharing"] = {}
    return QuotaScenario.model_validate_json(json.dumps(document))


def usage_of(state: QuotaState) -> dict[str, dict[tuple[str, str], int]]:
    nodes = (*state.tree.queues.values(), *state.tree.cohorts.values())
    return {
        f"{found.is_queue}/{found.name}": {pair: n for pair, n in found.usage.items() if n}
        for found in nodes
    }


def free_of(state: QuotaState) -> dict[str, Any]:
    by_flavor = state.topologies.by_flavor
    return {name: found.capacity.free.tolist() for name, found in by_flavor.items()}


def run(state: QuotaState, heads: list[PendingWorkload]) -> list[HeadResult]:
    """One cycle; it leaves the state as it was."""
    before = usage_of(state), free_of(state), {running.key for running in state.running}
    results = run_cycle(state, heads, {})
    assert (usage_of(state), free_of(state), {found.key for found in state.running}) == before
    assert Counter(found.head.key for found in results) == Counter(head.key for head in heads)
    return results


def admitted(result: HeadAdmission, reserved_at: int) -> RunningWorkload:
    head, assignment = result.head, result.assignment
    requests = {podset.request.name: podset.request.requests for podset in head.podsets}
    return RunningWorkload(
        key=head.key,
        uid=head.uid,
        cluster_queue=assignment.cluster_queue,
        priority=head.priority,
        queue_timestamp=head.queue_timestamp,
        reserved_at=reserved_at,
        evicted=False,
        usage=quota_usage(assignment),
        charges=tuple(
            Charge(min(part.flavors.values()), requests[part.name], part.topology)
            for part in assignment.podsets
            if part.topology is not None
        ),
    )


def check_targets(state: QuotaState, results: list[HeadResult]) -> None:
    """No target without a preemptor that waits for it, and then fits; none has two."""
    running = {found.key for found in state.running}
    by_target: Counter[str] = Counter()
    for result in results:
        if isinstance(result, HeadAdmission):
            continue
        keys = [target.workload.key for target in result.targets]
        by_target.update(keys)
        assert set(keys) <= running
        assert bool(keys) <= (result.requeue is RequeueReason.PENDING_PREEMPTION)
    assert all(count == 1 for count in by_target.values())
    first = next((found for found in results if getattr(found, "targets", ())), None)
    # With more room, a head that accepts fewer pods may ask for more of them, and preempt again.
    if (
        first is not None
        and not isinstance(first, HeadAdmission)
        and all(podset.min_count is None for podset in first.head.podsets)
    ):
        with state.without(target.workload for target in first.targets):
            (again,) = run_cycle(state, [first.head], {})
        assert isinstance(again, HeadAdmission)


@pytest.mark.requirement("STR-07")
@pytest.mark.parametrize("name", SETS)
def test_a_cycle_leaves_the_state_as_it_was_and_preempts_for_those_that_fit_then(
    name: str,
) -> None:
    for scenario in scenarios(name):
        state = build_state(scenario)
        check_targets(state, run(state, PendingQueues(scenario, state).heads()))


def histories(
    state: QuotaState, waiting: list[PendingWorkload], cycles: int
) -> Iterator[list[HeadResult]]:
    """Cycles in a row: what is admitted holds quota, what is preempted waits again."""
    by_key = {pending.key: pending for pending in waiting}
    for now in range(cycles):
        heads: dict[str, PendingWorkload] = {}
        for pending in sorted(waiting, key=lambda found: found.order):
            heads.setdefault(pending.cluster_queue, pending)
        results = run(state, list(heads.values()))
        yield results
        for result in results:
            if isinstance(result, HeadAdmission):
                state.add(admitted(result, now))
                waiting.remove(result.head)
                continue
            for target in result.targets:
                state.remove(target.workload.key)
                waiting.append(by_key[target.workload.key])
            if result.inadmissible:
                waiting.remove(result.head)


@pytest.mark.requirement("STR-07")
@given(clusters())
def test_usage_is_never_above_the_limits_of_the_tree(scenario: QuotaScenario) -> None:
    state = build_state(scenario)
    queues = PendingQueues(scenario, state)
    for results in histories(state, queues.waiting(), cycles=12):
        check_targets(state, results)
        for found in (*state.tree.queues.values(), *state.tree.cohorts.values()):
            for pair, used in found.usage.items():
                assert 0 <= used <= found.potential(pair)
        for topology in state.topologies.by_flavor.values():
            assert topology.capacity.free.min() >= 0
