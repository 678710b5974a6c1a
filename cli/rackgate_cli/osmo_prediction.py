"""What KAI does with a task group, where that follows from what is known of it; else, why not.

Three answers: it places the group (`osmo_certain`: whatever it chooses), it leaves it pending (one
of the reasons below rules every place out), or that cannot be known. None of them follows KAI's
own steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rackgate.partners.osmo import Built, KaiVersion
from rackgate.partners.osmo.parts import Part, hides_level, levels_of, part_of
from rackgate.partners.osmo.sizes import Requests, blown_up
from rackgate_cli.osmo_certain import (
    Certainty,
    Piece,
    largest,
    pieces_of,
)
from rackgate_cli.osmo_explanation import Deviation, KaiResult
from rackgate_cli.osmo_placing import solve
from rackgate_cli.osmo_room import Room, Shape
from rackgate_cli.osmo_search import Budget, Item, Tables, UndecidedError

UNLABELLED: Final = "unlabelled nodes"
ONE_DOMAIN: Final = "one-domain defect"
SIZES: Final = "mixed sizes"
SIBLINGS: Final = "sibling order"
DOTS: Final = "dots in label values"
GROUPS: Final = "task groups before"
UNTIED: Final = "nodes outside the pool"
CUT_OFF: Final = "search cut off"
PARTLY: Final = "partly running"

_NAMED: Final = 5  # subgroups and levels that a sentence names


@dataclass(frozen=True, slots=True)
class View:
    """The nodes as KAI sees them; nothing of it is charged with what the workflow asks for.

    Attributes:
        room: of the nodes that pods may use.
        labelled: of those of them that carry every label of the Topology.
        wide: of every node with all labels that KAI counts, whether or not pods may use it; pods
            that terminate take no room there.
        counted: label values of the nodes that KAI counts for certain, cordoned ones too.
        untied: nodes outside the pool that no node selector keeps the pods from.
    """

    room: Room
    labelled: Room
    wide: Room
    counted: Sequence[tuple[str, ...]]
    untied: int = 0

    @property
    def bare(self) -> int:
        """Nodes that pods may use, but no constraint."""
        return len(self.room.nodes) - len(self.labelled.nodes)

    def alike(self) -> tuple[str, str] | None:
        """Two domains that read alike once KAI has joined their values with dots."""
        seen: dict[str, tuple[str, ...]] = {}
        for path in self.wide.tree.paths[-1]:
            values = path[:-1]
            for depth in range(1, len(values) + 1):
                found = seen.setdefault(".".join(values[:depth]), values[:depth])
                if found != values[:depth]:
                    return "/".join(found), "/".join(values[:depth])
        return None


@dataclass(frozen=True, slots=True)
class Objects:
    """A task group's PodGroup of one profile.

    Attributes:
        name: of the PodGroup.
        top: the PodGroup.
        levels: node labels of the Topology.
        shapes: of its tasks, by name.
    """

    name: str
    top: Part
    levels: tuple[str, ...]
    shapes: Mapping[str, Shape]

    def of(self, part: Part) -> list[Shape]:
        """Shapes of a part's pods."""
        return [self.shapes[task] for task in part.tasks]

    def requests(self, part: Part) -> list[Requests]:
        """What a part's pods ask for."""
        return [self.shapes[task].requests for task in part.tasks]

    def pieces(self) -> list[Piece]:
        """Its pods as later groups meet them."""
        return list(pieces_of(self.top, self.shapes))

    def constrained(self) -> list[Part]:
        """The parts that name a level."""
        return [part for part in self.top.walk() if part.constrained]


@dataclass(frozen=True, slots=True)
class Foretold:
    """What KAI does with a task group, and why; nothing is said where it does what is possible."""

    result: KaiResult
    reasons: tuple[Deviation, ...] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """What is known when a task group has its turn.

    Attributes:
        before: pods of task groups that come first, wherever KAI puts them.
        alone: whether it fits without the workflow's other groups; None: not decided.
        crowded: it cannot fit beside the groups before it, which KAI places for certain.
    """

    before: Sequence[Piece]
    alone: bool | None
    crowded: bool


def objects_of(built: Built, index: int, group: str, shapes: Mapping[str, Shape]) -> Objects:
    """The PodGroup of the `index`-th task group."""
    name = built.pod_groups[index]["metadata"]["name"]
    return Objects(name, part_of(built, index, group), levels_of(built), shapes)


