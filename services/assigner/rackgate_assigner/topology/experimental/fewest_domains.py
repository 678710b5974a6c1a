"""The smallest sufficient set of domains, exactly (gate RackgateFewestDomains).

A set of domains is sufficient if their amounts add up to the need; one of them counts with the
amount that fits together with the leader. Among all sufficient sets the best is, in this order, the
one with

1. the fewest domains,
2. the fewest untouched domains (domains without pods),
3. the least surplus,
4. the smallest loss to the leader,
5. the first domains in path order (the set whose sorted ids come first).

The first two follow from prefix sums of sorted amounts. The rest is a subset sum with two counts.
It runs over bit sets kept in whole numbers, one bit for each reachable (touched domains used,
untouched domains used, amount less than the largest would give).

Complexity: O(domains x bits of one set). Beyond BIT_LIMIT there is no result, and the caller keeps
the default's choice. Source: ADR 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rackgate_assigner.topology.model import BoolVector, IntVector

# Candidates times bits of one set of states: beyond it a choice could delay a scheduling cycle.
BIT_LIMIT = 2**26
_UNREACHABLE = -(2**62)
_NO_LOSS = 2**62


@dataclass(frozen=True, slots=True)
class CandidateDomains:
    """Domains to choose from, in path order; all vectors have shape (domains,).

    Attributes:
        amounts: what fits into each.
        untouched: no pods are placed there yet.
        with_leader: what fits together with the leader; None without a leader.
        leader_fits: whether the leader fits; None without a leader.
    """

    amounts: IntVector
    untouched: BoolVector
    with_leader: IntVector | None = None
    leader_fits: BoolVector | None = None


class Choice(NamedTuple):
    """Positions in the pool, ascending, and the one that takes the leader (None: no leader)."""

    chosen: tuple[int, ...]
    host: int | None


class _Prefixes(NamedTuple):
    """Largest sums of 0, 1, 2, ... domains: without a leader, and with one among them."""

    plain: IntVector
    hosted: IntVector


class _Candidate(NamedTuple):
    """A domain that may be used; `less` is its amount below the largest of its class."""

    place: int
    untouched: bool
    less: int
    host: bool


class _OpenChoice(NamedTuple):
    """The remaining choice after the domains that every set must have.

    Attributes:
        forced: positions that are in every set.
        free: positions to choose from, ascending.
        less: amount of each position below the largest of its class that is still free.
        touched, untouched: how many of each class to choose.
        budget: how much less than the largest they may have together.
    """

    forced: tuple[int, ...]
    free: IntVector
    less: IntVector
    touched: int
    untouched: int
    budget: int


def min_domain_count(pool: CandidateDomains, need: int) -> int | None:
    """Size of the smallest sufficient set; None if all domains are not sufficient."""
    if need <= 0 and pool.leader_fits is None:
        return 0
    sums = _prefixes(pool, np.ones(len(pool.amounts), dtype=np.bool_))
    enough = (sums.plain if pool.leader_fits is None else sums.hosted) >= need
    return int(enough.argmax()) if enough.any() else None


def best_set_size(pool: CandidateDomains, need: int) -> tuple[int, int] | None:
    """Number of domains and untouched domains of the best set; None if none is sufficient."""
    number = min_domain_count(pool, need)
    if number is None:
        return None
    touched, untouched = _prefixes(pool, ~pool.untouched), _prefixes(pool, pool.untouched)
    return number, _min_untouched(
        touched, untouched, number, need, has_leader=pool.leader_fits is not None
    )


def choose_domains(pool: CandidateDomains, need: int, *, limit: int = BIT_LIMIT) -> Choice | None:
    """The best sufficient set.

    Args:
        pool: the domains.
        need: what their amounts must add up to.
        limit: maximum number of bits to process.

    Returns:
        None if no set is sufficient, or if the exact choice would exceed `limit`.
    """
    numbers = best_set_size(pool, need)
    if numbers is None:
        return None
    number, fresh = numbers
    if number == 0:
        return Choice((), None)
    open_choice = _reduce_choice(pool, number - fresh, fresh, need)
    best: tuple[int, ...] | None = None
    left_over = open_choice.budget + 1
    for loss in _leader_losses(pool, open_choice.budget):
        if loss >= left_over:
            break  # the leader costs no more than the surplus: no set can be better
        items = _candidates(pool, open_choice, loss)
        limit -= len(items) * _ReachableStates.bits(
            open_choice.touched, open_choice.untouched, open_choice.budget
        )
        if limit < 0:
            return None
        states = _ReachableStates(open_choice.touched, open_choice.untouched, open_choice.budget)
        inside = any(_hosts_within_loss(pool, loss)[list(open_choice.forced)])
        found = states.best(items, loss, host=pool.leader_fits is not None and not inside)
        if found is not None and open_choice.budget - found[0] < left_over:
            left_over = open_choice.budget - found[0]
            best = tuple(sorted((*open_choice.forced, *found[1])))
    return None if best is None else Choice(best, _leader_position(pool, best))


def _prefixes(pool: CandidateDomains, mask: BoolVector) -> _Prefixes:
    """Best sums by number of domains, over the domains of `mask`; impossible ones are far below."""
    places = mask.nonzero()[0]
    order = _largest_first(pool.amounts, places)
    plain = np.concatenate([[0], np.cumsum(pool.amounts[order])])
    hosted = np.full(len(plain), _UNREACHABLE, dtype=np.int64)
    if pool.leader_fits is None or pool.with_leader is None:
        return _Prefixes(plain, hosted)
    hosts = pool.leader_fits[order]
    loss = np.where(hosts, pool.amounts[order] - pool.with_leader[order], _NO_LOSS)
    later = np.where(hosts, pool.with_leader[order], _UNREACHABLE)
    # The leader is in one of the largest, or in the best one that comes after all but one.
    cheapest = np.minimum.accumulate(loss)
    largest = np.maximum.accumulate(later[::-1])[::-1]
    inside = np.where(cheapest < _NO_LOSS, plain[1:] - cheapest, _UNREACHABLE)
    outside = np.where(largest > _UNREACHABLE, plain[:-1] + largest, _UNREACHABLE)
    hosted[1:] = np.maximum(inside, outside)
    return _Prefixes(plain, hosted)


def _largest_first(amounts: IntVector, places: IntVector) -> IntVector:
    """Positions by amount, descending, then as they come."""
    keys: npt.NDArray[np.integer] = -amounts[places]
    if len(keys) and int(keys.min()) > -(2**15):
        keys = keys.astype(np.int16)  # a stable sort of short numbers takes linear time
    ordered: IntVector = places[np.argsort(keys, kind="stable")]
    return ordered


def _min_untouched(
    touched: _Prefixes, untouched: _Prefixes, number: int, need: int, *, has_leader: bool
) -> int:
    """Fewest untouched domains among `number` that are sufficient."""
    fresh = np.arange(
        max(0, number - len(touched.plain) + 1), min(number, len(untouched.plain) - 1) + 1
    )
    old = number - fresh
    if has_leader:
        most = np.maximum(
            touched.hosted[old] + untouched.plain[fresh],
            touched.plain[old] + untouched.hosted[fresh],
        )
    else:
        most = touched.plain[old] + untouched.plain[fresh]
    return int(fresh[(most >= need).argmax()])


def _leader_losses(pool: CandidateDomains, most: int) -> list[int]:
    """Possible losses to the leader, ascending; [0] without a leader."""
    if pool.leader_fits is None or pool.with_leader is None:
        return [0]
    losses = np.unique((pool.amounts - pool.with_leader)[pool.leader_fits])
    return [int(loss) for loss in losses if loss <= most]


def _hosts_within_loss(pool: CandidateDomains, loss: int) -> BoolVector:
    """Domains where the leader fits with a loss of at most `loss`."""
    if pool.leader_fits is None or pool.with_leader is None:
        return np.zeros(len(pool.amounts), dtype=np.bool_)
    hosts: BoolVector = pool.leader_fits & (pool.amounts - pool.with_leader <= loss)
    return hosts


def _leader_position(pool: CandidateDomains, chosen: Sequence[int]) -> int | None:
    """The domain where the leader of a set costs least, then the first one."""
    if pool.leader_fits is None or pool.with_leader is None:
        return None
    leader_fits, loss = pool.leader_fits, pool.amounts - pool.with_leader
    return min(
        (place for place in chosen if leader_fits[place]), key=lambda place: (loss[place], place)
    )


def _reduce_choice(pool: CandidateDomains, touched: int, untouched: int, need: int) -> _OpenChoice:
    """Remove domains that no set can have, and include those that every set has.

    The largest domains of each class have `spare` more than needed. A set that lacks one of them
    has another instead: the difference is subtracted from `spare`.
    """
    classes = [((~pool.untouched).nonzero()[0], touched), (pool.untouched.nonzero()[0], untouched)]
    ranked = [(_largest_first(pool.amounts, places), q) for places, q in classes]
    spare = sum(int(pool.amounts[order[:q]].sum()) for order, q in ranked) - need
    forced: list[int] = []
    free: list[IntVector] = []
    less = np.zeros(len(pool.amounts), dtype=np.int64)
    open_counts, budget = [], spare
    for order, number in ranked:
        amounts = pool.amounts[order]
        least = int(amounts[number]) if number < len(amounts) else _UNREACHABLE
        must = int((amounts[:number] - least > spare).sum())
        forced += order[:must].tolist()
        left = number - must
        usable = order[must:][amounts[number - 1] - amounts[must:] <= spare] if left else order[:0]
        if left:
            less[usable] = pool.amounts[usable[0]] - pool.amounts[usable]
            budget += int(less[order[must:number]].sum())
        free.append(usable)
        open_counts.append(left)
    return _OpenChoice(
        tuple(forced), np.sort(np.concatenate(free)), less, open_counts[0], open_counts[1], budget
    )


def _candidates(pool: CandidateDomains, open_choice: _OpenChoice, loss: int) -> list[_Candidate]:
    """Candidates in path order; of equal ones only the first that can be used."""
    hosts = _hosts_within_loss(pool, loss)
    free = open_choice.free
    kind = open_choice.less[free] * 4 + pool.untouched[free] * 2 + hosts[free]
    order = np.argsort(kind, kind="stable")
    ranked = kind[order]
    earlier = np.arange(len(free)) - np.searchsorted(ranked, ranked)
    useful = earlier < np.where(
        pool.untouched[free[order]], open_choice.untouched, open_choice.touched
    )
    return [
        _Candidate(
            place, bool(pool.untouched[place]), int(open_choice.less[place]), bool(hosts[place])
        )
        for place in np.sort(free[order[useful]]).tolist()
    ]


class _ReachableStates:
    """Sets of (touched used, untouched used, less) as bits of a whole number.

    Each count has a row of `2 * budget + 1` bits and a spare row, so that one shift adds a domain
    and one mask removes the overflow.
    """

    def __init__(self, touched: int, untouched: int, budget: int) -> None:
        self.budget = budget
        self.row = 2 * budget + 1
        self.group = (untouched + 2) * self.row
        self.end = touched * self.group + untouched * self.row
        line = (1 << (budget + 1)) - 1
        group = sum(line << (number * self.row) for number in range(untouched + 1))
        self.mask = sum(group << (number * self.group) for number in range(touched + 1))

    @staticmethod
    def bits(touched: int, untouched: int, budget: int) -> int:
        """Length of one set of states."""
        return (touched + 1) * (untouched + 2) * (2 * budget + 1)

    def best(
        self, items: Sequence[_Candidate], loss: int, *, host: bool
    ) -> tuple[int, tuple[int, ...]] | None:
        """Choose all open domains, with most `less` within the budget; first in path order.

        Args:
            items: in path order.
            loss: subtracted from the budget for the leader.
            host: whether one of the chosen must be a host.

        Returns:
            `less` of the chosen together and their positions, or None.
        """
        tables = [(1, 0)]  # (sets without a host, sets with one), of the items from the end on
        for item in reversed(items):
            without, with_host = tables[-1]
            step = self.step(item)
            if item.host:
                more = with_host | (((without | with_host) << step) & self.mask)
                tables.append((without, more))
            else:
                tables.append(
                    (
                        without | ((without << step) & self.mask),
                        with_host | ((with_host << step) & self.mask),
                    )
                )
        tables.reverse()
        ends = tables[0][1] if host else tables[0][0] | tables[0][1]
        reached = (ends >> self.end) & ((1 << max(0, self.budget - loss + 1)) - 1)
        if not reached:
            return None
        less = reached.bit_length() - 1
        return less, self._reconstruct(items, tables, self.end + less, host=host)

    def step(self, item: _Candidate) -> int:
        """Number of bits by which a domain moves a state."""
        return (self.row if item.untouched else self.group) + item.less

    def _reconstruct(
        self,
        items: Sequence[_Candidate],
        tables: Sequence[tuple[int, int]],
        state: int,
        *,
        host: bool,
    ) -> tuple[int, ...]:
        """Choose each domain, in path order, that leaves the rest of the state possible."""
        chosen: list[int] = []
        for item, (without, with_host) in zip(items, tables[1:], strict=True):
            before = state - self.step(item)
            needs = host and not item.host
            rest = with_host if needs else without | with_host
            if before >= 0 and (rest >> before) & 1:
                chosen.append(item.place)
                state, host = before, needs
        return tuple(chosen)
