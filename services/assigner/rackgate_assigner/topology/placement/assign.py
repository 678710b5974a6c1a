"""Phase 2 of placement: choose domains, and assign the pods down to the leaves.

1. `find_fit_domains` chooses the start domains. It searches for the domain of the requested level
   that fits everything and has the least to spare. A required request ends there; a preferred one
   goes up level by level, and uses several domains if not even the highest level has one.
2. `assign_to_leaves` distributes the pods from there. Down to the slice level it distributes all
   slices over all children at once, whatever their parents were given. Below the slice level each
   domain distributes its own pods over its own children.
3. `distribute` iterates over a sorted list of domains: each gets as much as fits, and the last one
   is the best fit for the rest.

Inputs: the counts of phase 1, and the request that they were counted for.
Orders, ties by path: with a leader ("order L" of the source): leader fits, most slices together
with the leader, fewest pods together with it. Without ("order W"): most slices, fewest pods.
Unconstrained requests use domains with fewest slices first ("least free"). A score of preferred
node affinity comes before the slices.
Invariants: domains are ids of one level, ascending unless said otherwise, so a stable sort breaks
ties by path. The shares of each step add up to the request.
Complexity: O(domains) per level; only the domains that are used are sorted.
Source: conformance/tas, section 8; `findTopologyAssignment` of Kueue's tas_flavor_snapshot.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from rackgate_assigner.topology.model import IntVector
from rackgate_assigner.topology.placement.count import DomainCounts, LevelCounts

# With more domains than this, the first few are selected before they are sorted.
SORT_LIMIT: Final = 512
# Domains are selected by value while there are no more different numbers of slices than this.
VALUES_LIMIT: Final = 4
# With more domains than this, all are filled at once.
VECTORIZE_ABOVE: Final = 32
UINT64_SIGN_BIT: Final = 2**63


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The pods do not fit.

    Attributes:
        fitting: slices that fit (0: none).
        level: index of the level where the search ended.
        absent: the level has no domains at all.
    """

    fitting: int
    level: int
    absent: bool = False


@dataclass(frozen=True, slots=True)
class FitDomains:
    """Domains of one level to start from, in the order they are used."""

    level: int
    domains: IntVector


class Share(NamedTuple):
    """The share of a domain: workers, and the leader (0 or 1)."""

    domain: int
    pods: int
    leaders: int


Shares: TypeAlias = list[Share]
_SHARE: Callable[[tuple[int, int, int]], Share] = partial(tuple.__new__, Share)


# Where to start.


def find_fit_domains(counts: DomainCounts) -> FitDomains | Shortfall:
    """Find the domains to start from."""
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


def _find_single_domain(counts: DomainCounts, numbers: LevelCounts) -> int | None:
    """The domain that fits everything and has the least to spare, or None."""
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
    return find_best_fit_domain(ids[at:], request.need, numbers, leader=counts.has_leader)


def _slices_of_first_domain(counts: DomainCounts, numbers: LevelCounts) -> int:
    if numbers.leader_fits is None and numbers.score is None:
        return int(numbers.slices.max())
    top = first_domain_with_leader(numbers, least_free=counts.request.least_free)
    return int(numbers.slices[top])


def _take_several_domains(
    counts: DomainCounts, numbers: LevelCounts, level: int
) -> FitDomains | Shortfall:
    """Use domain after domain until everything fits."""
    request = counts.request
    lowest = len(request.units) - 1
    if numbers.leader_fits is not None and numbers.score is None and level == lowest:
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
    """The leaf that is used first: for the leader, and for what fits together with it."""
    request = counts.request
    least_free, need = request.least_free, request.need
    loss = numbers.slices - numbers.slices_with_leader
    leaves = ((leader_fits == 1) & (loss <= int(numbers.slices.sum()) - need)).nonzero()[0]
    first = first_domain_with_leader(
        numbers, leaves if len(leaves) else None, least_free=least_free
    )
    if least_free or numbers.slices_with_leader[first] < need:
        return first
    # A leaf that fits everything: the one with least to spare, of several the first in order.
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
    ids = sort_domains_with_leader(
        numbers, np.arange(len(numbers.pods), dtype=np.int64), least_free=request.least_free
    )
    leaders = int(counts.has_leader)
    ids = move_leader_domain_first(ids, request.need, numbers, leaders)
    rest = request.need
    chosen: list[int] = []
    if leaders and numbers.leader_fits is not None:
        first = int(ids[0])
        if not numbers.leader_fits[first]:
            return Shortfall(0, level)
        if best_fit and numbers.slices_with_leader[first] >= rest:
            first = find_best_fit_domain(ids, rest, numbers, leader=True)
        chosen.append(first)
        rest -= int(numbers.slices_with_leader[first])
        ids = ids[ids != first]
    ids = sort_domains(numbers, np.sort(ids), least_free=request.least_free)
    for at, domain in enumerate(ids.tolist()):
        if rest <= 0:
            break
        if best_fit and numbers.slices[domain] >= rest:
            domain = find_best_fit_domain(ids[at:], rest, numbers, leader=False)  # noqa: PLW2901 - the loop ends
        chosen.append(domain)
        rest -= int(numbers.slices[domain])
    if rest > 0:
        return Shortfall(request.need - rest, level)
    return FitDomains(level, np.array(chosen, dtype=np.int64))


