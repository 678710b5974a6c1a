"""Spread preferred requests evenly over as few domains as possible (gate TASBalancedPlacement).

1. For each group of domains that may be used together, `_balance_thresholds` computes how many
   slices every used domain should get at least.
2. `_prune_and_count` removes the domains that cannot get so many, in a copy of the counts. The
   group with the highest threshold wins, then the one with the fewest domains.
3. `select_domains` chooses among the remaining domains: a dynamic program over domains used,
   leaders left and pods left, which stops after STEP_LIMIT steps so that no request can block a
   cycle.
4. Each chosen domain gets the threshold, the rest is distributed in order, and the pods are
   distributed down to the leaves.

If a step fails, the result is None and placement continues with the unchanged counts.
Source: conformance/tas, section 12; Kueue's tas_balanced_placement.go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np

from rackgate_assigner.topology.model import IntVector
from rackgate_assigner.topology.placement.assign import (
    Shares,
    children_of,
    distribute,
    distribute_to_children,
    sort_domains,
    sort_domains_with_leader,
)
from rackgate_assigner.topology.placement.count import DomainCounts, LevelCounts, sum_children

# Steps of one dynamic program.
STEP_LIMIT: Final = 2_000_000


class GreedyAssignment(NamedTuple):
    """The fewest domains that fit everything.

    Attributes:
        domains: how many.
        leader: the domain chosen with the leader, or None.
        last: the last one chosen without, or None.
    """

    domains: int
    leader: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class BalancedPlan:
    """Domains of the requested level whose pruned counts allow an even spread.

    Attributes:
        threshold: slices that every used domain gets at least.
        domains: how many are used.
        ids: candidates.
    """

    threshold: int
    domains: int
    ids: IntVector


def balance_shares(counts: DomainCounts) -> Shares | None:
    """What every leaf gets in an even spread, or None."""
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
    shares = distribute(
        start, request.need, int(work.has_leader), work.level(level), request.size, best_fit=True
    )
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
    """Choose domains, most slices first, until everything fits; None: it does not."""
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
    """Slices per domain, and fewer if the last one also needs the leader."""
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
    """Empty the subtrees that cannot get `threshold` slices, or not with the leader."""
    numbers = work.level(level)
    few = numbers.slices[ids] < threshold
    _clear(work, level, ids[few], wholly=True)
    if numbers.leader_fits is not None:
        # A domain without the leader keeps the numbers of its hosts: they order them.
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
    """Set the counts of each start domain to its share; False if not all fits."""
    request = work.request
    numbers = work.level(level)
    rest = request.need - threshold * len(start)
    if rest < 0:
        return False
    for place, domain in enumerate(start.tolist()):
        leads = numbers.leader_fits is not None and place == 0
        most = int((numbers.slices_with_leader if leads else numbers.slices)[domain])
        extra = min(rest, most - threshold)
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
    """Counts of the requested level and below, in separate arrays.

    Not `LevelCounts.map`: arrays that are shared there differ once a leader is placed.
    """
    levels: list[LevelCounts | None] = [None] * len(counts.request.units)
    for level in range(counts.request.level, len(levels)):
        one = counts.level(level)
        levels[level] = LevelCounts(
            one.pods.copy(),
            one.slices.copy(),
            one.pods_with_leader.copy(),
            one.slices_with_leader.copy(),
            None if one.leader_fits is None else one.leader_fits.copy(),
            one.score,
        )
    return DomainCounts(counts.tree, counts.request, counts.level(-1), levels)


def _restore_counts(counts: DomainCounts, work: DomainCounts, level: int, ids: IntVector) -> None:
    start, end = int(ids[0]), int(ids[-1]) + 1
    for at in range(level, len(counts.request.units)):
        work.level(at).write(slice(start, end), counts.level(at).map(itemgetter(slice(start, end))))
        if at < len(counts.tree.children):
            start, end = counts.tree.children[at][[start, end]].tolist()


# The dynamic program.


class _State(NamedTuple):
    leaders_left: int
    pods_left: int


class _Predecessor(NamedTuple):
    """How a state was reached first: the domain added last, and the state before."""

    domain: int
    before: _State


def select_domains(
    counts: DomainCounts, level: int, ids: IntVector, number: int, *, by_evenness: bool
) -> list[int] | None:
    """Choose `number` domains that together take everything with least to spare.

    Evenly filled domains come first, or all in path order. None if no choice is enough, or the
    search takes too many steps.
    """
    request = counts.request
    numbers = counts.level(level)
    ordered = _by_evenness(counts, level, ids) if by_evenness else ids.tolist()
    first = _State(int(counts.has_leader), request.need * request.size)
    predecessors: list[dict[_State, _Predecessor | None]] = [{} for _ in range(number + 1)]
    predecessors[0][first] = None
    steps = 0
    for domain in ordered:
        for used in range(number - 1, -1, -1):
            steps += len(predecessors[used])
            if steps > STEP_LIMIT:
                return None
            for state in sorted(predecessors[used]):
                for after in _next_states(numbers, domain, state):
                    predecessors[used + 1].setdefault(after, _Predecessor(domain, state))
    return _reconstruct(predecessors, number)


def _next_states(numbers: LevelCounts, domain: int, state: _State) -> list[_State]:
    """States after using one more domain, with the leader and without."""
    if state.leaders_left <= 0 and state.pods_left <= 0:
        return []
    after = []
    if state.leaders_left > 0 and numbers.leader_fits is not None and numbers.leader_fits[domain]:
        after.append(
            _State(
                state.leaders_left - int(numbers.leader_fits[domain]),
                state.pods_left - int(numbers.pods_with_leader[domain]),
            )
        )
    if numbers.slices[domain] > 0:
        after.append(_State(state.leaders_left, state.pods_left - int(numbers.pods[domain])))
    return after


def _reconstruct(
    predecessors: list[dict[_State, _Predecessor | None]], number: int
) -> list[int] | None:
    ends = [s for s in predecessors[number] if s.leaders_left == 0 and s.pods_left <= 0]
    if not ends:
        return None
    state = max(ends)
    chosen: list[int] = []
    for used in range(number, 0, -1):
        predecessor = predecessors[used][state]
        if predecessor is None:
            break
        chosen.append(predecessor.domain)
        state = predecessor.before
    return chosen


def _by_evenness(counts: DomainCounts, level: int, ids: IntVector) -> list[int]:
    numbers = counts.level(level)
    offsets = counts.tree.children[level]
    below = counts.level(level + 1).pods

    def key(domain: int) -> tuple[int, int, float, int]:
        leader_fits = 0 if numbers.leader_fits is None else int(numbers.leader_fits[domain])
        pods = below[offsets[domain] : offsets[domain + 1]]
        return (-leader_fits, -int(numbers.slices_with_leader[domain]), -entropy(pods), domain)

    return sorted(ids.tolist(), key=key)


def entropy(pods: IntVector) -> float:
    """Base 2 entropy of the distribution of pods; 0 if there are none."""
    total = int(np.sum(pods))
    if total <= 0:
        return 0.0
    shares = [count / total for count in pods.tolist() if count > 0]
    return -math.fsum(part * math.log2(part) for part in shares)
