"""Settings of the assigner: `kind: AssignerConfiguration`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from rackgate.features import Features
from rackgate.runtime.namespaces import NamespaceSelector
from rackgate.runtime.settings import BaseServiceSettings, ConfigModel, MetricsSettings
from rackgate_assigner.quota.admission_fair_sharing import AdmissionFairSharing
from rackgate_assigner.visibility.settings import VisibilitySettings
from rackgate_assigner.workload.pods_ready_timeout import PodsReadyTimeouts
from rackgate_assigner.workload.retention import Retention


class BudgetSettings(ConfigModel):
    """Request rate for one purpose."""

    qps: float = Field(default=0, ge=0, le=100_000)
    """Sustained requests per second; 0 for no limit."""
    burst: int = Field(default=100, ge=1, le=100_000)
    """Requests that may be sent at once after a quiet time."""
    concurrency: int = Field(default=16, ge=1, le=1_000)
    """Maximum number of concurrent requests."""


class BudgetsSettings(ConfigModel):
    """One budget for each purpose, so that none delays another."""

    admission: BudgetSettings = BudgetSettings(qps=400, burst=400, concurrency=48)
    """Admissions, evictions and releases of quota."""
    jobs: BudgetSettings = BudgetSettings(qps=400, burst=400)
    """Creating Workloads, starting and stopping jobs, finishing Workloads."""
    pending: BudgetSettings = BudgetSettings(qps=100, burst=100, concurrency=8)
    """Conditions that say why a Workload is pending, and finalizers."""
    queues: BudgetSettings = BudgetSettings(qps=50, burst=50, concurrency=4)
    """Status of ClusterQueues and LocalQueues."""


class CycleSettings(ConfigModel):
    """The scheduling cycle."""

    min_interval: float = Field(default=0.02, ge=0, le=60)
    """Minimum seconds between the starts of two cycles; changes in between are handled together.
    After a cycle that took long, the pause is three times as long as the cycle, up to a second. A
    cycle also waits, for a second at most, while more decisions wait to be written than
    `budgets.admission.concurrency`."""
    message_interval: float = Field(default=3.0, ge=0, le=300)
    """Minimum seconds between two pending messages of one Workload with the same reason. Such
    messages change whenever free capacity changes. A new reason is written at once. In addition,
    at most 20 such messages per second are written in total."""
    check_usage: bool = False
    """After every cycle, compare usage with usage rebuilt from scratch; for debugging."""


class QueueStatusSettings(ConfigModel):
    """Status writes of queues."""

    min_interval: float = Field(default=0.5, ge=0.2, le=60)
    """Minimum seconds between two rounds; each round writes every queue once, if it has changed."""
    max_interval: float = Field(default=10.0, ge=0.2, le=300)
    """Maximum seconds between two writes about a queue whose counts change all the time; the
    interval increases up to it. A change of the conditions is written at once."""


class ResourcesSettings(ConfigModel):
    """Which resources count."""

    exclude_resource_prefixes: list[Annotated[str, Field(min_length=1, max_length=316)]] = Field(
        default_factory=list, max_length=64
    )
    """Prefixes of resource names that count neither for quota nor for capacity of nodes."""


class RequeuingStrategySettings(ConfigModel):
    """Backoff after an eviction because pods were not ready in time."""

    timestamp: Literal["Eviction", "Creation"] = "Eviction"
    """The time that orders an evicted Workload among those of the same priority: of its eviction,
    so that others go first, or of its creation."""
    backoff_base_seconds: float = Field(default=60, ge=1, le=86_400)
    """Backoff in seconds after the first eviction because of missing pods; it doubles with each
    further eviction."""
    backoff_limit_count: int | None = Field(default=None, ge=0, le=2_147_483_647)
    """Evictions because of missing pods after which the Workload is deactivated instead of evicted
    again. Default: none, it is queued again each time."""
    backoff_max_seconds: float = Field(default=3600, ge=1, le=604_800)
    """Maximum backoff in seconds; at least backoffBaseSeconds."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.backoff_base_seconds > self.backoff_max_seconds:
            raise ValueError(
                f"backoffBaseSeconds ({self.backoff_base_seconds:g}) is more than backoffMaxSeconds"
                f" ({self.backoff_max_seconds:g}): lower the first or raise the second"
            )
        return self


