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
from rackgate_osmo.explain import explanation
from rackgate_osmo.explain.certainty import Certainty
from rackgate_osmo.explain.messages import (
    counted,
    key_entries,
    shortage_entry,
    subgroup_entries,
    with_summary,
)
from rackgate_osmo.explain.nodes import KaiView, kai_view_of, split_usable_nodes
from rackgate_osmo.explain.order import GroupState, predict_all
from rackgate_osmo.explain.placement import STEPS, GroupPlacement, charge, find_placement, solve
from rackgate_osmo.explain.prediction import KaiPodGroup, Prediction, kai_pod_group_of, unsized_in
from rackgate_osmo.explain.requests import TaskGroupRequests, plan_of, task_group_requests_of
from rackgate_osmo.explain.room import BoundPod, Nodes, Room, Shape, format_path
from rackgate_osmo.explain.search import Budget, FitTables, Item, UndecidedError
from rackgate_osmo.explain.shortage import Shortage, shortages


@dataclass(frozen=True, slots=True)
class ExplainRequest:
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
class _ExplainRun:
    """Task groups, for which places are looked for one after another.

    Attributes:
        question: as asked.
        room: what the groups before leave, if they are placed as is shown.
        view: the nodes as KAI sees them, without the workflow's pending pods.
        own: bound pods by PodGroup.
        charged: whether the room of a group before is taken in `room`.
    """

    request: ExplainRequest
    room: Room
    view: KaiView
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

    objects: Mapping[Profile, KaiPodGroup]
    running: int
    alone: bool | None
    answer: Callable[[explanation.Kai], explanation.Group]


def explain(request: ExplainRequest, nodes: Nodes) -> explanation.WorkflowExplanation:
    """Whether and where each task group can go, and what KAI will do where that is known."""
    pool, workflow = request.pool, request.workflow
    usable, left_out, excluded_nodes = split_usable_nodes(nodes.nodes, _tolerations(request))
    group_requests = [
        task_group_requests_of(group, workflow, pool, excluded_nodes) for group in workflow.groups
    ]
    built = {
        # Without `nodes`: `apply` and the assigner list every key of the pool.
        profile: build_podgroups(pool, workflow, request.names, profile=profile, kai=request.kai)
        for profile in {request.profile, Profile.ROBUST}
    }
    view = kai_view_of(pool, usable, nodes)
    own = _own_pods(request, built[request.profile], nodes.pods)
    run = _ExplainRun(request, view.room.copy(), view, own)
    groups = _groups(run, group_requests, built)
    answer = _overall([group.answer for group in groups])
    pending = [one for one in group_requests if not _runs(one, built, own, workflow, request)]
    together = answer == "scheduled" or fit_together(view.room, pending, request.steps)
    if together and any(group.running and group.answer != "scheduled" for group in groups):
        together = None  # beside the pods that a group of them still lacks
    found = explanation.WorkflowExplanation(
        workflow=workflow.name,
        pool=pool.name,
        profile=request.profile.value,
        kai_version=request.kai.value,
        nodes=len(view.room.nodes),
        answer=answer,
        together=together,
        kai_result=_overall_kai([group.kai.result for group in groups]),
        summary="",
        keys=key_entries(view.room, pool, group_requests, request.top),
        left_out=left_out,
        groups=groups,
        warnings=(*nodes.warnings, *_unsized(workflow)),
    )
    return with_summary(found)


def fit_together(
    room: Room, group_requests: Sequence[TaskGroupRequests], steps: int
) -> bool | None:
    """Whether all task groups fit at once; None where that is not decided."""
    shapes = tuple(dict.fromkeys(shape for one in group_requests for shape in one.shapes))
    roots = [_with_shapes(plan_of(one).root, one.shapes, shapes) for one in group_requests]
    loose = tuple(map(sum, zip(*(root.loose for root in roots), strict=True)))
    whole = Item(0, loose, [child for root in roots for child in root.children])
    try:
        return solve(FitTables(room, shapes), whole, Budget(steps)) is not None
    except UndecidedError:
        return None


