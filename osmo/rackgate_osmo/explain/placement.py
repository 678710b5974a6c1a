"""Exact answer to where a task group fits.

Every required group must have a domain. Then preferences are satisfied, coarsest first, as long as
all of them can be satisfied together. A preference never makes a task group unschedulable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rackgate_osmo.explain.room import Room, Shape
from rackgate_osmo.explain.search import (
    Budget,
    Counts,
    FitTables,
    Item,
    UndecidedError,
    pack,
    solve,
)
from rackgate_osmo.model.task_resources import requests_of, tolerations_of
from rackgate_osmo.model.workflow import DEFAULT_RESOURCE, Pool, TaskGroup, Toleration, Workflow
from rackgate_osmo.render.node import Kind, Node
from rackgate_osmo.render.tree import subgroup_tree_of

STEPS: Final = 100_000  # tried domains; takes a few seconds

# Names of the nodes that pods with these tolerations may not use.
ExcludedNodes: TypeAlias = Mapping[tuple[Toleration, ...], frozenset[str]]


@dataclass(slots=True)
class TaskGroupRequests:
    """What a task group requests: its tree, and the pods of its leaves.

    Attributes:
        shapes: distinct shapes of its pods.
        counts: pods by shape of each leaf of the tree.
        tasks: shape of every task, by name.
    """

    group: TaskGroup
    root: Node
    shapes: tuple[Shape, ...]
    counts: Sequence[tuple[Node, Counts]]
    tasks: Mapping[str, Shape]

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, parents first."""
        return self.root.below()

    def preferred(self) -> list[Node]:
        """Nodes that prefer a domain, coarsest first, which is also KAI's order."""
        found = [node for node in self.nodes() if node.kind is Kind.PREFERRED]
        return sorted(found, key=lambda node: node.level)


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups that must have a domain.

    Attributes:
        root: all pods.
        items: by `id` of each node that must have a domain.
        homes: by `id` of each leaf, the item whose loose pods include those of the leaf.
    """

    root: Item
    items: Mapping[int, Item]
    homes: Mapping[int, Item]


@dataclass(slots=True)
class GroupPlacement:
    """One placement of a task group.

    Attributes:
        pods: by `id` of the tree's leaves, for each shape, pods by node of the cluster.
        complete: False if the search did not decide whether more preferences can be satisfied.
    """

    pods: dict[int, list[dict[int, int]]] = field(default_factory=dict)
    complete: bool = True


def task_group_requests_of(
    group: TaskGroup, workflow: Workflow, pool: Pool, excluded_nodes: ExcludedNodes | None = None
) -> TaskGroupRequests:
    """What a task group requests."""
    found: dict[str, Shape] = {}
    for task in group.tasks:
        name = task.resource or DEFAULT_RESOURCE
        if name not in found:
            resource = workflow.resource_of(task)
            excluded = frozenset(resource.nodesExcluded) if resource is not None else frozenset()
            kept = (excluded_nodes or {}).get(tolerations_of(pool, resource), frozenset())
            found[name] = Shape(requests_of(resource), excluded | kept)
    tasks = {task.name: found[task.resource or DEFAULT_RESOURCE] for task in group.tasks}
    shapes = tuple(dict.fromkeys(tasks.values()))
    root = subgroup_tree_of(group, workflow, pool)
    counts = []
    for leaf in root.leaves():
        numbers = Counter(tasks[task] for task in leaf.tasks)
        counts.append((leaf, tuple(numbers[shape] for shape in shapes)))
    return TaskGroupRequests(group, root, shapes, counts, tasks)


def plan_of(group_requests: TaskGroupRequests, accepted: Collection[int] = ()) -> Plan:
    """The groups that must have a domain.

    Args:
        group_requests: of one task group.
        accepted: `id` of preferred nodes that must have a domain like required ones.
    """
    counts = {id(leaf): numbers for leaf, numbers in group_requests.counts}
    items: dict[int, Item] = {}
    homes: dict[int, Item] = {}

    def build(node: Node, level: int) -> Item:
        leaves: list[Node] = []
        children: list[Item] = []
        stack = [node]
        while stack:
            one = stack.pop()
            if one is not node and (one.kind is Kind.REQUIRED or id(one) in accepted):
                items[id(one)] = build(one, one.level + 1)
                children.append(items[id(one)])
                continue
            if id(one) in counts:
                leaves.append(one)
            stack.extend(reversed(one.children))
        zero = (0,) * len(group_requests.shapes)
        loose = map(sum, zip(zero, *(counts[id(leaf)] for leaf in leaves), strict=True))
        item = Item(level, tuple(loose), children)
        homes.update((id(leaf), item) for leaf in leaves)
        return item

    return Plan(build(group_requests.root, 0), items, homes)


def find_placement(
    room: Room, group_requests: TaskGroupRequests, steps: int = STEPS
) -> GroupPlacement | None:
    """A placement of a task group in the free capacity; None if there is none.

    Raises:
        UndecidedError: not decided within so many steps.
    """
    tables = FitTables(room, group_requests.shapes)
    preferred = group_requests.preferred()
    plan = plan_of(group_requests, {id(node) for node in preferred})
    try:
        found = solve(tables, plan.root, Budget(steps))
    except UndecidedError:
        found = None
    complete = True
    if found is None:
        plan = plan_of(group_requests)
        found = solve(tables, plan.root, Budget(steps))
        if found is None:
            return None
        plan, found, complete = _preferring(tables, group_requests, plan, found, steps)
    packed = pack(tables, found, Budget(steps))
    if packed is None:
        raise UndecidedError
    placement = GroupPlacement(complete=complete)
    left = {key: dict(nodes) for key, nodes in packed.items()}
    for leaf, counts in group_requests.counts:
        home = plan.homes[id(leaf)]
        nodes = room.leaves(home.level, found[home])
        placement.pods[id(leaf)] = [
            _take(left[(*nodes, shape)], pods) if pods else {} for shape, pods in enumerate(counts)
        ]
    return placement


def _preferring(
    tables: FitTables,
    group_requests: TaskGroupRequests,
    plan: Plan,
    found: dict[Item, int],
    steps: int,
) -> tuple[Plan, dict[Item, int], bool]:
    """Try the preferences one by one; keep each that can be satisfied with those kept before."""
    budget = Budget(steps)
    accepted: set[int] = set()
    for node in group_requests.preferred():
        more = plan_of(group_requests, accepted | {id(node)})
        try:
            better = solve(tables, more.root, budget)
        except UndecidedError:
            return plan, found, False
        if better is not None:
            accepted.add(id(node))
            plan, found = more, better
    return plan, found, True


def _take(left: dict[int, int], pods: int) -> dict[int, int]:
    """Take so many pods from nodes, in their order."""
    taken: dict[int, int] = {}
    for node in list(left):
        if not pods:
            break
        taken[node] = min(pods, left[node])
        pods -= taken[node]
        left[node] -= taken[node]
        if not left[node]:
            del left[node]
    return taken


def charge(room: Room, group_requests: TaskGroupRequests, placement: GroupPlacement) -> None:
    """Charge the requests of a placed task group to free capacity."""
    for by_shape in placement.pods.values():
        for shape, nodes in zip(group_requests.shapes, by_shape, strict=True):
            for node, pods in nodes.items():
                room.capacity.charge(node, dict(shape.requests), pods)


def fit_together(
    room: Room, group_requests: Sequence[TaskGroupRequests], steps: int
) -> bool | None:
    """Whether all task groups fit at once; None if undecided."""
    shapes = tuple(dict.fromkeys(shape for one in group_requests for shape in one.shapes))
    roots = [_with_shapes(plan_of(one).root, one.shapes, shapes) for one in group_requests]
    loose = tuple(map(sum, zip((0,) * len(shapes), *(root.loose for root in roots), strict=True)))
    whole = Item(0, loose, [child for root in roots for child in root.children])
    try:
        return solve(FitTables(room, shapes), whole, Budget(steps)) is not None
    except UndecidedError:
        return None


def _with_shapes(item: Item, mine: Sequence[Shape], shapes: Sequence[Shape]) -> Item:
    """The same group with its pods counted by these shapes."""
    counts = dict(zip(mine, item.loose, strict=True))
    children = [_with_shapes(child, mine, shapes) for child in item.children]
    return Item(item.level, tuple(counts.get(shape, 0) for shape in shapes), children)
