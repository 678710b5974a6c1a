"""What KAI does with a task group, where that follows from what is known of it; else, why not.

Three answers: it places the group (`osmo_certain`: whatever it chooses), it leaves it pending (one
of the reasons below rules every place out), or that cannot be known. None of them follows KAI's
own steps.

A group is judged as if it came first among those of its workflow; `osmo_turns` goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rackgate_osmo import Built, KaiVersion, TaskGroup, Workflow
from rackgate_osmo.explain import reasons
from rackgate_osmo.explain.certainty import Certainty, Piece, largest, pieces_of
from rackgate_osmo.explain.explanation import Deviation, KaiResult
from rackgate_osmo.explain.nodes import View
from rackgate_osmo.explain.placing import solve
from rackgate_osmo.explain.room import Shape
from rackgate_osmo.explain.search import Budget, Item, Tables, UndecidedError
from rackgate_osmo.model.sizes import Requests, blown_up, is_sized
from rackgate_osmo.render.parts import Part, hides_level, levels_of, part_of


@dataclass(frozen=True, slots=True)
class Objects:
    """A task group's PodGroup of one profile.

    Attributes:
        name: of the PodGroup.
        top: the PodGroup.
        levels: node labels of the Topology.
        shapes: of its tasks, by name.
        unsized: tasks whose pods request nothing, and whose shape is one cpu all the same.
    """

    name: str
    top: Part
    levels: tuple[str, ...]
    shapes: Mapping[str, Shape]
    unsized: int = 0

    def of(self, part: Part) -> list[Shape]:
        """Shapes of a part's pods."""
        return [self.shapes[task] for task in part.tasks]

    def requests(self, part: Part) -> list[Requests]:
        """What a part's pods ask for."""
        return [self.shapes[task].requests for task in part.tasks]

    def pieces(self) -> list[Piece]:
        """Its pods as later groups meet them."""
        return list(pieces_of(self.top, self.shapes))

    def missing(self, running: int) -> list[Piece]:
        """The same of the pods that do not run, which may be those of any of its tasks."""
        pods = len(self.top.tasks) - running
        return [Piece(0, {largest(self.of(self.top)): pods})] if pods else []

    def constrained(self) -> list[Part]:
        """The parts that name a level."""
        return [part for part in self.top.walk() if part.constrained]


@dataclass(frozen=True, slots=True)
class Foretold:
    """What KAI does with a task group, and why; nothing is said where it does what is possible."""

    result: KaiResult
    reasons: tuple[Deviation, ...] = ()


def objects_of(
    built: Built, workflow: Workflow, index: int, shapes: Mapping[str, Shape]
) -> Objects:
    """The PodGroup of the `index`-th task group."""
    name = built.pod_groups[index]["metadata"]["name"]
    group = workflow.groups[index]
    part = part_of(built, index, group.name)
    return Objects(name, part, levels_of(built), shapes, unsized_in(workflow, group))


def unsized_in(workflow: Workflow, group: TaskGroup) -> int:
    """Tasks of a group of which `apply` makes pods that request nothing."""
    made = (task for task in group.tasks if task.image is not None)
    return sum(not is_sized(workflow.resource_of(task)) for task in made)


def foretell(
    view: View,
    objects: Objects,
    certain: Certainty,
    alone: bool | None,
    steps: int,
) -> Foretold:
    """What KAI does with a PodGroup that comes first among those of its workflow.

    Args:
        view: without the workflow's pending pods.
        objects: what KAI is given.
        certain: of the view.
        alone: whether it fits without the other groups, once the pods that terminate are gone;
            None: not decided.
        steps: tries of a domain, should nodes without labels be searched apart.
    """
    constrained = objects.constrained()
    if constrained and view.alike is not None:
        return Foretold("unknown", (reasons.dots(*view.alike),))
    if alone is not False and certain.places(objects.top, objects.shapes, ()):
        return Foretold("scheduled")
    if view.untied:
        return Foretold("unknown", (reasons.untied(view.untied),))
    if alone is None:
        return Foretold("unknown", (reasons.cut_off(),))
    # Pods may take less than is counted for them; then nothing follows from a lack of room.
    exact = not objects.unsized
    if exact and not alone:
        return Foretold("pending")
    if constrained:
        found = (
            _unlabelled(view, objects, constrained, steps) if exact else None,
            _one_domain(view, objects, certain.kai),
            _mixed(view, objects, constrained) if exact else None,
        )
        if any(found):
            return Foretold("pending", tuple(one for one in found if one is not None))
    return Foretold("unknown", tuple(_doubts(view, objects, certain)))


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
    return reasons.unlabelled(view, objects.levels)


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
                return reasons.one_domain(objects.levels, level)
    return None


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
            return reasons.mixed(part, f"so {told} room for its {len(shapes)} pods")
    return None


# -- what leaves it open ---------------------------------------------------------------------


def _doubts(view: View, objects: Objects, certain: Certainty) -> Iterator[Deviation]:
    """What may keep KAI from a place that is there, or give it one that is not."""
    told = [*_of_room(view, objects), *_of_parts(view, objects, certain)]
    yield from told or [reasons.siblings(objects.top, objects.name)]


def _of_room(view: View, objects: Objects) -> Iterator[Deviation]:
    """Where KAI counts other room than is counted here."""
    if objects.unsized:
        yield reasons.unsized(objects.unsized)
    if view.leaving:
        yield reasons.leaving(view.leaving)


def _of_parts(view: View, objects: Objects, certain: Certainty) -> Iterator[Deviation]:
    for part, nested in _with_nesting(objects.top, bound=False):
        if part.constrained and _may_hide_anywhere(view, certain, part, nested):
            level = part.required if part.required is not None else part.preferred
            yield reasons.one_domain(objects.levels, level or 0)
            break
    mixed = [part for part in objects.top.walk() if len(set(objects.requests(part))) > 1]
    if mixed:
        blown = [one for one in mixed if one.constrained and blown_up(objects.requests(one))]
        if blown:
            yield reasons.mixed(blown[-1], "a domain that holds them may seem too small to it")
        else:
            yield reasons.packing()
    for part in objects.top.walk():
        if len(part.parts) > 1:
            yield reasons.siblings(part, objects.name)
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
