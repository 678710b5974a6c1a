"""`rackgate osmo explain` as a function: a workflow, its pool and nodes in, an answer out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rackgate.partners.osmo import (
    Built,
    KaiVersion,
    Pool,
    Profile,
    Workflow,
    build_podgroups,
)
from rackgate.partners.osmo.model import DEFAULT_RESOURCE
from rackgate_assigner.core.engine.matching import BLOCKING_EFFECTS
from rackgate_assigner.core.model import NodeFacts
from rackgate_cli import osmo_explanation as said
from rackgate_cli.osmo_placing import STEPS, Spots, charge, find_spots, solve
from rackgate_cli.osmo_prediction import Tried, explained, objects_of, predict
from rackgate_cli.osmo_room import Nodes, Room, Shape
from rackgate_cli.osmo_search import Budget, Item, Tables, UndecidedError
from rackgate_cli.osmo_shortage import Shortage, shortages
from rackgate_cli.osmo_telling import counted, keys_told, shortage_told, subgroups_told, summary_of
from rackgate_cli.osmo_wishes import GPU, Wishes, plan_of, shape_of, wishes_of

_LISTED = 3  # names of nodes of a kind


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        names: PodGroup names by task group, where they are not the usual ones.
        tolerated: keys of taints that the pods tolerate.
        steps: tries of a domain for each search.
        top: domains to list each time.
    """

    pool: Pool
    workflow: Workflow
    profile: Profile = Profile.SEED
    kai: KaiVersion = KaiVersion.V0_13
    names: Mapping[str, str] | None = None
    tolerated: Collection[str] = ()
    steps: int = STEPS
    top: int = 3


def explain(question: Question, nodes: Nodes) -> said.WorkflowExplanation:
    """Whether and where each task group can go, and what KAI will do.

    Task groups are PodGroups of their own, which KAI takes one after another: each is judged on
    the room that those before it leave when KAI places them (or we, where KAI does not).
    """
    pool, workflow = question.pool, question.workflow
    tolerated = {*question.tolerated, *_asked_for(workflow)}
    usable, left_out = sift(nodes.nodes, tolerated)
    room = Room([key.label for key in pool.topology_keys], usable)
    for pod in nodes.pods:
        leaf = room.tree.leaf_of_node(pod.node)
        if leaf is not None:
            room.charge(leaf, dict(pod.requests))
    wishes = [wishes_of(group, workflow, pool) for group in workflow.groups]
    keys = keys_told(room, pool, wishes, question.top)
    groups = _groups(question, room.copy(), wishes)
    answer = _overall([group.answer for group in groups])
    together = answer == "scheduled" or fit_together(room, wishes, question.steps)
    found = said.WorkflowExplanation(
        workflow=workflow.name,
        pool=pool.name,
        profile=question.profile.value,
        kai_version=question.kai.value,
        nodes=len(room.nodes),
        answer=answer,
        together=together,
        kai_result=_overall_kai([group.kai.result for group in groups]),
        summary="",
        keys=keys,
        left_out=left_out,
        groups=groups,
        warnings=(*nodes.warnings, *_half_tolerated(question, usable, wishes)),
    )
    return summary_of(found)


def sift(
    nodes: Iterable[NodeFacts], tolerated: Collection[str]
) -> tuple[list[NodeFacts], tuple[said.LeftOut, ...]]:
    """Tell nodes that pods may use from those that they may not, these by reason."""
    usable: list[NodeFacts] = []
    left: dict[str, list[str]] = {}
    for node in nodes:
        why = _why_not(node, tolerated)
        if why is None:
            usable.append(node)
        else:
            left.setdefault(why, []).append(node.name)
    return usable, tuple(
        said.LeftOut(why=why, nodes=len(names), names=tuple(sorted(names)[:_LISTED]))
        for why, names in sorted(left.items())
    )


def fit_together(room: Room, wishes: Sequence[Wishes], steps: int) -> bool | None:
    """Whether all task groups fit at once; None where that is not decided."""
    shapes = tuple(dict.fromkeys(shape for one in wishes for shape in one.shapes))
    roots = [_with_shapes(plan_of(one).root, one.shapes, shapes) for one in wishes]
    loose = tuple(map(sum, zip(*(root.loose for root in roots), strict=True)))
    whole = Item(0, loose, [child for root in roots for child in root.children])
    try:
        return solve(Tables(room, shapes), whole, Budget(steps)) is not None
    except UndecidedError:
        return None


def _with_shapes(item: Item, mine: Sequence[Shape], shapes: Sequence[Shape]) -> Item:
    """The same group, its pods counted by other shapes."""
    counts = dict(zip(mine, item.loose, strict=True))
    children = [_with_shapes(child, mine, shapes) for child in item.children]
    return Item(item.level, tuple(counts.get(shape, 0) for shape in shapes), children)


