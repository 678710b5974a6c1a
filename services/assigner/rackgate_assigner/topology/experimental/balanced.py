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
from rackgate_assigner.topology.placement.assign import children_of, within_each
from rackgate_assigner.topology.placement.count import Counts, LevelCounts, sum_children
from rackgate_assigner.topology.placement.distribute import (
    Shares,
    hand_out,
    order_plain,
    order_with_leader,
    slice_numbers,
)
from rackgate_assigner.topology.tree import IntVector


class Greedy(NamedTuple):
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
class Plan:
    """Domains of the requested level whose pruned numbers allow a spread.

    Attributes:
        threshold: slices that every used domain takes at least.
        domains: how many are used.
        ids: candidates.
    """

    threshold: int
    domains: int
    ids: IntVector


def balanced_shares(counts: Counts) -> Shares | None:
    """Spread evenly, or None when that is not possible."""
    question = counts.question
    if question.need <= 0:
        return None
    work = _copy(counts)
    plan = _best_plan(counts, work)
    if plan is None or plan.threshold == 0:
        return None
    level, ids = question.level, plan.ids
    if level < question.slice_level:
        chosen = _select(work, level, ids, by_evenness=True)
        if chosen is None:
            return None
        ids = children_of(work, level, chosen)
        level += 1
    chosen = _select(work, level, ids, by_evenness=False)
    if chosen is None:
        return None
    start = order_with_leader(
        work.level(level), np.array(sorted(chosen), dtype=np.int64), least_free=False
    )
    if not _allot(work, level, start, plan.threshold):
        return None
    numbers = slice_numbers(work.level(level), question.size)
    shares = hand_out(start, question.need, int(work.led), numbers, best_fit=True)
    while level < len(question.units) - 1:
        above = level < question.slice_level
        shares = within_each(
            work, level, shares, question.size if above else question.units[level + 1]
        )
        level += 1
    return shares


def greedy(counts: Counts, level: int, ids: IntVector) -> Greedy | None:
    """Take domains, most slices first, until everything has a place; None: it never has."""
    numbers = counts.level(level)
    rest = counts.question.need
    leader = last = None
    used = 0
    if numbers.lead is not None:
        if not len(ids):
            return None
        leader = int(order_with_leader(numbers, ids, least_free=False)[0])
        if not numbers.lead[leader]:
            return None
        rest -= int(numbers.slices_led[leader])
        used = 1
        ids = ids[ids != leader]
    for domain in order_plain(numbers, ids, least_free=False).tolist():
        if rest <= 0 or not numbers.slices[domain]:
            break
        rest -= int(numbers.slices[domain])
        last = domain
        used += 1
    return None if rest > 0 else Greedy(used, leader, last)


def _best_plan(counts: Counts, work: Counts) -> Plan | None:
    level = counts.question.level
    best: Plan | None = None
    for ids in _groups(counts, level):
        threshold, reduced = _thresholds(counts, level, ids)
        floor = best.threshold if best is not None else 0
        if threshold is None or threshold < floor:
            continue
        found = _prune_and_count(work, level, ids, threshold)
        if found is None and 0 < reduced < threshold and reduced >= floor:
            _restore(counts, work, level, ids)
            threshold = reduced
            found = _prune_and_count(work, level, ids, threshold)
        if found is None:
            continue
        if best is None or (threshold, -found.domains) > (best.threshold, -best.domains):
            best = Plan(threshold, found.domains, ids)
    return best


def _groups(counts: Counts, level: int) -> list[IntVector]:
    """Ids of the requested level that may be used together: siblings, or all of the highest."""
    if level == 0:
        return [np.arange(len(counts.tree.paths[0]), dtype=np.int64)]
    offsets = counts.tree.children[level - 1].tolist()
    return [np.arange(start, end, dtype=np.int64) for start, end in pairwise(offsets)]


def _thresholds(counts: Counts, level: int, ids: IntVector) -> tuple[int | None, int]:
    """Slices per domain to aim at, and less where the last one would need room for the leader."""
    below = level < counts.question.slice_level
    at = level + 1 if below else level
    found = greedy(counts, at, children_of(counts, level, ids.tolist()) if below else ids)
    if found is None:
        return None, 0
    numbers = counts.level(at)
    threshold = counts.question.need // max(found.domains, 1)
    if found.leader is not None:
        threshold = min(threshold, int(numbers.slices_led[found.leader]))
    if found.last is not None:
        threshold = min(threshold, int(numbers.slices[found.last]))
    reduced = threshold
    if found.leader is not None and found.last is not None:
        reduced = min(threshold, int(numbers.slices_led[found.last]))
    return threshold, reduced


