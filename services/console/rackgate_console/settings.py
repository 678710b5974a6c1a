"""Settings of the console in a cluster: `kind: ConsoleConfiguration`."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from rackgate.runtime.settings import BaseServiceSettings, ConfigModel
from rackgate_assigner.settings import (
    AdmissionFairSharingSettings,
    FairSharingSettings,
    ResourcesSettings,
)


class PageSettings(ConfigModel):
    """Where the page is served. Requests carry tokens, so they must not be read on their way."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    """Address to listen on. The default is reached with `kubectl port-forward`, and by a proxy in
    the same pod. Another one needs certFile and keyFile, or allowPlainHTTP."""
    port: int = Field(default=8090, ge=0, le=65535)
    """Port of the page."""
    cert_file: Path | None = None
    """Certificate chain in PEM. It is read again when the file changes."""
    key_file: Path | None = None
    """Private key of the certificate, in PEM."""
    allow_plain_http: bool = Field(default=False, alias="allowPlainHTTP")
    """Serve HTTP without TLS on an address that others reach: only behind something that encrypts
    the connection, such as a service mesh."""
    max_connections: int = Field(default=2048, ge=64, le=65536)
    """Maximum number of connections; each page has one, and more while it asks. At the limit, the
    address with the most connections loses one to an address that has fewer."""
    cluster_name: str = Field(default="", max_length=253)
    """Name of the cluster that the page shows."""

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("certFile and keyFile belong together: set both, or none")
        if self.cert_file is None and not self.allow_plain_http and not _is_loopback(self.host):
            raise ValueError(
                f"host {self.host} is reached by others, and tokens would be sent in plain text: "
                "set certFile and keyFile, or allowPlainHTTP if something else encrypts"
            )
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ConsoleSettings(BaseServiceSettings):
    """Configuration of the console. What the assigner has as well should be equal there."""

    kind: Literal["ConsoleConfiguration"] = "ConsoleConfiguration"
    """Kind of this file."""
    page: PageSettings = PageSettings()
    """Where the page is served."""
    resources: ResourcesSettings = ResourcesSettings()
    """Which resources count, as for the assigner."""
    fair_sharing: FairSharingSettings = FairSharingSettings()
    """Fair sharing, as for the assigner."""
    admission_fair_sharing: AdmissionFairSharingSettings = AdmissionFairSharingSettings()
    """Admission fair sharing, as for the assigner."""
