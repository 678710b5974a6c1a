"""Why a task group cannot be placed: which group finds no domain, and how much is missing.

Groups are looked at as the search takes them, larger ones first. The first that finds no domain
of its own, or none beside those before it, is told; inside the domain that comes closest the same
question is asked again. What a domain takes is filled subgroup by subgroup, so it is a number
that can be had; where several subgroups share it, another order might do a little better.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rackgate_osmo import Node
from rackgate_osmo.explain.placement import solve
from rackgate_osmo.explain.requests import TaskGroupRequests, plan_of
from rackgate_osmo.explain.room import Room, Shape
from rackgate_osmo.explain.search import Budget, Counts, FitTables, Item, UndecidedError

CLOSEST: Final = 3  # domains that are looked at closely
COUNTING: Final = 5  # times the steps of one question, for all counting together
DEEPEST: Final = 16  # shortages told one inside another


@dataclass(frozen=True, slots=True)
class DomainSpare:
    """A domain, and how many of a group's pods it takes."""

    domain: tuple[str, ...]
    pods: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """A group that finds no domain.

    Attributes:
        node: of the tree; None where it is the whole task group.
        pods: that it has.
        takes: pods that the closest domain takes.
        nodes: empty nodes that would take the missing pods; 0: not even an empty one does.
        rooms: the domains that come closest, best first.
        within: domain that all of this is inside of; () for the whole cluster.
        beside: groups that fit, but leave too little for this one.
        unlabelled: no node in `within` carries the label of the group's key.
    """

    node: Node | None
    pods: int
    takes: int
    nodes: int
    rooms: tuple[DomainSpare, ...]
    within: tuple[str, ...]
    beside: tuple[Node, ...] = ()
    unlabelled: bool = False

    @property
    def missing(self) -> int:
        """Pods that find no room even in the closest domain."""
        return self.pods - self.takes


