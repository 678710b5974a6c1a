"""Exact search: a domain for every group that must have one, and a node for every pod.

Input: a tree of `Item`s (groups nested in groups, each with pods by shape) and a `Room`. Output:
a domain for each item such that every pod has a node, or the proof that there is none. Two groups
may share a domain, and the domain of a group lies inside that of its parent.

Phase 1, `_Search`, chooses domains by depth-first search with backtracking: larger groups first,
each in the fitting domain with the least free capacity.

- The pods that are confined to a domain must fit into it. Domains are nested, so with pods of one
  shape this is also sufficient (Hall's theorem for nested sets). With several shapes it is only
  necessary, and phase 2 decides.
- Symmetry: equal groups get domains in one order, and of equal domains only the first is tried.
  All other combinations differ in names only.
- A group is tried only in domains that could contain it if they were otherwise empty.

Phase 2, `Packing`, chooses nodes, also with backtracking. A `Lot` is a number of equal pods that
may use one range of nodes. Lots with the fewest nodes come first. Each node gets as many pods as
fit, and fewer after backtracking. Equal nodes get descending numbers of pods, because other orders
are equivalent.

Both are exponential in the worst case. A `Budget` of steps ends them with `UndecidedError`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, TypeAlias

from rackgate_assigner.topology.tree import PODS
from rackgate_osmo.explain.room import Room, Shape

Counts: TypeAlias = tuple[int, ...]

_LOOKUPS_PER_STEP: Final = 64  # domains or nodes that count as one step
# Pods that request the most of these are placed first.
_HARDEST: Final = ("nvidia.com/gpu", "cpu", "memory", "ephemeral-storage")


class UndecidedError(Exception):
    """The search used up its steps without a result."""


class Budget:
    """Number of steps that searches may use."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Use steps; raise UndecidedError if none are left."""
        self.left -= steps
        if self.left < 0:
            raise UndecidedError


