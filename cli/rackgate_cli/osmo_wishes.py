"""What a workflow asks for as the search counts it: shapes of pods, and groups of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rackgate.partners.osmo import Kind, Node, Pool, Resource, TaskGroup, Workflow, tree_of
from rackgate.quantity import amount
from rackgate_cli.osmo_room import Shape
from rackgate_cli.osmo_search import Counts, Item

GPU: Final = "nvidia.com/gpu"
_UNSIZED: Final = (("cpu", 1000),)  # OSMO's default, in thousandths
# Sizes of a resource, and what Kubernetes calls them.
_SIZES: Final = {"cpu": "cpu", "memory": "memory", "gpu": GPU, "storage": "ephemeral-storage"}


def shape_of(resource: Resource | None) -> Shape:
    """What a task of a resource takes; one cpu where no size is given at all."""
    if resource is None:
        return Shape(_UNSIZED)
    sizes = {name: getattr(resource, field_) for field_, name in _SIZES.items()}
    requests = {name: amount(name, size) for name, size in sizes.items() if size is not None}
    given = tuple(sorted((name, size) for name, size in requests.items() if size))
    return Shape(given if requests else _UNSIZED, frozenset(resource.nodesExcluded))


@dataclass(slots=True)
class Wishes:
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


def wishes_of(group: TaskGroup, workflow: Workflow, pool: Pool) -> Wishes:
    """What a task group asks for."""
    root = tree_of(group, workflow, pool)
    tasks = {task.name: shape_of(workflow.resource_of(task)) for task in group.tasks}
    shapes = tuple(dict.fromkeys(tasks.values()))
    index = {shape: at for at, shape in enumerate(shapes)}
    counts = []
    for leaf in root.leaves():
        numbers = [0] * len(shapes)
        for task in leaf.tasks:
            numbers[index[tasks[task]]] += 1
        counts.append((leaf, tuple(numbers)))
    return Wishes(group, root, shapes, counts, tasks)


def plan_of(wishes: Wishes, accepted: Collection[int] = ()) -> Plan:
    """The groups that must have a domain: those required, and preferences that are insisted on.

    Args:
        wishes: of one task group.
        accepted: `id` of preferred nodes to insist on.
    """
    counts = {id(leaf): numbers for leaf, numbers in wishes.counts}
    items: dict[int, Item] = {}
    homes: dict[int, Item] = {}
    zero = (0,) * len(wishes.shapes)

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

    return Plan(build(wishes.root, 0), items, homes)


def _below(node: Node) -> Iterator[Node]:
    for child in node.children:
        yield child
        yield from _below(child)
