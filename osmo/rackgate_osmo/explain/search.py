"""Exact search: a domain for every group that must have one.

Groups are nested, and a group's domain lies in that of the group around it. Two groups may share
a domain. Which domains to take is a packing problem, so the search goes back where it has to:
depth first, larger groups first, each into the tightest domain that holds it. What keeps it short:

- The pods that are confined to a domain must fit into it. Domains are nested, so with pods of one
  shape this is also enough (Hall's condition on nested sets): no node has to be chosen meanwhile.
  With several shapes it only rules out, and `osmo_packing` decides in the end.
- Groups that are alike take domains in one order, and of domains that are alike only the first is
  tried: all other combinations are the same up to names.
- A group is offered only domains that could hold it if nothing else were there.

It stops after a number of steps and then says that it did not decide.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, TypeAlias

from rackgate_osmo.explain.room import Room, Shape

Counts: TypeAlias = tuple[int, ...]

_LOOKUPS_PER_STEP: Final = 64  # domains whose room is looked up in the time of one step


class UndecidedError(Exception):
    """The search ended before it knew."""


class Budget:
    """Steps that a search may take."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Take steps.

        Raises:
            UndecidedError: none are left.
        """
        self.left -= steps
        if self.left < 0:
            raise UndecidedError


@dataclass(slots=True, eq=False)
class Item:
    """Pods that must share one domain.

    Attributes:
        level: of that domain; 0: anywhere.
        loose: pods by shape that are in this group, but in no group inside it.
        children: groups inside it, of finer levels.
    """

    level: int
    loose: Counts
    children: Sequence[Item] = ()
    _total: Counts | None = None

    def total(self) -> Counts:
        """Pods by shape, of the groups inside too."""
        if self._total is None:
            parts = (self.loose, *(child.total() for child in self.children))
            self._total = tuple(map(sum, zip(*parts, strict=True)))
        return self._total

    def walk(self) -> Iterator[Item]:
        """This group and all inside, each after the one around it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(slots=True)
class _Step:
    """A group whose domain is to be chosen.

    Attributes:
        parent: position of the group around it.
        twin: position of the sibling before it, if that is alike; else -1.
        twins: how many siblings from here on are alike.
        total: pods by shape.
        likeness: equal for groups that ask for the same.
        order: domains to try, the tightest first; a twin goes on in the order of the first.
        at: position in `order` of the domain that is taken.
        failed: signatures of domains that led nowhere.
    """

    item: Item
    parent: int
    twin: int
    twins: int
    total: Counts
    equivalence_class: int
    order: Sequence[int] = ()
    at: int = -1
    domain: int = -1
    failed: set[Hashable] = field(default_factory=set)