# Down to the leaves.


def assign_to_leaves(counts: DomainCounts, start: FitDomains) -> Shares:
    """Distribute the pods from the start domains down to the leaves."""
    request = counts.request
    level = start.level
    shares = distribute(
        start.domains,
        request.need,
        int(counts.has_leader),
        counts.level(level),
        request.size,
        best_fit=not request.least_free,
    )
    while level < request.slice_level:
        shares = _distribute_over_all_children(counts, level, shares)
        level += 1
    while level < len(request.units) - 1:
        shares = distribute_to_children(counts, level, shares, request.units[level + 1])
        level += 1
    return shares


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
        below,
        request.size,
        best_fit=not request.least_free,
    )


def distribute_to_children(counts: DomainCounts, level: int, shares: Shares, unit: int) -> Shares:
    """Distribute each domain's pods over its own children, in units of pods that stay together."""
    below = counts.level(level + 1)
    offsets = counts.tree.children[level]
    least_free = counts.request.least_free
    result: Shares = []
    plain = level >= counts.request.slice_level and not counts.has_leader and below.score is None
    units = counts_in_units(below, unit)
    for domain, pods, leaders in shares:
        start, end = int(offsets[domain]), int(offsets[domain + 1])
        if plain:
            result += _distribute_below_slice_level(below, start, end, pods, unit)
            continue
        ids = np.arange(start, end, dtype=np.int64)
        children = sort_domains(below, ids, least_free=least_free)
        result += distribute(children, pods // unit, leaders, units, unit, best_fit=not least_free)
    return result


def counts_in_units(counts: LevelCounts, unit: int) -> LevelCounts:
    """The counts with units of an inner slice layer (pods if `unit` is 1) in place of slices."""
    pods, with_leader = counts.pods, counts.pods_with_leader
    units = pods if unit == 1 else pods // unit
    units_with_leader = (
        with_leader if unit == 1 else units if with_leader is pods else with_leader // unit
    )
    return replace(counts, slices=units, slices_with_leader=units_with_leader)


def children_of(counts: DomainCounts, level: int, domains: list[int]) -> IntVector:
    """All children of some domains, in path order."""
    offsets = counts.tree.children[level]
    if len(domains) == 1:
        return np.arange(offsets[domains[0]], offsets[domains[0] + 1], dtype=np.int64)
    parts = [np.arange(offsets[d], offsets[d + 1], dtype=np.int64) for d in sorted(domains)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


# Distribute a number over a list of domains.


def distribute(
    ids: IntVector, wanted: int, leaders: int, counts: LevelCounts, size: int, *, best_fit: bool
) -> Shares:
    """Distribute `wanted` slices of `size` pods and the leader over a sorted list of domains.

    Returns:
        Domains in the order they were used; the share of one may be empty.
    """
    if not leaders:
        shares, rest = _fill_in_order(ids, counts.slices[ids], wanted, size)
        if rest is not None:
            domain = int(ids[len(shares)])
            if best_fit:
                domain = find_best_fit_domain(ids[len(shares) :], rest, counts, leader=False)
            shares.append(Share(domain, rest * size, 0))
        return shares
    ids = move_leader_domain_first(ids, wanted, counts, leaders)
    shares = []
    rest = wanted
    for at, domain in enumerate(ids.tolist()):
        if leaders > 0:
            amount = int(counts.slices_with_leader[domain])
            leader_fits = 0 if counts.leader_fits is None else int(counts.leader_fits[domain])
            last = amount >= rest and leader_fits >= leaders
        else:
            amount, leader_fits = int(counts.slices[domain]), 0
            last = amount >= rest
        if last:
            if best_fit:
                domain = find_best_fit_domain(ids[at:], rest, counts, leader=leaders > 0)  # noqa: PLW2901 - the loop ends
            shares.append(Share(domain, rest * size, leaders))
            return shares
        amount = min(amount, rest)
        leaders -= leader_fits
        shares.append(Share(domain, amount * size, leader_fits))
        rest -= amount
    return shares


def distribute_slices(
    counts: LevelCounts, ids: IntVector | None, wanted: int, size: int, *, least_free: bool
) -> Shares:
    """`distribute` for slices without leader and scores; sorts only the domains that are used.

    `ids` ascend; None means all domains of the level. Domains without a slice are omitted:
    neither they nor anything below them would get a pod.
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


def _distribute_below_slice_level(
    counts: LevelCounts, start: int, end: int, pods: int, unit: int
) -> Shares:
    """`distribute` over the children `start..end` of one domain, no leader.

    Children with fewest pods come first, so the best fit for the rest is always the next one.
    """
    child_pods = counts.pods[start:end]
    shares: Shares = []
    rest = pods // unit
    for place in np.argsort(child_pods, kind="stable").tolist():
        amount = int(child_pods[place]) // unit
        if amount >= rest:
            if rest:
                shares.append(Share(start + place, rest * unit, 0))
            break
        if amount:
            shares.append(Share(start + place, amount * unit, 0))
            rest -= amount
    return shares


def _fill_in_order(
    ids: IntVector, amounts: IntVector, wanted: int, size: int
) -> tuple[Shares, int | None]:
    """Shares of the domains that are filled, and the rest for the next one; None: no next."""
    if len(ids) <= VECTORIZE_ABOVE:
        shares: Shares = []
        for domain, amount in zip(ids.tolist(), amounts.tolist(), strict=True):
            if amount >= wanted:
                return shares, wanted
            shares.append(Share(domain, amount * size, 0))
            wanted -= amount
        return shares, None
    ends = np.minimum(amounts, wanted).cumsum()
    last = int(ends.searchsorted(wanted))
    # Created this way, a share takes a quarter of the time of its constructor.
    given = zip(ids[:last].tolist(), (amounts[:last] * size).tolist(), repeat(0))
    shares = list(map(_SHARE, given))
    if last == len(ids):
        return shares, None
    return shares, wanted - (int(ends[last - 1]) if last else 0)


def move_leader_domain_first(
    ids: IntVector, wanted: int, counts: LevelCounts, leaders: int
) -> IntVector:
    """Move to the front the first domain whose leader still leaves `wanted` for the others."""
    if not leaders or len(ids) < 2 or counts.leader_fits is None:
        return ids
    slices = counts.slices[ids]
    rest = slices.sum() - (slices - counts.slices_with_leader[ids])
    found = ((counts.leader_fits[ids] >= leaders) & (rest >= wanted)).nonzero()[0]
    if not len(found):
        return ids
    at = int(found[0])
    return np.concatenate([ids[at : at + 1], ids[:at], ids[at + 1 :]])


# Best fit: the smallest sufficient amount.


def find_best_fit_domain(ids: IntVector, wanted: int, counts: LevelCounts, *, leader: bool) -> int:
    """The first domain of a list with the smallest sufficient amount; else the list's first."""
    if counts.score is not None:
        scores = counts.score[ids]
        ids = ids[: int(np.argmax(np.append(scores, scores[0] - 1) != scores[0]))]
    offered = (counts.slices_with_leader if leader else counts.slices)[ids]
    enough = offered >= wanted
    if leader and counts.leader_fits is not None:
        enough &= counts.leader_fits[ids] >= 1
    places = enough.nonzero()[0]
    return int(ids[places[offered[places].argmin()]] if len(places) else ids[0])


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


def least_sufficient(amounts: IntVector, wanted: int) -> int | None:
    """The smallest amount that is at least `wanted` (not negative), or None.

    Amounts that are too small wrap around to the other end of the unsigned numbers.
    """
    if not len(amounts) or wanted >= UINT64_SIGN_BIT:
        return None
    spare = int((amounts - wanted).view(np.uint64).min())
    return None if spare >= UINT64_SIGN_BIT else spare + wanted


# Orders of domains.


def sort_domains_with_leader(counts: LevelCounts, ids: IntVector, *, least_free: bool) -> IntVector:
    """Order L: leader fits, [score,] slices with leader, fewest pods with leader, path."""
    keys = [key[ids] for key in _sort_keys_with_leader(counts, least_free=least_free)]
    ordered: IntVector = ids[np.lexsort(keys[::-1])]
    return ordered


def first_domain_with_leader(
    counts: LevelCounts, ids: IntVector | None = None, *, least_free: bool
) -> int:
    """The first domain in order L, of some (ascending) or of the whole level."""
    places = ids
    for key in _sort_keys_with_leader(counts, least_free=least_free):
        values = key if places is None else key[places]
        first = (values == values.min()).nonzero()[0]
        places = first if places is None else places[first]
        if len(places) == 1:
            break
    return 0 if places is None else int(places[0])


def _sort_keys_with_leader(counts: LevelCounts, *, least_free: bool) -> list[IntVector]:
    """The sort keys of order L, the most important first."""
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
    """The first domains in order W (without scores), at least as many as `wanted` slices need.

    Of some domains (ascending), or of the whole level. Domains without a slice are omitted.
    """
    slices = counts.slices if ids is None else counts.slices[ids]
    pods = None
    if counts.pods is not counts.slices:
        pods = counts.pods if ids is None else counts.pods[ids]
    places = None
    if len(slices) > SORT_LIMIT:
        places = _first_by_value(slices, pods, wanted, least_free=least_free)
    if places is None:
        some = slices.nonzero()[0]
        keys = [slices[some] if least_free else -slices[some]]
        if pods is not None:
            keys.append(pods[some])
        places = some[smallest(keys, wanted)]
    return places if ids is None else ids[places]


def _first_by_value(
    slices: IntVector, pods: IntVector | None, wanted: int, *, least_free: bool
) -> IntVector | None:
    """Positions in order of slices, then pods; None when that takes more than a few values.

    Where hosts are alike, so are their counts, and one or two values are enough.
    """
    found: list[IntVector] = []
    value = 0
    for attempt in range(VALUES_LIMIT):
        if least_free:
            after = least_sufficient(slices, value + 1)
        else:
            after = int(slices.max()) if attempt == 0 else _most_below(slices, value)
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


def _most_below(amounts: IntVector, limit: int) -> int | None:
    """The largest amount below `limit`, of amounts that are not negative, or None."""
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


# The message of a shortfall.


def not_fit_message(
    topology: str, counts: DomainCounts, shortfall: Shortfall, excluded: str
) -> str:
    """How much fits, and `excluded` from `exclusion_text`, as Kueue's message (section 10)."""
    request = counts.request
    if shortfall.absent:
        return f"no topology domains at level: {counts.tree.levels[shortfall.level]}"
    if len(request.layers) > 1:
        text = f'topology "{topology}" doesn\'t allow to fit{_layers_text(counts, shortfall)}'
    else:
        unit = "pod" if request.size == 1 else "slice"
        if shortfall.fitting == 0:
            text = f'topology "{topology}" doesn\'t allow to fit any of {request.need} {unit}(s)'
        else:
            text = (
                f'topology "{topology}" allows to fit only '
                f"{shortfall.fitting} out of {request.need} {unit}(s)"
            )
    return text + excluded


def _layers_text(counts: DomainCounts, shortfall: Shortfall) -> str:
    """What fits per slice layer in the best candidate domain."""
    request = counts.request
    tree = counts.tree
    slices = counts.level(shortfall.level).slices
    places = (slices == slices.max()).nonzero()[0].tolist()
    hosts = tree.lowest_is_hostname and shortfall.level == len(tree.levels) - 1
    paths = tree.paths[shortfall.level]
    best = min(places, key=lambda at: paths[at][-1] if hosts else ",".join(paths[at]))
    start, end = tree.leaf_ranges[shortfall.level][best : best + 2].tolist()
    text = ""
    for layer in request.layers:
        level = tree.levels.index(layer.topology)
        first, last = np.searchsorted(tree.leaf_ranges[level], (start, end))
        fitting = int((counts.level(level).pods[first:last] // layer.size).sum())
        wanted = request.count // layer.size
        text += f"; {fitting}/{wanted} slice(s) fit on level {layer.topology}"
    return text
