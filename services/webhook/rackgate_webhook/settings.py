"""Settings of the webhook."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from rackgate.api.meta import SUBDOMAIN
from rackgate.api.names import SYSTEM_NAMESPACE
from rackgate.jobframework.kai import RenderOptions
from rackgate.runtime.namespaces import NamespaceSelector
from rackgate.runtime.settings import BaseServiceSettings, ConfigModel
from rackgate_webhook.certificates.rotation import RotationRules


class ServingSettings(ConfigModel):
    """Where reviews are answered."""

    host: str = "0.0.0.0"  # noqa: S104 - the API server calls the Pod's address
    """Address to listen on."""
    port: int = Field(default=9443, ge=0, le=65535)
    """Port to listen on; several replicas on one machine may share it. 0: the kernel chooses."""
    drain_delay: float = Field(default=3.0, ge=0, le=300)
    """Seconds between becoming unready and closing, so that callers can move to other replicas."""
    max_connections: int = Field(default=256, ge=16, le=65536)
    """Maximum number of connections. At the limit, the longest idle one is closed, or the new one
    waits."""


class CertificateSettings(ConfigModel):
    """The serving certificate, and where its authority is published."""

    source: Literal["issued", "provided"] = "issued"
    """issued: by the webhook itself. provided: by another tool; the Secret is only read."""
    write_bundle: bool = True
    """Write the authorities into the configurations; false if cert-manager's cainjector does it."""
    secret_name: str = "rackgate-webhook-tls"  # noqa: S105 - a name
    """Secret that all replicas share."""
    namespace: str = SYSTEM_NAMESPACE
    """Namespace of the Secret."""
    dns_names: list[str] = Field(
        default=[
            f"rackgate-webhook.{SYSTEM_NAMESPACE}.svc",
            f"rackgate-webhook.{SYSTEM_NAMESPACE}.svc.cluster.local",
        ],
        max_length=32,
    )
    """DNS names of the certificate: those that API servers call."""
    ip_addresses: list[str] = Field(default_factory=list, max_length=32)
    """IP addresses of the certificate."""
    validity: float = Field(default=365 * 86400.0, ge=10, le=10 * 365 * 86400)
    """Seconds that a certificate is valid."""
    renew_before: float = Field(default=30 * 86400.0, ge=1)
    """Seconds before expiry at which the next certificate is published."""
    settle: float = Field(default=30.0, ge=0, le=86400)
    """Seconds between publishing the next authority and serving with it."""
    check_interval: float = Field(default=10.0, gt=0, le=3600)
    """Seconds between reads of Secret and configurations during a rotation."""
    configuration_names: list[str] = Field(
        default=[
            f"rackgate-mutating.{SYSTEM_NAMESPACE}",
            f"rackgate-validating.{SYSTEM_NAMESPACE}",
        ],
        max_length=16,
    )
    """Mutating and validating webhook configurations that get the CA bundle."""

    @field_validator("ip_addresses")
    @classmethod
    def _normalize_addresses(cls, addresses: list[str]) -> list[str]:
        return [str(ipaddress.ip_address(address)) for address in addresses]

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if not self.dns_names and not self.ip_addresses:
            raise ValueError("dnsNames or ipAddresses must name what API servers call")
        if self.source == "issued" and not self.write_bundle:
            raise ValueError("writeBundle: false goes with source: provided only")
        if self.renew_before >= self.validity:
            raise ValueError(
                f"renewBefore ({self.renew_before:g} s) must be less than validity"
                f" ({self.validity:g} s)"
            )
        return self

    @property
    def rules(self) -> RotationRules:
        """The settings as rules of rotation."""
        return RotationRules(
            frozenset((*self.dns_names, *self.ip_addresses)),
            timedelta(seconds=self.renew_before),
        )


class KaiSettings(ConfigModel):
    """Facts about KAI; used only if the feature gate RackgateRenderForKAI is on."""

    topology: str = Field(default="", max_length=253, pattern=f"^$|{SUBDOMAIN}")
    """KAI's Topology for Jobs that do not name one; empty: each Job must name one."""
    jobs_grouped: bool = False
    """KAI is newer than 0.14.0: it creates one PodGroup for a Job instead of one for each pod."""


class WebhookSettings(BaseServiceSettings):
    """Settings of the webhook service."""

    kind: Literal["WebhookConfiguration"] = "WebhookConfiguration"
    """Kind of this file."""
    serving: ServingSettings = ServingSettings()
    """Where reviews are answered."""
    certificates: CertificateSettings = CertificateSettings()
    """The serving certificate."""
    managed_jobs_namespace_selector: NamespaceSelector = NamespaceSelector()
    """Label selector of the namespaces in which jobs are managed, as in the settings of the
    assigner. The namespaceSelectors of the webhook configurations must be equal to it, or the
    webhook does not become ready."""
    kai: KaiSettings = KaiSettings()
    """Jobs that KAI schedules."""

    @property
    def rendering(self) -> RenderOptions | None:
        """How to render Jobs for KAI; None if the feature gate is off."""
        if not self.features.render_for_kai:
            return None
        both_levels = self.features.required_and_preferred
        return RenderOptions(self.kai.topology, self.kai.jobs_grouped, both_levels)
