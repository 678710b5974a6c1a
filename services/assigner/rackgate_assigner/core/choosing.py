"""Phase 2: where to start, and the way down to the leaves (conformance text, 8.1 and 8.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackgate_assigner.core.counting import Counts, LevelCounts
from rackgate_assigner.core.handing import (
    Shares,
    hand_out,
    hand_out_below,
    hand_out_plain,
    leader_first,
    order_plain,
    order_with_leader,
    slice_numbers,
    tight,
    unit_numbers,
)
from rackgate_assigner.core.tree import IntVector


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
class Start:
    """Domains of one level to start from, in the order they are to be used."""

    level: int
    domains: IntVector


def choose_start(counts: Counts) -> Start | Shortfall:
    """Find the domains to start from, climbing for preferred requests."""
    question = counts.question
    level = question.level
    while True:
        numbers = counts.level(level)
        if not len(numbers.pods):
            return Shortfall(0, level, absent=True)
        single = _single_domain(counts, numbers)
        if single is not None:
            return Start(level, np.array([single], dtype=np.int64))
        if question.required:
            return Shortfall(_slices_of_top(counts, numbers), level)
        if level == 0 or question.unconstrained:
            return _several_domains(counts, numbers, level)
        level -= 1


def descend(counts: Counts, start: Start) -> Shares:
    """Hand the pods down to the leaves.

    Down to the slice level over all children at once, below it within each domain.
    """
    question = counts.question
    leaders = int(counts.led)
    level = start.level
    numbers = slice_numbers(counts.level(level), question.size)
    best_fit = not question.least_free
    shares = hand_out(start.domains, question.need, leaders, numbers, best_fit=best_fit)
    while level < question.slice_level:
        shares = _over_all_children(counts, level, shares)
        level += 1
    while level < len(question.units) - 1:
        shares = within_each(counts, level, shares, question.units[level + 1])
        level += 1
    return shares


def within_each(counts: Counts, level: int, shares: Shares, unit: int) -> Shares:
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
    plain = level >= counts.question.slice_level and not counts.led and below.score is None
    numbers = unit_numbers(below, unit)
    for domain, pods, lead in shares:
        start, end = int(offsets[domain]), int(offsets[domain + 1])
        if plain:
            result += hand_out_below(below, start, end, pods, unit)
            continue
        children = order_plain(
            below,
            np.arange(start, end, dtype=np.int64),
            least_free=counts.question.least_free,
        )
        result += hand_out(
            children,
            pods // unit,
            lead,
            numbers,
            best_fit=not counts.question.least_free,
        )
    return result


def children_of(counts: Counts, level: int, domains: list[int]) -> IntVector:
    """All children of some domains, in path order."""
    offsets = counts.tree.children[level]
    if len(domains) == 1:
        return np.arange(offsets[domains[0]], offsets[domains[0] + 1], dtype=np.int64)
    parts = [np.arange(offsets[d], offsets[d + 1], dtype=np.int64) for d in sorted(domains)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _over_all_children(counts: Counts, level: int, shares: Shares) -> Shares:
    question = counts.question
    below = counts.level(level + 1)
    children = children_of(counts, level, [share.domain for share in shares])
    if not counts.led and below.score is None:
        return hand_out_plain(
            below, children, question.need, question.size, least_free=question.least_free
        )
    return hand_out(
        order_plain(below, children, least_free=question.least_free),
        question.need,
        int(counts.led),
        slice_numbers(below, question.size),
        best_fit=not question.least_free,
    )


def _single_domain(counts: Counts, numbers: LevelCounts) -> int | None:
    """The domain that takes everything and has least to spare, or None."""
    if numbers.score is not None:
        return _single_by_score(counts, numbers)
    need = counts.question.need
    enough = numbers.slices_led >= need
    if numbers.lead is not None:
        enough &= numbers.lead >= 1
    places = enough.nonzero()[0]
    if not len(places):
        return None
    slices = numbers.slices_led[places]
    places = places[slices == slices.min()]
    if len(places) > 1 and numbers.pods_led is not numbers.slices_led:
        return int(places[numbers.pods_led[places].argmin()])
    return int(places[0])


def _single_by_score(counts: Counts, numbers: LevelCounts) -> int | None:
    """As `_single_domain`, where the best score goes before the best fit."""
    question = counts.question
    ids = order_with_leader(numbers, np.arange(len(numbers.pods)), least_free=question.least_free)
    enough = numbers.slices_led[ids] >= question.need
    if numbers.lead is not None:
        enough &= numbers.lead[ids] >= 1
    at = int(enough.argmax())
    if not enough[at] or (at and not question.required and not question.least_free):
        return None
    if question.least_free:
        return int(ids[at])
    return tight(ids[at:], question.need, slice_numbers(numbers, question.size), leader=counts.led)


def _slices_of_top(counts: Counts, numbers: LevelCounts) -> int:
    """Slices of the first domain in order L."""
    if numbers.lead is None and numbers.score is None:
        return int(numbers.slices.max())
    ids = np.arange(len(numbers.pods))
    top = order_with_leader(numbers, ids, least_free=counts.question.least_free)[0]
    return int(numbers.slices[top])


def _several_domains(counts: Counts, numbers: LevelCounts, level: int) -> Start | Shortfall:
    """Step 6: take domain after domain until everything has a place."""
    question = counts.question
    ids = np.arange(len(numbers.pods), dtype=np.int64)
    if counts.led or numbers.score is not None:
        return _several_led(counts, numbers, level)
    if int(numbers.slices.sum()) < question.need:
        return Shortfall(int(numbers.slices.sum()), level)
    shares = hand_out_plain(
        numbers, ids, question.need, question.size, least_free=question.least_free
    )
    return Start(level, np.array([share.domain for share in shares], dtype=np.int64))


def _several_led(counts: Counts, numbers: LevelCounts, level: int) -> Start | Shortfall:
    question = counts.question
    best_fit = not question.least_free
    amounts = slice_numbers(numbers, question.size)
    ids = order_with_leader(
        numbers, np.arange(len(numbers.pods), dtype=np.int64), least_free=question.least_free
    )
    leaders = int(counts.led)
    ids = leader_first(ids, question.need, amounts, leaders)
    rest = question.need
    chosen: list[int] = []
    if leaders and numbers.lead is not None:
        first = int(ids[0])
        if not numbers.lead[first]:
            return Shortfall(0, level)
        if best_fit and numbers.slices_led[first] >= rest:
            first = tight(ids, rest, amounts, leader=True)
        chosen.append(first)
        rest -= int(numbers.slices_led[first])
        ids = ids[ids != first]
    ids = order_plain(numbers, np.sort(ids), least_free=question.least_free)
    for at, domain in enumerate(ids.tolist()):
        if rest <= 0:
            break
        if best_fit and numbers.slices[domain] >= rest:
            domain = tight(ids[at:], rest, amounts, leader=False)  # noqa: PLW2901 - it ends
        chosen.append(domain)
        rest -= int(numbers.slices[domain])
    if rest > 0:
        return Shortfall(question.need - rest, level)
    return Start(level, np.array(chosen, dtype=np.int64))
