"""What the placement bench measures: single questions, whole cycles, first questions, memory."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Final

from bench.placement_world import (
    GPUS,
    KINDS,
    LEVELS,
    RACK,
    REQUESTS,
    RULES,
    STATES,
    loaded,
    nodes,
    podsets,
    sketch,
)
from rackgate_assigner.topology.capacity import Capacity, charge_assignment
from rackgate_assigner.topology.model import NodeInfo, PodSetRequest, TopologyRequest
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.topology.tree import TopologyTree
from tests.support.placement_oracle import Cluster, oracle_place

ROUNDS: Final = 7
LEAST_S: Final = 0.002
# The plain Python reference is asked up to this size.
ORACLE_LIMIT: Final = 5_120
CYCLE_PLACEMENTS: Final = 1_000
CYCLE_PODS: Final = 16
CYCLE_SIZES: Final = (5_120, 10_240, 40_960, 102_400)
MEMORY_NODES: Final = 10_240


@dataclass(frozen=True, slots=True)
class Cell:
    """One question of the matrix."""

    nodes: int
    state: str
    kind: str
    rules: str
    fits: bool

    @property
    def name(self) -> str:
        """Unique, for files."""
        outcome = "fits" if self.fits else "does not fit"
        return f"{self.kind}, {self.state}, rules {self.rules}, {outcome}, {self.nodes} nodes"


def cells(sizes: Sequence[int], *, everything: bool) -> Iterator[Cell]:
    """The whole matrix, or what is looked at by default: half full, without rules and with all."""
    for count, state, kind, rules, fits in product(sizes, STATES, KINDS, RULES, (True, False)):
        usual = state == "half full" and rules in ("none", "all")
        if everything or usual or (count == 40_960 and rules == "none"):
            yield Cell(count, state, kind, rules, fits)


def paired(calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """CPU milliseconds of one call, round by round; the calls take turns."""
    numbers = {name: _enough(call) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for name, call in calls.items():
                found[name].append(_timed(call, numbers[name]) / numbers[name] * 1e3)
    finally:
        gc.enable()
    return found


def _enough(call: Callable[[], object]) -> int:
    """How many calls are long enough to measure."""
    call()
    number = 1
    while _timed(call, number) < LEAST_S:
        number *= 2
    return number


def _timed(call: Callable[[], object], number: int) -> float:
    """Seconds of this thread's own: another program's turn on the core does not count."""
    before = time.thread_time()
    for _ in range(number):
        call()
    return time.thread_time() - before


class Clusters:
    """Trees and capacities of one size, made on first use."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.trees: dict[bool, TopologyTree] = {}
        self.facts: dict[bool, list[NodeInfo]] = {}
        self._capacities: dict[tuple[bool, str], Capacity] = {}
        self.build_ms = 0.0

    def tree(self, *, tainted: bool = False) -> TopologyTree:
        if tainted not in self.trees:
            facts = self.facts[tainted] = nodes(self.count, tainted=tainted)
            before = time.thread_time()
            self.trees[tainted] = TopologyTree.build(LEVELS, facts)
            self.build_ms = (time.thread_time() - before) * 1e3
        return self.trees[tainted]

    def capacity(self, state: str, *, tainted: bool = False) -> Capacity:
        key = (tainted, state)
        if key not in self._capacities:
            self._capacities[key] = loaded(self.tree(tainted=tainted), state)
        return self._capacities[key]


def question(clusters: Clusters, cell: Cell) -> Callable[[], object]:
    """One placement on a fresh snapshot, where nothing is kept from the question before.

    Raises:
        RuntimeError: the answer is not the one that the cell speaks of.
    """
    tainted = cell.rules in ("taints", "all")
    tree, capacity = clusters.tree(tainted=tainted), clusters.capacity(cell.state, tainted=tainted)
    asked = podsets(cell.kind, count=cell.nodes, state=cell.state, rules=cell.rules, fits=cell.fits)

    def call() -> object:
        return place(tree, capacity.copy(), asked, topology_name="t")

    if (place(tree, capacity, asked, topology_name="t").failure is None) is not cell.fits:
        raise RuntimeError(f"not the expected outcome: {cell.name}")
    return call


def reference(clusters: Clusters, cell: Cell) -> Callable[[], object]:
    """The same question asked of the plain Python reference; its cluster is read beforehand."""
    tree, capacity = clusters.tree(), clusters.capacity(cell.state)
    row = capacity.rows["nvidia.com/gpu"]
    used = (GPUS - capacity.free_row(row)).tolist()
    usage = [
        (tree.values_of_leaf(leaf), dict(REQUESTS), pods) for leaf, pods in enumerate(used) if pods
    ]
    cluster = Cluster(LEVELS, clusters.facts[False], topology="t", usage=usage)
    asked = podsets(cell.kind, count=cell.nodes, state=cell.state)
    return partial(oracle_place(cluster), asked)


