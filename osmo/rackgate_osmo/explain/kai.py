"""Predicts what KAI does with each task group, if that follows from its known behavior.

Input: the nodes as KAI counts them, and the PodGroups of the workflow. Output, for each group: KAI
places it (whatever KAI chooses), KAI leaves it pending (no domain is possible), or unknown, with
reasons. KAI's algorithm is not simulated (ADR 30, 34). The proofs use four observed facts:

1. KAI places the subgroups of a group one after another and does not move one that is placed. A
   subgroup is tried in every domain of its level inside its parent's domain until all its pods
   fit. If the level is only preferred, the whole domain of the parent is tried last.
2. A subgroup that names a level can use only nodes that carry every label of the Topology.
3. KAI decides by sums whether a subgroup fits in a domain. If all its pods use GPUs or none does,
   it counts each pod as large as the largest, resource by resource.
4. Pods are put on nodes one by one, each on some node where it fits.

The following is true for any order of domains and nodes:

- A *slot* is free capacity on one node for a pod as large as the largest of a subgroup. A subgroup
  fits in a domain with a slot for each pod: by 3 KAI counts the domain as large enough, and by 4
  each remaining pod finds a node with an empty slot.
- A pod that was placed earlier uses a bounded number of slots (`_weight`), on any node. So earlier
  pods can block only so many domains. If more domains are large enough, one of them remains.

KAI handles groups in the order of their age, which is not known here. So each group is predicted
as if it came first, and again with all other groups before it that KAI may place. A group that
fits in no domain when it comes first fits in none later. Complexity: domains times subgroups, cut
off after `STEPS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rackgate_assigner.topology.model import NodeInfo
from rackgate_osmo.explain import reasons
from rackgate_osmo.explain.explanation import Deviation, KaiResult
from rackgate_osmo.explain.placement import TaskGroupRequests, fit_together
from rackgate_osmo.explain.room import MISSING, BoundPod, Nodes, Room, Shape
from rackgate_osmo.explain.search import Budget, UndecidedError
from rackgate_osmo.model.task_resources import (
    Requests,
    counted_by_largest,
    is_overcounted,
    is_sized,
)
from rackgate_osmo.model.workflow import Built, KaiVersion, Pool, TaskGroup, Workflow
from rackgate_osmo.render.subgroups import SubGroup, hides_level, levels_of, subgroup_of_built

STEPS: Final = 3_000_000  # checked domains; takes a few seconds


# -- what KAI is given -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KaiView:
    """The nodes as KAI sees them, without the pending pods of the workflow.

    Attributes:
        room: the nodes that pods may use.
        after_terminations: like `room`, after terminating pods are gone; KAI counts in this way.
        labelled: like `after_terminations`, only nodes that carry every label of the Topology.
        all_labelled: like `labelled`, with nodes that pods may not use but KAI counts.
        counted: label values of the nodes that KAI certainly counts, cordoned ones too.
        outside_pool: number of nodes outside the pool that no node selector excludes.
        ambiguous_domains: two domains that are equal after KAI has joined their values with dots.
        terminating: number of terminating pods on nodes that pods may use.
    """

    room: Room
    after_terminations: Room
    labelled: Room
    all_labelled: Room
    counted: Sequence[tuple[str, ...]]
    outside_pool: int
    ambiguous_domains: tuple[str, str] | None
    terminating: int


def kai_view_of(pool: Pool, usable: Sequence[NodeInfo], nodes: Nodes) -> KaiView:
    """The nodes as KAI sees them, with bound pods charged."""
    labels = [key.label for key in pool.topology_keys]
    names = {node.name for node in usable}
    staying = [pod for pod in nodes.pods if not pod.terminating]
    everything = (*nodes.nodes, *nodes.others)

    def labelled(some: Iterable[NodeInfo]) -> list[NodeInfo]:
        return [node for node in some if all(label in node.labels for label in labels)]

    def room(some: Sequence[NodeInfo], pods: Iterable[BoundPod]) -> Room:
        found = Room(labels, some)
        found.charge_pods(pods)
        return found

    terminating = sum(pod.terminating and pod.node in names for pod in nodes.pods)
    now, carrying = room(usable, nodes.pods), labelled(usable)
    later = room(usable, staying) if terminating else now
    all_labelled = room(labelled(everything), staying)
    return KaiView(
        room=now,
        after_terminations=later,
        labelled=later if len(carrying) == len(usable) else room(carrying, staying),
        all_labelled=all_labelled,
        counted=[
            tuple(node.labels[label] for label in labels)
            for node in labelled(everything)
            if node.name in names or (node.unschedulable and node.ready)
        ],
        outside_pool=sum(
            pool.node_selector.items() <= node.labels.items() for node in nodes.others
        ),
        ambiguous_domains=_ambiguous_domains(all_labelled),
        terminating=terminating,
    )


def _ambiguous_domains(room: Room) -> tuple[str, str] | None:
    seen: dict[str, tuple[str, ...]] = {}
    for values in {path[:-1] for path in room.tree.paths[-1]}:
        for depth in range(1, len(values) + 1):
            found = seen.setdefault(".".join(values[:depth]), values[:depth])
            if found != values[:depth]:
                one, other = sorted(["/".join(found), "/".join(values[:depth])])
                return one, other
    return None


class PodBatch(NamedTuple):
    """Pods, by shape, that share one domain of a level of the `Room`; at level 0 they need not."""

    level: int
    pods: Mapping[Shape, int]


@dataclass(frozen=True, slots=True)
class KaiPodGroup:
    """A task group's PodGroup of one profile.

    Attributes:
        levels: node labels of the Topology.
        unsized: number of tasks whose pods request nothing, although one cpu is counted for each.
        running: number of its pods that are bound.
        alone: whether it fits without the other groups, after terminating pods are gone; None if
            undecided.
    """

    name: str
    top: SubGroup
    levels: tuple[str, ...]
    requests: TaskGroupRequests
    unsized: int
    running: int
    alone: bool | None

    def shapes_of(self, subgroup: SubGroup) -> list[Shape]:
        """Shapes of a subgroup's pods."""
        return [self.requests.tasks[task] for task in subgroup.tasks]

    def requests_of(self, subgroup: SubGroup) -> list[Requests]:
        """Requests of a subgroup's pods."""
        return [self.requests.tasks[task].requests for task in subgroup.tasks]

    def constrained(self) -> list[SubGroup]:
        """The subgroups that name a level."""
        return [subgroup for subgroup in self.top.walk() if subgroup.constrained]