def _with_shapes(item: Item, mine: Sequence[Shape], shapes: Sequence[Shape]) -> Item:
    """The same group, its pods counted by other shapes."""
    counts = dict(zip(mine, item.loose, strict=True))
    children = [_with_shapes(child, mine, shapes) for child in item.children]
    return Item(item.level, tuple(counts.get(shape, 0) for shape in shapes), children)


def _groups(
    run: _ExplainRun, group_requests: Sequence[TaskGroupRequests], built: Mapping[Profile, Built]
) -> tuple[explanation.Group, ...]:
    """Task groups by the names of their PodGroups."""
    request = run.request
    names = [group["metadata"]["name"] for group in built[request.profile].pod_groups]
    cases = []
    for at in sorted(range(len(group_requests)), key=lambda at: names[at]):
        objects = {
            profile: kai_pod_group_of(one, request.workflow, at, group_requests[at].tasks)
            for profile, one in built.items()
        }
        running = run.own.get(names[at], ())
        if running:
            cases.append(_running_group(run, group_requests[at], objects, running))
        else:
            cases.append(_pending_group(run, group_requests[at], objects))
    certain = Certainty(run.view.room, request.kai, run.view.counted)
    predictions = {
        profile: predict_all(
            run.view,
            certain,
            [GroupState(case.objects[profile], case.running, case.alone) for case in cases],
            request.steps,
        )
        for profile in built
    }
    return tuple(
        case.answer(
            _kai_result(request, {profile: found[at] for profile, found in predictions.items()})
        )
        for at, case in enumerate(cases)
    )


def _pending_group(
    run: _ExplainRun, group_requests: TaskGroupRequests, objects: Mapping[Profile, KaiPodGroup]
) -> _Case:
    """A task group of which no pod runs."""
    request, pods = run.request, len(group_requests.group.tasks)
    placement, lacking, undecided = _placed(request, run.room, group_requests)
    alone = True if placement is not None else _fits_alone(run, group_requests, undecided)
    shortage_entries = tuple(
        shortage_entry(one, run.room, request.pool, request.top) for one in lacking
    )
    answer: explanation.Answer = "scheduled" if placement is not None else "pending"
    summary = f"all {pods} pods find a place" if pods > 1 else "its pod finds a place"
    if undecided:
        answer = "undecided"
        summary = f"not decided within {request.steps} steps; ask for more with --steps"
    elif placement is None:
        summary = shortage_entries[0].text if shortage_entries else "there is no place"
    subgroups = subgroup_entries(run.room, request.pool, group_requests, placement)
    if placement is not None:
        charge(run.room, group_requests, placement)
        run.charged = True
    found = partial(
        explanation.Group,
        name=group_requests.group.name,
        pod_group=objects[request.profile].name,
        pods=pods,
        answer=answer,
        summary=summary,
        complete=placement is None or placement.complete,
        subgroups=subgroups,
        shortages=shortage_entries,
    )
    return _Case(objects, 0, alone, lambda kai: found(kai=kai))


def _running_group(
    run: _ExplainRun,
    group_requests: TaskGroupRequests,
    objects: Mapping[Profile, KaiPodGroup],
    own: Sequence[BoundPod],
) -> _Case:
    """A task group of which pods run: they are its own, and no obstacle to it."""
    request, pods = run.request, len(group_requests.group.tasks)
    all_run = len(own) >= pods
    paths = Counter(_path_of(run.room, pod) for pod in own)
    verb = "run" if all_run else "are on nodes"
    found = partial(
        explanation.Group,
        name=group_requests.group.name,
        pod_group=objects[request.profile].name,
        pods=pods,
        answer="scheduled" if all_run else "undecided",
        summary=f"all {pods} pods run" if all_run else f"{len(own)} of {pods} pods {verb}",
        complete=True,
        subgroups=subgroup_entries(run.room, request.pool, group_requests, None),
        shortages=(),
        running=tuple(
            explanation.DomainRoom(domain=path, pods=n) for path, n in sorted(paths.items())
        ),
    )
    return _Case(objects, min(len(own), pods), None, lambda kai: found(kai=kai))