def _groups(question: Question, room: Room, wishes: Sequence[Wishes]) -> tuple[said.Group, ...]:
    """Task groups in the order in which KAI takes them; `room` is used up."""
    # Without `nodes`: `apply` and the assigner list every key of the pool.
    built = {
        profile: build_podgroups(
            question.pool,
            question.workflow,
            question.names,
            profile=profile,
            kai=question.kai,
        )
        for profile in {question.profile, Profile.ROBUST}
    }
    names = [group["metadata"]["name"] for group in built[question.profile].pod_groups]
    order = sorted(range(len(wishes)), key=lambda at: names[at])
    return tuple(_group(question, room, wishes[at], built, at) for at in order)


def _group(
    question: Question,
    room: Room,
    wishes: Wishes,
    built: Mapping[Profile, Built],
    index: int,
) -> said.Group:
    objects = {profile: objects_of(one, index, wishes) for profile, one in built.items()}
    spots, lacking, undecided = _placed(question, room, wishes)
    tried = predict(room, objects, question.profile, question.kai)
    mine = objects[question.profile]
    kai = explained(room, mine, question.kai, question.profile, tried, possible=spots is not None)
    subgroups = subgroups_told(room, question.pool, wishes, spots)
    answer: said.Answer = "scheduled" if spots is not None else "pending"
    told = tuple(shortage_told(one, room, question.pool, question.top) for one in lacking)
    pods = len(wishes.group.tasks)
    summary = f"all {pods} pods find a place" if pods > 1 else "its pod finds a place"
    if undecided:
        answer = "undecided"
        summary = f"not decided within {question.steps} steps; ask for more with --steps"
    elif spots is None:
        summary = told[0].text if told else "there is no place"
    _charge(room, wishes, spots, tried[0])
    return said.Group(
        name=wishes.group.name,
        pod_group=mine.pod_group["metadata"]["name"],
        pods=pods,
        answer=answer,
        summary=summary,
        complete=spots is None or spots.complete,
        subgroups=subgroups,
        shortages=told,
        kai=kai,
    )


def _placed(
    question: Question, room: Room, wishes: Wishes
) -> tuple[Spots | None, Sequence[Shortage], bool]:
    """A place, or what is missing; and whether neither was decided."""
    try:
        spots = find_spots(room, wishes, question.steps)
    except UndecidedError:
        return None, (), True
    if spots is not None:
        return spots, (), False
    try:
        return None, shortages(room, wishes, question.steps), False
    except UndecidedError:
        return None, (), False


def _charge(room: Room, wishes: Wishes, spots: Spots | None, tried: Tried) -> None:
    """Take the room of a task group, as KAI would; where KAI does not, as it could be."""
    if tried.where:
        for node, shape in tried.where:
            room.charge(node, dict(shape.requests))
    elif spots is not None:
        charge(room, wishes, spots)


def _asked_for(workflow: Workflow) -> set[str]:
    """Taint keys that are names of resources which tasks ask for.

    Nodes with devices are often tainted with the device's name, and who asks for the device gets
    the toleration by admission.
    """
    tasks = (task for group in workflow.groups for task in group.tasks)
    used = {task.resource or DEFAULT_RESOURCE for task in tasks}
    shapes = (shape_of(workflow.resources.get(name)) for name in used)
    return {GPU} if any(GPU in dict(shape.requests) for shape in shapes) else set()


def _half_tolerated(
    question: Question, usable: Iterable[NodeFacts], wishes: Iterable[Wishes]
) -> Iterator[str]:
    """A warning where only some of the tasks tolerate the taint of nodes that count for all."""
    asking = {GPU in dict(shape.requests) for one in wishes for shape in one.shapes}
    tainted = sum(_why_not(node, question.tolerated) == f"taint {GPU}" for node in usable)
    if len(asking) == 2 and tainted:
        yield (
            "tasks without GPUs are counted as if they, too, could run on "
            f"{counted(tainted, 'node')} tainted {GPU}: there may be less room for them"
        )


def _why_not(node: NodeFacts, tolerated: Collection[str]) -> str | None:
    if not node.ready:
        return "not ready"
    if node.unschedulable:
        return "unschedulable"
    for taint in node.taints:
        if taint.effect in BLOCKING_EFFECTS and taint.key not in tolerated:
            return f"taint {taint.key}"
    return None


def _overall(answers: Sequence[said.Answer]) -> said.Answer:
    if all(answer == "scheduled" for answer in answers):
        return "scheduled"
    if "undecided" in answers:
        return "undecided"
    return "partly" if "scheduled" in answers else "pending"


def _overall_kai(results: Sequence[said.KaiResult]) -> said.KaiResult:
    grave: tuple[said.KaiResult, ...] = ("unknown", "misplaced")
    for result in grave:
        if result in results:
            return result
    if all(result == "scheduled" for result in results):
        return "scheduled"
    return "partly" if "scheduled" in results else "pending"
