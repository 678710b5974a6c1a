"""Whose reservation is taken back, and whose is not."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Assignment, Evict
from tests.unit.assigner.builders import (
    RACK,
    admit_all,
    cache_with,
    cluster_queue,
    domains,
    fx_a,
    local_queue,
    plan_cycle,
    podset,
    workload,
)

PODSETS = [podset(count=4, requests={"cpu": "4"}, topology={"required": RACK})]


def held(**more: Any) -> tuple[Cache, Assignment]:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", PODSETS))
    assignment = admit_all(cache)["w"]
    cache.set_workload(workload("w", PODSETS, version="2", assignment=assignment, **more))
    return cache, assignment


def test_draining_a_cluster_queue_evicts_what_it_admitted() -> None:
    cache, _ = held()
    cache.set_cluster_queue(cluster_queue(stopPolicy="Hold"))
    assert plan_cycle(cache) == []
    cache.set_cluster_queue(cluster_queue(stopPolicy="HoldAndDrain"))
    assert plan_cycle(cache) == [
        Evict("team/w", "ClusterQueueStopped", "The ClusterQueue is stopped")
    ]


def test_draining_a_local_queue_evicts_what_came_through_it() -> None:
    cache, _ = held()
    cache.set_local_queue(local_queue(stopPolicy="HoldAndDrain"))
    assert plan_cycle(cache) == [Evict("team/w", "LocalQueueStopped", "The LocalQueue is stopped")]


def test_switching_off_an_admitted_workload_evicts_it_once() -> None:
    cache, assignment = held(active=False)
    assert plan_cycle(cache) == [Evict("team/w", "Deactivated", "The workload is deactivated")]
    told = {"Evicted": ("True", "Deactivated", "")}
    cache.set_workload(
        workload("w", PODSETS, version="3", assignment=assignment, active=False, conditions=told)
    )
    assert plan_cycle(cache) == []


@pytest.mark.requirement("TAS-23")
def test_a_broken_node_changes_nothing_for_who_runs_there() -> None:
    cache, assignment = held()
    host = next(iter(domains(assignment)))
    cache.drop_node(host)
    assert plan_cycle(cache) == []
    assert cache.usages["team/w"].assignments["main"] == assignment.podsets[0].topology


@pytest.mark.parametrize("policy", ["Hold", "HoldAndDrain"])
@pytest.mark.parametrize("queue", ["ClusterQueue", "LocalQueue"])
def test_a_reservation_that_is_no_admission_yet_is_cleared_by_either_policy(
    policy: str, queue: str
) -> None:
    waiting = {"Admitted": ("False", "UnsatisfiedAdmissionChecks", "")}
    cache, _ = held(conditions=waiting)
    if queue == "ClusterQueue":
        cache.set_cluster_queue(cluster_queue(stopPolicy=policy))
    else:
        cache.set_local_queue(local_queue(stopPolicy=policy))
    (decision,) = plan_cycle(cache)
    assert isinstance(decision, Evict)
    assert decision.reason == f"{queue}Stopped"
