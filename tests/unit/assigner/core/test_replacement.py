"""A node broke: its pods move, the others stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.topology.capacity import Capacity, charge_assignment
from rackgate_assigner.topology.model import Placement, PodSetRequest, Replacement
from rackgate_assigner.topology.placement.replace import replace
from tests.unit.assigner.core.clusters import BLOCK, HOST, RACK, capacity, podset, refusal, spots

# block   b1                  b2
# rack    r1          r2      r3
# host    x1  x2  x3  x4  x5  x6
ROOMS = {
    "b1/r1/x1": 2,
    "b1/r1/x2": 2,
    "b1/r1/x3": 2,
    "b1/r2/x4": 2,
    "b1/r2/x5": 2,
    "b2/r3/x6": 2,
}


def at(pods: Mapping[str, int]) -> TopologyAssignment:
    return TopologyAssignment((HOST,), tuple(((host,), count) for host, count in pods.items()))


def moved(
    wants: PodSetRequest,
    pods: Mapping[str, int],
    *broken: str,
    rooms: Mapping[str, int] = ROOMS,
    single: bool = False,
    **options: Any,
) -> Placement:
    """Break hosts that hold some of a PodSet's pods: they are gone from the tree."""
    left = {path: cpu for path, cpu in rooms.items() if path.split("/")[-1] not in broken}
    room: Capacity = capacity(left)
    charge_assignment(room, wants.requests, at(pods))
    given = Replacement(tuple(broken), {"main": at(pods)}, single)
    return replace(room.tree, room, [wants], given, topology_name="t", **options)


@pytest.mark.field_note("N8")
def test_new_pods_stay_in_the_required_domain_of_the_kept_ones() -> None:
    answer = moved(podset(4, required=RACK), {"x1": 2, "x2": 2}, "x1")
    assert spots(answer) == {"x2": 2, "x3": 2}
    crowded = moved(podset(4, required=RACK), {"x4": 2, "x5": 2}, "x4")
    assert refusal(crowded) == (
        'topology "t" doesn\'t allow to fit any of 2 pod(s). Total nodes: 5; '
        'excluded: resource "cpu": 1, topologyDomain: 4'
    )


def test_without_a_required_level_new_pods_may_go_anywhere() -> None:
    answer = moved(podset(4, preferred=RACK), {"x4": 2, "x5": 2}, "x4")
    assert spots(answer) == {"x5": 2, "x6": 2}


def test_a_torn_slice_is_fixed_where_the_rest_of_it_is() -> None:
    wants = podset(8, preferred=BLOCK, slices={RACK: 4})
    answer = moved(wants, {"x1": 2, "x2": 2, "x4": 2, "x5": 2}, "x1")
    assert spots(answer) == {"x2": 2, "x3": 2, "x4": 2, "x5": 2}


@pytest.mark.field_note("N7")
def test_only_the_first_broken_node_is_replaced() -> None:
    room = capacity({path: cpu for path, cpu in ROOMS.items() if path != "b1/r1/x1"})
    given = Replacement(("x1", "x4"), {"main": at({"x1": 2, "x4": 2})})
    charge_assignment(room, {"cpu": 1}, at({"x1": 2, "x4": 2}))
    answer = replace(room.tree, room, [podset(4)], given, topology_name="t")
    assert spots(answer) == {"x2": 2, "x4": 2}


@pytest.mark.field_note("P10")
def test_a_domain_that_is_gone_beside_the_broken_node_is_named() -> None:
    answer = moved(podset(4), {"x1": 2, "x2": 2}, "x1", "x2")
    assert refusal(answer) == (
        "Cannot replace the node, because the existing topologyAssignment is invalid, "
        "as it contains the stale domain x2"
    )


def test_when_nothing_was_on_the_broken_node_there_is_nothing_to_find() -> None:
    answer = moved(podset(2), {"x2": 2}, "x1")
    assert refusal(answer) == "cannot find replacement assignment for unhealthy node: x1"


@pytest.mark.field_note("N4")
def test_a_workload_owned_by_one_pod_keeps_its_assignment() -> None:
    wants = podset(2, required=HOST)
    assert spots(moved(wants, {"x1": 2}, "x1", single=True)) == {"x1": 2}
    off = {"SkipReassignmentForPodOwnedWorkloads": False}
    assert spots(moved(wants, {"x1": 2}, "x1", single=True, features=Features.of(off))) == {"x2": 2}


def test_podsets_without_an_assignment_are_left_alone() -> None:
    room = capacity(ROOMS)
    given = Replacement(("x1",), {})
    answer = replace(room.tree, room, [podset(1)], given, topology_name="t")
    assert answer == Placement({})


def test_without_a_broken_node_everything_stays() -> None:
    assert spots(moved(podset(2), {"x2": 2})) == {"x2": 2}


@pytest.mark.requirement("TAS-21")
def test_a_group_is_replaced_where_its_first_member_stands_and_a_failure_ends_the_walk() -> None:
    names = ("first", "alone", "second")
    wants = [podset(1, name=name, group="g" if name != "alone" else None) for name in names]
    given = Replacement(("gone",), {name: at({"gone": 1}) for name in names})
    two_free = capacity({"b1/r1/x1": 1, "b1/r1/x2": 1})
    answer = replace(two_free.tree, two_free, wants, given, topology_name="t")
    assert list(answer.assignments) == ["first", "second"]
    assert answer.failure is not None
    assert answer.failure.podset == "alone"
    one_free = capacity({"b1/r1/x1": 1})
    answer = replace(one_free.tree, one_free, wants, given, topology_name="t")
    assert list(answer.assignments) == ["first"]
    assert answer.failure is not None
    assert answer.failure.podset == "second"
