"""Settings of the ungater."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from rackgate.runtime.settings import BaseServiceSettings, ConfigModel, MetricsSettings

# Connections reserved for Leases, watches, lists and Events.
SPARE_CONNECTIONS: Final = 32


class UngatingSettings(ConfigModel):
    """Rate limits of the requests that ungate pods. Other requests do not count."""

    qps: float = Field(default=1000.0, ge=0, le=100_000)
    """Sustained requests per second; 0 for no limit."""
    burst: int = Field(default=1000, ge=1, le=100_000)
    """Requests that may be sent at once after an idle period."""
    concurrency: int = Field(default=64, ge=1, le=1024)
    """Concurrent requests over all Workloads; at least 32 less than `connection.connections`, so
    that the renewal of a Lease never waits for a connection."""


class UngaterConfiguration(BaseServiceSettings):
    """Configuration of the ungater."""

    kind: Literal["UngaterConfiguration"] = "UngaterConfiguration"
    """Kind of this file."""
    metrics: MetricsSettings = MetricsSettings()
    """What /metrics has in addition."""
    batch_window: float = Field(default=1.0, ge=0, le=60)
    """Maximum seconds from the first pod event of a Workload to its reconciliation, which also
    covers later events. It starts earlier if every pod that may be ungated is seen, unless the last
    reconciliation was less than this time ago. While all gangs of a Workload are missing pods, it
    is five times as long."""
    resync_period: float = Field(default=60.0, ge=1, le=3600)
    """Seconds between reconciliations of every Workload with gated pods. They send no request if
    there is nothing to do."""
    expectation_timeout: float = Field(default=10.0, ge=0.1, le=600)
    """Seconds after which a pod is read live if no watch event confirmed its write."""
    ungating: UngatingSettings = UngatingSettings()
    """Rate limits of the requests that ungate pods."""

    @model_validator(mode="after")
    def _check_spare_connections(self) -> Self:
        needed = self.ungating.concurrency + SPARE_CONNECTIONS
        if self.connection.connections < needed:
            raise ValueError(
                f"ungating.concurrency {self.ungating.concurrency} needs connection.connections "
                f"of at least {needed}, found {self.connection.connections}"
            )
        return self
