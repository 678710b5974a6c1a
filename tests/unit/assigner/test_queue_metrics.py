"""What a scrape tells about queues and topologies: computed from the cache as it is then."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest

from rackgate.runtime.metrics import REGISTRY, scraping
from rackgate.wire.kueue import RequeueState
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.queues.metrics import queue_families, topology_families
from rackgate_assigner.quota.admission_fair_sharing import AdmissionFairSharing, Moment
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    admissions,
    cache_with,
    cluster_queue,
    local_queue,
    node,
    plan_cycle,
    pod,
    podset,
    workload,
)


def scraped(cache: Cache) -> dict[tuple[str, tuple[str, ...]], float]:
    """All samples, by name without the prefix and values of the labels in their order."""
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for family in (*queue_families(cache, cache.features), *topology_families(cache)):
        for sample in family.samples:
            key = (sample.name.removeprefix("rackgate_"), tuple(sample.labels.values()))
            assert key not in found, key
            found[key] = sample.value
    return found


def of(cache: Cache, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one gauge."""
    return {labels: value for (found, labels), value in scraped(cache).items() if found == name}


def waiting(cache: Cache, name: str, reason: str, **more: Any) -> None:
    """Show the cache a Workload that waits for a reason."""
    told = {"QuotaReserved": ("False", reason, "")} if reason else {}
    cache.set_workload(workload(name, [podset(count=1)], conditions=told, **more))


def admitted(cache: Cache, name: str, count: int) -> None:
    """Admit a Workload of pods of 1 cpu and show the cache the result."""
    cache.set_workload(workload(name, [podset(count=count)]))
    assignment = admissions(plan_cycle(cache))[name]
    cache.set_workload(workload(name, [podset(count=count)], version="2", assignment=assignment))


@pytest.mark.requirement("OPS-09")
def test_who_can_never_be_admitted_as_things_are_is_not_active() -> None:
    cache = cache_with([node("a")])
    for number, reason in enumerate(
        (
            "",
            "WaitingForQuota",
            "TopologyPlacementFailed",
            "ExceedsMaxQuota",
            "NoMatchingFlavor",
            "Misconfigured",
            "Suspended",
        )
    ):
        waiting(cache, f"w{number}", reason)
    assert of(cache, "pending_workloads") == {("cq", "active"): 3, ("cq", "inadmissible"): 4}
    assert of(cache, "local_queue_pending_workloads") == {
        ("lq", "team", "active"): 3,
        ("lq", "team", "inadmissible"): 4,
    }
    assert of(cache, "unadmitted_workloads") == {
        ("cq", "PendingEvaluation"): 1,
        ("cq", "WaitingForQuota"): 1,
        ("cq", "TopologyPlacementFailed"): 1,
        ("cq", "ExceedsMaxQuota"): 1,
        ("cq", "NoMatchingFlavor"): 1,
        ("cq", "Misconfigured"): 1,
        ("cq", "Suspended"): 1,
    }
    waiting(cache, "w3", "WaitingForQuota", version="3")
    assert of(cache, "pending_workloads") == {("cq", "active"): 4, ("cq", "inadmissible"): 3}


@pytest.mark.requirement("OPS-09")
def test_the_tree_of_cohorts_is_reported_with_what_its_queues_hold() -> None:
    cache = cache_with([node("a")])
    cache.set_cluster_queue(cluster_queue(cohortName="team"))
    admitted(cache, "w", 2)
    assert of(cache, "cluster_queue_info") == {("cq", "team", "team"): 1}
    assert of(cache, "cohort_info") == {("team", "", "team"): 1}
    assert of(cache, "cohort_subtree_admitted_active_workloads") == {("team",): 1}
    held = of(cache, "cohort_subtree_resource_reservations")
    assert held[("team", "tas", "cpu")] == 2
    quota = of(cache, "cohort_subtree_quota")
    assert quota[("team", "tas", "cpu")] > 2


@pytest.mark.requirement("OPS-09")
def test_what_is_free_in_domains_with_pods_is_fragmented() -> None:
    cache = cache_with([node("a"), node("b")])
    total = sum(v for k, v in of(cache, "topology_free").items() if k[1] == "cpu")
    assert of(cache, "topology_fragmented_free")[("tas", HOST, "cpu")] == 0
    admitted(cache, "w", 1)
    fragmented = of(cache, "topology_fragmented_free")
    assert fragmented[("tas", HOST, "cpu")] == total / 2 - 1


@pytest.mark.requirement("OPS-09")
def test_who_pauses_after_an_eviction_is_not_active() -> None:
    cache = cache_with([node("a")])
    waiting(cache, "next", "WaitingForQuota")
    told = {"QuotaReserved": ("False", "PendingEvaluation", "")}
    lost = workload("lost", [podset(count=1)], conditions=told)
    pause = RequeueState(1, "2026-08-01T12:10:00Z")
    status = msgspec.structs.replace(lost.status, requeue_state=pause)
    cache.set_workload(msgspec.structs.replace(lost, status=status))
    assert of(cache, "pending_workloads") == {("cq", "active"): 1, ("cq", "inadmissible"): 1}
    assert of(cache, "unadmitted_workloads") == {
        ("cq", "WaitingForQuota"): 1,
        ("cq", "BackingOff"): 1,
    }
    waiting(cache, "lost", "PendingEvaluation", version="2")
    assert of(cache, "pending_workloads") == {("cq", "active"): 2, ("cq", "inadmissible"): 0}


