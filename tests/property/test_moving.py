"""Places of a sequence that loses and gains members: as one does it with lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate_assigner.topology.capacity import PENDING_LIMIT, LeafArray
from rackgate_assigner.topology.nodes import LOOKUP_LIMIT, LeafIndex
from rackgate_assigner.topology.reordering import FEW_STEPS, MANY_BLOCKS, Reordering

# One change: old places that are left, and old places before which something new stands.
Step = tuple[list[int], list[int]]

coins: st.SearchStrategy[bool] = st.booleans()


@st.composite
def steps(draw: Any, *, most: int = 12) -> tuple[int, list[Step]]:
    """How many members there are at first, and what happens to them, one after another."""
    first = count = draw(st.integers(0, 8))
    found: list[Step] = []
    for _ in range(draw(st.integers(0, most))):
        gone = sorted(draw(st.sets(st.integers(0, count - 1), max_size=3))) if count else []
        at = sorted(draw(st.lists(st.integers(0, count), max_size=3)))
        found.append((gone, at))
        count += len(at) - len(gone)
    return first, found


def moved(members: list[int], step: Step, fresh: list[int]) -> list[int]:
    """A list after one change, member by member."""
    gone, at = step
    found, new = [], iter(fresh)
    for place in range(len(members) + 1):
        found += [next(new) for one in at if one == place]
        if place < len(members) and place not in gone:
            found.append(members[place])
    return found


@pytest.mark.requirement("CAP-07", "TAS-22")
@given(case=steps())
@settings(max_examples=150, deadline=None)
def test_an_order_moves_members_as_a_list_does_and_two_orders_are_one(
    case: tuple[int, list[Step]],
) -> None:
    count, changes = case
    before = list(range(1, count + 1))
    now, whole, label = list(before), Reordering(count, [], []), count
    for step in changes:
        order = Reordering(len(now), *step)
        fresh = [label + 1 + i for i in range(len(step[1]))]
        label += len(fresh)
        then = moved(now, step, fresh)
        assert order.reorder_items(now, fresh) == then
        assert len(order) == len(then)
        assert [then[place] for place in order.inserted] == fresh
        assert order.reorder_array(np.array(now, dtype=np.int64)).tolist() == [
            0 if one in fresh else one for one in then
        ]
        places = [then.index(one) if one in then else None for one in now]
        assert [order.new_index(old) for old in range(len(now))] == places
        assert [order.old_index(new) for new in range(len(then))] == [
            now.index(one) if one in now else None for one in then
        ]
        kept = [old for old, place in enumerate(places) if place is not None]
        renumbered = order.map_indices(np.array([*kept, -1], dtype=np.int64))
        assert renumbered.tolist() == [*(places[old] for old in kept), -1]
        now, whole = then, whole.compose(order)
        assert len(whole) == len(now)
        assert [whole.new_index(old) for old in range(count)] == [
            now.index(one) if one in now else None for one in before
        ]
        assert whole.reorder_array(np.array(before, dtype=np.int64)).tolist() == [
            one if one in before else 0 for one in now
        ]


@pytest.mark.parametrize("parts", [FEW_STEPS, MANY_BLOCKS * 2])
def test_an_order_of_many_blocks_says_the_same_as_one_of_few(parts: int) -> None:
    members = np.arange(1, 4 * parts + 1)
    gone, at = list(range(0, 4 * parts, 4)), list(range(2, 4 * parts, 4))
    order = Reordering(4 * parts, gone, at)
    expected = moved(members.tolist(), (gone, at), [0] * parts)
    assert order.reorder_array(members).tolist() == expected
    kept = np.delete(np.arange(4 * parts), gone)
    assert np.array_equal(np.array(expected)[order.map_indices(kept)], members[kept])


@pytest.mark.requirement("CAP-07", "CAP-09")
@given(case=steps(most=PENDING_LIMIT), data=st.data())
@settings(max_examples=60, deadline=None)
def test_numbers_that_are_read_late_are_those_that_are_read_at_once(
    case: tuple[int, list[Step]], data: st.DataObject
) -> None:
    count, changes = case
    numbers = np.arange(2 * count, dtype=np.int64).reshape(2, count)
    versions = [(LeafArray(numbers), numbers.copy())]
    for step in changes:
        block, expected = versions[-1]
        order = Reordering(expected.shape[1], *step)
        block, expected = block.reorder(order), order.reorder_array(expected)
        places = data.draw(st.sets(st.integers(0, max(0, len(order) - 1)), max_size=2))
        for leaf in places if len(order) else ():
            assert block.column(leaf).tolist() == expected[:, leaf].tolist()
            column = np.array([leaf, len(versions)], dtype=np.int64)
            block, expected = block.with_column(leaf, column), expected.copy()
            expected[:, leaf] = column
            assert block.column(leaf).tolist() == column.tolist()
        versions.append((block, expected))
        if data.draw(coins):
            read, right = data.draw(st.sampled_from(versions))
            assert read.array().tolist() == right.tolist()
            assert not read.has_pending
    for block, expected in versions:
        assert block.array().tolist() == expected.tolist()


@pytest.mark.requirement("TAS-04")
@given(case=steps(most=20), data=st.data())
@settings(max_examples=60, deadline=None)
def test_names_find_the_leaves_of_their_own_version(
    case: tuple[int, list[Step]], data: st.DataObject
) -> None:
    count, changes = case
    now = list(range(count))
    index = LeafIndex.of(map(str, now), np.arange(count, dtype=np.int64))
    versions = [(index, list(now))]
    names, known = count, set(now)
    for step in changes:
        order = Reordering(len(now), *step)
        # Some that come were there before.
        back = sorted(known - set(now))
        fresh = []
        for _ in step[1]:
            again = data.draw(coins)
            if back and again:
                fresh.append(back.pop())
            else:
                fresh.append(names)
                names += 1
        then = moved(now, step, fresh)
        leaves: dict[str, int | None] = {str(one): None for one in now if one not in then}
        leaves |= {str(one): then.index(one) for one in fresh}
        index = index.with_changes(order, leaves)
        now = then
        known |= set(now)
        versions.append((index, list(now)))
        asked = versions if data.draw(coins) else []
        for one, members in asked:
            for name in sorted(known):
                found = members.index(name) if name in members else None
                assert one.get(str(name)) == found
    for one, members in versions:
        for _ in range(1 + LOOKUP_LIMIT // max(1, names)):
            assert [one.get(str(name)) for name in range(names)] == [
                members.index(name) if name in members else None for name in range(names)
            ]
