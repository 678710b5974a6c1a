"""What KAI would do with a PodGroup: its own way of choosing domains, followed step by step.

Not a scheduler, but the part of one that decides about topology. Observed on KAI v0.10, v0.12 and
v0.13, and rebuilt from that:

- Only nodes that carry the label of every level of the Topology count for a constraint.
- The candidates shrink to the lowest domain that holds them all, and levels above it are not seen.
- Levels are tried from the preferred one up to the required one; of a level the fullest domain
  that is large enough comes first.
- Siblings come one after another in the byte order of their names, groups before leaves. A group
  is tried in each of its domains; a sibling that is placed stays where it is.
- Domains are told apart by their label values joined with dots.

Each of these can be switched off, to find out which of them keeps a PodGroup waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from rackgate.partners.osmo import KaiVersion
from rackgate_assigner.core.topology.tree import PODS
from rackgate_cli.osmo_room import MISSING, Room, Shape
from rackgate_cli.osmo_search import Budget

_WORK: Final = 20  # looks that take as long as it takes to count what a node takes


class Habit(StrEnum):
    """A way of KAI that can keep a workflow waiting although there is room."""

    UNLABELLED = "unlabelled nodes"
    ONE_DOMAIN = "one-domain defect"
    SIBLINGS = "sibling order"
    DOTS = "dots in label values"


class NeverError(Exception):
    """KAI would not even try: a constraint names a level that the Topology does not list."""


@dataclass(slots=True)
class Part:
    """A PodGroup or one of its subgroups.

    Attributes:
        required: index of a level of the Topology, or None.
        preferred: likewise.
        shapes: of its pods, one each; of those below, too.
        kinds: how many pods there are of each shape.
    """

    name: str
    required: int | None
    preferred: int | None
    parts: list[Part] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    kinds: Mapping[Shape, int] = field(default_factory=dict)

    def order(self, *, by_size: bool) -> list[Part]:
        """Its parts in the order in which they are placed."""
        if by_size:
            return sorted(self.parts, key=lambda part: (-len(part.shapes), part.name))
        return sorted(self.parts, key=lambda part: (not part.parts, part.name.encode()))

    def walk(self) -> Iterator[Part]:
        """This part and all below."""
        yield self
        for part in self.parts:
            yield from part.walk()


def parts_of(
    pod_group: Mapping[str, Any], levels: Sequence[str], members: Mapping[str, Sequence[Shape]]
) -> Part:
    """A PodGroup as a tree.

    Args:
        pod_group: the object.
        levels: node labels of the Topology.
        members: shapes of the pods by subgroup label; "" for pods without one.

    Raises:
        NeverError: a constraint names a level that is not among `levels`.
    """
    spec = pod_group["spec"]
    top = _part("", spec, levels)
    top.shapes = [shape for shapes in members.values() for shape in shapes]
    found = {"": top}
    listed = spec.get("subGroups", ())
    for sub in listed:
        found[sub["name"]] = _part(sub["name"], sub, levels)
    for sub in listed:
        part = found[sub["name"]]
        found[sub.get("parent", "")].parts.append(part)
        part.shapes += members.get(part.name, ())
    _gather(top)
    return top


def _part(name: str, spec: Mapping[str, Any], levels: Sequence[str]) -> Part:
    constraint = spec.get("topologyConstraint", {})
    named = [constraint.get(f"{kind}TopologyLevel") for kind in ("required", "preferred")]
    if any(level is not None and level not in levels for level in named):
        raise NeverError
    required, preferred = (None if level is None else levels.index(level) for level in named)
    return Part(name, required, preferred)


def _gather(part: Part) -> None:
    if part.parts:
        for below in part.parts:
            _gather(below)
        part.shapes = [shape for below in part.parts for shape in below.shapes]
    part.kinds = Counter(part.shapes)


class Scheduler:
    """KAI at work on a snapshot."""

    def __init__(
        self,
        room: Room,
        levels: Sequence[str],
        kai: KaiVersion = KaiVersion.V0_13,
        without: Collection[Habit] = (),
    ) -> None:
        """Prepare.

        Args:
            room: only read.
            levels: node labels of the Topology, coarsest first.
            kai: which KAI.
            without: habits to leave out.
        """
        self.room, self.levels, self.kai = room, levels, kai
        self.without = frozenset(without)
        self.free = {name: room.free(name) for name in room.capacity.resources}
        self.none = [0] * len(room.nodes)
        self.paths = [self._path(node.labels) for node in room.nodes]
        self.names = [self._domains(path or ()) for path in self.paths]
        self.taken: list[tuple[int, Shape]] = []
        self.where: list[tuple[str, int, Shape]] = []
        self._needs: dict[Shape, list[tuple[list[int], int]]] = {}
        # What nodes take, by shape, and how many of the changes it has seen.
        self._rooms: dict[Shape, tuple[list[int], int]] = {}
        self.changed: list[int] = []
        # Node sets told apart once, by identity: each is kept, so that no other gets its `id`.
        self._splits: dict[tuple[int, int], tuple[Sequence[int], dict[str, list[int]]]] = {}
        self._labelled: dict[int, tuple[Sequence[int], list[int]]] = {}
        self.budget = Budget(0)

    def place(self, top: Part, steps: int) -> bool:
        """Whether the PodGroup is scheduled; its pods are then in `where`.

        Raises:
            UndecidedError: not seen within so many steps (looks at what a node takes).
        """
        self.budget = Budget(steps)
        self.where = []
        return self._group(top, range(len(self.paths)))

    def _path(self, labels: Mapping[str, str]) -> tuple[str, ...] | None:
        lenient = Habit.UNLABELLED in self.without
        found = tuple(labels.get(level, MISSING) for level in self.levels)
        return found if lenient or MISSING not in found else None

    def _domains(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """What KAI calls the domains of a node, by number of levels."""
        join = "\n" if Habit.DOTS in self.without else "."
        return tuple(join.join(path[:depth]) for depth in range(len(self.levels) + 1))

    def _group(self, part: Part, nodes: Sequence[int]) -> bool:
        """Place a part on one of the node sets that its constraint leaves."""
        for candidates in self._subsets(part, nodes):
            before, seen = len(self.taken), len(self.where)
            if self._inside(part, candidates):
                return True
            self._undo(before, seen)
        return False

    def _inside(self, part: Part, nodes: Sequence[int]) -> bool:
        if not part.parts:
            return self._pods(part, nodes)
        by_size = Habit.SIBLINGS in self.without
        return all(self._group(below, nodes) for below in part.order(by_size=by_size))

    def _subsets(self, part: Part, nodes: Sequence[int]) -> list[Sequence[int]]:
        """Node sets to try, in order."""
        if part.required is None and part.preferred is None:
            return [nodes]
        counted = self._counted(nodes)
        if not counted:
            return []
        lowest = self._lowest(counted)
        found: list[Sequence[int]] = []
        for depth in self._depths(part, lowest):
            found += self._sorted(part, counted, lowest, depth)
        if not found and self._widens(part, lowest):
            found = [counted] if self._holds(part, counted) else []
        return found

    def _counted(self, nodes: Sequence[int]) -> list[int]:
        """Nodes that carry all labels."""
        known = self._labelled.get(id(nodes))
        if known is None:
            self.budget.spend(len(nodes))
            known = nodes, [node for node in nodes if self.paths[node] is not None]
            self._labelled[id(nodes)] = known
        return known[1]

    def _sorted(
        self, part: Part, nodes: Sequence[int], lowest: int, depth: int
    ) -> list[Sequence[int]]:
        """Domains of a level that hold a part: the fullest first, the coarser levels' before."""
        rooms = self._rooms_for(part)
        around = {
            at: {name: self._pods_in(rooms, some) for name, some in self._split(nodes, at).items()}
            for at in range(min(lowest + 1, depth), depth + 1)
        }

        def fullness(some: Sequence[int]) -> list[tuple[int, str]]:
            names = self.names[some[0]]
            return [(sizes[names[at]], names[at]) for at, sizes in around.items()]

        def holds(name: str, some: Sequence[int]) -> bool:
            if len(part.kinds) == 1:
                return around[depth][name] >= len(part.shapes)
            return self._holds(part, some)

        domains = self._split(nodes, depth).items()
        return sorted((some for name, some in domains if holds(name, some)), key=fullness)

    def _lowest(self, nodes: Sequence[int]) -> int:
        """Number of levels at which all nodes are in one domain."""
        depth = 0
        while depth < len(self.levels) and len(self._split(nodes, depth + 1)) == 1:
            depth += 1
        return depth

    def _depths(self, part: Part, lowest: int) -> list[int]:
        """Numbers of levels to tell domains apart by, the finest first; 0: no domain."""
        coarsest = 0 if part.required is None else part.required + 1
        finest = coarsest if part.preferred is None else part.preferred + 1
        depths = list(range(finest, coarsest - 1, -1))
        if Habit.ONE_DOMAIN in self.without:
            return depths
        return [depth for depth in depths if depth >= lowest]

    def _widens(self, part: Part, lowest: int) -> bool:
        """Whether a preference lets KAI take the lowest common domain where no level is seen."""
        if part.preferred is None:
            return False
        if part.required is None:
            return self.kai is not KaiVersion.V0_10
        return self.kai is KaiVersion.V0_13 and lowest > part.required

    def _split(self, nodes: Sequence[int], depth: int) -> dict[str, list[int]]:
        known = self._splits.get((id(nodes), depth))
        if known is None:
            known = self._splits[id(nodes), depth] = nodes, self._divided(nodes, depth)
        return known[1]

    def _divided(self, nodes: Sequence[int], depth: int) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        self.budget.spend(len(nodes) * _WORK)
        for node in nodes:
            found.setdefault(self.names[node][depth], []).append(node)
        return found

    def _pods_in(self, rooms: Sequence[Sequence[int]], nodes: Sequence[int]) -> int:
        """How many pods of a part would fit into a domain, for comparing."""
        self.budget.spend(len(nodes) * len(rooms))
        return sum([sum(map(counts.__getitem__, nodes)) for counts in rooms])

    def _rooms_for(self, part: Part) -> list[list[int]]:
        """What nodes take now of each shape of a part."""
        return [self._room(shape) for shape in part.kinds]

    def _holds(self, part: Part, nodes: Sequence[int]) -> bool:
        """Whether a domain has room for a part, as far as sums can tell."""
        if len(part.kinds) == 1:
            return self._pods_in(self._rooms_for(part), nodes) >= len(part.shapes)
        self.budget.spend((len(nodes) + len(part.kinds) * _WORK) * len(self.free))
        return all(
            sum(_amount(shape, name) * pods for shape, pods in part.kinds.items())
            <= sum(map(free.__getitem__, nodes))
            for name, free in self.free.items()
        )

    def _pods(self, part: Part, nodes: Sequence[int]) -> bool:
        """Place the pods of a leaf, each on the fullest node that takes it."""
        order = self._ordered(part, nodes)
        self.budget.spend((len(order) + len(part.shapes)) * _WORK)
        at: dict[Shape, int] = {}
        for shape in part.shapes:
            # What was full for a pod of this shape stays full.
            index = at.get(shape, 0)
            while index < len(order) and not self._fits(shape, order[index]):
                index += 1
            at[shape] = index
            if index == len(order):
                return False
            self._take(part.name, order[index], shape)
        return True

    def _ordered(self, part: Part, nodes: Sequence[int]) -> list[int]:
        shape = part.shapes[0] if part.shapes else Shape()
        fits = self._room(shape)
        order = sorted(nodes, key=lambda node: (fits[node], node))
        if part.preferred is None or any(self.paths[node] is None for node in nodes):
            return order
        domains = self._divided(order, part.preferred + 1)
        sizes = {name: sum(map(fits.__getitem__, inside)) for name, inside in domains.items()}
        by_size = sorted(domains, key=lambda name: (-sizes[name], name))
        return [node for name in by_size for node in domains[name]]

    def _room(self, shape: Shape) -> list[int]:
        """How many pods of a shape each node takes now; not to be changed, nor kept."""
        found, seen = self._rooms.get(shape, ([], -1))
        stale: Collection[int] = set(self.changed[seen:])
        if seen < 0:
            stale = range(len(self.paths))
            found = [0] * len(stale)
        self.budget.spend(len(stale) * _WORK)
        for node in stale:
            found[node] = self._fits(shape, node)
        self._rooms[shape] = found, len(self.changed)
        return found

    def _fits(self, shape: Shape, node: int) -> int:
        if self.room.nodes[node].name in shape.excluded:
            return 0
        needs = self._needs.get(shape)
        if needs is None:
            names = {PODS, *(name for name, _ in shape.requests)}
            needs = [(self.free.get(name, self.none), _amount(shape, name)) for name in names]
            self._needs[shape] = needs
        return max(0, min(free[node] // need for free, need in needs))

    def _take(self, part: str, node: int, shape: Shape, sign: int = 1) -> None:
        for free, need in self._needs[shape]:
            free[node] -= sign * need
        self.changed.append(node)
        if sign > 0:
            self.taken.append((node, shape))
            self.where.append((part, node, shape))

    def _undo(self, before: int, seen: int) -> None:
        for node, shape in reversed(self.taken[before:]):
            self._take("", node, shape, -1)
        del self.taken[before:]
        del self.where[seen:]


def _amount(shape: Shape, resource: str) -> int:
    return dict(shape.requests).get(resource, 0) + (resource == PODS)


def broken(top: Part, scheduler: Scheduler) -> list[str]:
    """Names of parts whose pods do not share the domain that was required; "" for the PodGroup."""
    found = []
    for part in top.walk():
        if part.required is None:
            continue
        names = {below.name for below in part.walk()}
        paths = {
            (scheduler.paths[node] or ())[: part.required + 1]
            for name, node, _ in scheduler.where
            if name in names
        }
        if len(paths) > 1:
            found.append(part.name)
    return found
