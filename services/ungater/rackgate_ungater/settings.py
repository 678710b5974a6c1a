"""Settings of the ungater."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from rackgate.runtime.settings import BaseServiceSettings, ConfigModel

# Connections that ungating leaves to Leases, watches, lists and Events.
SPARE_CONNECTIONS: Final = 32


class UngatingSettings(ConfigModel):
    """Rate limits of the requests that ungate pods; no other request counts."""

    qps: float = Field(default=1000.0, ge=0, le=100_000)
    """Requests a second in the long run; 0 for no limit."""
    burst: int = Field(default=1000, ge=1, le=100_000)
    """Requests that may go out at once after a quiet time."""
    concurrency: int = Field(default=64, ge=1, le=1024)
    """Requests under way at the same time, over all Workloads; at least 32 less than
    `connection.connections`, so that no renewal of a Lease ever waits for a connection."""


class UngaterConfiguration(BaseServiceSettings):
    """Configuration of the ungater."""

    kind: Literal["UngaterConfiguration"] = "UngaterConfiguration"
    """Kind of this file."""
    batch_window: float = Field(default=1.0, ge=0, le=60)
    """Seconds from a Workload's first pod event to its reconciliation at most; later events fall
    in. It begins earlier, as soon as every pod that may be ungated is seen, unless the last
    reconciliation was less than this long ago."""
    resync_period: float = Field(default=60.0, ge=1, le=3600)
    """Seconds between reconciliations of every Workload with gated pods. Without work they cost no
    request."""
    expectation_timeout: float = Field(default=10.0, ge=0.1, le=600)
    """Seconds after which a pod whose write no watch event confirmed is read live."""
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