@dataclass(slots=True, eq=False)
class Item:
    """Pods that must share one domain.

    Attributes:
        level: of that domain; 0 for no restriction.
        loose: pods by shape that are in this group, but in no group inside it.
        children: groups inside it, of finer levels.
    """

    level: int
    loose: Counts
    children: Sequence[Item] = ()
    _total: Counts | None = None

    def total(self) -> Counts:
        """Pods by shape, including those of the groups inside."""
        if self._total is None:
            parts = (self.loose, *(child.total() for child in self.children))
            self._total = tuple(map(sum, zip(*parts, strict=True)))
        return self._total

    def walk(self) -> Iterator[Item]:
        """This group and all groups inside, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


class FitTables:
    """How many pods of given shapes fit in each domain; computed once for many searches.

    Attributes:
        slots: by level and shape, how many pods fit in each domain.
    """

    def __init__(self, room: Room, shapes: Sequence[Shape]) -> None:
        self.room, self.shapes = room, tuple(shapes)
        self.uniform = len(shapes) <= 1
        resources = sorted({name for shape in shapes for name, _ in shape.requests})
        self._requests = [[dict(s.requests).get(r, 0) for r in resources] for s in shapes]
        self._covering = [
            [at for at, other in enumerate(shapes) if other.covers(shape)] for shape in shapes
        ]
        fits = [room.fits(shape) for shape in shapes]
        free = [] if self.uniform else [room.free(name) for name in resources]
        levels = range(room.depth + 1)
        self.slots = [[room.sums(level, counts) for counts in fits] for level in levels]
        self._free = [[room.sums(level, amounts) for amounts in free] for level in levels]
        self._nodes = list(zip(*fits, *free, strict=True))
        self._alone: dict[tuple[int, int], bool] = {}
        self._kinds: dict[Hashable, int] = {}
        self._classes: dict[Item, int] = {}

    def equivalence_class(self, item: Item) -> int:
        """A number that is the same for groups with equal requests."""
        known = self._classes.get(item)
        if known is None:
            inside = tuple(sorted(map(self.equivalence_class, item.children)))
            known = self._kinds.setdefault((item.level, item.loose, inside), len(self._kinds))
            self._classes[item] = known
        return known

    def in_order(self, items: Sequence[Item]) -> list[Item]:
        """Groups in the order of the search: finer and larger ones first, equal ones adjacent."""
        return sorted(
            items, key=lambda one: (-one.level, -sum(one.total()), self.equivalence_class(one))
        )

    def nodes_in(self, level: int, domain: int) -> tuple[Hashable, ...]:
        """A value that is the same for domains with equal free capacity."""
        if self.uniform:
            return tuple(counts[domain] for counts in self.slots[level])
        start, end = self.room.leaves(level, domain)
        return tuple(sorted(self._nodes[start:end]))

    def holds(self, level: int, domain: int, confined: Sequence[int]) -> bool:
        """Whether pods by shape may fit into a domain, judged by sums: a necessary condition."""
        for shape, covering in enumerate(self._covering):
            if sum(confined[at] for at in covering) > self.slots[level][shape][domain]:
                return False
        for index, free in enumerate(self._free[level]):
            need = sum(n * r[index] for n, r in zip(confined, self._requests, strict=True) if n)
            if need > free[domain]:
                return False
        return True

    def times(self, item: Item, domain: int, confined: Sequence[int]) -> int:
        """Upper bound for how often a group fits into a domain, next to the pods confined to it."""
        total = item.total()
        most = sum(total) + 10**9
        for shape, covering in enumerate(self._covering):
            need = sum(total[at] for at in covering)
            if need:
                taken = sum(confined[at] for at in covering)
                most = min(most, (self.slots[item.level][shape][domain] - taken) // need)
        return max(most, 0)

    def could_hold(self, item: Item, domain: int) -> bool:
        """Whether a group may fit into an otherwise empty domain; False is certain."""
        key = (self.equivalence_class(item), domain)
        if key not in self._alone:
            children = sorted(item.children, key=self.equivalence_class)
            self._alone[key] = self.holds(item.level, domain, item.total()) and all(
                self._enough(item.level, domain, list(alike))
                for _, alike in groupby(children, key=self.equivalence_class)
            )
        return self._alone[key]

    def _enough(self, level: int, domain: int, alike: list[Item]) -> bool:
        """Whether there may be enough domains for these equal groups."""
        item, left, nothing = alike[0], len(alike), [0] * len(self.shapes)
        for inside in self.room.within(level, domain, item.level):
            if self.room.labelled(item.level, inside) and self.could_hold(item, inside):
                left -= self.times(item, inside, nothing)
            if left <= 0:
                return True
        return False


def solve(tables: FitTables, root: Item, budget: Budget, at: int = 0) -> dict[Item, int] | None:
    """A domain for every item such that every pod has a node; None if there is no solution.

    Args:
        tables: of the shapes that the items count.
        root: all pods; children have finer levels than their parents.
        budget: shared with other searches.
        at: the root's domain.
    """
    return _Search(tables, root, budget, at).run()


def pack(
    tables: FitTables, found: Mapping[Item, int], budget: Budget
) -> dict[tuple[int, int, int], Mapping[int, int]] | None:
    """Pods by node for chosen domains, by node range and shape; None if there is no solution."""
    merged: Counter[tuple[int, int, int]] = Counter()
    for item, domain in found.items():
        start, end = tables.room.leaves(item.level, domain)
        merged.update({(start, end, at): pods for at, pods in enumerate(item.loose) if pods})
    keys = sorted(merged)
    lots = [Lot(tables.shapes[at], merged[start, end, at], start, end) for start, end, at in keys]
    packed = Packing(tables.room, lots, budget).run()
    return None if packed is None else dict(zip(keys, packed, strict=True))


@dataclass(slots=True)
class _Step:
    """A group whose domain is to be chosen.

    Attributes:
        parent: position of the parent group.
        twin: position of the sibling before it, if that one is equal; else -1.
        twins: number of equal siblings from here on.
        order: domains to try, least free capacity first; a twin continues in that order.
        at: position in `order` of the domain that is tried.
        domain: the chosen domain, or -1.
        failed: `_likeness` of the domains that failed.
    """

    item: Item
    parent: int
    twin: int
    twins: int
    order: Sequence[int] = ()
    at: int = -1
    domain: int = -1
    failed: set[Hashable] = field(default_factory=set)


class _Search:
    """Phase 1.

    Invariant: for each group with a chosen domain, `confined[level][domain]` counts its pods by
    shape in that domain and in those that contain it, inside the domain of its parent.
    """

    def __init__(self, tables: FitTables, root: Item, budget: Budget, at: int) -> None:
        self.tables, self.room, self.budget, self.at = tables, tables.room, budget, at
        self.used = {item.level for item in root.walk()}
        self.finest = max(self.used)
        self.steps: list[_Step] = []
        self._add(root, -1, -1, 1)
        shapes = range(len(tables.shapes))
        self.confined = [
            [[0 for _ in shapes] for _ in range(self.room.domains(level))]
            for level in range(self.finest + 1)
        ]

    def _add(self, item: Item, parent: int, twin: int, twins: int) -> None:
        here = len(self.steps)
        self.steps.append(_Step(item, parent, twin, twins))
        children = self.tables.in_order(item.children)
        for _, alike in groupby(children, key=self.tables.equivalence_class):
            before, some = -1, list(alike)
            for index, child in enumerate(some):
                next_one = len(self.steps)
                self._add(child, here, before, len(some) - index)
                before = next_one

    def run(self) -> dict[Item, int] | None:
        """A domain for every group, or None."""
        if not self.tables.could_hold(self.steps[0].item, self.at):
            return None
        position = 0
        self._enter(position)
        while position >= 0:
            if self._advance(position):
                position += 1
                if position < len(self.steps):
                    self._enter(position)
                    continue
                found = {step.item: step.domain for step in self.steps}
                if self.tables.uniform or pack(self.tables, found, self.budget) is not None:
                    return found
            position -= 1
            if position >= 0:
                self._confine(position, self.steps[position].domain, -1)
        return None

    def _enter(self, position: int) -> None:
        """Order the domains to try for a group, after those before it have theirs."""
        step = self.steps[position]
        step.at, step.domain, step.failed = -1, -1, set()
        if step.twin >= 0:
            first = self.steps[step.twin]
            step.order, step.at = first.order, first.at - 1
        elif step.parent < 0:
            step.order = [self.at]
        else:
            step.order = self._order(step, self.steps[step.parent])

    def _order(self, step: _Step, parent: _Step) -> list[int]:
        level = step.item.level
        left, found = step.twins, []
        inside = self.room.within(parent.item.level, parent.domain, level)
        self.budget.spend(len(inside) // _LOOKUPS_PER_STEP)
        for domain in inside:
            if not self.room.labelled(level, domain):
                continue
            if not self.tables.could_hold(step.item, domain):
                continue
            confined = self.confined[level][domain]
            times = self.tables.times(step.item, domain, confined)
            if times:
                left -= times
                slots = sum(counts[domain] for counts in self.tables.slots[level])
                found.append((slots - sum(confined), domain))
        if left > 0:
            return []  # not enough domains for all twins
        return [domain for _, domain in sorted(found)]

    def _advance(self, position: int) -> bool:
        """Choose the next domain that may fit; False if there is none."""
        step = self.steps[position]
        if step.domain >= 0:
            step.failed.add(self._likeness(position, step.domain))
            step.domain = -1
        while step.at + 1 < len(step.order):
            step.at += 1
            domain = step.order[step.at]
            self.budget.spend()
            if step.failed and self._likeness(position, domain) in step.failed:
                continue
            if self._confine(position, domain, 1):
                step.domain = domain
                return True
            self._confine(position, domain, -1)
            step.failed.add(self._likeness(position, domain))
        return False

    def _around(self, position: int, domain: int) -> Iterator[tuple[int, int]]:
        """A domain and those that contain it, inside the domain of the parent group."""
        step = self.steps[position]
        top = self.steps[step.parent].item.level if step.parent >= 0 else -1
        for level in range(step.item.level, top, -1):
            yield level, domain
            domain = self.room.parent(level, domain)

    def _confine(self, position: int, domain: int, times: int) -> bool:
        """Add a group's pods to a domain, or remove them; whether all pods there may still fit."""
        fits = True
        for level, at in self._around(position, domain):
            confined = self.confined[level][at]
            for shape, count in enumerate(self.steps[position].item.total()):
                confined[shape] += times * count
            fits = fits and self.tables.holds(level, at, confined)
        return fits

    def _likeness(self, position: int, domain: int) -> Hashable:
        """A value that is the same for domains that are equal now, with all that contain them."""
        return tuple(
            self._signature(level, at)
            for level, at in self._around(position, domain)
            if level in self.used
        )

    def _signature(self, level: int, domain: int) -> tuple[Hashable, ...]:
        confined, labelled = tuple(self.confined[level][domain]), self.room.labelled(level, domain)
        if level == self.finest:
            return labelled, confined, self.tables.nodes_in(level, domain)
        below = self.room.within(level, domain, level + 1)
        inside = Counter(self._signature(level + 1, child) for child in below)
        return labelled, confined, frozenset(inside.items())


