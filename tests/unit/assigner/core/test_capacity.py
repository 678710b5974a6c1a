"""Charging, giving back, snapshots, and flavors that share nodes."""

from __future__ import annotations

import numpy as np
import pytest

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.topology.capacity import (
    CHARGE_LIMIT,
    Capacity,
    charge_assignment,
)
from rackgate_assigner.topology.tree import TopologyTree
from tests.unit.assigner.core.clusters import (
    HOST,
    LEVELS,
    ask,
    capacity,
    node,
    podset,
    refusal,
    spots,
)


@pytest.mark.requirement("CAP-02", "CAP-04")
@pytest.mark.field_note("C8")
def test_a_charge_takes_requests_and_one_of_pods_per_pod() -> None:
    room = capacity({"b1/r1/x1": 8})
    room.charge(0, {"cpu": 3}, 2)
    assert room.usage.tolist() == [[6, 2]]
    assert room.free.tolist() == [[2, 108]]
    assert room.allocatable.tolist() == [[8, 110]]
    room.charge(0, {"cpu": 3}, -2)
    assert not room.usage.any()
    assert room.free.tolist() == room.allocatable.tolist()


@pytest.mark.requirement("CAP-03")
def test_other_pods_take_room_that_an_empty_simulation_does_not_give_back() -> None:
    room = capacity({"b1/r1/x1": 8})
    room.charge(0, {"cpu": 4}, 1)
    room.charge_other(0, {"cpu": 3})
    assert (room.allocatable - room.free - room.usage).tolist() == [[3, 1]]
    assert ask(room, podset(2)).failure is not None
    assert spots(ask(room, podset(5), simulate_empty=True)) == {"x1": 5}
    assert ask(room, podset(6), simulate_empty=True).failure is not None


@pytest.mark.requirement("CAP-04")
def test_an_overcommitted_leaf_counts_as_full_and_not_as_a_debt_of_its_rack() -> None:
    room = capacity({"b1/r1/x1": 4, "b1/r1/x2": 4})
    room.charge_other(0, {"cpu": 100})
    assert room.free[0].tolist() == [-96, 109]
    assert spots(ask(room, podset(4, required="rack"))) == {"x2": 4}


def test_a_snapshot_and_its_origin_do_not_see_each_others_charges() -> None:
    room = capacity({"b1/r1/x1": 8})
    first, second = room.copy(), room.copy()
    room.charge(0, {"cpu": 1}, 1)
    first.charge(0, {"cpu": 2}, 1)
    first.copy().charge_leaves([0], {"cpu": 5}, [1])
    assert [c.usage[0, 0] for c in (room, first, second)] == [1, 2, 0]


def test_the_matrices_cannot_be_written_to_from_outside() -> None:
    room = capacity({"b1/r1/x1": 8})
    for matrix in (room.free, room.usage, room.allocatable):
        with pytest.raises(ValueError, match="read-only"):
            matrix[0, 0] = 1


@pytest.mark.field_note("C16")
def test_a_resource_that_no_node_offers_never_fits_and_charging_it_changes_nothing() -> None:
    room = capacity({"b1/r1/x1": 8})
    room.charge(0, {"example.com/gpu": 5}, 1)
    assert room.free.tolist() == [[8, 109]]
    wants = podset(1)
    wants = type(wants)("main", 1, {"example.com/gpu": 1})
    assert refusal(ask(room, wants)).endswith('excluded: resource "example.com/gpu": 1')
    assert spots(ask(room, type(wants)("main", 1, {"example.com/gpu": 0}))) == {"x1": 1}


@pytest.mark.field_note("C16")
def test_absurd_charges_are_clamped_and_given_back_exactly() -> None:
    room = capacity({"b1/r1/x1": 8})
    before = room.free.copy()
    room.charge(0, {"cpu": 2**70}, 2**31)
    assert room.free[0, 0] == 8 - CHARGE_LIMIT
    room.charge(0, {"cpu": 2**70}, -(2**31))
    assert np.array_equal(room.free, before)


def assignment(*domains: tuple[str, int], level: str = HOST) -> TopologyAssignment:
    return TopologyAssignment((level,), tuple(((host,), count) for host, count in domains))


@pytest.mark.requirement("CAP-02")
def test_an_assignment_is_charged_leaf_by_leaf_and_unknown_domains_are_ignored() -> None:
    room = capacity({"b1/r1/x1": 8, "b1/r1/x2": 8})
    gone = assignment(("x1", 2), ("gone", 9), ("x2", 1), ("x1", 1))
    charge_assignment(room, {"cpu": 2}, gone)
    assert room.usage.tolist() == [[6, 3], [2, 1]]
    charge_assignment(room, {"cpu": 2}, gone, -1)
    assert not room.usage.any()


@pytest.mark.field_note("C13", "C15")
def test_flavors_that_share_a_host_share_its_usage_whatever_their_lowest_level() -> None:
    nodes = [node("b1/r1/x1", name="node-1"), node("b1/r2/x2", name="node-2")]
    by_host = Capacity(TopologyTree.build(LEVELS, nodes))
    by_rack = Capacity(TopologyTree.build(LEVELS[:2], nodes))
    elsewhere = Capacity(TopologyTree.build(LEVELS, [node("b1/r1/x9")]))
    for room in (by_host, by_rack, elsewhere):
        charge_assignment(room, {"cpu": 1}, assignment(("x2", 3)))
    for room in (by_host, by_rack, elsewhere):
        leaf = room.tree.leaf_of_host("x1")
        if leaf is not None:
            room.charge_other(leaf, {"cpu": 2})
    assert by_host.free.tolist() == by_rack.free.tolist() == [[2, 109], [1, 107]]
    assert by_host.usage.tolist() == by_rack.usage.tolist() == [[0, 0], [3, 3]]
    assert elsewhere.free.tolist() == [[4, 110]]


def test_an_assignment_of_other_levels_is_not_mistaken_for_a_path_of_this_tree() -> None:
    racks = Capacity(TopologyTree.build(("rack",), [node("b1/r1/x1")]))
    charge_assignment(racks, {"cpu": 1}, assignment(("r1", 1), level="zone"))
    assert not racks.usage.any()
