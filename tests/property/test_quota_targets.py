"""Targets of a preemption: against every subset there is, and tested in batches or one by one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rackgate_assigner.cache.flavor_topologies import FlavorTopologies
from rackgate_assigner.preemption.preemption import find_targets
from rackgate_assigner.preemption.targets import PlacementTest, Preemptor
from rackgate_assigner.quota.queues import cluster_queue_info
from rackgate_assigner.quota.running import RunningWorkload
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota.tree import QuotaTree
from rackgate_assigner.quota_scenario.format import QuotaScenario
from rackgate_assigner.quota_scenario.scenario import build_state
from rackgate_assigner.scheduler.nomination.nominate_head import nominate_head
from rackgate_assigner.scheduler.nomination.nomination import (
    FlavorAssignmentMode,
    FlavorChoice,
    NominatedPodSet,
    PendingPodSet,
    PendingWorkload,
)
from rackgate_assigner.scheduler.nomination.topology_assignment import (
    TopologyRequests,
    find_assignments,
)
from rackgate_assigner.topology.model import (
    NoFit,
    PodSetRequest,
    SliceLayer,
    TopologyRequest,
)
from tests.unit.assigner.builders import cluster_queue

PAIR = ("f", "cpu")
RACK, HOST = "rack", "kubernetes.io/hostname"
LEVELS = ("block", RACK, HOST)
POLICIES = ("LowerPriority", "LowerOrNewerEqualPriority")
STRATEGIES = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")
CPU, GPU = ("plain", "cpu"), ("plain", "gpu")
QUOTA = {"plain": {"cpu": "8m", "gpu": "4"}}


def node(index: int, cpu: int) -> dict[str, Any]:
    labels = {"block": f"b{index // 4}", RACK: f"r{index // 2}", HOST: f"n{index}"}
    return {
        "name": f"n{index}",
        "labels": labels,
        "allocatable": {"cpu": str(cpu), "pods": "9"},
    }


@st.composite
def running(draw: st.DrawFn, index: int) -> dict[str, Any]:
    hosts = draw(st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True))
    count = len(hosts)
    cpu = str(draw(st.integers(1, 3)) * count)
    topology = {
        "levels": [HOST],
        "domains": [{"values": [f"n{host}"], "count": 1} for host in sorted(hosts)],
    }
    part = {
        "name": "main",
        "count": count,
        "flavors": {"cpu": "f"},
        "usage": {"cpu": cpu},
        "topology": topology,
    }
    return {
        "namespace": "ns",
        "name": f"w{index}",
        "priority": draw(st.integers(0, 2)),
        "podSets": [{"name": "main", "count": count}],
        "admission": {
            "clusterQueue": draw(st.sampled_from(["q0", "q1", "q2"])),
            "podSets": [part],
        },
        "reservedAt": draw(st.integers(0, 3)),
    }


@st.composite
def states(draw: st.DrawFn) -> QuotaState:
    queues = [
        {
            "name": f"q{index}",
            "cohort": "c",
            "resourceGroups": [
                {
                    "resources": ["cpu"],
                    "flavors": [
                        {"name": "f", "quotas": {"cpu": {"nominal": str(draw(st.integers(0, 9)))}}}
                    ],
                }
            ],
            "preemption": {
                "withinClusterQueue": "LowerPriority",
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": draw(st.sampled_from(["Never", "LowerPriority"]))},
            },
        }
        for index in range(3)
    ]
    document: dict[str, Any] = {
        "id": "drawn",
        "flavors": [{"name": "f", "topology": "t"}],
        "topologies": [{"name": "t", "levels": LEVELS}],
        "nodes": [node(index, draw(st.integers(2, 6))) for index in range(8)],
        "clusterQueues": queues,
        "workloads": [draw(running(index)) for index in range(draw(st.integers(1, 14)))],
    }
    if draw(st.booleans()):
        document["fairSharing"] = {}
    return build_state(QuotaScenario.model_validate(document, strict=False))


@st.composite
def requests(draw: st.DrawFn) -> PodSetRequest:
    size = draw(st.sampled_from([1, 2, 3]))
    slices = (SliceLayer(draw(st.sampled_from([RACK, HOST])), size),) if size > 1 else ()
    level = draw(st.sampled_from(LEVELS[: 2 if slices else 3]))
    kind = draw(st.sampled_from(["required", "preferred", "unconstrained"]))
    count = size * draw(st.integers(1, 4))
    topology = TopologyRequest(
        required=level if kind == "required" else None,
        preferred=level if kind == "preferred" else None,
        unconstrained=kind == "unconstrained",
        slices=slices,
    )
    return PodSetRequest("main", count, {"cpu": draw(st.integers(1, 4)) * 1000}, topology)


def preemptor_of(
    state: QuotaState, request: PodSetRequest, priority: int, placement: PlacementTest
) -> Preemptor:
    amount = request.requests["cpu"] * request.count
    queue = state.queues["q0"]
    return Preemptor("ns/head", priority, 100.0, queue, {PAIR: amount}, {PAIR}, placement)


@pytest.mark.requirement("STR-07")
@given(states(), requests(), st.integers(0, 3))
def test_targets_of_batches_are_those_of_single_tests(
    state: QuotaState, request: PodSetRequest, priority: int
) -> None:
    amount = request.requests["cpu"] * request.count
    choice = FlavorChoice("f", FlavorAssignmentMode.PREEMPT, -1)
    podset = NominatedPodSet(request, {"cpu": amount}, {"cpu": choice})
    topology = TopologyRequests({"f": [podset]})
    found = []
    for monotone in (True, False):
        test = PlacementTest(
            lambda: not isinstance(find_assignments(state, topology), NoFit), monotone
        )
        preemptor = preemptor_of(state, request, priority, test)
        found.append([target.workload.key for target in find_targets(state, preemptor)])
    assert sorted(found[0]) == sorted(found[1])


@pytest.mark.requirement("STR-07")
@given(states(), requests(), st.integers(0, 3))
def test_a_head_gets_the_targets_and_domains_of_a_search_that_always_places_its_pods(
    state: QuotaState, request: PodSetRequest, priority: int
) -> None:
    podsets = (PendingPodSet(request),)
    found = nominate_head(
        state, PendingWorkload("ns/head", "uid-head", "ns", "q0", priority, 100.0, podsets)
    )
    assume(found.mode is FlavorAssignmentMode.PREEMPT)
    choice = FlavorChoice("f", FlavorAssignmentMode.PREEMPT, -1)
    amounts = {"cpu": request.requests["cpu"] * request.count}
    topology = TopologyRequests({"f": [NominatedPodSet(request, amounts, {"cpu": choice})]})
    test = PlacementTest(lambda: not isinstance(find_assignments(state, topology), NoFit), False)
    wanted = find_targets(state, preemptor_of(state, request, priority, test))
    assert found.targets == wanted
    if wanted:
        with state.released(target.workload for target in wanted):
            placed = find_assignments(state, topology)
        assert not isinstance(placed, NoFit)
        assert [podset.topology for podset in found.podsets] == [placed["main"]]


def in_use(state: QuotaState) -> tuple[object, ...]:
    nodes = (*state.tree.queues.values(), *state.tree.cohorts.values())
    usage = [{pair: n for pair, n in found.usage.items() if n} for found in nodes]
    return usage, state.topologies.by_flavor["f"].capacity.free.tolist()


@given(states(), requests(), st.lists(st.booleans(), max_size=8), st.booleans())
def test_an_error_of_a_placement_leaves_the_state_as_it_was(
    state: QuotaState, request: PodSetRequest, answers: list[bool], monotone: bool
) -> None:
    left = iter(answers)

    def passes() -> bool:
        try:
            return next(left)
        except StopIteration:
            raise RuntimeError("no placement") from None

    before = in_use(state)
    with suppress(RuntimeError):
        find_targets(state, preemptor_of(state, request, 3, PlacementTest(passes, monotone)))
    assert in_use(state) == before


@st.composite
def running_alone(draw: st.DrawFn, index: int) -> RunningWorkload:
    amounts = {CPU: st.integers(0, 4), GPU: st.integers(0, 2)}
    return RunningWorkload(
        key=f"ns/w{index}",
        uid=f"uid-{index}",
        cluster_queue="cq",
        priority=draw(st.integers(0, 2)),
        queue_timestamp=draw(st.integers(0, 3)),
        reserved_at=draw(st.integers(0, 3)),
        evicted=draw(st.booleans()),
        usage=draw(st.fixed_dictionaries({}, optional=amounts)),
    )


running_workloads = st.integers(0, 6).flatmap(
    lambda count: st.tuples(*(running_alone(index) for index in range(count)))
)


def alone(
    workloads: Sequence[RunningWorkload], policy: str, fair_sharing: tuple[str, ...] | None
) -> QuotaState:
    """One ClusterQueue that shares no quota, and these Workloads in it."""
    spec = cluster_queue("cq", QUOTA, preemption={"withinClusterQueue": policy})
    queue = cluster_queue_info(spec)
    tree = QuotaTree.build([queue], [])
    state = QuotaState(tree, {"cq": queue}, {}, FlavorTopologies({}), fair_sharing=fair_sharing)
    for workload in workloads:
        state.add(workload)
    return state


def may_be_preempted(policy: str, preemptor: Preemptor, workload: RunningWorkload) -> bool:
    if workload.priority == preemptor.priority:
        newer = workload.queue_timestamp > preemptor.queue_timestamp
        return policy == "LowerOrNewerEqualPriority" and newer
    return workload.priority < preemptor.priority


@pytest.mark.requirement("SLC-31")
@given(
    workloads=running_workloads,
    request=st.fixed_dictionaries({CPU: st.integers(1, 8), GPU: st.integers(1, 4)}),
    priority=st.integers(0, 2),
    age=st.integers(0, 3),
    policy=st.sampled_from(POLICIES),
    fair_sharing=st.sampled_from([None, STRATEGIES]),
)
def test_targets_are_enough_all_needed_allowed_and_as_low_as_can_be(
    *,
    workloads: Sequence[RunningWorkload],
    request: dict[tuple[str, str], int],
    priority: int,
    age: int,
    policy: str,
    fair_sharing: tuple[str, ...] | None,
) -> None:
    state = alone(workloads, policy, fair_sharing)
    tree_node = state.tree.queues["cq"]
    short = {pair for pair, amount in request.items() if amount > tree_node.available(pair)}
    assume(short)
    preemptor = Preemptor("ns/head", priority, age, state.queues["cq"], request, short)
    chosen = [target.workload for target in find_targets(state, preemptor)]
    again = find_targets(alone(workloads[::-1], policy, fair_sharing), preemptor)
    assert [target.workload for target in again] == chosen

    def is_enough(gone: Sequence[RunningWorkload]) -> bool:
        with state.released(gone):
            return state.has_room(tree_node, request)

    allowed = [one for one in workloads if may_be_preempted(policy, preemptor, one)]
    solutions = [
        subset
        for size in range(1, len(allowed) + 1)
        for subset in combinations(allowed, size)
        if is_enough(subset)
    ]
    assert bool(chosen) == bool(solutions)
    if not chosen:
        return
    assert is_enough(chosen)
    assert all(one in allowed for one in chosen)
    for spared in chosen:
        rest = [one for one in chosen if one is not spared]
        assert not is_enough(rest), "nobody is preempted for nothing"
    lowest = min(map(highest_evicted, solutions))
    assert highest_evicted(chosen) == lowest, "nobody higher where lower ones would do"


def highest_evicted(workloads: Sequence[RunningWorkload]) -> int:
    """The highest priority that is evicted for a head; -1 if all are being evicted already."""
    return max((one.priority for one in workloads if not one.evicted), default=-1)