def kai_pod_group_of(
    built: Built,
    workflow: Workflow,
    requests: TaskGroupRequests,
    running: int,
    alone: bool | None,
) -> KaiPodGroup:
    """The PodGroup of a task group."""
    group = requests.group
    index = workflow.groups.index(group)
    name, top = (
        built.pod_groups[index]["metadata"]["name"],
        subgroup_of_built(built, index, group.name),
    )
    unsized = unsized_in(workflow, group)
    return KaiPodGroup(name, top, levels_of(built), requests, unsized, running, alone)


def unsized_in(workflow: Workflow, group: TaskGroup) -> int:
    """Number of a group's tasks whose pods, as `apply` creates them, request nothing."""
    made = (task for task in group.tasks if task.image is not None)
    return sum(not is_sized(workflow.resource_of(task)) for task in made)


# -- what KAI does ---------------------------------------------------------------------------


class Prediction(NamedTuple):
    """What KAI does with a task group, and why; no reasons if it does what is possible."""

    result: KaiResult
    reasons: tuple[Deviation, ...] = ()


def predict(
    view: KaiView, certain: Certainty, groups: Sequence[KaiPodGroup], steps: int
) -> list[Prediction]:
    """What KAI does with each PodGroup of a workflow, in whatever order it handles them.

    Args:
        view: without the workflow's pending pods.
        certain: of the view.
        groups: the PodGroups; their order does not matter.
        steps: number of domains that each search may try.
    """
    first = [_first(view, group, certain, steps) for group in groups]
    batches = [_may_be_placed(*one) for one in zip(groups, first, strict=True)]
    found = []
    for mine, (group, prediction) in enumerate(zip(groups, first, strict=True)):
        others = [one for at, some in enumerate(batches) if at != mine for one in some]
        if (
            group.running
            or not others
            or prediction.result == "pending"
            or (prediction.result == "scheduled" and certain.places(group, _merged(others)))
        ):
            found.append(prediction)
        else:
            found.append(Prediction("unknown", (*prediction.reasons, reasons.groups_before())))
    return found


