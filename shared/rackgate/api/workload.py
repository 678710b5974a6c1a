"""Workload: what a job requests as a whole, and what it was admitted with."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rackgate.api.meta import (
    ATOMIC,
    ApiModel,
    ApiObject,
    Conditions,
    Count,
    IndexLabel,
    Int32,
    ObjectName,
    PodSetName,
    Positive,
    Quantities,
    RequestedLevel,
    ResourceName,
    Schema,
    Time,
    Toleration,
    list_map,
    rule,
    rule_error,
    rules,
)
from rackgate.api.topology import Assignment

MAX_PODSETS = 18
MAX_MERGED_SLICES = 1000
ClusterName = Annotated[str, Field(max_length=256)]
Cause = Annotated[str, Field(max_length=316)]


class PodSetAssignment(ApiModel):
    """Flavors, resources and topology of one admitted PodSet."""

    name: PodSetName = "main"
    flavors: dict[ResourceName, ObjectName] = Field(default_factory=dict)
    """Flavor by resource."""
    resource_usage: Quantities = Field(default_factory=dict)
    """Resources of all pods of the PodSet."""
    count: Count | None = None
    """Pods that are admitted."""
    topology_assignment: Assignment | None = None
    """Domains and their pod counts; `rackgate.topology.assignment` reads and writes it."""
    delayed_topology_request: Literal["Pending", "Ready"] | None = None


class Admission(ApiModel):
    """Quota and topology of an admitted Workload."""

    cluster_queue: ObjectName
    pod_set_assignments: list[PodSetAssignment] = Field(
        max_length=MAX_PODSETS, json_schema_extra=list_map("name")
    )


class RequeueState(ApiModel):
    """Number of requeues and the time of the next."""

    count: Count | None = None
    requeue_at: Time | None = None


class ReclaimablePod(ApiModel):
    """Pods of a PodSet whose resources others may use."""

    name: PodSetName
    count: Count


class PodSetResources(ApiModel):
    """Resources of a PodSet when it was last considered."""

    name: PodSetName
    resources: Quantities = Field(default_factory=dict)


class PodSetUpdate(ApiModel):
    """What a check adds to the pods of a PodSet."""

    name: PodSetName
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=8, json_schema_extra=ATOMIC
    )


class AdmissionCheckState(ApiModel):
    """State of one admission check."""

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
    """An unhealthy node with pods of the Workload."""

    name: str = Field(min_length=1, max_length=253)


class MergedSlice(ApiModel):
    """A workload slice whose pods `admission` includes, or that released its quota.

    The slice's own admission no longer counts. The entry remains until the slice is deleted.
    """

    uid: str = Field(min_length=1, max_length=64)
    """UID of the slice; its name may be reused."""
    pod_set: PodSetName
    """PodSet whose count it was added to."""


class EvictionCount(ApiModel):
    """Evictions of one reason and cause."""

    reason: Cause
    underlying_cause: Cause
    count: Count


class SchedulingStats(ApiModel):
    """Counts over the lifetime of the Workload."""

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
    """Workload slices that were merged into this Workload; only on elastic Workloads."""


ONE_REQUEST = "at most one of required, preferred and unconstrained may be set"
SLICE_PAIR = "podSetSliceRequiredTopology and podSetSliceSize need each other"
SLICE_FORMS = (
    "podsetSliceRequiredTopologyConstraints cannot be used with podSetSliceRequiredTopology"
    " and podSetSliceSize"
)
LAYERS = "every layer must name another topology level, with a size that divides the one before"
ONE_MIN_COUNT = "at most one podSet may set minCount"
MIN_COUNT = "minCount must not be greater than count"
NEEDS_PRIORITY = "priority is needed with priorityClassRef"


class SliceConstraint(ApiModel):
    """`size` pods of a PodSet slice stay within one domain of the level `topology`."""

    topology: RequestedLevel
    size: Positive


class PodSetTopologyRequest(
    ApiModel,
    json_schema_extra=rules(
        rule(
            # Two levels together need a feature gate, which webhook and assigner check.
            """!has(self.unconstrained) || !self.unconstrained
            || (!has(self.required) && !has(self.preferred))""",
            ONE_REQUEST,
        ),
        rule(
            "has(self.podSetSliceRequiredTopology) == has(self.podSetSliceSize)",
            SLICE_PAIR,
            ".podSetSliceSize",
        ),
        rule(
            """!has(self.podsetSliceRequiredTopologyConstraints)
            || (!has(self.podSetSliceRequiredTopology) && !has(self.podSetSliceSize))""",
            SLICE_FORMS,
            ".podsetSliceRequiredTopologyConstraints",
        ),
    ),
):
    """Topology request of a PodSet, as in the annotations of its pod template."""

    required: RequestedLevel | None = None
    """All pods within one domain of this level."""
    preferred: RequestedLevel | None = None
    """All pods within one domain of this level if possible, else of a coarser level."""
    unconstrained: bool | None = None
    """Any nodes with free capacity."""
    pod_index_label: IndexLabel | None = None
    """Pod label with the index in the PodSet."""
    sub_group_index_label: IndexLabel | None = None
    """Pod label with the index of its group of pods."""
    sub_group_count: Count | None = None
    """Groups of pods."""
    pod_set_group_name: str | None = Field(default=None, max_length=256)
    """PodSets of one group are placed together."""
    pod_set_slice_required_topology: RequestedLevel | None = None
    """Every slice of the PodSet within one domain of this level."""
    pod_set_slice_size: Positive | None = None
    """Pods in a slice."""
    podset_slice_required_topology_constraints: list[SliceConstraint] | None = Field(
        default=None,
        min_length=1,
        max_length=3,
        json_schema_extra=ATOMIC
        | rules(
            rule(
                """self.all(i, c, self.exists_one(d, d.topology == c.topology)
                && (i == 0 || self[i - 1].size % c.size == 0))""",
                LAYERS,
            )
        ),
    )
    """Slices in layers, coarsest first."""

    @model_validator(mode="after")
    def _check_exclusive_forms(self) -> Self:
        if self.unconstrained and (self.required is not None or self.preferred is not None):
            raise rule_error("", ONE_REQUEST)
        pair = (self.pod_set_slice_required_topology, self.pod_set_slice_size)
        if (pair[0] is None) != (pair[1] is None):
            raise rule_error("podSetSliceSize", SLICE_PAIR)
        layers = self.podset_slice_required_topology_constraints
        if layers is None:
            return self
        if pair[0] is not None:
            raise rule_error("podsetSliceRequiredTopologyConstraints", SLICE_FORMS)
        sizes = [layer.size for layer in layers]
        divides = all(a % b == 0 for a, b in pairwise(sizes))
        if not divides or len({layer.topology for layer in layers}) < len(layers):
            raise rule_error("podsetSliceRequiredTopologyConstraints", LAYERS)
        return self


# CEL can compare a template only if its schema names a field, at a bounded cost only if that field
# is bounded. Fields that the schema does not name are preserved, and compared as well.
_TEMPLATE: Schema = {
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "metadata": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {"name": {"type": "string", "maxLength": 253}},
        }
    },
}


class PodSet(
    ApiModel,
    json_schema_extra=rules(
        rule("!has(self.minCount) || self.minCount <= self.count", MIN_COUNT, ".minCount")
    ),
):
    """Pods of one shape."""

    name: PodSetName = "main"
    count: Count = 1
    min_count: Positive | None = None
    """Fewest pods that partial admission may admit."""
    template: dict[str, Any] = Field(json_schema_extra=_TEMPLATE)
    """Pod template, stored exactly as created."""
    topology_request: PodSetTopologyRequest | None = None

    @model_validator(mode="after")
    def _check_min_count(self) -> Self:
        if self.min_count is not None and self.min_count > self.count:
            raise rule_error("minCount", MIN_COUNT)
        return self


class PriorityClassRef(
    ApiModel,
    json_schema_extra=rules(
        rule(
            """self.kind == (self.group == 'scheduling.k8s.io'
            ? 'PriorityClass' : 'WorkloadPriorityClass')""",
            "kind must be PriorityClass in group scheduling.k8s.io,"
            " WorkloadPriorityClass in group kueue.x-k8s.io",
            ".kind",
        )
    ),
):
    """Source of a Workload's priority."""

    group: Literal["kueue.x-k8s.io", "scheduling.k8s.io"]
    kind: Literal["WorkloadPriorityClass", "PriorityClass"]
    name: ObjectName = Field(min_length=1)


