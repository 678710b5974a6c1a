"""The search for places agrees with trying every assignment of tasks to nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rackgate_assigner.topology.model import NodeInfo
from rackgate_osmo import Pool, RejectedError, Workflow, read_pool, read_workflow
from rackgate_osmo.explain.placement import (
    TaskGroupRequests,
    find_placement,
    task_group_requests_of,
)
from rackgate_osmo.explain.room import Room, Shape
from rackgate_osmo.explain.search import Budget, FitTables, Item, Lot, Packing, solve

KEYS = ("zone", "rack")
POOL = read_pool({"name": "p", "topology_keys": [{"key": key, "label": key} for key in KEYS]})
# A path of groups from the root; None: no group at that key.
Path = tuple[str | None, ...]


@dataclass(frozen=True)
class World:
    pool: Pool
    workflow: Workflow
    nodes: tuple[NodeInfo, ...]

    def wishes(self) -> TaskGroupRequests:
        return task_group_requests_of(self.workflow.groups[0], self.workflow, self.pool)

    def room(self) -> Room:
        return Room([key.label for key in self.pool.topology_keys], self.nodes)


def node(number: int, cpu: int, zone: str | None, rack: str | None) -> NodeInfo:
    labels = {key: value for key, value in zip(KEYS, (zone, rack), strict=True) if value}
    return NodeInfo(f"n{number}", labels, {"cpu": cpu * 1000, "pods": 110})


@st.composite
def topologies(draw: st.DrawFn) -> list[dict[str, str]]:
    found = []
    for key in KEYS:
        if draw(st.booleans()):
            kind = draw(st.sampled_from(["required", "required", "preferred"]))
            group = draw(st.sampled_from(["a", "b"]))
            found.append({"key": key, "group": group, "requirementType": kind})
    return found


@st.composite
def worlds(draw: st.DrawFn) -> World:
    names = draw(st.integers(1, 3))
    resources = {
        f"r{at}": {"cpu": draw(st.integers(1, 2)), "topology": draw(topologies())}
        for at in range(names)
    }
    picks = draw(st.lists(st.integers(0, names - 1), min_size=1, max_size=5))
    tasks = [{"name": f"t{i}", "resource": f"r{at}"} for i, at in enumerate(picks)]
    body = {"workflow": {"name": "w", "groups": [{"name": "g", "tasks": tasks}]}}
    try:
        workflow = read_workflow({**body, "resources": resources}, POOL)
    except RejectedError:
        assume(False)
        raise
    values = st.sampled_from(["1", "1", "2", None])
    racks = st.sampled_from(["1", "2", "3", None])
    rows = draw(st.lists(st.tuples(st.integers(0, 3), values, racks), min_size=0, max_size=5))
    nodes = tuple(node(i, cpu, zone, rack) for i, (cpu, zone, rack) in enumerate(rows))
    return World(POOL, workflow, nodes)


def paths(world: World) -> dict[str, list[tuple[Path, str]]]:
    """For every task its groups from the root down, each with what is asked of it."""
    used = {
        one.key
        for task in world.workflow.groups[0].tasks
        for one in (world.workflow.resource_of(task) or assert_resource()).topology
    }
    found: dict[str, list[tuple[Path, str]]] = {}
    for task in world.workflow.groups[0].tasks:
        resource = world.workflow.resource_of(task)
        assert resource is not None
        wishes = {one.key: one for one in resource.topology}
        path: Path = ()
        rows: list[tuple[Path, str]] = []
        for key in KEYS:
            if key not in used:
                continue
            wish = wishes.get(key)
            path = (*path, wish.group if wish else None)
            rows.append(((key, *path), wish.requirementType if wish else "none"))
        found[task.name] = rows
    return found


def assert_resource() -> Any:
    raise AssertionError("every task names a resource")


def assignments(world: World) -> Iterator[tuple[int, ...]]:
    """Every way to put tasks on nodes without overfilling one."""
    tasks = world.workflow.groups[0].tasks
    sizes = [int(str((world.workflow.resource_of(t) or assert_resource()).cpu)) for t in tasks]
    room = [facts.allocatable["cpu"] // 1000 for facts in world.nodes]
    for picks in product(range(len(world.nodes)), repeat=len(tasks)):
        left = list(room)
        for pick, size in zip(picks, sizes, strict=True):
            left[pick] -= size
        if min(left, default=0) >= 0:
            yield picks


def kept(world: World, picks: Sequence[int]) -> tuple[bool, frozenset[Path]]:
    """Whether an assignment holds what is required, and the preferences that it satisfies."""
    members: dict[Path, list[int]] = {}
    kinds: dict[Path, str] = {}
    for (_, rows), pick in zip(paths(world).items(), picks, strict=True):
        for group, kind in rows:
            members.setdefault(group, []).append(pick)
            kinds[group] = kind
    good = {group for group, nodes in members.items() if is_one(world, str(group[0]), nodes)}
    held = all(group in good for group, kind in kinds.items() if kind == "required")
    return held, frozenset(group for group in good if kinds[group] == "preferred")


def is_one(world: World, key: str, picks: Sequence[int]) -> bool:
    labels = [world.nodes[pick].labels for pick in picks]
    levels = KEYS[: KEYS.index(key) + 1]
    domains = {tuple(one.get(level) for level in levels) for one in labels}
    return len(domains) == 1 and next(iter(domains))[-1] is not None


def found_picks(world: World) -> tuple[int, ...] | None:
    """The search's answer as nodes of the tasks, in their order."""
    wishes, room = world.wishes(), world.room()
    spots = find_placement(room, wishes)
    if spots is None:
        return None
    number = {facts.name: at for at, facts in enumerate(world.nodes)}
    by_task: dict[str, int] = {}
    for leaf, _ in wishes.counts:
        pools = [
            [number[room.nodes[at].name] for at, pods in nodes.items() for _ in range(pods)]
            for nodes in spots.pods[id(leaf)]
        ]
        for task in leaf.tasks:
            by_task[task] = pools[wishes.shapes.index(wishes.tasks[task])].pop()
        assert not any(pools)
    return tuple(by_task[task.name] for task in world.workflow.groups[0].tasks)


