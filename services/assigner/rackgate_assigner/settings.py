"""Settings of the assigner: `kind: AssignerConfiguration`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rackgate.runtime.namespaces import NamespaceSelector
from rackgate.runtime.settings import BaseServiceSettings, ConfigModel
from rackgate_assigner.node_replacement.recovery_timeout import RecoveryTimeout


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

    admission: BudgetSettings = BudgetSettings(qps=400, burst=400)
    """Admissions, evictions and releases of quota."""
    jobs: BudgetSettings = BudgetSettings(qps=400, burst=400)
    """Creating Workloads, starting and stopping jobs, finishing Workloads."""
    pending: BudgetSettings = BudgetSettings(qps=100, burst=100, concurrency=8)
    """Conditions that say why a Workload is pending, and finalizers."""
    queues: BudgetSettings = BudgetSettings(qps=50, burst=50, concurrency=4)
    """Status of ClusterQueues and LocalQueues."""


class CycleSettings(ConfigModel):
    """The scheduling cycle."""

    min_interval: float = Field(default=0.1, ge=0, le=60)
    """Minimum seconds between the starts of two cycles; changes in between are handled together."""
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
    max_interval: float = Field(default=5.0, ge=0.2, le=300)
    """Maximum seconds between two writes about a queue whose counts change all the time; the
    interval increases up to it. A change of the conditions is written at once."""


class ResourcesSettings(ConfigModel):
    """Which resources count."""

    exclude_resource_prefixes: list[Annotated[str, Field(min_length=1, max_length=316)]] = Field(
        default_factory=list, max_length=64
    )
    """Prefixes of resource names that count neither for quota nor for capacity of nodes."""


class RequeuingStrategySettings(ConfigModel):
    """Backoff after an eviction because pods were not ready again in time."""

    backoff_base_seconds: float = Field(default=60, ge=1, le=86_400)
    """Backoff in seconds after the first eviction because of missing pods; it doubles with each
    further eviction."""
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
    """Running jobs whose pods are not all ready."""

    recovery_timeout: float | None = Field(default=None, ge=1, le=604_800)
    """Seconds in which a running job must have all its pods ready again after one was lost;
    otherwise it is evicted and queued again. Default: none, no timeout."""
    requeuing_strategy: RequeuingStrategySettings = RequeuingStrategySettings()
    """When it is queued again."""

    def recovery(self) -> RecoveryTimeout:
        """The settings in the form that the job controller uses."""
        pause = self.requeuing_strategy
        return RecoveryTimeout(
            self.recovery_timeout, pause.backoff_base_seconds, pause.backoff_max_seconds
        )


class AssignerSettings(BaseServiceSettings):
    """Settings of the assigner."""

    kind: Literal["AssignerConfiguration"] = "AssignerConfiguration"
    """Kind of this file."""
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
    """Running jobs whose pods are not all ready."""
    verify_period: float = Field(default=0, ge=0, le=86_400)
    """Seconds between comparisons of the cache with a rebuild from scratch; 0 for none."""
    job_workers: int = Field(default=16, ge=1, le=1_000)
    """Number of jobs that are reconciled concurrently."""