def _may_be_placed(group: KaiPodGroup, found: Prediction) -> list[PodBatch]:
    """The pods of a group that KAI may place before another group."""
    if group.running:  # the pods that do not run may belong to any task
        lacking = len(group.top.tasks) - group.running
        return [PodBatch(0, {_largest(group.shapes_of(group.top)): lacking})] if lacking > 0 else []
    if found.result == "pending":
        return []
    return list(_batches_of(group.top, group.requests.tasks))


def _merged(batches: Sequence[PodBatch]) -> list[PodBatch]:
    """The same batches, with those that share no domain merged into one."""
    loose: Counter[Shape] = Counter()
    for batch in batches:
        if not batch.level:
            loose.update(batch.pods)
    return [*(batch for batch in batches if batch.level), PodBatch(0, loose)]


def _first(view: KaiView, group: KaiPodGroup, certain: Certainty, steps: int) -> Prediction:
    """What KAI does with a PodGroup if it handles it before the others of the workflow."""
    pods, constrained = len(group.top.tasks), group.constrained()
    if group.running >= pods:
        return Prediction("scheduled")
    if group.running:
        return Prediction("unknown", (reasons.partly(group.running, pods),))
    if constrained and view.ambiguous_domains is not None:
        return Prediction("unknown", (reasons.dots(*view.ambiguous_domains),))
    if group.alone is not False and certain.places(group, ()):
        return Prediction("scheduled")
    if view.outside_pool:
        return Prediction("unknown", (reasons.outside_pool(view.outside_pool),))
    if group.alone is None:
        return Prediction("unknown", (reasons.search_limit(),))
    # If pods may request less than is counted for them, a lack of capacity proves nothing.
    exact = not group.unsized
    if exact and not group.alone:
        return Prediction("pending")
    ruled_out = [
        *(_unlabelled(view, group, steps) if exact and constrained else ()),
        *_one_domain(view, group, certain.kai),
        *(_mixed(view, group, constrained) if exact else ()),
    ]
    if ruled_out:
        return Prediction("pending", tuple(ruled_out))
    return Prediction("unknown", tuple(_uncertain_reasons(view, group, certain)))


def _unlabelled(view: KaiView, group: KaiPodGroup, steps: int) -> Iterator[Deviation]:
    """The pods, all constrained, do not fit on the nodes that have all labels."""
    bare = len(view.room.nodes) - len(view.labelled.nodes)
    under = {task for subgroup in group.constrained() for task in subgroup.tasks}
    if not bare or len(under) < len(group.top.tasks):
        return
    if fit_together(view.labelled, [group.requests], steps) is False:
        yield reasons.unlabelled(bare, view.room.nodes, group.levels)


def _one_domain(view: KaiView, group: KaiPodGroup, kai: KaiVersion) -> Iterator[Deviation]:
    """All nodes with labels are in one domain below a level, and no parent narrows them down."""
    paths = [path[:-1] for path in view.all_labelled.tree.paths[-1]]
    for subgroup, nested in _with_nesting(group.top, bound=False):
        level = subgroup.level
        if level is None or nested or not hides_level(subgroup, len(group.levels) - 1, kai):
            continue
        if len({path[: level + 2] for path in paths}) == 1:
            yield reasons.one_domain(group.levels, level)
            return


def _mixed(
    view: KaiView, group: KaiPodGroup, constrained: Sequence[SubGroup]
) -> Iterator[Deviation]:
    """No domain fits a subgroup if each pod counts as large as the largest."""
    for subgroup in constrained:
        if not is_overcounted(group.requests_of(subgroup)):
            continue
        big = Shape(_largest(group.shapes_of(subgroup)).requests)
        level = 0 if subgroup.required is None else subgroup.required + 1
        room = max(view.all_labelled.sums(level, view.all_labelled.fits(big)), default=0)
        if room < len(subgroup.tasks):
            where = f"one {group.levels[level - 1]}" if level else "the nodes"
            what = f"counted so, its {len(subgroup.tasks)} pods do not fit in {where}"
            yield reasons.mixed(subgroup, what)
            return


