"""Choosing a set of domains: the examples that say what the order of wishes means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rackgate_assigner.topology.experimental.fewest_domains import (
    CandidateDomains,
    Choice,
    choose_domains,
    min_domain_count,
)


def pool(rooms: Sequence[int], whole: Sequence[int] = (), **led: Sequence[int]) -> CandidateDomains:
    """Domains by room; `whole` are positions, `led` and `leader_fits` as in `CandidateDomains`."""
    flags = np.zeros(len(rooms), dtype=np.bool_)
    flags[list(whole)] = True
    if not led:
        return CandidateDomains(np.array(rooms), flags)
    return CandidateDomains(
        np.array(rooms), flags, np.array(led["led"]), np.array(led["leader_fits"]).astype(np.bool_)
    )


@pytest.mark.parametrize(
    ("rooms", "whole", "need", "chosen"),
    [
        ([19, 10, 10], [], 20, (1, 2)),  # nothing left over instead of 9
        ([19, 10, 10], [1, 2], 20, (0, 1)),  # one untouched domain instead of two
        ([5, 5, 5, 16], [3], 15, (3,)),  # the fewest come before untouched ones
        ([7, 7, 7, 7], [0, 1], 14, (2, 3)),
        ([7, 7, 7, 7], [], 14, (0, 1)),  # the first by path
        ([8, 3, 6, 5, 1], [], 11, (0, 1)),
        ([4], [], 0, ()),
    ],
)
def test_the_fewest_then_the_fewest_untouched_then_the_least_over_then_by_path(
    rooms: list[int], whole: list[int], need: int, chosen: tuple[int, ...]
) -> None:
    assert choose_domains(pool(rooms, whole), need) == Choice(chosen, None)


def test_a_leader_sits_where_it_costs_least_and_may_take_a_domain_without_room() -> None:
    # The second takes the leader for nothing, the first would lose 2.
    both = pool([6, 6], led=[4, 6], leader_fits=[1, 1])
    assert choose_domains(both, 12) == Choice((0, 1), 1)
    apart = pool([0, 8], led=[0, 0], leader_fits=[1, 0])
    assert choose_domains(apart, 8) == Choice((0, 1), 0)
    assert choose_domains(pool([8], led=[0], leader_fits=[0]), 4) is None


def test_too_little_room_is_no_choice() -> None:
    assert min_domain_count(pool([1, 2]), 4) is None
    assert choose_domains(pool([1, 2]), 4) is None
    assert choose_domains(pool([]), 1) is None


@pytest.mark.parametrize("need", [700_000, 1_000_000])
def test_a_choice_among_very_different_rooms_is_given_up_at_once(need: int) -> None:
    rooms = np.random.default_rng(5).integers(0, 2**31, 5_000)
    assert (
        choose_domains(CandidateDomains(rooms, rooms % 2 == 0), int(rooms.max()) * 20 + need)
        is None
    )


def test_a_hundred_thousand_hosts_are_chosen_from_exactly() -> None:
    rooms = np.random.default_rng(5).integers(0, 9, 100_000)
    found = choose_domains(CandidateDomains(rooms, rooms == 8), 63)
    assert found is not None
    assert sorted(rooms[list(found.chosen)].tolist()) == [7] + [8] * 7
