"""`rackgate osmo explain` as a function: a workflow, its pool and nodes in, an answer out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from rackgate_osmo import (
    Built,
    KaiVersion,
    Pool,
    Profile,
    Toleration,
    Workflow,
    build_podgroups,
    tolerations_of,
)
from rackgate_osmo.explain import explanation as said
from rackgate_osmo.explain.certainty import Certainty
from rackgate_osmo.explain.messages import (
    counted,
    keys_told,
    shortage_told,
    subgroups_told,
    summary_of,
)
from rackgate_osmo.explain.nodes import View, sift, view_of
from rackgate_osmo.explain.order import Asked, foretell_all
from rackgate_osmo.explain.placing import STEPS, Spots, charge, find_spots, solve
from rackgate_osmo.explain.prediction import Foretold, Objects, objects_of, unsized_in
from rackgate_osmo.explain.requests import Wishes, plan_of, wishes_of
from rackgate_osmo.explain.room import BoundPod, Nodes, Room, Shape, path_told
from rackgate_osmo.explain.search import Budget, Item, Tables, UndecidedError
from rackgate_osmo.explain.shortage import Shortage, shortages


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        names: PodGroup names by task group, where they are not the usual ones.
        namespace: of the workflow's pods; None: any, if only one has pods of these names.
        steps: tries of a domain for each search.
        top: domains to list each time.
    """

    pool: Pool
    workflow: Workflow
    profile: Profile = Profile.SEED
    kai: KaiVersion = KaiVersion.V0_13
    names: Mapping[str, str] | None = None
    namespace: str | None = None
    steps: int = STEPS
    top: int = 3


@dataclass(slots=True)
class _Turn:
    """Task groups, for which places are looked for one after another.

    Attributes:
        question: as asked.
        room: what the groups before leave, if they are placed as is shown.
        view: the nodes as KAI sees them, without the workflow's pending pods.
        own: bound pods by PodGroup.
        charged: whether the room of a group before is taken in `room`.
    """

    question: Question
    room: Room
    view: View
    own: Mapping[str, Sequence[BoundPod]]
    charged: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    """A task group, and what is possible for it.

    Attributes:
        objects: what KAI is given, by profile.
        running: its pods that are on nodes.
        alone: whether it fits without the other groups, once the pods that terminate are gone;
            None: not decided.
        answer: what is possible, and with it what KAI does.
    """

    objects: Mapping[Profile, Objects]
    running: int
    alone: bool | None
    answer: Callable[[said.Kai], said.Group]


def explain(question: Question, nodes: Nodes) -> said.WorkflowExplanation:
    """Whether and where each task group can go, and what KAI will do where that is known."""
    pool, workflow = question.pool, question.workflow
    usable, left_out, kept_from = sift(nodes.nodes, _tolerations(question))
    wishes = [wishes_of(group, workflow, pool, kept_from) for group in workflow.groups]
    built = {
        # Without `nodes`: `apply` and the assigner list every key of the pool.
        profile: build_podgroups(pool, workflow, question.names, profile=profile, kai=question.kai)
        for profile in {question.profile, Profile.ROBUST}
    }
    view = view_of(pool, usable, nodes)
    own = _own(question, built[question.profile], nodes.pods)
    turn = _Turn(question, view.room.copy(), view, own)
    groups = _groups(turn, wishes, built)
    answer = _overall([group.answer for group in groups])
    pending = [one for one in wishes if not _runs(one, built, own, workflow, question)]
    together = answer == "scheduled" or fit_together(view.room, pending, question.steps)
    if together and any(group.running and group.answer != "scheduled" for group in groups):
        together = None  # beside the pods that a group of them still lacks
    found = said.WorkflowExplanation(
        workflow=workflow.name,
        pool=pool.name,
        profile=question.profile.value,
        kai_version=question.kai.value,
        nodes=len(view.room.nodes),
        answer=answer,
        together=together,
        kai_result=_overall_kai([group.kai.result for group in groups]),
        summary="",
        keys=keys_told(view.room, pool, wishes, question.top),
        left_out=left_out,
        groups=groups,
        warnings=(*nodes.warnings, *_unsized(workflow)),
    )
    return summary_of(found)


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


def _groups(
    turn: _Turn, wishes: Sequence[Wishes], built: Mapping[Profile, Built]
) -> tuple[said.Group, ...]:
    """Task groups by the names of their PodGroups."""
    question = turn.question
    names = [group["metadata"]["name"] for group in built[question.profile].pod_groups]
    cases = []
    for at in sorted(range(len(wishes)), key=lambda at: names[at]):
        objects = {
            profile: objects_of(one, question.workflow, at, wishes[at].tasks)
            for profile, one in built.items()
        }
        running = turn.own.get(names[at], ())
        if running:
            cases.append(_running(turn, wishes[at], objects, running))
        else:
            cases.append(_pending(turn, wishes[at], objects))
    certain = Certainty(turn.view.room, question.kai, turn.view.counted)
    foretold = {
        profile: foretell_all(
            turn.view,
            certain,
            [Asked(case.objects[profile], case.running, case.alone) for case in cases],
            question.steps,
        )
        for profile in built
    }
    return tuple(
        case.answer(_told(question, {profile: found[at] for profile, found in foretold.items()}))
        for at, case in enumerate(cases)
    )


