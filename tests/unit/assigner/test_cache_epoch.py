"""When the epoch rises, and how long an assumed assignment stays charged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rackgate.wire import core
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Assignment
from tests.unit.assigner.builders import (
    RACK,
    admissions,
    cache_with,
    cluster_queue,
    flavor,
    local_queue,
    local_queue_status_of,
    namespace,
    node,
    plan_cycle,
    pod,
    podset,
    rebuild_matches,
    topology,
    workload,
)


def rises(cache: Cache, change: Callable[[], Any]) -> bool:
    before = cache.epoch
    change()
    return cache.epoch > before


@pytest.fixture
def cache() -> Cache:
    """One node, one Workload admitted with two pods of 1 cpu on it, one waiting."""
    cache = cache_with([node("a")])
    cache.set_workload(workload("w", [podset(count=2)]))
    assignment = admissions(plan_cycle(cache))["w"]
    cache.set_workload(workload("w", [podset(count=2)], version="2", assignment=assignment))
    cache.set_workload(workload("next", [podset(count=3)]))
    cache.flavor_topologies()
    return cache


def heartbeat(found: core.Node) -> core.Node:
    ready = core.Condition(type="Ready", status="True", last_transition_time="later")
    status = core.NodeStatus(found.status.allocatable, (ready,))
    return core.Node(found.metadata, found.spec, status)


@pytest.mark.field_note("C7")
def test_heartbeats_change_nothing(cache: Cache) -> None:
    trees = cache.flavor_topologies().by_flavor["tas"].tree
    assert not rises(cache, lambda: cache.set_node(heartbeat(node("a"))))
    assert cache.flavor_topologies().by_flavor["tas"].tree is trees


@pytest.mark.requirement("CAP-07")
@pytest.mark.parametrize(
    "change",
    [
        node("b"),
        node("a", "b1/r2"),
        node("a", cpu="5"),
        node("a", unschedulable=True),
        node("a", ready=False),
        node("a", taints=[{"key": "k", "effect": "NoSchedule"}]),
    ],
)
def test_labels_taints_allocatable_readiness_and_cordon_count(
    cache: Cache, change: core.Node
) -> None:
    assert rises(cache, lambda: cache.set_node(change))
    assert rebuild_matches(cache) == []


def test_nodes_of_no_flavor_wake_no_one(cache: Cache) -> None:
    assert not rises(cache, lambda: cache.set_node(node("x", labels={"pool": "web"})))
    assert not rises(cache, lambda: cache.set_pod(pod("web", "x")))


@pytest.mark.requirement("CAP-07")
def test_a_node_that_makes_room_lets_a_waiting_job_in(cache: Cache) -> None:
    assert admissions(plan_cycle(cache)) == {}
    assert rises(cache, lambda: cache.set_node(node("b")))
    assert list(admissions(plan_cycle(cache))) == ["next"]


@pytest.mark.requirement("CAP-07")
@pytest.mark.parametrize("change", [{"ready": False}, {"unschedulable": True}])
def test_a_node_that_stops_taking_pods_lets_no_one_in(cache: Cache, change: dict[str, Any]) -> None:
    cache.set_node(node("b"))
    assert list(admissions(plan_cycle(cache))) == ["next"]
    cache.set_node(node("b", **change))
    assert admissions(plan_cycle(cache)) == {}


def _give_back(cache: Cache) -> None:
    cache.set_workload(workload("w", [podset(count=2)], version="3"))


def _finish(cache: Cache) -> None:
    assignment = cache.workloads["team/w"].reserved
    done = {"Finished": ("True", "Succeeded", "")}
    cache.set_workload(
        workload("w", [podset(count=2)], version="3", assignment=assignment, conditions=done)
    )


@pytest.mark.requirement("CAP-08")
@pytest.mark.field_note("C6")
@pytest.mark.parametrize(
    "change",
    [
        _give_back,
        _finish,
        lambda cache: cache.drop_workload("team/w"),
        lambda cache: cache.drop_pod("team/other"),
        lambda cache: cache.set_pod(pod("other", "a", phase="Succeeded")),
        lambda cache: cache.set_cluster_queue(cluster_queue("cq", {"tas": {"cpu": "7"}})),
        lambda cache: cache.set_local_queue(local_queue(stopPolicy="Hold")),
        lambda cache: cache.set_namespace(namespace("team", a="b")),
        lambda cache: cache.set_flavor(flavor(tolerations=[{"operator": "Exists"}])),
        lambda cache: cache.set_topology(topology(levels=(RACK,))),
        lambda cache: cache.set_workload(workload("third")),
        lambda cache: cache.set_workload(workload("next", [podset(count=3)], priority=9)),
        lambda cache: cache.set_workload(workload("w", active=False, version="9")),
    ],
)
def test_whatever_could_let_someone_in_raises_the_epoch(
    cache: Cache, change: Callable[[Cache], None]
) -> None:
    cache.set_pod(pod("other", "a"))
    cache.flavor_topologies()
    assert rises(cache, lambda: change(cache))


def test_pods_that_sit_where_they_were_assigned_wake_no_one(cache: Cache) -> None:
    cache.flavor_topologies()
    assert not rises(cache, lambda: cache.set_pod(pod("w-0", "a", workload="w")))
    assert not rises(cache, lambda: cache.drop_pod("team/w-0"))


@pytest.mark.field_note("C15")
def test_a_pod_whose_place_goes_to_one_on_another_node_wakes_the_cycle(cache: Cache) -> None:
    cache.set_node(node("twin", host="a", ready=False))
    for name, on in (("w-0", "twin"), ("w-1", "twin"), ("w-2", "a")):
        cache.set_pod(pod(name, on, workload="w"))
    assert admissions(plan_cycle(cache)) == {}
    assert rises(cache, lambda: cache.drop_pod("team/w-0"))


def test_written_conditions_and_queue_statuses_wake_no_one(cache: Cache) -> None:
    told = {"QuotaReserved": ("False", "WaitingForQuota", "later")}
    again = workload("next", [podset(count=3)], version="7", conditions=told)
    assert not rises(cache, lambda: cache.set_workload(again))
    assert not rises(cache, lambda: cache.set_cluster_queue(cluster_queue()))
    assert not rises(cache, lambda: cache.set_local_queue(local_queue()))


def granted() -> tuple[Cache, Assignment]:
    cache = cache_with([node("a")])
    cache.set_workload(workload("w", [podset(count=3)], version="5"))
    return cache, admissions(plan_cycle(cache))["w"]


def free(cache: Cache) -> int:
    capacity = cache.flavor_topologies().by_flavor["tas"].capacity
    return int(capacity.free[0, capacity.rows["cpu"]])


@pytest.mark.requirement("CAP-11")
def test_an_assumed_admission_is_charged_and_not_planned_again() -> None:
    cache, assignment = granted()
    cache.assume("team/w", assignment)
    assert free(cache) == 1000
    assert plan_cycle(cache) == []
    assert local_queue_status_of(cache, "team/lq")["reservingWorkloads"] == 1


@pytest.mark.requirement("CAP-11")
def test_a_failed_write_gives_the_room_back() -> None:
    cache, assignment = granted()
    cache.assume("team/w", assignment)
    assert rises(cache, lambda: cache.forget("team/w"))
    assert free(cache) == 4000
    assert list(admissions(plan_cycle(cache))) == ["w"]


def test_an_older_event_does_not_end_an_assumption() -> None:
    cache, assignment = granted()
    cache.assume("team/w", assignment)
    cache.set_workload(workload("w", [podset(count=3)], version="6"))
    assert free(cache) == 1000
    cache.set_workload(workload("w", [podset(count=3)], version="7", assignment=assignment))
    assert cache.assumed == {}
    assert free(cache) == 1000
    cache.set_workload(workload("w", [podset(count=3)], version="8"))
    assert free(cache) == 4000


def test_a_confirmed_write_that_was_taken_back_unseen_does_not_leak() -> None:
    cache, assignment = granted()
    cache.assume("team/w", assignment)
    cache.confirm("team/w", "10")
    cache.set_workload(workload("w", [podset(count=3)], version="9"))
    assert free(cache) == 1000
    cache.set_workload(workload("w", [podset(count=3)], version="11"))
    assert (cache.assumed, free(cache)) == ({}, 4000)


def test_a_confirmation_after_the_watch_ends_the_assumption_at_once() -> None:
    cache, assignment = granted()
    cache.assume("team/w", assignment)
    cache.set_workload(workload("w", [podset(count=3)], version="10"))
    cache.confirm("team/w", "10")
    assert free(cache) == 4000


@pytest.mark.parametrize(
    "end",
    [
        lambda cache: cache.drop_workload("team/w"),
        lambda cache: cache.set_workload(
            workload("w", version="9", conditions={"Finished": ("True", "Failed", "")})
        ),
    ],
)
def test_an_assumption_ends_with_its_workload(end: Callable[[Cache], None]) -> None:
    cache, assignment = granted()
    cache.assume("team/w", assignment)
    end(cache)
    assert (cache.assumed, free(cache)) == ({}, 4000)
    cache.forget("team/w")
    cache.confirm("team/w", "12")
    assert rebuild_matches(cache) == []


def test_assuming_for_a_workload_that_is_gone_or_reserved_does_nothing() -> None:
    cache, assignment = granted()
    cache.drop_workload("team/w")
    cache.assume("team/w", assignment)
    assert (cache.assumed, free(cache)) == ({}, 4000)
