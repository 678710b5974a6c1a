"""Topologies switched off, and resources that do not count."""

from __future__ import annotations

import pytest

from rackgate.features import Features
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Admit, Requeue
from tests.unit.assigner.builders import (
    RACK,
    admissions,
    admit_all,
    cache_with,
    cluster_queue,
    cluster_queue_status_of,
    domains,
    fx_a,
    node,
    plan_cycle,
    podset,
    topology,
    workload,
)

OFF = {"TopologyAwareScheduling": False}
GPU, VENDOR = "nvidia.com/gpu", "example.com/license"


@pytest.mark.field_note("C22")
def test_switched_off_flavors_of_a_topology_count_as_plain() -> None:
    cache = cache_with(fx_a(), queue=cluster_queue("cq", {"tas": {"cpu": "4"}}), features=OFF)
    cache.set_workload(workload("w1", [podset(count=3)]))
    cache.set_workload(workload("w2", [podset(count=3)]))
    admit, hold = plan_cycle(cache)
    assert isinstance(admit, Admit)
    assert admit.assignment.podsets[0].topology is None
    assert admit.assignment.podsets[0].flavors == {"cpu": "tas"}
    assert isinstance(hold, Requeue)
    assert hold.reason == "WaitingForQuota"


@pytest.mark.field_note("C22")
@pytest.mark.parametrize("asked", [{"required": RACK}, {"unconstrained": True}, {"required": "zz"}])
def test_switched_off_who_asks_for_a_topology_waits_and_is_reported(
    asked: dict[str, object],
) -> None:
    cache = cache_with(fx_a(), features=OFF)
    cache.set_workload(workload("w", [podset(topology=asked)]))
    assert plan_cycle(cache) == [
        Requeue(
            "team/w",
            "NoMatchingFlavor",
            "couldn't assign flavors to pod set main: "
            'Flavor "tas" does not support TopologyAwareScheduling',
        )
    ]
    assert list(plan_cycle(cache, features=Features.of({}))) != plan_cycle(cache)


@pytest.mark.field_note("C22")
def test_switched_off_a_queue_stays_active_and_says_so() -> None:
    cache = cache_with(fx_a(), queue=cluster_queue(cohortName="team"), features=OFF)
    cache.drop_topology("default")
    (condition,) = cluster_queue_status_of(cache, "cq")["conditions"]
    assert condition["status"] == "True"
    assert "feature gate TopologyAwareScheduling is off" in condition["message"]
    assert "TAS flavors count as plain: [tas]" in condition["message"]
    cache.set_topology(topology())
    (condition,) = cluster_queue_status_of(
        cache, "cq", features=Features.of({"TASWithCohorts": False})
    )["conditions"]
    assert (condition["status"], condition["reason"]) == (
        "False",
        "NotSupportedWithTopologyAwareScheduling",
    )


@pytest.mark.field_note("C22")
def test_what_was_placed_keeps_its_room_while_topologies_are_off() -> None:
    cache = cache_with([node("a", cpu="4")])
    cache.set_workload(workload("w1", [podset(count=3)]))
    (granted,) = admit_all(cache).values()
    assert domains(granted) == {"a": 3}
    cache.set_workload(workload("w2", [podset(count=2)]))
    assert list(admissions(plan_cycle(cache, features=Features.of(OFF)))) == ["w2"]
    (hold,) = plan_cycle(cache, features=Features.of({}))
    assert isinstance(hold, Requeue)
    assert hold.reason == "TopologyPlacementFailed"


def excluding(*prefixes: str) -> Cache:
    cache = cache_with([node("a", cpu="4")])
    cache.excluded = prefixes
    return cache


@pytest.mark.field_note("C16")
def test_an_excluded_resource_counts_neither_for_quota_nor_for_room() -> None:
    asked = [podset(count=2, requests={"cpu": "1", VENDOR: "3"})]
    counting = excluding()
    counting.set_workload(workload("w", asked))
    (hold,) = plan_cycle(counting)
    assert isinstance(hold, Requeue)
    assert hold.message.endswith(f"resource {VENDOR} unavailable in ClusterQueue")
    cache = excluding("example.com/", "other.example/")
    cache.set_workload(workload("w", asked))
    (admit,) = plan_cycle(cache)
    assert isinstance(admit, Admit)
    assert admit.assignment.podsets[0].usage == {"cpu": 2000}
    assert domains(admit.assignment) == {"a": 2}


@pytest.mark.field_note("C16")
def test_a_prefix_excludes_nothing_in_the_middle_of_a_name() -> None:
    cache = excluding("gpu", "com/")
    cache.set_workload(workload("w", [podset(requests={"cpu": "1", GPU: "1"})]))
    (hold,) = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    assert f"resource {GPU} unavailable" in hold.message


@pytest.mark.field_note("C16")
def test_equal_but_for_what_is_excluded_is_equal() -> None:
    cache = excluding("example.com/")
    cache.set_workload(workload("a", [podset(requests={"cpu": "9", VENDOR: "1"})]))
    cache.set_workload(workload("b", [podset(requests={"cpu": "9", VENDOR: "2"})]))
    assert cache.workloads["team/a"].shape == cache.workloads["team/b"].shape
