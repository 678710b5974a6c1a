"""What preemption for a rack stops: Kueue's choice, against RackgateSmallestDisruption.

Draws full clusters: Workloads of 1 to 64 nodes, of ten priorities and many ages, in one rack each
or spread over several. Then Workloads that need part of a rack are nominated one by one, each on
the same full cluster. No API server; CPU milliseconds of each nomination.

- where: the candidates are in the queue of the preemptor, or in another one of its cohort, which
  borrows all of it; "fair" is the same with fair sharing.
- spread: share of the Workloads whose pods are in several racks.

Exit code 1: a choice stops more pods than Kueue's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.queues import objects
from bench.queues.cycles import (
    FEATURES,
    Cycles,
    admitted_status,
    filled,
    frozen_heap,
    moment,
    stored,
)
from bench.queues.kueue_load import NODE_CPU, NODES_PER_RACK, WorkloadClass
from bench.queues.objects import FLAVOR, Queue
from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment, encode
from rackgate.wire.kueue import Workload
from rackgate_assigner.cache.quota_usage import seconds
from rackgate_assigner.preemption.fair_sharing import STRATEGIES
from rackgate_assigner.preemption.targets import Target
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.nomination.nominate_head import nominate_head
from rackgate_assigner.scheduler.nomination.nomination import PendingPodSet, PendingWorkload
from rackgate_assigner.topology.model import PodSetRequest, TopologyRequest
from tests.support.objects import HOST, RACK, Object

NODES: Final = (640, 2_560)
HEADS: Final = 20
SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
WEIGHTS: Final = (8, 8, 8, 8, 4, 2, 1)
PRIORITIES: Final = 10
DAY: Final = 86_400
WHERE: Final = ("queue", "cohort", "fair")
SPREADS: Final = (0.0, 0.3)
OWNER: Final = Queue(0)
BORROWER: Final = Queue(1)
SEED: Final = 1
SMALLEST: Final = "RackgateSmallestDisruption"


@dataclass(frozen=True, slots=True)
class Found:
    """Figures of one case; a pair is Kueue's choice, then ours.

    Attributes:
        decisions: nominations that preempt something.
        fewer: of these, those in which ours stops fewer pods; `more`: more pods.
        pods: that are stopped by an average nomination.
        pod_hours: run time that these lose.
        racks: in which pods are stopped, on average.
    """

    nodes: int
    workloads: int
    where: str
    spread: float
    decisions: int
    fewer: int
    more: int
    pods: tuple[float, float]
    pod_hours: tuple[float, float]
    racks: tuple[float, float]
    median_ms: tuple[float, float]
    max_ms: tuple[float, float]


def running(rng: Random, queue: Queue, nodes: int, spread: float) -> Iterator[Workload]:
    """Admitted Workloads of one pod to a node, which fill all nodes."""
    racks = [
        [*range(first, min(first + NODES_PER_RACK, nodes))]
        for first in range(0, nodes, NODES_PER_RACK)
    ]
    number = 0
    while any(racks):
        (size,) = rng.choices(SIZES, WEIGHTS)
        spreads = rng.random() < spread
        rack = rng.choice([rack for rack in racks if rack])
        taken: list[int] = []
        while rack and len(taken) < size:
            taken.append(rack.pop())
            if spreads and any(racks):
                rack = rng.choice([rack for rack in racks if rack])
        yield _admitted(f"w-{number:05}", queue, taken, rng)
        number += 1


def _admitted(name: str, queue: Queue, nodes: Sequence[int], rng: Random) -> Workload:
    of = WorkloadClass("w", len(nodes), NODE_CPU * 1000, 0.0, rng.randrange(PRIORITIES))
    domains = tuple(((f"{objects.POOL}-n{index:05}",), 1) for index in sorted(nodes))
    part: dict[str, Any] = {
        "name": "main",
        "flavors": {"cpu": FLAVOR},
        "resourceUsage": {"cpu": str(len(nodes) * NODE_CPU)},
        "count": len(nodes),
        "topologyAssignment": encode(TopologyAssignment((HOST,), domains)),
    }
    since = rng.randrange(DAY)
    status = admitted_status({"clusterQueue": queue.name, "podSetAssignments": [part]}, since)
    return stored(objects.workload(name, queue, of), since, status)


def head(rng: Random, number: int) -> PendingWorkload:
    """A Workload that needs some nodes of one rack."""
    count = rng.choice(SIZES[2:])
    request = PodSetRequest("main", count, {"cpu": NODE_CPU * 1000}, TopologyRequest(required=RACK))
    return PendingWorkload(
        f"{OWNER.name}/head-{number}",
        f"uid-head-{number}",
        OWNER.name,
        OWNER.name,
        rng.randint(PRIORITIES // 2, PRIORITIES),
        seconds(moment(DAY)),
        (PendingPodSet(request),),
        number,
    )


def measure(nodes: int, where: str, spread: float, heads: int) -> Found:
    """One case."""
    rng = Random(SEED)
    quota = nodes * NODE_CPU

    def cluster_queue(queue: Queue) -> Object:
        owns = queue == OWNER
        return objects.cluster_queue_of(queue, quota if owns else 0, 0 if owns else quota)

    world = Cycles(filled([OWNER, BORROWER], nodes, cluster_queue=cluster_queue))
    workloads = list(running(rng, OWNER if where == "queue" else BORROWER, nodes, spread))
    world.put(workloads)
    snapshot = world.cache.snapshot()
    usage = snapshot.quota_usage
    state = QuotaState(
        usage.tree,
        snapshot.cluster_queues,
        snapshot.flavors,
        snapshot.flavor_topologies,
        usage.running,
        fair_sharing=STRATEGIES if where == "fair" else None,
    )
    gates: Mapping[str, bool] = dict.fromkeys(objects.TOPOLOGY_GATES, True)
    kinds = (FEATURES, Features.of({**gates, SMALLEST: True}))
    spent: tuple[list[float], list[float]] = ([], [])
    pairs: list[list[Sequence[Target]]] = []
    with frozen_heap():
        for each in range(heads):
            preemptor = head(rng, each)
            pair: list[Sequence[Target]] = []
            for features, times in zip(kinds, spent, strict=True):
                state.features = features
                began = time.process_time()
                pair.append(nominate_head(state, preemptor).targets)
                times.append((time.process_time() - began) * 1e3)
            if pair[0]:
                pairs.append(pair)
    stopped = [[_pods(targets) for targets in pair] for pair in pairs]
    hours = [[_pod_hours(targets) for targets in pair] for pair in pairs]
    racks = [[_racks(targets) for targets in pair] for pair in pairs]
    return Found(
        nodes,
        len(workloads),
        where,
        spread,
        len(pairs),
        sum(ours < kueue for kueue, ours in stopped),
        sum(ours > kueue for kueue, ours in stopped),
        _means(stopped),
        _means(hours),
        _means(racks),
        (statistics.median(spent[0]), statistics.median(spent[1])),
        (max(spent[0]), max(spent[1])),
    )


def _means(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    return statistics.mean(row[0] for row in rows), statistics.mean(row[1] for row in rows)


def _pods(targets: Sequence[Target]) -> int:
    return sum(target.workload.pods for target in targets)


def _pod_hours(targets: Sequence[Target]) -> float:
    now = seconds(moment(DAY))
    lost = (found.workload.pods * (now - found.workload.reserved_at) for found in targets)
    return sum(lost) / 3600


def _racks(targets: Sequence[Target]) -> int:
    found = {
        int(values[-1].rpartition("-n")[2]) // NODES_PER_RACK
        for target in targets
        for charge in target.workload.charges
        for values, _ in charge.assignment.domains
    }
    return len(found)


def table(found: Sequence[Found]) -> Table:
    """One row per case."""
    made = Table(title="preemption for part of a rack: Kueue's choice, ours")
    columns = ("nodes", "running", "where", "spread", "decisions", "fewer pods", "pods")
    for name in (*columns, "pod hours", "racks", "median ms", "most ms"):
        made.add_column(name, justify="left" if name == "where" else "right")
    for one in found:
        pairs = (one.pods, one.pod_hours, one.racks, one.median_ms, one.max_ms)
        made.add_row(
            f"{one.nodes:,}",
            f"{one.workloads:,}",
            one.where,
            f"{one.spread:.0%}",
            str(one.decisions),
            str(one.fewer),
            *(f"{kueue:,.1f} {ours:,.1f}" for kueue, ours in pairs),
        )
    return made


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this part."""
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    parser.add_argument("--heads", type=int, default=HEADS, help="preemptors of each case")


def run(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measure and print; returns all figures, and whether no choice stops more pods."""
    console = Console(width=140)
    found = [
        measure(nodes, where, spread, arguments.heads)
        for nodes in arguments.nodes
        for where in WHERE
        for spread in SPREADS
    ]
    console.print(table(found))
    worse = sum(one.more for one in found)
    if worse:
        console.print(f"missed: {worse} choices stop more pods than Kueue's")
    return {"cases": [asdict(one) for one in found]}, not worse