def foretell(
    view: View,
    objects: Objects,
    kai: KaiVersion,
    known: Known,
    steps: int,
) -> Foretold:
    """What KAI does with a PodGroup.

    Args:
        view: without the workflow's own pods.
        objects: what KAI is given.
        kai: the scheduler.
        known: of the task groups before, and of the exact search.
        steps: tries of a domain, should nodes without labels be searched apart.
    """
    constrained = objects.constrained()
    if constrained and (pair := view.alike()) is not None:
        return Foretold("unknown", (_dots(*pair),))
    if known.alone is not False and _certain(view, objects, kai).places(objects.top, known.before):
        return Foretold("scheduled")
    if view.untied:
        return Foretold("unknown", (_untied(view),))
    if known.alone is None:
        return Foretold("unknown", (_cut_off(),))
    if not known.alone or known.crowded:
        return Foretold("pending")
    if constrained:
        found = (
            _unlabelled(view, objects, constrained, steps),
            _one_domain(view, objects, kai),
            _mixed(view, objects, constrained),
        )
        if any(found):
            return Foretold("pending", tuple(one for one in found if one is not None))
    return Foretold("unknown", tuple(_doubts(view, objects, kai, known.before)))


def _certain(view: View, objects: Objects, kai: KaiVersion) -> Certainty:
    return Certainty(view.room, objects.shapes, kai, view.counted)


# -- what rules every place out --------------------------------------------------------------


def _unlabelled(
    view: View, objects: Objects, constrained: Sequence[Part], steps: int
) -> Deviation | None:
    """Nodes with all labels alone do not hold the pods that a constraint is about."""
    if not view.bare:
        return None
    tasks = {task for part in constrained for task in part.tasks}
    shapes = tuple(dict.fromkeys(objects.shapes[task] for task in objects.shapes if task in tasks))
    root = _item(objects, objects.top, shapes, tasks, 0)
    try:
        if solve(Tables(view.labelled, shapes), root, Budget(steps)) is not None:
            return None
    except UndecidedError:
        return None
    lacking = {
        label: sum(label not in node.labels for node in view.room.nodes) for label in objects.levels
    }
    shown = ", ".join(f"{label} on {count}" for label, count in lacking.items() if count)
    return Deviation(
        name=UNLABELLED,
        text=f"{view.bare} of {len(view.room.nodes)} nodes lack a label of the Topology ({shown}); "
        "for any constraint, also a mere preference, KAI counts only nodes that carry all of its "
        "labels, also those of keys that the workflow does not use",
        help="label these nodes, or take the keys that they lack out of the pool",
    )


def _item(
    objects: Objects, part: Part, shapes: Sequence[Shape], tasks: set[str], level: int
) -> Item:
    """A part as the search has it: groups are the parts that require a level."""
    loose = [0] * len(shapes)
    children: list[Item] = []

    def gather(part: Part) -> None:
        for below in part.parts:
            if below.required is None:
                gather(below)
            else:
                inner = below.required + 1
                children.append(_item(objects, below, shapes, tasks, inner))
        if not part.parts:
            for task in part.tasks:
                if task in tasks:
                    loose[shapes.index(objects.shapes[task])] += 1

    if level == 0 and part.required is not None:
        children.append(_item(objects, part, shapes, tasks, part.required + 1))
    else:
        gather(part)
    return Item(level, tuple(loose), children)


def _one_domain(view: View, objects: Objects, kai: KaiVersion) -> Deviation | None:
    """All nodes with labels are in one domain below a level that nothing above narrows down."""
    finest = len(objects.levels) - 1
    paths = [path[:-1] for path in view.wide.tree.paths[-1]]
    open_parts = [objects.top]
    while open_parts:
        part = open_parts.pop()
        if not part.constrained:
            open_parts += part.parts
        elif hides_level(part, finest, kai):
            level = part.required if part.required is not None else part.preferred
            if level is not None and len({path[: level + 2] for path in paths}) == 1:
                return _one_domain_told(objects, level)
    return None


def _one_domain_told(objects: Objects, level: int) -> Deviation:
    return Deviation(
        name=ONE_DOMAIN,
        text="the nodes that KAI chooses from, cordoned ones among them, all lie in one domain of "
        f"a finer level, and then it does not see the level that is asked for "
        f"({objects.levels[level]})",
        help="require the pool's finest key instead, or add nodes in a second domain of "
        f"{objects.levels[-1]}",
    )


