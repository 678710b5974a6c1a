"""Metrics of the ungater."""

from __future__ import annotations

from typing import Final

from rackgate.api.timestamps import parse_rfc3339
from rackgate.runtime import clock
from rackgate.runtime.metrics import counter, gauge, histogram, initialize_series

GATE_REMOVAL: Final = histogram(
    "pod_scheduling_gate_removal_seconds",
    "Time from the Workload's admission to the removal of a pod's gate.",
    ("name", "cluster_queue"),
    buckets=(0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0),
)
BATCH: Final = histogram(
    "ungate_batch_pods",
    "Pods ungated together for one Workload.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000),
)
UNGATED: Final = initialize_series(
    counter(
        "ungated_pods_total",
        "Requests to ungate a pod, by result: ungated, conflict, refused, gone, unsent or lost.",
        ("result",),
    ),
    "result",
    ("ungated", "conflict", "refused", "gone", "unsent", "lost"),
)
HELD: Final = counter(
    "ungatings_held_total",
    "Reconciliations that skipped a PodSet because earlier writes were not seen yet.",
)
RECONCILES: Final = counter("ungater_reconciles_total", "Reconciliations of one Workload.")
OVERDUE: Final = counter(
    "overdue_expectations_total",
    "Writes that no watch event confirmed in time, so that the pod was read live.",
)
EXPECTATIONS: Final = gauge(
    "open_expectations", "Pods whose ungating is requested and not yet seen."
)
ORPHANS: Final = gauge(
    "gated_pods_without_workload", "Gated pods whose Workload does not exist, at the last resync."
)
GATED: Final = gauge(
    "gated_pods", "Gated pods of admitted Workloads, of all shards, as the watches show them."
)
LONGEST_GATED: Final = gauge(
    "longest_gated_seconds",
    "Longest time that such a pod has been seen gated, without pods that wait for their gang; 0 if"
    " there is none.",
)
LONGEST_GANG_WAIT: Final = gauge(
    "longest_gang_wait_seconds",
    "Longest time that a gated pod of an admitted Workload has been seen to wait for its gang: for"
    " other pods of it, its Workload of gangs, or gates of other owners; 0 if there is none.",
)
GANG_RELEASE: Final = histogram(
    "gang_release_seconds",
    "Time from the event that completed a gang to the removal of the gates of its first pods.",
)
GANG_MEMBERS: Final = histogram(
    "gang_release_pods",
    "Pods released together when their gang started.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000),
)
GANG_HELD: Final = gauge(
    "gang_held_pods",
    "Gated pods of admitted Workloads of our shards that wait for their gang, by reason.",
    ("reason",),
)
NATIVE_GROUPS: Final = gauge(
    "gang_native_groups", "PodGroups of Rackgate in the cluster, as the watch shows them."
)
NATIVE_GROUP_REQUESTS: Final = initialize_series(
    counter(
        "gang_native_group_requests_total",
        "Requests to make the PodGroup of a gang, by result: created, exists, taken, rejected or "
        "failed.",
        ("result",),
    ),
    "result",
    ("created", "exists", "taken", "rejected", "failed"),
)
SHARDS_HELD: Final = gauge(
    "shards_held", "Shards of Workloads that this replica acts on; 16 over all replicas."
)
REPLICAS: Final = gauge(
    "ungater_replicas", "Live replicas, this one included, as this one sees it."
)
HANDOVERS: Final = counter(
    "shard_handovers_total", "Shards handed over to a replica that ranks higher for them."
)


def seconds_since(stamp: str | None) -> float | None:
    """Seconds since an RFC 3339 time by the local wall clock; None if unknown."""
    if stamp is None:
        return None
    try:
        moment = parse_rfc3339(stamp)
    except ValueError:
        return None
    return max(0.0, (clock.now() - moment).total_seconds())
