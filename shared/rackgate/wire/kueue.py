"""Partial msgspec views of the `kueue.x-k8s.io` v1beta2 kinds, as the watches decode them.

The pydantic models of `rackgate.api` validate and generate CRDs; hot paths read these views. Pod
templates stay raw and are decoded on demand.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rackgate.api.names import (
    ELASTIC_ANNOTATION,
    GROUP,
    GROUP_WORKLOAD_ANNOTATION,
    JOB_UID_LABEL,
)
from rackgate.wire.core import Condition, Meta, OwnerReference, Taint, Toleration, View

Amount = str | int | float


class TopologyLevel(View, frozen=True):
    """One level: a node label key."""

    node_label: str = ""


class TopologySpec(View, frozen=True):
    """Levels, coarsest first."""

    levels: tuple[TopologyLevel, ...] = ()


class Topology(View, frozen=True):
    """A Topology."""

    metadata: Meta = Meta()
    spec: TopologySpec = TopologySpec()


class FlavorSpec(View, frozen=True):
    """Nodes of a flavor."""

    node_labels: dict[str, str] = {}
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology_name: str | None = None


class ResourceFlavor(View, frozen=True):
    """A ResourceFlavor."""

    metadata: Meta = Meta()
    spec: FlavorSpec = FlavorSpec()


class ResourceQuota(View, frozen=True):
    """Quota of one resource in one flavor."""

    name: str = ""
    nominal_quota: Amount = "0"
    borrowing_limit: Amount | None = None
    lending_limit: Amount | None = None


class FlavorQuotas(View, frozen=True):
    """Quotas of one flavor."""

    name: str = ""
    resources: tuple[ResourceQuota, ...] = ()


class ResourceGroup(View, frozen=True):
    """Resources that get the same flavor; flavors in order of preference."""

    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuotas, ...] = ()


class BorrowWithinCohort(View, frozen=True):
    """Preemption while borrowing."""

    policy: str = "Never"
    max_priority_threshold: int | None = None


class Preemption(View, frozen=True):
    """Preemption policies."""

    reclaim_within_cohort: str = "Never"
    within_cluster_queue: str = "Never"
    borrow_within_cohort: BorrowWithinCohort | None = None


class FlavorFungibility(View, frozen=True):
    """When another flavor is considered."""

    when_can_borrow: str = "MayStopSearch"
    when_can_preempt: str = "TryNextFlavor"
    preference: str | None = None


class FairSharing(View, frozen=True):
    """Weight of a ClusterQueue or Cohort among its siblings, or of a LocalQueue."""

    weight: Amount | None = None


class AdmissionScope(View, frozen=True):
    """Whether usage over time orders the LocalQueues of a ClusterQueue."""

    admission_mode: str = ""


class AdmissionCheckRef(View, frozen=True):
    """A check named by a ClusterQueue."""

    name: str = ""
    on_flavors: tuple[str, ...] = ()


class AdmissionChecksStrategy(View, frozen=True):
    """Checks of a ClusterQueue."""

    admission_checks: tuple[AdmissionCheckRef, ...] = ()


class ClusterQueueSpec(View, frozen=True):
    """Quota of a ClusterQueue, and the Workloads that may use it."""

    cohort_name: str | None = None
    namespace_selector: dict[str, Any] | None = None
    queueing_strategy: str = "BestEffortFIFO"
    stop_policy: str | None = None
    flavor_fungibility: FlavorFungibility | None = None
    preemption: Preemption | None = None
    resource_groups: tuple[ResourceGroup, ...] = ()
    admission_checks_strategy: AdmissionChecksStrategy | None = None
    fair_sharing: FairSharing | None = None
    admission_scope: AdmissionScope | None = None
    concurrent_admission_policy: dict[str, Any] | None = None


class QueueStatus(View, frozen=True):
    """Counters, usage and conditions as last written (raw, compared before a write)."""

    conditions: tuple[Condition, ...] = ()
    pending_workloads: int = 0
    reserving_workloads: int = 0
    admitted_workloads: int = 0
    flavors_reservation: tuple[dict[str, Any], ...] = ()
    flavors_usage: tuple[dict[str, Any], ...] = ()
    fair_sharing: dict[str, Any] | None = None


class CohortSpec(View, frozen=True):
    """Parent of a cohort, and its own quota."""

    parent_name: str | None = None
    resource_groups: tuple[ResourceGroup, ...] = ()
    fair_sharing: FairSharing | None = None


class CohortStatus(View, frozen=True):
    """Share of a cohort as last written (raw, compared before a write)."""

    fair_sharing: dict[str, Any] | None = None


class Cohort(View, frozen=True):
    """A Cohort."""

    metadata: Meta = Meta()
    spec: CohortSpec = CohortSpec()
    status: CohortStatus = CohortStatus()


class ClusterQueue(View, frozen=True):
    """A ClusterQueue."""

    metadata: Meta = Meta()
    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: QueueStatus = QueueStatus()


class LocalQueueSpec(View, frozen=True):
    """ClusterQueue of a LocalQueue."""

    cluster_queue: str = ""
    stop_policy: str | None = None
    fair_sharing: FairSharing | None = None


class LocalQueue(View, frozen=True):
    """A LocalQueue."""

    metadata: Meta = Meta()
    spec: LocalQueueSpec = LocalQueueSpec()
    status: QueueStatus = QueueStatus()


class WorkloadPriorityClass(View, frozen=True):
    """A WorkloadPriorityClass."""

    metadata: Meta = Meta()
    value: int = 0


class AdmissionCheckSpec(View, frozen=True):
    """Controller of a check."""

    controller_name: str = ""
    retry_delay_minutes: int | None = None


class AdmissionCheckStatus(View, frozen=True):
    """Whether the controller of a check handles it."""

    conditions: tuple[Condition, ...] = ()


class AdmissionCheck(View, frozen=True):
    """An AdmissionCheck: its controller, and whether it is active."""

    metadata: Meta = Meta()
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()


class SliceConstraint(View, frozen=True):
    """One layer of PodSet slices."""

    topology: str = ""
    size: int = 0


class PodSetTopologyRequest(View, frozen=True):
    """Topology request of a PodSet."""

    required: str | None = None
    preferred: str | None = None
    unconstrained: bool | None = None
    pod_index_label: str | None = None
    sub_group_index_label: str | None = None
    sub_group_count: int | None = None
    pod_set_group_name: str | None = None
    pod_set_slice_required_topology: str | None = None
    pod_set_slice_size: int | None = None
    podset_slice_required_topology_constraints: tuple[SliceConstraint, ...] = ()


class PodSet(View, frozen=True):
    """Pods of one shape. `template` is the JSON of the pod template."""

    name: str = ""
    count: int = 0
    min_count: int | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")
    topology_request: PodSetTopologyRequest | None = None


class PriorityClassRef(View, frozen=True):
    """Source of a Workload's priority."""

    group: str = ""
    kind: str = ""
    name: str = ""


