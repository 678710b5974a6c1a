"""Statuses, and facts for people."""

from __future__ import annotations

import pytest

from rackgate_assigner.cache.cache import Cache
from tests.unit.assigner.builders import (
    RACK,
    admissions,
    cache_with,
    cluster_queue,
    cluster_queue_status_of,
    flavor,
    fx_a,
    local_queue,
    local_queue_status_of,
    missing_levels_of,
    node,
    overlaps_of,
    plan_cycle,
    podset,
    rebuild_matches,
    topology,
    workload,
)


def test_statuses_count_and_sum_what_waits_and_what_is_held() -> None:
    queue = cluster_queue("cq", {"tas": {"cpu": "20", "memory": "64Gi"}}, generation=7)
    cache = cache_with(fx_a(), queue=queue)
    asked = [podset(count=3, requests={"cpu": "1500m", "memory": "1Gi"})]
    cache.set_workload(workload("w", asked))
    assignment = admissions(plan_cycle(cache))["w"]
    only_reserved = {"Admitted": ("False", "NoReservation", "")}
    cache.set_workload(
        workload("w", asked, version="2", assignment=assignment, conditions=only_reserved)
    )
    cache.set_workload(workload("waits"))
    cache.set_workload(workload("off", active=False))
    assert cluster_queue_status_of(cache, "cq") == {
        "conditions": [
            {
                "type": "Active",
                "status": "True",
                "reason": "Ready",
                "message": "Can admit new workloads",
                "observedGeneration": 7,
            }
        ],
        "pendingWorkloads": 1,
        "reservingWorkloads": 1,
        "admittedWorkloads": 0,
        "flavorsReservation": [
            {
                "name": "tas",
                "resources": [
                    {"name": "cpu", "total": "4500m", "borrowed": "0"},
                    {"name": "memory", "total": "3Gi", "borrowed": "0"},
                ],
            }
        ],
        "flavorsUsage": [
            {
                "name": "tas",
                "resources": [
                    {"name": "cpu", "total": "0", "borrowed": "0"},
                    {"name": "memory", "total": "0", "borrowed": "0"},
                ],
            }
        ],
    }
    cache.set_workload(workload("w", asked, version="3", assignment=assignment))
    local = local_queue_status_of(cache, "team/lq")
    assert (local["pendingWorkloads"], local["admittedWorkloads"]) == (1, 1)
    assert local["flavorsUsage"][0]["resources"][0] == {"name": "cpu", "total": "4500m"}


def test_a_local_queue_without_its_cluster_queue_still_counts() -> None:
    cache = cache_with()
    cache.set_local_queue(local_queue("lost", "nowhere"))
    cache.set_workload(workload("w", queue="lost"))
    status = local_queue_status_of(cache, "team/lost")
    assert (status["pendingWorkloads"], status["flavorsUsage"]) == (1, [])


def test_a_queue_that_is_not_there_has_no_status() -> None:
    with pytest.raises(KeyError):
        cluster_queue_status_of(cache_with(), "nowhere")


@pytest.mark.requirement("TAS-04")
@pytest.mark.field_note("C18")
def test_nodes_that_lack_level_labels_are_named_with_what_they_lack() -> None:
    bare = node("bare")
    bare.metadata.labels.pop(RACK)
    cache = cache_with([node("good"), bare, node("far", labels={"pool": "web"})])
    assert missing_levels_of(cache, "tas") == {"bare": (RACK,)}
    assert missing_levels_of(cache, "nowhere") == {}


def test_a_frozen_snapshot_is_not_used_up_for_the_cache() -> None:
    cache = cache_with([node("a")])
    cache.set_workload(workload("w"))
    first = cache.snapshot()
    assert len(first.pending) == 1
    assert plan_cycle(cache) == plan_cycle(cache)
    assert rebuild_matches(cache) == []


def test_a_divergence_is_named() -> None:
    cache = cache_with([node("a")])
    cache.set_workload(workload("w"))
    cache.assume("team/w", admissions(plan_cycle(cache))["w"])
    cache.flavor_topologies().by_flavor["tas"].capacity.charge(0, {"cpu": 1}, 1)
    cache.totals.cluster_queues["cq"].reserving = 9
    assert rebuild_matches(cache) == ["clusterQueue cq", "flavor tas: usage", "flavor tas: free"]


def test_trees_are_kept_while_their_nodes_are() -> None:
    cache = cache_with([node("a"), node("b", labels={"pool": "other"})])
    cache.set_flavor(flavor("other", node_labels={"pool": "other"}))
    before = {
        name: flavor_topology.tree
        for name, flavor_topology in cache.flavor_topologies().by_flavor.items()
    }
    cache.set_node(node("b", labels={"pool": "other"}, cpu="9"))
    after = {
        name: flavor_topology.tree
        for name, flavor_topology in cache.flavor_topologies().by_flavor.items()
    }
    assert after["tas"] is before["tas"]
    assert after["other"] is not before["other"]


def test_an_empty_cache_answers() -> None:
    cache = Cache()
    cache.set_topology(topology())
    cache.set_flavor(flavor())
    assert (plan_cycle(cache), overlaps_of(cache), rebuild_matches(cache)) == ([], [], [])
