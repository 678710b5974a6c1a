"""Feature gates of Kueue that are no switches of Rackgate, and how Rackgate behaves instead.

A service accepts such a gate only if it asks for what Rackgate does anyway. So the `featureGates`
of a configuration of Kueue can be copied: a gate that would change something is rejected by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# The version of Kueue whose gates are listed.
KUEUE_VERSION: Final = "0.19.2"


@dataclass(frozen=True, slots=True)
class KueueGate:
    """One feature gate of Kueue.

    Attributes:
        behaves: the value that Rackgate behaves as; None if both values are the same to it.
        note: what Rackgate does.
        replaced_by: the gate of Rackgate to set instead.
    """

    behaves: bool | None
    note: str
    replaced_by: str = ""

    def problem(self, name: str, value: bool) -> str:
        """Why the value is rejected, and what to do; empty if it is accepted."""
        if self.replaced_by:
            return f'feature gate "{name}" of Kueue is "{self.replaced_by}" in Rackgate: set that'
        if self.behaves is None or self.behaves is value:
            return ""
        wanted = "true" if value else "false"
        return f'feature gate "{name}" of Kueue cannot be {wanted}: {self.note}; remove the gate'


_INSIDE: Final = "it concerns the inside of Kueue"
_OTHER_KINDS: Final = "it concerns kinds of jobs that Rackgate does not manage"
_MULTIKUEUE: Final = "Rackgate has no MultiKueue"
_DRA: Final = "Rackgate does not count devices of ResourceClaims"


def _on(note: str) -> KueueGate:
    return KueueGate(True, note)


def _off(note: str) -> KueueGate:
    return KueueGate(False, note)


def _same(note: str = _INSIDE) -> KueueGate:
    return KueueGate(None, note)


KUEUE_GATES: Final[Mapping[str, KueueGate]] = {
    "AdmissionGatedBy": _off("Rackgate does not read the annotation admission-gated-by"),
    "AssignQueueLabelsForPods": _off("Rackgate does not label pods with their queues"),
    "CleanupProvisioningRequestsOnEviction": _off("Rackgate has no ProvisioningRequests"),
    "ConcurrentAdmission": _off("Rackgate admits a Workload in one flavor at a time"),
    "CustomMetricLabels": _off("Rackgate has no custom labels of metrics"),
    "DeferRayServiceFinalizationForRedisCleanup": _same(_OTHER_KINDS),
    "DisableWaitForPodsReady": _same(
        "waitForPodsReady is off unless waitForPodsReady.timeout is set"
    ),
    "FailureRecoveryPolicy": _off("Rackgate does not delete pods that are stuck in termination"),
    "FairSharingPreemptWithinNominal": _on("preemption within nominal quota needs no share"),
    "FairSharingPrioritizeNonBorrowing": _on("Workloads that do not borrow go first"),
    "FastQuotaReleaseInPodIntegration": _off("a plain pod keeps its quota until it is gone"),
    "FinishOrphanedWorkloads": _same("a Workload whose job is gone keeps no quota"),
    "FlavorFungibility": _on("ClusterQueues set it in spec.flavorFungibility"),
    "FlavorFungibilityPreserveScanProgress": _same("the other flavors are tried in the same plan"),
    "HierarchicalCohorts": _on("Cohorts may have a parent"),
    "KueueDRAIntegration": _off(_DRA),
    "KueueDRAIntegrationConsumableCapacity": _off(_DRA),
    "KueueDRAIntegrationExtendedResource": _off(_DRA),
    "KueueDRAIntegrationPartitionableDevices": _off(_DRA),
    "KueueDRARejectWorkloadsWhenDRADisabled": _off(
        "the webhook warns about ResourceClaims and does not reject them"
    ),
    "LWSImmutableGroupSize": _same(_OTHER_KINDS),
    "LocalQueueMetrics": _on("LocalQueues have metrics"),
    "ManagedJobsNamespaceSelectorAlwaysRespected": _on(
        "jobs of namespaces that are not selected are not managed"
    ),
    "MetricForWorkloadCreationLatency": _same(),
    "MetricsForCohorts": _on("Cohorts have metrics"),
    "MultiKueue": _off(_MULTIKUEUE),
    "MultiKueueAdaptersForCustomJobs": _off(_MULTIKUEUE),
    "MultiKueueAllowInsecureKubeconfigs": _off(_MULTIKUEUE),
    "MultiKueueClusterProfile": _off(_MULTIKUEUE),
    "MultiKueueIncrementalDispatcherConfig": _off(_MULTIKUEUE),
    "MultiKueueIncrementalDispatcherRespectConfigOrder": _off(_MULTIKUEUE),
    "MultiKueueKubeConfigPathValidation": _off(_MULTIKUEUE),
    "MultiKueueManagerQuotaAutomation": _off(_MULTIKUEUE),
    "MultiKueueOrchestratedPreemption": _off(_MULTIKUEUE),
    "MultiKueueRedoAdmissionOnEvictionInWorker": _off(_MULTIKUEUE),
    "MultiKueueRemoteSpecSync": _off(_MULTIKUEUE),
    "MultiKueueWaitForWorkloadAdmitted": _off(_MULTIKUEUE),
    "ObjectRetentionPolicies": _on("objectRetentionPolicies turns it on"),
    "PartialAdmission": _on("a Job turns it on with its annotation job-min-parallelism"),
    "PodIntegrationValidateGroupOwner": _same(_OTHER_KINDS),
    "PrioritizePreemptorWorkloads": KueueGate(
        None, "the same, on by default", replaced_by="RackgateStickyPreemptors"
    ),
    "PriorityBoost": _off("Rackgate does not read the annotation priority-boost"),
    "PrioritySortingWithinCohort": _on("priority orders the Workloads of a cohort"),
    "PropagateBatchJobLabelsToWorkload": _on("Workloads have the templates of their jobs"),
    "QuotaCheckStrategy": _same("resources that no ClusterQueue covers are never admitted"),
    "ReclaimablePods": _on("the quota of finished pods is free for others"),
    "RecomputeAssignmentUponPreemptionTargetsOverlap": _on(
        "a head whose preemption targets another head takes is nominated again"
    ),
    "RejectUpdatesToCQWithInvalidOnFlavors": _off("the webhook does not compare onFlavors"),
    "RemoveFinalizersWithStrictPatch": _same(),
    "SchedulerLibraryIntegration": _same(),
    "SchedulerLongRequeueInterval": _same(),
    "SchedulerTimestampPreemptionBuffer": _off(
        "LowerOrNewerEqualPriority compares the exact times"
    ),
    "SchedulingEquivalenceHashing": _same(),
    "ShortWorkloadNames": _off("names of Workloads have up to 253 characters"),
    "SkipAncestorCheckForDeletedWorkloads": _same(),
    "SkipFinalizersForPodsSuspendedByParent": _same(_OTHER_KINDS),
    "SparkApplicationIntegration": _off("Rackgate does not manage SparkApplications"),
    "TASAssignmentsEncodingByHostnamePrefix": _on("assignments group hosts by their prefix"),
    "TASCacheNodeMatchResults": _same(),
    "TASCacheTopologyTree": _same(),
    "TASCachingRemainingResources": _same(),
    "TASHandleOverlappingFlavors": _off(
        "flavors with a topology must not share nodes, and an Event names those that do"
    ),
    "TASMultiLayerTopology": _on("slices may have up to three layers"),
    "TASRecomputeAssignmentWithinSchedulingCycle": _on(
        "a head whose domains another head took is placed again in the same cycle"
    ),
    "TASReplaceNodeDueToNotReadyOverFixedTime": _off(
        "a node is replaced when its pods have ended, not after a time"
    ),
    "TASReplaceNodeOnNodeTaints": _on("a node is replaced if pods that do not tolerate it end"),
    "TASReplaceNodeOnPodTermination": _on("a node is replaced when its pods have ended"),
    "TASValidateWorkloadSliceSize": _on("slice sizes must be positive"),
    "TLSOptions": _off("the TLS versions and ciphers of the servers cannot be set"),
    "UnadmittedWorkloadsExplicitStatus": _off(
        "the first evaluation of a Workload writes its conditions"
    ),
    "UnadmittedWorkloadsObservability": _on("conditions have the detailed reasons"),
    "ValidateRayAndSparkJobUpdates": _on("the queue label of a running job cannot be removed"),
    "VectorizedResourceRequests": _same(),
    "WorkloadIdentifierAnnotations": _same(_OTHER_KINDS),
    "WorkloadPriorityClassDefaulting": _off(
        "a job without a priority class has the priority of its pods"
    ),
    "WorkloadRequestUseMergePatch": _same(),
    "WorkloadValidateResourcesAreNonNegative": _on(
        "a Workload with a negative request is not admitted"
    ),
    "WorkloadValidationForPodSetMetadata": _same(),
}
