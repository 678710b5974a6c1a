"""Why a task group does not fit: which group finds no domain, and how much is missing.

Groups are processed in the order of the search, larger ones first. The report names the first
group that finds no domain, either by itself or next to the groups before it. The same search is
then repeated inside the domain that comes closest.

The number of pods that a domain fits is a lower bound: subgroups are added one by one, and with
several subgroups another order may fit a few more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from rackgate_osmo.explain import explanation
from rackgate_osmo.explain.placement import TaskGroupRequests, plan_of
from rackgate_osmo.explain.room import Room, Shape, format_path
from rackgate_osmo.explain.search import (
    Budget,
    Counts,
    FitTables,
    Item,
    UndecidedError,
    pack,
    solve,
)
from rackgate_osmo.model.workflow import Pool
from rackgate_osmo.render.node import Node

CLOSEST: Final = 3  # domains in which searches count the pods that fit
COUNTING: Final = 5  # steps for all counting together, as a multiple of those of one search
DEEPEST: Final = 16  # maximum depth of nested shortages
_NAMED: Final = 5  # subgroups named in a message


def shortages(
    room: Room, pool: Pool, group_requests: TaskGroupRequests, steps: int, top: int
) -> tuple[explanation.Shortage, ...]:
    """Why a task group does not fit, from the outermost group inwards.

    Args:
        room: nodes with the capacity that is free for this group.
        pool: gives the keys.
        group_requests: of a task group for which `find_placement` finds no placement.
        steps: for each search.
        top: domains to list for each shortage.

    Raises:
        UndecidedError: a search was not decided within these steps.
    """
    finder = _Finder(room, pool, group_requests, steps, top)
    return tuple(finder.find(finder.root, 0))


class _Finder:
    """Finds the shortages of one task group."""

    def __init__(
        self, room: Room, pool: Pool, group_requests: TaskGroupRequests, steps: int, top: int
    ) -> None:
        self.room, self.pool, self.steps, self.top = room, pool, steps, top
        self.counting = Budget(COUNTING * steps)
        self.tables = FitTables(room, group_requests.shapes)
        plan = plan_of(group_requests)
        self.root = plan.root
        nodes = {id(node): node for node in group_requests.nodes()}
        self.nodes = {item: nodes[at] for at, item in plan.items.items()}

    def find(self, item: Item, at: int, depth: int = 0) -> Iterator[explanation.Shortage]:
        """The shortages of a group that does not fit into a domain of its level."""
        children = self.tables.in_order(item.children)
        alone: dict[int, bool] = {}
        for child in children:
            likeness = self.tables.equivalence_class(child)
            if likeness not in alone:
                alone[likeness] = self._solve(item.level, [child], at) is not None
            if not alone[likeness]:
                found, best = self._short(self.tables, child, item.level, at)
                yield found
                if best is not None and depth < DEEPEST and child.children:
                    yield from self.find(child, best, depth + 1)
                return
        too_many = bisect_left(
            range(len(children) + 1),
            True,
            key=lambda number: self._solve(item.level, children[:number], at) is None,
        )
        if too_many <= len(children):
            yield self._shortage_after(
                children[: too_many - 1], children[too_many - 1], item.level, at
            )
        elif depth == 0:  # else the enclosing group is already reported
            kept = self._most(self.tables, item, at)
            path = self.room.path(item.level, at)
            yield self._entry(item, kept, [(path, sum(kept))], path)

    def _solve(self, level: int, children: Sequence[Item], at: int) -> dict[Item, int] | None:
        around = Item(level, (0,) * len(self.tables.shapes), children)
        return solve(self.tables, around, Budget(self.steps), at)

    def _shortage_after(
        self, earlier: Sequence[Item], child: Item, level: int, at: int
    ) -> explanation.Shortage:
        """The shortage of a group that fits alone, but not next to those before it."""
        left = self.room.copy()
        found = self._solve(level, earlier, at)
        packed = pack(self.tables, found or {}, Budget(self.steps))
        for (_, _, shape), nodes in (packed or {}).items():
            for node, pods in nodes.items():
                left.capacity.charge(node, dict(self.tables.shapes[shape].requests), pods)
        return self._short(FitTables(left, self.tables.shapes), child, level, at, earlier)[0]

    def _short(
        self,
        tables: FitTables,
        child: Item,
        level: int,
        at: int,
        earlier: Sequence[Item] = (),
    ) -> tuple[explanation.Shortage, int | None]:
        """The shortage of one group inside a domain, and the domain that comes closest."""
        inside = [
            domain
            for domain in self.room.within(level, at, child.level)
            if self.room.labelled(child.level, domain)
        ]
        # Domains that may fit most of the group first.
        by_shape = zip(tables.slots[child.level], child.total(), strict=True)
        slots = [(counts, n) for counts, n in by_shape if n]
        inside.sort(
            key=lambda domain: (
                -sum(min(counts[domain], pods) for counts, pods in slots),
                -sum(counts[domain] for counts, _ in slots),
                domain,
            )
        )
        counted = [(self._most(tables, child, domain), domain) for domain in inside[:CLOSEST]]
        counted.sort(key=lambda pair: (-sum(pair[0]), pair[1]))
        rooms = [(self.room.path(child.level, domain), sum(kept)) for kept, domain in counted]
        kept, best = counted[0] if counted else ((0,) * len(child.total()), None)
        return self._entry(child, kept, rooms, self.room.path(level, at), earlier), best

    def _most(self, tables: FitTables, item: Item, at: int) -> Counts:
        """How many of a group's pods, by shape, fit into a domain.

        Adds the pods of one subgroup and shape after another: complete sets in runs that double in
        length, and if a run fails, as many pods as fit. An undecided search counts as a failure.
        """
        kept = {one: [0] * len(one.loose) for one in item.walk()}
        order = sorted(kept, key=lambda one: (-one.level, -sum(one.loose)))
        parts = [(one, shape) for one in order for shape, n in enumerate(one.loose) if n]

        def holds(pods: int | None, some: Sequence[tuple[Item, int]]) -> bool:
            for one, shape in some:
                kept[one][shape] = one.loose[shape] if pods is None else pods
            try:
                return solve(tables, _trimmed(item, kept), self.counting, at) is not None
            except UndecidedError:
                return False

        done, run = 0, 1
        while done < len(parts):
            some = parts[done : done + run]
            if holds(None, some):
                done, run = done + run, 2 * run
                continue
            for one, shape in some:
                kept[one][shape] = 0
            if run == 1:
                one, shape = some[0]
                kept[one][shape] = bisect_left(
                    range(1, one.loose[shape]), True, key=lambda pods: not holds(pods, some)
                )
                done += 1
            run = 1
        return tuple(map(sum, zip(*kept.values(), strict=True)))

    def _missing_nodes(self, item: Item, kept: Counts) -> int:
        """Empty nodes needed for the missing pods, separately by shape; 0 if no node fits one."""
        found = 0
        for shape, pods, have in zip(self.tables.shapes, item.total(), kept, strict=True):
            if pods > have:
                most = fits_empty(self.room, shape)
                if not most:
                    return 0
                found += -(-(pods - have) // most)
        return found

    def _entry(
        self,
        item: Item,
        kept: Counts,
        rooms: Sequence[tuple[tuple[str, ...], int]],
        within: tuple[str, ...],
        earlier: Sequence[Item] = (),
    ) -> explanation.Shortage:
        node, pods, takes = self.nodes.get(item), sum(item.total()), sum(kept)
        found = explanation.Shortage(
            subgroup=node.name if node is not None else "",
            key=self.pool.topology_keys[node.level].key if node is not None else "",
            group=node.group if node is not None else "",
            pods=pods,
            takes=takes,
            missing=pods - takes,
            missing_nodes=self._missing_nodes(item, kept),
            rooms=tuple(
                explanation.DomainPods(domain=format_path(path), pods=n)
                for path, n in rooms[: self.top]
            ),
            within=format_path(within),
            beside=tuple(
                one.name or one.group or "all pods" for one in map(self.nodes.__getitem__, earlier)
            ),
            text="",
        )
        return msgspec.structs.replace(found, text=self._sentence(found, node))

    def _sentence(self, found: explanation.Shortage, node: Node | None) -> str:
        pods, missing = counted(found.pods, "pod"), f"{counted(found.missing, 'pod')} missing"
        if not self.room.nodes:
            return f"{pods}: there is no usable node"
        if not found.missing_nodes:
            missing += ", and no node is large enough, even if it is empty"
        else:
            missing += (
                f", for which {counted(found.missing_nodes, 'more empty node')} would suffice"
            )
        if node is None:
            return f"{pods}: the nodes fit {found.takes}, {missing}"
        who = f'group "{node.group}" of {pods}'
        inside = f" in {shown(found.within)}" if found.within else ""
        if found.beside:
            others = ", ".join(found.beside[:_NAMED])
            if len(found.beside) > _NAMED:
                others += f" and {len(found.beside) - _NAMED} more"
            return f"{who}: does not fit in any {found.key}{inside} next to {others}, {missing}"
        if not found.rooms:
            label = self.pool.topology_keys[node.level].label
            return f'{who}: no node{inside} has the label {label} of key "{found.key}"'
        best = shown(found.rooms[0].domain)
        closest = f"the best candidate, {best}, fits {found.takes}, {missing}"
        return f"{who}: does not fit in any single {found.key}{inside}; {closest}"


def fits_empty(room: Room, shape: Shape) -> int:
    """Pods of a shape that fit on the largest node if it is empty."""
    needs = dict(shape.requests)
    needs["pods"] = needs.get("pods", 0) + 1
    return max(
        (
            min(node.allocatable.get(name, 0) // need for name, need in needs.items() if need)
            for node in room.nodes
            if node.name not in shape.excluded
        ),
        default=0,
    )


def shown(path: Sequence[str]) -> str:
    """A domain as text."""
    return "/".join(value or "-" for value in path)


def counted(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _trimmed(item: Item, kept: dict[Item, list[int]]) -> Item:
    """The group with these numbers of pods; groups inside without pods are left out."""
    children = [_trimmed(child, kept) for child in item.children]
    return Item(item.level, tuple(kept[item]), [one for one in children if any(one.total())])
