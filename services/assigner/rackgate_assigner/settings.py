"""Settings of the assigner: `kind: AssignerConfiguration`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rackgate.runtime.settings import BaseServiceSettings, ConfigModel


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
    verify_period: float = Field(default=0, ge=0, le=86_400)
    """Seconds between comparisons of the cache with a rebuild from scratch; 0 for none."""
    job_workers: int = Field(default=16, ge=1, le=1_000)
    """Jobs that are reconciled at the same time."""