def _mixed(view: View, objects: Objects, constrained: Sequence[Part]) -> Deviation | None:
    """No domain has room for a part if each pod is as large as the largest."""
    for part in constrained:
        shapes = objects.of(part)
        if not blown_up(objects.requests(part)):
            continue
        big = Shape(largest(shapes).requests)
        level = 0 if part.required is None else part.required + 1
        room = max(view.wide.sums(level, view.wide.fits(big)), default=0)
        if room < len(shapes):
            where = objects.levels[level - 1] if level else "the nodes"
            told = f"no {where} has" if level else f"{where} have"
            return _mixed_told(part, f"so {told} room for its {len(shapes)} pods")
    return None


def _mixed_told(part: Part, what: str) -> Deviation:
    who = f'subgroup "{part.name}"' if part.name else "the PodGroup"
    return Deviation(
        name=SIZES,
        text=f"the pods of {who} are of several sizes, and KAI counts each as large as the "
        f"largest, resource by resource: {what}",
        help="give its tasks one size, or put tasks of another size into a task group of their own",
    )


# -- what leaves it open ---------------------------------------------------------------------


def _doubts(
    view: View, objects: Objects, kai: KaiVersion, before: Sequence[Piece]
) -> Iterator[Deviation]:
    """What may keep KAI from a place that is there."""
    told = False
    for one in _of_parts(view, objects, kai):
        told = True
        yield one
    if before:
        yield Deviation(
            name=GROUPS,
            text="KAI takes the workflow's task groups one after another, those of one age by the "
            "names of their PodGroups, and what is left for this one depends on where it puts "
            "those before",
            help="submit this group first",
        )
    elif not told:
        yield _siblings(objects, objects.top)


def _of_parts(view: View, objects: Objects, kai: KaiVersion) -> Iterator[Deviation]:
    certain = _certain(view, objects, kai)
    for part, nested in _with_nesting(objects.top, bound=False):
        if part.constrained and _may_hide_anywhere(view, certain, part, nested):
            level = part.required if part.required is not None else part.preferred
            yield _one_domain_told(objects, level or 0)
            break
    mixed = [part for part in objects.top.walk() if len(set(objects.requests(part))) > 1]
    if mixed:
        blown = [one for one in mixed if one.constrained and blown_up(objects.requests(one))]
        if blown:
            yield _mixed_told(blown[-1], "a domain that holds them may seem too small to it")
        else:
            yield Deviation(
                name=SIZES,
                text="pods of several sizes share nodes, and KAI puts one pod after another on a "
                "node without going back",
                help="give the tasks one size",
            )
    for part in objects.top.walk():
        if len(part.parts) > 1:
            yield _siblings(objects, part)
            break


def _with_nesting(part: Part, *, bound: bool) -> Iterator[tuple[Part, bool]]:
    yield part, bound
    for below in part.parts:
        yield from _with_nesting(below, bound=bound or part.constrained)


def _may_hide_anywhere(view: View, certain: Certainty, part: Part, nested: bool) -> bool:
    own = part.required if part.required is not None else part.preferred
    levels = range((own or 0) + 1) if nested else range(1)
    return any(
        certain.may_hide(part, level=level, domain=domain, nested=nested)
        for level in levels
        for domain in range(view.room.domains(level))
        if view.room.labelled(level, domain)
    )


def _siblings(objects: Objects, part: Part) -> Deviation:
    names = [below.name for below in part.order()]
    shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return Deviation(
        name=SIBLINGS,
        text="KAI places subgroups one after another in the order of their names "
        f"({shown or objects.name}) and does not go back: where it puts the first decides whether "
        "the others find room",
        help="rename groups so that larger ones sort first",
    )


def _dots(one: str, other: str) -> Deviation:
    return Deviation(
        name=DOTS,
        text=f"KAI joins label values with dots and takes {one} and {other} for one domain: it may "
        "place a group over both although one is required",
        help="take the dots out of the node labels' values, or make the values of the finer key "
        "unique in the cluster",
    )


def _untied(view: View) -> Deviation:
    return Deviation(
        name=UNTIED,
        text=f"{view.untied} other nodes of the cluster are not among those that -l chooses, and "
        "the pods carry no node selector that keeps them away from there",
        help="name the labels of the pool's nodes in the pool's node_selector",
    )


def _cut_off() -> Deviation:
    return Deviation(
        name=CUT_OFF,
        text="whether there is a place was not decided",
        help="give the search more --steps",
    )


def partly(running: int, pods: int) -> Foretold:
    """Of a task group of which some pods run."""
    reason = Deviation(
        name=PARTLY,
        text=f"{running} of {pods} pods are on nodes, and KAI places the others beside them",
        help="delete the pods that run to have the whole group placed anew, or wait",
    )
    return Foretold("unknown", (reason,))
