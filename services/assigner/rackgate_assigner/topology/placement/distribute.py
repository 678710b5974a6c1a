"""Phase 2, the tools: orders of domains, the tight choice, and handing out pods.

Domains are ids of one level in ascending order unless said otherwise, so that every stable sort
breaks ties by path. Conformance text, section 8 (orders, tight, 8.2, 8.3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import NamedTuple, TypeAlias

import numpy as np

from rackgate_assigner.topology.placement.count import LevelCounts
from rackgate_assigner.topology.tree import IntVector

# Above this many domains the first few are cut out before they are sorted.
SORT_LIMIT = 512
# So many different numbers of slices are looked through before a cut by order takes less.
VALUES_LIMIT = 4
# Above this many domains numbers are handed out to all of them at once.
VECTORIZE_ABOVE = 32
UINT64_SIGN_BIT = 2**63


class Share(NamedTuple):
    """What a domain was given: its id, workers, and the leader (0 or 1)."""

    domain: int
    pods: int
    leaders: int


Shares: TypeAlias = list[Share]
_SHARE: Callable[[tuple[int, int, int]], Share] = partial(tuple.__new__, Share)


class DomainAmounts(NamedTuple):
    """The numbers that are handed out on one level, by domain id (slices, or pods).

    Attributes:
        without_leader: if the leader sits elsewhere.
        with_leader: if the leader sits in the same domain.
        leader_fits: 1 where the leader fits; None without a leader.
        score: soft preference or None.
        size: pods per number.
    """

    without_leader: IntVector
    with_leader: IntVector
    leader_fits: IntVector | None
    score: IntVector | None
    size: int


def slice_amounts(counts: LevelCounts, size: int) -> DomainAmounts:
    """Podset slices are handed out."""
    return DomainAmounts(
        counts.slices, counts.slices_with_leader, counts.leader_fits, counts.score, size
    )


def unit_amounts(counts: LevelCounts, unit: int) -> DomainAmounts:
    """Pods are handed out, or units of an inner layer (unit > 1)."""
    if unit == 1:
        return DomainAmounts(
            counts.pods, counts.pods_with_leader, counts.leader_fits, counts.score, 1
        )
    without_leader = counts.pods // unit
    with_leader = without_leader if counts.leader_fits is None else counts.pods_with_leader // unit
    return DomainAmounts(without_leader, with_leader, counts.leader_fits, counts.score, unit)


def sort_domains_with_leader(counts: LevelCounts, ids: IntVector, *, least_free: bool) -> IntVector:
    """Order L: leader, [score,] slices with leader, fewest pods with leader, path."""
    keys = [key[ids] for key in _sort_keys_with_leader(counts, least_free=least_free)]
    ordered: IntVector = ids[np.lexsort(keys[::-1])]
    return ordered


def first_domain_with_leader(
    counts: LevelCounts, ids: IntVector | None = None, *, least_free: bool
) -> int:
    """The first domain in order L of some, in ascending order, or of all of a level."""
    places = ids
    for key in _sort_keys_with_leader(counts, least_free=least_free):
        values = key if places is None else key[places]
        first = (values == values.min()).nonzero()[0]
        places = first if places is None else places[first]
        if len(places) == 1:
            break
    return 0 if places is None else int(places[0])


def _sort_keys_with_leader(counts: LevelCounts, *, least_free: bool) -> list[IntVector]:
    """What order L sorts by, the most important first."""
    slices = counts.slices_with_leader
    keys = [slices if least_free else -slices, counts.pods_with_leader]
    if counts.score is not None:
        keys.insert(0, -counts.score)
    if counts.leader_fits is not None:
        keys.insert(0, -counts.leader_fits)
    return keys


def sort_domains(counts: LevelCounts, ids: IntVector, *, least_free: bool) -> IntVector:
    """Order W: [score,] slices, fewest pods, path."""
    slices = counts.slices[ids]
    keys = [counts.pods[ids], slices if least_free else -slices]
    if counts.score is not None:
        keys.append(-counts.score[ids])
    ordered: IntVector = ids[np.lexsort(keys)]
    return ordered


def first_domains(
    counts: LevelCounts, ids: IntVector | None, wanted: int, *, least_free: bool
) -> IntVector:
    """The first domains of order W (without scores), as many as `wanted` slices need or more.

    Args:
        counts: of the level.
        ids: the domains, ascending; None: all of the level.
        wanted: slices, positive.
        least_free: smallest number of slices first.

    Returns:
        Ids; domains without a slice are left out.
    """
    slices = counts.slices if ids is None else counts.slices[ids]
    tied = counts.pods is not counts.slices
    pods = None
    if tied:
        pods = counts.pods if ids is None else counts.pods[ids]
    places = None
    if len(slices) > SORT_LIMIT:
        places = _by_value(slices, pods, wanted, least_free=least_free)
    if places is None:
        some = slices.nonzero()[0]
        keys = [slices[some] if least_free else -slices[some]]
        if pods is not None:
            keys.append(pods[some])
        places = some[smallest(keys, wanted)]
    return places if ids is None else ids[places]


def _by_value(
    slices: IntVector, pods: IntVector | None, wanted: int, *, least_free: bool
) -> IntVector | None:
    """Positions in order of slices, then pods, a few values of slices; None: it takes more.

    Where hosts are alike, so are their numbers: a value or two, from the front, are enough.
    """
    found: list[IntVector] = []
    value = 0
    for attempt in range(VALUES_LIMIT):
        if least_free:
            after = least_sufficient(slices, value + 1)
        else:
            after = int(slices.max()) if attempt == 0 else most_below(slices, value)
        if not after:
            break
        value = after
        equal = (slices == value).nonzero()[0]
        needed = -(-wanted // value)
        if pods is not None:
            equal = equal[smallest([pods[equal]], needed)]
        found.append(equal[:needed])
        wanted -= value * len(equal)
        if wanted <= 0:
            break
    else:
        return None
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def least_sufficient(amounts: IntVector, wanted: int) -> int | None:
    """The smallest amount that is not below `wanted` (not negative); None without one.

    What is too small wraps around to the far end of the unsigned numbers.
    """
    if not len(amounts) or wanted >= UINT64_SIGN_BIT:
        return None
    spare = int((amounts - wanted).view(np.uint64).min())
    return None if spare >= UINT64_SIGN_BIT else spare + wanted


def most_below(amounts: IntVector, limit: int) -> int | None:
    """The largest amount below `limit`, of amounts that are not negative; None without one."""
    less = int((limit - 1 - amounts).view(np.uint64).min())
    return None if less >= UINT64_SIGN_BIT else limit - 1 - less


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


def find_best_fit_domain(
    ids: IntVector, wanted: int, numbers: DomainAmounts, *, leader: bool
) -> int:
    """The first domain of a list with the smallest sufficient number; else the list's first."""
    if numbers.score is not None:
        scores = numbers.score[ids]
        ids = ids[: int(np.argmax(np.append(scores, scores[0] - 1) != scores[0]))]
    amounts = (numbers.with_leader if leader else numbers.without_leader)[ids]
    enough = amounts >= wanted
    if leader and numbers.leader_fits is not None:
        enough &= numbers.leader_fits[ids] >= 1
    places = enough.nonzero()[0]
    return int(ids[places[amounts[places].argmin()]] if len(places) else ids[0])


