"""Settings of the assigner: `kind: AssignerConfiguration`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rackgate.runtime.namespaces import NamespaceSelector
from rackgate.runtime.settings import BaseServiceSettings, ConfigModel
from rackgate_assigner.node_replacement.recovery_timeout import RecoveryTimeout


class BudgetSettings(ConfigModel):
    """How fast one purpose may send requests."""

    qps: float = Field(default=0, ge=0, le=100_000)
    """Requests a second in the long run; 0 for no limit."""
    burst: int = Field(default=100, ge=1, le=100_000)
    """Requests that may go out at once after a quiet time."""
    concurrency: int = Field(default=16, ge=1, le=1_000)
    """Requests under way at the same time."""


class BudgetsSettings(ConfigModel):
    """One budget for each purpose, so that none delays another."""

    admission: BudgetSettings = BudgetSettings(qps=400, burst=400)
    """Admissions, evictions and releases of quota."""
    jobs: BudgetSettings = BudgetSettings(qps=400, burst=400)
    """Creating Workloads, starting and stopping jobs, finishing Workloads."""
    pending: BudgetSettings = BudgetSettings(qps=100, burst=100, concurrency=8)
    """Conditions that say why a Workload waits, and finalizers."""
    queues: BudgetSettings = BudgetSettings(qps=50, burst=50, concurrency=4)
    """Status of ClusterQueues and LocalQueues."""


class CycleSettings(ConfigModel):
    """The scheduling cycle."""

    min_interval: float = Field(default=0.1, ge=0, le=60)
    """Seconds between the starts of two cycles at least; changes in between are taken together."""
    message_interval: float = Field(default=3.0, ge=0, le=300)
    """Seconds between two writes of why one Workload waits while only the words change, as they do
    with each change of free room; another reason is written at once. Beside that no more than 20
    such writes a second are made in all."""
    check_usage: bool = False
    """Compare usage as kept with usage rebuilt from scratch after every cycle; for debugging."""


class QueueStatusSettings(ConfigModel):
    """Writing the status of queues."""

    min_interval: float = Field(default=0.5, ge=0.2, le=60)
    """Seconds between two rounds at least; each queue is written once a round, if it changed."""
    max_interval: float = Field(default=5.0, ge=0.2, le=300)
    """Seconds between two writes about a queue whose counts change all the time; it is reached
    step by step. A change of its conditions is written at once."""


class ResourcesSettings(ConfigModel):
    """Which resources count."""

    exclude_resource_prefixes: list[Annotated[str, Field(min_length=1, max_length=316)]] = Field(
        default_factory=list, max_length=64
    )
    """Resources whose names start so count neither for quota nor for room on nodes."""


class RequeuingStrategySettings(ConfigModel):
    """When a Workload is queued again whose pods were not ready again in time."""

    backoff_base_seconds: float = Field(default=60, ge=1, le=86_400)
    """Seconds until a Workload is queued again after its first eviction for pods that stayed
    missing; twice as long after each further one."""
    backoff_max_seconds: float = Field(default=3600, ge=1, le=604_800)
    """Seconds that this takes at most; no less than backoffBaseSeconds."""

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
    """Seconds that a running job has to get all its pods ready again after they had been and one
    was lost; then it is evicted and queued again. None by default: as long as it takes."""
    requeuing_strategy: RequeuingStrategySettings = RequeuingStrategySettings()
    """When it is queued again."""

    def recovery(self) -> RecoveryTimeout:
        """The settings as the rule that the job controller follows."""
        pause = self.requeuing_strategy
        return RecoveryTimeout(
            self.recovery_timeout, pause.backoff_base_seconds, pause.backoff_max_seconds
        )


class AssignerSettings(BaseServiceSettings):
    """What the assigner can be told."""

    kind: Literal["AssignerConfiguration"] = "AssignerConfiguration"
    """Kind of this file."""
    cycle: CycleSettings = CycleSettings()
    """The scheduling cycle."""
    queue_status: QueueStatusSettings = QueueStatusSettings()
    """Writing the status of queues."""
    budgets: BudgetsSettings = BudgetsSettings()
    """Requests a second, by purpose."""
    resources: ResourcesSettings = ResourcesSettings()
    """Which resources count."""
    managed_jobs_namespace_selector: NamespaceSelector = NamespaceSelector()
    """Label selector of the namespaces in which jobs are managed; all by default, but for
    kube-system and that of the services. The webhook has to be told the same."""
    wait_for_pods_ready: WaitForPodsReadySettings = WaitForPodsReadySettings()
    """Running jobs whose pods are not all ready."""
    verify_period: float = Field(default=0, ge=0, le=86_400)
    """Seconds between comparisons of the cache with a rebuild from scratch; 0 for none."""
    job_workers: int = Field(default=16, ge=1, le=1_000)
    """Jobs that are reconciled at the same time."""