def _uncertain_reasons(
    view: KaiView, group: KaiPodGroup, certain: Certainty
) -> Iterator[Deviation]:
    """Why KAI may leave a group pending that fits, or place one that does not."""
    subgroups = list(group.top.walk())
    found = False
    if group.unsized:
        yield reasons.unsized(group.unsized)
        found = True
    if view.terminating:
        yield reasons.terminating(view.terminating)
        found = True
    for subgroup, nested in _with_nesting(group.top, bound=False):
        if subgroup.level is not None and _may_hide_anywhere(view, certain, subgroup, nested):
            yield reasons.one_domain(group.levels, subgroup.level)
            found = True
            break
    mixed = [one for one in subgroups if len(set(group.requests_of(one))) > 1]
    overcounted = [
        one for one in mixed if one.constrained and is_overcounted(group.requests_of(one))
    ]
    if overcounted:
        yield reasons.mixed(overcounted[-1], "KAI may reject a domain in which they fit")
    elif mixed:
        yield reasons.packing()
    parents = [one for one in subgroups if len(one.children) > 1]
    if parents or not (found or mixed):
        yield reasons.siblings(parents[0] if parents else group.top, group.name)


def _with_nesting(subgroup: SubGroup, *, bound: bool) -> Iterator[tuple[SubGroup, bool]]:
    """All subgroups, and whether a parent names a level."""
    yield subgroup, bound
    for below in subgroup.children:
        yield from _with_nesting(below, bound=bound or subgroup.constrained)


def _may_hide_anywhere(view: KaiView, certain: Certainty, subgroup: SubGroup, nested: bool) -> bool:
    levels = range((subgroup.level or 0) + 1) if nested else range(1)
    return any(
        certain.may_hide(subgroup, level, domain, nested=nested)
        for level in levels
        for domain in range(view.room.domains(level))
        if view.room.labelled(level, domain)
    )


# -- what KAI places for certain -------------------------------------------------------------


