"""`rackgate osmo explain` as a function from a workflow, its pool and nodes to an explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.placement.node_matching import BLOCKING_EFFECTS
from rackgate_osmo.explain import explanation
from rackgate_osmo.explain.kai import (
    Certainty,
    Prediction,
    kai_pod_group_of,
    kai_view_of,
    predict,
    unsized_in,
)
from rackgate_osmo.explain.placement import (
    STEPS,
    ExcludedNodes,
    GroupPlacement,
    TaskGroupRequests,
    charge,
    find_placement,
    fit_together,
    task_group_requests_of,
)
from rackgate_osmo.explain.room import MISSING, BoundPod, Nodes, Room, Shape, format_path
from rackgate_osmo.explain.search import UndecidedError
from rackgate_osmo.explain.shortage import counted, shortages
from rackgate_osmo.model.task_resources import tolerates, tolerations_of
from rackgate_osmo.model.workflow import KaiVersion, Pool, Profile, Toleration, Workflow
from rackgate_osmo.render.node import Kind, Node
from rackgate_osmo.render.podgroups import build_podgroups

_LISTED: Final = 3  # node names listed for each reason
_NAMED: Final = 5  # task groups named in a message
_TYPES: Final[dict[Kind, explanation.Requirement]] = {
    Kind.REQUIRED: "required",
    Kind.PREFERRED: "preferred",
    Kind.FILLER: "none",
}
_DOES: Final[dict[explanation.KaiResult, str]] = {
    "scheduled": "schedules it",
    "partly": "schedules a part of it",
    "pending": "leaves it pending",
}


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """Options of an explanation.

    Attributes:
        names: PodGroup names by task group, if they differ from the default names.
        namespace: of the workflow's pods; None if it is to be
            found: it must be the only one with pods of these PodGroups.
        steps: maximum number of domains that each search tries.
        top: number of domains to list each time.
    """

    pool: Pool
    workflow: Workflow
    profile: Profile = Profile.SEED
    kai: KaiVersion = KaiVersion.V0_13
    names: Mapping[str, str] | None = None
    namespace: str | None = None
    steps: int = STEPS
    top: int = 3


def explain(request: ExplainRequest, nodes: Nodes) -> explanation.WorkflowExplanation:
    """Whether and where each task group fits, and what KAI will do if that can be predicted.

    Groups are handled in the order of their PodGroup names. Each gets the capacity that those
    before it leave free.
    """
    pool, workflow = request.pool, request.workflow
    tasks = [task for group in workflow.groups for task in group.tasks]
    tolerations = {tolerations_of(pool, workflow.resource_of(task)) for task in tasks}
    usable, left_out, excluded = _usable(nodes.nodes, tolerations)
    built = {
        # Without `nodes`: `apply` and the assigner list every key of the pool in the Topology.
        profile: build_podgroups(pool, workflow, request.names, profile=profile, kai=request.kai)
        for profile in {request.profile, Profile.ROBUST}
    }
    names = [group["metadata"]["name"] for group in built[request.profile].pod_groups]
    view = kai_view_of(pool, usable, nodes)
    own = _own_pods(request, names, nodes.pods)
    left, charged = view.room.copy(), False
    groups: list[tuple[TaskGroupRequests, explanation.Group, bool | None]] = []
    for group, name in sorted(zip(workflow.groups, names, strict=True), key=lambda one: one[1]):
        requests = task_group_requests_of(group, workflow, pool, excluded)
        if name in own:
            groups.append((requests, _running(request, requests, name, left, own[name]), None))
            continue
        answer, placement = _pending(request, requests, name, left)
        # Without the groups before it, and after terminating pods are gone.
        alone: bool | None = None if answer.answer == "undecided" else placement is not None
        if placement is None and (charged or view.terminating):
            alone = fit_together(view.after_terminations, [requests], request.steps)
        charged = charged or placement is not None
        groups.append((requests, answer, alone))
    certain = Certainty(view.room, request.kai, view.counted)
    kai = {}
    for profile, objects in built.items():
        pod_groups = [
            kai_pod_group_of(
                objects, workflow, requests, sum(one.pods for one in answer.running), alone
            )
            for requests, answer, alone in groups
        ]
        kai[profile] = predict(view, certain, pod_groups, request.steps)
    answers = tuple(
        msgspec.structs.replace(answer, kai=_kai(mine, robust))
        for (_, answer, _), mine, robust in zip(
            groups, kai[request.profile], kai[Profile.ROBUST], strict=True
        )
    )
    overall = _overall([group.answer for group in answers])
    pending = [requests for requests, group, _ in groups if not group.running]
    together = overall == "scheduled" or fit_together(view.room, pending, request.steps)
    if together and any(group.running and group.answer != "scheduled" for group in answers):
        together = None  # unknown: a partly running group still lacks pods
    found = explanation.WorkflowExplanation(
        workflow=workflow.name,
        pool=pool.name,
        profile=request.profile.value,
        kai_version=request.kai.value,
        nodes=len(view.room.nodes),
        answer=overall,
        together=together,
        kai_result=_overall_kai([group.kai.result for group in answers]),
        summary="",
        keys=_key_entries(view.room, pool, [requests for requests, _, _ in groups], request.top),
        left_out=left_out,
        groups=answers,
        warnings=(*nodes.warnings, *_unsized(workflow)),
    )
    summary = f"{_possible(found)} {_of_kai(found)}".strip()
    return msgspec.structs.replace(found, summary=summary)


def _usable(
    nodes: Iterable[NodeInfo], tolerations: Collection[tuple[Toleration, ...]]
) -> tuple[list[NodeInfo], tuple[explanation.LeftOut, ...], ExcludedNodes]:
    """Nodes that some tasks may use; the others by reason; nodes that only some tasks may use."""
    usable: list[NodeInfo] = []
    left: dict[str, list[str]] = {}
    kept: dict[tuple[Toleration, ...], set[str]] = {kind: set() for kind in tolerations}
    for node in nodes:
        whys = {kind: _why_not(node, kind) for kind in tolerations}
        if all(whys.values()):
            left.setdefault(min(str(why) for why in whys.values()), []).append(node.name)
            continue
        usable.append(node)
        for kind in (kind for kind, why in whys.items() if why):
            kept[kind].add(node.name)
    left_out = tuple(
        explanation.LeftOut(why=why, nodes=len(names), names=tuple(sorted(names)[:_LISTED]))
        for why, names in sorted(left.items())
    )
    return usable, left_out, {kind: frozenset(names) for kind, names in kept.items()}


def _why_not(node: NodeInfo, tolerations: Sequence[Toleration]) -> str | None:
    if not node.ready:
        return "not ready"
    if node.unschedulable:
        return "unschedulable"
    for taint in node.taints:
        blocks = taint.effect in BLOCKING_EFFECTS
        if blocks and not tolerates(tolerations, taint.key, taint.value, taint.effect):
            return f"taint {taint.key}"
    return None


def _own_pods(
    request: ExplainRequest, names: Collection[str], pods: Iterable[BoundPod]
) -> Mapping[str, Sequence[BoundPod]]:
    """Bound pods of the workflow's PodGroups, by PodGroup name."""
    found = [pod for pod in pods if pod.group in names and not pod.terminating]
    spaces = {pod.namespace for pod in found}
    wanted = request.namespace
    if wanted is None and len(spaces) == 1:
        (wanted,) = spaces
    groups: dict[str, list[BoundPod]] = {}
    for pod in found:
        if pod.namespace == wanted:
            groups.setdefault(pod.group, []).append(pod)
    return groups


