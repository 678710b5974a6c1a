"""Reads the cluster again and again, whatever happens, and keeps every breach that lasts.

Administrators only lower the quota that was drawn, so nothing is ever admitted beyond that,
however late the assigner learns of a change: this is judged too. Preemptions and borrowed quota,
which a scenario is drawn for and may not have, are counted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from rackgate.api.names import EvictionReason
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate_invariants.cluster import Cluster
from rackgate_invariants.judge import breaches, judge, lasting
from rackgate_invariants.reading import read_cluster
from rackgate_invariants.rows.queues import cluster_queue_row, cohort_row
from rackgate_invariants.rows.rows import QueueRow
from rackgate_invariants.rules.catalog import RULES, Breach
from rackgate_invariants.tracker import Tracker
from tests.chaos.queues import QuotaPlan, manifest

EVERY_S = 0.5
UNSEEN = "unseen"
OF_QUOTA = ("over-quota", "pods-over-quota")
IN_PART = "gang-in-part"
# Faults may strike the ungater for half a minute; a gang by default is evicted after a minute.
IN_PART_S = 45.0
GANG_REASONS = (EvictionReason.GANG_TIMEOUT, EvictionReason.GANG_MEMBER_LOST)


def as_drawn(tree: Iterable[QuotaPlan], pool: str) -> dict[str, QueueRow]:
    """The queues and Cohorts of a tree, by name."""
    found = {}
    for plan in tree:
        raw = json.dumps(manifest(plan, pool)).encode()
        row = cluster_queue_row(raw) if plan.is_queue else cohort_row(raw)
        found[row.key] = row
    return found


@dataclass
class Watcher:
    """Looks for breaches of the invariants.

    Attributes:
        evidence: folder for the readings that showed a breach.
        drawn: ClusterQueues and Cohorts as drawn, by name.
        found: what two readings in a row showed.
        readings: complete readings so far.
        uids: UID of every Workload that was ever seen, by `namespace/name`.
        preemptions: reason of each preemption, by Workload and number; UNSEEN if it was queued
            and admitted again between two readings.
        borrowed_cpu: the most that all queues together used beyond their quota at a time.
        gang_runs: Workload of gangs and run of every pod that was seen released.
        gang_evictions: reason of each eviction because of gangs, by Workload and time.
    """

    client: Client
    evidence: Path
    drawn: dict[str, QueueRow]
    found: list[str] = field(default_factory=list)
    readings: int = 0
    uids: dict[str, str] = field(default_factory=dict)
    preemptions: dict[tuple[str, int], str] = field(default_factory=dict)
    borrowed_cpu: int = 0
    gang_runs: set[tuple[str, str]] = field(default_factory=set)
    gang_evictions: dict[tuple[str, float], str] = field(default_factory=dict)
    _in_part: Tracker = field(default_factory=lambda: Tracker(1.0, IN_PART_S))

    async def run(self) -> None:
        """Read until cancelled. A reading that fails breaks the row."""
        before: list[Breach] = []
        while True:
            try:
                cluster = await read_cluster(self.client)
            except (KubeError, TimeoutError):
                before = []
                self._in_part.reset_unconfirmed()
            else:
                self._count(cluster)
                every = judge(cluster)
                found = {breach for breach in every if not RULES[breach.rule].patient}
                now = sorted({*found, *self._beyond(cluster)})
                broken = [str(breach) for breach in lasting(before, now)]
                broken += self._released_in_part(cluster.read_at, every)
                self.found += broken
                self.readings += 1
                before = now
                if broken:
                    self._keep(cluster, broken)
            await asyncio.sleep(EVERY_S)

    def _count(self, cluster: Cluster) -> None:
        for workload in cluster.workloads:
            self.uids[workload.key] = workload.uid
            for number in range(workload.preemptions):
                last = number == workload.preemptions - 1
                reason = workload.preempted_reason if last else ""
                self.preemptions.setdefault((workload.uid, number), reason or UNSEEN)
            if workload.evicted_reason in GANG_REASONS:
                reason = workload.evicted_reason
                self.gang_evictions[workload.uid, workload.evicted_at] = reason
        self.gang_runs |= {(pod.link, pod.run) for pod in cluster.pods if pod.run}
        borrowed = 0
        for queue in cluster.cluster_queues:
            nominal = self.drawn[queue.key].nominal if queue.key in self.drawn else {}
            for pair, most in nominal.items():
                if pair[1] == "cpu":
                    borrowed += max(0, queue.counts.reservation.get(pair, 0) - most)
        self.borrowed_cpu = max(self.borrowed_cpu, borrowed // 1000)

    def _released_in_part(self, now: float, every: Iterable[Breach]) -> list[str]:
        """Gangs that are released in part for too long, each once."""
        found = [breach for breach in every if breach.rule == IN_PART]
        changes = self._in_part.update(now, found)
        return [str(change.breach) for change in changes if not change.ended]

    def _beyond(self, cluster: Cluster) -> Iterator[Breach]:
        """What uses more than the quota that was drawn, whenever it was admitted."""

        def drawn(row: QueueRow) -> QueueRow:
            own = self.drawn.get(row.key)
            return row if own is None else msgspec.structs.replace(own, counts=row.counts)

        full = replace(
            cluster,
            cluster_queues=[drawn(row) for row in cluster.cluster_queues],
            cohorts=[drawn(row) for row in cluster.cohorts],
        )
        return (breach for breach in breaches(full) if breach.rule in OF_QUOTA)

    def _keep(self, cluster: Cluster, broken: list[str]) -> None:
        """Leave one reading as text: a line for each object."""
        self.evidence.mkdir(parents=True, exist_ok=True)
        lines = [*broken, f"read at {cluster.read_at}"]
        for kind in (
            "cluster_queues",
            "cohorts",
            "jobs",
            "workloads",
            "gang_workloads",
            "pods",
            "nodes",
        ):
            lines += [str(row) for row in getattr(cluster, kind)]
        (self.evidence / f"reading-{self.readings:04}.txt").write_text("\n".join(lines))