class WorkloadSpec(View, frozen=True):
    """Requests of a Workload."""

    queue_name: str = ""
    priority_class_ref: PriorityClassRef | None = None
    priority: int | None = None
    active: bool = True
    maximum_execution_time_seconds: int | None = None
    pod_sets: tuple[PodSet, ...] = ()
    preemption_gates: tuple[dict[str, Any], ...] = ()


class PodSetAssignment(View, frozen=True):
    """Admission of one PodSet. `topology_assignment` is the raw v1beta2 object or None.

    `delayed_topology_request` is "Pending" while the PodSet is to be placed after its checks.
    """

    name: str = ""
    flavors: dict[str, str] = {}
    resource_usage: dict[str, Amount] = {}
    count: int = 0
    topology_assignment: dict[str, Any] | None = None
    delayed_topology_request: str | None = None


class Admission(View, frozen=True):
    """Quota and topology of an admitted Workload."""

    cluster_queue: str = ""
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class NodeName(View, frozen=True):
    """A node by name."""

    name: str = ""


class MergedSlice(View, frozen=True):
    """A workload slice that was merged into its parent."""

    uid: str = ""
    pod_set: str = ""


class ReclaimablePod(View, frozen=True):
    """Finished pods of a PodSet, whose resources others may use."""

    name: str = ""
    count: int = 0