def sketched(clusters: Clusters, cell: Cell) -> Callable[[], object]:
    """A required rack in bare NumPy, on the same numbers."""
    asked = podsets("required rack", count=cell.nodes, state=cell.state)
    return partial(sketch, clusters.tree(), clusters.capacity(cell.state), asked)


def contenders(clusters: Clusters, cell: Cell) -> dict[str, Callable[[], object]]:
    """The engine, and what can be asked the same."""
    calls = {"engine": question(clusters, cell)}
    plain = cell.state == "half full" and cell.rules == "none" and cell.fits
    if plain and cell.nodes <= ORACLE_LIMIT:
        calls["oracle"] = reference(clusters, cell)
    if plain and cell.kind == "required rack":
        calls["sketch"] = sketched(clusters, cell)
    return calls


def ratio(found: Mapping[str, Sequence[float]], base: str) -> float:
    """How many times as long the base takes; the best of both, which foreign work spares."""
    return min(found[base]) / min(found["engine"])


def cycles(clusters: Clusters) -> dict[str, list[float]]:
    """Microseconds of one of 1,000 placements in one cycle, each charged before the next.

    `engine`: one shape; `from scratch`: the same with nothing kept between them; `many shapes`:
    more shapes in turns than are kept; `sketch`: bare NumPy, charged likewise.
    """
    found: dict[str, list[float]] = {}
    asked = PodSetRequest("workers", CYCLE_PODS, REQUESTS, TopologyRequest(required=RACK))
    shapes = [replace(asked, requests={**REQUESTS, "cpu": 4_000 + n}) for n in range(12)]
    ways: dict[str, Callable[[Capacity], None]] = {
        "engine": lambda capacity: _cycle(capacity, [asked]),
        "from scratch": lambda capacity: _cycle(capacity, [asked], keep=False),
        "many shapes": lambda capacity: _cycle(capacity, shapes),
        "sketch": lambda capacity: _sketched_cycle(capacity, asked),
    }
    for _ in range(3):
        for name, way in ways.items():
            capacity = clusters.capacity("half full").copy()
            seconds = _timed(partial(way, capacity), 1)
            found.setdefault(name, []).append(seconds / CYCLE_PLACEMENTS * 1e6)
    return found


def _cycle(capacity: Capacity, shapes: Sequence[PodSetRequest], *, keep: bool = True) -> None:
    for number in range(CYCLE_PLACEMENTS):
        asked = shapes[number % len(shapes)]
        if not keep:
            capacity.cache.clear()
        placed = place(capacity.tree, capacity, [asked], topology_name="t")
        charge_assignment(capacity, asked.requests, placed.assignments["workers"])


def _sketched_cycle(capacity: Capacity, asked: PodSetRequest) -> None:
    for _ in range(CYCLE_PLACEMENTS):
        spots = sketch(capacity.tree, capacity, [asked])
        capacity.charge_leaves([leaf for leaf, _ in spots], REQUESTS, [n for _, n in spots])


def first_question_ms(count: int) -> float:
    """A question with all rules on a tree that was asked nothing before: labels are read."""
    tree = TopologyTree.build(LEVELS, nodes(count, tainted=True))
    asked = podsets("required rack", count=count, rules="all")
    return _timed(partial(place, tree, Capacity(tree), asked, topology_name="t"), 1) * 1e3


def snapshot_us(capacity: Capacity) -> tuple[float, float]:
    """Microseconds of a snapshot, and of one with its first charge, which copies the numbers."""

    def charged() -> None:
        capacity.copy().charge(0, REQUESTS, 1)

    found = paired({"copy": capacity.copy, "charged": charged})
    return statistics.median(found["copy"]) * 1e3, statistics.median(found["charged"]) * 1e3


def memory_mib() -> dict[str, float]:
    """MiB per 10,000 nodes: tree, capacity, and what a cycle keeps for one shape."""
    facts = nodes(MEMORY_NODES)
    tracemalloc.start()
    try:
        held = [_held()]
        tree = TopologyTree.build(LEVELS, facts)
        held.append(_held())
        capacity = Capacity(tree)
        held.append(_held())
        place(tree, capacity, podsets("required rack", count=MEMORY_NODES), topology_name="t")
        held.append(_held())
    finally:
        tracemalloc.stop()
    scale = 10_000 / MEMORY_NODES / 2**20
    names = ("tree", "capacity", "kept for one shape")
    return {
        name: (after - before) * scale
        for name, before, after in zip(names, held[:-1], held[1:], strict=True)
    }


def _held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
