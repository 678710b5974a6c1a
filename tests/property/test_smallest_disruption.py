"""The smallest disruption never stops more than Kueue's choice, and is the optimum where known.

The oracle tries all sets of candidates on small clusters.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate.features import Features
from rackgate_assigner.preemption.smallest_disruption import cost_of
from rackgate_assigner.preemption.targets import Target
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.nomination.nominate_head import nominate_head
from rackgate_assigner.scheduler.nomination.nomination import (
    FlavorAssignmentMode,
    PendingPodSet,
    PendingWorkload,
)
from rackgate_assigner.topology.model import PodSetRequest, TopologyRequest
from rackgate_assigner.workload.decisions import Assignment
from tests.unit.assigner.builders import (
    RACK,
    admissions,
    cache_with,
    cluster_queue,
    local_queue,
    node,
    plan_cycle,
    podset,
    workload,
)

RACKS, NODES, CPUS = 3, 2, 4
STRATEGIES = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")
SMALLEST = Features.of({"RackgateSmallestDisruption": True})
ANY = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}

seeds = st.integers(min_value=0, max_value=2**32)


def drawn(rng: Random, *, cohort: bool, quota: int = 1000) -> QuotaState:
    """A few racks with Workloads of several sizes, priorities and ages."""
    nodes = [
        node(f"r{rack}-n{number}", f"b/r{rack}", cpu=str(CPUS))
        for rack in range(RACKS)
        for number in range(NODES)
    ]
    cohort_name = "all" if cohort else None
    spec: dict[str, Any] = {"preemption": ANY, "cohortName": cohort_name}
    cache = cache_with(nodes, queue=cluster_queue("cq", {"tas": {"cpu": str(quota)}}, **spec))
    if cohort:
        cache.set_cluster_queue(cluster_queue("other", {"tas": {"cpu": "0"}}, **spec))
        cache.set_local_queue(local_queue("lq-other", "other"))
    given: dict[str, Assignment] = {}
    for number in range(rng.randint(2, 9)):
        name = f"w{number}"
        count, cpu = rng.randint(1, 4), str(rng.randint(1, 3))
        level = {"required": RACK} if rng.random() < 0.7 else {"unconstrained": True}
        more: dict[str, Any] = {
            "queue": rng.choice(("lq", "lq-other")) if cohort else "lq",
            "priority": rng.randint(0, 2),
            "created": f"2026-08-01T12:00:{rng.randint(10, 59)}Z",
        }
        part = podset(count=count, requests={"cpu": cpu}, topology=level)
        cache.set_workload(workload(name, [part], **more))
        given |= admissions(plan_cycle(cache))
        if name in given:
            evicted = {"Evicted": ("True", "Preempted", "")} if rng.random() < 0.1 else {}
            admitted = workload(
                name, [part], version="2", assignment=given[name], conditions=evicted, **more
            )
            cache.set_workload(admitted)
        else:
            cache.drop_workload(f"team/{name}")
    snapshot = cache.snapshot()
    usage = snapshot.quota_usage
    return QuotaState(
        usage.tree,
        snapshot.cluster_queues,
        snapshot.flavors,
        snapshot.flavor_topologies,
        usage.running,
    )


def pending(rng: Random, *, level: str = "required") -> PendingWorkload:
    cpu = rng.randint(1, 4)
    count = rng.randint(1, max(1, NODES * (CPUS // cpu)))
    topology = TopologyRequest(
        required=RACK if level == "required" else None,
        preferred=RACK if level == "preferred" else None,
    )
    request = PodSetRequest("main", count, {"cpu": 1000 * cpu}, topology)
    return PendingWorkload(
        "team/mine", "uid", "team", "cq", rng.randint(1, 3), 2e9, (PendingPodSet(request),), "shape"
    )


def chosen(
    state: QuotaState,
    head: PendingWorkload,
    features: Features,
    fair: tuple[str, ...] | None = None,
) -> tuple[Target, ...]:
    state.features, state.fair_sharing = features, fair
    found = nominate_head(state, head)
    return found.targets if found.mode is FlavorAssignmentMode.PREEMPT else ()


def cost(targets: Iterable[Target]) -> tuple[object, ...]:
    return cost_of(tuple(targets), newest=1e12)


def fits_without(state: QuotaState, head: PendingWorkload, targets: Iterable[Target]) -> bool:
    with state.without([target.workload for target in targets]):
        return nominate_head(state, head).mode is FlavorAssignmentMode.FIT


def used(state: QuotaState) -> dict[str, object]:
    return {
        name: {pair: amount for pair, amount in one.usage.items() if amount}
        for name, one in state.tree.queues.items()
    }


@settings(max_examples=60, deadline=None)
@given(
    seed=seeds,
    fair=st.sampled_from([None, STRATEGIES, STRATEGIES[:1]]),
    level=st.sampled_from(["required", "preferred"]),
    quota=st.sampled_from([1000, 12, 6]),
)
def test_never_more_is_stopped_than_by_kueues_choice(
    seed: int, fair: tuple[str, ...] | None, level: str, quota: int
) -> None:
    rng = Random(seed)
    state = drawn(rng, cohort=rng.random() < 0.6, quota=quota)
    head = pending(rng, level=level)
    usage = used(state)
    kueue = chosen(state, head, Features(), fair)
    smallest = chosen(state, head, SMALLEST, fair)
    assert bool(smallest) == bool(kueue)
    assert cost(smallest) <= cost(kueue)
    if smallest:
        assert fits_without(state, head, smallest)
        for left_out in smallest[:-1]:
            rest = [one for one in smallest if one is not left_out]
            assert fair or quota < 1000 or not fits_without(state, head, rest)
    assert used(state) == usage


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_the_choice_is_the_optimum_of_one_queue(seed: int) -> None:
    """With quota for all, only the rack is missing: any set of lower priority is allowed."""
    rng = Random(seed)
    state, head = drawn(rng, cohort=False), pending(rng)
    smallest = chosen(state, head, SMALLEST)
    if not smallest:
        return
    allowed = [
        Target(one, smallest[0].reason) for one in state.running if one.priority < head.priority
    ]
    sets = [
        found
        for size in range(1, len(allowed) + 1)
        for found in combinations(allowed, size)
        if cost(found) <= cost(smallest)
    ]
    best = min((cost(found) for found in sets if fits_without(state, head, found)), default=None)
    assert best == cost(smallest)


@pytest.mark.parametrize("seed", range(2))
def test_the_drawn_clusters_have_something_to_improve(seed: int) -> None:
    """Otherwise the tests above would say nothing."""
    better = 0
    rng = Random(seed)
    for _ in range(40):
        state, head = drawn(rng, cohort=False), pending(rng)
        better += cost(chosen(state, head, SMALLEST)) < cost(chosen(state, head, Features()))
    assert better > 1