class RequeueState(View, frozen=True):
    """Evictions because pods were not ready, and the time of the requeue."""

    count: int = 0
    requeue_at: str | None = None


class PodSetUpdate(View, frozen=True, omit_defaults=True):
    """What a check adds to the pods of a PodSet."""

    name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()


class AdmissionCheckState(View, frozen=True, omit_defaults=True):
    """State of one check of a Workload: Pending, Ready, Retry or Rejected."""

    name: str = ""
    state: str = ""
    message: str = ""
    last_transition_time: str = ""
    requeue_after_seconds: int | None = None
    retry_count: int | None = None
    pod_set_updates: tuple[PodSetUpdate, ...] = ()


class EvictionCount(View, frozen=True):
    """Evictions of one reason and cause."""

    reason: str = ""
    underlying_cause: str = ""
    count: int = 0


class SchedulingStats(View, frozen=True):
    """Counts over the lifetime of a Workload."""

    evictions: tuple[EvictionCount, ...] = ()


class WorkloadStatus(View, frozen=True):
    """State of a Workload."""

    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    unhealthy_nodes: tuple[NodeName, ...] = ()
    reclaimable_pods: tuple[ReclaimablePod, ...] = ()
    folded_slices: tuple[MergedSlice, ...] = ()
    requeue_state: RequeueState | None = None
    admission_checks: tuple[AdmissionCheckState, ...] = ()
    scheduling_stats: SchedulingStats | None = None
    accumulated_past_execution_time_seconds: int | None = None


class Workload(View, frozen=True):
    """A Workload."""

    metadata: Meta = Meta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def elastic(self) -> bool:
        """Whether the number of its pods may change while it is admitted."""
        return self.metadata.annotations.get(ELASTIC_ANNOTATION) == "true"

    @property
    def parent(self) -> OwnerReference | None:
        """The parent of a workload slice; None for every other Workload.

        A slice has another Workload as its owner, and the annotation of elastic jobs.
        """
        owner = self.metadata.controller
        if owner is None or owner.kind != "Workload" or not self.elastic:
            return None
        if owner.uid == self.metadata.uid:
            return None
        return owner if owner.api_version.partition("/")[0] == GROUP else None

    @property
    def job_uid(self) -> str:
        """UID of its job: the label, which remains if the owner changes, or else the controller."""
        owner = self.metadata.controller
        return self.metadata.labels.get(JOB_UID_LABEL, "") or (owner.uid if owner else "")

    @property
    def owner_uid(self) -> str:
        """UID of its owner: the controller, or for a group of pods, which has none, the group."""
        owner = self.metadata.controller
        if owner is not None:
            return owner.uid
        return self.job_uid if self.is_of_pod_group else ""

    @property
    def is_of_pod_group(self) -> bool:
        """Whether its pods, and not a controller, own it together."""
        annotations = self.metadata.annotations
        named = annotations.get(GROUP_WORKLOAD_ANNOTATION) == "true"
        return named and self.metadata.controller is None

    def condition(self, type_: str) -> Condition | None:
        """The condition of that type, if present."""
        return next((c for c in self.status.conditions if c.type == type_), None)

    def is_true(self, type_: str) -> bool:
        """Whether that condition is present with status True."""
        condition = self.condition(type_)
        return condition is not None and condition.status == "True"
