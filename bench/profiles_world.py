"""Streams of jobs for the profile bench: what comes, how it is placed, what is left."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from bench.placement_world import BLOCK, GPU, GPUS, LEVELS, RACK, REQUESTS, nodes
from rackgate.features import Features
from rackgate_assigner.topology.capacity import Capacity, charge_assignment
from rackgate_assigner.topology.model import NodeInfo, PodSetRequest, SliceLayer, TopologyRequest
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.topology.tree import TopologyTree

SEEDS: Final = (11, 12, 13)
# GPUs asked for at any time, as part of all.
LOAD: Final = 0.9
# The part of the arrivals after which figures are taken.
WARM: Final = 0.4
SAMPLE_EVERY: Final = 25


@dataclass(frozen=True, slots=True)
class Sort:
    """One sort of job.

    Attributes:
        weight: how many of the stream are of this sort.
        sizes: pods, one of these.
        topology: what is asked.
        gpus: per pod.
    """

    name: str
    weight: float
    sizes: Sequence[int]
    topology: TopologyRequest | None
    gpus: int = 1


REQUIRED: Final = Sort("required rack", 3, (16, 32, 64, 96, 128), TopologyRequest(required=RACK))
PREFERRED: Final = Sort("preferred rack", 3, (48, 96, 160, 256), TopologyRequest(preferred=RACK))
SPREAD: Final = Sort("unconstrained", 3, (4, 8, 16, 24), None)
BOTH: Final = Sort(
    "block, then rack", 3, (48, 96, 160, 256), TopologyRequest(required=BLOCK, preferred=RACK)
)
SLICED: Final = Sort(
    "rack slices",
    3,
    (24, 60, 120),
    TopologyRequest(required=BLOCK, slices=(SliceLayer(RACK, 12),)),
)
WHOLE_HOST: Final = Sort("whole hosts", 1, (1, 2, 4), TopologyRequest(required=RACK), GPUS)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job of the stream; it stays for `life` arrivals."""

    sort: Sort
    podset: PodSetRequest
    life: int


@dataclass(slots=True)
class Figures:
    """What one run over a stream showed, after it had warmed up."""

    asked: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    refused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    racks: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    hosts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    spent_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    free_racks: list[float] = field(default_factory=list)
    free_hosts: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)
    first_refusal: list[int] = field(default_factory=list)

    def refusals(self, sort: str) -> float:
        """Share of requests of a sort that found no place."""
        return self.refused[sort] / max(1, self.asked[sort])


def requests(gpus: int) -> dict[str, int]:
    return {name: amount * gpus for name, amount in REQUESTS.items()}


def stream(count: int, sorts: Sequence[Sort], arrivals: int, seed: int) -> list[Arrival]:
    """Arrivals that ask for `LOAD` of all GPUs, the same for the same arguments."""
    rng = random.Random(seed)
    weights = [sort.weight for sort in sorts]
    mean = sum(
        w * s.gpus * sum(s.sizes) / len(s.sizes) for w, s in zip(weights, sorts, strict=True)
    )
    life = LOAD * count * GPUS / (mean / sum(weights))
    made = []
    for number in range(arrivals):
        sort = rng.choices(sorts, weights)[0]
        podset = PodSetRequest(
            f"job-{number}", rng.choice(sort.sizes), requests(sort.gpus), sort.topology
        )
        made.append(Arrival(sort, podset, 1 + int(rng.expovariate(1 / life))))
    return made


class Cluster:
    """Hosts of 8 GPUs whose jobs come and go."""

    def __init__(self, facts: Sequence[NodeInfo], gates: Mapping[str, bool]) -> None:
        self.tree = TopologyTree.build(LEVELS, facts)
        self.capacity = Capacity(self.tree)
        self.features = Features.of(gates)
        self.ends: dict[int, list[partial[None]]] = defaultdict(list)

    def offer(self, arrival: Arrival, now: int) -> tuple[list[int] | None, float]:
        """Place a job: its leaves, None when refused, and the seconds it took."""
        for give_back in self.ends.pop(now, ()):
            give_back()
        podset = arrival.podset
        before = time.perf_counter()
        answer = place(
            self.tree, self.capacity, [podset], topology_name="t", features=self.features
        )
        spent = time.perf_counter() - before
        if answer.failure is not None:
            return None, spent
        assignment = answer.assignments[podset.name]
        charge_assignment(self.capacity, podset.requests, assignment)

        give_back = partial(charge_assignment, self.capacity, podset.requests, assignment, -1)
        self.ends[now + arrival.life].append(give_back)
        leaves = [self.tree.leaf_of_values(values) for values, _ in assignment.domains]
        return [leaf for leaf in leaves if leaf is not None], spent

    def racks_of(self, leaves: Sequence[int]) -> int:
        return len({self.tree.domain_of_leaf(leaf, 1) for leaf in leaves})

    def sample(self, figures: Figures) -> None:
        """Shares of racks and hosts without any pod, and of GPUs in use."""
        row = self.capacity.rows[GPU]
        used = self.capacity.usage[:, row]
        racks = np.add.reduceat(used, self.tree.children[1][:-1])
        figures.free_racks.append(float((racks == 0).mean()))
        figures.free_hosts.append(float((used == 0).mean()))
        figures.used.append(float(used.sum() / (GPUS * self.tree.leaf_count)))


def run(
    count: int, arrivals: Sequence[Arrival], gates: Mapping[str, bool], figures: Figures
) -> None:
    """One stream on one cluster, from empty; what it shows is added to `figures`."""
    cluster = Cluster(nodes(count), gates)
    warm = int(len(arrivals) * WARM)
    for now, arrival in enumerate(arrivals):
        leaves, spent = cluster.offer(arrival, now)
        if now < warm:
            continue
        name = arrival.sort.name
        figures.asked[name] += 1
        figures.spent_s[name].append(spent)
        if leaves is None:
            figures.refused[name] += 1
        else:
            figures.racks[name].append(cluster.racks_of(leaves))
            figures.hosts[name].append(len(leaves))
        if now % SAMPLE_EVERY == 0:
            cluster.sample(figures)


def until_rejected(count: int, arrivals: Sequence[Arrival], gates: Mapping[str, bool]) -> int:
    """Jobs placed on an empty cluster, none of which ends, before the first refusal."""
    cluster = Cluster(nodes(count), gates)
    for placed, arrival in enumerate(arrivals):
        if cluster.offer(arrival, 0)[0] is None:
            return placed
    return len(arrivals)
