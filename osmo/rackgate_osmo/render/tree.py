"""The subgroup tree of a task group: one node for each group of tasks that shares a domain.

Every task has one node for every level in play, so all leaves have the same depth: KAI before 0.13
ignores the pods of a leaf at a smaller depth (from then on KAI[mixed-depth]). If a task does not
name a level, it gets a filler: a node below its parent that only prefers a domain. All such tasks
below the same parent share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rackgate.resources.quantity import to_milli
from rackgate_osmo.model import names
from rackgate_osmo.model.task_resources import Requests, requests_of
from rackgate_osmo.model.workflow import (
    DEFAULT_RESOURCE,
    Pool,
    Profile,
    Requirement,
    TaskGroup,
    Workflow,
)
from rackgate_osmo.render import profiles
from rackgate_osmo.render.node import Kind, Node


class _Shape(NamedTuple):
    """Tasks of one resource."""

    requirements: Mapping[int, Requirement]
    tasks: Sequence[str]
    gpus_milli: int
    requests: Requests


def subgroup_tree_of(
    group: TaskGroup, workflow: Workflow, pool: Pool, profile: Profile = Profile.SEED
) -> Node:
    """The root of the named tree of a task group of a valid workflow.

    Levels that all tasks share are a chain of unnamed nodes below the root, see `shared`. Without
    subgroups the last node of the chain has the tasks.
    """
    shapes = _shapes_of(group, workflow, pool, profile)
    root = Node(-1, "", Kind.ROOT)
    # Levels in play: those that any task names, coarsest first.
    levels = sorted({level for shape in shapes for level in shape.requirements})
    _fill(root, shapes, levels, bound=False)
    _name(root, profile)
    return root


def shared(root: Node) -> list[Node]:
    """Nodes that contain all tasks, coarsest first: their levels are not subgroups.

    A filler is never one of them: some task names each level in play, so a filler has a sibling.
    """
    chain, node = [], root
    while len(node.children) == 1:
        node = node.children[0]
        chain.append(node)
    return chain


def _shapes_of(group: TaskGroup, workflow: Workflow, pool: Pool, profile: Profile) -> list[_Shape]:
    """The tasks of a group by resource; a missing resource requests nothing."""
    positions = {key.key: index for index, key in enumerate(pool.topology_keys)}
    members: dict[str, list[str]] = {}
    for task in group.tasks:
        members.setdefault(task.resource or DEFAULT_RESOURCE, []).append(task.name)
    found = []
    for name, tasks in members.items():
        resource = workflow.resources.get(name)
        requirements = {positions[one.key]: one for one in resource.topology} if resource else {}
        gpus = to_milli(resource.gpu) * len(tasks) if resource and resource.gpu else 0
        requests = requests_of(resource) if profile is Profile.ROBUST else ()
        found.append(_Shape(requirements, tasks, gpus, requests))
    return found


def _fill(node: Node, shapes: Sequence[_Shape], levels: Sequence[int], *, bound: bool) -> None:
    """Add the children of a node, or its tasks if no level is left.

    `bound`: the node or a parent requires a domain.
    """
    node.size = sum([len(shape.tasks) for shape in shapes])
    node.gpus_milli = sum([shape.gpus_milli for shape in shapes])
    node.requires = node.kind is Kind.REQUIRED
    if not levels:
        node.tasks = tuple([task for shape in shapes for task in shape.tasks])
        return
    level = levels[0]
    members: dict[str | None, list[_Shape]] = {}
    for shape in shapes:
        requirement = shape.requirements.get(level)
        members.setdefault(requirement.group if requirement else None, []).append(shape)
    children = []
    for group, inside in members.items():
        kind = _kind(inside[0].requirements.get(level))
        below = bound or kind is Kind.REQUIRED
        split_by_size = profiles.is_split_by_size([shape.requests for shape in inside], bound=below)
        leaves = _by_size(inside) if split_by_size and not levels[1:] else [inside]
        for part, some in enumerate(leaves, start=1):
            child = Node(level, group or "", kind)
            child.part = part if len(leaves) > 1 else 0
            child.split_by_size = split_by_size and len(leaves) == 1
            _fill(child, some, levels[1:], bound=below)
            children.append(child)
            node.requires = node.requires or child.requires
    node.children = tuple(children)


def _by_size(shapes: Sequence[_Shape]) -> list[list[_Shape]]:
    """Shapes grouped by size, in an order that depends on the sizes only."""
    found: dict[Requests, list[_Shape]] = {}
    for shape in shapes:
        found.setdefault(shape.requests, []).append(shape)
    return [found[requests] for requests in sorted(found, reverse=True)]


def _kind(requirement: Requirement | None) -> Kind:
    if requirement is None:
        return Kind.FILLER
    return Kind.REQUIRED if requirement.required else Kind.PREFERRED


def _name(root: Node, profile: Profile) -> None:
    """Name everything below the levels that all tasks share, and sort siblings by name."""
    chain = shared(root)
    top = chain[-1] if chain else root
    nodes: list[Node] = []
    texts: list[str] = []
    paths: list[names.Path] = []

    def walk(parent: Node, before: str, path: names.Path) -> None:
        prefixes = profiles.name_prefixes(parent.children, profile)
        for child, prefix in zip(parent.children, prefixes, strict=True):
            group = None if child.kind is Kind.FILLER else child.group
            text = before + names.segment(group)
            own: names.Path = (*path, group)
            if child.part:  # only leaves have one, so the longer path is unique
                text, own = f"{text}-{child.part}", (*own, str(child.part))
            nodes.append(child)
            texts.append(prefix + text)
            paths.append(own)
            if child.children:
                walk(child, f"{text}-", paths[-1])

    walk(top, "", ())
    for node, name in zip(nodes, names.unique_names(texts, paths), strict=True):
        node.name = name
    for node in (top, *nodes):
        if len(node.children) > 1:
            node.children = tuple(sorted(node.children, key=lambda child: child.name))
