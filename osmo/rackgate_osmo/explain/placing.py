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
from rackgate_osmo.explain.requests import Plan, Wishes, plan_of
from rackgate_osmo.explain.room import Room, Shape
from rackgate_osmo.explain.search import Budget, Item, Search, Tables, UndecidedError

STEPS: Final = 100_000  # tries of a domain: some seconds


@dataclass(slots=True)
class Spots:
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


def find_spots(room: Room, wishes: Wishes, steps: int = STEPS) -> Spots | None:
    """A way to place a task group on the room there is, or None: there is none.

    Raises:
        UndecidedError: not decided within so many steps.
    """
    tables = Tables(room, wishes.shapes)
    preferred = wishes.preferred()
    accepted = {id(node) for node in preferred}
    plan = plan_of(wishes, accepted)
    try:
        found = solve(tables, plan.root, Budget(steps))
    except UndecidedError:
        found = None
    complete = True
    if found is None:
        plan = plan_of(wishes)
        found = solve(tables, plan.root, Budget(steps))
        if found is None:
            return None
        if preferred:
            plan, found, complete = _preferring(tables, wishes, plan, found, steps)
    domains = {node: (item.level, found[item]) for node, item in plan.items.items()}
    spots = Spots(domains, complete=complete)
    lots, owners = lots_of(tables, wishes, plan, found)
    for (leaf, shape), nodes in zip(owners, nodes_of(room, lots, Budget(steps)), strict=True):
        by_shape = spots.pods.setdefault(leaf, [{} for _ in wishes.shapes])
        by_shape[shape] = nodes
    return spots


def solve(tables: Tables, root: Item, budget: Budget, at: int = 0) -> dict[Item, int] | None:
    """A domain for every item such that all pods find a node; None where there is no way.

    Raises:
        UndecidedError: the budget is used up.
    """
    search = Search(tables, root, budget, at)
    if tables.uniform:
        return search.run()
    return search.run(lambda found: _packs(tables, root, found, budget))


def charge(room: Room, wishes: Wishes, spots: Spots) -> None:
    """Take the room of a task group."""
    for by_shape in spots.pods.values():
        for shape, nodes in zip(wishes.shapes, by_shape, strict=True):
            for node, pods in nodes.items():
                room.charge(node, dict(shape.requests), pods)


def lots_of(
    tables: Tables, wishes: Wishes, plan: Plan, found: Mapping[Item, int]
) -> tuple[list[Lot], list[tuple[int, int]]]:
    """Equal pods of each leaf with the nodes they may use; and whose they are: leaf and shape."""
    lots, owners = [], []
    for leaf, counts in wishes.counts:
        home = plan.homes[id(leaf)]
        start, end = tables.room.leaves(home.level, found[home])
        for index, pods in enumerate(counts):
            if pods:
                lots.append(Lot(wishes.shapes[index], pods, start, end))
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
            node_affinity=_elsewhere(lot.shape),
        )
        placed = place(
            room.tree,
            left.capacity,
            [request],
            topology_name="pool",
            fence=(lot.start, lot.end),
        )
        if placed.refused is not None:
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
    tables: Tables, wishes: Wishes, plan: Plan, found: dict[Item, int], steps: int
) -> tuple[Plan, dict[Item, int], bool]:
    """One preference after another, each kept if all that are kept can be had together."""
    budget = Budget(steps)
    accepted: set[int] = set()
    for node in wishes.preferred():
        more = plan_of(wishes, accepted | {id(node)})
        try:
            better = solve(tables, more.root, budget)
        except UndecidedError:
            return plan, found, False
        if better is not None:
            accepted.add(id(node))
            plan, found = more, better
    return plan, found, True


def _packs(tables: Tables, root: Item, found: Mapping[Item, int], budget: Budget) -> bool:
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


def _elsewhere(shape: Shape) -> dict[str, Any] | None:
    """An affinity that keeps pods from the nodes they may not run on."""
    if not shape.excluded:
        return None
    rule = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": sorted(shape.excluded)}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [rule]}]
        }
    }


def satisfied(spots: Spots, node: Node) -> bool:
    """Whether all pods of a tree's node share a domain of its level as asked."""
    return id(node) in spots.domains
