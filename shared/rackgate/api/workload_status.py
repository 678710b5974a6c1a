"""Status of a Workload: what it was given and what became of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rackgate.api.assignment import Assignment
from rackgate.api.meta import (
    ATOMIC,
    ApiModel,
    Conditions,
    Count,
    ObjectName,
    PodSetName,
    Quantities,
    ResourceName,
    Time,
    Toleration,
    list_map,
    rule,
    rules,
)

MAX_PODSETS = 18
MAX_MERGED_SLICES = 1000
ClusterName = Annotated[str, Field(max_length=256)]
Cause = Annotated[str, Field(max_length=316)]


class PodSetAssignment(ApiModel):
    """What one PodSet was given."""

    name: PodSetName = "main"
    flavors: dict[ResourceName, ObjectName] = Field(default_factory=dict)
    """Flavor by resource."""
    resource_usage: Quantities = Field(default_factory=dict)
    """Resources of all pods of the PodSet together."""
    count: Count | None = None
    """Pods that the usage is for."""
    topology_assignment: Assignment | None = None
    """Domains and their pod counts; `rackgate.topology.assignment` reads and writes it."""
    delayed_topology_request: Literal["Pending", "Ready"] | None = None


class Admission(ApiModel):
    """Quota and topology given to a Workload."""

    cluster_queue: ObjectName
    pod_set_assignments: list[PodSetAssignment] = Field(
        max_length=MAX_PODSETS, json_schema_extra=list_map("name")
    )


class RequeueState(ApiModel):
    """Earlier tries and the time of the next."""

    count: Count | None = None
    requeue_at: Time | None = None


class ReclaimablePod(ApiModel):
    """Pods of a PodSet whose resources are free again."""

    name: PodSetName
    count: Count


class PodSetResources(ApiModel):
    """What a PodSet was counted for when it was last considered."""

    name: PodSetName
    resources: Quantities = Field(default_factory=dict)


class PodSetUpdate(ApiModel):
    """Additions of a check to the pods of a PodSet."""

    name: PodSetName
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=8, json_schema_extra=ATOMIC
    )


class AdmissionCheckState(ApiModel):
    """State of one check."""

    name: str = Field(min_length=1, max_length=316)
    state: Literal["Pending", "Ready", "Retry", "Rejected"]
    last_transition_time: Time
    message: str = Field(max_length=32768)
    requeue_after_seconds: Count | None = None
    retry_count: Count | None = None
    pod_set_updates: list[PodSetUpdate] = Field(
        default_factory=list, max_length=MAX_PODSETS, json_schema_extra=ATOMIC
    )


class PreemptionGateState(ApiModel):
    """Whether a preemption gate is open."""

    name: str = Field(min_length=1, max_length=316)
    position: Literal["Open", "Closed"]
    last_transition_time: Time


class UnhealthyNode(ApiModel):
    """A failed node that ran pods of the Workload."""

    name: str = Field(min_length=1, max_length=253)


class MergedSlice(ApiModel):
    """A workload slice that the counts of `admission` include, or that gave up its grant.

    What such a slice still holds itself counts no more. It stays here until the slice is gone.
    """

    uid: str = Field(min_length=1, max_length=64)
    """Of the slice: its name may be used again."""
    pod_set: PodSetName
    """PodSet whose count it was added to."""


class EvictionCount(ApiModel):
    """Evictions of one reason and cause."""

    reason: Cause
    underlying_cause: Cause
    count: Count


class SchedulingStats(ApiModel):
    """Counts over the life of the Workload."""

    evictions: list[EvictionCount] = Field(
        default_factory=list,
        max_length=256,
        json_schema_extra=list_map("reason", "underlyingCause"),
    )


class WorkloadStatus(
    ApiModel,
    json_schema_extra=rules(
        rule(
            """!has(oldSelf.clusterName) || !has(self.clusterName)
            || oldSelf.clusterName == self.clusterName""",
            "clusterName is immutable once set",
            ".clusterName",
        ),
        rule(
            """!has(self.clusterName) || !has(self.nominatedClusterNames)
            || size(self.nominatedClusterNames) == 0""",
            "clusterName and nominatedClusterNames are mutually exclusive",
            ".nominatedClusterNames",
        ),
    ),
):
    """Observed state of a Workload."""

    conditions: Conditions = Field(default_factory=list)
    admission: Admission | None = None
    requeue_state: RequeueState | None = None
    reclaimable_pods: list[ReclaimablePod] = Field(
        default_factory=list, max_length=MAX_PODSETS, json_schema_extra=list_map("name")
    )
    admission_checks: list[AdmissionCheckState] = Field(
        default_factory=list, max_length=8, json_schema_extra=list_map("name")
    )
    resource_requests: list[PodSetResources] = Field(
        default_factory=list, max_length=MAX_PODSETS, json_schema_extra=list_map("name")
    )
    accumulated_past_execution_time_seconds: Count | None = None
    scheduling_stats: SchedulingStats | None = None
    nominated_cluster_names: list[ClusterName] = Field(
        default_factory=list, max_length=10, json_schema_extra=ATOMIC
    )
    cluster_name: ClusterName | None = None
    unhealthy_nodes: list[UnhealthyNode] = Field(
        default_factory=list, max_length=8, json_schema_extra=list_map("name")
    )
    preemption_gates: list[PreemptionGateState] = Field(
        default_factory=list, max_length=8, json_schema_extra=list_map("name")
    )
    folded_slices: list[MergedSlice] = Field(
        default_factory=list, max_length=MAX_MERGED_SLICES, json_schema_extra=list_map("uid")
    )
    """Workload slices that are settled in `admission`; only of Workloads that may be resized."""