class WaitForPodsReadySettings(ConfigModel):
    """Admitted jobs whose pods are not all ready."""

    timeout: float | None = Field(default=None, ge=1, le=604_800)
    """Seconds from its admission in which a job must have all its pods ready; otherwise it is
    evicted and queued again. Default: none, no timeout."""
    recovery_timeout: float | None = Field(default=None, ge=0, le=604_800)
    """Seconds in which a running job must have all its pods ready again after one was lost;
    otherwise it is evicted and queued again. 0: no timeout. Default: the value of timeout."""
    block_admission: bool = False
    """Admit no Workload while pods of an admitted one are not ready. Requires timeout."""
    requeuing_strategy: RequeuingStrategySettings = RequeuingStrategySettings()
    """When it is queued again."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.block_admission and self.timeout is None:
            raise ValueError(
                "blockAdmission requires timeout: a job whose pods are never ready would block"
                " all admissions for ever; set timeout, for example to 300"
            )
        return self

    def timeouts(self) -> PodsReadyTimeouts:
        """The settings in the form that the job controller uses."""
        pause = self.requeuing_strategy
        recovery = self.timeout if self.recovery_timeout is None else self.recovery_timeout
        return PodsReadyTimeouts(
            self.timeout,
            recovery or None,
            pause.backoff_base_seconds,
            pause.backoff_max_seconds,
            pause.backoff_limit_count,
        )


class WorkloadRetentionSettings(ConfigModel):
    """How long ended Workloads are kept."""

    after_finished: float | None = Field(default=None, ge=0, le=31_536_000)
    """Seconds after which a finished Workload is deleted; its job is not. Default: none, it is
    deleted with its job."""
    after_deactivated_by_kueue: float | None = Field(default=None, ge=0, le=31_536_000)
    """Seconds after which the job of a Workload that Rackgate has deactivated is deleted, and the
    Workload with it. Workloads that users deactivate are kept. Needs the component
    deploy/retention: without it, the assigner has no right to delete jobs. Default: none, they are
    kept."""


class ObjectRetentionSettings(ConfigModel):
    """How long objects are kept."""

    workloads: WorkloadRetentionSettings = WorkloadRetentionSettings()
    """How long ended Workloads are kept."""

    def retention(self) -> Retention:
        """The settings in the form that the job controller uses."""
        return Retention(self.workloads.after_finished, self.workloads.after_deactivated_by_kueue)


class FairSharingSettings(ConfigModel):
    """Fair sharing of unused quota within cohorts."""

    enable: bool = False
    """Order Workloads and preempt by the share of their ClusterQueues and Cohorts, instead of by
    priority and age."""
    preemption_strategies: list[Literal["LessThanOrEqualToFinalShare", "LessThanInitialShare"]] = (
        Field(
            default=["LessThanOrEqualToFinalShare", "LessThanInitialShare"],
            min_length=1,
            max_length=2,
        )
    )
    """When a Workload of another queue may be preempted, the strategy that is tried first at the
    beginning. LessThanOrEqualToFinalShare: the share of the preemptor is then at most that of the
    other queue. LessThanInitialShare: it is less than that of the other queue before."""

    @field_validator("preemption_strategies")
    @classmethod
    def _each_once(cls, found: list[str]) -> list[str]:
        if len(set(found)) != len(found):
            raise ValueError(f"{found[0]} is listed twice: list each strategy once")
        return found

    def strategies(self) -> tuple[str, ...] | None:
        """The strategies in their order; None if fair sharing is off."""
        return tuple(self.preemption_strategies) if self.enable else None


class AdmissionFairSharingSettings(ConfigModel):
    """Order of LocalQueues by their usage over time, in ClusterQueues with an admissionScope."""

    usage_half_life_time: float | None = Field(default=None, ge=0, le=3_153_600_000)
    """Seconds after which past usage counts half. 0: usage does not count. Default: none, admission
    fair sharing is off."""
    usage_sampling_interval: float = Field(default=300, ge=1, le=86_400)
    """Seconds between two samples of the usage. An admission counts at once like the usage of one
    interval."""
    resource_weights: dict[
        Annotated[str, Field(min_length=1, max_length=316)],
        Annotated[float, Field(ge=0, le=1_000_000_000)],
    ] = Field(default_factory=dict, max_length=64)
    """How much one unit of a resource counts: a core, a byte, a device. Default: 1 for each
    resource."""

    @model_validator(mode="after")
    def _has_half_life(self) -> Self:
        if self.usage_half_life_time is None and self.model_fields_set - {"usage_half_life_time"}:
            raise ValueError(
                "usageHalfLifeTime is required: without it, admission fair sharing is off; set it,"
                " for example to 604800 (one week)"
            )
        return self

    def rules(self, features: Features) -> AdmissionFairSharing | None:
        """How usage counts; None if admission fair sharing is off."""
        if self.usage_half_life_time is None or not features.admission_fair_sharing:
            return None
        return AdmissionFairSharing(
            self.usage_half_life_time, self.usage_sampling_interval, self.resource_weights
        )


class AssignerSettings(BaseServiceSettings):
    """Settings of the assigner."""

    kind: Literal["AssignerConfiguration"] = "AssignerConfiguration"
    """Kind of this file."""
    metrics: MetricsSettings = MetricsSettings()
    """What /metrics has in addition."""
    cycle: CycleSettings = CycleSettings()
    """The scheduling cycle."""
    queue_status: QueueStatusSettings = QueueStatusSettings()
    """Status writes of queues."""
    budgets: BudgetsSettings = BudgetsSettings()
    """Request rates, by purpose."""
    resources: ResourcesSettings = ResourcesSettings()
    """Which resources count."""
    managed_jobs_namespace_selector: NamespaceSelector = NamespaceSelector()
    """Label selector of the namespaces in which jobs are managed. Default: all, except
    kube-system and the namespace of the services. The webhook must have the same setting."""
    wait_for_pods_ready: WaitForPodsReadySettings = WaitForPodsReadySettings()
    """Admitted jobs whose pods are not all ready."""
    gang_timeout_limit: int | None = Field(default=None, ge=0, le=2_147_483_647)
    """Evictions because a gang was not bound in time, or lost a pod, after which the Workload is
    deactivated instead of evicted again. Evictions because of missing pods count, too. Default:
    none, it is queued again each time."""
    object_retention_policies: ObjectRetentionSettings = ObjectRetentionSettings()
    """How long objects are kept."""
    fair_sharing: FairSharingSettings = FairSharingSettings()
    """Fair sharing of unused quota within cohorts."""
    admission_fair_sharing: AdmissionFairSharingSettings = AdmissionFairSharingSettings()
    """Order of LocalQueues by their usage over time, in ClusterQueues with an admissionScope."""
    visibility: VisibilitySettings = VisibilitySettings()
    """The API visibility.kueue.x-k8s.io, with the positions of pending Workloads."""
    verify_period: float = Field(default=0, ge=0, le=86_400)
    """Seconds between comparisons of the cache with a rebuild from scratch; 0 for none."""
    job_workers: int = Field(default=16, ge=1, le=1_000)
    """Number of jobs that are reconciled concurrently."""

    @property
    def serves_visibility(self) -> bool:
        """Whether this service serves the visibility API."""
        return self.visibility.enabled and self.features.visibility_on_demand