class _ShortageFinder:
    """One refusal, looked into."""

    def __init__(self, room: Room, group_requests: TaskGroupRequests, steps: int) -> None:
        self.room, self.steps = room, steps
        self.counting = Budget(COUNTING * steps)
        self.tables = FitTables(room, group_requests.shapes)
        plan = plan_of(group_requests)
        self.root = plan.root
        nodes = {id(node): node for node in group_requests.nodes()}
        self.nodes = {item: nodes[at] for at, item in plan.items.items()}

    def fits(self, item: Item, at: int) -> bool:
        """Whether a group fits into a domain of its level, alone.

        Raises:
            UndecidedError: not decided in time.
        """
        return solve(self.tables, item, Budget(self.steps), at) is not None

    def find(self, item: Item, at: int, depth: int = 0) -> Iterator[Shortage]:
        """What keeps a group that does not fit out of a domain of its level.

        Raises:
            UndecidedError: not decided in time.
        """
        children = sorted(
            item.children,
            key=lambda one: (-one.level, -sum(one.total()), self.tables.equivalence_class(one)),
        )
        child = self._too_large(item.level, children, at)
        if child is not None:
            found, best = self._short(child, item.level, at, ())
            yield found
            if best is not None and depth < DEEPEST and child.children:
                yield from self.find(child, best, depth + 1)
            return
        fitting = self._prefix(item.level, children, at)
        if fitting < len(children):
            yield self._short(children[fitting], item.level, at, children[:fitting])[0]
            return
        if depth == 0:  # else the group around this has been told already
            yield self._loose(item, at)

    def _too_large(self, level: int, children: Sequence[Item], at: int) -> Item | None:
        """The first group that does not even fit alone."""
        known: dict[int, bool] = {}
        for child in children:
            equivalence_class = self.tables.equivalence_class(child)
            if equivalence_class not in known:
                known[equivalence_class] = self.fits(self._around(level, [child]), at)
            if not known[equivalence_class]:
                return child
        return None

    def _prefix(self, level: int, children: Sequence[Item], at: int) -> int:
        """How many groups, taken in order, fit together."""
        low, high = 0, len(children)
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(self._around(level, children[:middle]), at):
                low = middle
            else:
                high = middle - 1
        return low

    def _around(self, level: int, children: Sequence[Item]) -> Item:
        return Item(level, (0,) * len(self.tables.shapes), children)

    def _short(
        self, child: Item, level: int, at: int, beside: Sequence[Item]
    ) -> tuple[Shortage, int | None]:
        """The shortage of one group inside a domain, and the domain that comes closest."""
        inside = [
            domain
            for domain in self.room.within(level, at, child.level)
            if self.room.labelled(child.level, domain)
        ]
        total = sum(child.total())
        rough = sorted(inside, key=lambda d: self._fit_order(child, d))[:CLOSEST]
        best, kept = None, (0,) * len(child.total())
        if beside:
            kept = self._most(self._around(level, [*beside, child]), child, at)
            rooms = self._left(child, rough, level, at, beside)
        else:
            counted = [(self._most(child, child, domain), domain) for domain in rough]
            counted.sort(key=lambda pair: (-sum(pair[0]), pair[1]))
            rooms = [DomainSpare(self.room.path(child.level, d), sum(n)) for n, d in counted]
            if counted:
                kept, best = counted[0]
        shortage = Shortage(
            self.nodes[child],
            total,
            sum(kept),
            self._nodes(child, kept),
            tuple(rooms),
            self.room.path(level, at),
            tuple(self.nodes[other] for other in beside),
            unlabelled=not inside,
        )
        return shortage, best

    def _loose(self, item: Item, at: int) -> Shortage:
        """All groups inside fit, but the pods beside them do not."""
        total = sum(item.total())
        kept = self._most(item, item, at)
        takes = sum(kept)
        rooms = (DomainSpare(self.room.path(item.level, at), takes),)
        missing = self._nodes(item, kept)
        return Shortage(self.nodes.get(item), total, takes, missing, rooms, rooms[0].domain)

    def _left(
        self, child: Item, domains: Sequence[int], level: int, at: int, beside: Sequence[Item]
    ) -> list[DomainSpare]:
        """What domains still take of a group once those beside it have theirs."""
        found = solve(self.tables, self._around(level, beside), Budget(self.steps), at) or {}
        taken = dict.fromkeys(domains, 0)
        for item, domain in found.items():
            for other in domains:
                if item.level > level and other in self._shared(item.level, domain, child.level):
                    taken[other] += sum(item.loose)
        slots = self._slots(child)
        spares = [
            DomainSpare(
                self.room.path(child.level, d),
                max(0, min(sum(child.total()), max(c[d] for c, _ in slots) - taken[d])),
            )
            for d in domains
        ]
        return sorted(spares, key=lambda spare: (-spare.pods, spare.domain))

    def _slots(self, item: Item) -> list[tuple[Sequence[int], int]]:
        """For each shape of a group's pods: what domains of its level take, and its pods."""
        slots = self.tables.slots[item.level]
        return [(counts, n) for counts, n in zip(slots, item.total(), strict=True) if n]

    def _fit_order(self, item: Item, domain: int) -> tuple[int, int, int]:
        """Sorts domains that may take most of a group first."""
        slots = self._slots(item)
        takes = sum(min(counts[domain], pods) for counts, pods in slots)
        return -takes, -sum(counts[domain] for counts, _ in slots), domain

    def _shared(self, level: int, domain: int, other: int) -> range:
        """Domains of another level around or inside a domain."""
        if other >= level:
            return self.room.within(level, domain, other)
        for at in range(level, other, -1):
            domain = self.room.parent(at, domain)
        return range(domain, domain + 1)

    def _most(self, whole: Item, part: Item, at: int) -> Counts:
        """How many pods of a part, by shape, can be placed if the rest of the whole is."""
        kept = {item: list(item.loose) for item in whole.walk()}
        mine = list(part.walk())
        for item in mine:
            kept[item] = [0] * len(item.loose)
        order = sorted(mine, key=lambda item: (-item.level, -sum(item.loose)))
        places = [(item, shape) for item in order for shape, n in enumerate(item.loose) if n]
        self._keep(whole, kept, places, at)
        return tuple(map(sum, zip(*(kept[item] for item in mine), strict=True)))

    def _keep(
        self, whole: Item, kept: dict[Item, list[int]], places: Sequence[tuple[Item, int]], at: int
    ) -> None:
        """Keep as many pods as fit, of one group and shape after another.

        Whole ones in runs, each twice as long as the last; one by one where that fails.
        """
        parents = {child: item for item in whole.walk() for child in item.children}
        bounds: dict[Hashable, int] = {}
        done, run = 0, 1
        while done < len(places):
            some = places[done : done + run]
            if len(some) > 1:
                for item, shape in some:
                    kept[item][shape] = item.loose[shape]
                if self._holds(whole, kept, at):
                    done, run = done + run, 2 * run
                    continue
                for item, shape in some:
                    kept[item][shape] = 0
            item, shape = some[0]
            # A sibling that is alike gets no more than the one before it got.
            have = tuple(tuple(kept[inner]) for inner in item.walk())
            like = (parents.get(item), self.tables.equivalence_class(item), shape, have)
            self._fill(whole, kept, some[0], bounds.get(like, item.loose[shape]), at)
            bounds[like] = kept[item][shape]
            done, run = done + 1, 2 if kept[item][shape] == item.loose[shape] else 1

    def _fill(
        self, whole: Item, kept: dict[Item, list[int]], where: tuple[Item, int], pods: int, at: int
    ) -> None:
        """Keep as many pods of one shape as fit beside what is kept already."""
        item, shape = where
        low, high, tried = 0, pods, pods
        while low < high:
            kept[item][shape] = tried
            fits = self._holds(whole, kept, at)
            low, high = (tried, high) if fits else (low, tried - 1)
            tried = (low + high + 1) // 2
        kept[item][shape] = low

    def _holds(self, whole: Item, kept: dict[Item, list[int]], at: int) -> bool:
        """Whether what is kept fits; what is not decided in time does not: fewer are certain."""
        try:
            return solve(self.tables, _trimmed(whole, kept), self.counting, at) is not None
        except UndecidedError:
            return False

    def _nodes(self, item: Item, kept: Counts) -> int:
        """Empty nodes that take what is not kept, each shape its own; 0: no node takes one."""
        found = 0
        for shape, pods, have in zip(self.tables.shapes, item.total(), kept, strict=True):
            if pods > have:
                most = fits_empty(self.room, shape)
                if not most:
                    return 0
                found += -(-(pods - have) // most)
        return found


def shortages(room: Room, group_requests: TaskGroupRequests, steps: int) -> tuple[Shortage, ...]:
    """Why a task group has no place, the coarsest reason first.

    Args:
        room: as it is when the group's turn comes.
        group_requests: of a task group that `find_placement` refused.
        steps: for each question.

    Raises:
        UndecidedError: a question was not decided within these steps.
    """
    finder = _ShortageFinder(room, group_requests, steps)
    return tuple(finder.find(finder.root, 0))


def fits_empty(room: Room, shape: Shape) -> int:
    """Pods of a shape that the largest node takes when nothing else runs there."""
    needs = dict(shape.requests)
    needs["pods"] = needs.get("pods", 0) + 1
    best = 0
    for node in room.nodes:
        if node.name in shape.excluded:
            continue
        fits = min(node.allocatable.get(name, 0) // need for name, need in needs.items() if need)
        best = max(best, fits)
    return best


def _trimmed(item: Item, kept: dict[Item, list[int]]) -> Item:
    """A group with the pods that are kept; groups inside that have none are left out."""
    children = [_trimmed(child, kept) for child in item.children]
    loose: Counts = tuple(kept[item])
    return Item(item.level, loose, [child for child in children if any(child.total())])