def move_leader_domain_first(
    ids: IntVector, wanted: int, numbers: DomainAmounts, leaders: int
) -> IntVector:
    """Move to the front the first domain whose leader still leaves `wanted` for the others."""
    if not leaders or len(ids) < 2 or numbers.leader_fits is None:
        return ids
    without_leader = numbers.without_leader[ids]
    rest = without_leader.sum() - (without_leader - numbers.with_leader[ids])
    found = ((numbers.leader_fits[ids] >= leaders) & (rest >= wanted)).nonzero()[0]
    if not len(found):
        return ids
    at = int(found[0])
    return np.concatenate([ids[at : at + 1], ids[:at], ids[at + 1 :]])


def distribute(
    ids: IntVector, wanted: int, leaders: int, numbers: DomainAmounts, *, best_fit: bool
) -> Shares:
    """Give `wanted` numbers and the leader to the domains of a sorted list (8.3).

    Returns:
        Domains in the order they were used; one may have got nothing.
    """
    if not leaders:
        shares, rest = _fill_in_order(ids, numbers.without_leader[ids], wanted, numbers.size)
        if rest is not None:
            last = len(shares)
            domain = (
                find_best_fit_domain(ids[last:], rest, numbers, leader=False)
                if best_fit
                else int(ids[last])
            )
            shares.append(Share(domain, rest * numbers.size, 0))
        return shares
    ids = move_leader_domain_first(ids, wanted, numbers, leaders)
    shares = []
    rest = wanted
    for at, domain in enumerate(ids.tolist()):
        if leaders > 0:
            amount = int(numbers.with_leader[domain])
            leader_fits = 0 if numbers.leader_fits is None else int(numbers.leader_fits[domain])
            if amount >= rest and leader_fits >= leaders:
                if best_fit:
                    domain = find_best_fit_domain(ids[at:], rest, numbers, leader=True)  # noqa: PLW2901 - the loop ends
                shares.append(Share(domain, rest * numbers.size, leaders))
                return shares
            amount = min(amount, rest)
            leaders -= leader_fits
        else:
            amount, leader_fits = int(numbers.without_leader[domain]), 0
            if amount >= rest:
                if best_fit:
                    domain = find_best_fit_domain(ids[at:], rest, numbers, leader=False)  # noqa: PLW2901 - the loop ends
                shares.append(Share(domain, rest * numbers.size, 0))
                return shares
        shares.append(Share(domain, amount * numbers.size, leader_fits))
        rest -= amount
    return shares


