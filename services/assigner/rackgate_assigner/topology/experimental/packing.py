"""Phase 2 with Rackgate's own gates: both levels, fewest domains, best fit below slices.

- RackgateRequiredAndPreferred: one domain of the required level fits everything, and a finer
  level is preferred.
- RackgateFewestDomains: several domains are chosen exactly (`fewest_domains`) instead of one by
  one. The result is compared with the default's, because each choice considers one level only, and
  what it saves there can cost domains further down.
- RackgateBestFitBelowSlices: below the slice level hosts are filled by best fit, instead of the
  smallest first.

Counts, messages and everything else are the default's; see ADR 13. Whatever fits without the gates
fits with them.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Final

import numpy as np

from rackgate.features import Features
from rackgate_assigner.topology.experimental.fewest_domains import (
    CandidateDomains,
    Choice,
    best_set_size,
    choose_domains,
    min_domain_count,
)
from rackgate_assigner.topology.model import BoolVector, IntVector
from rackgate_assigner.topology.placement.assign import (
    FitDomains,
    Share,
    Shares,
    Shortfall,
    assign_to_leaves,
    children_of,
    counts_in_units,
    distribute,
    distribute_to_children,
    find_fit_domains,
    sort_domains,
)
from rackgate_assigner.topology.placement.count import DomainCounts, FreeCapacity, LevelCounts
from rackgate_assigner.topology.tree import PODS

# Domains of a coarser level that are compared by their need one level down.
COMPARED: Final = 256


def pack_shares(counts: DomainCounts, free: FreeCapacity, features: Features) -> Shares | Shortfall:
    """What every leaf gets, or the shortfall; `free` shows which leaves are untouched."""
    return _Packing(counts, free, features).shares()


class _Packing:
    def __init__(self, counts: DomainCounts, free: FreeCapacity, features: Features) -> None:
        self.counts, self.free, self.request = counts, free, counts.request
        scored = counts.level(self.request.level).score is not None
        # Preferred node affinity has priority over fewest domains, as over best fit.
        self.exact = features.fewest_domains and not scored
        self.best_fit = features.best_fit_below_slices and not self.request.least_free
        self._untouched_by_level: dict[int, BoolVector] = {}

    def shares(self) -> Shares | Shortfall:
        counts = self.counts
        start = (
            find_fit_domains(counts)
            if self.request.required_level is None
            else _find_within_required_level(counts)
        )
        if isinstance(start, Shortfall):
            return start
        chosen = self._improve_start(start)
        if not self.exact:
            return (
                self._distribute_down(chosen) if self.best_fit else assign_to_leaves(counts, chosen)
            )
        packed, default = self._distribute_down(chosen), assign_to_leaves(counts, start)
        worse = self._count_domains(packed, start.level) > self._count_domains(default, start.level)
        return default if worse else packed

    def _count_domains(self, shares: Shares, level: int) -> list[int]:
        """How many domains the leaves are in, from a level down, coarsest first."""
        leaves = [share.domain for share in shares if share.pods or share.leaders]
        ranges = self.counts.tree.leaf_ranges[level:]
        return [len(np.unique(np.searchsorted(row, leaves, side="right"))) for row in ranges]

    def _improve_start(self, start: FitDomains) -> FitDomains:
        """The start domains, instead of the default's."""
        both = self.request.required_level is not None
        if len(start.domains) == 1:
            climbed = start.level < self.request.level
            return self._choose_by_children(start) if climbed and (both or self.exact) else start
        return self._choose_several(start) if self.exact else start

    def _choose_by_children(self, start: FitDomains) -> FitDomains:
        """Of the domains that fit everything, the one that needs the fewest one level down."""
        level, need = start.level, self.request.need
        numbers, below = self.counts.level(level), self.counts.level(level + 1)
        enough = numbers.slices_with_leader >= need
        if numbers.leader_fits is not None:
            enough &= numbers.leader_fits >= 1
        able = enough.nonzero()[0]
        able = able[np.argsort(numbers.slices_with_leader[able], kind="stable")][:COMPARED]
        found = []
        for place, domain in enumerate(able.tolist()):
            pool = self._pool(level + 1, children_of(self.counts, level, [domain]), below)
            numbers_below = best_set_size(pool, need)
            if numbers_below is not None:
                found.append((*numbers_below, place, domain))
        return FitDomains(level, np.array([min(found)[-1]], dtype=np.int64)) if found else start

    def _choose_several(self, start: FitDomains) -> FitDomains:
        """The exact choice among all domains of the level; the default's if it takes too long."""
        level = start.level
        numbers = self.counts.level(level)
        ids = np.arange(len(numbers.slices), dtype=np.int64)
        if level:
            ids = self._prefer_touched_parents(level, ids)
        choice = choose_domains(self._pool(level, ids, numbers), self.request.need)
        return start if choice is None else FitDomains(level, ids[list(choice.chosen)])

    def _prefer_touched_parents(self, level: int, ids: IntVector) -> IntVector:
        """Exclude domains below untouched ones of the next coarser level, as far as possible.

        As few of those as possible are used for the fewest domains: first those that are not
        below an untouched domain themselves, then the larger, then by path.
        """
        need, numbers = self.request.need, self.counts.level(level)
        fresh = self._untouched_domains(level - 1).nonzero()[0]
        number = min_domain_count(self._pool(level, ids, numbers), need)
        keys: list[IntVector | BoolVector] = [-self.counts.level(level - 1).slices[fresh]]
        keys += [
            self._untouched_domains(at)[self._above(level - 1, at)[fresh]]
            for at in range(level - 1)
        ]
        opened = np.zeros(len(self.counts.tree.paths[level - 1]), dtype=np.int64)
        opened[fresh[np.lexsort(keys)]] = np.arange(1, len(fresh) + 1)
        turn = opened[self.counts.tree.parents[level][ids]]
        low, high = 0, len(fresh)
        while low < high:
            middle = (low + high) // 2
            if min_domain_count(self._pool(level, ids[turn <= middle], numbers), need) == number:
                high = middle
            else:
                low = middle + 1
        return ids[turn <= low]

    def _above(self, level: int, coarser: int) -> IntVector:
        """For every domain of a level, the one of a coarser level that contains it."""
        ranges = self.counts.tree.leaf_ranges
        above: IntVector = np.searchsorted(ranges[coarser], ranges[level][:-1], side="right") - 1
        return above

    def _distribute_down(self, start: FitDomains) -> Shares:
        """Level by level: over all children first, below the slice level within each domain."""
        request, counts = self.request, self.counts
        level = start.level
        shares = self._distribute_over(level, start.domains)
        while level < request.slice_level:
            level += 1
            parents = [share.domain for share in shares if share.pods or share.leaders]
            shares = self._distribute_over(level, children_of(counts, level - 1, parents))
        while level < len(request.units) - 1:
            level += 1
            shares = [
                child_share
                for share in shares
                for child_share in self._distribute_below(level, share, request.units[level])
            ]
        return shares

    def _distribute_over(self, level: int, ids: IntVector) -> Shares:
        """Distribute all slices over some domains of a level."""
        request, numbers = self.request, self.counts.level(level)
        if len(ids) == 1 and level < request.slice_level:
            return [Share(int(ids[0]), request.count, int(self.counts.has_leader))]
        ids = np.sort(ids)
        if self.exact:
            pool = self._pool(level, ids, numbers)
            choice = choose_domains(pool, request.need)
            if choice is not None:
                return _fill_choice(ids, pool, choice, request.need, request.size)
        return distribute(
            sort_domains(numbers, ids, least_free=request.least_free),
            request.need,
            int(self.counts.has_leader),
            numbers,
            request.size,
            best_fit=not request.least_free,
        )

    def _distribute_below(self, level: int, share: Share, unit: int) -> Shares:
        """Distribute the share of one domain over its children."""
        if not share.pods and not share.leaders:
            return []
        units = counts_in_units(self.counts.level(level), unit)
        ids = children_of(self.counts, level - 1, [share.domain])
        need = share.pods // unit
        if self.exact:
            pool = self._pool(level, ids, units, has_leader=bool(share.leaders))
            choice = choose_domains(pool, need)
            if choice is not None:
                return _fill_choice(ids, pool, choice, need, unit)
        if not self.best_fit:
            return distribute_to_children(self.counts, level - 1, [share], unit)
        keys = [-units.slices[ids]]
        if units.score is not None:
            keys.append(-units.score[ids])
        return distribute(ids[np.lexsort(keys)], need, share.leaders, units, unit, best_fit=True)

    def _pool(
        self, level: int, ids: IntVector, numbers: LevelCounts, *, has_leader: bool = True
    ) -> CandidateDomains:
        """Domains to choose from, by the slices of `numbers`."""
        whole = self._untouched_domains(level)[ids]
        if numbers.leader_fits is None or not has_leader:
            return CandidateDomains(numbers.slices[ids], whole)
        beside, fits = numbers.slices_with_leader[ids], numbers.leader_fits[ids] >= 1
        return CandidateDomains(numbers.slices[ids], whole, beside, fits)

    def _untouched_domains(self, level: int) -> BoolVector:
        """Domains of a level without pods."""
        found = self._untouched_by_level.get(level)
        if found is None:
            starts = self.counts.tree.leaf_ranges[level][:-1]
            found = self._untouched_by_level[level] = ~np.logical_or.reduceat(
                _touched_leaves(self.free), starts
            )
        return found