@dataclass(frozen=True, slots=True)
class Lot:
    """Equal pods that may use the nodes from `start` to `end`, exclusive."""

    shape: Shape
    pods: int
    start: int
    end: int


@dataclass(slots=True)
class _Choice:
    """Pods of one lot on one node: the chosen number, and the fewest for which the rest can fit."""

    node: int
    pods: int
    least: int


class Packing:
    """Phase 2: nodes for lots in any order; an instance is used for one search."""

    def __init__(self, room: Room, lots: Sequence[Lot], budget: Budget) -> None:
        self.order = sorted(range(len(lots)), key=lambda at: _hardest_first(lots[at]))
        self.lots = [lots[at] for at in self.order]
        self.budget = budget
        names = sorted({PODS, *(name for lot in lots for name, _ in lot.shape.requests)})
        self.free = [list(row) for row in zip(*(room.free(name) for name in names), strict=True)]
        self.requests = []
        for lot in self.lots:
            requests = Counter(dict(lot.shape.requests)) + Counter({PODS: 1})
            self.requests.append([requests[name] for name in names])
        self.excluded = [
            {room.tree.leaf_of_node(name) for name in lot.shape.excluded} for lot in self.lots
        ]
        fits = {lot.shape: room.fits(lot.shape) for lot in self.lots}
        slots = {shape: room.sums(room.depth, counts) for shape, counts in fits.items()}
        domain_of = [
            domain
            for domain in range(room.domains(room.depth))
            for _ in range(*room.leaves(room.depth, domain))
        ]
        # Nodes of the fullest domain first, so that whole domains stay free for others. mypy cannot
        # infer the type of a lambda with a default argument.
        self.nodes = [
            sorted(
                (node for node in range(lot.start, lot.end) if fits[lot.shape][node]),
                key=lambda node, slots=slots[lot.shape]: slots[domain_of[node]],  # type: ignore[misc]  # mypy infers no type for the default
            )
            for lot in self.lots
        ]
        self.borders = sorted({edge for lot in lots for edge in (lot.start, lot.end)})

    def run(self) -> list[Mapping[int, int]] | None:
        """Pods by node for every lot, in the given order; None if there is no solution."""
        taken: list[list[_Choice]] = [[]]
        while len(taken) <= len(self.lots):
            if not self._fill(taken) and not self._back(taken):
                return None
        found: list[Mapping[int, int]] = [{}] * len(self.lots)
        for at, choices in zip(self.order, taken, strict=False):
            found[at] = {choice.node: choice.pods for choice in choices if choice.pods}
        return found

    def _fill(self, taken: list[list[_Choice]]) -> bool:
        """Assign the pods of the last lot to nodes; False if they do not fit."""
        at, choices = len(taken) - 1, taken[-1]
        lot, nodes = self.lots[at], self.nodes[at]
        fits = [self._fits(at, node) for node in nodes]
        # Choices of an earlier call are charged already; continue after them.
        left = lot.pods - sum(choice.pods for choice in choices)
        after = sum(fits[len(choices) :])
        self.budget.spend(1 + len(nodes) // _LOOKUPS_PER_STEP)
        for index in range(len(choices), len(nodes)):
            after -= fits[index]
            most = min(fits[index], left)
            if index and self._alike(nodes[index - 1], nodes[index], at, choices[-1].pods):
                most = min(most, choices[-1].pods)
            least = max(0, left - after)
            if most < least:
                return False
            choices.append(_Choice(nodes[index], most, least))
            self._charge(at, nodes[index], most)
            left -= most
        if left:
            return False
        taken.append([])
        return True

    def _back(self, taken: list[list[_Choice]]) -> bool:
        """Backtrack: take one pod from the last choice that allows it; False if there is none."""
        while taken:
            at = len(taken) - 1
            while taken[-1]:
                choice = taken[-1].pop()
                self._charge(at, choice.node, -choice.pods)
                if choice.pods > choice.least:
                    choice.pods -= 1
                    taken[-1].append(choice)
                    self._charge(at, choice.node, choice.pods)
                    return True
            taken.pop()
        return False

    def _fits(self, at: int, node: int) -> int:
        pairs = zip(self.free[node], self.requests[at], strict=True)
        counts: list[int] = [have // need for have, need in pairs if need]
        return max(0, min(counts))

    def _charge(self, at: int, node: int, pods: int) -> None:
        for index, need in enumerate(self.requests[at]):
            self.free[node][index] -= need * pods

    def _alike(self, before: int, node: int, at: int, pods: int) -> bool:
        """Whether two nodes were equal for every lot before the first got these pods."""
        rows = zip(self.free[before], self.requests[at], self.free[node], strict=True)
        return (
            all(have + need * pods == other for have, need, other in rows)
            and all((before in nodes) == (node in nodes) for nodes in self.excluded)
            and bisect_right(self.borders, before) == bisect_right(self.borders, node)
        )


def _hardest_first(lot: Lot) -> tuple[int, ...]:
    requests = dict(lot.shape.requests)
    return (lot.end - lot.start, *(-requests.get(name, 0) for name in _HARDEST))
