"""Shortcuts of the search against the sorts that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from rackgate_assigner.topology.model import IntVector, NodeInfo, PlacementRequest
from rackgate_assigner.topology.placement.assign import (
    SORT_LIMIT,
    VECTORIZE_ABOVE,
    FitDomains,
    Shortfall,
    _several_domains_with_leader,
    _several_leaves,
    assign_to_leaves,
    distribute,
    find_best_fit_domain,
    first_domain_with_leader,
    first_domains,
    least_sufficient,
    sort_domains,
    sort_domains_with_leader,
)
from rackgate_assigner.topology.placement.count import DomainCounts, LevelCounts
from rackgate_assigner.topology.tree import TopologyTree

HOST = "kubernetes.io/hostname"


def numbers(chance: np.random.Generator, many: int, size: int, *, led: bool) -> LevelCounts:
    top = int(chance.choice((2, 4, 9, 1_000)))
    pods = chance.integers(0, top, many)
    slices = pods if size == 1 else pods // size
    if not led:
        return LevelCounts(pods, slices, pods, slices)
    leader_fits = chance.integers(0, 2, many)
    pods_with_leader = np.maximum(pods - leader_fits * chance.integers(0, 3, many), 0)
    return LevelCounts(
        pods,
        slices,
        pods_with_leader,
        pods_with_leader if size == 1 else pods_with_leader // size,
        leader_fits,
    )


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("least_free", [True, False])
def test_the_first_domains_are_those_of_the_sorted_list(size: int, least_free: bool) -> None:
    for seed in range(60):
        chance = np.random.default_rng(seed)
        counts = numbers(chance, SORT_LIMIT + int(chance.integers(1, 600)), size, led=False)
        every = np.arange(len(counts.pods))
        some: IntVector = every[chance.random(len(every)) < 0.95]
        for ids in (None, some):
            among = every if ids is None else ids
            wanted = int(chance.integers(1, max(2, counts.slices[among].sum())))
            ordered = sort_domains(counts, among, least_free=least_free)
            ordered = ordered[counts.slices[ordered] > 0]
            found = first_domains(counts, ids, wanted, least_free=least_free)
            assert found.tolist() == ordered[: len(found)].tolist(), f"seed {seed}"
            enough = counts.slices[found].sum() >= wanted
            assert enough or len(found) == len(ordered), f"seed {seed}"


@pytest.mark.parametrize("least_free", [True, False])
def test_the_first_domain_with_leader_is_that_of_the_sorted_list(least_free: bool) -> None:
    for seed in range(60):
        chance = np.random.default_rng(seed)
        counts = numbers(chance, 30, 1, led=True)
        counts.score = chance.integers(0, 3, 30) if seed % 2 else None
        every = np.arange(30)
        first = sort_domains_with_leader(counts, every, least_free=least_free)[0]
        assert first_domain_with_leader(counts, least_free=least_free) == first


def test_the_smallest_sufficient_number_is_found_whatever_is_too_small() -> None:
    amounts = np.array([-1, 0, 7, 3, 9])
    assert [least_sufficient(amounts, wanted) for wanted in (0, 1, 7, 8, 10)] == [0, 3, 7, 9, None]
    assert least_sufficient(amounts, 2**70) is None
    assert least_sufficient(np.zeros(0, dtype=np.int64), 1) is None


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("least_free", [True, False])
def test_leaves_with_a_leader_are_chosen_as_if_they_were_sorted(
    size: int, least_free: bool
) -> None:
    nodes = [NodeInfo(f"n{n:02}", {HOST: f"n{n:02}"}, {}) for n in range(24)]
    tree = TopologyTree.build([HOST], nodes)
    for seed in range(400):
        chance = np.random.default_rng(seed)
        leaves = numbers(chance, 24, size, led=True)
        need = int(chance.integers(0, int(leaves.slices.sum()) + 3))
        request = PlacementRequest(need * size, size, need, 0, 0, (1,), (), False, True, least_free)
        counts = DomainCounts(tree, request, leaves)
        assert leaves.leader_fits is not None
        found = _several_leaves(counts, leaves, leaves.leader_fits)
        expected = _several_domains_with_leader(counts, leaves, 0)
        assert outcome(counts, found) == outcome(counts, expected), f"seed {seed}"


def outcome(counts: DomainCounts, found: FitDomains | Shortfall) -> object:
    if isinstance(found, Shortfall):
        return found
    return sorted(share for share in assign_to_leaves(counts, found) if share.pods or share.leaders)


@pytest.mark.parametrize("best_fit", [True, False])
def test_many_domains_are_handed_out_like_one_after_another(best_fit: bool) -> None:
    for seed in range(100):
        chance = np.random.default_rng(seed)
        counts = numbers(chance, 3 * VECTORIZE_ABOVE, 1, led=False)
        ids = sort_domains(counts, np.arange(3 * VECTORIZE_ABOVE), least_free=not best_fit)
        wanted = int(chance.integers(0, counts.slices.sum() + 2))
        rest, expected = wanted, []
        for at, domain in enumerate(ids.tolist()):
            amount = int(counts.slices[domain])
            if amount >= rest:
                last = (
                    find_best_fit_domain(ids[at:], rest, counts, leader=False)
                    if best_fit
                    else domain
                )
                expected.append((last, 2 * rest, 0))
                break
            expected.append((domain, 2 * amount, 0))
            rest -= amount
        assert distribute(ids, wanted, 0, counts, 2, best_fit=best_fit) == expected, f"seed {seed}"