def _pending(turn: _Turn, wishes: Wishes, objects: Mapping[Profile, Objects]) -> _Case:
    """A task group of which no pod runs."""
    question, pods = turn.question, len(wishes.group.tasks)
    spots, lacking, undecided = _placed(question, turn.room, wishes)
    alone = True if spots is not None else _alone(turn, wishes, undecided)
    told = tuple(shortage_told(one, turn.room, question.pool, question.top) for one in lacking)
    answer: said.Answer = "scheduled" if spots is not None else "pending"
    summary = f"all {pods} pods find a place" if pods > 1 else "its pod finds a place"
    if undecided:
        answer = "undecided"
        summary = f"not decided within {question.steps} steps; ask for more with --steps"
    elif spots is None:
        summary = told[0].text if told else "there is no place"
    subgroups = subgroups_told(turn.room, question.pool, wishes, spots)
    if spots is not None:
        charge(turn.room, wishes, spots)
        turn.charged = True
    found = partial(
        said.Group,
        name=wishes.group.name,
        pod_group=objects[question.profile].name,
        pods=pods,
        answer=answer,
        summary=summary,
        complete=spots is None or spots.complete,
        subgroups=subgroups,
        shortages=told,
    )
    return _Case(objects, 0, alone, lambda kai: found(kai=kai))


def _running(
    turn: _Turn, wishes: Wishes, objects: Mapping[Profile, Objects], own: Sequence[BoundPod]
) -> _Case:
    """A task group of which pods run: they are its own, and no obstacle to it."""
    question, pods = turn.question, len(wishes.group.tasks)
    all_run = len(own) >= pods
    paths = Counter(_path_of(turn.room, pod) for pod in own)
    verb = "run" if all_run else "are on nodes"
    found = partial(
        said.Group,
        name=wishes.group.name,
        pod_group=objects[question.profile].name,
        pods=pods,
        answer="scheduled" if all_run else "undecided",
        summary=f"all {pods} pods run" if all_run else f"{len(own)} of {pods} pods {verb}",
        complete=True,
        subgroups=subgroups_told(turn.room, question.pool, wishes, None),
        shortages=(),
        running=tuple(said.DomainRoom(domain=path, pods=n) for path, n in sorted(paths.items())),
    )
    return _Case(objects, min(len(own), pods), None, lambda kai: found(kai=kai))


def _path_of(room: Room, pod: BoundPod) -> tuple[str, ...]:
    leaf = room.tree.leaf_of_node(pod.node)
    return () if leaf is None else path_told(room.path_of_leaf(leaf))


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


def _alone(turn: _Turn, wishes: Wishes, undecided: bool) -> bool | None:
    """Whether a group that finds no place now has one without the groups before it.

    Pods that terminate are no obstacle then: their room is free as soon as they are gone.
    """
    if not turn.charged and not turn.view.leaving:
        return None if undecided else False
    return fit_together(turn.view.settled, [wishes], turn.question.steps)


def _told(question: Question, found: Mapping[Profile, Foretold]) -> said.Kai:
    """The answer of the profile in use, and whether the other one helps."""
    mine, robust = found[question.profile], found[Profile.ROBUST]
    reasons = mine.reasons
    if mine.result != "scheduled" and robust.result == "scheduled":
        reasons = tuple(
            msgspec.structs.replace(
                one, help=f"use --profile robust, with which KAI places it; or {one.help}"
            )
            for one in reasons
        )
    return said.Kai(result=mine.result, robust=robust.result, deviations=reasons)


def _own(
    question: Question, built: Built, pods: Iterable[BoundPod]
) -> Mapping[str, Sequence[BoundPod]]:
    """Bound pods of the workflow's PodGroups, by their names."""
    names = {group["metadata"]["name"] for group in built.pod_groups}
    found = [pod for pod in pods if pod.group in names and not pod.terminating]
    spaces = {pod.namespace for pod in found}
    wanted = question.namespace
    if wanted is None:
        wanted = next(iter(spaces)) if len(spaces) == 1 else None
    groups: dict[str, list[BoundPod]] = {}
    for pod in found:
        if pod.namespace == wanted:
            groups.setdefault(pod.group, []).append(pod)
    return groups


def _runs(
    wishes: Wishes,
    built: Mapping[Profile, Built],
    own: Mapping[str, Sequence[BoundPod]],
    workflow: Workflow,
    question: Question,
) -> bool:
    index = workflow.groups.index(wishes.group)
    return bool(own.get(built[question.profile].pod_groups[index]["metadata"]["name"]))


def _unsized(workflow: Workflow) -> Iterator[str]:
    """A warning where pods ask for less than their tasks are counted with."""
    bare = sum(unsized_in(workflow, group) for group in workflow.groups)
    if bare:
        yield (
            f"{counted(bare, 'task')} of no size counted as one cpu each, but the pods that apply "
            "makes of them request nothing: KAI may find room for them where none is counted"
        )


def _tolerations(question: Question) -> set[tuple[Toleration, ...]]:
    """What the pods of each kind of task tolerate."""
    workflow = question.workflow
    tasks = (task for group in workflow.groups for task in group.tasks)
    return {tolerations_of(question.pool, workflow.resource_of(task)) for task in tasks}


def _overall(answers: Sequence[said.Answer]) -> said.Answer:
    if all(answer == "scheduled" for answer in answers):
        return "scheduled"
    if "undecided" in answers:
        return "undecided"
    return "partly" if "scheduled" in answers else "pending"


def _overall_kai(results: Sequence[said.KaiResult]) -> said.KaiResult:
    if "unknown" in results:
        return "unknown"
    if all(result == "scheduled" for result in results):
        return "scheduled"
    return "partly" if "scheduled" in results else "pending"
