"""The quota tree kept event by event is the tree built from scratch, and plans leave it as it is.

What a plan admits never takes a ClusterQueue or Cohort beyond its quota and limits, and nothing is
preempted for a Workload that does not fit once its targets are gone.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.consistency import mismatches
from rackgate_assigner.quota.queues import FlavorResource
from rackgate_assigner.quota.tree import QuotaTree
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.workload.decisions import Admit, Assignment, PodSetAssignment, Preempt
from rackgate_assigner.workload.info import quota_usage
from tests.unit.assigner.builders import (
    cluster_queue,
    cohort,
    flavor,
    local_queue,
    namespace,
    node,
    pod,
    podset,
    workload,
)

QUEUES, COHORTS, FLAVORS = "abcd", ("x", "y", "z"), ("one", "two")
HOSTS = ("left", "right")
NAMES = [f"w{number}" for number in range(12)]
POLICIES = ("Never", "LowerPriority", "LowerOrNewerEqualPriority")
STRATEGIES = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")

seeds = st.integers(min_value=0, max_value=2**32)


def quotas(rng: Random, *, limits: bool) -> list[dict[str, Any]]:
    flavors = []
    for name in FLAVORS[: rng.randint(1, 2)]:
        quota = {"name": "cpu", "nominalQuota": str(rng.randint(0, 6))}
        for limit in ("borrowingLimit", "lendingLimit"):
            if limits and rng.random() < 0.3:
                quota[limit] = str(rng.randint(0, 4))
        flavors.append({"name": name, "resources": [quota]})
    return [{"coveredResources": ["cpu"], "flavors": flavors}]


class World:
    """A cache with a few queues, changed at random."""

    def __init__(self, seed: int) -> None:
        self.rng, self.cache, self.version = Random(seed), Cache(), 0
        self.cache.set_namespace(namespace())
        for name in FLAVORS:
            self.cache.set_flavor(flavor(name, None, {}))
        for name in HOSTS:
            self.cache.set_node(node(name))
        for name in QUEUES:
            self.set_queue(name)
            self.cache.set_local_queue(local_queue(name, name))

    def set_queue(self, name: str) -> None:
        rng = self.rng
        in_cohort = rng.random() < 0.8
        queue = cluster_queue(
            name,
            cohortName=rng.choice(COHORTS) if in_cohort else None,
            preemption={
                "withinClusterQueue": rng.choice(POLICIES),
                "reclaimWithinCohort": rng.choice(("Never", "LowerPriority", "Any")),
            },
            queueingStrategy=rng.choice(("BestEffortFIFO", "BestEffortFIFO", "StrictFIFO")),
            stopPolicy=rng.choice(("None",) * 6 + ("Hold",)),
            resourceGroups=quotas(rng, limits=in_cohort),
            fairSharing={"weight": rng.choice(("1", "2", "0"))},
        )
        self.cache.set_cluster_queue(queue)

    def set_workload(self, name: str, assignment: Assignment | None = None, **more: Any) -> None:
        self.version += 1
        rng = Random(name)  # the spec depends on the name alone
        self.cache.set_workload(
            workload(
                name,
                [podset(count=rng.randint(1, 4))],
                queue=rng.choice(QUEUES),
                priority=rng.randint(0, 2),
                version=str(self.version),
                created=f"2026-08-01T12:00:{rng.randint(10, 59)}Z",
                assignment=assignment,
                **more,
            )
        )

    def change(self) -> None:
        rng, cache = self.rng, self.cache
        match rng.choice("qqccwwwwdeaxfppgnj"):
            case "q":
                self.set_queue(rng.choice(QUEUES))
            case "c" if rng.random() < 0.3:
                cache.drop_cohort(rng.choice(COHORTS))
            case "c":
                parent = rng.choice((None, *COHORTS))
                cache.set_cohort(cohort(rng.choice(COHORTS), parent, {"one": {"cpu": "2"}}))
            case "w":
                self.set_workload(rng.choice(NAMES))
            case "d":
                cache.drop_workload(f"team/{rng.choice(NAMES)}")
            case "e" if held := self.held():
                name = rng.choice(sorted(held))
                evicted = {"Evicted": ("True", "Preempted", "")}
                self.set_workload(name, held[name], conditions=evicted)
            case "a":
                flavors = {"cpu": rng.choice(FLAVORS)}
                part = PodSetAssignment("main", flavors, {"cpu": 1000 * rng.randint(1, 3)}, 1)
                self.set_workload(rng.choice(NAMES), Assignment(rng.choice(QUEUES), (part,)))
            case "x":
                cache.drop_cluster_queue(rng.choice(QUEUES))
            case "f":
                name = rng.choice(FLAVORS)
                if name in cache.flavors:
                    cache.drop_flavor(name)
                else:
                    cache.set_flavor(flavor(name, None, {}))
            case "p":
                self.set_pod(rng.choice(NAMES), rng.choice(HOSTS), leaving=rng.random() < 0.7)
            case "g" if cache.pods.rows:
                cache.drop_pod(rng.choice(sorted(cache.pods.rows)))
            case "n":
                name = rng.choice(HOSTS)
                cache.set_node(node(name, ready=rng.random() < 0.8))
            case "j":
                name = rng.choice(NAMES)
                if cache.live_pods.is_managed(f"job-{name}"):
                    cache.drop_job(f"job-{name}")
                else:
                    cache.set_job(f"job-{name}", f"team/{rng.choice(QUEUES)}")
            case _:
                pass

    def set_pod(self, job: str, host: str, *, leaving: bool) -> None:
        name = f"{job}-{self.rng.randint(0, 2)}"
        key = f"team/{name}"
        if key in self.cache.pods.rows:
            host = self.cache.pods.rows[key].node
        self.cache.set_pod(pod(name, host, workload=job, leaving=leaving))

    def held(self) -> dict[str, Assignment]:
        return {
            row.name: row.reserved
            for row in self.cache.workloads.values()
            if row.reserved is not None
        }


def usage_of(tree: QuotaTree) -> dict[str, dict[FlavorResource, int]]:
    nodes = (*tree.queues.values(), *tree.cohorts.values())
    return {node.name: {k: v for k, v in node.usage.items() if v} for node in nodes}


def check_plan(world: World, fair: tuple[str, ...] | None) -> None:
    """Plan, compare the tree before and after, and write what was admitted."""
    cache = world.cache
    usage = cache.quota_usage()
    before = usage_of(usage.tree)
    running = {row.key: row.candidate_order for row in usage.running}
    decisions = plan(cache.snapshot(), cache.features, fair_sharing=fair)
    assert usage_of(usage.tree) == before
    assert {row.key: row.candidate_order for row in usage.running} == running
    for decision in decisions:
        if isinstance(decision, Preempt):
            assert decision.workload in running
        if isinstance(decision, Admit):
            node = usage.tree.queues[decision.assignment.cluster_queue]
            for pair, amount in quota_usage(decision.assignment).items():
                assert amount <= node.available(pair)
            cache.assume(decision.workload, decision.assignment)
            usage = cache.quota_usage()
    for name, assignment in _assumed(cache).items():
        world.set_workload(name, assignment)


def _assumed(cache: Cache) -> dict[str, Assignment]:
    return {key.partition("/")[2]: assumed.value for key, assumed in cache.assumed.items()}


@pytest.mark.requirement("STR-07")
@settings(max_examples=60, deadline=None)
@given(seed=seeds, fair=st.sampled_from([None, STRATEGIES, STRATEGIES[:1]]))
def test_the_tree_is_right_all_through_a_long_life(seed: int, fair: tuple[str, ...] | None) -> None:
    world = World(seed)
    for _ in range(60):
        world.change()
        if world.rng.random() < 0.3:
            assert mismatches(world.cache) == []
        if world.rng.random() < 0.3:
            check_plan(world, fair)
    assert mismatches(world.cache) == []