@pytest.mark.requirement("OSM-25", "OSM-20", "USR-13", "USR-14")
@given(worlds())
def test_the_search_finds_a_place_exactly_when_there_is_one(world: World) -> None:
    judged = {picks: kept(world, picks) for picks in assignments(world)}
    possible = {wishes for held, wishes in judged.values() if held}
    found = found_picks(world)
    assert (found is not None) == bool(possible)
    if found is None:
        return
    held, wishes = judged[found]
    assert held
    assert not any(wishes < other for other in possible), "more preferences could be had"


@given(worlds(), st.randoms(use_true_random=False))
def test_neither_the_order_of_nodes_nor_of_tasks_decides(world: World, random: Any) -> None:
    nodes = list(world.nodes)
    random.shuffle(nodes)
    tasks = list(world.workflow.groups[0].tasks)
    random.shuffle(tasks)
    group = world.workflow.groups[0].model_copy(update={"tasks": tuple(tasks)})
    other = World(world.pool, world.workflow.model_copy(update={"groups": (group,)}), tuple(nodes))
    assert (found_picks(world) is None) == (found_picks(other) is None)


@st.composite
def packings(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[Lot]]:
    """Nodes as (cpu, memory), and lots that use a run of them."""
    nodes = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4))
    lots = []
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(nodes) - 1))
        end = draw(st.integers(start + 1, len(nodes)))
        cpu, memory = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        shape = Shape(tuple((n, a) for n, a in (("cpu", cpu), ("memory", memory)) if a))
        lots.append(Lot(shape, draw(st.integers(1, 2)), start, end))
    return nodes, lots


@given(packings())
def test_packing_finds_nodes_exactly_when_there_are_some(
    given_: tuple[list[tuple[int, int]], list[Lot]],
) -> None:
    sizes, lots = given_
    nodes = [
        NodeInfo(f"n{at}", {}, {"cpu": cpu, "memory": memory, "pods": 110})
        for at, (cpu, memory) in enumerate(sizes)
    ]
    found = Packing(Room([], nodes), lots, Budget(100_000)).run()
    assert (found is not None) == fits(sizes, lots)
    if found is not None:
        used: Mapping[int, list[int]] = {at: [0, 0] for at in range(len(sizes))}
        for lot, counts in zip(lots, found, strict=True):
            assert sum(counts.values()) == lot.pods
            assert all(lot.start <= at < lot.end for at in counts)
            for at, pods in counts.items():
                for index, name in enumerate(("cpu", "memory")):
                    used[at][index] += pods * dict(lot.shape.requests).get(name, 0)
        assert all(below(used[at], sizes[at]) for at in used)