def _find_within_required_level(counts: DomainCounts) -> FitDomains | Shortfall:
    """One domain, of the preferred level or the next coarser one, never above the required one."""
    request = counts.request
    last = request.level if request.required_level is None else request.required_level
    view = copy.copy(counts)
    for level in range(request.level, last - 1, -1):
        view.request = replace(request, level=level, required=True)
        start = find_fit_domains(view)
        if isinstance(start, FitDomains) or level == last:
            return start
    raise AssertionError("the required level is not above the preferred one")


def _touched_leaves(free: FreeCapacity) -> BoolVector:
    """Leaves with pods that were placed by topology."""
    capacity = free.capacity
    touched = np.zeros(capacity.tree.leaf_count, dtype=np.bool_)
    if not free.simulate_empty:
        touched |= capacity.usage[:, capacity.rows[PODS]] > 0
    for assumed in free.assumed:
        touched[assumed.leaves] = True
    return touched


def _fill_choice(
    ids: IntVector, pool: CandidateDomains, choice: Choice, need: int, size: int
) -> Shares:
    """Fill the leader's domain, then the others, largest first; the last gets the rest."""

    def turn(place: int) -> tuple[bool, int, int]:
        return (place != choice.host, -int(pool.amounts[place]), place)

    shares: Shares = []
    for place in sorted(choice.chosen, key=turn):
        leads = place == choice.host
        offered = pool.with_leader if leads and pool.with_leader is not None else pool.amounts
        amount = min(int(offered[place]), need)
        need -= amount
        shares.append(Share(int(ids[place]), amount * size, int(leads)))
    return shares