def _path_of(room: Room, pod: BoundPod) -> tuple[str, ...]:
    leaf = room.tree.leaf_of_node(pod.node)
    return () if leaf is None else format_path(room.path_of_leaf(leaf))


def _placed(
    request: ExplainRequest, room: Room, group_requests: TaskGroupRequests
) -> tuple[GroupPlacement | None, Sequence[Shortage], bool]:
    """A place, or what is missing; and whether neither was decided."""
    try:
        placement = find_placement(room, group_requests, request.steps)
    except UndecidedError:
        return None, (), True
    if placement is not None:
        return placement, (), False
    try:
        return None, shortages(room, group_requests, request.steps), False
    except UndecidedError:
        return None, (), False


def _fits_alone(
    run: _ExplainRun, group_requests: TaskGroupRequests, undecided: bool
) -> bool | None:
    """Whether a group that finds no place now has one without the groups before it.

    Pods that terminate are no obstacle then: their room is free as soon as they are gone.
    """
    if not run.charged and not run.view.terminating:
        return None if undecided else False
    return fit_together(run.view.after_terminations, [group_requests], run.request.steps)


def _kai_result(request: ExplainRequest, found: Mapping[Profile, Prediction]) -> explanation.Kai:
    """The answer of the profile in use, and whether the other one helps."""
    mine, robust = found[request.profile], found[Profile.ROBUST]
    reasons = mine.reasons
    if mine.result != "scheduled" and robust.result == "scheduled":
        reasons = tuple(
            msgspec.structs.replace(
                one, help=f"use --profile robust, with which KAI places it; or {one.help}"
            )
            for one in reasons
        )
    return explanation.Kai(result=mine.result, robust=robust.result, deviations=reasons)


def _own_pods(
    request: ExplainRequest, built: Built, pods: Iterable[BoundPod]
) -> Mapping[str, Sequence[BoundPod]]:
    """Bound pods of the workflow's PodGroups, by their names."""
    names = {group["metadata"]["name"] for group in built.pod_groups}
    found = [pod for pod in pods if pod.group in names and not pod.terminating]
    spaces = {pod.namespace for pod in found}
    wanted = request.namespace
    if wanted is None:
        wanted = next(iter(spaces)) if len(spaces) == 1 else None
    groups: dict[str, list[BoundPod]] = {}
    for pod in found:
        if pod.namespace == wanted:
            groups.setdefault(pod.group, []).append(pod)
    return groups


def _runs(
    group_requests: TaskGroupRequests,
    built: Mapping[Profile, Built],
    own: Mapping[str, Sequence[BoundPod]],
    workflow: Workflow,
    request: ExplainRequest,
) -> bool:
    index = workflow.groups.index(group_requests.group)
    return bool(own.get(built[request.profile].pod_groups[index]["metadata"]["name"]))


def _unsized(workflow: Workflow) -> Iterator[str]:
    """A warning where pods ask for less than their tasks are counted with."""
    bare = sum(unsized_in(workflow, group) for group in workflow.groups)
    if bare:
        yield (
            f"{counted(bare, 'task')} of no size counted as one cpu each, but the pods that apply "
            "makes of them request nothing: KAI may find room for them where none is counted"
        )


def _tolerations(request: ExplainRequest) -> set[tuple[Toleration, ...]]:
    """What the pods of each kind of task tolerate."""
    workflow = request.workflow
    tasks = (task for group in workflow.groups for task in group.tasks)
    return {tolerations_of(request.pool, workflow.resource_of(task)) for task in tasks}


def _overall(answers: Sequence[explanation.Answer]) -> explanation.Answer:
    if all(answer == "scheduled" for answer in answers):
        return "scheduled"
    if "undecided" in answers:
        return "undecided"
    return "partly" if "scheduled" in answers else "pending"


def _overall_kai(results: Sequence[explanation.KaiResult]) -> explanation.KaiResult:
    if "unknown" in results:
        return "unknown"
    if all(result == "scheduled" for result in results):
        return "scheduled"
    return "partly" if "scheduled" in results else "pending"
