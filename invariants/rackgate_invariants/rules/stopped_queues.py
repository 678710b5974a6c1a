"""Queues with a `stopPolicy`: they admit nothing, and a drained one empties."""

from __future__ import annotations

from collections.abc import Iterator

from rackgate_invariants.cluster import SLACK_S, Cluster
from rackgate_invariants.rows.rows import QueueRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach


def check(cluster: Cluster) -> Iterator[Breach]:
    """`admitted-while-stopped` and `drained-queue-holds`."""
    queues = {queue.key: queue for queue in (*cluster.local_queues, *cluster.cluster_queues)}
    stopped = {key: queue for key, queue in queues.items() if queue.stopped}
    for workload in cluster.workloads if stopped else ():
        if not workload.holds or workload.evicted or workload.deleting:
            continue
        for key in (workload.queue, workload.cluster_queue):
            if key in stopped:
                yield from _breaches(workload, stopped[key])


def _breaches(workload: WorkloadRow, queue: QueueRow) -> Iterator[Breach]:
    # A replacement writes the admission again, and an assigner's clock may be ahead of the API
    # server's. An admission that is late by both came after the stop.
    reserved_at = min(workload.placed_at or workload.reserved_at, workload.reserved_at)
    subject = f"{workload.key} {queue.key}"
    if queue.spec_at and reserved_at > queue.spec_at + SLACK_S:
        late_s = reserved_at - queue.spec_at
        found = f"got quota {late_s:.0f} s after the queue was stopped"
        yield Breach("admitted-while-stopped", subject, found)
    if queue.drained:
        found = "holds quota of a queue that drains, and is not evicted"
        yield Breach("drained-queue-holds", subject, found, queue.spec_at)
