"""Where a task group can go: an exact answer, with the placement engine choosing the nodes.

Required groups must have a domain; then as many preferences as can be had together, coarsest
first. Preferences never keep anything from being placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api.names import HOSTNAME_LABEL
from rackgate_assigner.topology.model import PodSetRequest, TopologyRequest
from rackgate_assigner.topology.placement.place import place
from rackgate_osmo import Node
from rackgate_osmo.explain.packing import Lot, Packing
from rackgate_osmo.explain.requests import Plan, TaskGroupRequests, plan_of
from rackgate_osmo.explain.room import Room, Shape
from rackgate_osmo.explain.search import Budget, FitTables, Item, Search, UndecidedError

STEPS: Final = 100_000  # tries of a domain: some seconds


@dataclass(slots=True)
class GroupPlacement:
    """A way to place a task group.

    Attributes:
        domains: level and domain by `id` of the tree's nodes: those required, and the preferences
            that are satisfied.
        pods: pods by node of the cluster, by `id` of the tree's leaves; in step with the shapes.
        complete: whether no further preference can be satisfied; False where that was not decided.
    """

    domains: dict[int, tuple[int, int]]
    pods: dict[int, list[Mapping[int, int]]] = field(default_factory=dict)
    complete: bool = True


def find_placement(
    room: Room, group_requests: TaskGroupRequests, steps: int = STEPS
) -> GroupPlacement | None:
    """A way to place a task group on the room there is, or None: there is none.

    Raises:
        UndecidedError: not decided within so many steps.
    """
    tables = FitTables(room, group_requests.shapes)
    preferred = group_requests.preferred()
    accepted = {id(node) for node in preferred}
    plan = plan_of(group_requests, accepted)
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
        if preferred:
            plan, found, complete = _preferring(tables, group_requests, plan, found, steps)
    domains = {node: (item.level, found[item]) for node, item in plan.items.items()}
    placement = GroupPlacement(domains, complete=complete)
    lots, owners = lots_of(tables, group_requests, plan, found)
    for (leaf, shape), nodes in zip(owners, nodes_of(room, lots, Budget(steps)), strict=True):
        by_shape = placement.pods.setdefault(leaf, [{} for _ in group_requests.shapes])
        by_shape[shape] = nodes
    return placement


def solve(tables: FitTables, root: Item, budget: Budget, at: int = 0) -> dict[Item, int] | None:
    """A domain for every item such that all pods find a node; None where there is no way.

    Raises:
        UndecidedError: the budget is used up.
    """
    search = Search(tables, root, budget, at)
    if tables.uniform:
        return search.run()
    return search.run(lambda found: _packs(tables, root, found, budget))


def charge(room: Room, group_requests: TaskGroupRequests, placement: GroupPlacement) -> None:
    """Take the room of a task group."""
    for by_shape in placement.pods.values():
        for shape, nodes in zip(group_requests.shapes, by_shape, strict=True):
            for node, pods in nodes.items():
                room.charge(node, dict(shape.requests), pods)


def lots_of(
    tables: FitTables, group_requests: TaskGroupRequests, plan: Plan, found: Mapping[Item, int]
) -> tuple[list[Lot], list[tuple[int, int]]]:
    """Equal pods of each leaf with the nodes they may use; and whose they are: leaf and shape."""
    lots, owners = [], []
    for leaf, counts in group_requests.counts:
        home = plan.homes[id(leaf)]
        start, end = tables.room.leaves(home.level, found[home])
        for index, pods in enumerate(counts):
            if pods:
                lots.append(Lot(group_requests.shapes[index], pods, start, end))
                owners.append((id(leaf), index))
    return lots, owners


def nodes_of(room: Room, lots: Sequence[Lot], budget: Budget) -> list[Mapping[int, int]]:
    """Pods by node for lots that fit, by the engine; where it goes astray, by exact packing.

    Raises:
        UndecidedError: neither found a way that is known to exist.
    """
    left = room.copy()
    found: list[Mapping[int, int]] = [{}] * len(lots)
    for at in sorted(range(len(lots)), key=lambda at: _order(lots[at])):
        lot = lots[at]
        request = PodSetRequest(
            name="pods",
            count=lot.pods,
            requests=dict(lot.shape.requests),
            topology=TopologyRequest(preferred=room.tree.levels[-2]) if room.depth else None,
            node_affinity=_excluded_nodes_affinity(lot.shape),
        )
        placed = place(
            room.tree,
            left.capacity,
            [request],
            topology_name="pool",
            leaf_range=(lot.start, lot.end),
        )
        if placed.failure is not None:
            packed = Packing(room, lots, budget).run()
            if packed is None:
                raise UndecidedError
            return packed
        nodes = {}
        for (host,), pods in placed.assignments["pods"].domains:
            leaf = room.tree.leaf_of_host(host)
            if leaf is not None:
                nodes[leaf] = pods
                left.charge(leaf, request.requests, pods)
        found[at] = nodes
    return found


def _preferring(
    tables: FitTables,
    group_requests: TaskGroupRequests,
    plan: Plan,
    found: dict[Item, int],
    steps: int,
) -> tuple[Plan, dict[Item, int], bool]:
    """One preference after another, each kept if all that are kept can be had together."""
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


def _packs(tables: FitTables, root: Item, found: Mapping[Item, int], budget: Budget) -> bool:
    """Whether there is a node for every pod once domains are chosen."""
    merged: dict[tuple[int, int, int], int] = {}
    for item in root.walk():
        run = tables.room.leaves(item.level, found[item])
        for shape, pods in enumerate(item.loose):
            if pods:
                merged[(*run, shape)] = merged.get((*run, shape), 0) + pods
    lots = [
        Lot(tables.shapes[shape], pods, start, end)
        for (start, end, shape), pods in sorted(merged.items())
    ]
    return Packing(tables.room, lots, budget).run() is not None


def _order(lot: Lot) -> tuple[int, int]:
    # Who may go to fewer nodes goes first: inner domains before outer ones.
    return lot.end - lot.start, -sum(amount for _, amount in lot.shape.requests)


def _excluded_nodes_affinity(shape: Shape) -> dict[str, Any] | None:
    """An affinity that keeps pods from the nodes they may not run on."""
    if not shape.excluded:
        return None
    rule = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": sorted(shape.excluded)}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [rule]}]
        }
    }


def satisfied(placement: GroupPlacement, node: Node) -> bool:
    """Whether all pods of a tree's node share a domain of its level as asked."""
    return id(node) in placement.domains
