"""What the gates of ours gain on fragmented clusters, and what they cost, beside the default.

Jobs arrive and leave on clusters of 640 and 5,120 hosts; every gate sees the same arrivals as the
default, in the same order. Two more gates keep pods from where they could never run: how often
the default puts them there is counted.

Run: python -m bench.profiles [--nodes N ...] [--arrivals N]; it has no aim and always ends with 0.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.placement_world import BLOCK, GPU, GPUS, HOSTS_PER_RACK, LEVELS, RACK, nodes
from bench.profiles_world import (
    BOTH,
    PREFERRED,
    REQUIRED,
    SEEDS,
    SLICED,
    SPREAD,
    WHOLE_HOST,
    Figures,
    Sort,
    requests,
    run,
    stream,
    until_rejected,
)
from rackgate.features import Features
from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.topology.capacity import Capacity, charge_assignment
from rackgate_assigner.topology.model import PodSetRequest, TopologyRequest
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.topology.tree import TopologyTree

SIZES: Final = (640, 5_120)
ARRIVALS: Final = {640: 2_000, 5_120: 4_000}
FEWEST: Final = {"RackgateFewestDomains": True}
TWO_LEVELS: Final = {"RackgateRequiredAndPreferred": True}
TIGHT: Final = {"RackgateBestFitBelowSlices": True}
# What is asked, the sort of job that the gate is for, and the gates beside the default.
STREAMS: Final[Mapping[str, tuple[Sequence[Sort], Sort, Sequence[Mapping[str, bool]]]]] = {
    "rack jobs, required and preferred": ((REQUIRED, PREFERRED), PREFERRED, (FEWEST,)),
    "the same among small jobs without a wish": (
        (REQUIRED, PREFERRED, SPREAD),
        PREFERRED,
        (FEWEST,),
    ),
    "a block is required, a rack preferred": (
        (REQUIRED, BOTH),
        BOTH,
        (TWO_LEVELS, {**TWO_LEVELS, **FEWEST}),
    ),
    "slices of 12 pods in a rack": ((SLICED, WHOLE_HOST, SPREAD), SLICED, (TIGHT, FEWEST)),
}
COLUMNS: Final = (
    "racks / job",
    "hosts / job",
    "refused",
    "others refused",
    "free racks",
    "free hosts",
    "GPUs used",
    "first refusal",
    "ms",
    "time",
)


def figures_of(
    count: int, sorts: Sequence[Sort], arrivals: int, gates: Mapping[str, bool]
) -> Figures:
    figures = Figures()
    for seed in SEEDS:
        coming = stream(count, sorts, arrivals, seed)
        run(count, coming, gates, figures)
        figures.first_refusal.append(until_rejected(count, coming, gates))
    return figures


def row(figures: Figures, default: Figures, sort: Sort, gates: Mapping[str, bool]) -> list[str]:
    others = [name for name in figures.asked if name != sort.name]
    refused = sum(figures.refused[name] for name in others)
    asked = sum(figures.asked[name] for name in others)
    spent, before = (
        statistics.mean(time for times in one.spent_s.values() for time in times)
        for one in (figures, default)
    )
    return [
        "\n".join(name.removeprefix("Rackgate") for name in gates) or "default",
        f"{statistics.mean(figures.racks[sort.name]):.2f}",
        f"{statistics.mean(figures.hosts[sort.name]):.2f}",
        f"{figures.refusals(sort.name):.1%}",
        f"{refused / max(1, asked):.1%}",
        f"{statistics.mean(figures.free_racks):.1%}",
        f"{statistics.mean(figures.free_hosts):.1%}",
        f"{statistics.mean(figures.used):.1%}",
        f"{statistics.mean(figures.first_refusal):.0f}",
        f"{spent * 1e3:.2f}",
        f"{spent / before:.1f}x",
    ]


def gains(count: int, arrivals: int, console: Console) -> None:
    """One table for each stream."""
    for title, (sorts, sort, variants) in STREAMS.items():
        table = Table(title=f"{count:,} hosts, {title}; figures are of {sort.name} jobs")
        table.add_column("gates", min_width=20)
        for name in COLUMNS:
            table.add_column(name, justify="right")
        default = figures_of(count, sorts, arrivals, {})
        table.add_row(*row(default, default, sort, {}))
        for gates in variants:
            table.add_row(*row(figures_of(count, sorts, arrivals, gates), default, sort, gates))
        console.print(table)


def misplaced_leaders(count: int, gates: Mapping[str, bool]) -> tuple[int, int, int]:
    """Leaders placed, those on hosts that they do not tolerate, and groups refused.

    All hosts but one of each rack carry a taint that only workers tolerate.
    """
    taint = (Taint("example.com/gpu", "", "NoSchedule"),)
    facts = [
        one
        if number % HOSTS_PER_RACK == 0
        else type(one)(one.name, one.labels, one.allocatable, taint)
        for number, one in enumerate(nodes(count))
    ]
    tree = TopologyTree.build(LEVELS, facts)
    capacity = Capacity(tree)
    placed = stuck = refused = 0
    asked = TopologyRequest(required=RACK)
    tolerant = (Toleration(key="example.com/gpu", operator="Exists"),)
    for _ in range(count // HOSTS_PER_RACK * 2):
        group = [
            PodSetRequest("workers", 31, requests(1), asked, "g", tolerations=tolerant),
            PodSetRequest("leader", 1, {"cpu": 4_000}, asked, "g"),
        ]
        answer = place(tree, capacity, group, topology_name="t", features=Features.of(gates))
        if answer.failure is not None:
            refused += 1
            continue
        for podset in group:
            charge_assignment(capacity, podset.requests, answer.assignments[podset.name])
        leaf = tree.leaf_of_values(answer.assignments["leader"].domains[0][0])
        placed += 1
        stuck += leaf is not None and bool(tree.nodes[leaf].taints)
    return placed, stuck, refused


def unschedulable_pods(count: int, gates: Mapping[str, bool]) -> tuple[int, int]:
    """Pods of 5 GPUs admitted where racks are the lowest level, and those that no host can take.

    A rack has the GPUs of 25 such pods and 16 hosts that take one each; a job has 24.
    """
    tree = TopologyTree.build((BLOCK, RACK), nodes(count))
    capacity = Capacity(tree)
    podset = PodSetRequest("main", 24, {GPU: 5}, TopologyRequest(required=RACK))
    pods = homeless = 0
    while True:
        answer = place(tree, capacity, [podset], topology_name="t", features=Features.of(gates))
        if answer.failure is not None:
            return pods, homeless
        charge_assignment(capacity, podset.requests, answer.assignments["main"])
        pods += podset.count
        homeless += podset.count - HOSTS_PER_RACK * (GPUS // 5)


def promises(count: int, console: Console) -> None:
    """What the default admits and no scheduler can ever bind."""
    table = Table(title=f"{count:,} hosts, admitted where it can never run")
    for name in ("gates", "admitted", "never runs", "refused"):
        table.add_column(name, justify="right")
    for gates in ({}, {"RackgateLeaderRules": True}):
        placed, stuck, refused = misplaced_leaders(count, gates)
        table.add_row(f"{_name(gates)}: leaders", str(placed), str(stuck), str(refused))
    for gates in ({}, {"RackgateNodesBelowLeaves": True}):
        pods, homeless = unschedulable_pods(count, gates)
        table.add_row(f"{_name(gates)}: pods of 5 GPUs", str(pods), str(homeless), "")
    console.print(table)


def _name(gates: Mapping[str, bool]) -> str:
    return " ".join(name.removeprefix("Rackgate") for name in gates) or "default"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--arrivals", type=int, help="jobs of each stream")
    arguments = parser.parse_args()
    console = Console(width=150)
    for count in arguments.nodes:
        gains(count, arguments.arrivals or ARRIVALS.get(count, 2_000), console)
    promises(arguments.nodes[0], console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
