"""Phase 2: where to start, and the way down to the leaves (conformance text, 8.1 and 8.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackgate_assigner.topology.placement.count import DomainCounts, LevelCounts
from rackgate_assigner.topology.placement.distribute import (
    Shares,
    distribute,
    distribute_below_slice_level,
    distribute_slices,
    find_best_fit_domain,
    first_domain_with_leader,
    least_sufficient,
    move_leader_domain_first,
    slice_amounts,
    sort_domains,
    sort_domains_with_leader,
    unit_amounts,
)
from rackgate_assigner.topology.tree import IntVector


@dataclass(frozen=True, slots=True)
class Shortfall:
    """No place: what would have fitted.

    Attributes:
        fitting: slices that fit (0: none).
        level: index of the level where the search failed.
        absent: the level has no domains at all.
    """

    fitting: int
    level: int
    absent: bool = False


@dataclass(frozen=True, slots=True)
class FitDomains:
    """Domains of one level to start from, in the order they are to be used."""

    level: int
    domains: IntVector


def find_fit_domains(counts: DomainCounts) -> FitDomains | Shortfall:
    """Find the domains to start from, climbing for preferred requests."""
    request = counts.request
    level = request.level
    while True:
        numbers = counts.level(level)
        if not len(numbers.pods):
            return Shortfall(0, level, absent=True)
        single = _find_single_domain(counts, numbers)
        if single is not None:
            return FitDomains(level, np.array([single], dtype=np.int64))
        if request.required:
            return Shortfall(_slices_of_first_domain(counts, numbers), level)
        if level == 0 or request.unconstrained:
            return _take_several_domains(counts, numbers, level)
        level -= 1


def assign_to_leaves(counts: DomainCounts, start: FitDomains) -> Shares:
    """Hand the pods down to the leaves.

    Down to the slice level over all children at once, below it within each domain.
    """
    request = counts.request
    leaders = int(counts.has_leader)
    level = start.level
    numbers = slice_amounts(counts.level(level), request.size)
    best_fit = not request.least_free
    shares = distribute(start.domains, request.need, leaders, numbers, best_fit=best_fit)
    while level < request.slice_level:
        shares = _distribute_over_all_children(counts, level, shares)
        level += 1
    while level < len(request.units) - 1:
        shares = distribute_to_children(counts, level, shares, request.units[level + 1])
        level += 1
    return shares


def distribute_to_children(counts: DomainCounts, level: int, shares: Shares, unit: int) -> Shares:
    """Hand each domain's pods to its own children in order W.

    Args:
        counts: phase 1.
        level: of the domains in `shares`.
        shares: what they were given.
        unit: pods that stay together one level down.
    """
    below = counts.level(level + 1)
    offsets = counts.tree.children[level]
    result: Shares = []
    plain = level >= counts.request.slice_level and not counts.has_leader and below.score is None
    numbers = unit_amounts(below, unit)
    for domain, pods, leaders in shares:
        start, end = int(offsets[domain]), int(offsets[domain + 1])
        if plain:
            result += distribute_below_slice_level(below, start, end, pods, unit)
            continue
        children = sort_domains(
            below,
            np.arange(start, end, dtype=np.int64),
            least_free=counts.request.least_free,
        )
        result += distribute(
            children,
            pods // unit,
            leaders,
            numbers,
            best_fit=not counts.request.least_free,
        )
    return result


def children_of(counts: DomainCounts, level: int, domains: list[int]) -> IntVector:
    """All children of some domains, in path order."""
    offsets = counts.tree.children[level]
    if len(domains) == 1:
        return np.arange(offsets[domains[0]], offsets[domains[0] + 1], dtype=np.int64)
    parts = [np.arange(offsets[d], offsets[d + 1], dtype=np.int64) for d in sorted(domains)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _distribute_over_all_children(counts: DomainCounts, level: int, shares: Shares) -> Shares:
    request = counts.request
    below = counts.level(level + 1)
    children = children_of(counts, level, [share.domain for share in shares])
    if not counts.has_leader and below.score is None:
        return distribute_slices(
            below, children, request.need, request.size, least_free=request.least_free
        )
    return distribute(
        sort_domains(below, children, least_free=request.least_free),
        request.need,
        int(counts.has_leader),
        slice_amounts(below, request.size),
        best_fit=not request.least_free,
    )


def _find_single_domain(counts: DomainCounts, numbers: LevelCounts) -> int | None:
    """The domain that takes everything and has least to spare, or None."""
    if numbers.score is not None:
        return _find_single_domain_by_score(counts, numbers)
    slices = numbers.slices_with_leader
    if numbers.leader_fits is not None:
        slices = slices | (numbers.leader_fits - 1)  # -1 where the leader does not fit
    least = least_sufficient(slices, counts.request.need)
    if least is None:
        return None
    places = (slices == least).nonzero()[0]
    if len(places) > 1 and numbers.pods_with_leader is not numbers.slices_with_leader:
        return int(places[numbers.pods_with_leader[places].argmin()])
    return int(places[0])


def _find_single_domain_by_score(counts: DomainCounts, numbers: LevelCounts) -> int | None:
    """As `_find_single_domain`, where the best score goes before the best fit."""
    request = counts.request
    ids = sort_domains_with_leader(
        numbers, np.arange(len(numbers.pods)), least_free=request.least_free
    )
    enough = numbers.slices_with_leader[ids] >= request.need
    if numbers.leader_fits is not None:
        enough &= numbers.leader_fits[ids] >= 1
    at = int(enough.argmax())
    if not enough[at] or (at and not request.required and not request.least_free):
        return None
    if request.least_free:
        return int(ids[at])
    return find_best_fit_domain(
        ids[at:], request.need, slice_amounts(numbers, request.size), leader=counts.has_leader
    )


def _slices_of_first_domain(counts: DomainCounts, numbers: LevelCounts) -> int:
    """Slices of the first domain in order L."""
    if numbers.leader_fits is None and numbers.score is None:
        return int(numbers.slices.max())
    top = first_domain_with_leader(numbers, least_free=counts.request.least_free)
    return int(numbers.slices[top])


def _take_several_domains(
    counts: DomainCounts, numbers: LevelCounts, level: int
) -> FitDomains | Shortfall:
    """Step 6: take domain after domain until everything has a place."""
    request = counts.request
    if (
        numbers.leader_fits is not None
        and numbers.score is None
        and level == len(request.units) - 1
    ):
        return _several_leaves(counts, numbers, numbers.leader_fits)
    if counts.has_leader or numbers.score is not None:
        return _several_domains_with_leader(counts, numbers, level)
    fitting = int(numbers.slices.sum())
    if fitting < request.need:
        return Shortfall(fitting, level)
    shares = distribute_slices(
        numbers, None, request.need, request.size, least_free=request.least_free
    )
    return FitDomains(level, np.array([share.domain for share in shares], dtype=np.int64))


def _several_leaves(
    counts: DomainCounts, numbers: LevelCounts, leader_fits: IntVector
) -> FitDomains | Shortfall:
    """As `_several_domains_with_leader` among all leaves, without sorting them."""
    request = counts.request
    level = len(request.units) - 1
    first = _leader_leaf(counts, numbers, leader_fits)
    if not leader_fits[first]:
        return Shortfall(0, level)
    chosen = [first]
    rest = request.need - int(numbers.slices_with_leader[first])
    if rest > 0:
        slices = numbers.slices.copy()
        slices[first] = 0
        missing = rest - int(slices.sum())
        if missing > 0:
            return Shortfall(request.need - missing, level)
        pods = slices if numbers.pods is numbers.slices else numbers.pods
        if request.least_free:
            # Leaves without a slice come first there; the leader may have to move to one of them.
            hosts = ((slices == 0) & (leader_fits == 1)).nonzero()[0]
            hosts = hosts[hosts != first]
            chosen += hosts[np.argsort(pods[hosts], kind="stable")[:1]].tolist()
        others = LevelCounts(pods, slices, pods, slices)
        shares = distribute_slices(others, None, rest, 1, least_free=request.least_free)
        chosen += [share.domain for share in shares]
    return FitDomains(level, np.array(chosen, dtype=np.int64))


def _leader_leaf(counts: DomainCounts, numbers: LevelCounts, leader_fits: IntVector) -> int:
    """The leaf that is used first: for the leader, and for what else fits there."""
    request = counts.request
    least_free, need = request.least_free, request.need
    loss = numbers.slices - numbers.slices_with_leader
    leaves = ((leader_fits == 1) & (loss <= int(numbers.slices.sum()) - need)).nonzero()[0]
    first = first_domain_with_leader(
        numbers, leaves if len(leaves) else None, least_free=least_free
    )
    if least_free or numbers.slices_with_leader[first] < need:
        return first
    # A leaf that takes everything: the one with least to spare, of several the first in line.
    slices = numbers.slices_with_leader | (leader_fits - 1)
    places = (slices == least_sufficient(slices, need)).nonzero()[0]
    if not len(places) or first in places:
        return first
    return first_domain_with_leader(numbers, places, least_free=least_free)


def _several_domains_with_leader(
    counts: DomainCounts, numbers: LevelCounts, level: int
) -> FitDomains | Shortfall:
    request = counts.request
    best_fit = not request.least_free
    amounts = slice_amounts(numbers, request.size)
    ids = sort_domains_with_leader(
        numbers, np.arange(len(numbers.pods), dtype=np.int64), least_free=request.least_free
    )
    leaders = int(counts.has_leader)
    ids = move_leader_domain_first(ids, request.need, amounts, leaders)
    rest = request.need
    chosen: list[int] = []
    if leaders and numbers.leader_fits is not None:
        first = int(ids[0])
        if not numbers.leader_fits[first]:
            return Shortfall(0, level)
        if best_fit and numbers.slices_with_leader[first] >= rest:
            first = find_best_fit_domain(ids, rest, amounts, leader=True)
        chosen.append(first)
        rest -= int(numbers.slices_with_leader[first])
        ids = ids[ids != first]
    ids = sort_domains(numbers, np.sort(ids), least_free=request.least_free)
    for at, domain in enumerate(ids.tolist()):
        if rest <= 0:
            break
        if best_fit and numbers.slices[domain] >= rest:
            domain = find_best_fit_domain(ids[at:], rest, amounts, leader=False)  # noqa: PLW2901 - the loop ends
        chosen.append(domain)
        rest -= int(numbers.slices[domain])
    if rest > 0:
        return Shortfall(request.need - rest, level)
    return FitDomains(level, np.array(chosen, dtype=np.int64))
