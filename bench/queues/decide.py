"""A scheduling cycle alone, against the number of queues, pending Workloads and nodes.

No API server: cache, snapshot and plan in this process. Queues and Workloads are those of Kueue's
load with a topology. Times are CPU milliseconds. One size grows at a time, then all of them:

- first: the first cycle, which judges every Workload.
- settling: all cycles after it until nothing more is decided.
- arrives: one Workload is created that has to wait.
- ends: one Workload finishes, and others may take its place.
- memory: per 10,000 pending Workloads, in the cache and in the store of the watch.

Exit code 1: a cycle after one change takes longer than the aim.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.queues import objects
from bench.queues.cycles import Cycles, filled, frozen_heap, stored
from bench.queues.kueue_load import NODES_PER_RACK, NOMINAL_CPU, WorkloadClass, streams
from bench.queues.objects import Queue
from rackgate.wire.kueue import Workload

QUEUES: Final = (30, 300, 3_000)
PENDING: Final = (1_500, 15_000, 150_000)
NODES: Final = (640, 5_120, 40_960)
ROUNDS: Final = 15
MEMORY_OF: Final = 10_000
AIM_MS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of everything."""

    queues: int
    pending: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Found:
    """Figures of one size, in CPU milliseconds.

    Attributes:
        admitted: by all cycles until nothing more was decided.
        settling_cycles: after the first.
        arrives_ms: the median; `arrives_max_ms` the most; the same for `ends`.
    """

    size: Size
    first_ms: float
    admitted: int
    settling_cycles: int
    settling_ms: float
    arrives_ms: float
    arrives_max_ms: float
    ends_ms: float
    ends_max_ms: float


def sizes(queues: Sequence[int], pending: Sequence[int], nodes: Sequence[int]) -> list[Size]:
    """The least of everything, each alone larger, and the most of everything."""
    least = Size(queues[0], pending[0], nodes[0])
    found = [least]
    found += [Size(more, least.pending, least.nodes) for more in queues[1:]]
    found += [Size(least.queues, more, least.nodes) for more in pending[1:]]
    found += [Size(least.queues, least.pending, more) for more in nodes[1:]]
    return list(dict.fromkeys([*found, Size(queues[-1], pending[-1], nodes[-1])]))


def mixture() -> list[WorkloadClass]:
    """Fifty classes, each as often as in the load, in a fixed order that mixes them."""
    left = {part.of: part.count for part in streams(topology=True, scale=0.1)}
    total = dict(left)
    order: list[WorkloadClass] = []
    while any(left.values()):
        of = max(left, key=lambda one: left[one] / total[one])
        left[of] -= 1
        order.append(of)
    return order


def workloads(queues: Sequence[Queue], count: int) -> Iterator[Workload]:
    """Pending Workloads in turns of the queues, one a second."""
    classes = mixture()
    for number in range(count):
        turn, index = divmod(number, len(queues))
        queue, of = queues[index], classes[(turn + index) % len(classes)]
        yield stored(objects.workload(f"{of.name}-{number:07}", queue, of), number)


