"""The series that Kueue has, from ours: for dashboards and alerts that were made for Kueue. Pure.

A metric of ours that counts what one of Kueue's counts has its name, after another prefix. Such a
metric is repeated with Kueue's prefix, and with the labels that Kueue adds and that follow from
other series of the same scrape:

- `cohort`, of a ClusterQueue: "" without a cohort.
- `replica_role`: leader or follower by the Lease; standalone if a service elects no leader.
- `active` of a LocalQueue instead of `status`.

Labels that do not follow from them (`priority_class`, `is_group`) are left out: a query that sums
or groups by other labels is not affected.

Source: section 6 of the notes on Kueue's API.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.samples import Sample

OUR_PREFIX: Final = "rackgate_"
PREFIX: Final = "kueue_"
COHORT: Final = "cohort"
ROLE: Final = "replica_role"

_QUEUE: Final = ("cluster_queue",)
_PAIR: Final = ("flavor", "resource")
_LOCAL: Final = ("name", "namespace")
_QUOTA: Final = (COHORT, *_QUEUE, *_PAIR)
# The labels that are served, without the role, in Kueue's order.
LABELS: Final[dict[str, tuple[str, ...]]] = {
    "admission_attempts_total": ("result",),
    "admission_attempt_duration_seconds": ("result",),
    "pending_workloads": (*_QUEUE, "status"),
    "unadmitted_workloads": (*_QUEUE, "reason"),
    "quota_reserved_workloads_total": _QUEUE,
    "quota_reserved_wait_time_seconds": _QUEUE,
    "admitted_workloads_total": _QUEUE,
    "admission_wait_time_seconds": _QUEUE,
    "admission_checks_wait_time_seconds": _QUEUE,
    "ready_wait_time_seconds": _QUEUE,
    "admitted_until_ready_wait_time_seconds": _QUEUE,
    "execution_time_seconds": _QUEUE,
    "reserving_active_workloads": _QUEUE,
    "admitted_active_workloads": _QUEUE,
    "finished_workloads_total": _QUEUE,
    "evicted_workloads_total": (*_QUEUE, "reason", "underlying_cause"),
    "evicted_workloads_once_total": (*_QUEUE, "reason", "underlying_cause"),
    "preempted_workloads_total": ("preempting_cluster_queue", "reason"),
    "workload_eviction_latency_seconds": (*_QUEUE, "reason"),
    "pods_ready_to_evicted_time_seconds": (*_QUEUE, "reason", "underlying_cause"),
    "workload_creation_latency_seconds": ("job_kind",),
    "pod_scheduling_gate_removal_seconds": ("name", *_QUEUE),
    "cluster_queue_status": (*_QUEUE, "status"),
    "cluster_queue_info": (*_QUEUE, "parent_cohort", "root_cohort"),
    "cluster_queue_resource_usage": _QUOTA,
    "cluster_queue_resource_reservation": _QUOTA,
    "cluster_queue_nominal_quota": _QUOTA,
    "cluster_queue_borrowing_limit": _QUOTA,
    "cluster_queue_lending_limit": _QUOTA,
    "cluster_queue_weighted_share": (*_QUEUE, COHORT),
    "cohort_info": (COHORT, "parent_cohort", "root_cohort"),
    "cohort_weighted_share": (COHORT,),
    "cohort_subtree_quota": (COHORT, *_PAIR),
    "cohort_subtree_resource_reservations": (COHORT, *_PAIR),
    "cohort_subtree_admitted_active_workloads": (COHORT,),
    "local_queue_status": (*_LOCAL, "active"),
    "local_queue_pending_workloads": (*_LOCAL, "status"),
    "local_queue_reserving_active_workloads": _LOCAL,
    "local_queue_admitted_active_workloads": _LOCAL,
    "local_queue_resource_usage": (*_LOCAL, *_PAIR),
    "local_queue_resource_reservation": (*_LOCAL, *_PAIR),
}
# Metrics of Kueue that are not served, and what shows the same.
MISSING: Final[dict[str, str]] = {
    "admission_cycle_preemption_skips": "`rackgate_preempted_workloads_total`",
    "build_info": "`rackgate_build_info`",
    "cluster_queue_resource_pending": "`rackgate_unadmitted_workloads`",
    "cohort_subtree_admitted_workloads_total": "the sum of `kueue_admitted_workloads_total`",
    "finished_workloads": "`kueue_finished_workloads_total`",
    "local_queue_admitted_workloads_total": "`kueue_admitted_workloads_total`",
    "local_queue_evicted_workloads_total": "`kueue_evicted_workloads_total`",
    "local_queue_quota_reserved_workloads_total": "`kueue_quota_reserved_workloads_total`",
    "pending_scheduling_hashes": "nothing",
    "replaced_workload_slices_total": "`rackgate_workload_slices_settled_total`",
}
_ACTIVE: Final = {"active": "True", "pending": "False"}


def kueue_metrics(ours: Iterable[Metric]) -> Iterator[Metric]:
    """Metrics under Kueue's names.

    Args:
        ours: all metrics of one scrape.
    """
    found = {metric.name.removeprefix(OUR_PREFIX): metric for metric in ours}
    role = _role(found.get("leader"))
    infos = found.get("cluster_queue_info")
    cohorts = {
        sample.labels["cluster_queue"]: sample.labels["parent_cohort"]
        for sample in (infos.samples if infos is not None else ())
    }
    for full, labels in LABELS.items():
        name = full.removesuffix("_total")
        metric = found.get(name)
        if metric is None:
            continue
        renamed = Metric(f"{PREFIX}{name}", metric.documentation, metric.type)
        with contextlib.suppress(KeyError):  # another label than the table says: ours is served
            renamed.samples = list(_samples(metric, labels, cohorts, role))
            yield renamed


def _samples(
    metric: Metric, labels: tuple[str, ...], cohorts: dict[str, str], role: str
) -> Iterator[Sample]:
    counted: dict[tuple[str, ...], Sample] = {}
    for sample in metric.samples:
        present = dict(sample.labels)
        if COHORT in labels and COHORT not in present:
            present[COHORT] = cohorts.get(present["cluster_queue"], "")
        if "active" in labels:
            present["active"] = _ACTIVE[present["status"]]
        kept = {name: present[name] for name in labels}
        if "le" in present:
            kept["le"] = present["le"]
        kept[ROLE] = role
        name = PREFIX + sample.name.removeprefix(OUR_PREFIX)
        key = (name, *kept.values())
        value = sample.value
        # Series that differ in a label which Kueue does not have are one of its series.
        if key in counted and not name.endswith("_created"):
            value += counted[key].value
        counted[key] = Sample(name, kept, value)
    yield from counted.values()


def _role(leader: Metric | None) -> str:
    if leader is None or not leader.samples:
        return "standalone"
    return "leader" if any(sample.value for sample in leader.samples) else "follower"
