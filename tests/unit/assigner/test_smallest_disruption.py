"""With RackgateSmallestDisruption, preemption for a rack stops the fewest pods."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from tests.unit.assigner.builders import (
    HOST,
    RACK,
    cache_with,
    cluster_queue,
    node,
    plan_cycle,
    podset,
    rebuild_matches,
    workload,
)
from tests.unit.assigner.test_preemption import held, preempted

WITHIN = {"withinClusterQueue": "LowerPriority"}
ON = Features.of({"RackgateSmallestDisruption": True})
EVICTED = {"Evicted": ("True", "Preempted", "")}


def racks(count: int = 3, nodes: int = 2) -> Cache:
    """Racks of nodes with 4 CPUs each, and more quota than that."""
    found = [
        node(f"r{rack}-n{number}", f"b/r{rack}") for rack in range(count) for number in range(nodes)
    ]
    queue = cluster_queue("cq", {"tas": {"cpu": "1000"}}, preemption=WITHIN, cohortName="all")
    return cache_with(found, queue=queue)


def on(cache: Cache, name: str, hosts: dict[str, int], cpu: int = 4, **more: Any) -> None:
    """A Workload whose pods run on these hosts."""
    domains = tuple(((host,), pods) for host, pods in sorted(hosts.items()))
    count = sum(hosts.values())
    topology = TopologyAssignment((HOST,), domains)
    part = PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 1000 * cpu * count}, count, topology)
    parts = [podset(count=count, requests={"cpu": str(cpu)}, topology={"unconstrained": True})]
    more.setdefault("version", "2")
    cache.set_workload(workload(name, parts, assignment=Assignment("cq", (part,)), **more))


def mine(cache: Cache, count: int = 2, *, level: str = "required", **more: Any) -> None:
    parts = more.pop("parts", None) or [
        podset(count=count, requests={"cpu": "4"}, topology={level: RACK})
    ]
    cache.set_workload(workload("mine", parts, priority=9, **more))


def chosen(cache: Cache, features: Features = ON) -> list[str]:
    return sorted(victim for victim, _ in preempted(plan_cycle(cache, features=features)))


def test_the_rack_in_which_the_fewest_pods_run_is_freed() -> None:
    """Kueue starts with the lowest priority, whose pods run in several racks."""
    cache = racks()
    on(cache, "wide", {"r0-n0": 1, "r1-n0": 1, "r2-n0": 1}, priority=0)
    on(cache, "large", {"r0-n1": 4}, cpu=1, priority=1)
    on(cache, "middle", {"r1-n1": 2}, cpu=2, priority=2)
    on(cache, "small", {"r2-n1": 1}, priority=3)
    mine(cache)
    assert chosen(cache, Features()) == ["large", "wide"]
    assert chosen(cache) == ["small", "wide"]


@pytest.mark.requirement("STR-07")
def test_several_small_workloads_are_kept_if_one_is_enough() -> None:
    cache = racks(1, nodes=3)
    on(cache, "four", {"r0-n0": 4}, cpu=1, priority=0)
    on(cache, "two", {"r0-n1": 2}, cpu=2, priority=1)
    on(cache, "one", {"r0-n2": 1}, priority=2)
    mine(cache, 1)
    assert chosen(cache, Features()) == ["four"]
    assert chosen(cache) == ["one"]


@pytest.mark.requirement("STR-07")
def test_a_workload_that_is_stopped_already_costs_nothing() -> None:
    cache = racks(2, nodes=1)
    on(cache, "one", {"r0-n0": 1})
    on(cache, "four", {"r1-n0": 4}, cpu=1, conditions=EVICTED)
    mine(cache, 1)
    decisions = plan_cycle(cache, features=ON)
    assert preempted(decisions) == []
    assert held(decisions) == {"mine": "WaitingForPreemptedWorkloads"}


def test_of_as_many_pods_those_of_lower_priority_are_stopped() -> None:
    cache = racks(3, nodes=1)
    for index, priority in enumerate((3, 1, 2)):
        on(cache, f"p{priority}", {f"r{index}-n0": 1}, priority=priority)
    mine(cache, 1)
    assert chosen(cache) == ["p1"]


def test_workloads_of_the_same_or_a_higher_priority_are_never_stopped() -> None:
    cache = racks(2, nodes=1)
    on(cache, "one", {"r0-n0": 1}, priority=9)
    on(cache, "four", {"r1-n0": 4}, cpu=1, priority=8)
    mine(cache, 1)
    assert chosen(cache) == ["four"]


def test_nothing_is_stopped_if_the_preemptor_would_still_not_fit() -> None:
    cache = racks(2)
    on(cache, "keeps", {"r0-n0": 1, "r1-n0": 1}, priority=10)
    on(cache, "one", {"r0-n1": 1})
    mine(cache, 2)
    assert chosen(cache) == []


def test_quota_that_is_missing_as_well_is_freed_elsewhere() -> None:
    """The smallest rack is not enough for the quota."""
    cache = racks(2, nodes=2)
    queue = cluster_queue("cq", {"tas": {"cpu": "8"}}, preemption=WITHIN, cohortName="all")
    cache.set_cluster_queue(queue)
    on(cache, "one", {"r0-n0": 1}, priority=1)
    on(cache, "two", {"r1-n0": 1}, priority=2)
    mine(cache, 2)
    assert chosen(cache) == ["one", "two"]


@pytest.mark.parametrize(
    "parts",
    [
        [podset(count=1, requests={"cpu": "4"}, topology={"unconstrained": True})],
        [
            podset("a", requests={"cpu": "4"}, topology={"required": RACK}),
            podset("b", requests={"cpu": "4"}, topology={"unconstrained": True}),
        ],
    ],
)
def test_without_a_common_domain_the_choice_is_kueues(parts: list[dict[str, Any]]) -> None:
    cache = racks(1, nodes=2)
    on(cache, "four", {"r0-n0": 4}, cpu=1, priority=0)
    on(cache, "one", {"r0-n1": 1}, priority=1)
    mine(cache, parts=parts)
    assert chosen(cache) == chosen(cache, Features())


def test_several_podsets_get_room_together() -> None:
    cache = racks(2, nodes=2)
    on(cache, "wide", {"r0-n0": 1, "r1-n0": 1}, priority=0)
    on(cache, "four", {"r0-n1": 4}, cpu=1, priority=1)
    on(cache, "one", {"r1-n1": 1}, priority=2)
    mine(
        cache,
        parts=[
            podset("a", requests={"cpu": "4"}, topology={"required": RACK}),
            podset("b", requests={"cpu": "4"}, topology={"required": RACK}),
        ],
    )
    found = chosen(cache)
    assert found == ["wide"], "each PodSet gets a rack of its own"


def test_the_choice_changes_nothing_in_the_cache() -> None:
    cache = racks()
    on(cache, "wide", {"r0-n0": 1, "r1-n0": 1, "r2-n0": 1})
    mine(cache)
    chosen(cache)
    assert rebuild_matches(cache) == []
