"""Phase 2, the tools: orders of domains, the tight choice, and handing out pods.

Domains are ids of one level in ascending order unless said otherwise, so that every stable sort
breaks ties by path. Conformance text, section 8 (orders, tight, 8.2, 8.3).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from rackgate_assigner.core.counting import LevelCounts
from rackgate_assigner.core.tree import IntVector

# Above this many domains the first few are cut out before they are sorted.
SORT_LIMIT = 512


class Share(NamedTuple):
    """What a domain was given: its id, workers, and the leader (0 or 1)."""

    domain: int
    pods: int
    lead: int


Shares: TypeAlias = list[Share]


class Numbers(NamedTuple):
    """The numbers that are handed out on one level, by domain id (slices, or pods).

    Attributes:
        plain: without the leader.
        led: if the leader sits in the same domain.
        lead: 1 where the leader fits; None without a leader.
        score: soft preference or None.
        size: pods per number.
    """

    plain: IntVector
    led: IntVector
    lead: IntVector | None
    score: IntVector | None
    size: int


def slice_numbers(counts: LevelCounts, size: int) -> Numbers:
    """Podset slices are handed out."""
    return Numbers(counts.slices, counts.slices_led, counts.lead, counts.score, size)


def unit_numbers(counts: LevelCounts, unit: int) -> Numbers:
    """Pods are handed out, or units of an inner layer (unit > 1)."""
    if unit == 1:
        return Numbers(counts.pods, counts.pods_led, counts.lead, counts.score, 1)
    plain = counts.pods // unit
    led = plain if counts.lead is None else counts.pods_led // unit
    return Numbers(plain, led, counts.lead, counts.score, unit)


def order_with_leader(counts: LevelCounts, ids: IntVector, *, least_free: bool) -> IntVector:
    """Order L: leader, [score,] slices with leader, fewest pods with leader, path."""
    slices = counts.slices_led[ids]
    keys = [counts.pods_led[ids], slices if least_free else -slices]
    if counts.score is not None:
        keys.append(-counts.score[ids])
    if counts.lead is not None:
        keys.append(-counts.lead[ids])
    ordered: IntVector = ids[np.lexsort(keys)]
    return ordered


def order_plain(counts: LevelCounts, ids: IntVector, *, least_free: bool) -> IntVector:
    """Order W: [score,] slices, fewest pods, path."""
    slices = counts.slices[ids]
    keys = [counts.pods[ids], slices if least_free else -slices]
    if counts.score is not None:
        keys.append(-counts.score[ids])
    ordered: IntVector = ids[np.lexsort(keys)]
    return ordered


def first_plain(counts: LevelCounts, ids: IntVector, limit: int, *, least_free: bool) -> IntVector:
    """The first `limit` domains of order W (without scores) that have any slices."""
    slices = counts.slices[ids]
    some = slices.nonzero()[0]
    if len(some) < len(ids):
        ids, slices = ids[some], slices[some]
    keys = [slices if least_free else -slices]
    if counts.pods is not counts.slices:
        keys.append(counts.pods[ids])
    chosen: IntVector = ids[smallest(keys, limit)]
    return chosen


def smallest(keys: list[IntVector], limit: int) -> IntVector:
    """Positions of the first `limit` rows sorted by `keys` (first key first), then position."""
    rows = len(keys[0])
    if rows <= SORT_LIMIT or limit >= rows:
        return np.lexsort(keys[::-1])[:limit]
    bound = np.partition(keys[0], limit - 1)[limit - 1]
    below = (keys[0] < bound).nonzero()[0]
    equal = (keys[0] == bound).nonzero()[0]
    left = limit - len(below)
    if len(keys) == 1:
        equal = equal[:left]
    else:
        equal = equal[smallest([key[equal] for key in keys[1:]], left)]
    below = below[np.lexsort([key[below] for key in keys[::-1]])]
    return np.concatenate([below, equal])


def tight(ids: IntVector, wanted: int, numbers: Numbers, *, leader: bool) -> int:
    """The first domain of a list with the smallest sufficient number; else the list's first."""
    if numbers.score is not None:
        scores = numbers.score[ids]
        ids = ids[: int(np.argmax(np.append(scores, scores[0] - 1) != scores[0]))]
    amounts = (numbers.led if leader else numbers.plain)[ids]
    enough = amounts >= wanted
    if leader and numbers.lead is not None:
        enough &= numbers.lead[ids] >= 1
    places = enough.nonzero()[0]
    return int(ids[places[amounts[places].argmin()]] if len(places) else ids[0])


