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
from rackgate_osmo.explain.certainty import Certainty, PodBatch, largest, pod_batches_of
from rackgate_osmo.explain.explanation import Deviation, KaiResult
from rackgate_osmo.explain.nodes import KaiView
from rackgate_osmo.explain.placement import solve
from rackgate_osmo.explain.room import Shape
from rackgate_osmo.explain.search import Budget, FitTables, Item, UndecidedError
from rackgate_osmo.model.sizes import Requests, is_overcounted, is_sized
from rackgate_osmo.render.subgroups import SubGroup, hides_level, levels_of, subgroup_of_built


@dataclass(frozen=True, slots=True)
class KaiPodGroup:
    """A task group's PodGroup of one profile.

    Attributes:
        name: of the PodGroup.
        top: the PodGroup.
        levels: node labels of the Topology.
        shapes: of its tasks, by name.
        unsized: tasks whose pods request nothing, and whose shape is one cpu all the same.
    """

    name: str
    top: SubGroup
    levels: tuple[str, ...]
    shapes: Mapping[str, Shape]
    unsized: int = 0

    def shapes_of(self, subgroup: SubGroup) -> list[Shape]:
        """Shapes of a part's pods."""
        return [self.shapes[task] for task in subgroup.tasks]

    def requests(self, subgroup: SubGroup) -> list[Requests]:
        """What a part's pods ask for."""
        return [self.shapes[task].requests for task in subgroup.tasks]

    def pod_batches(self) -> list[PodBatch]:
        """Its pods as later groups meet them."""
        return list(pod_batches_of(self.top, self.shapes))

    def not_running(self, running: int) -> list[PodBatch]:
        """The same of the pods that do not run, which may be those of any of its tasks."""
        pods = len(self.top.tasks) - running
        return [PodBatch(0, {largest(self.shapes_of(self.top)): pods})] if pods else []

    def constrained(self) -> list[SubGroup]:
        """The parts that name a level."""
        return [subgroup for subgroup in self.top.walk() if subgroup.constrained]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What KAI does with a task group, and why; nothing is said where it does what is possible."""

    result: KaiResult
    reasons: tuple[Deviation, ...] = ()


def kai_pod_group_of(
    built: Built, workflow: Workflow, index: int, shapes: Mapping[str, Shape]
) -> KaiPodGroup:
    """The PodGroup of the `index`-th task group."""
    name = built.pod_groups[index]["metadata"]["name"]
    group = workflow.groups[index]
    subgroup = subgroup_of_built(built, index, group.name)
    return KaiPodGroup(name, subgroup, levels_of(built), shapes, unsized_in(workflow, group))


def unsized_in(workflow: Workflow, group: TaskGroup) -> int:
    """Tasks of a group of which `apply` makes pods that request nothing."""
    made = (task for task in group.tasks if task.image is not None)
    return sum(not is_sized(workflow.resource_of(task)) for task in made)


def predict(
    view: KaiView,
    objects: KaiPodGroup,
    certain: Certainty,
    alone: bool | None,
    steps: int,
) -> Prediction:
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
    if constrained and view.ambiguous_domains is not None:
        return Prediction("unknown", (reasons.dots(*view.ambiguous_domains),))
    if alone is not False and certain.places(objects.top, objects.shapes, ()):
        return Prediction("scheduled")
    if view.outside_pool:
        return Prediction("unknown", (reasons.outside_pool(view.outside_pool),))
    if alone is None:
        return Prediction("unknown", (reasons.search_limit(),))
    # Pods may take less than is counted for them; then nothing follows from a lack of room.
    exact = not objects.unsized
    if exact and not alone:
        return Prediction("pending")
    if constrained:
        found = (
            _unlabelled(view, objects, constrained, steps) if exact else None,
            _one_domain(view, objects, certain.kai),
            _mixed(view, objects, constrained) if exact else None,
        )
        if any(found):
            return Prediction("pending", tuple(one for one in found if one is not None))
    return Prediction("unknown", tuple(_uncertain_reasons(view, objects, certain)))


# -- what rules every place out --------------------------------------------------------------


def _unlabelled(
    view: KaiView, objects: KaiPodGroup, constrained: Sequence[SubGroup], steps: int
) -> Deviation | None:
    """Nodes with all labels alone do not hold the pods that a constraint is about."""
    if not view.unlabelled:
        return None
    tasks = {task for subgroup in constrained for task in subgroup.tasks}
    shapes = tuple(dict.fromkeys(objects.shapes[task] for task in objects.shapes if task in tasks))
    root = _item(objects, objects.top, shapes, tasks, 0)
    try:
        if solve(FitTables(view.labelled, shapes), root, Budget(steps)) is not None:
            return None
    except UndecidedError:
        return None
    return reasons.unlabelled(view, objects.levels)


def _item(
    objects: KaiPodGroup, subgroup: SubGroup, shapes: Sequence[Shape], tasks: set[str], level: int
) -> Item:
    """A part as the search has it: groups are the parts that require a level."""
    loose = [0] * len(shapes)
    children: list[Item] = []

    def gather(subgroup: SubGroup) -> None:
        for below in subgroup.children:
            if below.required is None:
                gather(below)
            else:
                inner = below.required + 1
                children.append(_item(objects, below, shapes, tasks, inner))
        if not subgroup.children:
            for task in subgroup.tasks:
                if task in tasks:
                    loose[shapes.index(objects.shapes[task])] += 1

    if level == 0 and subgroup.required is not None:
        children.append(_item(objects, subgroup, shapes, tasks, subgroup.required + 1))
    else:
        gather(subgroup)
    return Item(level, tuple(loose), children)


def _one_domain(view: KaiView, objects: KaiPodGroup, kai: KaiVersion) -> Deviation | None:
    """All nodes with labels are in one domain below a level that nothing above narrows down."""
    finest = len(objects.levels) - 1
    paths = [path[:-1] for path in view.all_labelled.tree.paths[-1]]
    open_parts = [objects.top]
    while open_parts:
        subgroup = open_parts.pop()
        if not subgroup.constrained:
            open_parts += subgroup.children
        elif hides_level(subgroup, finest, kai):
            level = subgroup.required if subgroup.required is not None else subgroup.preferred
            if level is not None and len({path[: level + 2] for path in paths}) == 1:
                return reasons.one_domain(objects.levels, level)
    return None


def _mixed(
    view: KaiView, objects: KaiPodGroup, constrained: Sequence[SubGroup]
) -> Deviation | None:
    """No domain has room for a part if each pod is as large as the largest."""
    for subgroup in constrained:
        shapes = objects.shapes_of(subgroup)
        if not is_overcounted(objects.requests(subgroup)):
            continue
        big = Shape(largest(shapes).requests)
        level = 0 if subgroup.required is None else subgroup.required + 1
        room = max(view.all_labelled.sums(level, view.all_labelled.fits(big)), default=0)
        if room < len(shapes):
            where = objects.levels[level - 1] if level else "the nodes"
            reported = f"no {where} has" if level else f"{where} have"
            return reasons.mixed(subgroup, f"so {reported} room for its {len(shapes)} pods")
    return None


# -- what leaves it open ---------------------------------------------------------------------


def _uncertain_reasons(
    view: KaiView, objects: KaiPodGroup, certain: Certainty
) -> Iterator[Deviation]:
    """What may keep KAI from a place that is there, or give it one that is not."""
    reported = [*_of_room(view, objects), *_of_parts(view, objects, certain)]
    yield from reported or [reasons.siblings(objects.top, objects.name)]


def _of_room(view: KaiView, objects: KaiPodGroup) -> Iterator[Deviation]:
    """Where KAI counts other room than is counted here."""
    if objects.unsized:
        yield reasons.unsized(objects.unsized)
    if view.terminating:
        yield reasons.leaving(view.terminating)


def _of_parts(view: KaiView, objects: KaiPodGroup, certain: Certainty) -> Iterator[Deviation]:
    for subgroup, nested in _with_nesting(objects.top, bound=False):
        if subgroup.constrained and _may_hide_anywhere(view, certain, subgroup, nested):
            level = subgroup.required if subgroup.required is not None else subgroup.preferred
            yield reasons.one_domain(objects.levels, level or 0)
            break
    mixed = [
        subgroup for subgroup in objects.top.walk() if len(set(objects.requests(subgroup))) > 1
    ]
    if mixed:
        blown = [one for one in mixed if one.constrained and is_overcounted(objects.requests(one))]
        if blown:
            yield reasons.mixed(blown[-1], "a domain that holds them may seem too small to it")
        else:
            yield reasons.packing()
    for subgroup in objects.top.walk():
        if len(subgroup.children) > 1:
            yield reasons.siblings(subgroup, objects.name)
            break


def _with_nesting(subgroup: SubGroup, *, bound: bool) -> Iterator[tuple[SubGroup, bool]]:
    yield subgroup, bound
    for below in subgroup.children:
        yield from _with_nesting(below, bound=bound or subgroup.constrained)


def _may_hide_anywhere(view: KaiView, certain: Certainty, subgroup: SubGroup, nested: bool) -> bool:
    own = subgroup.required if subgroup.required is not None else subgroup.preferred
    levels = range((own or 0) + 1) if nested else range(1)
    return any(
        certain.may_hide(subgroup, level=level, domain=domain, nested=nested)
        for level in levels
        for domain in range(view.room.domains(level))
        if view.room.labelled(level, domain)
    )