# -- one task group --------------------------------------------------------------------------

_NOT_JUDGED: Final = explanation.Kai(result="unknown", robust="unknown")


def _pending(
    request: ExplainRequest, requests: TaskGroupRequests, name: str, left: Room
) -> tuple[explanation.Group, GroupPlacement | None]:
    """A task group without running pods; if it fits, its pods are charged to free capacity."""
    pods = len(requests.group.tasks)
    placement: GroupPlacement | None = None
    lacking: tuple[explanation.Shortage, ...] = ()
    answer: explanation.Answer = "pending"
    try:
        placement = find_placement(left, requests, request.steps)
    except UndecidedError:
        answer = "undecided"
        summary = f"not decided within {request.steps} steps; increase --steps"
    else:
        if placement is None:
            lacking = _shortages(request, requests, left)
            summary = lacking[0].text if lacking else "does not fit"
        else:
            answer = "scheduled"
            summary = f"all {pods} pods fit" if pods > 1 else "its pod fits"
    group = explanation.Group(
        name=requests.group.name,
        pod_group=name,
        pods=pods,
        answer=answer,
        summary=summary,
        complete=placement is None or placement.complete,
        subgroups=_subgroup_entries(left, request.pool, requests, placement),
        shortages=lacking,
        kai=_NOT_JUDGED,
    )
    if placement is not None:
        charge(left, requests, placement)
    return group, placement


