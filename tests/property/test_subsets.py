"""The exact choice of a set of domains against every set there is."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate_assigner.topology.experimental.fewest_domains import (
    CandidateDomains,
    Choice,
    best_set_size,
    choose_domains,
    min_domain_count,
)

Rank = tuple[int, int, int, int, tuple[int, ...]]


@st.composite
def pools(draw: st.DrawFn, *, led: bool | None = None) -> CandidateDomains:
    largest = draw(st.sampled_from([2, 5, 20]))
    number = draw(st.integers(0, 7))
    rooms = draw(st.lists(st.integers(0, largest), min_size=number, max_size=number))
    flags = st.lists(st.booleans(), min_size=number, max_size=number)
    room, whole = np.array(rooms, dtype=np.int64), np.array(draw(flags), dtype=np.bool_)
    if not (draw(st.booleans()) if led is None else led):
        return CandidateDomains(room, whole)
    leader_fits = np.array(draw(flags), dtype=np.bool_)
    costs = draw(st.lists(st.integers(0, 4), min_size=number, max_size=number))
    beside = np.where(leader_fits, np.maximum(0, room - np.array(costs, dtype=np.int64)), 0)
    return CandidateDomains(room, whole, beside, leader_fits)


def rank(pool: CandidateDomains, choice: Choice, need: int) -> Rank | None:
    """What a set is judged by, None when it is not enough."""
    room = sum(int(pool.amounts[place]) for place in choice.chosen)
    loss = 0
    if pool.with_leader is not None and choice.host is not None:
        loss = int(pool.amounts[choice.host] - pool.with_leader[choice.host])
    if room - loss < need:
        return None
    whole = sum(bool(pool.untouched[place]) for place in choice.chosen)
    return len(choice.chosen), whole, room - need, loss, choice.chosen


def best_of_all(pool: CandidateDomains, need: int) -> Rank | None:
    found = []
    for number in range(len(pool.amounts) + 1):
        for chosen in combinations(range(len(pool.amounts)), number):
            hosts = (
                [None] if pool.leader_fits is None else [p for p in chosen if pool.leader_fits[p]]
            )
            found += [rank(pool, Choice(chosen, host), need) for host in hosts]
    return min((one for one in found if one is not None), default=None)


@settings(max_examples=400, deadline=None)
@given(pools(), st.integers(0, 60))
def test_no_set_of_domains_is_better_than_the_chosen_one(pool: CandidateDomains, need: int) -> None:
    need = min(need, int(pool.amounts.sum()) + 1)
    expected, found = best_of_all(pool, need), choose_domains(pool, need)
    assert (found is None) == (expected is None)
    if found is None or expected is None:
        assert min_domain_count(pool, need) is None
        return
    assert (found.host is None) == (pool.leader_fits is None)
    assert pool.leader_fits is None or found.host is None or pool.leader_fits[found.host]
    assert rank(pool, found, need) == expected
    assert best_set_size(pool, need) == expected[:2]


@settings(max_examples=50, deadline=None)
@given(pools(led=False), st.integers(1, 40))
def test_a_choice_is_given_up_rather_than_made_slowly(pool: CandidateDomains, need: int) -> None:
    expected = choose_domains(pool, need)
    assert choose_domains(pool, need, limit=2**40) == expected
    assert choose_domains(pool, need, limit=0) in (None, expected)
