"""Placements better than the default, each beside the default's answer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.tree import PODS
from tests.unit.assigner.core.clusters import (
    BLOCK,
    HOST,
    RACK,
    ask,
    capacity,
    podset,
    refusal,
    spots,
)

BOTH = {"RackgateRequiredAndPreferred": True}
FEWEST = {"RackgateFewestDomains": True}
TIGHT = {"RackgateBestFitBelowSlices": True}
# block    b1              b2
# rack     r1   r2   r3    r4   r5
TWO_BLOCKS = {"b1/r1/x1": 2, "b1/r2/x2": 2, "b1/r3/x3": 1, "b2/r4/x4": 3, "b2/r5/x5": 3}


def used(rooms: Mapping[str, int], *leaves: str) -> Capacity:
    """Rooms are what is free; one pod of another job sits on each of `leaves`."""
    room = capacity({path: cpu + (path in leaves) for path, cpu in rooms.items()})
    for path in leaves:
        leaf = room.tree.leaf_of_values((path.rpartition("/")[2],))
        assert leaf is not None
        room.charge(leaf, {"cpu": 1}, 1)
        assert room.usage[leaf, room.rows[PODS]] == 1
    return room


@pytest.mark.field_note("G6")
def test_a_required_block_and_a_preferred_rack_count_together() -> None:
    room, wants = capacity(TWO_BLOCKS), podset(5, required=BLOCK, preferred=RACK)
    # By its room b1 is the tighter block, and takes three racks where b2 takes two.
    assert spots(ask(room, wants)) == {"x1": 2, "x2": 2, "x3": 1}
    assert spots(ask(room, wants, gates=BOTH)) == {"x4": 3, "x5": 2}


def test_one_domain_of_the_preferred_level_is_tried_first() -> None:
    wants = podset(3, required=BLOCK, preferred=RACK)
    assert spots(ask(capacity(TWO_BLOCKS), wants)) == {"x1": 2, "x3": 1}
    assert spots(ask(capacity(TWO_BLOCKS), wants, gates=BOTH)) == {"x4": 3}


def test_the_required_level_is_never_left_and_rejects_as_without_a_preferred_one() -> None:
    room = capacity(TWO_BLOCKS)
    wants = podset(7, required=BLOCK, preferred=RACK)
    assert refusal(ask(room, wants, gates=BOTH)) == refusal(ask(room, podset(7, required=BLOCK)))
    spreads = {**BOTH, "TASBalancedPlacement": True}
    assert ask(room, wants, gates=spreads).failure is not None


@pytest.mark.field_note("P13")
def test_equal_levels_are_one_requirement_and_wrong_orders_are_rejected() -> None:
    room = capacity(TWO_BLOCKS)
    assert spots(ask(room, podset(3, required=RACK, preferred=RACK), gates=BOTH)) == {"x4": 3}
    assert ask(room, podset(4, required=RACK, preferred=RACK), gates=BOTH).failure is not None
    assert refusal(ask(room, podset(1, required=RACK, preferred=BLOCK), gates=BOTH)) == (
        "preferred topology level block is above the required topology level rack"
    )
    for required, preferred in (("row", RACK), (RACK, "row")):
        wants = podset(1, required=required, preferred=preferred)
        text = refusal(ask(room, wants, gates=BOTH))
        assert text == "no requested topology level: row"


def test_slices_and_a_leader_stay_within_the_required_level() -> None:
    wants = podset(4, required=BLOCK, preferred=RACK, slices={RACK: 2})
    assert sum(spots(ask(capacity(TWO_BLOCKS), wants, gates=BOTH)).values()) == 4
    group = [
        podset(5, name="w", group="g", required=BLOCK, preferred=RACK),
        podset(1, name="l", group="g", required=BLOCK, preferred=RACK),
    ]
    answer = ask(capacity(TWO_BLOCKS), *group, gates=BOTH)
    assert {**spots(answer, "w")} == {"x4": 2, "x5": 3}
    assert spots(answer, "l") == {"x4": 1}


@pytest.mark.field_note("P11")
def test_twenty_pods_take_ten_and_ten_rather_than_nineteen_and_one() -> None:
    rooms = {"b1/r1/x1": 19, "b1/r2/x2": 10, "b1/r3/x3": 10}
    wants = podset(20, preferred=RACK)
    assert spots(ask(capacity(rooms), wants)) == {"x1": 19, "x2": 1}
    assert spots(ask(capacity(rooms), wants, gates=FEWEST)) == {"x2": 10, "x3": 10}


def test_used_racks_are_filled_before_whole_ones_are_opened() -> None:
    rooms = {"b1/r1/x1": 6, "b1/r2/x2": 6, "b1/r3/x3": 5, "b1/r4/x4": 5}
    wants = podset(10, preferred=RACK)
    room = used(rooms, "b1/r1/x1", "b1/r2/x2")
    assert spots(ask(room, wants)) == {"x1": 6, "x3": 4}
    assert spots(ask(room, wants, gates=FEWEST)) == {"x1": 6, "x2": 4}
    # As if empty, both are as whole as the others: then nothing is to be left over.
    empty = ask(room, wants, gates=FEWEST, simulate_empty=True)
    assert spots(empty) == {"x3": 5, "x4": 5}


def test_racks_that_an_earlier_podset_of_the_walk_took_count_as_used() -> None:
    rooms = {"b1/r1/x1": 6, "b1/r2/x2": 3, "b1/r3/x3": 3}
    first, second = podset(2, name="a", required=RACK), podset(7, name="b", preferred=RACK)
    answer = ask(capacity(rooms), first, second, gates=FEWEST)
    assert spots(answer, "a") == {"x2": 2}
    assert spots(answer, "b") == {"x1": 6, "x2": 1}


def test_a_coarser_domain_is_chosen_by_how_few_it_needs_below() -> None:
    wants = podset(5, preferred=RACK)
    assert spots(ask(capacity(TWO_BLOCKS), wants)) == {"x1": 2, "x2": 2, "x3": 1}
    assert spots(ask(capacity(TWO_BLOCKS), wants, gates=FEWEST)) == {"x4": 3, "x5": 2}


@pytest.mark.field_note("P3")
def test_pods_without_any_request_take_few_hosts_and_open_no_whole_rack_for_them() -> None:
    rooms = {f"b1/r1/a{n}": 4 for n in range(4)} | {f"b1/r2/b{n}": 4 for n in range(4)}
    rooms |= {"b1/r1/a9": 1, "b1/r1/a8": 1}
    room = used(rooms, "b1/r2/b0")
    assert spots(ask(room, podset(12))) == {"a0": 4, "a1": 4, "a8": 1, "a9": 1, "a2": 2}
    assert spots(ask(room, podset(12), gates=FEWEST)) == {"b0": 4, "b1": 4, "b2": 4}


def test_within_a_slice_few_hosts_are_filled_instead_of_the_smallest() -> None:
    rooms = {"b1/r1/x1": 4, "b1/r1/x2": 3, "b1/r1/x3": 2, "b1/r1/x4": 1, "b1/r1/x5": 1}
    wants = podset(6, required=RACK, slices={RACK: 6})
    assert len(spots(ask(capacity(rooms), wants))) == 4
    assert spots(ask(capacity(rooms), wants, gates=TIGHT)) == {"x1": 4, "x3": 2}
    assert spots(ask(capacity(rooms), wants, gates=FEWEST)) == {"x1": 4, "x3": 2}
    # Slices alone go by least free, which means the smallest first.
    least = podset(6, slices={RACK: 6})
    assert ask(capacity(rooms), least, gates=TIGHT) == ask(capacity(rooms), least)


def test_inner_layers_and_leaders_are_kept_within_a_slice() -> None:
    rooms = {"b1/r1/x1": 5, "b1/r1/x2": 3, "b1/r1/x3": 3, "b1/r1/x4": 3}
    wants = podset(6, required=BLOCK, slices={RACK: 6, HOST: 2})
    assert spots(ask(capacity(rooms), wants)) == {"x2": 2, "x3": 2, "x4": 2}
    for gates in (TIGHT, FEWEST):
        assert spots(ask(capacity(rooms), wants, gates=gates)) == {"x1": 4, "x2": 2}
    group = [
        podset(6, name="w", group="g", required=RACK, slices={RACK: 6}),
        podset(1, name="l", group="g", required=RACK, cpu=3),
    ]
    for gates in (TIGHT, FEWEST):
        answer = ask(capacity(rooms), *group, gates=gates)
        assert sum(spots(answer, "w").values()) == 6
        assert len(spots(answer, "w")) <= 3
        assert len(spots(answer, "l")) == 1


@pytest.mark.parametrize("gates", [FEWEST, TIGHT])
def test_a_soft_preference_comes_before_few_domains(gates: dict[str, bool]) -> None:
    soft = {"TASRespectNodeAffinityPreferred": True}
    affinity = {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 9,
                "preference": {
                    "matchExpressions": [{"key": RACK, "operator": "In", "values": ["r1"]}]
                },
            }
        ]
    }
    rooms = {"b1/r1/x1": 3, "b1/r2/x2": 2, "b1/r3/x3": 2}
    wants = podset(4, preferred=RACK, node_affinity=affinity)
    answers = [ask(capacity(rooms), wants, gates=soft | more) for more in ({}, gates)]
    assert answers[0] == answers[1]


def test_nothing_to_place_needs_no_domain() -> None:
    for wants in (podset(0), podset(0, preferred=RACK), podset(0, slices={RACK: 2})):
        assert spots(ask(capacity(TWO_BLOCKS), wants, gates=FEWEST | TIGHT)) == {}
