"""What a workflow asks for as the search counts it: shapes of pods, and groups of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from rackgate_osmo import (
    Kind,
    Node,
    Pool,
    Resource,
    TaskGroup,
    Toleration,
    Workflow,
    subgroup_tree_of,
    tolerations_of,
)
from rackgate_osmo.explain.room import Shape
from rackgate_osmo.explain.search import Counts, Item
from rackgate_osmo.model.model import DEFAULT_RESOURCE
from rackgate_osmo.model.sizes import requests_of

# Nodes that pods with these tolerations may not run on, by name.
ExcludedNodes: TypeAlias = Mapping[tuple[Toleration, ...], frozenset[str]]


def shape_of(resource: Resource | None, excluded_nodes: frozenset[str] = frozenset()) -> Shape:
    """What a task of a resource takes; one cpu where no size is given at all."""
    excluded = frozenset(resource.nodesExcluded) if resource is not None else frozenset()
    return Shape(requests_of(resource), excluded | excluded_nodes)


@dataclass(slots=True)
class TaskGroupRequests:
    """One task group: its tree, and the pods of its leaves.

    Attributes:
        shapes: of its pods, each once.
        counts: pods by shape of each leaf of the tree.
        tasks: shape of every task, by name.
    """

    group: TaskGroup
    root: Node
    shapes: tuple[Shape, ...]
    counts: list[tuple[Node, Counts]] = field(default_factory=list)
    tasks: Mapping[str, Shape] = field(default_factory=dict)

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, each after its parent."""
        yield from _below(self.root)

    def preferred(self) -> list[Node]:
        """Nodes that would rather have a domain, coarsest first: so KAI takes them, too."""
        found = [node for node in self.nodes() if node.kind is Kind.PREFERRED]
        return sorted(found, key=lambda node: node.level)


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups that must have a domain.

    Attributes:
        root: everything.
        items: the item of each node that must have a domain.
        homes: for each leaf of the tree the item that its pods are loose in.
    """

    root: Item
    items: Mapping[int, Item]
    homes: Mapping[int, Item]


def task_group_requests_of(
    group: TaskGroup, workflow: Workflow, pool: Pool, excluded_nodes: ExcludedNodes | None = None
) -> TaskGroupRequests:
    """What a task group asks for.

    Args:
        group: of the workflow.
        workflow: holds the resources.
        pool: holds the levels, and what its pods tolerate.
        excluded_nodes: none by default.
    """
    root = subgroup_tree_of(group, workflow, pool)
    found: dict[str, Shape] = {}
    tasks = {}
    for one in group.tasks:
        name = one.resource or DEFAULT_RESOURCE
        if name not in found:
            resource = workflow.resource_of(one)
            kept = (excluded_nodes or {}).get(tolerations_of(pool, resource), frozenset())
            found[name] = shape_of(resource, kept)
        tasks[one.name] = found[name]
    shapes = tuple(dict.fromkeys(tasks.values()))
    index = {shape: at for at, shape in enumerate(shapes)}
    counts = []
    for leaf in root.leaves():
        numbers = [0] * len(shapes)
        for task in leaf.tasks:
            numbers[index[tasks[task]]] += 1
        counts.append((leaf, tuple(numbers)))
    return TaskGroupRequests(group, root, shapes, counts, tasks)


def plan_of(group_requests: TaskGroupRequests, accepted: Collection[int] = ()) -> Plan:
    """The groups that must have a domain: those required, and preferences that are insisted on.

    Args:
        group_requests: of one task group.
        accepted: `id` of preferred nodes to insist on.
    """
    counts = {id(leaf): numbers for leaf, numbers in group_requests.counts}
    items: dict[int, Item] = {}
    homes: dict[int, Item] = {}
    zero = (0,) * len(group_requests.shapes)

    def build(node: Node, level: int) -> Item:
        loose = list(counts.get(id(node), zero))
        leaves, children = ([node] if id(node) in counts else []), []
        stack = list(reversed(node.children))
        while stack:
            child = stack.pop()
            if child.kind is Kind.REQUIRED or id(child) in accepted:
                items[id(child)] = build(child, child.level + 1)
                children.append(items[id(child)])
                continue
            if id(child) in counts:
                loose = [a + b for a, b in zip(loose, counts[id(child)], strict=True)]
                leaves.append(child)
            stack.extend(reversed(child.children))
        item = Item(level, tuple(loose), children)
        homes.update((id(leaf), item) for leaf in leaves)
        return item

    return Plan(build(group_requests.root, 0), items, homes)


def _below(node: Node) -> Iterator[Node]:
    for child in node.children:
        yield child
        yield from _below(child)
