"""Queues, quota and flavors: who may use how much of which nodes.

ResourceFlavor, ClusterQueue, LocalQueue and Cohort, and the two small kinds that queues and
Workloads refer to: AdmissionCheck and WorkloadPriorityClass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rackgate.api.meta import (
    ATOMIC,
    ATOMIC_MAP,
    DNS_LABEL,
    LIST_SET,
    ApiModel,
    ApiObject,
    Conditions,
    Count,
    Int32,
    Int64,
    LabelSelector,
    LabelValue,
    ObjectName,
    Quantities,
    Quantity,
    ResourceName,
    Taint,
    Time,
    Toleration,
    list_map,
    rule,
    rule_error,
    rules,
)

NEEDS_LABELS = "at least one node label is required when topologyName is set"


class ResourceFlavorSpec(
    ApiModel,
    json_schema_extra={"default": {}}
    | rules(
        rule(
            "!has(self.topologyName) || (has(self.nodeLabels) && size(self.nodeLabels) >= 1)",
            NEEDS_LABELS,
            ".nodeLabels",
        ),
        rule(
            """!has(oldSelf.topologyName)
            || (has(self.topologyName) && self.topologyName == oldSelf.topologyName)""",
            "topologyName is immutable once set",
            ".topologyName",
        ),
    ),
):
    """Nodes of a flavor."""

    node_labels: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=8, json_schema_extra=ATOMIC_MAP
    )
    """Labels of the nodes of this flavor; admitted pods get them as node selector."""
    node_taints: list[Taint] = Field(default_factory=list, max_length=8, json_schema_extra=ATOMIC)
    """Taints of the nodes of this flavor; pods get the flavor only if they tolerate them."""
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=8, json_schema_extra=ATOMIC
    )
    """Tolerations added to the pods admitted with this flavor."""
    topology_name: ObjectName | None = None
    """Topology of the nodes. If it is set, pods with this flavor are placed by topology."""

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if self.topology_name is not None and not self.node_labels:
            raise rule_error("nodeLabels", NEEDS_LABELS)
        return self


class ResourceFlavor(ApiObject):
    """A class of nodes for which queues have quota."""

    spec: ResourceFlavorSpec = Field(default_factory=ResourceFlavorSpec)


SAME_RESOURCES = "every flavor must list the resources of coveredResources, in the same order"


class ResourceQuota(ApiModel):
    """Quota of one resource in one flavor."""

    name: ResourceName
    nominal_quota: Quantity
    """Amount that Workloads may use at the same time."""
    borrowing_limit: Quantity | None = None
    """Most that may be borrowed from the cohort. Unset: no limit."""
    lending_limit: Quantity | None = None
    """Most of the unused quota that the cohort may borrow. Unset: no limit."""


class FlavorQuotas(ApiModel):
    """Quotas of one flavor."""

    name: ObjectName
    """Name of a ResourceFlavor."""
    resources: list[ResourceQuota] = Field(
        min_length=1, max_length=64, json_schema_extra=list_map("name")
    )


class ResourceGroup(
    ApiModel,
    json_schema_extra=rules(
        rule(
            "self.flavors.all(f, size(f.resources) == size(self.coveredResources))",
            SAME_RESOURCES,
            ".flavors",
        ),
        rule(
            """self.flavors.all(f, size(f.resources) != size(self.coveredResources)
            || f.resources.all(i, r, r.name == self.coveredResources[i]))""",
            SAME_RESOURCES,
            ".flavors",
        ),
    ),
):
    """Resources that get the same flavor. Flavors are tried in order."""

    covered_resources: list[ResourceName] = Field(
        min_length=1, max_length=64, json_schema_extra=ATOMIC
    )
    flavors: list[FlavorQuotas] = Field(
        min_length=1, max_length=64, json_schema_extra=list_map("name")
    )

    @model_validator(mode="after")
    def _check_flavors(self) -> Self:
        for index, flavor in enumerate(self.flavors):
            if [quota.name for quota in flavor.resources] != self.covered_resources:
                raise rule_error(f"flavors[{index}].resources", SAME_RESOURCES)
        return self


def _find_repeated(groups: Sequence[Sequence[str]]) -> str | None:
    seen: set[str] = set()
    for names in groups:
        repeated = next((name for name in names if name in seen), None)
        if repeated is not None:
            return repeated
        seen.update(names)
    return None


def check_groups(groups: Sequence[ResourceGroup]) -> None:
    """Reject a resource or flavor that is in two groups. In CEL this rule costs too much.

    Raises:
        PydanticCustomError: for the validator of a model with `resourceGroups`.
    """
    found = _find_repeated([group.covered_resources for group in groups])
    if found is not None:
        raise rule_error(
            "resourceGroups", f'resource "{found}" is in two groups: cover it in one of them'
        )
    found = _find_repeated([[flavor.name for flavor in group.flavors] for group in groups])
    if found is not None:
        raise rule_error(
            "resourceGroups", f'flavor "{found}" is in two groups: name it in one of them'
        )


def _reject_cohort_limits(groups: Sequence[ResourceGroup]) -> None:
    """Reject borrowing and lending limits, for a queue without a cohort."""
    for field, wire_name in (
        ("borrowing_limit", "borrowingLimit"),
        ("lending_limit", "lendingLimit"),
    ):
        for g, group in enumerate(groups):
            for f, flavor in enumerate(group.flavors):
                for r, quota in enumerate(flavor.resources):
                    if getattr(quota, field) is not None:
                        path = f"resourceGroups[{g}].flavors[{f}].resources[{r}].{wire_name}"
                        raise rule_error(path, NEEDS_COHORT.format(wire_name))


class FairSharing(ApiModel):
    """Weight in the competition for unused resources."""

    weight: Quantity = Field(default=1)
    """A greater weight gets more; weight 0 always comes last."""


class AdmissionFairSharingStatus(ApiModel):
    """Usage over time, for admission fair sharing."""

    consumed_resources: Quantities
    last_update: Time


class FairSharingStatus(ApiModel):
    """Current share."""

    weighted_share: Int64
    admission_fair_sharing_status: AdmissionFairSharingStatus | None = None


class CohortSpec(ApiModel, json_schema_extra={"default": {}}):
    """Parent cohort, and quota shared by all members."""

    parent_name: ObjectName | None = None
    """Parent cohort. Unset: this cohort is a root."""
    resource_groups: list[ResourceGroup] = Field(
        default_factory=list, max_length=16, json_schema_extra=ATOMIC
    )
    """Quota in addition to that of the member ClusterQueues."""
    fair_sharing: FairSharing | None = None

    @model_validator(mode="after")
    def _check_resource_groups(self) -> Self:
        check_groups(self.resource_groups)
        return self


class CohortStatus(ApiModel):
    """Current share."""

    fair_sharing: FairSharingStatus | None = None


class Cohort(ApiObject):
    """ClusterQueues that lend each other unused quota."""

    spec: CohortSpec = Field(default_factory=CohortSpec)
    status: CohortStatus | None = None


NEEDS_COHORT = "{} can only be set with cohortName: name a cohort or remove it"
StopPolicy = Literal["None", "Hold", "HoldAndDrain"]
CheckName = Annotated[str, Field(min_length=1, max_length=316)]


def _cohort_only_rule(field: str) -> str:
    return f"""(has(self.cohortName) && self.cohortName != '') || !has(self.resourceGroups)
        || self.resourceGroups.all(g, g.flavors.all(f, f.resources.all(r, !has(r.{field}))))"""


class FlavorFungibility(
    ApiModel,
    json_schema_extra={"default": {}}
    | rules(
        rule(
            """!has(self.preference) || (self.whenCanBorrow == 'TryNextFlavor'
            && self.whenCanPreempt == 'TryNextFlavor')""",
            "preference needs whenCanBorrow and whenCanPreempt to be TryNextFlavor",
            ".preference",
        )
    ),
):
    """Whether the next flavor is tried before borrowing or preempting in this one."""

    when_can_borrow: Literal["MayStopSearch", "TryNextFlavor"] = "MayStopSearch"
    when_can_preempt: Literal["MayStopSearch", "TryNextFlavor"] = "TryNextFlavor"
    preference: Literal["BorrowingOverPreemption", "PreemptionOverBorrowing"] | None = None


class BorrowWithinCohort(ApiModel, json_schema_extra={"default": {}}):
    """Preemption in other queues of the cohort while borrowing."""

    policy: Literal["Never", "LowerPriority"] = "Never"
    max_priority_threshold: Int32 | None = None
    """Only Workloads of at most this priority may be preempted."""


class ClusterQueuePreemption(
    ApiModel,
    json_schema_extra={"default": {}}
    | rules(
        rule(
            """self.reclaimWithinCohort != 'Never' || !has(self.borrowWithinCohort)
            || self.borrowWithinCohort.policy == 'Never'""",
            "borrowWithinCohort needs reclaimWithinCohort to be other than Never",
            ".borrowWithinCohort",
        )
    ),
):
    """Workloads that a pending Workload may preempt."""

    reclaim_within_cohort: Literal["Never", "LowerPriority", "Any"] = "Never"
    borrow_within_cohort: BorrowWithinCohort | None = None
    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] = "Never"


class AdmissionCheckRule(ApiModel):
    """An admission check for Workloads of the queue."""

    name: CheckName
    on_flavors: list[ObjectName] = Field(
        default_factory=list, max_length=64, json_schema_extra=LIST_SET
    )
    """Flavors whose Workloads need the check. Empty: all."""


class AdmissionChecksStrategy(ApiModel):
    """Admission checks of a queue."""

    admission_checks: list[AdmissionCheckRule] = Field(
        min_length=1, max_length=64, json_schema_extra=list_map("name")
    )


class AdmissionScope(ApiModel):
    """Whether usage over time orders the queue."""

    admission_mode: Literal["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing"]


class MigrationConstraints(ApiModel):
    """Bounds of a migration."""

    last_acceptable_flavor_name: ObjectName | None = None


class Migration(ApiModel):
    """Whether a running workload moves to a preferred flavor."""

    mode: Literal["TryPreferredFlavors", "RetainFirstAdmission"]
    constraints: MigrationConstraints | None = None


class ConcurrentAdmissionPolicy(ApiModel):
    """Admission in several flavors at the same time."""

    migration: Migration


class ClusterQueueSpec(
    ApiModel,
    json_schema_extra={"default": {}}
    | rules(
        rule(
            _cohort_only_rule("borrowingLimit"),
            NEEDS_COHORT.format("borrowingLimit"),
            ".resourceGroups",
        ),
        rule(
            _cohort_only_rule("lendingLimit"),
            NEEDS_COHORT.format("lendingLimit"),
            ".resourceGroups",
        ),
    ),
):
    """Quota of a queue, and the Workloads that may use it."""

    resource_groups: list[ResourceGroup] = Field(
        default_factory=list, max_length=16, json_schema_extra=ATOMIC
    )
    cohort_name: ObjectName | None = None
    """Cohort whose queues lend each other unused quota."""
    queueing_strategy: Literal["StrictFIFO", "BestEffortFIFO"] = "BestEffortFIFO"
    """StrictFIFO: a Workload that does not fit blocks the Workloads behind it."""
    namespace_selector: LabelSelector | None = None
    """Namespaces that may use the queue. Unset: none. Empty: all."""
    flavor_fungibility: FlavorFungibility | None = None
    preemption: ClusterQueuePreemption | None = None
    admission_checks_strategy: AdmissionChecksStrategy | None = None
    stop_policy: StopPolicy = "None"
    """Hold: no Workload is admitted. HoldAndDrain: admitted Workloads are evicted as well."""
    fair_sharing: FairSharing | None = None
    admission_scope: AdmissionScope | None = None
    concurrent_admission_policy: ConcurrentAdmissionPolicy | None = None

    @model_validator(mode="after")
    def _check_resource_groups(self) -> Self:
        check_groups(self.resource_groups)
        if not self.cohort_name:
            _reject_cohort_limits(self.resource_groups)
        return self


class ResourceUsage(ApiModel):
    """Use of one resource in one flavor."""

    name: ResourceName
    total: Quantity | None = None
    """Used quota, including borrowed quota."""
    borrowed: Quantity | None = None
    """Part that exceeds the nominal quota."""


class FlavorUsage(ApiModel):
    """Use of one flavor."""

    name: ObjectName
    resources: list[ResourceUsage] = Field(max_length=64, json_schema_extra=list_map("name"))


FlavorUsages = Annotated[
    list[FlavorUsage], Field(max_length=64, json_schema_extra=list_map("name"))
]


class ClusterQueueStatus(ApiModel):
    """Observed state of a queue."""

    conditions: Conditions = Field(default_factory=list)
    flavors_reservation: FlavorUsages = Field(default_factory=list)
    """Quota reserved."""
    flavors_usage: FlavorUsages = Field(default_factory=list)
    """Quota of admitted workloads."""
    pending_workloads: Count | None = None
    reserving_workloads: Count | None = None
    admitted_workloads: Count | None = None
    fair_sharing: FairSharingStatus | None = None


class ClusterQueue(ApiObject):
    """Quota in flavors, and the queue of the Workloads that request it."""

    spec: ClusterQueueSpec = Field(default_factory=ClusterQueueSpec)
    status: ClusterQueueStatus | None = None


class LocalQueueSpec(
    ApiModel,
    json_schema_extra={"default": {}}
    | rules(
        rule(
            """!has(oldSelf.clusterQueue)
            || (has(self.clusterQueue) && self.clusterQueue == oldSelf.clusterQueue)""",
            "clusterQueue is immutable",
            ".clusterQueue",
        )
    ),
):
    """ClusterQueue of a LocalQueue."""

    cluster_queue: ObjectName | None = None
    stop_policy: StopPolicy = "None"
    """As for a ClusterQueue."""
    fair_sharing: FairSharing | None = None


class LocalResourceUsage(ApiModel):
    """Use of one resource in one flavor."""

    name: ResourceName
    total: Quantity | None = None


class LocalFlavorUsage(ApiModel):
    """Use of one flavor."""

    name: ObjectName
    resources: list[LocalResourceUsage] = Field(max_length=64, json_schema_extra=list_map("name"))


LocalFlavorUsages = Annotated[
    list[LocalFlavorUsage], Field(max_length=64, json_schema_extra=list_map("name"))
]


class LocalQueueStatus(ApiModel):
    """Observed state of a LocalQueue."""

    conditions: Conditions = Field(default_factory=list)
    pending_workloads: Count | None = None
    reserving_workloads: Count | None = None
    admitted_workloads: Count | None = None
    flavors_reservation: LocalFlavorUsages = Field(default_factory=list)
    flavors_usage: LocalFlavorUsages = Field(default_factory=list)
    fair_sharing: FairSharingStatus | None = None


class LocalQueue(ApiObject):
    """A namespaced queue that points to a ClusterQueue. Jobs name it in their queue label."""

    spec: LocalQueueSpec = Field(default_factory=LocalQueueSpec)
    status: LocalQueueStatus | None = None


class CheckParameters(ApiModel):
    """Object with the parameters of a check."""

    api_group: ObjectName
    kind: Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$")]
    name: Annotated[str, Field(max_length=63, pattern=DNS_LABEL)]


class AdmissionCheckSpec(ApiModel):
    """Controller of a check."""

    controller_name: str = Field(
        min_length=1,
        max_length=317,
        json_schema_extra=rules(rule("self == oldSelf", "controllerName is immutable")),
    )
    retry_delay_minutes: Int64 | None = None
    parameters: CheckParameters | None = None


class AdmissionCheckStatus(ApiModel):
    """Observed state of a check."""

    conditions: Conditions = Field(default_factory=list)


class AdmissionCheck(ApiObject):
    """A condition that another controller reports before a Workload is admitted."""

    spec: AdmissionCheckSpec
    status: AdmissionCheckStatus | None = None


class WorkloadPriorityClass(ApiObject):
    """A named priority for Workloads."""

    value: Int32
    """Priority. A Workload with a higher value goes first."""
    description: str = Field(default="", max_length=2048)
