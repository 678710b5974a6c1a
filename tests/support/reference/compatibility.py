"""The page of compatibility: what Rackgate does with each name of Kueue, from the tables here.

The tests compare the tables with the names of Kueue's API, with the CRDs in deploy and with what the
webhook answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rackgate.features import GATES
from rackgate.kueue_gates import KUEUE_GATES, KUEUE_VERSION, KueueGate
from rackgate_cli.kueue_config.table import SETTINGS, SUBTREE, Support, covers
from tests.support.kueue_names import kueue_names
from tests.support.reference import page, table


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
            ("Workload, pod (annotation)", "workload-slice-name"),
        )
    ),
)

PURPOSE: Final = (
    f"This page lists every field, label, annotation, feature gate and setting of Kueue {KUEUE_VERSION}, and what"
    " Rackgate does with it."
)
INTRODUCTION: Final = """\
Nothing is ignored silently. What has no effect is named in these places:

- The webhook warns about it when you create or change the object. `kubectl` prints the warning.
- Without a queue label the webhook is not called. Then a policy in the API server warns about keys of Kueue on
  a Job, JobSet, RayCluster, RayJob, CronJob or Pod, or on an object of another kind that Kueue can manage, for
  example about a misspelled queue label.
- A policy warns about the queue label on [other kinds](../tasks/migrate-from-kueue.md#what-works-in-another-way). It
  can [reject them](../tasks/configure.md#reject-objects-that-are-not-managed) instead.
- The condition [`UnsupportedFields`](conditions-and-reasons.md) of the Workload names it as long as it is there.
- The Event [`UnsupportedField`](events.md#administration) names it in objects that exist, for example after a
  [migration](../tasks/migrate-from-kueue.md).
- `rackgate explain -f` names it before you submit a job, and `rackgate explain NAME` names it afterwards.

| Word | Meaning |
|---|---|
| same | Rackgate does what Kueue does |
| better | The same, and more |
| differs | The note says how |
| behind a gate | The same, if you enable the feature gate that is named. It is off by default |
| no effect, warned | The field is stored. The note says what happens instead |
| rejected | The object is not accepted |
| not written | Kueue writes this status, Rackgate does not |
| left alone | Kueue wrote it. Rackgate neither reads nor removes it |
| not needed | There is nothing to set |
| not yet | There is no such setting. The note says what happens instead |

The API server serves `v1beta2` and `v1beta1` of all kinds, and stores `v1beta2`. The webhook converts ClusterQueues,
LocalQueues and Workloads. The tables have the fields of `v1beta2`. `v1beta1` has the same fields, but for these:

| `v1beta1` | `v1beta2` |
|---|---|
| ClusterQueue: `spec.cohort` | `spec.cohortName` |
| ClusterQueue: `spec.admissionChecks` | `spec.admissionChecksStrategy`, each rule with `onFlavors: []` |
| ClusterQueue: `Borrow` and `Preempt` in `spec.flavorFungibility` | `MayStopSearch`, also when read in `v1beta1` |
| LocalQueue: `status.flavorUsage` | `status.flavorsUsage` |
| Workload: `spec.priorityClassName`, `spec.priorityClassSource` | `spec.priorityClassRef`. Without a source, a PriorityClass |
| Workload: `status.accumulatedPastExexcutionTimeSeconds` | `status.accumulatedPastExecutionTimeSeconds` |
| Workload: `domains` of a `topologyAssignment` | `slices`, in the same order |
| ClusterQueue: `status.pendingWorkloadsStatus`; LocalQueue: `status.flavors` | None. Rackgate does not serve them, see the [positions of pending Workloads](api.md#positions-of-pending-workloads) |

Fields that Kueue has in `v1beta2` only can be read and written in `v1beta1` under their own name, so a patch or a
replacement through `v1beta1` loses nothing. A typed client that replaces a whole object drops fields that it does not
know. [ADR 67](../design/adr/0067-conversion-of-v1beta1.md) has the details."""
KEYS_TEXT: Final = """\
*Job* stands for Jobs, JobSets, RayClusters and RayJobs, *template* for their pod templates. The webhook also warns about
keys of `kueue.x-k8s.io` that are not in this table, and suggests the key that you may have meant."""
GATES_TEXT: Final = """\
A gate that is *a switch* has the same meaning in Rackgate. Of the others a service accepts only the
value in the table, and logs `feature_gate_without_effect`; with another value it does not start, and the message
names the gate. [Feature gates](feature-gates.md) describes the switches, and the gates that Kueue does not have."""
CONFIGURATION_TEXT: Final = """\
Rackgate does not read the configuration of Kueue: a service does not start with a file of
`config.kueue.x-k8s.io`, or with a key that it does not know. [`rackgate kueue-config`](cli.md) translates it, and
names what it cannot translate. [Settings](settings.md) describes the settings in the last column."""


def _fixed(gate: KueueGate) -> tuple[str, str, str]:
    if gate.replaced_by:
        return DIFFERS, "none", f"Set `{gate.replaced_by}`: {gate.note}"
    if gate.behaves is None:
        return Support.NOT_NEEDED, "any", gate.note
    return (SAME, "true", gate.note) if gate.behaves else (Support.NOT_YET, "false", gate.note)


def gate_rows() -> list[tuple[str, ...]]:
    """Every feature gate of Kueue: name, what Rackgate does, accepted value, note."""
    fixed = [(f"`{name}`", *_fixed(gate)) for name, gate in KUEUE_GATES.items()]
    switches = [
        (
            f"`{gate.name}`",
            str(SAME),
            "any",
            f"A switch, {'on' if gate.default else 'off'} by default",
        )
        for gate in GATES
        if gate.name in kueue_names("gates")
    ]
    return sorted((*fixed, *switches), key=lambda row: row[0].strip("`"))


def _fields_table(kind: str) -> str:
    rows = [(f"`{row.name.removesuffix(SUBTREE)}`", row.word, row.note) for row in FIELDS[kind]]
    return f"## {kind}\n\n{table(('Field', 'Rackgate', 'Note'), rows)}"


def _setting(text: str) -> str:
    service, _, path = text.partition(":")
    return f"{service} `{path}`"


def text() -> str:
    """The page."""
    keys = [(f"`{row.name}`", place, row.word, row.note) for place, row in KEYS]
    settings = [
        (
            f"`{row.name.removesuffix(SUBTREE)}`",
            row.support,
            row.note,
            "<br>".join(_setting(one) for one in row.settings),
        )
        for row in SETTINGS
    ]
    head = ("Field of Kueue", "Rackgate", "Note", "Settings of Rackgate")
    return page(
        "Compatibility with Kueue",
        PURPOSE,
        INTRODUCTION,
        *(_fields_table(kind) for kind in FIELDS),
        f"## Labels, annotations, gates and finalizers\n\n{KEYS_TEXT}",
        table(("Key", "Object", "Rackgate", "Note"), keys),
        f"## Feature gates\n\n{GATES_TEXT}",
        table(("Gate of Kueue", "Rackgate", "Accepted value", "Note"), gate_rows()),
        f"## Configuration\n\n{CONFIGURATION_TEXT}",
        table(head, settings),
    )