class FitTables:
    """What fits where, for pods of certain shapes; made once, searched often."""

    def __init__(self, room: Room, shapes: Sequence[Shape]) -> None:
        self.room, self.shapes = room, tuple(shapes)
        self.resources = sorted({name for shape in shapes for name, _ in shape.requests})
        self.requests = [[dict(s.requests).get(r, 0) for r in self.resources] for s in shapes]
        self.fits = [room.fits(shape) for shape in shapes]
        self.covering = [
            [at for at, other in enumerate(shapes) if other.covers(shape)] for shape in shapes
        ]
        self.uniform = len(shapes) <= 1
        free = [] if self.uniform else [room.free(name) for name in self.resources]
        self.nodes = list(zip(*self.fits, *free, strict=True))
        levels = range(room.depth + 1)
        self.slots = [[room.sums(level, counts) for counts in self.fits] for level in levels]
        self.free = [[room.sums(level, amounts) for amounts in free] for level in levels]
        self._numbers: dict[Hashable, int] = {}
        self._empty: dict[tuple[int, int], int] = {}
        self._alone: dict[tuple[int, int, int], bool] = {}
        self._kinds: dict[Hashable, int] = {}
        self._equivalence_classes: dict[Item, int] = {}

    def number(self, value: Hashable) -> int:
        """A small number that stands for a value."""
        return self._numbers.setdefault(value, len(self._numbers))

    def equivalence_class(self, item: Item) -> int:
        """Equal for groups that ask for the same."""
        known = self._equivalence_classes.get(item)
        if known is None:
            inside = tuple(sorted(self.equivalence_class(child) for child in item.children))
            known = self._kinds.setdefault((item.level, item.loose, inside), len(self._kinds))
            self._equivalence_classes[item] = known
        return known

    def holds(self, level: int, domain: int, confined: Sequence[int]) -> bool:
        """Whether pods by shape fit into a domain, as far as sums can tell."""
        for shape, covering in enumerate(self.covering):
            need = sum(confined[at] for at in covering)
            if need > self.slots[level][shape][domain]:
                return False
        for index, free in enumerate(self.free[level]):
            need = sum(n * r[index] for n, r in zip(confined, self.requests, strict=True) if n)
            if need > free[domain]:
                return False
        return True

    def times(self, level: int, domain: int, confined: Sequence[int], total: Counts) -> int:
        """How often a group fits into a domain at most, beside what is confined to it."""
        most = sum(total) + 10**9
        for shape, covering in enumerate(self.covering):
            need = sum(total[at] for at in covering)
            if need:
                taken = sum(confined[at] for at in covering)
                most = min(most, (self.slots[level][shape][domain] - taken) // need)
        return max(most, 0)

    def empty(self, level: int, domain: int, finest: int) -> int:
        """Equal for domains that are alike while nothing is placed, down to a level."""
        key = (level * 100 + finest, domain)
        if key not in self._empty:
            inside: tuple[Hashable, ...]
            if level == finest and self.uniform:
                inside = tuple(counts[domain] for counts in self.slots[level])
            elif level == finest:
                start, end = self.room.leaves(level, domain)
                inside = tuple(sorted(self.nodes[start:end]))
            else:
                below = self.room.within(level, domain, level + 1)
                inside = tuple(sorted(self.empty(level + 1, child, finest) for child in below))
            labelled = self.room.labelled(level, domain)
            self._empty[key] = self.number((level, finest, labelled, inside))
        return self._empty[key]

    def could_hold(self, item: Item, level: int, domain: int, finest: int) -> bool:
        """Whether a group could be in a domain if nothing else were there; False is certain."""
        key = (self.equivalence_class(item), self.empty(level, domain, finest), level)
        if key not in self._alone:
            nothing = [0] * len(self.shapes)
            self._alone[key] = self.holds(level, domain, item.total()) and all(
                self._enough(alike, level, domain, finest, nothing)
                for alike in self._alike(item.children)
            )
        return self._alone[key]

    def _alike(self, items: Sequence[Item]) -> list[list[Item]]:
        ordered = sorted(items, key=self.equivalence_class)
        return [list(some) for _, some in groupby(ordered, key=self.equivalence_class)]

    def _enough(
        self, alike: list[Item], level: int, domain: int, finest: int, confined: list[int]
    ) -> bool:
        """Whether there are domains for all of some groups that are alike."""
        item, left = alike[0], len(alike)
        total = item.total()
        for inside in self.room.within(level, domain, item.level):
            if self.room.labelled(item.level, inside):
                if self.could_hold(item, item.level, inside, finest):
                    left -= self.times(item.level, inside, confined, total)
                if left <= 0:
                    return True
        return left <= 0


class Search:
    """One search for domains."""

    def __init__(self, tables: FitTables, root: Item, budget: Budget, at: int = 0) -> None:
        """Prepare.

        Args:
            tables: of the shapes that the items count.
            root: everything to be placed; each group below has a finer level than the one around
                it.
            budget: shared with other searches.
            at: the root's domain.
        """
        self.tables, self.room, self.budget, self.at = tables, tables.room, budget, at
        self.used = {item.level for item in root.walk()}
        self.finest = max(self.used)
        self.steps: list[_Step] = []
        self._add(root, -1, -1, 1)
        zero = [0] * len(tables.shapes)
        levels = range(self.finest + 1)
        self.confined = [[list(zero) for _ in range(self.room.domains(at))] for at in levels]
        self._signatures: list[dict[int, int]] = [{} for _ in levels]

    def run(self, check: Callable[[dict[Item, int]], bool] | None = None) -> dict[Item, int] | None:
        """A domain for every group, or None where there is no way.

        Args:
            check: judges a whole choice; the search goes on where it says no.

        Raises:
            UndecidedError: the budget is used up.
        """
        root = self.steps[0].item
        if not self.tables.could_hold(root, root.level, self.at, self.finest):
            return None
        position = 0
        self._enter(position)
        while position >= 0:
            if not self._advance(position):
                position -= 1
                if position >= 0:
                    self._leave(position)
                continue
            position += 1
            if position < len(self.steps):
                self._enter(position)
                continue
            found = {step.item: step.domain for step in self.steps}
            if check is None or check(found):
                return found
            position -= 1
            self._leave(position)
        return None

    def _add(self, item: Item, parent: int, twin: int, twins: int) -> None:
        """Put a group and those inside it in the order in which domains are chosen."""
        here = len(self.steps)
        equivalence_class = self.tables.equivalence_class(item)
        self.steps.append(_Step(item, parent, twin, twins, item.total(), equivalence_class))
        children = sorted(
            item.children,
            key=lambda child: (
                -child.level,
                -sum(child.total()),
                self.tables.equivalence_class(child),
            ),
        )
        for _, alike in groupby(children, key=self.tables.equivalence_class):
            before, some = -1, list(alike)
            for index, child in enumerate(some):
                next_one = len(self.steps)
                self._add(child, here, before, len(some) - index)
                before = next_one

    def _enter(self, position: int) -> None:
        """Which domains a group may try, now that those before it have theirs."""
        step = self.steps[position]
        step.at, step.domain, step.failed = -1, -1, set()
        if step.twin >= 0:
            first = self.steps[step.twin]
            step.order, step.at = first.order, first.at - 1
            return
        step.order = self._order(step)

    def _order(self, step: _Step) -> list[int]:
        parent = self.steps[step.parent] if step.parent >= 0 else None
        level, finest = step.item.level, self.finest
        if parent is None:
            return [self.at]
        left, found = step.twins, []
        inside = self.room.within(parent.item.level, parent.domain, level)
        self.budget.spend(len(inside) // _LOOKUPS_PER_STEP)
        for domain in inside:
            if not self.room.labelled(level, domain):
                continue
            if not self.tables.could_hold(step.item, level, domain, finest):
                continue
            confined = self.confined[level][domain]
            times = self.tables.times(level, domain, confined, step.total)
            if times:
                left -= times
                found.append((self._slack(level, domain), domain))
        if left > 0:
            return []  # not all of the twins find a domain
        return [domain for _, domain in sorted(found)]

    def _slack(self, level: int, domain: int) -> int:
        slots = self.tables.slots[level]
        return sum(counts[domain] for counts in slots) - sum(self.confined[level][domain])

    def _advance(self, position: int) -> bool:
        """Take the next domain that may do; False where there is none."""
        step = self.steps[position]
        while step.at + 1 < len(step.order):
            step.at += 1
            domain = step.order[step.at]
            self.budget.spend()
            # A domain is only like another if what lies around the two is alike as well.
            alike = tuple(
                self._signature(level, at)
                for level, at in self._around(position, domain)
                if level in self.used
            )
            if alike in step.failed:
                continue
            step.failed.add(alike)
            if self._confine(position, domain):
                step.domain = domain
                return True
        return False

    def _leave(self, position: int) -> None:
        self._release(position, self.steps[position].domain)

    def _around(self, position: int, domain: int) -> Iterator[tuple[int, int]]:
        """A domain and those around it, below the domain of the group around this one."""
        step = self.steps[position]
        top = self.steps[step.parent].item.level if step.parent >= 0 else -1
        for level in range(step.item.level, top, -1):
            yield level, domain
            domain = self.room.parent(level, domain)

    def _confine(self, position: int, domain: int) -> bool:
        """Count a group's pods in a domain; False, with nothing changed, where it is too small."""
        total = self.steps[position].total
        fits = True
        for level, at in self._around(position, domain):
            confined = self.confined[level][at]
            for shape, count in enumerate(total):
                confined[shape] += count
            fits = fits and self.tables.holds(level, at, confined)
        self._forget(self.steps[position].item.level, domain)
        if not fits:
            self._release(position, domain)
        return fits

    def _release(self, position: int, domain: int) -> None:
        total = self.steps[position].total
        for level, at in self._around(position, domain):
            confined = self.confined[level][at]
            for shape, count in enumerate(total):
                confined[shape] -= count
        self._forget(self.steps[position].item.level, domain)

    def _forget(self, level: int, domain: int) -> None:
        for at in range(level, -1, -1):
            self._signatures[at].pop(domain, None)
            domain = self.room.parent(at, domain)

    def _signature(self, level: int, domain: int) -> int:
        """Equal for domains that are alike now, with all that is confined to them."""
        known = self._signatures[level].get(domain)
        if known is not None:
            return known
        inside: tuple[int, ...] = ()
        if level < self.finest:
            below = self.room.within(level, domain, level + 1)
            inside = tuple(sorted(self._signature(level + 1, child) for child in below))
        empty = self.tables.empty(level, domain, self.finest)
        found = self.tables.number((empty, tuple(self.confined[level][domain]), inside))
        self._signatures[level][domain] = found
        return found
