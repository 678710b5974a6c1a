"""Input of one scheduling cycle: pending Workloads, queues, quota in use and free capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rackgate_assigner.cache.flavor_topologies import FlavorTopologies
from rackgate_assigner.quota.queues import (
    ClusterQueueInfo,
    FlavorInfo,
    FlavorResource,
    LocalQueueInfo,
)
from rackgate_assigner.workload.info import WorkloadInfo
from rackgate_assigner.workload_slices.families import SliceFamily


@dataclass(frozen=True, slots=True)
class AdmittedWorkload:
    """A Workload that holds quota of a ClusterQueue.

    Attributes:
        info: the Workload, never a slice.
        quota: usage of the Workload and its slices.
        being_evicted: its quota is about to be released.
    """

    info: WorkloadInfo
    quota: Mapping[FlavorResource, int]
    being_evicted: bool = False


@dataclass(slots=True)
class Snapshot:
    """The state for one cycle. `used` and `flavor_topologies` are copies that the cycle changes.

    Attributes:
        pending: Workloads to be admitted, in any order.
        eviction_candidates: Workloads whose reservation may have to be cleared.
        with_unhealthy_nodes: admitted Workloads with names in `status.unhealthyNodes`.
        checks: AdmissionCheck name to its controller.
        namespaces: name to labels.
        priorities: WorkloadPriorityClass name to value.
        used: quota in use, by ClusterQueue.
        running: Workloads with quota, by ClusterQueue; only of queues with preemption.
        being_evicted: keys of Workloads whose eviction is being written.
        families: by key, the parents of pending slices.
    """

    pending: Sequence[WorkloadInfo]
    eviction_candidates: Sequence[WorkloadInfo]
    local_queues: Mapping[str, LocalQueueInfo]
    cluster_queues: Mapping[str, ClusterQueueInfo]
    flavors: Mapping[str, FlavorInfo]
    checks: Mapping[str, str]
    namespaces: Mapping[str, Mapping[str, str]]
    priorities: Mapping[str, int]
    used: dict[str, dict[FlavorResource, int]]
    flavor_topologies: FlavorTopologies
    with_unhealthy_nodes: Sequence[WorkloadInfo] = ()
    running: Mapping[str, Sequence[AdmittedWorkload]] = field(default_factory=dict)
    being_evicted: frozenset[str] = frozenset()
    families: Mapping[str, SliceFamily] = field(default_factory=dict)
