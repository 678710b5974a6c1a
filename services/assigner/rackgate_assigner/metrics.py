"""Metrics of the assigner: Kueue's names after our prefix."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from rackgate.runtime.metrics import counter, gauge, histogram, initialize_series

# 1, then 2.5 and doubling: waiting times range from a second to hours.
WAIT_BUCKETS: Final = (1.0, *(2.5 * 2**n for n in range(13)))
CYCLE_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
PLACEMENT_BUCKETS: Final = (0.0001, 0.00025, *CYCLE_BUCKETS)

ATTEMPTS: Final = initialize_series(
    counter(
        "admission_attempts_total", "Scheduling cycles with decisions on Workloads.", ("result",)
    ),
    "result",
    ("success", "inadmissible"),
)
OSMO_POOLS: Final = gauge(
    "osmo_pools", "Pools of OSMO, by whether their KAI Topology is synced.", ("synced",)
)
DECISION_ERRORS: Final = counter(
    "decision_errors_total", "Workloads requeued because of an internal error.", ()
)
ATTEMPT_DURATION: Final = histogram(
    "admission_attempt_duration_seconds",
    "One scheduling cycle, from the snapshot to the last decision.",
    ("result",),
    CYCLE_BUCKETS,
)
SNAPSHOT_DURATION: Final = histogram(
    "snapshot_duration_seconds", "Copying the cache for one cycle.", (), CYCLE_BUCKETS
)
PLACEMENT_DURATION: Final = histogram(
    "placement_duration_seconds",
    "One placement of a Workload's PodSets in a flavor, whether or not they fit.",
    ("flavor",),
    PLACEMENT_BUCKETS,
)
QUOTA_RESERVED: Final = counter(
    "quota_reserved_workloads_total", "Workloads with reserved quota.", ("cluster_queue",)
)
ADMITTED: Final = counter(
    "admitted_workloads_total", "Workloads that were admitted.", ("cluster_queue",)
)
BACKFILLED: Final = counter(
    "backfilled_workloads_total",
    "Workloads that were admitted ahead of the head of their StrictFIFO queue.",
    ("cluster_queue",),
)
QUOTA_RESERVED_WAIT: Final = histogram(
    "quota_reserved_wait_time_seconds",
    "From creation or requeueing to the reservation of quota.",
    ("cluster_queue",),
    WAIT_BUCKETS,
)
ADMISSION_WAIT: Final = histogram(
    "admission_wait_time_seconds",
    "From creation or requeueing to admission.",
    ("cluster_queue",),
    WAIT_BUCKETS,
)
CHECKS_WAIT: Final = histogram(
    "admission_checks_wait_time_seconds",
    "From the reservation of quota to admission, of Workloads with admission checks.",
    ("cluster_queue",),
    WAIT_BUCKETS,
)
READY_WAIT: Final = histogram(
    "ready_wait_time_seconds",
    "From creation or requeueing until all pods are ready for the first time.",
    ("cluster_queue",),
    WAIT_BUCKETS,
)
ADMITTED_UNTIL_READY_WAIT: Final = histogram(
    "admitted_until_ready_wait_time_seconds",
    "From admission until all pods are ready for the first time.",
    ("cluster_queue",),
    WAIT_BUCKETS,
)
EXECUTION_TIME: Final = histogram(
    "execution_time_seconds",
    "Of a Workload that finished: the time since its last admission. Of one with a maximum "
    "execution time, also that of earlier admissions.",
    ("cluster_queue",),
    WAIT_BUCKETS,
)
READY_TO_EVICTED: Final = histogram(
    "pods_ready_to_evicted_time_seconds",
    "From the time when all pods were ready until the eviction.",
    ("cluster_queue", "reason", "underlying_cause"),
    WAIT_BUCKETS,
)
CREATION_LATENCY: Final = histogram(
    "workload_creation_latency_seconds",
    "From the creation of a job to that of its first Workload.",
    ("job_kind",),
    (*(0.01 * 2**n for n in range(11)),),
)
EVICTED: Final = counter(
    "evicted_workloads_total", "Evictions.", ("cluster_queue", "reason", "underlying_cause")
)
EVICTED_ONCE: Final = counter(
    "evicted_workloads_once_total",
    "Workloads that were evicted for the first time for a reason and underlying cause.",
    ("cluster_queue", "reason", "underlying_cause"),
)
PREEMPTED: Final = counter(
    "preempted_workloads_total",
    "Preempted Workloads, by the ClusterQueue of the preemptor.",
    ("preempting_cluster_queue", "reason"),
)
FINISHED: Final = counter(
    "finished_workloads_total", "Workloads that finished.", ("cluster_queue", "reason")
)
NODE_REPLACEMENTS: Final = initialize_series(
    counter(
        "node_replacements_total",
        "Unhealthy nodes of running Workloads: replaced, recovered, or stuck (no replacement).",
        ("result",),
    ),
    "result",
    ("replaced", "recovered", "stuck"),
)
PODS_TERMINATED: Final = counter(
    "pods_terminated_total", "Pods set Failed because they were pinned to an unhealthy node."
)
EVICTION_LATENCY: Final = histogram(
    "workload_eviction_latency_seconds",
    "From an eviction to the release of its quota.",
    ("cluster_queue", "reason"),
    WAIT_BUCKETS,
)
FLAVOR_SKIPPED: Final = gauge(
    "flavor_skipped_nodes",
    "Nodes with a TAS flavor's labels that its topology excludes, by rule: "
    "missingLevel, hostname, notReady, unschedulable.",
    ("flavor", "reason"),
)
FLAVOR_OVERLAP: Final = gauge(
    "flavor_overlap_nodes",
    "Nodes that two TAS flavors share; there should be none.",
    ("flavor", "other"),
)
ADMISSION_WRITES: Final = histogram(
    "admission_write_duration_seconds", "One admission write, retries included.", ("result",)
)
CACHE_VERIFICATIONS: Final = initialize_series(
    counter(
        "assigner_cache_verifications_total",
        "Comparisons of the cache with a rebuild from scratch: match, mismatch or failed.",
        ("result",),
    ),
    "result",
    ("match", "mismatch", "failed"),
)
CACHE_MISMATCHES: Final = counter(
    "assigner_cache_mismatches_total",
    "Mismatches between the cache and a rebuild from scratch; each one triggers a rebuild.",
    ("what",),
)
SLICES: Final = gauge(
    "workload_slices",
    "Workload slices, pending or admitted; an admitted one holds quota until it is merged into "
    "its parent.",
    ("status",),
)
SLICES_MERGED: Final = initialize_series(
    counter(
        "workload_slices_settled_total",
        "Admitted slices that were merged into their parent (folded), or withdrawn.",
        ("result",),
    ),
    "result",
    ("folded", "withdrawn"),
)
PODS_SCALED_DOWN: Final = counter(
    "resize_pods_given_back_total", "Pods released by scaling running jobs down."
)
RESIZES: Final = initialize_series(
    counter("resizes_total", "Resizes of running jobs that were started.", ("direction",)),
    "direction",
    ("up", "down"),
)
JOB_ACTIONS: Final = counter("job_steps_total", "Actions on jobs, by kind.", ("step", "result"))


def time_placement(flavor: str) -> AbstractContextManager[object]:
    """Measure one placement in a flavor."""
    return PLACEMENT_DURATION.labels(flavor=flavor).time()