@pytest.mark.requirement("OPS-09")
def test_who_waits_in_a_queue_that_leads_nowhere_is_counted() -> None:
    cache = cache_with([node("a")])
    waiting(cache, "w", "Misconfigured")
    cache.drop_local_queue("team/lq")
    assert of(cache, "unadmitted_workloads") == {("", "Misconfigured"): 1}
    assert of(cache, "pending_workloads") == {("cq", "active"): 0, ("cq", "inadmissible"): 0}
    cache.set_local_queue(local_queue("lq", "elsewhere"))
    assert of(cache, "unadmitted_workloads") == {("", "Misconfigured"): 1}


@pytest.mark.requirement("OPS-09")
def test_quota_is_reported_in_cores_and_bytes_with_zeros() -> None:
    cache = cache_with([node("a")])
    quotas = {"tas": {"cpu": "2500m", "memory": "1Gi"}}
    cache.set_cluster_queue(cluster_queue("cq", quotas))
    assert of(cache, "cluster_queue_nominal_quota") == {
        ("cq", "tas", "cpu"): 2.5,
        ("cq", "tas", "memory"): 2**30,
    }
    assert of(cache, "cluster_queue_resource_usage") == {
        ("cq", "tas", "cpu"): 0.0,
        ("cq", "tas", "memory"): 0.0,
    }
    admitted(cache, "w", count=2)
    assert of(cache, "cluster_queue_resource_usage")["cq", "tas", "cpu"] == 2.0
    assert of(cache, "cluster_queue_resource_reservation")["cq", "tas", "cpu"] == 2.0
    assert of(cache, "local_queue_resource_usage")["lq", "team", "tas", "cpu"] == 2.0
    assert of(cache, "local_queue_resource_reservation")["lq", "team", "tas", "cpu"] == 2.0
    assert of(cache, "reserving_active_workloads") == {("cq",): 1}
    assert of(cache, "admitted_active_workloads") == {("cq",): 1}
    assert of(cache, "local_queue_reserving_active_workloads") == {("lq", "team"): 1}
    assert of(cache, "local_queue_admitted_active_workloads") == {("lq", "team"): 1}


@pytest.mark.requirement("OPS-09")
def test_a_queue_that_is_gone_has_no_series() -> None:
    cache = cache_with([node("a")])
    assert of(cache, "cluster_queue_status") == {("cq", "active"): 1, ("cq", "pending"): 0}
    assert of(cache, "local_queue_status") == {
        ("lq", "team", "active"): 1,
        ("lq", "team", "pending"): 0,
    }
    cache.set_cluster_queue(cluster_queue("cq", stopPolicy="Hold"))
    assert of(cache, "cluster_queue_status") == {("cq", "active"): 0, ("cq", "pending"): 1}
    assert of(cache, "local_queue_status")["lq", "team", "active"] == 0
    cache.drop_cluster_queue("cq")
    cache.drop_local_queue("team/lq")
    named = {labels for (_, labels) in scraped(cache) if "cq" in labels or "lq" in labels}
    assert named == set()


@pytest.mark.requirement("OPS-09")
def test_room_of_domains_is_reported_by_level() -> None:
    cache = cache_with([node("a"), node("b"), node("c", "b1/r2"), node("d", "b1/r2")])
    cache.set_pod(pod("foreign", "a", cpu="1"))
    admitted(cache, "w", count=1)
    rooms = scraped(cache)
    assert [rooms["topology_domains", ("tas", level)] for level in (BLOCK, RACK, HOST)] == [1, 2, 4]
    idle = [rooms["topology_idle_domains", ("tas", level)] for level in (BLOCK, RACK, HOST)]
    assert idle == [0, 1, 3], "pods that others placed do not make a domain busy"
    assert rooms["topology_free", ("tas", "cpu")] == 14.0
    largest = [
        rooms["topology_largest_free", ("tas", level, "cpu")] for level in (BLOCK, RACK, HOST)
    ]
    assert largest == [14.0, 8.0, 4.0]
    cache.set_pod(pod("huge", "d", cpu="9"))
    assert scraped(cache)["topology_free", ("tas", "cpu")] == 10.0, "never below zero for one node"
    for name in "abcd":
        cache.drop_node(name)
    rooms = scraped(cache)
    assert rooms["topology_domains", ("tas", HOST)] == 0
    assert rooms["topology_free", ("tas", "pods")] == 0.0


@pytest.mark.requirement("OPS-09")
def test_only_who_acts_serves_them() -> None:
    cache = cache_with([node("a")])
    name, labels = "rackgate_cluster_queue_status", {"cluster_queue": "cq", "status": "active"}
    assert REGISTRY.get_sample_value(name, labels) is None
    with scraping(lambda: queue_families(cache, cache.features)):
        assert REGISTRY.get_sample_value(name, labels) == 1
        cache.drop_cluster_queue("cq")
        assert REGISTRY.get_sample_value(name, labels) is None
        cache.set_cluster_queue(cluster_queue("cq"))
        assert REGISTRY.get_sample_value(name, labels) == 1
    assert REGISTRY.get_sample_value(name, labels) is None


def test_the_usage_that_orders_local_queues_is_reported_with_admission_fair_sharing_alone() -> None:
    name = "local_queue_admission_fair_sharing_usage"
    assert of(cache_with(), name) == {}
    rules = AdmissionFairSharing(half_life_s=60, resource_weights={"cpu": 3.0})
    cache = Cache(admission_fair_sharing=rules)
    for queue, weight in (("lq", "2"), ("last", "0"), ("new", "1")):
        cache.set_local_queue(local_queue(queue, fairSharing={"weight": weight}))
    assert cache.usage_history is not None
    cache.usage_history.observe("team/lq", {"cpu": 4.0, "gpu": 2.0}, Moment(0, 0))
    assert of(cache, name) == {
        ("lq", "team"): 7.0,
        ("last", "team"): inf,
        ("new", "team"): 0.0,
    }
