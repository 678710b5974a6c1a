"""Settings of the visibility API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rackgate.api.names import SYSTEM_NAMESPACE, VISIBILITY_GROUP, VISIBILITY_VERSIONS
from rackgate.api.resources import API_SERVICES, Resource
from rackgate.certificates.settings import BaseCertificateSettings
from rackgate.runtime.settings import ConfigModel


class VisibilityCertificateSettings(BaseCertificateSettings):
    """The serving certificate; its authority is written into the APIServices."""

    owner: ClassVar[str] = "rackgate-visibility"

    secret_name: str = "rackgate-visibility-tls"  # noqa: S105 - a name
    """Secret that all replicas share."""
    dns_names: list[str] = Field(
        default=[f"rackgate-visibility.{SYSTEM_NAMESPACE}.svc"], max_length=32
    )
    """DNS names of the certificate: those that API servers call."""

    @property
    def registrations(self) -> Mapping[str, tuple[Resource, ...]]:
        """The APIServices, one for each version."""
        names = (f"{version}.{VISIBILITY_GROUP}" for version in VISIBILITY_VERSIONS)
        return dict.fromkeys(names, (API_SERVICES,))


class VisibilitySettings(ConfigModel):
    """The API visibility.kueue.x-k8s.io, with the positions of pending Workloads."""

    enabled: bool = True
    """Serve it, if the feature gate VisibilityOnDemand is on. Delete the APIServices before you
    turn it off."""
    host: str = "0.0.0.0"  # noqa: S104 - the API server calls the Pod's address
    """Address to listen on."""
    port: int = Field(default=8443, ge=0, le=65535)
    """Port to listen on; several replicas on one machine may share it. 0: the kernel chooses."""
    max_connections: int = Field(default=64, ge=16, le=65536)
    """Maximum number of connections. At the limit, the longest idle one is closed, or the new one
    waits."""
    certificates: VisibilityCertificateSettings = VisibilityCertificateSettings()
    """The serving certificate."""
