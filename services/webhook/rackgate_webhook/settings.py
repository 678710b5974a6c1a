"""Settings of the webhook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from rackgate.api.meta import SUBDOMAIN
from rackgate.api.names import SYSTEM_NAMESPACE
from rackgate.api.resources import (
    CLUSTER_QUEUES,
    CRDS,
    LOCAL_QUEUES,
    MUTATING_CONFIGS,
    VALIDATING_CONFIGS,
    WORKLOADS,
    Resource,
)
from rackgate.certificates.settings import BaseCertificateSettings
from rackgate.jobframework.kai import RenderOptions
from rackgate.runtime.namespaces import NamespaceSelector
from rackgate.runtime.settings import BaseServiceSettings, ConfigModel

# Kinds that `rackgate.api.conversion` converts, with conversion strategy Webhook in deploy/crds.
CONVERTED_CRDS: Final = tuple(kind.full_name for kind in (CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS))


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


class CertificateSettings(BaseCertificateSettings):
    """The serving certificate, and where its authority is published."""

    owner: ClassVar[str] = "rackgate-webhook"

    secret_name: str = "rackgate-webhook-tls"  # noqa: S105 - a name
    """Secret that all replicas share."""
    dns_names: list[str] = Field(
        default=[
            f"rackgate-webhook.{SYSTEM_NAMESPACE}.svc",
            f"rackgate-webhook.{SYSTEM_NAMESPACE}.svc.cluster.local",
        ],
        max_length=32,
    )
    """DNS names of the certificate: those that API servers call."""
    configuration_names: list[str] = Field(
        default=[
            f"rackgate-mutating.{SYSTEM_NAMESPACE}",
            f"rackgate-validating.{SYSTEM_NAMESPACE}",
        ],
        max_length=16,
    )
    """Mutating and validating webhook configurations that get the CA bundle."""

    @property
    def registrations(self) -> Mapping[str, tuple[Resource, ...]]:
        """The webhook configurations, and the kinds with two versions."""
        configurations = (MUTATING_CONFIGS, VALIDATING_CONFIGS)
        return {
            **dict.fromkeys(self.configuration_names, configurations),
            **dict.fromkeys(CONVERTED_CRDS, (CRDS,)),
        }


class KaiSettings(ConfigModel):
    """Facts about KAI; used only if the feature gate RackgateRenderForKAI is on."""

    topology: str = Field(default="", max_length=253, pattern=f"^$|{SUBDOMAIN}")
    """KAI's Topology for Jobs that do not name one; empty: each Job must name one."""
    jobs_grouped: bool = False
    """KAI is newer than 0.14.0: it creates one PodGroup for a Job instead of one for each pod."""


class GangDefaultsSettings(ConfigModel):
    """What new Workloads of gangs get if their users leave it out. The stored object shows it."""

    schedule_timeout_seconds: int | None = Field(default=None, ge=1, le=86400)
    """scheduleTimeoutSeconds of each gang. Without a value, 60 counts, and the object has none."""
    rescheduling_policy: Literal["TerminateAll"] | None = None
    """reschedulingPolicy of each gang. Needs the feature gate WorkloadRevN."""

    def fields(self) -> dict[str, str | int]:
        """The fields of a gang group that have a default."""
        return self.model_dump(by_alias=True, exclude_none=True)


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
    manage_jobs_without_queue_name: bool = False
    """Suspend jobs without a queue label in the selected namespaces until they have one. Needs the
    component deploy/unlabelled: without it, the webhook is not called for such jobs."""
    kai: KaiSettings = KaiSettings()
    """Jobs that KAI schedules."""
    gang_defaults: GangDefaultsSettings = GangDefaultsSettings()
    """Defaults of the cluster for Workloads of gangs. Those that Rackgate makes do not get them."""

    @model_validator(mode="after")
    def _defaults_are_accepted(self) -> Self:
        if self.gang_defaults.rescheduling_policy and not self.features.workload_rev_n:
            raise ValueError(
                "gangDefaults.reschedulingPolicy requires the feature gate WorkloadRevN: without it"
                " the webhook rejects the field; enable the gate, or remove the default"
            )
        return self

    @property
    def rendering(self) -> RenderOptions | None:
        """How to render Jobs for KAI; None if the feature gate is off."""
        if not self.features.render_for_kai:
            return None
        both_levels = self.features.required_and_preferred
        return RenderOptions(self.kai.topology, self.kai.jobs_grouped, both_levels)
