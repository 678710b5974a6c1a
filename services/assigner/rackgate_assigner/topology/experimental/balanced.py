"""Even spread of preferred requests over as few domains as can be (gate TASBalancedPlacement).

Conformance text, section 12. Works on a copy of the numbers; when any step finds no way, the
caller goes on with the untouched ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rackgate_assigner.topology.experimental.balanced_selection import select_domains
from rackgate_assigner.topology.placement.assign import children_of, distribute_to_children
from rackgate_assigner.topology.placement.count import DomainCounts, LevelCounts, sum_children
from rackgate_assigner.topology.placement.distribute import (
    Shares,
    distribute,
    slice_amounts,
    sort_domains,
    sort_domains_with_leader,
)
from rackgate_assigner.topology.tree import IntVector


class GreedyAssignment(NamedTuple):
    """Fewest domains that take everything.

    Attributes:
        domains: how many.
        leader: the domain taken with the leader, or None.
        last: the last one taken without, or None.
    """

    domains: int
    leader: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class BalancedPlan:
    """Domains of the requested level whose pruned numbers allow a spread.

    Attributes:
        threshold: slices that every used domain takes at least.
        domains: how many are used.
        ids: candidates.
    """

    threshold: int
    domains: int
    ids: IntVector


def balance_shares(counts: DomainCounts) -> Shares | None:
    """Spread evenly, or None when that is not possible."""
    request = counts.request
    if request.need <= 0:
        return None
    work = _copy_counts(counts)
    plan = _best_plan(counts, work)
    if plan is None or plan.threshold == 0:
        return None
    level, ids = request.level, plan.ids
    if level < request.slice_level:
        chosen = _select_domains(work, level, ids, by_evenness=True)
        if chosen is None:
            return None
        ids = children_of(work, level, chosen)
        level += 1
    chosen = _select_domains(work, level, ids, by_evenness=False)
    if chosen is None:
        return None
    start = sort_domains_with_leader(
        work.level(level), np.array(sorted(chosen), dtype=np.int64), least_free=False
    )
    if not _place_slices(work, level, start, plan.threshold):
        return None
    numbers = slice_amounts(work.level(level), request.size)
    shares = distribute(start, request.need, int(work.has_leader), numbers, best_fit=True)
    while level < len(request.units) - 1:
        above = level < request.slice_level
        shares = distribute_to_children(
            work, level, shares, request.size if above else request.units[level + 1]
        )
        level += 1
    return shares


def evaluate_greedy_assignment(
    counts: DomainCounts, level: int, ids: IntVector
) -> GreedyAssignment | None:
    """Take domains, most slices first, until everything has a place; None: it never has."""
    numbers = counts.level(level)
    rest = counts.request.need
    leader = last = None
    used = 0
    if numbers.leader_fits is not None:
        if not len(ids):
            return None
        leader = int(sort_domains_with_leader(numbers, ids, least_free=False)[0])
        if not numbers.leader_fits[leader]:
            return None
        rest -= int(numbers.slices_with_leader[leader])
        used = 1
        ids = ids[ids != leader]
    for domain in sort_domains(numbers, ids, least_free=False).tolist():
        if rest <= 0 or not numbers.slices[domain]:
            break
        rest -= int(numbers.slices[domain])
        last = domain
        used += 1
    return None if rest > 0 else GreedyAssignment(used, leader, last)


def _best_plan(counts: DomainCounts, work: DomainCounts) -> BalancedPlan | None:
    level = counts.request.level
    best: BalancedPlan | None = None
    for ids in _groups(counts, level):
        threshold, reduced = _balance_thresholds(counts, level, ids)
        floor = best.threshold if best is not None else 0
        if threshold is None or threshold < floor:
            continue
        found = _prune_and_count(work, level, ids, threshold)
        if found is None and 0 < reduced < threshold and reduced >= floor:
            _restore_counts(counts, work, level, ids)
            threshold = reduced
            found = _prune_and_count(work, level, ids, threshold)
        if found is None:
            continue
        if best is None or (threshold, -found.domains) > (best.threshold, -best.domains):
            best = BalancedPlan(threshold, found.domains, ids)
    return best


def _groups(counts: DomainCounts, level: int) -> list[IntVector]:
    """Ids of the requested level that may be used together: siblings, or all of the highest."""
    if level == 0:
        return [np.arange(len(counts.tree.paths[0]), dtype=np.int64)]
    offsets = counts.tree.children[level - 1].tolist()
    return [np.arange(start, end, dtype=np.int64) for start, end in pairwise(offsets)]


def _balance_thresholds(counts: DomainCounts, level: int, ids: IntVector) -> tuple[int | None, int]:
    """Slices per domain to aim at, and less where the last one would need room for the leader."""
    below = level < counts.request.slice_level
    at = level + 1 if below else level
    found = evaluate_greedy_assignment(
        counts, at, children_of(counts, level, ids.tolist()) if below else ids
    )
    if found is None:
        return None, 0
    numbers = counts.level(at)
    threshold = counts.request.need // max(found.domains, 1)
    if found.leader is not None:
        threshold = min(threshold, int(numbers.slices_with_leader[found.leader]))
    if found.last is not None:
        threshold = min(threshold, int(numbers.slices[found.last]))
    reduced = threshold
    if found.leader is not None and found.last is not None:
        reduced = min(threshold, int(numbers.slices_with_leader[found.last]))
    return threshold, reduced


def _prune_and_count(
    work: DomainCounts, level: int, ids: IntVector, threshold: int
) -> GreedyAssignment | None:
    if level < work.request.slice_level:
        _prune(work, level + 1, children_of(work, level, ids.tolist()), threshold)
    if level < len(work.request.units) - 1:
        offsets = work.tree.children[level][int(ids[0]) : int(ids[-1]) + 2]
        domain_range = slice(int(offsets[0]), int(offsets[-1]))
        below = work.level(level + 1).map(lambda values: values[domain_range])
        summed = sum_children(
            work.request, level, below, offsets[:-1] - domain_range.start, ignore_units=True
        )
        work.level(level).write(ids, summed)
    _prune(work, level, ids, threshold)
    return evaluate_greedy_assignment(work, level, ids)


def _prune(work: DomainCounts, level: int, ids: IntVector, threshold: int) -> None:
    """Empty the subtrees that cannot take `threshold` slices, or not with the leader."""
    numbers = work.level(level)
    few = numbers.slices[ids] < threshold
    _clear(work, level, ids[few], wholly=True)
    if numbers.leader_fits is not None:
        # A domain that hosts no leader keeps the numbers of its hosts: they order them.
        hosts_too_few = (numbers.leader_fits[ids] > 0) & (
            numbers.slices_with_leader[ids] < threshold
        )
        _clear(work, level, ids[hosts_too_few], wholly=False)


def _clear(work: DomainCounts, level: int, ids: IntVector, *, wholly: bool) -> None:
    for at in range(level, len(work.request.units)):
        if not len(ids):
            return
        numbers = work.level(at)
        for values in (numbers.pods_with_leader, numbers.slices_with_leader, numbers.leader_fits):
            if values is not None:
                values[ids] = 0
        if wholly:
            numbers.pods[ids] = 0
            numbers.slices[ids] = 0
        if at < len(work.tree.children):
            ids = children_of(work, at, ids.tolist())


def _place_slices(work: DomainCounts, level: int, start: IntVector, threshold: int) -> bool:
    """Write what each start domain is to take into its numbers; False when not all finds room."""
    request = work.request
    numbers = work.level(level)
    rest = request.need - threshold * len(start)
    if rest < 0:
        return False
    for place, domain in enumerate(start.tolist()):
        leads = numbers.leader_fits is not None and place == 0
        room = int((numbers.slices_with_leader if leads else numbers.slices)[domain])
        extra = min(rest, room - threshold)
        rest -= extra
        slices_given = threshold + extra
        numbers.slices[domain] = numbers.slices_with_leader[domain] = slices_given
        numbers.pods[domain] = slices_given * request.size
        numbers.pods_with_leader[domain] = slices_given * request.size - int(leads)
        if numbers.leader_fits is not None:
            numbers.leader_fits[domain] = int(leads)
    return rest == 0


def _select_domains(
    work: DomainCounts, level: int, ids: IntVector, *, by_evenness: bool
) -> list[int] | None:
    found = evaluate_greedy_assignment(work, level, ids)
    if found is None:
        return None
    return select_domains(work, level, ids, found.domains, by_evenness=by_evenness)


def _copy_counts(counts: DomainCounts) -> DomainCounts:
    """Numbers of the requested level and below, each array on its own."""
    work = DomainCounts(
        counts.tree, counts.request, _copy_level_counts(counts.level(len(counts.request.units) - 1))
    )
    for level in range(counts.request.level, len(counts.request.units) - 1):
        work.put(level, _copy_level_counts(counts.level(level)))
    return work


def _copy_level_counts(numbers: LevelCounts) -> LevelCounts:
    return LevelCounts(
        numbers.pods.copy(),
        numbers.slices.copy(),
        numbers.pods_with_leader.copy(),
        numbers.slices_with_leader.copy(),
        None if numbers.leader_fits is None else numbers.leader_fits.copy(),
        numbers.score,
    )


def _copy_range(into: LevelCounts, numbers: LevelCounts, domain_range: slice) -> None:
    into.pods[domain_range] = numbers.pods[domain_range]
    into.slices[domain_range] = numbers.slices[domain_range]
    into.pods_with_leader[domain_range] = numbers.pods_with_leader[domain_range]
    into.slices_with_leader[domain_range] = numbers.slices_with_leader[domain_range]
    if into.leader_fits is not None and numbers.leader_fits is not None:
        into.leader_fits[domain_range] = numbers.leader_fits[domain_range]


def _restore_counts(counts: DomainCounts, work: DomainCounts, level: int, ids: IntVector) -> None:
    start, end = int(ids[0]), int(ids[-1]) + 1
    for at in range(level, len(counts.request.units)):
        _copy_range(work.level(at), counts.level(at), slice(start, end))
        if at < len(counts.tree.children):
            start, end = counts.tree.children[at][[start, end]].tolist()