def below(used: Sequence[int], size: Sequence[int]) -> bool:
    return all(a <= b for a, b in zip(used, size, strict=True))


def fits(sizes: Sequence[tuple[int, int]], lots: Sequence[Lot]) -> bool:
    pods = [lot for lot in lots for _ in range(lot.pods)]
    for picks in product(*(range(lot.start, lot.end) for lot in pods)):
        left = [list(size) for size in sizes]
        for lot, at in zip(pods, picks, strict=True):
            for index, name in enumerate(("cpu", "memory")):
                left[at][index] -= dict(lot.shape.requests).get(name, 0)
        if min(min(row) for row in left) >= 0:
            return True
    return False


def drawn_room(random: Random) -> Room:
    """Zones of racks of nodes, some without a label."""
    nodes: list[NodeInfo] = []
    for zone, rack in product(range(random.randint(1, 3)), range(random.randint(1, 3))):
        for _ in range(random.randint(1, 2)):
            labels = {
                key: f"{key}{value}"
                for key, value in (("zone", zone), ("rack", rack))
                if random.random() < 0.9
            }
            offers = {"cpu": random.randint(0, 3), "pods": 110}
            nodes.append(NodeInfo(f"n{len(nodes)}", labels, offers))
    return Room(KEYS, nodes)


def drawn_item(random: Random, level: int, shapes: int) -> Item:
    """Groups in groups, many of them alike."""
    loose = [random.choice([0, 0, 1, 2]) for _ in range(shapes)]
    if level == 2 and not any(loose):
        loose[0] = 1
    children: list[Item] = []
    for _ in range(random.randint(0, 3 - level) if level < 2 else 0):
        child = drawn_item(random, random.randint(level + 1, 2), shapes)
        children += [child] if random.random() < 0.5 else [child, copied(child)]
    return Item(level, tuple(loose), children)


def copied(item: Item) -> Item:
    return Item(item.level, item.loose, [copied(child) for child in item.children])


def can(room: Room, root: Item, sizes: Sequence[int]) -> bool:
    """Try every domain of every group, and every node for every pod."""
    items = list(root.walk())
    parents = {child: item for item in items for child in item.children}
    free = room.free("cpu")

    def nodes_for(domains: Mapping[Item, int]) -> bool:
        pods = [
            (room.leaves(item.level, domains[item]), sizes[shape])
            for item in items
            for shape, count in enumerate(item.loose)
            for _ in range(count)
        ]
        pods.sort(key=lambda pod: (pod[0][1] - pod[0][0], -pod[1]))
        states = {tuple(free)}
        for (start, end), size in pods:
            states = {
                (*state[:at], state[at] - size, *state[at + 1 :])
                for state in states
                for at in range(start, end)
                if state[at] >= size
            }
        return bool(states)

    def domains_for(index: int, domains: dict[Item, int]) -> bool:
        if index == len(items):
            return nodes_for(domains)
        item, around = items[index], parents[items[index]]
        return any(
            domains_for(index + 1, {**domains, item: at})
            for at in room.within(around.level, domains[around], item.level)
            if room.labelled(item.level, at)
        )

    return domains_for(1, {root: 0})


@pytest.mark.requirement("OSM-25")
@given(st.integers(0, 1_000_000))
def test_domains_are_found_exactly_when_there_are_some(seed: int) -> None:
    random = Random(seed)
    room, sizes = drawn_room(random), [1, 2][: random.randint(1, 2)]
    root = drawn_item(random, 0, len(sizes))
    assume(len(list(root.walk())) <= 6)
    shapes = [Shape((("cpu", size),)) for size in sizes]
    found = solve(FitTables(room, shapes), root, Budget(100_000))
    assert (found is not None) == can(room, root, sizes)
