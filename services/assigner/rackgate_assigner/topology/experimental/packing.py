"""Start and way down behind gates of ours: both levels of a request, exact choice, best fit.

Counts, texts and whatever a gate does not speak of are those of the default; see ADR 13.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from rackgate.features import Features
from rackgate_assigner.topology.experimental.fewest_domains import (
    BoolVector,
    Choice,
    Pool,
    choose,
    fewest,
    outlook,
)
from rackgate_assigner.topology.placement.assign import (
    Shortfall,
    Start,
    children_of,
    choose_start,
    descend,
    within_each,
)
from rackgate_assigner.topology.placement.count import Counts, LevelCounts, Room
from rackgate_assigner.topology.placement.distribute import (
    Share,
    Shares,
    hand_out,
    order_plain,
    slice_numbers,
    unit_numbers,
)
from rackgate_assigner.topology.tree import PODS, IntVector

# Domains of a coarser level that are compared by what they would need below.
COMPARED = 256


def packs(features: Features) -> bool:
    """Whether a gate of ours changes where pods go."""
    return (
        features.required_and_preferred or features.fewest_domains or features.best_fit_below_slices
    )


def packed_shares(counts: Counts, room: Room, features: Features) -> Shares | Shortfall:
    """What every leaf is given, or what is missing; it fits whenever the default fits.

    Args:
        counts: phase 1.
        room: says which leaves are untouched.
        features: which of the rules below count.
    """
    return _Packing(counts, room, features).shares()


class _Packing:
    """One search behind gates of ours."""

    def __init__(self, counts: Counts, room: Room, features: Features) -> None:
        self.counts, self.room, self.question = counts, room, counts.question
        scored = counts.level(self.question.level).score is not None
        # A soft preference comes before fewest domains, as it comes before best fit.
        self.exact = features.fewest_domains and not scored
        self.tight = features.best_fit_below_slices and not self.question.least_free
        self._whole: dict[int, BoolVector] = {}

    def shares(self) -> Shares | Shortfall:
        """Both halves of phase 2."""
        counts = self.counts
        start = choose_start(counts) if self.question.within is None else _within(counts)
        if isinstance(start, Shortfall):
            return start
        chosen = self._start(start)
        if not self.exact:
            return self._down(chosen) if self.tight else descend(counts, chosen)
        ours, default = self._down(chosen), descend(counts, start)
        # Each choice looks at one level: what it spares there can cost domains further down.
        worse = self._domains(ours, start.level) > self._domains(default, start.level)
        return default if worse else ours

    def _domains(self, shares: Shares, level: int) -> list[int]:
        """How many domains leaves lie in, from a level down, coarsest first."""
        leaves = [share.domain for share in shares if share.pods or share.lead]
        ranges = self.counts.tree.leaf_ranges[level:]
        return [len(np.unique(np.searchsorted(row, leaves, side="right"))) for row in ranges]

    def _start(self, start: Start) -> Start:
        """The start of our own choice, instead of the default's."""
        both = self.question.within is not None
        if len(start.domains) == 1:
            climbed = start.level < self.question.level
            return self._needs_fewest(start) if climbed and (both or self.exact) else start
        return self._several(start) if self.exact else start

    def _needs_fewest(self, start: Start) -> Start:
        """Of the domains that take everything, the one that needs fewest one level down."""
        level, need = start.level, self.question.need
        numbers, below = self.counts.level(level), self.counts.level(level + 1)
        enough = numbers.slices_led >= need
        if numbers.lead is not None:
            enough &= numbers.lead >= 1
        able = enough.nonzero()[0]
        able = able[np.argsort(numbers.slices_led[able], kind="stable")][:COMPARED]
        found = []
        for place, domain in enumerate(able.tolist()):
            pool = self._pool(level + 1, children_of(self.counts, level, [domain]), below.slices)
            numbers_below = outlook(pool, need)
            if numbers_below is not None:
                found.append((*numbers_below, place, domain))
        return Start(level, np.array([min(found)[-1]], dtype=np.int64)) if found else start

    def _several(self, start: Start) -> Start:
        """The exact choice among all domains of the level; the default's when it is too large."""
        level = start.level
        numbers = self.counts.level(level)
        ids = np.arange(len(numbers.slices), dtype=np.int64)
        if level:
            ids = self._sparing(level, ids)
        choice = choose(self._pool(level, ids, numbers.slices), self.question.need)
        return start if choice is None else Start(level, ids[list(choice.chosen)])

    def _sparing(self, level: int, ids: IntVector) -> IntVector:
        """Leave out domains below untouched ones of the next coarser level, as far as it goes.

        As few of those as can be are opened for the fewest domains: first those that are not below
        an untouched domain themselves, then the larger, then by path.
        """
        need, rooms = self.question.need, self.counts.level(level).slices
        fresh = self._is_whole(level - 1).nonzero()[0]
        number = fewest(self._pool(level, ids, rooms), need)
        keys: list[IntVector | BoolVector] = [-self.counts.level(level - 1).slices[fresh]]
        keys += [self._is_whole(at)[self._above(level - 1, at)[fresh]] for at in range(level - 1)]
        opened = np.zeros(len(self.counts.tree.paths[level - 1]), dtype=np.int64)
        opened[fresh[np.lexsort(keys)]] = np.arange(1, len(fresh) + 1)
        turn = opened[self.counts.tree.parents[level][ids]]
        low, high = 0, len(fresh)
        while low < high:
            middle = (low + high) // 2
            if fewest(self._pool(level, ids[turn <= middle], rooms), need) == number:
                high = middle
            else:
                low = middle + 1
        return ids[turn <= low]

    def _above(self, level: int, coarser: int) -> IntVector:
        """For every domain of a level the one of a coarser level that holds it."""
        ranges = self.counts.tree.leaf_ranges
        above: IntVector = np.searchsorted(ranges[coarser], ranges[level][:-1], side="right") - 1
        return above

    def _down(self, start: Start) -> Shares:
        """Hand out level by level: over all children first, below the slices within each."""
        question, counts = self.question, self.counts
        level = start.level
        shares = self._over(level, start.domains)
        while level < question.slice_level:
            level += 1
            parents = [share.domain for share in shares if share.pods or share.lead]
            shares = self._over(level, children_of(counts, level - 1, parents))
        while level < len(question.units) - 1:
            level += 1
            shares = [
                given
                for share in shares
                for given in self._below(level, share, question.units[level])
            ]
        return shares

    def _over(self, level: int, ids: IntVector) -> Shares:
        """Hand all slices out to some domains of a level."""
        question, numbers = self.question, self.counts.level(level)
        if len(ids) == 1 and level < question.slice_level:
            return [Share(int(ids[0]), question.count, int(self.counts.led))]
        ids = np.sort(ids)
        if self.exact:
            pool = self._pool(level, ids, numbers.slices)
            choice = choose(pool, question.need)
            if choice is not None:
                return _given(ids, pool, choice, question.need, question.size)
        return hand_out(
            order_plain(numbers, ids, least_free=question.least_free),
            question.need,
            int(self.counts.led),
            slice_numbers(numbers, question.size),
            best_fit=not question.least_free,
        )

    def _below(self, level: int, share: Share, unit: int) -> Shares:
        """Hand what one domain was given out to its children."""
        if not share.pods and not share.lead:
            return []
        numbers = self.counts.level(level)
        ids = children_of(self.counts, level - 1, [share.domain])
        need = share.pods // unit
        if self.exact:
            pool = self._pool(level, ids, numbers.pods // unit, unit=unit, led=bool(share.lead))
            choice = choose(pool, need)
            if choice is not None:
                return _given(ids, pool, choice, need, unit)
        if not self.tight:
            return within_each(self.counts, level - 1, [share], unit)
        amounts = unit_numbers(numbers, unit)
        keys = [-amounts.plain[ids]]
        if numbers.score is not None:
            keys.append(-numbers.score[ids])
        return hand_out(ids[np.lexsort(keys)], need, share.lead, amounts, best_fit=True)

    def _pool(
        self, level: int, ids: IntVector, rooms: IntVector, *, unit: int = 0, led: bool = True
    ) -> Pool:
        """Domains to choose from; `unit` > 0 counts units of pods instead of slices."""
        numbers: LevelCounts = self.counts.level(level)
        whole = self._is_whole(level)[ids]
        if numbers.lead is None or not led:
            return Pool(rooms[ids], whole)
        beside = numbers.pods_led // unit if unit else numbers.slices_led
        return Pool(rooms[ids], whole, beside[ids], numbers.lead[ids] >= 1)

    def _is_whole(self, level: int) -> BoolVector:
        """Domains of a level in which nothing was placed yet."""
        found = self._whole.get(level)
        if found is None:
            starts = self.counts.tree.leaf_ranges[level][:-1]
            found = self._whole[level] = ~np.logical_or.reduceat(_touched(self.room), starts)
        return found


def _within(counts: Counts) -> Start | Shortfall:
    """One domain, of the preferred level or the next coarser one, never above `within`."""
    question = counts.question
    last = question.level if question.within is None else question.within
    view = copy.copy(counts)
    for level in range(question.level, last - 1, -1):
        view.question = replace(question, level=level, required=True)
        start = choose_start(view)
        if isinstance(start, Start) or level == last:
            return start
    raise AssertionError("the required level is not above the preferred one")


def _touched(room: Room) -> BoolVector:
    """Leaves on which this system placed something; pods of others do not count."""
    capacity = room.capacity
    touched = np.zeros(capacity.tree.leaf_count, dtype=np.bool_)
    if not room.simulate_empty:
        touched |= capacity.usage[:, capacity.rows[PODS]] > 0
    for assumed in room.assumed:
        touched[assumed.leaves] = True
    return touched


def _given(ids: IntVector, pool: Pool, choice: Choice, need: int, size: int) -> Shares:
    """Fill the leader's domain, then the others, largest first; the last gets the rest."""

    def turn(place: int) -> tuple[bool, int, int]:
        return (place != choice.host, -int(pool.room[place]), place)

    shares: Shares = []
    for place in sorted(choice.chosen, key=turn):
        lead = place == choice.host and pool.led is not None
        room = int(pool.led[place] if lead and pool.led is not None else pool.room[place])
        amount = min(room, need)
        need -= amount
        shares.append(Share(int(ids[place]), amount * size, int(lead)))
    return shares
