"""The exact search on rooms that mislead whoever does not go back, and its limits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rackgate_assigner.topology.model import NodeInfo
from rackgate_osmo.explain.room import Room, Shape
from rackgate_osmo.explain.search import Budget, FitTables, Item, UndecidedError, solve

ONE_CPU = Shape((("cpu", 1),))
TWO_CPU = Shape((("cpu", 2),))


def room(*racks: tuple[str | None, str | None, int]) -> Room:
    """One node per rack: zone, rack, free cpus."""
    nodes = []
    for number, (zone, rack, cpu) in enumerate(racks):
        pairs = (("zone", zone), ("rack", rack))
        labels = {key: value for key, value in pairs if value is not None}
        nodes.append(NodeInfo(f"n{number}", labels, {"cpu": cpu, "pods": 110}))
    return Room(("zone", "rack"), nodes)


def group(level: int, *loose: int, inside: Sequence[Item] = ()) -> Item:
    return Item(level, loose, inside)


def racks(*sizes: int) -> list[Item]:
    return [group(2, size) for size in sizes]


def fits(where: Room, root: Item, steps: int = 10_000, shapes: Sequence[Shape] = ()) -> bool:
    return solve(FitTables(where, shapes or (ONE_CPU,)), root, Budget(steps)) is not None


@pytest.mark.requirement("OSM-25")
@pytest.mark.parametrize("order", [(2, 2, 3), (3, 2, 2), (2, 3, 2)])
def test_siblings_are_placed_whatever_their_order(order: tuple[int, ...]) -> None:
    where = room(("z", "1", 4), ("z", "2", 3))
    assert fits(where, group(0, 0, inside=racks(*order)))
    assert not fits(where, group(0, 0, inside=racks(*order, 1)))


def test_groups_may_share_a_rack_and_pods_are_not_counted_twice() -> None:
    where = room(("z", "1", 4))
    assert fits(where, group(0, 0, inside=racks(1, 1, 2)))
    assert not fits(where, group(0, 1, inside=racks(1, 1, 2)))


def test_a_rack_is_taken_from_the_zone_that_holds_the_whole_group() -> None:
    where = room(("a", "1", 3), ("a", "2", 1), ("b", "3", 2), ("b", "4", 2))
    zone = group(1, 0, inside=racks(2, 2))
    assert fits(where, group(0, 0, inside=[zone]))
    assert not fits(where, group(0, 0, inside=[zone, group(1, 0, inside=racks(2, 2))]))


@pytest.mark.requirement("OSM-25")
def test_racks_that_are_alike_in_zones_that_are_not_are_both_tried() -> None:
    where = room(
        (None, "0", 2),
        (None, "1", 1),
        ("0", "0", 2),
        ("0", "1", 3),
        ("1", None, 1),
        ("1", "0", 2),
        ("2", "0", 2),
        ("2", "1", 0),
    )
    zone = group(1, 2, 0, inside=[group(2, 1, 1)])
    others = [group(2, 1, 0), group(2, 1, 0), group(2, 2, 0), group(2, 2, 0)]
    assert fits(where, group(0, 0, 0, inside=[*others, zone]), shapes=[ONE_CPU, TWO_CPU])


def test_no_group_gets_a_domain_without_the_label_and_loose_pods_do() -> None:
    where = room(("z", None, 4))
    assert not fits(where, group(0, 0, inside=racks(1)))
    assert fits(where, group(0, 4))
    assert fits(where, group(0, 0, inside=[group(1, 4)]))


def test_sums_that_fit_do_not_hide_that_the_room_is_in_pieces() -> None:
    where = room(("z", "1", 3), ("z", "1", 3))
    assert not fits(where, group(0, 0, inside=[group(2, 3)]), shapes=[TWO_CPU])
    # Two of two cpus leave one on each node: no room for a third, but for two of one.
    assert fits(where, group(0, 2, 2), shapes=[ONE_CPU, TWO_CPU])
    assert not fits(where, group(0, 0, 3), shapes=[ONE_CPU, TWO_CPU])


def test_many_alike_that_just_do_not_fit_are_rejected_in_few_steps() -> None:
    where = room(*(("z", str(at), 4) for at in range(40)))
    assert not fits(where, group(0, 0, inside=racks(*[3] * 41)), steps=1000)
    assert fits(where, group(0, 0, inside=racks(*[3] * 40)), steps=1000)


def test_a_thousand_groups_find_their_racks_in_few_steps() -> None:
    sizes = [1 + at % 7 for at in range(1000)]
    where = room(*(("z", str(at), size) for at, size in enumerate(sizes)))
    assert fits(where, group(0, 0, inside=racks(*sizes)), steps=20_000)


def test_a_search_that_is_cut_off_says_so_and_claims_nothing() -> None:
    where = room(("z", "1", 4), ("z", "2", 3))
    with pytest.raises(UndecidedError):
        fits(where, group(0, 0, inside=racks(2, 2, 3)), steps=2)


def test_a_cluster_without_nodes_holds_nothing_but_nothing() -> None:
    assert fits(room(), group(0, 0))
    assert not fits(room(), group(0, 1))