def _shortages(
    request: ExplainRequest, requests: TaskGroupRequests, left: Room
) -> tuple[explanation.Shortage, ...]:
    try:
        return shortages(left, request.pool, requests, request.steps, request.top)
    except UndecidedError:
        return ()


def _running(
    request: ExplainRequest,
    requests: TaskGroupRequests,
    name: str,
    room: Room,
    own: Sequence[BoundPod],
) -> explanation.Group:
    """A task group with running pods, whose usage does not count against it."""
    pods = len(requests.group.tasks)
    leaves = (room.tree.leaf_of_node(pod.node) for pod in own)
    paths = [() if leaf is None else format_path(room.path_of_leaf(leaf)) for leaf in leaves]
    return explanation.Group(
        name=requests.group.name,
        pod_group=name,
        pods=pods,
        answer="scheduled" if len(own) >= pods else "undecided",
        summary=f"all {pods} pods run"
        if len(own) >= pods
        else f"{len(own)} of {pods} pods are bound",
        complete=True,
        subgroups=_subgroup_entries(room, request.pool, requests, None),
        shortages=(),
        kai=_NOT_JUDGED,
        running=_domain_pods(Counter(paths)),
    )


def _kai(mine: Prediction, robust: Prediction) -> explanation.Kai:
    """KAI's result with the chosen profile, and whether the other profile helps."""
    reasons = mine.reasons
    if mine.result != "scheduled" and robust.result == "scheduled":
        helps = "use --profile robust, with which KAI schedules it; or"
        reasons = tuple(msgspec.structs.replace(one, help=f"{helps} {one.help}") for one in reasons)
    return explanation.Kai(result=mine.result, robust=robust.result, deviations=reasons)


def _subgroup_entries(
    room: Room, pool: Pool, requests: TaskGroupRequests, placement: GroupPlacement | None
) -> tuple[explanation.Subgroup, ...]:
    """Every node of the tree, with the domains of its pods if they fit."""
    found = []
    for node in requests.nodes():
        entry = explanation.Subgroup(
            name=node.name,
            key=pool.topology_keys[node.level].key,
            group=node.group,
            type=_TYPES[node.kind],
            pods=node.size,
        )
        if placement is not None:
            pods = _pods_by_path(room, node, placement)
            domains = {path[: node.level + 1] for path in pods}
            together = len(domains) == 1 and MISSING not in next(iter(domains))[-1:]
            entry = msgspec.structs.replace(
                entry,
                together=together,
                domain=format_path(domains.pop()) if together else None,
                places=() if node.children else _places(pods),
            )
        found.append(entry)
    if not found and placement is not None:
        places = _places(_pods_by_path(room, requests.root, placement))
        size = requests.root.size
        found = [
            explanation.Subgroup(name="", key="", group="", type="none", pods=size, places=places)
        ]
    return tuple(found)


def _pods_by_path(room: Room, node: Node, placement: GroupPlacement) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for leaf in node.leaves():
        for nodes in placement.pods[id(leaf)]:
            for at, pods in nodes.items():
                found[room.path_of_leaf(at)] += pods
    return found


