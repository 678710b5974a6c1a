"""The settings of Kueue's Configuration, and what Rackgate does with each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SUBTREE: Final = ".*"


class Support(StrEnum):
    """Whether Rackgate has a setting of Kueue."""

    SAME = "same"
    DIFFERS = "differs"
    NOT_NEEDED = "not needed"
    NOT_YET = "not yet"


class Conversion(StrEnum):
    """How a value becomes the value of our setting."""

    COPY = "copy"
    SECONDS = "seconds"  # a duration as Go prints it becomes a number of seconds


@dataclass(frozen=True, slots=True)
class KueueSetting:
    """One setting of Kueue.

    Attributes:
        name: its path. With `.*` at its end it stands for all settings below as well.
        support: whether Rackgate has it.
        note: the difference, or what happens instead.
        settings: `service:path` of each setting of Rackgate.
        conversion: how its value is translated; None if a person must decide.
        same_values: values that ask for what Rackgate does anyway, also within a list.
    """

    name: str
    support: Support
    note: str = ""
    settings: tuple[str, ...] = ()
    conversion: Conversion | None = None
    same_values: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        """Whether it stands for a path."""
        return covers(self.name, name)


def covers(pattern: str, name: str) -> bool:
    """Whether a path, with `.*` at its end for everything below, stands for another path."""
    path = pattern.removesuffix(SUBTREE)
    if name == path:
        return True
    return pattern.endswith(SUBTREE) and name.startswith((f"{path}.", f"{path}["))


_OWN_CERTIFICATES: Final = "Rackgate issues its certificates itself, or reads a Secret"
_POD: Final = "The Deployments of Rackgate set it"
_BOTH_SELECTORS: Final = (
    "assigner:managedJobsNamespaceSelector",
    "webhook:managedJobsNamespaceSelector",
)
_SECONDS: Final = "A number of seconds"
SETTINGS: Final[tuple[KueueSetting, ...]] = (
    KueueSetting("namespace", Support.DIFFERS, "", settings=("assigner:leaderElection.namespace",)),
    KueueSetting(
        "manageJobsWithoutQueueName",
        Support.SAME,
        "Needs the component `deploy/unlabelled`",
        settings=("webhook:manageJobsWithoutQueueName",),
        conversion=Conversion.COPY,
    ),
    KueueSetting(
        "managedJobsNamespaceSelector",
        Support.DIFFERS,
        "Jobs of other namespaces are never managed, with or without queue label, as in Kueue"
        " since 0.15. The component `deploy/namespaces` sets it",
        settings=_BOTH_SELECTORS,
        conversion=Conversion.COPY,
    ),
    KueueSetting(
        "waitForPodsReady", Support.DIFFERS, "Off without `timeout`. Kueue's default is 30 minutes"
    ),
    KueueSetting(
        "waitForPodsReady.timeout",
        Support.DIFFERS,
        f"{_SECONDS}. It does not apply to elastic jobs",
        settings=("assigner:waitForPodsReady.timeout",),
        conversion=Conversion.SECONDS,
    ),
    KueueSetting(
        "waitForPodsReady.recoveryTimeout",
        Support.DIFFERS,
        _SECONDS,
        settings=("assigner:waitForPodsReady.recoveryTimeout",),
        conversion=Conversion.SECONDS,
    ),
    KueueSetting(
        "waitForPodsReady.blockAdmission",
        Support.SAME,
        settings=("assigner:waitForPodsReady.blockAdmission",),
        conversion=Conversion.COPY,
    ),
    KueueSetting("waitForPodsReady.requeuingStrategy", Support.SAME),
    KueueSetting(
        "waitForPodsReady.requeuingStrategy.timestamp",
        Support.SAME,
        settings=("assigner:waitForPodsReady.requeuingStrategy.timestamp",),
        conversion=Conversion.COPY,
    ),
    KueueSetting(
        "waitForPodsReady.requeuingStrategy.backoffLimitCount",
        Support.SAME,
        settings=("assigner:waitForPodsReady.requeuingStrategy.backoffLimitCount",),
        conversion=Conversion.COPY,
    ),
    KueueSetting(
        "waitForPodsReady.requeuingStrategy.backoffBaseSeconds",
        Support.DIFFERS,
        "The backoff has no random part",
        settings=("assigner:waitForPodsReady.requeuingStrategy.backoffBaseSeconds",),
        conversion=Conversion.COPY,
    ),
    KueueSetting(
        "waitForPodsReady.requeuingStrategy.backoffMaxSeconds",
        Support.SAME,
        settings=("assigner:waitForPodsReady.requeuingStrategy.backoffMaxSeconds",),
        conversion=Conversion.COPY,
    ),
    KueueSetting(
        "fairSharing",
        Support.DIFFERS,
        "In Kueue its presence turns fair sharing on",
        settings=("assigner:fairSharing.enable",),
    ),
    KueueSetting(
        "fairSharing.preemptionStrategies",
        Support.SAME,
        settings=("assigner:fairSharing.preemptionStrategies",),
        conversion=Conversion.COPY,
    ),
    KueueSetting("admissionFairSharing", Support.SAME, "Without a half-life it is off"),
    KueueSetting(
        "admissionFairSharing.usageHalfLifeTime",
        Support.DIFFERS,
        _SECONDS,
        settings=("assigner:admissionFairSharing.usageHalfLifeTime",),
        conversion=Conversion.SECONDS,
    ),
    KueueSetting(
        "admissionFairSharing.usageSamplingInterval",
        Support.DIFFERS,
        _SECONDS,
        settings=("assigner:admissionFairSharing.usageSamplingInterval",),
        conversion=Conversion.SECONDS,
    ),
    KueueSetting(
        "admissionFairSharing.resourceWeights.*",
        Support.SAME,
        settings=("assigner:admissionFairSharing.resourceWeights",),
        conversion=Conversion.COPY,
    ),
    KueueSetting("objectRetentionPolicies", Support.SAME),
    KueueSetting("objectRetentionPolicies.workloads", Support.SAME),
    KueueSetting(
        "objectRetentionPolicies.workloads.afterFinished",
        Support.DIFFERS,
        _SECONDS,
        settings=("assigner:objectRetentionPolicies.workloads.afterFinished",),
        conversion=Conversion.SECONDS,
    ),
    KueueSetting(
        "objectRetentionPolicies.workloads.afterDeactivatedByKueue",
        Support.DIFFERS,
        _SECONDS,
        settings=("assigner:objectRetentionPolicies.workloads.afterDeactivatedByKueue",),
        conversion=Conversion.SECONDS,
    ),
    KueueSetting("resources", Support.SAME),
    KueueSetting(
        "resources.excludeResourcePrefixes",
        Support.DIFFERS,
        "Such resources do not count for the capacity of nodes either",
        settings=("assigner:resources.excludeResourcePrefixes",),
        conversion=Conversion.COPY,
    ),
    KueueSetting(
        "resources.quotaCheckStrategy",
        Support.NOT_YET,
        "`BlockUndeclared`: a resource that no ClusterQueue covers is never admitted."
        " Exclude its prefix instead of `IgnoreUndeclared`",
        same_values=("BlockUndeclared",),
    ),
    KueueSetting(
        "resources.transformations[].*",
        Support.NOT_YET,
        "Resources count as they are requested. Give quota for each of them",
    ),
    KueueSetting(
        "resources.deviceClassMappings[].*",
        Support.NOT_YET,
        "The devices of ResourceClaims count neither for quota nor for capacity; the webhook warns",
    ),
    KueueSetting(
        "featureGates",
        Support.DIFFERS,
        "[Feature gates](compatibility.md#feature-gates)",
        settings=("assigner:featureGates", "webhook:featureGates", "ungater:featureGates"),
    ),
    KueueSetting(
        "integrations", Support.DIFFERS, "Jobs, JobSets, RayClusters and RayJobs are always managed"
    ),
    KueueSetting(
        "integrations.frameworks",
        Support.NOT_YET,
        "Other kinds than `batch/job`, `jobset.x-k8s.io/jobset`, `ray.io/raycluster`,"
        " `ray.io/rayjob` and `ray.io/rayservice` are not managed. A policy warns. `pod` needs the"
        " gate `RackgatePodGroups` and the component `deploy/pods`",
        same_values=(
            "batch/job",
            "jobset.x-k8s.io/jobset",
            "ray.io/raycluster",
            "ray.io/rayjob",
            "ray.io/rayservice",
        ),
    ),
    KueueSetting(
        "integrations.externalFrameworks",
        Support.NOT_YET,
        "Create the Workloads of such jobs yourself",
    ),
    KueueSetting(
        "integrations.labelKeysToCopy",
        Support.NOT_YET,
        "Workloads have the label `kueue.x-k8s.io/job-uid` only",
    ),
    KueueSetting("multiKueue.*", Support.NOT_YET, "Submit jobs to each cluster"),
    KueueSetting("clientConnection", Support.DIFFERS, "One budget of requests for each purpose"),
    KueueSetting(
        "clientConnection.qps",
        Support.DIFFERS,
        "",
        settings=(
            "assigner:budgets.admission.qps",
            "assigner:budgets.jobs.qps",
            "ungater:ungating.qps",
        ),
    ),
    KueueSetting(
        "clientConnection.burst",
        Support.DIFFERS,
        "",
        settings=(
            "assigner:budgets.admission.burst",
            "assigner:budgets.jobs.burst",
            "ungater:ungating.burst",
        ),
    ),
    KueueSetting("controller", Support.DIFFERS),
    KueueSetting(
        "controller.groupKindConcurrency",
        Support.DIFFERS,
        "Jobs that are reconciled concurrently",
        settings=("assigner:jobWorkers",),
    ),
    KueueSetting(
        "controller.cacheSyncTimeout",
        Support.NOT_NEEDED,
        "A replica is not ready before its caches are",
    ),
    KueueSetting(
        "leaderElection", Support.DIFFERS, "One Lease for the assigner, 16 for the ungater"
    ),
    KueueSetting("leaderElection.leaderElect", Support.NOT_NEEDED, "Leader election is always on"),
    KueueSetting(
        "leaderElection.leaseDuration",
        Support.DIFFERS,
        _SECONDS,
        settings=("assigner:leaderElection.leaseDuration", "ungater:leaderElection.leaseDuration"),
        conversion=Conversion.SECONDS,
    ),
    KueueSetting(
        "leaderElection.renewDeadline", Support.NOT_NEEDED, "Follows from `leaseDuration`"
    ),
    KueueSetting("leaderElection.retryPeriod", Support.NOT_NEEDED, "A third of `leaseDuration`"),
    KueueSetting("leaderElection.resourceLock", Support.NOT_NEEDED, "Always Leases"),
    KueueSetting(
        "leaderElection.resourceName",
        Support.NOT_NEEDED,
        "`rackgate-assigner` and `rackgate-ungater-00` to `15`",
    ),
    KueueSetting(
        "leaderElection.resourceNamespace",
        Support.DIFFERS,
        "",
        settings=("assigner:leaderElection.namespace",),
    ),
    KueueSetting("health", Support.DIFFERS),
    KueueSetting(
        "health.healthProbeBindAddress",
        Support.DIFFERS,
        "Two fields",
        settings=("assigner:health.host", "assigner:health.port"),
    ),
    KueueSetting("health.readinessEndpointName", Support.NOT_NEEDED, "Always `readyz`"),
    KueueSetting("health.livenessEndpointName", Support.NOT_NEEDED, "Always `healthz`"),
    KueueSetting(
        "metrics",
        Support.DIFFERS,
        "[Metrics](metrics.md): the names of Kueue with the prefix `rackgate_`, "
        "and, with `metrics.kueueNames`, under the names of Kueue, too",
    ),
    KueueSetting(
        "metrics.bindAddress",
        Support.DIFFERS,
        "Metrics have the address of the health endpoints",
        settings=("assigner:health.port",),
    ),
    KueueSetting(
        "metrics.enableClusterQueueResources", Support.NOT_NEEDED, "These metrics are always on"
    ),
    KueueSetting(
        "metrics.localQueueMetrics", Support.DIFFERS, "Metrics of LocalQueues are always on"
    ),
    KueueSetting("metrics.localQueueMetrics.enable", Support.NOT_NEEDED, "Always on"),
    KueueSetting(
        "metrics.localQueueMetrics.localQueueSelector",
        Support.NOT_YET,
        "Select LocalQueues in the queries",
    ),
    KueueSetting("metrics.customLabels[].*", Support.NOT_YET, "Join the labels in the queries"),
    KueueSetting("webhook", Support.DIFFERS),
    KueueSetting("webhook.port", Support.SAME, settings=("webhook:serving.port",)),
    KueueSetting("webhook.host", Support.SAME, settings=("webhook:serving.host",)),
    KueueSetting(
        "webhook.certDir",
        Support.NOT_NEEDED,
        _OWN_CERTIFICATES,
        settings=("webhook:certificates.secretName",),
    ),
    KueueSetting("internalCertManagement", Support.DIFFERS, _OWN_CERTIFICATES),
    KueueSetting(
        "internalCertManagement.enable",
        Support.DIFFERS,
        "`issued` or `provided`",
        settings=("webhook:certificates.source",),
    ),
    KueueSetting("internalCertManagement.webhookServiceName", Support.NOT_NEEDED, _POD),
    KueueSetting(
        "internalCertManagement.webhookSecretName",
        Support.SAME,
        settings=("webhook:certificates.secretName",),
    ),
    KueueSetting(
        "tls.*", Support.NOT_YET, "TLS 1.2 or newer, with the ciphers of the Python in the image"
    ),
    KueueSetting("visibilityServer", Support.SAME),
    KueueSetting(
        "visibilityServer.bindAddress", Support.SAME, settings=("assigner:visibility.host",)
    ),
    KueueSetting(
        "visibilityServer.bindPort",
        Support.SAME,
        "The port of the Service must be the same",
        settings=("assigner:visibility.port",),
    ),
    KueueSetting("pprofBindAddress", Support.NOT_YET, "There is no profiling endpoint"),
)
