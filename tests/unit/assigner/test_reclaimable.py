"""Pods that are done give back quota at once, and room where it shows that nobody needs it."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.usage import assignment_without_done_pods
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from tests.unit.assigner.builders import (
    HOST,
    cache_with,
    cluster_queue,
    node,
    pod,
    podset,
    rebuild_matches,
    workload,
)

SPOTS = TopologyAssignment((HOST,), ((("a",), 2), (("b",), 2)))
GRANT = Assignment("cq", (PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 4000}, 4, SPOTS),))


def world(*, running: str = "aabb", owner: str | None = None, **more: Any) -> Cache:
    queue = cluster_queue("cq", {"tas": {"cpu": "4"}})
    cache = cache_with([node("a"), node("b")], queue=queue)
    more = {"version": "2", **more}
    cache.set_workload(workload("w", [podset(count=4)], assignment=GRANT, **more))
    for index, host in enumerate(running):
        cache.set_pod(pod(f"p{index}", host, workload="w", owner=owner))
    return cache


def free(cache: Cache) -> dict[str, int]:
    flavor_topology = cache.flavor_topologies().by_flavor["tas"]
    column = flavor_topology.capacity.free[:, flavor_topology.capacity.rows["cpu"]]
    assert rebuild_matches(cache) == []
    return {
        host: int(column[flavor_topology.tree.leaf_of_host(host) or 0]) // 1000 for host in "ab"
    }


def used(cache: Cache) -> int:
    return cache.totals.used().get("cq", {}).get(("tas", "cpu"), 0)


def test_quota_of_pods_that_are_done_is_free_for_others() -> None:
    assert used(world()) == 4000
    assert used(world(running="a", reclaimable={"main": 3})) == 1000
    assert used(world(running="", reclaimable={"main": 9})) == 0


def test_pods_that_live_are_charged_whatever_is_said_to_be_done() -> None:
    assert used(world(running="aabb", reclaimable={"main": 3})) == 4000
    assert used(world(running="ab", reclaimable={"main": 4})) == 2000


def test_room_is_free_where_pods_ended_and_nowhere_else() -> None:
    assert free(world(running="abb")) == {"a": 2, "b": 2}
    assert free(world(running="abb", reclaimable={"main": 1})) == {"a": 3, "b": 2}
    assert free(world(running="bb", reclaimable={"main": 2})) == {"a": 4, "b": 2}


def test_nothing_is_given_away_while_another_pod_is_missing_as_well() -> None:
    cache = world(running="abb", reclaimable={"main": 1})
    cache.drop_pod("team/p1")
    assert free(cache) == {"a": 2, "b": 2}
    cache.set_pod(pod("p9", "b", workload="w"))
    assert free(cache) == {"a": 3, "b": 2}


def test_a_pod_that_ends_later_than_it_is_reported_gives_its_room_back_then() -> None:
    cache = world(reclaimable={"main": 1})
    assert free(cache) == {"a": 2, "b": 2}
    epoch = cache.epoch
    cache.drop_pod("team/p0")
    assert cache.epoch > epoch
    assert free(cache) == {"a": 3, "b": 2}


def test_the_room_is_taken_again_when_the_job_starts_over() -> None:
    cache = world(running="abb", reclaimable={"main": 1})
    assert free(cache)["a"] == 3
    cache.set_workload(workload("w", [podset(count=4)], assignment=GRANT, version="3"))
    assert free(cache) == {"a": 2, "b": 2}
    assert used(cache) == 4000


@pytest.mark.parametrize("late", [True, False])
def test_pods_of_a_child_job_count_as_those_of_its_owner(late: bool) -> None:
    cache = world(running="", owner="job-w")
    if not late:
        cache.set_owner("child", "job-w")
    for index, host in enumerate("aabb"):
        cache.set_pod(pod(f"p{index}", host, workload="w", owner="child"))
    if late:
        assert free(cache) == {"a": 0, "b": 0}
        cache.set_owner("child", "job-w")
    assert free(cache) == {"a": 2, "b": 2}


def test_whose_pods_they_were_is_known_until_the_last_one_is_gone() -> None:
    cache = world(running="", owner="job-w")
    cache.set_owner("child", "job-w")
    for index, host in enumerate("aabb"):
        cache.set_pod(pod(f"p{index}", host, workload="w", owner="child"))
    cache.drop_owner("child")
    assert free(cache) == {"a": 2, "b": 2}
    for index in range(4):
        cache.drop_pod(f"team/p{index}")
    assert cache.pods.owners == {}
    cache.drop_owner("nobody")
    assert cache.pods.owners == {}


@pytest.mark.parametrize(
    ("left", "present", "kept"),
    [
        (4, {("a",): 2}, {"a": 2, "b": 2}),
        (2, {("a",): 2}, {"a": 2}),
        (3, {("a",): 2}, {"a": 2, "b": 2}),
        (3, {("a",): 1, ("b",): 2}, {"a": 1, "b": 2}),
        (0, {("a",): 2, ("b",): 2}, {"a": 2, "b": 2}),
        (0, {}, {}),
        (2, {("a",): 5, ("b",): 0}, {"a": 2}),
    ],
)
def test_what_an_assignment_still_takes(
    left: int, present: dict[tuple[str, ...], int], kept: dict[str, int]
) -> None:
    found = assignment_without_done_pods(SPOTS, left, present)
    assert {values[-1]: count for values, count in found.domains} == kept