def measure(size: Size) -> Found:
    """All figures of one size."""
    queues = [Queue(index) for index in range(size.queues)]
    world = Cycles(filled(queues, size.nodes))
    world.put(workloads(queues, size.pending))
    with frozen_heap():
        first_ms, _ = world.cycle()
        settling = world.settle()
        admitted = len(world.admitted)
        if not admitted:
            raise AssertionError("no Workload was admitted: are the queues active?")
        arrives = [_arrive(world, queues, size, number) for number in range(ROUNDS)]
        ends = [_end(world, key) for key in list(world.admitted)[:: max(1, admitted // ROUNDS)]]
    return Found(
        size,
        first_ms=first_ms,
        admitted=admitted,
        settling_cycles=len(settling),
        settling_ms=sum(settling),
        arrives_ms=statistics.median(arrives),
        arrives_max_ms=max(arrives),
        ends_ms=statistics.median(ends),
        ends_max_ms=max(ends),
    )


def _arrive(world: Cycles, queues: Sequence[Queue], size: Size, number: int) -> float:
    """One that asks for all of its queue, and is less urgent than all others: it waits."""
    of = WorkloadClass("late", NODES_PER_RACK, NOMINAL_CPU * 1000 // NODES_PER_RACK, 0.0, 0)
    queue = queues[number % len(queues)]
    late = size.pending + number
    made = stored(objects.workload(f"{of.name}-{late:07}", queue, of), late)
    spent_ms, _ = world.cycle(world.arrive(made))
    world.settle()
    return spent_ms


def _end(world: Cycles, key: str) -> float:
    if key not in world.admitted:  # preempted meanwhile
        key = next(iter(world.admitted))
    spent_ms, _ = world.cycle(world.finish(key))
    world.settle()
    return spent_ms


def memory_mib() -> dict[str, float]:
    """What 10,000 pending Workloads take in the cache, and with the store of the watch."""
    queues = [Queue(index) for index in range(QUEUES[0])]
    cache = filled(queues, NODES[0])
    cache.snapshot()
    gc.collect()
    tracemalloc.start()
    store = list(workloads(queues, MEMORY_OF))
    in_store, _ = tracemalloc.get_traced_memory()
    for workload in store:
        cache.set_workload(workload)
    cache.snapshot()
    gc.collect()
    both, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"cache": (both - in_store) / 2**20, "store": in_store / 2**20}


def shown(spent_ms: float) -> str:
    """Milliseconds in three digits or more."""
    return f"{spent_ms:,.0f}" if spent_ms >= 100 else f"{spent_ms:.1f}"


def table(found: Sequence[Found]) -> Table:
    """One row per size."""
    made = Table(title="one scheduling cycle (CPU ms)")
    columns = ("queues", "pending", "nodes", "first", "admitted", "settling: cycles, ms")
    for name in (*columns, "arrives: median, most", "ends: median, most"):
        made.add_column(name, justify="right")
    for one in found:
        made.add_row(
            f"{one.size.queues:,}",
            f"{one.size.pending:,}",
            f"{one.size.nodes:,}",
            f"{one.first_ms:,.0f}",
            f"{one.admitted:,}",
            f"{one.settling_cycles:,}, {one.settling_ms:,.0f}",
            f"{shown(one.arrives_ms)}, {shown(one.arrives_max_ms)}",
            f"{shown(one.ends_ms)}, {shown(one.ends_max_ms)}",
        )
    return made


def missed(found: Sequence[Found]) -> list[str]:
    """Cycles after one change that take longer than the aim."""
    lines = []
    for one in found:
        for name, spent_ms in (("arrives", one.arrives_ms), ("ends", one.ends_ms)):
            if spent_ms > AIM_MS:
                size = f"{one.size.queues} queues, {one.size.pending} pending, {one.size.nodes}"
                lines.append(f"{size} nodes, {name}: {spent_ms:.1f} ms, aim {AIM_MS:g} ms")
    return lines


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this part."""
    for name, values in (("queues", QUEUES), ("pending", PENDING), ("nodes", NODES)):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=list(values))


def run(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measure and print; returns all figures, and whether every aim is met."""
    console = Console()
    found = []
    for size in sizes(arguments.queues, arguments.pending, arguments.nodes):
        found.append(measure(size))
        gc.collect()
    console.print(table(found))
    memory = memory_mib()
    console.print(
        f"{MEMORY_OF:,} pending Workloads: cache {memory['cache']:.1f} MiB,"
        f" store of the watch {memory['store']:.1f} MiB"
    )
    lines = missed(found)
    for line in lines:
        console.print(f"missed: {line}")
    figures = {"sizes": [asdict(one) for one in found], "mib_per_10000_pending": memory}
    return figures, not lines
