"""Input of one scheduling cycle: pending Workloads, queues, quota in use and free capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rackgate_assigner.cache.flavor_topologies import FlavorTopologies
from rackgate_assigner.cache.quota_usage import QuotaUsage
from rackgate_assigner.quota.admission_fair_sharing import LocalQueueUsage
from rackgate_assigner.quota.queues import (
    CheckInfo,
    ClusterQueueInfo,
    CohortInfo,
    FlavorInfo,
    LocalQueueInfo,
)
from rackgate_assigner.workload.info import WorkloadInfo
from rackgate_assigner.workload_slices.families import SliceFamily


@dataclass(slots=True)
class Snapshot:
    """The state for one cycle. `flavor_topologies` is a copy that the cycle changes.

    Attributes:
        pending: Workloads to be admitted, in any order: all, or those to check again.
        eviction_candidates: Workloads whose reservation may have to be cleared.
        to_place: Workloads with quota that passed their admission checks and are to be placed.
        with_unhealthy_nodes: admitted Workloads with names in `status.unhealthyNodes`.
        checks: AdmissionChecks by name.
        namespaces: name to labels.
        priorities: WorkloadPriorityClass name to value.
        quota_usage: quota in use, and who uses it; live: a cycle takes its changes back.
        being_evicted: keys of Workloads whose eviction is being written.
        families: by key, the parents of pending slices.
        unready: keys of Workloads with quota whose pods are not all ready: nothing is admitted
            while there are any; None if they block no admission.
        local_queue_usage: orders LocalQueues; None: admission fair sharing is off.
    """

    pending: Sequence[WorkloadInfo]
    eviction_candidates: Sequence[WorkloadInfo]
    local_queues: Mapping[str, LocalQueueInfo]
    cluster_queues: Mapping[str, ClusterQueueInfo]
    flavors: Mapping[str, FlavorInfo]
    checks: Mapping[str, CheckInfo]
    namespaces: Mapping[str, Mapping[str, str]]
    priorities: Mapping[str, int]
    flavor_topologies: FlavorTopologies
    quota_usage: QuotaUsage
    to_place: Sequence[WorkloadInfo] = ()
    cohorts: Mapping[str, CohortInfo] = field(default_factory=dict)
    with_unhealthy_nodes: Sequence[WorkloadInfo] = ()
    being_evicted: frozenset[str] = frozenset()
    families: Mapping[str, SliceFamily] = field(default_factory=dict)
    unready: frozenset[str] | None = None
    local_queue_usage: LocalQueueUsage | None = None
