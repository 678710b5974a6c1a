"""The array engine against the scalar oracle, and what must hold of every placement."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate_assigner.topology.capacity import Capacity, charge_assignment, single_pod_requests
from rackgate_assigner.topology.placement.assign import smallest
from tests.support import placement_oracle
from tests.support.placement_cases import (
    Case,
    capacity_of,
    cases,
    dense_case,
    large_cases,
    paths_of,
    placed,
    plain,
)

FEW = settings(max_examples=50, deadline=None)


@pytest.mark.requirement("TAS-06", "TAS-07", "TAS-17", "TAS-18", "TAS-21", "CAP-05")
@settings(max_examples=150, deadline=None)
@given(cases())
def test_the_engine_answers_as_the_oracle_does(case: Case) -> None:
    assert plain(placed(case)) == placement_oracle.answer(case.cluster, case.podsets)


@pytest.mark.requirement("TAS-06", "TAS-07", "TAS-17", "TAS-18", "TAS-19", "TAS-21", "CAP-05")
def test_the_engine_answers_as_the_oracle_does_where_hosts_are_small() -> None:
    for seed in range(400):
        case = dense_case(seed)
        expected = placement_oracle.answer(case.cluster, case.podsets)
        assert plain(placed(case)) == expected, f"seed {seed}"


@settings(max_examples=10, deadline=None)
@given(large_cases())
def test_the_engine_answers_as_the_oracle_does_on_hundreds_of_hosts(case: Case) -> None:
    assert plain(placed(case)) == placement_oracle.answer(case.cluster, case.podsets)


@pytest.mark.requirement("TAS-12")
@FEW
@given(cases())
def test_counts_add_up_and_no_domain_comes_twice(case: Case) -> None:
    counts = {podset.name: podset.count for podset in case.podsets}
    for name, assignment in placed(case).assignments.items():
        assert assignment.count == counts[name]
        assert all(count >= 1 for _, count in assignment.domains)
        assert len({values for values, _ in assignment.domains}) == len(assignment.domains)
        assert all(len(values) == len(assignment.levels) for values, _ in assignment.domains)


@pytest.mark.requirement("TAS-21")
@FEW
@given(cases())
def test_no_domain_gets_more_than_it_has(case: Case) -> None:
    capacity = capacity_of(case.cluster)
    room = capacity.free + (capacity.usage if case.cluster.simulate_empty else 0)
    requests = {podset.name: podset.requests for podset in case.podsets}
    taken: dict[int, Counter[str]] = {}
    for name, assignment in placed(case, capacity).assignments.items():
        for values, count in assignment.domains:
            leaf = capacity.tree.leaf_of_values(values)
            assert leaf is not None
            for resource, amount in single_pod_requests(requests[name]).items():
                taken.setdefault(leaf, Counter())[resource] += amount * count
    for leaf, amounts in taken.items():
        for resource, amount in amounts.items():
            if amount:
                assert amount <= room[leaf, capacity.rows[resource]]


@pytest.mark.requirement("TAS-22")
@FEW
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(case: Case, shuffler: random.Random) -> None:
    mixed = list(case.cluster.nodes)
    shuffler.shuffle(mixed)
    again = Case(replace(case.cluster, nodes=mixed), case.podsets)
    assert placed(again) == placed(case)


@pytest.mark.requirement("TAS-06")
@FEW
@given(cases() | st.integers(0, 2**32 - 1).map(dense_case))
def test_a_required_level_is_never_left(case: Case) -> None:
    capacity = capacity_of(case.cluster)
    for podset in case.podsets:
        required = podset.topology.required if podset.topology else None
        assignment = placed(case, capacity).assignments.get(podset.name)
        if required is None or assignment is None or podset.group is not None:
            continue
        depth = capacity.tree.levels.index(required) + 1
        assert len({path[:depth] for path in paths_of(capacity, assignment)}) <= 1


@pytest.mark.requirement("RNK-05")
@FEW
@given(cases() | st.integers(0, 2**32 - 1).map(dense_case))
def test_siblings_are_neighbours_in_rank_order_at_every_level(case: Case) -> None:
    capacity = capacity_of(case.cluster)
    for assignment in placed(case, capacity).assignments.values():
        paths = paths_of(capacity, assignment)
        for depth in range(1, len(capacity.tree.levels) + 1):
            runs = [prefix for prefix, _ in groupby(path[:depth] for path in paths)]
            assert len(runs) == len(set(runs))


@FEW
@given(cases())
def test_placing_changes_nothing(case: Case) -> None:
    capacity = capacity_of(case.cluster)
    free, usage = capacity.free.copy(), capacity.usage.copy()
    placed(case, capacity)
    assert np.array_equal(free, capacity.free)
    assert np.array_equal(usage, capacity.usage)


@pytest.mark.requirement("CAP-02")
@FEW
@given(cases())
def test_charging_and_giving_back_an_assignment_is_neutral(case: Case) -> None:
    capacity = capacity_of(case.cluster)
    snapshot = capacity.copy()
    requests = {podset.name: podset.requests for podset in case.podsets}
    assignments = placed(case, capacity).assignments
    for name, assignment in assignments.items():
        charge_assignment(snapshot, requests[name], assignment)
    pods = sum(assignment.count for assignment in assignments.values())
    column = capacity.rows["pods"]
    assert (snapshot.usage - capacity.usage)[:, column].sum() == pods
    for name, assignment in assignments.items():
        charge_assignment(snapshot, requests[name], assignment, -1)
    assert_equal(snapshot, capacity)


@FEW
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 1200), st.integers(1, 1300))
def test_the_first_few_are_those_of_a_full_sort(
    seed: int, columns: int, rows: int, few: int
) -> None:
    keys = list(np.random.default_rng(seed).integers(0, 6, (columns, rows), dtype=np.int64))
    assert smallest(keys, few).tolist() == np.lexsort(keys[::-1])[:few].tolist()


def test_paths_sort_as_bytes() -> None:
    values = ["r10", "r2", "R1", "a-b", "a.b", "a", "é", "\U0001f600", "\uffff"]
    assert all(a.encode() < b.encode() for a, b in pairwise(sorted(values)))


def assert_equal(one: Capacity, other: Capacity) -> None:
    assert np.array_equal(one.free, other.free)
    assert np.array_equal(one.usage, other.usage)