class PreemptionGate(ApiModel):
    """Prevents preemption by this Workload."""

    name: str = Field(min_length=1, max_length=316)


class WorkloadSpec(
    ApiModel,
    json_schema_extra=rules(
        rule("!has(self.priorityClassRef) || has(self.priority)", NEEDS_PRIORITY, ".priority")
    ),
):
    """Requests of a Workload."""

    pod_sets: list[PodSet] = Field(
        min_length=1,
        max_length=MAX_PODSETS,
        json_schema_extra=list_map("name")
        | rules(rule("self.filter(p, has(p.minCount)).size() <= 1", ONE_MIN_COUNT)),
    )
    queue_name: ObjectName | None = None
    """LocalQueue."""
    priority_class_ref: PriorityClassRef | None = None
    priority: Int32 | None = None
    """A Workload with a higher value goes first."""
    active: bool = True
    """False evicts the Workload and prevents its admission."""
    maximum_execution_time_seconds: Positive | None = None
    preemption_gates: list[PreemptionGate] = Field(
        default_factory=list, max_length=8, json_schema_extra=list_map("name")
    )

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        names = [podset.name for podset in self.pod_sets]
        repeated = next((i for i, name in enumerate(names) if name in names[:i]), None)
        if repeated is not None:
            raise rule_error(
                f"podSets[{repeated}].name", f'podSet "{names[repeated]}" is there twice: rename it'
            )
        if sum(podset.min_count is not None for podset in self.pod_sets) > 1:
            raise rule_error("podSets", ONE_MIN_COUNT)
        if self.priority_class_ref is not None and self.priority is None:
            raise rule_error("priority", NEEDS_PRIORITY)
        return self