def leader_first(ids: IntVector, wanted: int, numbers: Numbers, leaders: int) -> IntVector:
    """Move to the front the first domain whose leader still leaves `wanted` for the others."""
    if not leaders or len(ids) < 2 or numbers.lead is None:
        return ids
    plain = numbers.plain[ids]
    rest = plain.sum() - (plain - numbers.led[ids])
    found = ((numbers.lead[ids] >= leaders) & (rest >= wanted)).nonzero()[0]
    if not len(found):
        return ids
    at = int(found[0])
    return np.concatenate([ids[at : at + 1], ids[:at], ids[at + 1 :]])


def hand_out(
    ids: IntVector, wanted: int, leaders: int, numbers: Numbers, *, best_fit: bool
) -> Shares:
    """Give `wanted` numbers and the leader to the domains of a sorted list (8.3).

    Returns:
        Domains in the order they were used; one may have got nothing.
    """
    ids = leader_first(ids, wanted, numbers, leaders)
    shares: Shares = []
    rest = wanted
    for at, domain in enumerate(ids.tolist()):
        if leaders > 0:
            amount = int(numbers.led[domain])
            lead = 0 if numbers.lead is None else int(numbers.lead[domain])
            if amount >= rest and lead >= leaders:
                if best_fit:
                    domain = tight(ids[at:], rest, numbers, leader=True)  # noqa: PLW2901 - it ends
                shares.append(Share(domain, rest * numbers.size, leaders))
                return shares
            amount = min(amount, rest)
            leaders -= lead
        else:
            amount, lead = int(numbers.plain[domain]), 0
            if amount >= rest:
                if best_fit:
                    domain = tight(ids[at:], rest, numbers, leader=False)  # noqa: PLW2901 - it ends
                shares.append(Share(domain, rest * numbers.size, 0))
                return shares
        shares.append(Share(domain, amount * numbers.size, lead))
        rest -= amount
    return shares


def hand_out_plain(
    counts: LevelCounts, ids: IntVector, wanted: int, size: int, *, least_free: bool
) -> Shares:
    """`hand_out` of slices in order W without leader and scores, touching only what is used.

    Domains without a slice are left out: they would get nothing, and nothing below them would.
    """
    if wanted <= 0:
        return []
    first = first_plain(counts, ids, wanted, least_free=least_free)
    shares: Shares = []
    rest = wanted
    for domain, amount in zip(first.tolist(), counts.slices[first].tolist(), strict=True):
        if amount >= rest:
            if not least_free:
                domain = _tight_plain(counts, ids, first[: len(shares)], rest)  # noqa: PLW2901 - it ends
            shares.append(Share(domain, rest * size, 0))
            return shares
        shares.append(Share(domain, amount * size, 0))
        rest -= amount
    return shares


def hand_out_below(counts: LevelCounts, start: int, end: int, pods: int, unit: int) -> Shares:
    """`hand_out` to the children `start..end` of one domain below the slice level, no leader.

    They come by fewest pods, so the tight choice never changes anything there.
    """
    room = counts.pods[start:end]
    shares: Shares = []
    rest = pods // unit
    for place in np.argsort(room, kind="stable").tolist():
        amount = int(room[place]) // unit
        if amount >= rest:
            if rest:
                shares.append(Share(start + place, rest * unit, 0))
            break
        if amount:
            shares.append(Share(start + place, amount * unit, 0))
            rest -= amount
    return shares


def _tight_plain(counts: LevelCounts, ids: IntVector, used: IntVector, wanted: int) -> int:
    """Smallest sufficient slices, then fewest pods, then path, among those not used yet."""
    slices = counts.slices[ids]
    enough = slices >= wanted
    if len(used):
        enough[ids.searchsorted(used)] = False  # ids are ascending
    places = enough.nonzero()[0]
    amounts = slices[places]
    places = places[amounts == amounts.min()]
    if len(places) > 1 and counts.pods is not counts.slices:
        places = places[counts.pods[ids[places]].argmin() :]
    return int(ids[places[0]])
