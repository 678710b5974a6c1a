"""What Rackgate does with each field and key of Kueue: docs/reference/compatibility.md as data.

`make docs` writes the page from it, and `rackgate migrate check` judges a cluster by it. The tests
compare it with the names of Kueue's API, with the CRDs in deploy and with what the webhook answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rackgate_cli.kueue_config.table import covers


class Outcome(StrEnum):
    """What Rackgate does with a field or a key of Kueue."""

    SAME = "same"
    BETTER = "better"
    DIFFERS = "differs"
    GATED = "behind a gate"
    WARNED = "no effect, warned"
    REJECTED = "rejected"
    NOT_WRITTEN = "not written"
    LEFT = "left alone"


@dataclass(frozen=True, slots=True)
class Row:
    """One field or key.

    Attributes:
        name: a path below the kind, or a key. With `.*` at its end it stands for all fields below as
            well.
        outcome: what Rackgate does.
        note: the difference, or what happens instead.
        example: for fields without effect, a value that the schema accepts.
        gate: the feature gate of Rackgate that turns it on.
    """

    name: str
    outcome: Outcome
    note: str = ""
    example: Any = None
    gate: str = ""

    @property
    def word(self) -> str:
        """What the page says that Rackgate does."""
        return f"{self.outcome}: `{self.gate}`" if self.gate else str(self.outcome)

    def covers(self, name: str) -> bool:
        """Whether the row is about a name."""
        return covers(self.name, name)


SAME, BETTER, DIFFERS = Outcome.SAME, Outcome.BETTER, Outcome.DIFFERS
WARNED, REJECTED, LEFT = Outcome.WARNED, Outcome.REJECTED, Outcome.LEFT
NOT_WRITTEN, GATED = Outcome.NOT_WRITTEN, Outcome.GATED

_QUOTA: Final = (
    Row("spec.resourceGroups", SAME, "Flavors are tried in order"),
    Row("spec.resourceGroups[].coveredResources", SAME),
    Row("spec.resourceGroups[].flavors", SAME),
    Row("spec.resourceGroups[].flavors[].name", SAME),
    Row("spec.resourceGroups[].flavors[].resources", SAME),
    Row("spec.resourceGroups[].flavors[].resources[].name", SAME),
    Row("spec.resourceGroups[].flavors[].resources[].nominalQuota", SAME, "At most 2^60"),
    Row("spec.resourceGroups[].flavors[].resources[].borrowingLimit", SAME),
    Row("spec.resourceGroups[].flavors[].resources[].lendingLimit", SAME),
)
_COUNTS: Final = (
    Row("status.conditions", SAME, "`Active`, with the same reasons"),
    Row("status.pendingWorkloads", SAME),
    Row("status.reservingWorkloads", SAME),
    Row("status.admittedWorkloads", SAME),
    Row("status.flavorsReservation.*", SAME),
    Row("status.flavorsUsage.*", SAME),
)
_AFS_STATUS: Final = Row(
    "status.fairSharing.admissionFairSharingStatus.*", SAME, "With admission fair sharing"
)
FIELDS: Final[Mapping[str, tuple[Row, ...]]] = {
    "ClusterQueue": (
        *_QUOTA,
        Row("spec.cohortName", SAME),
        Row(
            "spec.queueingStrategy",
            BETTER,
            "A `StrictFIFO` queue skips a Workload that would not fit into an empty cluster, with the gate"
            " `RackgateStrictFIFOSkipsImpossible`",
        ),
        Row("spec.namespaceSelector.*", SAME, "Unset: no namespace. Empty: all"),
        Row("spec.flavorFungibility", SAME),
        Row("spec.flavorFungibility.whenCanBorrow", SAME),
        Row("spec.flavorFungibility.whenCanPreempt", SAME),
        Row("spec.flavorFungibility.preference", SAME),
        Row("spec.preemption", SAME),
        Row("spec.preemption.reclaimWithinCohort", SAME),
        Row("spec.preemption.borrowWithinCohort", SAME),
        Row("spec.preemption.borrowWithinCohort.policy", SAME),
        Row("spec.preemption.borrowWithinCohort.maxPriorityThreshold", SAME),
        Row("spec.preemption.withinClusterQueue", SAME),
        Row("spec.admissionChecksStrategy", SAME),
        Row("spec.admissionChecksStrategy.admissionChecks", SAME),
        Row("spec.admissionChecksStrategy.admissionChecks[].name", SAME),
        Row("spec.admissionChecksStrategy.admissionChecks[].onFlavors", SAME),
        Row(
            "spec.stopPolicy",
            BETTER,
            "Quota of evicted Workloads is held until their pods are gone, with the gate"
            " `RackgateHoldQuotaForTerminatingPods`",
        ),
        Row("spec.fairSharing", SAME),
        Row("spec.fairSharing.weight", SAME),
        Row("spec.admissionScope", SAME, "Admission fair sharing"),
        Row("spec.admissionScope.admissionMode", SAME),
        Row(
            "spec.concurrentAdmissionPolicy.*",
            WARNED,
            "A Workload is admitted in one flavor at a time, and stays in it until it ends",
            example={"migration": {"mode": "TryPreferredFlavors"}},
        ),
        *_COUNTS,
        Row("status.fairSharing", SAME),
        Row("status.fairSharing.weightedShare", SAME),
        _AFS_STATUS,
    ),
    "Cohort": (
        *_QUOTA,
        Row("spec.parentName", SAME, "ClusterQueues below a cycle of Cohorts are inactive"),
        Row("spec.fairSharing", SAME),
        Row("spec.fairSharing.weight", SAME),
        Row("status.fairSharing", SAME),
        Row("status.fairSharing.weightedShare", SAME),
        _AFS_STATUS,
    ),
    "LocalQueue": (
        Row("spec.clusterQueue", SAME, "It cannot change once it is set"),
        Row("spec.stopPolicy", SAME),
        Row("spec.fairSharing", SAME, "Admission fair sharing"),
        Row("spec.fairSharing.weight", SAME),
        *_COUNTS,
        Row("status.fairSharing", SAME, "With admission fair sharing"),
        Row("status.fairSharing.weightedShare", SAME, "With admission fair sharing"),
        _AFS_STATUS,
    ),
    "ResourceFlavor": (
        Row("spec.nodeLabels", SAME),
        Row("spec.nodeTaints.*", SAME),
        Row("spec.tolerations.*", SAME),
        Row(
            "spec.topologyName",
            DIFFERS,
            "Flavors with a topology must not have nodes in common; the Event `FlavorsShareNodes` names them",
        ),
    ),
    "Topology": (
        Row("spec.levels", SAME, "1 to 16 levels"),
        Row("spec.levels[].nodeLabel", SAME),
    ),
    "WorkloadPriorityClass": (
        Row("value", SAME),
        Row("description", SAME),
    ),
    "AdmissionCheck": (
        Row(
            "spec.controllerName",
            SAME,
            "Warned: the controllers of Kueue itself, `kueue.x-k8s.io/multikueue` and"
            " `kueue.x-k8s.io/provisioning-request`. Workloads wait until another controller answers",
        ),
        Row("spec.parameters.*", SAME, "For the controller of the check"),
        Row(
            "spec.retryDelayMinutes",
            WARNED,
            "Kueue's `v1beta1` only, and without effect there; the controller of the check sets"
            " `requeueAfterSeconds`",
            example=5,
        ),
        Row("status.conditions", SAME, "The controller of the check writes `Active`"),
    ),
    "Workload": (
        Row("spec.podSets", SAME, "1 to 18 PodSets"),
        Row("spec.podSets[].name", SAME),
        Row("spec.podSets[].count", SAME),
        Row("spec.podSets[].minCount", SAME),
        Row("spec.podSets[].template", SAME),
        Row("spec.podSets[].topologyRequest", SAME),
        Row(
            "spec.podSets[].topologyRequest.required",
            BETTER,
            "With a finer preferred level as well, with the gate `RackgateRequiredAndPreferred`",
        ),
        Row("spec.podSets[].topologyRequest.preferred", SAME),
        Row("spec.podSets[].topologyRequest.unconstrained", SAME),
        Row("spec.podSets[].topologyRequest.podIndexLabel", SAME),
        Row("spec.podSets[].topologyRequest.subGroupIndexLabel", SAME),
        Row("spec.podSets[].topologyRequest.subGroupCount", SAME),
        Row("spec.podSets[].topologyRequest.podSetGroupName", SAME),
        Row("spec.podSets[].topologyRequest.podSetSliceRequiredTopology", SAME),
        Row("spec.podSets[].topologyRequest.podSetSliceSize", SAME),
        Row(
            "spec.podSets[].topologyRequest.podsetSliceRequiredTopologyConstraints.*",
            SAME,
            "Up to three layers",
        ),
        Row("spec.queueName", SAME),
        Row("spec.priority", SAME),
        Row("spec.priorityClassRef.*", SAME),
        Row("spec.active", SAME),
        Row(
            "spec.maximumExecutionTimeSeconds",
            SAME,
            "A wrong value of the label of a job is rejected",
        ),
        Row(
            "spec.preemptionGates.*",
            WARNED,
            "The Workload may preempt others at once",
            example=[{"name": "kueue.x-k8s.io/multikueue"}],
        ),
        Row("status.conditions", DIFFERS, "[Conditions and reasons](conditions-and-reasons.md)"),
        Row("status.admission.*", SAME),
        Row("status.admissionChecks.*", SAME, "The controllers of the checks write them"),
        Row("status.requeueState.*", DIFFERS, "The backoff has no random part"),
        Row("status.reclaimablePods.*", SAME),
        Row(
            "status.unhealthyNodes.*",
            BETTER,
            "An administrator may add a host, so that its pods move",
        ),
        Row("status.schedulingStats.*", SAME),
        Row("status.accumulatedPastExecutionTimeSeconds", SAME),
        Row("status.resourceRequests.*", NOT_WRITTEN, "`rackgate explain` shows the requests"),
        Row("status.clusterName", NOT_WRITTEN, "MultiKueue"),
        Row("status.nominatedClusterNames", NOT_WRITTEN, "MultiKueue"),
        Row("status.preemptionGates.*", NOT_WRITTEN),
        Row("status.foldedSlices.*", BETTER, "Rackgate's own: workload slices that were merged"),
    ),
    "MultiKueueCluster": (
        Row(
            "spec.*", REJECTED, "The API server does not know the kind. Submit jobs to each cluster"
        ),
        Row("status.*", REJECTED),
    ),
    "MultiKueueConfig": (
        Row(
            "spec.*", REJECTED, "The API server does not know the kind. Submit jobs to each cluster"
        ),
    ),
    "ProvisioningRequestConfig": (
        Row(
            "spec.*",
            REJECTED,
            "The API server does not know the kind. Provide nodes by a controller of your own, with an"
            " [AdmissionCheck](../concepts/admission-checks.md)",
        ),
    ),
}

K: Final = "kueue.x-k8s.io"
JOBS: Final = "job"
TEMPLATE: Final = "template"
WORKLOAD: Final = "Workload"
_POD_GROUP: Final = (
    "See [Run plain pods](../tasks/run-plain-pods.md). Without the gate, and in the template of a job, it is"
    " warned about"
)
_PODS_GATE: Final = "RackgatePodGroups"
_BY_KUEUE: Final = "Kueue wrote it. It may stay"
# Key -> what Rackgate does, and on which objects Kueue has it.
KEYS: Final[tuple[tuple[str, Row], ...]] = (
    (
        "job (label)",
        Row(
            f"{K}/queue-name",
            DIFFERS,
            "On Jobs, JobSets, RayClusters and RayJobs, and on the RayCluster that a RayService creates. On"
            " other kinds it has no effect, and a policy warns",
        ),
    ),
    ("job (label)", Row(f"{K}/priority-class", SAME)),
    ("job (label)", Row(f"{K}/max-exec-time-seconds", SAME)),
    *(
        ("template (annotation)", Row(f"{K}/{name}", SAME))
        for name in (
            "podset-required-topology",
            "podset-preferred-topology",
            "podset-unconstrained-topology",
            "podset-slice-required-topology",
            "podset-slice-size",
            "podset-slice-required-topology-constraints",
            "podset-group-name",
            "pod-index-offset",
        )
    ),
    (
        "Job (annotation)",
        Row(
            f"{K}/job-min-parallelism", SAME, "On other kinds it has no effect, and is warned about"
        ),
    ),
    (
        "Job (annotation)",
        Row(
            f"{K}/job-completions-equal-parallelism",
            SAME,
            "On other kinds it has no effect, and is warned about",
        ),
    ),
    (
        "job (annotation), pod (gate)",
        Row(
            f"{K}/elastic-job",
            GATED,
            "On Indexed Jobs; otherwise, and without the gate, it is warned about. A RayCluster with an"
            " autoscaler needs no annotation. See [Elastic jobs](../concepts/elastic-jobs.md)",
            gate="RackgateElasticIndexedJobs",
        ),
    ),
    *(
        (place, Row(f"{K}/{name}", WARNED, note))
        for place, name, note in (
            (
                "job (label or annotation)",
                "prebuilt-workload-name",
                "Rackgate creates the Workload of a job itself",
            ),
            (
                "job, Workload (annotation)",
                "admission-gated-by",
                "The Workload may be admitted at once. Use an AdmissionCheck",
            ),
            (
                "job, Workload (annotation)",
                "priority-boost",
                "The priority is that of the priority class",
            ),
            (
                "job, template (annotation)",
                "safe-to-forcefully-delete",
                "Pods that are stuck in termination are not deleted",
            ),
            (
                "Workload (annotation)",
                "workload-slice-replacement-for",
                "Workload slices of Rackgate have their parent as owner",
            ),
            (
                "Workload (annotation)",
                "workload-allowed-resource-flavors",
                "Use a node selector to exclude flavors",
            ),
            (
                "Workload (label)",
                "concurrent-admission-parent",
                "A Workload is admitted in one flavor at a time",
            ),
            (
                "pod (annotation)",
                "pod-group-serving",
                "A pod of a running group is replaced by one that requests the same",
            ),
        )
    ),
    *(
        (place, Row(f"{K}/{name}", GATED, _POD_GROUP, gate=_PODS_GATE))
        for place, name in (
            ("pod (label)", "pod-group-name"),
            ("pod (annotation)", "pod-group-total-count"),
            ("pod (annotation)", "pod-group-fast-admission"),
            ("pod (annotation)", "pod-group-pod-index-label"),
            ("pod (label)", "pod-group-pod-index"),
            ("pod (annotation)", "retriable-in-group"),
        )
    ),
    (
        "template (annotation)",
        Row(
            f"provreq.{K}/", WARNED, "All keys with this prefix: there are no ProvisioningRequests"
        ),
    ),
    *(
        (place, Row(f"{K}/{name}", REJECTED, note))
        for place, name, note in (
            ("template, pod (annotation)", "workload", "Rackgate writes it, as Kueue does"),
            ("template, pod (label)", "podset", "Rackgate writes it, as Kueue does"),
            ("template, pod (gate)", "topology", "Rackgate writes it, as Kueue does"),
        )
    ),
    (
        "template, pod (label)",
        Row(f"{K}/tas", REJECTED, "Rackgate writes it, as Kueue did until 0.14"),
    ),
    (
        "Workload, pod (annotation)",
        Row(
            f"{K}/workload-slice-name",
            SAME,
            "Of what Kueue wrote: its pods belong to the Workload of the job. Rackgate does not"
            " write it",
        ),
    ),
    ("Workload (label)", Row(f"{K}/job-uid", SAME)),
    ("Workload, queue, flavor, Topology (finalizer)", Row(f"{K}/resource-in-use", SAME)),
    *(
        (place, Row(f"{K}/{name}", GATED, note, gate=_PODS_GATE))
        for place, name, note in (
            (
                "pod (gate)",
                "admission",
                "The only gate of a plain pod. Without the feature gate nothing removes Kueue's. Remove such pods"
                " before you migrate",
            ),
            (
                "pod (label, finalizer)",
                "managed",
                "An evicted pod is not kept. Without the gate nothing removes Kueue's finalizer. Remove such pods"
                " before you migrate",
            ),
            ("Workload (annotation)", "is-group-workload", ""),
        )
    ),
    *(
        (place, Row(f"{K}/{name}", LEFT, _BY_KUEUE))
        for place, name in (
            ("pod (label)", "cluster-queue-name"),
            ("Workload (annotation)", "component-workload-index"),
            ("Workload (annotation)", "job-owner-gvk"),
            ("Workload (annotation)", "job-owner-name"),
            ("pod (label)", "local-queue-name"),
            ("job (label)", "multikueue-origin"),
            ("job (annotation)", "multikueue-origin-uid"),
            ("pod (label)", "multikueue-worker-workload-pod"),
            ("pod (annotation)", "pod-suspending-parent"),
            ("job (annotation)", "raycluster-generation"),
            ("job (annotation)", "raycluster-podset-replica-sizes"),
            ("pod (annotation)", "role-hash"),
            ("Job (annotation)", "stopping"),
        )
    ),
)