def held(condition: str) -> str:
    """CEL: a condition was True before and is True now.

    A rule about one field asks first whether that is unchanged, as it is in every write of a
    status: the API server takes longer to find a condition among all than to read a field.
    """
    both = " && ".join(
        f"has({it}.status) && has({it}.status.conditions)"
        f" && {it}.status.conditions.exists(c, c.type == '{condition}' && c.status == 'True')"
        for it in ("oldSelf", "self")
    )
    return f"({both})"


def _unchanged(new: str, old: str, field: str) -> str:
    """CEL: an optional field is absent in both, or the same (`.?` has no bounded cost)."""
    return (
        f"has({new}.{field}) == has({old}.{field})"
        f" && (!has({new}.{field}) || {new}.{field} == {old}.{field})"
    )


# A count may grow up to the admitted count. Only the admission of an elastic Workload grows: the
# policy in deploy/webhook checks the annotation, which a schema cannot see.
_COUNT_ADMITTED = """has(self.status.admission)
    && self.status.admission.podSetAssignments.exists(a, a.name == p.name
    && has(a.count) && p.count <= a.count)"""
# The old PodSets have a name: each `oldSelf.spec` is looked up again. Both lists are compared in
# their order, which `==` of lists with keys ignores.
_SAME_PODSETS = f"""size(self.spec.podSets) == size(oldSelf.spec.podSets)
    && [oldSelf.spec.podSets].all(old, self.spec.podSets.all(i, p, p == old[i]
    || (p.name == old[i].name
    && (p.count <= old[i].count || ({_COUNT_ADMITTED}))
    && p.template == old[i].template
    && {_unchanged("p", "old[i]", "minCount")}
    && {_unchanged("p", "old[i]", "topologyRequest")})))"""


class Workload(
    ApiObject,
    json_schema_extra=rules(
        rule(
            """!has(self.status) || !has(self.status.admission)
            || size(self.spec.podSets) == size(self.status.admission.podSetAssignments)
            || !has(self.status.conditions) || !self.status.conditions.exists(
                c, c.type == 'QuotaReserved' && c.status == 'True')""",
            "podSetAssignments must have one entry per podSet",
            ".status.admission.podSetAssignments",
        ),
        rule(
            f"({_unchanged('self.spec', 'oldSelf.spec', 'queueName')}) || !{held('QuotaReserved')}",
            "queueName is immutable while quota is reserved",
            ".spec.queueName",
        ),
        rule(
            f"!{held('QuotaReserved')} || ({_SAME_PODSETS})",
            "podSets are immutable while quota is reserved, but for counts that decrease"
            " or follow the admission",
            ".spec.podSets",
        ),
        rule(
            f"""(has(self.spec.priorityClassRef) == has(oldSelf.spec.priorityClassRef)
            && (!has(self.spec.priorityClassRef)
            || (self.spec.priorityClassRef.group == oldSelf.spec.priorityClassRef.group
            && (self.spec.priorityClassRef.group != 'scheduling.k8s.io'
            || self.spec.priorityClassRef.name == oldSelf.spec.priorityClassRef.name))))
            || !{held("QuotaReserved")}""",
            "priorityClassRef can only change its WorkloadPriorityClass while quota is reserved",
            ".spec.priorityClassRef",
        ),
        rule(
            f"({_unchanged('self.spec', 'oldSelf.spec', 'maximumExecutionTimeSeconds')})"
            f" || !{held('Admitted')}",
            "maximumExecutionTimeSeconds is immutable while admitted",
            ".spec.maximumExecutionTimeSeconds",
        ),
    ),
):
    """All pods of one job, admitted and placed together."""

    spec: WorkloadSpec
    status: WorkloadStatus | None = None