@dataclass(slots=True)
class Certainty:
    """What KAI certainly places in the free capacity.

    Attributes:
        room: does not change; its levels are those of the Topology.
        counted: as in `KaiView`.
    """

    room: Room
    kai: KaiVersion
    counted: Sequence[tuple[str, ...]]
    _shapes: Mapping[str, Shape] = field(default_factory=dict)
    _budget: Budget = field(default_factory=lambda: Budget(STEPS))
    _slots: dict[tuple[Shape, bool, int], list[int]] = field(default_factory=dict)
    _big: dict[tuple[str, ...], Shape] = field(default_factory=dict)
    _single: dict[int, dict[tuple[str, ...], bool]] = field(default_factory=dict)

    def places(self, group: KaiPodGroup, before: Sequence[PodBatch]) -> bool:
        """Whether KAI places a PodGroup wherever it put earlier pods; False means unknown."""
        self._shapes, self._budget, self._big = group.requests.tasks, Budget(STEPS), {}
        try:
            return self._placed(group.top, 0, 0, before, bound=False)
        except UndecidedError:
            return False

    def may_hide(self, subgroup: SubGroup, level: int, domain: int, *, nested: bool) -> bool:
        """Whether KAI may not find the level of a subgroup among the nodes of a domain."""
        if not hides_level(subgroup, self.room.depth - 1, self.kai, nested=nested):
            return False
        finer = (subgroup.level or 0) + 2
        if finer not in self._single:
            inside: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
            for path in self.counted:
                for depth in range(finer):
                    inside.setdefault(path[:depth], set()).add(path[:finer])
            self._single[finer] = {path: len(found) == 1 for path, found in inside.items()}
        return self._single[finer].get(self.room.path(level, domain), True)

    def _placed(
        self,
        subgroup: SubGroup,
        level: int,
        domain: int,
        before: Sequence[PodBatch],
        *,
        bound: bool,
    ) -> bool:
        """Whether a subgroup certainly gets a domain inside the domain of its parent."""
        if self.may_hide(subgroup, level, domain, nested=bound):
            return False
        if subgroup.required is None or subgroup.required + 1 <= level:
            bound = bound or subgroup.constrained
            return self._fits(subgroup, level, domain, before, bound=bound)
        target = subgroup.required + 1
        inside = self.room.within(level, domain, target)
        big, pods = self._largest_of(subgroup), len(subgroup.tasks)
        pieces, slots = self._max_blocked(before, big, target)
        if subgroup.children:
            free = [d for d in inside if self._fits(subgroup, target, d, (), bound=True)]
            return len(free) > pieces or any(
                self._fits(subgroup, target, d, before, bound=True) for d in free
            )
        self._budget.spend(len(inside))
        available = self._slots_of(big, target, bound=True)
        # To block a domain, a batch must be in it and use enough slots to leave one too few.
        prices = [available[d] - pods + 1 for d in inside if available[d] >= pods]
        return len(prices) > pieces or sum(prices) > slots

    def _fits(
        self,
        subgroup: SubGroup,
        level: int,
        domain: int,
        before: Sequence[PodBatch],
        *,
        bound: bool,
    ) -> bool:
        """Whether a subgroup certainly fits in a domain, wherever in it the earlier pods are."""
        self._budget.spend(1 + len(subgroup.children))
        # Not only leaves: KAI counts each subgroup that names a level, and all inside such a one.
        if not subgroup.children or (
            bound and counted_by_largest([self._shapes[task].requests for task in subgroup.tasks])
        ):
            big = self._largest_of(subgroup)
            taken = self._max_blocked(before, big, level)[1]
            if self._slots_of(big, level, bound=bound)[domain] - taken < len(subgroup.tasks):
                return False
        earlier = list(before)
        for below in subgroup.order():
            if not self._placed(below, level, domain, earlier, bound=bound):
                return False
            earlier += _batches_of(below, self._shapes)
        return True

    def _largest_of(self, subgroup: SubGroup) -> Shape:
        known = self._big.get(subgroup.tasks)
        if known is None:
            known = _largest([self._shapes[task] for task in subgroup.tasks])
            self._big[subgroup.tasks] = known
        return known

    def _slots_of(self, shape: Shape, level: int, *, bound: bool) -> list[int]:
        key = (shape, bound, level)
        if key not in self._slots:
            counts = self.room.fits(shape)
            self._budget.spend(len(counts))
            if bound:
                counts = [
                    0 if MISSING in self.room.path_of_leaf(leaf) else count
                    for leaf, count in enumerate(counts)
                ]
            self._slots[key] = self.room.sums(level, counts)
        return self._slots[key]

    def _max_blocked(
        self, batches: Sequence[PodBatch], shape: Shape, level: int
    ) -> tuple[int, int]:
        """Upper bounds: domains of a level that contain these pods, and slots that the pods use."""
        number = total = 0
        self._budget.spend(len(batches))
        for batch in batches:
            number += 1 if batch.level >= level > 0 else sum(batch.pods.values())
            total += sum(_weight(other, shape) * pods for other, pods in batch.pods.items())
        return number, total


def _largest(shapes: Sequence[Shape]) -> Shape:
    """The maximum by resource, excluded from every node that any of the shapes is excluded from."""
    most: dict[str, int] = {}
    for name, amount in (pair for shape in set(shapes) for pair in shape.requests):
        most[name] = max(amount, most.get(name, 0))
    excluded = frozenset().union(*(shape.excluded for shape in set(shapes)))
    return Shape(tuple(sorted(most.items())), excluded)


def _batches_of(
    subgroup: SubGroup, shapes: Mapping[str, Shape], level: int = 0
) -> Iterator[PodBatch]:
    """The pods of a subgroup, in batches that share one domain each."""
    if subgroup.required is not None:
        level = max(level, subgroup.required + 1)
    if not subgroup.children:
        yield PodBatch(level, Counter(shapes[task] for task in subgroup.tasks))
    for below in subgroup.children:
        yield from _batches_of(below, shapes, level)


def _weight(other: Shape, shape: Shape) -> int:
    """Upper bound for the slots of a shape that another pod uses on its node."""
    theirs = dict(other.requests)
    return max([1, *(-(-theirs.get(name, 0) // need) for name, need in shape.requests if need)])
