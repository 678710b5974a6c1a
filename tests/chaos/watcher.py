"""Reads the cluster again and again, whatever happens, and keeps every breach that lasts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate_invariants.cluster import Cluster
from rackgate_invariants.judge import breaches, lasting
from rackgate_invariants.reading import read_cluster
from rackgate_invariants.rules.catalog import Breach

EVERY_S = 0.5


@dataclass
class Watcher:
    """Looks for breaches of the invariants.

    Attributes:
        evidence: folder for the readings that showed a breach.
        found: what two readings in a row showed.
        readings: complete readings so far.
        uids: UID of every Workload that was ever seen, by `namespace/name`.
    """

    client: Client
    evidence: Path
    found: list[str] = field(default_factory=list)
    readings: int = 0
    uids: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Read until cancelled. A reading that fails breaks the row."""
        before: list[Breach] = []
        while True:
            try:
                cluster = await read_cluster(self.client)
            except (KubeError, TimeoutError):
                before = []
            else:
                for workload in cluster.workloads:
                    self.uids[workload.key] = workload.uid
                now = breaches(cluster)
                broken = [str(breach) for breach in lasting(before, now)]
                self.found += broken
                self.readings += 1
                before = now
                if broken:
                    self._keep(cluster, broken)
            await asyncio.sleep(EVERY_S)

    def _keep(self, cluster: Cluster, broken: list[str]) -> None:
        """Leave one reading as text: a line for each object."""
        self.evidence.mkdir(parents=True, exist_ok=True)
        lines = [*broken, f"read at {cluster.read_at}"]
        for kind in ("jobs", "workloads", "pods", "nodes"):
            lines += [str(row) for row in getattr(cluster, kind)]
        (self.evidence / f"reading-{self.readings:04}.txt").write_text("\n".join(lines))
