"""A cycle that chooses preemption targets among many candidates, on 2,000 full nodes.

All CPUs are in use by Workloads of low priorities; then one Workload of the highest priority asks
for 64 whole nodes. No API server; CPU milliseconds from its creation to the decisions. Kueue is
reported to take 40 s with 700 candidates.

- where: the candidates are in the queue of the preemptor, or in another one of its cohort, which
  borrows all of it.
- what: it needs one rack, or quota alone.

Exit code 1: a case preempts nothing, or takes longer than half a second with 700 candidates.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.queues import objects
from bench.queues.cycles import Cycles, admitted_status, filled, frozen_heap, stored
from bench.queues.kueue_load import NODE_CPU, NODES_PER_RACK, WorkloadClass
from bench.queues.objects import FLAVOR, Queue
from rackgate.topology.assignment import TopologyAssignment, encode
from rackgate.wire.kueue import Workload
from rackgate_assigner.workload.decisions import Preempt
from tests.support.objects import HOST, Object

CANDIDATES: Final = (700, 10_000)
NODES: Final = 2_000
ROUNDS: Final = 5
POD_CPU: Final = 8
PODS_PER_NODE: Final = NODE_CPU // POD_CPU
AIM_MS: Final = 500.0
AIM_UP_TO: Final = 700
OWNER: Final = Queue(0)
BORROWER: Final = Queue(1)
# Where the candidates are.
WITHIN: Final = "queue"
COHORT: Final = "cohort"
# The decision may come in a cycle after the first, but not much later.
CYCLES: Final = 3


@dataclass(frozen=True, slots=True)
class Found:
    """Figures of one case.

    Attributes:
        topology: whether the preemptor needs a rack.
        targets: Workloads that were preempted.
        preempted_cpu: CPUs of these; the preemptor asks for 6,144.
    """

    candidates: int
    where: str
    topology: bool
    median_ms: float
    max_ms: float
    targets: int
    preempted_cpu: int


def shares(slots: int, parts: int) -> list[int]:
    """All slots in parts that differ by one at most.

    Raises:
        ValueError: there are more parts than slots.
    """
    if not 0 < parts <= slots:
        raise ValueError(f"{slots} slots in {parts} parts")
    each, more = divmod(slots, parts)
    return [each + (number < more) for number in range(parts)]


def candidates(queue: Queue, count: int, nodes: int, *, topology: bool) -> Iterator[Workload]:
    """Admitted Workloads that fill all nodes side by side, of ten priorities and many ages."""
    slot = 0
    for number, pods in enumerate(shares(nodes * PODS_PER_NODE, count)):
        of = WorkloadClass("candidate", pods, POD_CPU * 1000, 0.0, number % 10)
        hosts: dict[str, int] = {}
        for each in range(slot, slot + pods):
            host = f"{objects.POOL}-n{each // PODS_PER_NODE:05}"
            hosts[host] = hosts.get(host, 0) + 1
        slot += pods
        part: dict[str, Any] = {
            "name": "main",
            "flavors": {"cpu": FLAVOR},
            "resourceUsage": {"cpu": str(pods * POD_CPU)},
            "count": pods,
        }
        if topology:
            domains = tuple(((host,), pods_there) for host, pods_there in hosts.items())
            part["topologyAssignment"] = encode(TopologyAssignment((HOST,), domains))
        status = admitted_status(
            {"clusterQueue": queue.name, "podSetAssignments": [part]}, number * 7919 % 86_400
        )
        yield stored(objects.workload(f"candidate-{number:05}", queue, of), number, status)


def preemptor(*, topology: bool) -> Workload:
    """One pod for each node of a rack, with all its CPUs."""
    constraint = "required" if topology else ""
    of = WorkloadClass("preemptor", NODES_PER_RACK, NODE_CPU * 1000, 0.0, 1000, constraint)
    return stored(objects.workload("preemptor", OWNER, of), 86_400)


def measure(count: int, where: str, nodes: int, *, topology: bool) -> Found:
    """One case: each round in a new world, as evictions change it."""
    spent: list[float] = []
    targets: list[Workload] = []
    quota = nodes * NODE_CPU

    def cluster_queue(queue: Queue) -> Object:
        owns = queue == OWNER
        return objects.cluster_queue_of(queue, quota if owns else 0, 0 if owns else quota)

    for _ in range(ROUNDS):
        world = Cycles(
            filled([OWNER, BORROWER], nodes, topology=topology, cluster_queue=cluster_queue)
        )
        holder = OWNER if where == WITHIN else BORROWER
        world.put(candidates(holder, count, nodes, topology=topology))
        with frozen_heap():
            world.cycle()  # builds what the first cycle of a process builds
            spent_ms, decisions = world.cycle(world.arrive(preemptor(topology=topology)))
            for _ in range(CYCLES - 1):
                chosen = [one.workload for one in decisions if isinstance(one, Preempt)]
                if chosen:
                    break
                more_ms, decisions = world.cycle()
                spent_ms += more_ms
        spent.append(spent_ms)
        targets = [world.workloads[one.workload] for one in decisions if isinstance(one, Preempt)]
    pods = sum(part.count for target in targets for part in target.spec.pod_sets)
    return Found(
        count, where, topology, statistics.median(spent), max(spent), len(targets), pods * POD_CPU
    )


def table(found: Sequence[Found], nodes: int) -> Table:
    """One row per case."""
    made = Table(title=f"preemption for 64 of {nodes:,} nodes (CPU ms)")
    columns = ("candidates", "where", "what", "median", "most", "preempted", "their CPUs")
    for name in columns:
        made.add_column(name, justify="left" if name in ("where", "what") else "right")
    for one in found:
        made.add_row(
            f"{one.candidates:,}",
            one.where,
            "rack" if one.topology else "quota",
            f"{one.median_ms:,.1f}",
            f"{one.max_ms:,.1f}",
            f"{one.targets:,}",
            f"{one.preempted_cpu:,}",
        )
    return made


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this part."""
    parser.add_argument("--candidates", type=int, nargs="+", default=list(CANDIDATES))
    parser.add_argument("--nodes", type=int, default=NODES)


def run(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measure and print; returns all figures, and whether every case preempts in time."""
    console = Console()
    found = [
        measure(count, where, arguments.nodes, topology=topology)
        for count in arguments.candidates
        for topology in (False, True)
        for where in (WITHIN, COHORT)
    ]
    console.print(table(found, arguments.nodes))
    late = [one for one in found if one.candidates <= AIM_UP_TO and one.median_ms > AIM_MS]
    for one in late:
        console.print(f"missed: {one.candidates} candidates, {one.median_ms:.0f} ms")
    none = [one for one in found if not one.targets]
    if none:
        console.print(f"{len(none)} of {len(found)} cases preempted nothing")
    return {"cases": [asdict(one) for one in found]}, not late and not none
