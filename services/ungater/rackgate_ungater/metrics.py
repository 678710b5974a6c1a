"""What the ungater measures."""

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
    "Pods released together for one Workload.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000),
)
UNGATED: Final = initialize_series(
    counter(
        "ungated_pods_total",
        "Requests to release a pod, by result: ungated, conflict, refused, gone, unsent or lost.",
        ("result",),
    ),
    "result",
    ("ungated", "conflict", "refused", "gone", "unsent", "lost"),
)
HELD: Final = counter(
    "ungatings_held_total",
    "Times that gated pods of a Workload waited because earlier writes were not seen yet.",
)
RECONCILES: Final = counter("ungater_reconciles_total", "Looks at one Workload.")
OVERDUE: Final = counter(
    "overdue_expectations_total",
    "Writes that no watch event confirmed in time, so that the pod was read live.",
)
EXPECTATIONS: Final = gauge(
    "open_expectations", "Pods whose release is requested and not yet seen."
)
ORPHANS: Final = gauge(
    "gated_pods_without_workload", "Gated pods that name no Workload there is, at the last look."
)
GATED: Final = gauge(
    "gated_pods", "Gated pods of admitted Workloads, of all shards, as the watches show them."
)
LONGEST_GATED: Final = gauge(
    "longest_gated_seconds",
    "For how long one of them has been seen gated at most; 0 when there are none.",
)
SHARDS_HELD: Final = gauge(
    "shards_held", "Shards of Workloads that this replica acts on; 16 over all replicas."
)
REPLICAS: Final = gauge(
    "ungater_replicas", "Replicas that are there, this one included, as this one sees it."
)
HANDOVERS: Final = counter(
    "shard_handovers_total", "Shards given to a replica that should rather hold them."
)


def seconds_since(stamp: str | None) -> float | None:
    """Seconds since an RFC 3339 time, by the wall clocks of both sides; None if unknown."""
    if stamp is None:
        return None
    try:
        moment = parse_rfc3339(stamp)
    except ValueError:
        return None
    return max(0.0, (clock.now() - moment).total_seconds())
