"""Traps of the field that are about decisions as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.assigner.builders import (
    RACK,
    admissions,
    admit_all,
    cache_with,
    cluster_queue,
    domains,
    fx_a,
    local_queue,
    node,
    plan_cycle,
    podset,
    topology,
    workload,
)


def racked(count: int) -> list[dict[str, Any]]:
    """A PodSet that fills half a rack of FX-A with each two pods."""
    return [podset(count=count, requests={"cpu": "4"}, topology={"required": RACK})]


@pytest.mark.field_note("C12")
def test_many_queues_that_would_choose_the_same_rack_are_all_served_in_one_cycle() -> None:
    cache = cache_with(fx_a())
    for index in range(4):
        cache.set_cluster_queue(cluster_queue(f"cq{index}"))
        cache.set_local_queue(local_queue(f"lq{index}", f"cq{index}"))
        cache.set_workload(workload(f"w{index}", racked(4), queue=f"lq{index}"))
    granted = admissions(plan_cycle(cache))
    assert len(granted) == 4
    assert len({host for assignment in granted.values() for host in domains(assignment)}) == 8


@pytest.mark.field_note("C20")
@pytest.mark.requirement("TAS-23")
def test_whatever_comes_and_goes_around_it_a_running_workload_is_not_decided_again() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(workload("w", racked(4)))
    assignment = admit_all(cache)["w"]
    cache.set_workload(workload("w", racked(4), version="2", assignment=assignment))
    for broken in domains(assignment):
        cache.drop_node(broken)
        assert plan_cycle(cache) == []
    changes: list[Callable[[], None]] = [
        lambda: cache.drop_topology("default"),
        lambda: cache.set_topology(topology()),
        lambda: cache.drop_flavor("tas"),
        lambda: cache.drop_cluster_queue("cq"),
        lambda: cache.drop_local_queue("team/lq"),
        lambda: cache.drop_namespace("team"),
    ]
    for change in changes:
        change()
        assert plan_cycle(cache) == []
        assert cache.usages["team/w"].cluster_queue == "cq"


@pytest.mark.field_note("C21")
@pytest.mark.requirement("TAS-16")
def test_with_broken_nodes_nothing_is_admitted_without_an_assignment() -> None:
    cache = cache_with([node("n", cpu="16", ready=False)])
    implied = [podset(requests={"cpu": "4"})]
    for name, podsets in (("asks", racked(2)), ("implied", implied)):
        cache.set_workload(workload(name, podsets))
    assert admissions(plan_cycle(cache)) == {}
    cache.set_node(node("n", cpu="16"))
    granted = admissions(plan_cycle(cache))
    assert {name: domains(assignment) for name, assignment in granted.items()} == {
        "asks": {"n": 2},
        "implied": {"n": 1},
    }