def distribute_slices(
    counts: LevelCounts, ids: IntVector | None, wanted: int, size: int, *, least_free: bool
) -> Shares:
    """`distribute` of slices in order W without leader and scores, touching only what is used.

    `ids` ascend; None stands for all domains of the level. Domains without a slice
    are left out: they would get nothing, and nothing below them would.
    """
    if wanted <= 0:
        return []
    first = first_domains(counts, ids, wanted, least_free=least_free)
    shares, rest = _fill_in_order(first, counts.slices[first], wanted, size)
    if rest is not None:
        last = len(shares)
        domain = (
            int(first[last])
            if least_free
            else _find_best_fit_slices(counts, ids, first[:last], rest)
        )
        shares.append(Share(domain, rest * size, 0))
    return shares


def _fill_in_order(
    ids: IntVector, amounts: IntVector, wanted: int, size: int
) -> tuple[Shares, int | None]:
    """Shares of those that give all they have, and what is left for the next; None: no next."""
    if len(ids) <= VECTORIZE_ABOVE:
        return _fill_one_by_one(ids, amounts, wanted, size)
    ends = np.minimum(amounts, wanted).cumsum()
    last = int(ends.searchsorted(wanted))
    # Made like this, a share takes a quarter of what its constructor would.
    given = zip(ids[:last].tolist(), (amounts[:last] * size).tolist(), repeat(0))
    shares = list(map(_SHARE, given))
    if last == len(ids):
        return shares, None
    return shares, wanted - (int(ends[last - 1]) if last else 0)


def _fill_one_by_one(
    ids: IntVector, amounts: IntVector, wanted: int, size: int
) -> tuple[Shares, int | None]:
    """`_fill_in_order` for a few."""
    shares: Shares = []
    for domain, amount in zip(ids.tolist(), amounts.tolist(), strict=True):
        if amount >= wanted:
            return shares, wanted
        shares.append(Share(domain, amount * size, 0))
        wanted -= amount
    return shares, None


def distribute_below_slice_level(
    counts: LevelCounts, start: int, end: int, pods: int, unit: int
) -> Shares:
    """`distribute` to the children `start..end` of one domain below the slice level, no leader.

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


def _find_best_fit_slices(
    counts: LevelCounts, ids: IntVector | None, used: IntVector, wanted: int
) -> int:
    """Smallest sufficient slices, then fewest pods, then path, among those not used yet."""
    slices = counts.slices if ids is None else counts.slices[ids]
    if len(used):
        slices = slices.copy() if ids is None else slices
        slices[used if ids is None else ids.searchsorted(used)] = -1
    places = (slices == least_sufficient(slices, wanted)).nonzero()[0]
    if len(places) > 1 and counts.pods is not counts.slices:
        pods = counts.pods[places if ids is None else ids[places]]
        places = places[pods.argmin() :]
    return int(places[0] if ids is None else ids[places[0]])
