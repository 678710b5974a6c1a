"""ClusterQueue and LocalQueue: who may use how much of which flavor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rackgate.api.meta import (
    ATOMIC,
    LIST_SET,
    ApiModel,
    ApiObject,
    Conditions,
    Count,
    Int32,
    LabelSelector,
    ObjectName,
    Quantity,
    ResourceName,
    list_map,
    rule,
    rule_error,
    rules,
)
from rackgate.api.quotas import (
    FairSharing,
    FairSharingStatus,
    ResourceGroup,
    ResourceQuota,
    check_groups,
    quota_paths,
)

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
    """Only workloads of at most this priority may be preempted."""


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
    """Which workloads a pending one may preempt."""

    reclaim_within_cohort: Literal["Never", "LowerPriority", "Any"] = "Never"
    borrow_within_cohort: BorrowWithinCohort | None = None
    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] = "Never"


class AdmissionCheckRule(ApiModel):
    """A check that workloads of the queue must pass."""

    name: CheckName
    on_flavors: list[ObjectName] = Field(
        default_factory=list, max_length=64, json_schema_extra=LIST_SET
    )
    """Only for workloads with these flavors; empty: for all."""


class AdmissionChecksStrategy(ApiModel):
    """Checks of a queue."""

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
    """Pursuit of several flavors at the same time."""

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
    """What a queue grants, and to whom."""

    resource_groups: list[ResourceGroup] = Field(
        default_factory=list, max_length=16, json_schema_extra=ATOMIC
    )
    cohort_name: ObjectName | None = None
    """Cohort whose queues lend each other unused quota."""
    queueing_strategy: Literal["StrictFIFO", "BestEffortFIFO"] = "BestEffortFIFO"
    """StrictFIFO: a workload that does not fit blocks those behind it."""
    namespace_selector: LabelSelector | None = None
    """Namespaces that may use the queue; unset: none, empty: all."""
    flavor_fungibility: FlavorFungibility | None = None
    preemption: ClusterQueuePreemption | None = None
    admission_checks_strategy: AdmissionChecksStrategy | None = None
    stop_policy: StopPolicy = "None"
    """Hold: no new reservations. HoldAndDrain: running workloads are evicted as well."""
    fair_sharing: FairSharing | None = None
    admission_scope: AdmissionScope | None = None
    concurrent_admission_policy: ConcurrentAdmissionPolicy | None = None

    @model_validator(mode="after")
    def _check_resource_groups(self) -> Self:
        check_groups(self.resource_groups)
        if not self.cohort_name:
            self._reject_outside_cohort(
                "borrowingLimit", lambda quota: quota.borrowing_limit is not None
            )
            self._reject_outside_cohort(
                "lendingLimit", lambda quota: quota.lending_limit is not None
            )
        return self

    def _reject_outside_cohort(self, field: str, is_set: Callable[[ResourceQuota], bool]) -> None:
        for path in quota_paths(self.resource_groups, is_set):
            raise rule_error(f"{path}.{field}", NEEDS_COHORT.format(field))


class ResourceUsage(ApiModel):
    """Use of one resource in one flavor."""

    name: ResourceName
    total: Quantity | None = None
    """Used quota, with what is borrowed."""
    borrowed: Quantity | None = None
    """The part beyond the nominal quota."""


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
    """Quota in flavors, and the queue of the workloads that want it."""

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
    """Which ClusterQueue a LocalQueue feeds."""

    cluster_queue: ObjectName | None = None
    stop_policy: StopPolicy = "None"
    """As of a ClusterQueue."""
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
    """A namespace's door to a ClusterQueue; jobs name it in their queue label."""

    spec: LocalQueueSpec = Field(default_factory=LocalQueueSpec)
    status: LocalQueueStatus | None = None