def _places(pods: Mapping[tuple[str, ...], int]) -> tuple[explanation.DomainPods, ...]:
    return _domain_pods({format_path(path): number for path, number in pods.items()})


def _domain_pods(pods: Mapping[tuple[str, ...], int]) -> tuple[explanation.DomainPods, ...]:
    return tuple(
        explanation.DomainPods(domain=path, pods=number) for path, number in sorted(pods.items())
    )


# -- the workflow ----------------------------------------------------------------------------


def _key_entries(
    room: Room, pool: Pool, group_requests: Sequence[TaskGroupRequests], top: int
) -> tuple[explanation.KeyDomains, ...]:
    """The pool's keys on these nodes: number of domains, and those with the most free capacity."""
    pods: Counter[Shape] = Counter()
    for one in group_requests:
        pods.update(one.tasks.values())
    fits = room.fits(max(pods, key=lambda shape: pods[shape]))
    found = []
    for level, key in enumerate(pool.topology_keys, start=1):
        domains = [at for at in range(room.domains(level)) if room.labelled(level, at)]
        sums = room.sums(level, fits)
        best = sorted(domains, key=lambda at: (-sums[at], at))[:top]
        found.append(
            explanation.KeyDomains(
                key=key.key,
                label=key.label,
                domains=len(domains),
                unlabelled=sum(key.label not in node.labels for node in room.nodes),
                best=tuple(
                    explanation.DomainPods(domain=format_path(room.path(level, at)), pods=sums[at])
                    for at in best
                ),
            )
        )
    return tuple(found)


def _unsized(workflow: Workflow) -> Iterator[str]:
    """A warning if pods request less than is counted for their tasks."""
    bare = sum(unsized_in(workflow, group) for group in workflow.groups)
    if bare:
        yield (
            f"{counted(bare, 'task')} without a size: each counts as one cpu here, but the pods "
            "that apply creates request nothing, so KAI may place them on nodes without a free cpu"
        )


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


def _possible(found: explanation.WorkflowExplanation) -> str:
    pods = counted(sum(group.pods for group in found.groups), "pod")
    if all(group.running for group in found.groups) and found.answer == "scheduled":
        return f"Running: its {pods} are bound."
    if found.answer == "scheduled":
        return f"Possible: its {pods} fit{'s' if pods == '1 pod' else ''}."
    half = [group.name for group in found.groups if group.running and group.kai.deviations]
    if half:
        return f"Not decided: only some pods of {', '.join(half)} run."
    waiting = [group.name for group in found.groups if group.answer != "scheduled"]
    names = ", ".join(waiting[:_NAMED]) + (", ..." if len(waiting) > _NAMED else "")
    verb = "does" if len(waiting) == 1 else "do"
    if found.answer == "undecided":
        return f"Not decided: the search for {names} was cut off. Increase --steps."
    if found.together:
        return (
            "Possible for all task groups at once, but KAI schedules one after another, and "
            f"{names} may not fit after the others. Submit {names} first."
        )
    if found.answer == "partly":
        return f"Not possible for all: {names} {verb} not fit after the others."
    return f"Not possible: {names} {verb} not fit."


def _of_kai(found: explanation.WorkflowExplanation) -> str:
    kai = f"KAI v{found.kai_version}"
    wrong = [group for group in found.groups if group.kai.deviations]
    names = ", ".join(sorted({one.name for group in wrong for one in group.kai.deviations}))
    which = ", ".join(group.name for group in wrong[:_NAMED])
    if all(group.running for group in found.groups) and found.kai_result == "scheduled":
        return ""
    if found.kai_result == "unknown":
        return f"What {kai} does with {which} cannot be predicted: {names}."
    if not wrong and found.answer == found.kai_result:
        return f"{kai} does the same."
    if not wrong:
        return f"{kai} {_DOES[found.kai_result]}."
    return f"But {kai} leaves {which} pending: {names}."
