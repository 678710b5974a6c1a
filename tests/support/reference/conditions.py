"""The page of conditions and reasons, from the enums of rackgate.api.names."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from rackgate.api import names
from tests.support.reference import page, table

PURPOSE: Final = (
    "This page lists the conditions that Rackgate writes and the reasons that they carry."
)
# Enums of names that are not conditions.
OTHERS: Final = frozenset({"FieldManager"})
CONDITIONS: Final[Mapping[str, tuple[str, str]]] = {
    "QuotaReserved": (
        "The Workload has quota, a flavor and, with a topology and without admission checks, its"
        " domains.",
        "The Workload is pending. See [Why a Workload is pending](#why-a-workload-is-pending).",
    ),
    "Admitted": (
        "The Workload is admitted. The assigner starts its job.",
        "The Workload waits for its admission checks (`UnsatisfiedAdmissionChecks`) or for its domains"
        " after them (`PendingDelayedTopologyRequests`), or its admission was released"
        " (`NoReservation`).",
    ),
    "PodsReady": (
        "All pods that should run are ready or have succeeded (`Started`, `Recovered`).",
        "Pods are not ready (`WaitForStart`), or a pod that was ready is not ready any more"
        " (`WaitForRecovery`).",
    ),
    "Evicted": (
        "The job is being stopped. See [Why a Workload is evicted](#why-a-workload-is-evicted).",
        "The Workload was admitted again (`QuotaReserved`).",
    ),
    "Preempted": (
        "The Workload was evicted in favor of another one.",
        "The Workload was admitted again (`QuotaReserved`).",
    ),
    "Requeued": (
        "The Workload is in its queue again after an eviction.",
        "The Workload is not queued again yet: its backoff is not over, or somebody must act.",
    ),
    "Finished": (
        "The job has ended, or could not be started."
        " See [Why a Workload is finished](#why-a-workload-is-finished).",
        "",
    ),
    "DeactivationTarget": (
        "Rackgate deactivates the Workload (`InvalidTopology`, `RequeuingLimitExceeded`,"
        " `MaximumExecutionTimeExceeded`, `AdmissionCheck`).",
        "",
    ),
    "UnsupportedFields": (
        "The job, the Workload or its ClusterQueue sets something that has no effect (`UnsupportedField`), or a"
        " setting excludes a resource that the job requests. The message says what happens instead. It is written"
        " with the admission or with why the Workload is pending, and updated when one of these objects is edited.",
        "",
    ),
    "ResizeRequested": (
        "An elastic job requests another number of pods than it was admitted with.",
        "All requested pods are admitted (`Resized`).",
    ),
}
REASONS: Final[Mapping[str, tuple[str, str, Mapping[str, str]]]] = {
    "PendingReason": (
        "Why a Workload is pending",
        "The condition `QuotaReserved` is False with one of these reasons.",
        {
            "NoMatchingFlavor": "No flavor of the ClusterQueue matches the pods: a taint, the node labels or"
            " the topology of the flavor rule it out.",
            "WaitingForQuota": "The quota that is not in use is too small.",
            "ExceedsMaxQuota": "The request is larger than the whole quota of the ClusterQueue.",
            "TopologyPlacementFailed": "The quota suffices, but the pods do not fit in the topology as"
            " they request it.",
            "Misconfigured": "The job or its queue must change: for example, the queue does not exist or is"
            " inactive, or the API server would reject the pods. The message names the field or the object.",
            "Suspended": "The Workload, its LocalQueue or its ClusterQueue is stopped.",
            "WaitingForPreemptedWorkloads": "The Workloads that this one preempts have not stopped yet.",
            "PendingEvaluation": "The Workload was not evaluated yet, its backoff is not over, or it "
            "would have to preempt while another Workload of its queue waits for those that were "
            "preempted for it.",
            "WaitingForPodsReady": "The Workload fits, but pods of an admitted Workload are not ready, and"
            " `waitForPodsReady.blockAdmission` is set.",
            "GangNotReady": "The Workload of gangs of the job does not exist, is used by another job, asks for more"
            " pods than the job has, or for a topology that cannot be used. The message says which.",
            "OnHold": "A workload slice cannot be evaluated before its parent, or its feature gate is off.",
            "InternalError": "The assigner failed to decide about this Workload. Its log line"
            " `decision_failed` has the details.",
            "NoReservation": "Reason of `Admitted` only: the Workload has no quota.",
            "UnsatisfiedAdmissionChecks": "Reason of `Admitted` only: quota is reserved, and not all"
            " admission checks are Ready.",
            "PendingDelayedTopologyRequests": "Reason of `Admitted` only: all admission checks are Ready,"
            " and the pods are to be placed.",
        },
    ),
    "EvictionReason": (
        "Why a Workload is evicted",
        "The condition `Evicted` is True with one of these reasons.",
        {
            "Preempted": "Another Workload of the ClusterQueue preempts it.",
            "ClusterQueueStopped": "The ClusterQueue has `stopPolicy: HoldAndDrain`.",
            "LocalQueueStopped": "The LocalQueue has `stopPolicy: HoldAndDrain`.",
            "NodeFailures": "A node is unhealthy and has no replacement.",
            "Deactivated": "`spec.active` of the Workload is false.",
            "DeactivatedDueToInvalidTopology": "No flavor of the queue can ever satisfy the topology"
            " request. The Workload is deactivated.",
            "JobSuspended": "Somebody suspended the job.",
            "JobChanged": "The job no longer matches its admission.",
            "PodsBeyondAdmission": "The job has more pods than were admitted.",
            "PodsReadyTimeout": "Pods were not ready within `waitForPodsReady.timeout` (`WaitForStart`), or lost pods"
            " were not ready again within `waitForPodsReady.recoveryTimeout` (`WaitForRecovery`).",
            "AdmissionCheck": "An admission check asks for a retry, or the pods do not fit in the topology"
            " after the admission checks.",
            "GangTimeout": "Not all pods of a gang were bound within its `scheduleTimeoutSeconds` after the"
            " admission. The Workload is queued again after a backoff.",
            "GangMemberLost": "A pod of a gang with `reschedulingPolicy: TerminateAll` failed or was deleted. The"
            " Workload is queued again at once.",
        },
    ),
    "UnderlyingCause": (
        "Underlying causes of evictions",
        "The reason of some evictions is general. `status.schedulingStats.evictions` of the Workload and the"
        " metric `rackgate_evicted_workloads_total` then have one of these causes. A Workload that Rackgate"
        " deactivates for a cause is evicted with the reason `DeactivatedDueTo` and the cause.",
        {
            "WaitForStart": "`PodsReadyTimeout`: the pods were not all ready in time after the admission.",
            "WaitForRecovery": "`PodsReadyTimeout`: lost pods were not all ready again in time.",
            "RequeuingLimitExceeded": "`Deactivated`: the Workload was evicted `backoffLimitCount` times"
            " because of missing pods, or `gangTimeoutLimit` times because of its gangs.",
            "MaximumExecutionTimeExceeded": "`Deactivated`: the Workload was admitted for"
            " `spec.maximumExecutionTimeSeconds`, over all its admissions.",
            "AdmissionCheck": "`Deactivated`: an admission check is Rejected.",
        },
    ),
    "PreemptedReason": (
        "Why a Workload is preempted",
        "The condition `Preempted` is True with one of these reasons.",
        {
            "InClusterQueue": "A Workload of the same ClusterQueue comes before it.",
            "InCohortReclamation": "A ClusterQueue of the Cohort takes back quota that it had lent.",
            "InCohortFairSharing": "Another ClusterQueue of the Cohort has a smaller share.",
            "InCohortReclaimWhileBorrowing": "A Workload of higher priority in another ClusterQueue of the"
            " Cohort borrows the quota (`borrowWithinCohort`).",
        },
    ),
    "RequeuedReason": (
        "Why a Workload is queued again",
        "The condition `Requeued` is True with one of these reasons, or with the reason of the eviction if"
        " the Workload is queued again at once.",
        {
            "Reactivated": "`spec.active` is true again.",
            "ClusterQueueRestarted": "The ClusterQueue is not stopped any more.",
            "LocalQueueRestarted": "The LocalQueue is not stopped any more.",
            "BackoffFinished": "The backoff after `PodsReadyTimeout`, or the delay after `AdmissionCheck`,"
            " is over.",
        },
    ),
    "FinishedReason": (
        "Why a Workload is finished",
        "The condition `Finished` is True with one of these reasons.",
        {
            "Succeeded": "The job succeeded.",
            "Failed": "The job failed.",
            "FailedToStart": "The job could not be started with its admission: for example, the node labels of"
            " the flavor contradict the node selector of a template.",
        },
    ),
    "ResizeReason": (
        "How far a resize is",
        "The condition `ResizeRequested` of an elastic job carries one of these reasons. It is False with"
        " `Resized`, and True with the others.",
        {
            "ScalingUp": "The job requests more pods. Workload slices are created for them.",
            "WaitingForSlices": "At least one slice is pending. The message says why.",
            "ScalingDown": "The job requests fewer pods. The quota of the other pods is released.",
            "Resized": "The job has the size that it requests, or it is stopped.",
        },
    ),
    "QueueReason": (
        "Queues",
        "The condition `Active` of a ClusterQueue or LocalQueue carries one of these reasons. It is True with"
        " `Ready`, and False with the others.",
        {
            "Ready": "The queue admits Workloads.",
            "Terminating": "The queue is being deleted.",
            "Stopped": "The queue has a `stopPolicy` other than `None`.",
            "FlavorNotFound": "A ResourceFlavor of the ClusterQueue does not exist.",
            "TopologyNotFound": "The Topology of a flavor does not exist.",
            "CohortCycle": "Cohorts above the ClusterQueue are above themselves.",
            "AdmissionCheckNotFound": "An AdmissionCheck of the ClusterQueue does not exist.",
            "AdmissionCheckInactive": "The condition `Active` of an AdmissionCheck of the ClusterQueue is"
            " not True: no controller handles it.",
            "MultipleMultiKueueAdmissionChecks": "The ClusterQueue names more than one MultiKueue check.",
            "MultiKueueAdmissionCheckAppliedPerFlavor": "The ClusterQueue names a MultiKueue check for"
            " some flavors only.",
            "MultiKueueWithProvisioningRequest": "The ClusterQueue names a MultiKueue check and a"
            " ProvisioningRequest check.",
            "NotSupportedWithTopologyAwareScheduling": "A flavor has a topology, and the ClusterQueue has"
            " a MultiKueue or ProvisioningRequest check, or, with the gates off, a cohort or preemption. The"
            " gates `TASWith...` lift these limits.",
            "ClusterQueueDoesNotExist": "The LocalQueue names a ClusterQueue that does not exist.",
            "ClusterQueueIsInactive": "The ClusterQueue of the LocalQueue is inactive.",
        },
    ),
    "PoolReason": (
        "OSMO pools",
        "The condition `Synced` of a Pool carries one of these reasons. It is True with `InStep` and"
        " `NoTopologyKeys`, and False with the others.",
        {
            "InStep": "KAI's Topology has the levels of the pool.",
            "NoTopologyKeys": "The pool has no topology keys, so it has no Topology.",
            "WaitingForDeletion": "The previous Topology is being deleted. The message names its finalizers.",
            "ForeignTopology": "A Topology of the same name exists that Rackgate does not own."
            " The message says how to hand it over.",
            "TopologyKindMissing": "The CustomResourceDefinition of KAI's Topology is not installed.",
            "TopologyRefused": "The API server rejected the Topology. The message is the API server's.",
            "InvalidPool": "The Pool was stored without validation and is invalid. Its Topology stays as it was.",
        },
    ),
}
# A reason that is made of another one.
MORE: Final = """\
A Workload that an admission check has rejected is evicted with the reason `DeactivatedDueToAdmissionCheck`."""
PODS: Final = (
    "Pods",
    "A pod that can only run on an unhealthy node gets the phase Failed, so that its job creates another pod. The pod"
    " has this condition.",
    (names.TERMINATED_CONDITION, "True", names.TERMINATED_REASON),
)


def enums() -> dict[str, type[StrEnum]]:
    """The enums of conditions and reasons."""
    return {
        name: found
        for name, found in vars(names).items()
        if isinstance(found, type)
        and issubclass(found, StrEnum)
        and found is not StrEnum
        and name not in OTHERS
    }


def gaps() -> list[str]:
    """Members of the enums without a description, and descriptions without a member."""
    found = enums()
    wanted = {name: {str(member) for member in found[name]} for name in found}
    described: dict[str, set[str]] = {name: set(entry[2]) for name, entry in REASONS.items()}
    described["WorkloadCondition"] = set(CONDITIONS)
    problems = [f"{name} is not described" for name in wanted if name not in described]
    problems += [f"{name} does not exist" for name in described if name not in wanted]
    for name in wanted.keys() & described.keys():
        problems += [f"{name}.{value}" for value in sorted(wanted[name] ^ described[name])]
    return problems


def text() -> str:
    """The page.

    Raises:
        ValueError: the tables do not fit the enums.
    """
    if found := gaps():
        raise ValueError(f"conditions and reasons: {', '.join(found)}")
    conditions = [(f"`{name}`", *meanings) for name, meanings in CONDITIONS.items()]
    blocks = [
        "`kubectl describe workload NAME` shows the conditions of a Workload. `rackgate explain NAME` says what they"
        " mean for you.\n\n## Workloads\n\n"
        + table(("Condition", "True when", "False when"), conditions)
    ]
    for name, (title, what, meanings) in REASONS.items():
        rows = [(f"`{member}`", meanings[member]) for member in enums()[name]]
        blocks.append(f"## {title}\n\n{what}\n\n{table(('Reason', 'Meaning'), rows)}")
        if name == "QueueReason":
            blocks.append(MORE)
    title, what, row = PODS
    head = ("Condition", "Status", "Reason")
    blocks.append(f"## {title}\n\n{what}\n\n{table(head, [tuple(f'`{part}`' for part in row)])}")
    return page("Conditions and reasons", PURPOSE, *blocks)
