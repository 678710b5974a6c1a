"""Backfill in a StrictFIFO queue: the same drawn jobs with and without it, in simulated time.

One queue has all GPUs of a cluster with racks. Jobs arrive at random, more than half of them small,
and some as large as half of the cluster. Most users request more time than their jobs take, and
some set no maximum execution time. Both histories use the scheduling cycle of the assigner.

- used: GPU hours in use of those that there are, until the last job arrives.
- wait: hours from arrival to admission, of all jobs and of those that were a head without backfill.
- ahead: jobs that were admitted ahead of a head.
- later: of those heads, how many were admitted later with backfill, and by how many hours: running
  jobs ended early (ADR 46).
- decision: CPU milliseconds of one call for one head, with all candidates behind it.

Exit code 1: a head was admitted after an expected start that it had.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from rackgate_assigner.quota_scenario.format import QuotaScenario
from rackgate_assigner.quota_scenario.scenario import PendingQueues, build_state
from rackgate_assigner.scheduler.nomination.nomination import PendingWorkload
from tests.support.backfill_history import History, Run

RACKS, HOSTS_PER_RACK, GPUS_PER_HOST = 8, 8, 8
GPUS: Final = RACKS * HOSTS_PER_RACK * GPUS_PER_HOST
GPU: Final = "nvidia.com/gpu"
# Pods of 8 GPUs, and how often.
SIZES: Final = {1: 40, 2: 20, 4: 15, 8: 15, 16: 6, 32: 4}
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Kind:
    """What is drawn.

    Attributes:
        load: GPU hours that arrive, of those that there are.
        exact: jobs take their maximum execution time; else a tenth of it to all of it.
        endless: share of jobs without a maximum.
    """

    name: str
    load: float
    exact: bool
    endless: float


KINDS: Final = (
    Kind("exact", 0.9, exact=True, endless=0.0),
    Kind("early", 0.9, exact=False, endless=0.0),
    Kind("10 % endless", 0.9, exact=False, endless=0.1),
)


@dataclass(frozen=True, slots=True)
class Found:
    """Figures of one kind and seed; of pairs, the first one is without backfill."""

    kind: str
    seed: int
    used: tuple[float, float]
    wait_h: tuple[float, float]
    head_wait_h: tuple[float, float]
    heads: int
    ahead: int
    later: int
    later_by_h: float
    decision_ms: float
    decision_max_ms: float
    kept: bool


@dataclass
class _TimedHistory(History):
    """A history that measures its decisions about backfill."""

    spent_ms: list[float] = field(default_factory=list)

    def backfill(self, head: PendingWorkload, now: float) -> None:
        started = time.process_time()
        super().backfill(head, now)
        self.spent_ms.append((time.process_time() - started) * 1000)


def scenario_of(jobs: Sequence[tuple[int, bool]]) -> QuotaScenario:
    """The cluster, its queue, and pending Workloads: pods of 8 GPUs, and whether in one rack."""
    nodes = [
        {
            "name": f"n{index}",
            "labels": {
                "rack": f"r{index // HOSTS_PER_RACK}",
                "kubernetes.io/hostname": f"n{index}",
            },
            "allocatable": {GPU: str(GPUS_PER_HOST), "pods": "110"},
        }
        for index in range(RACKS * HOSTS_PER_RACK)
    ]
    workloads = [
        {
            "namespace": "ns",
            "name": f"w{index:05}",
            "queue": "q",
            "created": index,
            "podSets": [
                {
                    "name": "main",
                    "count": pods,
                    "requests": {GPU: str(GPUS_PER_HOST)},
                    "topologyRequest": {"required" if one_rack else "preferred": "rack"},
                }
            ],
        }
        for index, (pods, one_rack) in enumerate(jobs)
    ]
    quota = {"name": "gpus", "quotas": {GPU: {"nominal": str(GPUS)}}}
    document = {
        "id": "backfill",
        "flavors": [{"name": "gpus", "topology": "t"}],
        "topologies": [{"name": "t", "levels": ["rack", "kubernetes.io/hostname"]}],
        "nodes": nodes,
        "clusterQueues": [
            {
                "name": "q",
                "queueingStrategy": "StrictFIFO",
                "resourceGroups": [{"resources": [GPU], "flavors": [quota]}],
            }
        ],
        "localQueues": [{"namespace": "ns", "name": "q", "clusterQueue": "q"}],
        "workloads": workloads,
    }
    return QuotaScenario.model_validate_json(json.dumps(document))


def drawn(kind: Kind, seed: int, count: int) -> tuple[QuotaScenario, list[Run]]:
    """The cluster, and jobs in the order of their arrival."""
    chance = random.Random(seed)
    pods = chance.choices(list(SIZES), weights=list(SIZES.values()), k=count)
    scenario = scenario_of([(many, many <= HOSTS_PER_RACK) for many in pods])
    waiting = PendingQueues(scenario, build_state(scenario)).waiting()
    takes = [min(24.0, chance.lognormvariate(0.0, 1.0)) * HOUR_S for _ in pods]
    gpu_s = sum(many * GPUS_PER_HOST * takes_s for many, takes_s in zip(pods, takes, strict=True))
    mean_gap_s = gpu_s / (GPUS * kind.load) / count
    runs, arrives = [], 0.0
    for workload, takes_s in zip(waiting, takes, strict=True):
        arrives += chance.expovariate(1 / mean_gap_s)
        lasts_s = takes_s if kind.exact else takes_s / chance.uniform(0.1, 1.0)
        lasts_s = inf if chance.random() < kind.endless else float(round(lasts_s) + 1)
        runs.append(Run(workload, lasts_s, lasts_s if kind.exact else takes_s, arrives))
    return scenario, runs


def measure(kind: Kind, seed: int, count: int) -> Found:
    """Both histories of one seed."""
    scenario, runs = drawn(kind, seed, count)
    plain = History(build_state(scenario), with_backfill=False, grace_s=30.0)
    plain.run(runs)
    filled = _TimedHistory(build_state(scenario), with_backfill=True, grace_s=30.0, checks=False)
    filled.run(runs)
    arrived = {run.workload.key: run.arrives for run in runs}
    heads = list(plain.expected)

    def wait_h(history: History, keys: Sequence[str]) -> float:
        return statistics.fmean((history.admitted[key] - arrived[key]) / HOUR_S for key in keys)

    later = [
        (filled.admitted[key] - plain.admitted[key]) / HOUR_S
        for key in heads
        if filled.admitted[key] > plain.admitted[key]
    ]
    promises = [
        (key, start.at)
        for key, found in filled.expected.items()
        for _, start in found
        if start is not None and start.nomination is not None
    ]
    return Found(
        kind.name,
        seed,
        used=(used(plain, runs), used(filled, runs)),
        wait_h=(wait_h(plain, list(arrived)), wait_h(filled, list(arrived))),
        head_wait_h=(wait_h(plain, heads), wait_h(filled, heads)),
        heads=len(heads),
        ahead=len(filled.backfilled),
        later=len(later),
        later_by_h=statistics.fmean(later) if later else 0.0,
        decision_ms=statistics.median(filled.spent_ms),
        decision_max_ms=max(filled.spent_ms),
        kept=all(filled.admitted[key] <= at for key, at in promises),
    )


def used(history: History, runs: Sequence[Run]) -> float:
    """GPU seconds in use until the last arrival, of all."""
    end = runs[-1].arrives
    busy = 0.0
    for run in runs:
        since = history.admitted[run.workload.key]
        pods = sum(podset.request.count for podset in run.workload.podsets)
        busy += pods * GPUS_PER_HOST * max(0.0, min(end, since + run.takes_s) - since)
    return busy / (GPUS * end)


def table(found: Sequence[Found]) -> Table:
    """One row per kind and seed."""
    made = Table(title=f"backfill: {GPUS} GPUs in {RACKS} racks (without, with)")
    for name in ("jobs", "seed", "used %", "wait h", "heads wait h", "ahead", "heads"):
        made.add_column(name, justify="right")
    for name in ("later, h", "ms: median, most"):
        made.add_column(name, justify="right")
    for one in found:
        made.add_row(
            one.kind,
            str(one.seed),
            f"{100 * one.used[0]:.0f}, {100 * one.used[1]:.0f}",
            f"{one.wait_h[0]:.1f}, {one.wait_h[1]:.1f}",
            f"{one.head_wait_h[0]:.1f}, {one.head_wait_h[1]:.1f}",
            str(one.ahead),
            str(one.heads),
            f"{one.later}, {one.later_by_h:.1f}",
            f"{one.decision_ms:.1f}, {one.decision_max_ms:.0f}",
        )
    return made


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this part."""
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)


def run(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measure and print; returns all figures, and whether every expected start was kept."""
    found = [
        measure(kind, seed, arguments.jobs) for kind in KINDS for seed in range(arguments.seeds)
    ]
    Console().print(table(found))
    return {"backfill": [asdict(one) for one in found]}, all(one.kept for one in found)
