"""Phase 2: where to start, and the way down to the leaves (conformance text, 8.1 and 8.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackgate_assigner.topology.placement.count import Counts, LevelCounts
from rackgate_assigner.topology.placement.distribute import (
    Shares,
    first_with_leader,
    hand_out,
    hand_out_below,
    hand_out_plain,
    leader_first,
    least_sufficient,
    order_plain,
    order_with_leader,
    slice_numbers,
    tight,
    unit_numbers,
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
    slices = numbers.slices_led
    if numbers.lead is not None:
        slices = slices | (numbers.lead - 1)  # -1 where the leader does not fit
    least = least_sufficient(slices, counts.question.need)
    if least is None:
        return None
    places = (slices == least).nonzero()[0]
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
    top = first_with_leader(numbers, least_free=counts.question.least_free)
    return int(numbers.slices[top])


def _several_domains(counts: Counts, numbers: LevelCounts, level: int) -> Start | Shortfall:
    """Step 6: take domain after domain until everything has a place."""
    question = counts.question
    if numbers.lead is not None and numbers.score is None and level == len(question.units) - 1:
        return _several_leaves(counts, numbers, numbers.lead)
    if counts.led or numbers.score is not None:
        return _several_led(counts, numbers, level)
    fitting = int(numbers.slices.sum())
    if fitting < question.need:
        return Shortfall(fitting, level)
    shares = hand_out_plain(
        numbers, None, question.need, question.size, least_free=question.least_free
    )
    return Start(level, np.array([share.domain for share in shares], dtype=np.int64))


def _several_leaves(counts: Counts, numbers: LevelCounts, lead: IntVector) -> Start | Shortfall:
    """As `_several_led` among all leaves, without sorting them."""
    question = counts.question
    level = len(question.units) - 1
    first = _leaders_leaf(counts, numbers, lead)
    if not lead[first]:
        return Shortfall(0, level)
    chosen = [first]
    rest = question.need - int(numbers.slices_led[first])
    if rest > 0:
        slices = numbers.slices.copy()
        slices[first] = 0
        missing = rest - int(slices.sum())
        if missing > 0:
            return Shortfall(question.need - missing, level)
        pods = slices if numbers.pods is numbers.slices else numbers.pods
        if question.least_free:
            # Leaves without a slice come first there; the leader may have to move to one of them.
            hosts = ((slices == 0) & (lead == 1)).nonzero()[0]
            hosts = hosts[hosts != first]
            chosen += hosts[np.argsort(pods[hosts], kind="stable")[:1]].tolist()
        others = LevelCounts(pods, slices, pods, slices)
        shares = hand_out_plain(others, None, rest, 1, least_free=question.least_free)
        chosen += [share.domain for share in shares]
    return Start(level, np.array(chosen, dtype=np.int64))


def _leaders_leaf(counts: Counts, numbers: LevelCounts, lead: IntVector) -> int:
    """The leaf that is used first: for the leader, and for what else fits there."""
    question = counts.question
    least_free, need = question.least_free, question.need
    loss = numbers.slices - numbers.slices_led
    leaves = ((lead == 1) & (loss <= int(numbers.slices.sum()) - need)).nonzero()[0]
    first = first_with_leader(numbers, leaves if len(leaves) else None, least_free=least_free)
    if least_free or numbers.slices_led[first] < need:
        return first
    # A leaf that takes everything: the one with least to spare, of several the first in line.
    slices = numbers.slices_led | (lead - 1)
    places = (slices == least_sufficient(slices, need)).nonzero()[0]
    if not len(places) or first in places:
        return first
    return first_with_leader(numbers, places, least_free=least_free)


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
            domain = tight(ids[at:], rest, amounts, leader=False)  # noqa: PLW2901 - the loop ends
        chosen.append(domain)
        rest -= int(numbers.slices[domain])
    if rest > 0:
        return Shortfall(question.need - rest, level)
    return Start(level, np.array(chosen, dtype=np.int64))