def _prune_and_count(work: Counts, level: int, ids: IntVector, threshold: int) -> Greedy | None:
    if level < work.question.slice_level:
        _prune(work, level + 1, children_of(work, level, ids.tolist()), threshold)
    if level < len(work.question.units) - 1:
        offsets = work.tree.children[level][int(ids[0]) : int(ids[-1]) + 2]
        part = slice(int(offsets[0]), int(offsets[-1]))
        below = work.level(level + 1).map(lambda values: values[part])
        summed = sum_children(work.question, level, below, offsets[:-1] - part.start, plain=True)
        work.level(level).write(ids, summed)
    _prune(work, level, ids, threshold)
    return greedy(work, level, ids)


def _prune(work: Counts, level: int, ids: IntVector, threshold: int) -> None:
    """Empty the subtrees that cannot take `threshold` slices, or not with the leader."""
    numbers = work.level(level)
    few = numbers.slices[ids] < threshold
    _clear(work, level, ids[few], wholly=True)
    if numbers.lead is not None:
        # A domain that hosts no leader keeps the numbers of its hosts: they order them.
        led = (numbers.lead[ids] > 0) & (numbers.slices_led[ids] < threshold)
        _clear(work, level, ids[led], wholly=False)


def _clear(work: Counts, level: int, ids: IntVector, *, wholly: bool) -> None:
    for at in range(level, len(work.question.units)):
        if not len(ids):
            return
        numbers = work.level(at)
        for values in (numbers.pods_led, numbers.slices_led, numbers.lead):
            if values is not None:
                values[ids] = 0
        if wholly:
            numbers.pods[ids] = 0
            numbers.slices[ids] = 0
        if at < len(work.tree.children):
            ids = children_of(work, at, ids.tolist())


def _allot(work: Counts, level: int, start: IntVector, threshold: int) -> bool:
    """Write what each start domain is to take into its numbers; False when not all finds room."""
    question = work.question
    numbers = work.level(level)
    rest = question.need - threshold * len(start)
    if rest < 0:
        return False
    for place, domain in enumerate(start.tolist()):
        leads = numbers.lead is not None and place == 0
        room = int((numbers.slices_led if leads else numbers.slices)[domain])
        extra = min(rest, room - threshold)
        rest -= extra
        given = threshold + extra
        numbers.slices[domain] = numbers.slices_led[domain] = given
        numbers.pods[domain] = given * question.size
        numbers.pods_led[domain] = given * question.size - int(leads)
        if numbers.lead is not None:
            numbers.lead[domain] = int(leads)
    return rest == 0


def _select(work: Counts, level: int, ids: IntVector, *, by_evenness: bool) -> list[int] | None:
    found = greedy(work, level, ids)
    if found is None:
        return None
    return select_domains(work, level, ids, found.domains, by_evenness=by_evenness)


def _copy(counts: Counts) -> Counts:
    """Numbers of the requested level and below, each array on its own."""
    work = Counts(counts.tree, counts.question, _own(counts.level(len(counts.question.units) - 1)))
    for level in range(counts.question.level, len(counts.question.units) - 1):
        work.put(level, _own(counts.level(level)))
    return work


def _own(numbers: LevelCounts) -> LevelCounts:
    return LevelCounts(
        numbers.pods.copy(),
        numbers.slices.copy(),
        numbers.pods_led.copy(),
        numbers.slices_led.copy(),
        None if numbers.lead is None else numbers.lead.copy(),
        numbers.score,
    )


def _put(into: LevelCounts, numbers: LevelCounts, part: slice) -> None:
    into.pods[part] = numbers.pods[part]
    into.slices[part] = numbers.slices[part]
    into.pods_led[part] = numbers.pods_led[part]
    into.slices_led[part] = numbers.slices_led[part]
    if into.lead is not None and numbers.lead is not None:
        into.lead[part] = numbers.lead[part]


def _restore(counts: Counts, work: Counts, level: int, ids: IntVector) -> None:
    start, end = int(ids[0]), int(ids[-1]) + 1
    for at in range(level, len(counts.question.units)):
        _put(work.level(at), counts.level(at), slice(start, end))
        if at < len(counts.tree.children):
            start, end = counts.tree.children[at][[start, end]].tolist()
