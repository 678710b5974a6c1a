from __future__ import annotations

from dataclasses import replace

import pytest

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.workload_slices.merge_plan import (
    can_merge,
    merge_slice,
    scale_down,
    scale_down_topology,
)
from tests.unit.assigner.slices.builders import CPU, part, places


@pytest.mark.requirement("SLC-18", "SLC-36")
def test_counts_usage_and_places_are_added_and_the_order_of_ranks_is_kept() -> None:
    held = part(5, places(r2=3, r1=2))
    found = merge_slice(held, part(3, places(r1=1, r0=2)))
    assert (found.count, found.usage) == (8, {"cpu": 8 * CPU})
    assert found.topology == places(r2=3, r1=3, r0=2)


def test_a_podset_without_pods_takes_places_and_flavors_of_its_first_slice() -> None:
    empty = part(0)
    first = part(2, places(r1=2))
    assert can_merge(empty, first)
    assert merge_slice(empty, first) == first


@pytest.mark.parametrize(
    "piece",
    [
        part(1, places(r1=1), flavor="other"),
        part(1, TopologyAssignment(("block", "rack"), ((("b", "r1"), 1),))),
        part(1),
    ],
    ids=["flavor", "levels", "no places"],
)
@pytest.mark.requirement("SLC-09")
def test_what_differs_in_flavor_or_levels_is_not_joined(piece: object) -> None:
    assert not can_merge(part(2, places(r1=2)), piece)  # type: ignore[arg-type]  # a assignment each


def test_pods_that_are_charged_differently_are_not_joined() -> None:
    """A LimitRange or a RuntimeClass changed between the admission of the two."""
    held = part(2, places(r1=2))
    larger = replace(part(1, places(r1=1)), usage={"cpu": 2 * CPU})
    assert not can_merge(held, larger)
    assert can_merge(held, replace(larger, usage={"cpu": CPU}))


@pytest.mark.requirement("SLC-25", "SLC-36")
def test_places_go_where_no_pods_stay() -> None:
    held = places(r0=2, r1=2, r2=2)
    live: dict[Domain, int] = {("r0",): 2, ("r2",): 2}
    assert scale_down_topology(held, 1, live) == places(r0=2, r1=1, r2=2)
    assert scale_down_topology(held, 2, live) == places(r0=2, r2=2)
    # All that is left has pods: the last domain, whose ranks are the highest, gives way first.
    assert scale_down_topology(held, 3, live) == places(r0=2, r2=1)


def test_domains_give_what_is_beyond_their_pods_before_any_pod_loses_its_place() -> None:
    held = places(r0=3, r1=3)
    assert scale_down_topology(held, 2, {("r0",): 1, ("r1",): 3}) == places(r0=1, r1=3)
    assert scale_down_topology(held, 3, {("r0",): 1, ("r1",): 3}) == places(r0=1, r1=2)


def test_without_pods_the_last_ranks_go() -> None:
    assert scale_down_topology(places(r1=4, r0=4), 5, {}) == places(r1=3)
    assert scale_down_topology(places(r1=4), 4, {}) is None


def test_a_shrunk_admission_costs_in_proportion_and_never_too_little() -> None:
    found = scale_down(part(4, places(r0=4)), 3, {})
    assert (found.count, found.usage, found.topology) == (3, {"cpu": 3 * CPU}, places(r0=3))
    odd = part(3)
    odd = type(odd)(odd.name, odd.flavors, {"cpu": 10}, 3)
    assert scale_down(odd, 2, {}).usage == {"cpu": 7}
    assert scale_down(odd, 0, {}).usage == {"cpu": 0}
