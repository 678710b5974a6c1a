"""Every group, label, annotation, gate, condition and reason, and the names of Workloads.

Sources: KEP-2724 (topology), KEP-77 (elastic jobs) and the `kueue.x-k8s.io` v1beta2 API.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final

GROUP: Final = "kueue.x-k8s.io"
VERSION: Final = "v1beta2"
API_VERSION: Final = f"{GROUP}/{VERSION}"
OLD_VERSION: Final = "v1beta1"
# The Service of the webhook, and the path at which it converts between these two versions.
WEBHOOK_SERVICE: Final = "rackgate-webhook"
CONVERT_PATH: Final = "/convert"
VISIBILITY_GROUP: Final = f"visibility.{GROUP}"
VISIBILITY_VERSIONS: Final = ("v1beta2", "v1beta1")  # the preferred one first
SYSTEM_NAMESPACE: Final = "rackgate-system"
# Jobs in these namespaces are not managed: a cluster can be repaired while Rackgate is down. The
# webhook configurations and policies of deploy/webhook exclude the same namespaces.
UNMANAGED_NAMESPACES: Final = ("kube-system", SYSTEM_NAMESPACE)

# Labels of a job, set by users.
QUEUE_LABEL: Final = f"{GROUP}/queue-name"
PRIORITY_CLASS_LABEL: Final = f"{GROUP}/priority-class"
MAX_EXECUTION_TIME_LABEL: Final = f"{GROUP}/max-exec-time-seconds"

# Annotations of a pod template, set by users.
REQUIRED_TOPOLOGY: Final = f"{GROUP}/podset-required-topology"
PREFERRED_TOPOLOGY: Final = f"{GROUP}/podset-preferred-topology"
UNCONSTRAINED_TOPOLOGY: Final = f"{GROUP}/podset-unconstrained-topology"
SLICE_REQUIRED_TOPOLOGY: Final = f"{GROUP}/podset-slice-required-topology"
SLICE_SIZE: Final = f"{GROUP}/podset-slice-size"
SLICE_CONSTRAINTS: Final = f"{GROUP}/podset-slice-required-topology-constraints"
PODSET_GROUP: Final = f"{GROUP}/podset-group-name"
POD_INDEX_OFFSET: Final = f"{GROUP}/pod-index-offset"
TOPOLOGY_ANNOTATIONS: Final = (
    REQUIRED_TOPOLOGY,
    PREFERRED_TOPOLOGY,
    UNCONSTRAINED_TOPOLOGY,
    SLICE_REQUIRED_TOPOLOGY,
    SLICE_CONSTRAINTS,
)

# Reserved: only Rackgate writes these, on pod templates and pods.
WORKLOAD_ANNOTATION: Final = f"{GROUP}/workload"
PODSET_LABEL: Final = f"{GROUP}/podset"
TAS_LABEL: Final = f"{GROUP}/tas"
TAS_LABEL_VALUE: Final = "true"
TOPOLOGY_GATE: Final = f"{GROUP}/topology"
ELASTIC_GATE: Final = f"{GROUP}/elastic-job"

# Plain pods. Users set the name, the number of pods, and what follows them up to `retriable`;
# Rackgate sets the others.
POD_GROUP_LABEL: Final = f"{GROUP}/pod-group-name"
POD_GROUP_TOTAL_ANNOTATION: Final = f"{GROUP}/pod-group-total-count"
POD_GROUP_FAST_ADMISSION: Final = f"{GROUP}/pod-group-fast-admission"
POD_GROUP_INDEX_LABEL: Final = f"{GROUP}/pod-group-pod-index"
POD_GROUP_INDEX_ANNOTATION: Final = f"{GROUP}/pod-group-pod-index-label"
POD_GROUP_SERVING: Final = f"{GROUP}/pod-group-serving"
RETRIABLE_ANNOTATION: Final = f"{GROUP}/retriable-in-group"
MANAGED_LABEL: Final = f"{GROUP}/managed"
MANAGED_FINALIZER: Final = f"{GROUP}/managed"
ADMISSION_GATE: Final = f"{GROUP}/admission"
GROUP_WORKLOAD_ANNOTATION: Final = f"{GROUP}/is-group-workload"

# Condition of a pod that was set to Failed because its assigned node is unhealthy.
TERMINATED_CONDITION: Final = "TerminatedByKueue"
TERMINATED_REASON: Final = "UnschedulableOnAssignedNode"

# Label and finalizer of Workloads.
JOB_UID_LABEL: Final = f"{GROUP}/job-uid"
IN_USE_FINALIZER: Final = f"{GROUP}/resource-in-use"

# On a RayCluster: the generation for which its operator was triggered to create missing pods.
RECONCILE_REQUESTED_ANNOTATION: Final = "rackgate.dev/reminded-at-generation"

# On Workloads and jobs that may be resized while they run.
ELASTIC_ANNOTATION: Final = f"{GROUP}/elastic-job"

# On Jobs that may start with fewer pods than they request.
MIN_PARALLELISM_ANNOTATION: Final = f"{GROUP}/job-min-parallelism"
COMPLETIONS_EQUAL_PARALLELISM_ANNOTATION: Final = f"{GROUP}/job-completions-equal-parallelism"

# Labels written by Kubernetes.
CONTROLLER_UID_LABEL: Final = "batch.kubernetes.io/controller-uid"
COMPLETION_INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"

# Labels that JobSet puts on its child Jobs and their pods.
JOBSET_GROUP: Final = "jobset.x-k8s.io"
JOBSET_NAME_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB_LABEL: Final = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX_LABEL: Final = "jobset.sigs.k8s.io/job-index"
JOB_REPLICAS_LABEL: Final = "jobset.sigs.k8s.io/replicatedjob-replicas"
RESTART_ATTEMPT_LABEL: Final = "jobset.sigs.k8s.io/restart-attempt"

# Labels that KubeRay puts on its pods. The two indices need KubeRay 1.5, or its feature gate
# RayMultiHostIndexing.
RAY_GROUP: Final = "ray.io"
RAY_CLUSTER_LABEL: Final = "ray.io/cluster"
RAY_NODE_TYPE_LABEL: Final = "ray.io/node-type"
RAY_GROUP_LABEL: Final = "ray.io/group"
RAY_CLEANUP_TYPE: Final = "redis-cleanup"
RAY_REPLICA_INDEX_LABEL: Final = "ray.io/worker-group-replica-index"
RAY_HOST_INDEX_LABEL: Final = "ray.io/replica-host-index"
# Labels that KubeRay puts on what it creates for a RayJob: a RayCluster, and the Job that submits.
RAY_ORIGIN_NAME_LABEL: Final = "ray.io/originated-from-cr-name"
RAY_ORIGIN_KIND_LABEL: Final = "ray.io/originated-from-crd"
RAY_JOB_KIND: Final = "RayJob"

# Controllers of admission checks that a queue with topology cannot use yet (VAL-07, VAL-08).
MULTIKUEUE_CONTROLLER: Final = f"{GROUP}/multikueue"
PROVISIONING_CONTROLLER: Final = f"{GROUP}/provisioning-request"

# OSMO's pools and workflows. The label on a KAI Topology names its Pool.
OSMO_GROUP: Final = "osmo.rackgate.dev"
OSMO_VERSION: Final = "v1alpha1"
OSMO_POOL_LABEL: Final = f"{OSMO_GROUP}/pool"

# Gangs: the Workload that says which pods of a job belong together.
GANG_GROUP: Final = "scheduling.rackgate.dev"
GANG_VERSION: Final = "v1alpha1"
# On pods: the Workload of gangs that they belong to. The gate holds them until their gang starts;
# the run is the admission under which they were released.
GANG_LINK_ANNOTATION: Final = f"{GANG_GROUP}/workload"
GANG_GATE: Final = f"{GANG_GROUP}/gang"
GANG_RUN_ANNOTATION: Final = f"{GANG_GROUP}/run"
# On started jobs, and on Workloads of Kueue's API of gangs of pods: the gangs of this run, as JSON.
# Changes of the Workload count from the next run.
GANG_RUN_SPEC_ANNOTATION: Final = f"{GANG_GROUP}/run-spec"
# On Workloads of Kueue's API of jobs with child Jobs: pods of gangs that child Jobs have completed,
# as JSON. They are not created again.
GANG_DONE_PODS_ANNOTATION: Final = f"{GANG_GROUP}/done-pods"
# On pods: the group that they belong to, if no label of their controller names it.
GANG_PART_LABEL: Final = f"{GANG_GROUP}/group"
# On pods that no managed job owns: the gang that they were started with. Only the assigner sets it.
GANG_ID_LABEL: Final = f"{GANG_GROUP}/gang-id"
# On the same pods: UID of the Workload of Kueue's API. A gang that runs again gets another one.
GANG_WORKLOAD_UID_ANNOTATION: Final = f"{GANG_GROUP}/workload-uid"
# On pod templates: the native PodGroup of the pods, and the pod label whose value is appended to
# it, if each replica has its own. An admission policy writes the name into the pods.
NATIVE_GROUP_ANNOTATION: Final = f"{GANG_GROUP}/pod-group"
NATIVE_REPLICA_ANNOTATION: Final = f"{GANG_GROUP}/pod-group-replica"
# The start of Kueue adds these to templates. A job that it started has them until it stops.
KUEUE_TEMPLATE_LABELS: Final = (f"{GROUP}/cluster-queue-name", f"{GROUP}/local-queue-name")
# Of an elastic job of Kueue: its first Workload slice. Kueue replaces a slice by a larger one when
# the job grows, and the pods go on to name the slice that the job was started with.
KUEUE_SLICE_CHAIN_ANNOTATION: Final = f"{GROUP}/workload-slice-name"
KUEUE_TEMPLATE_ANNOTATIONS: Final = (UNCONSTRAINED_TOPOLOGY, KUEUE_SLICE_CHAIN_ANNOTATION)
# What a start adds to pod templates, unless their user wrote it.
GANG_TEMPLATE_KEYS: Final = (
    GANG_LINK_ANNOTATION,
    NATIVE_GROUP_ANNOTATION,
    NATIVE_REPLICA_ANNOTATION,
)
# On jobs: the spec of a Workload of gangs as JSON, one for each run; what is a gang in a JobSet.
GANG_TEMPLATE_ANNOTATION: Final = f"{GANG_GROUP}/workload-template"
GANG_PER_ANNOTATION: Final = f"{GANG_GROUP}/gang-per"
# On LeaderWorkerSets: the number of replicas changes, such as by an autoscaler.
GANG_REPLICAS_VARY_ANNOTATION: Final = f"{GANG_GROUP}/replicas-vary"
# On Workloads of Kueue: domains that several PodSets share, as JSON.
GANG_NESTING_ANNOTATION: Final = f"{GANG_GROUP}/nested-topology"
LWS_GROUP: Final = "leaderworkerset.x-k8s.io"
LWS_GROUP_KEY_LABEL: Final = "leaderworkerset.sigs.k8s.io/group-key"

MAX_LEVELS: Final = 16
MAX_LEVEL_KEY: Final = 316


class FieldManager(StrEnum):
    """Field managers of server-side apply: one for each controller."""

    ADMISSION = "rackgate-admission"
    JOB = "rackgate-job-controller"
    QUEUES = "rackgate-queues"
    SLICES = "rackgate-slices"
    RECLAIMABLE = "rackgate-reclaimable-pods"
    OSMO = "rackgate-osmo"
    GANGS = "rackgate-gangs"
    GANG_OWNERS = "rackgate-gang-owners"


class WorkloadCondition(StrEnum):
    """Condition types of a Workload."""

    QUOTA_RESERVED = "QuotaReserved"
    ADMITTED = "Admitted"
    PODS_READY = "PodsReady"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    REQUEUED = "Requeued"
    FINISHED = "Finished"
    DEACTIVATION_TARGET = "DeactivationTarget"
    RESIZE_REQUESTED = "ResizeRequested"
    UNSUPPORTED_FIELDS = "UnsupportedFields"


class ResizeReason(StrEnum):
    """Reason of ResizeRequested: `Resized` when it is False, the others when it is True."""

    SCALING_UP = "ScalingUp"
    WAITING_FOR_SLICES = "WaitingForSlices"
    SCALING_DOWN = "ScalingDown"
    RESIZED = "Resized"


class PendingReason(StrEnum):
    """Why QuotaReserved (and Admitted) is False."""

    NO_MATCHING_FLAVOR = "NoMatchingFlavor"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    TOPOLOGY_PLACEMENT_FAILED = "TopologyPlacementFailed"
    MISCONFIGURED = "Misconfigured"
    SUSPENDED = "Suspended"
    WAITING_FOR_PREEMPTED = "WaitingForPreemptedWorkloads"
    PENDING_EVALUATION = "PendingEvaluation"
    ON_HOLD = "OnHold"
    WAITING_FOR_PODS_READY = "WaitingForPodsReady"
    INTERNAL_ERROR = "InternalError"  # not in Kueue: planning this Workload raised an error
    NO_RESERVATION = "NoReservation"
    UNSATISFIED_CHECKS = "UnsatisfiedAdmissionChecks"
    PENDING_DELAYED_TOPOLOGY = "PendingDelayedTopologyRequests"
    GANG_NOT_READY = "GangNotReady"


class EvictionReason(StrEnum):
    """Why Evicted is True."""

    PREEMPTED = "Preempted"
    CLUSTER_QUEUE_STOPPED = "ClusterQueueStopped"
    LOCAL_QUEUE_STOPPED = "LocalQueueStopped"
    NODE_FAILURES = "NodeFailures"
    DEACTIVATED = "Deactivated"
    DEACTIVATED_INVALID_TOPOLOGY = "DeactivatedDueToInvalidTopology"
    JOB_SUSPENDED = "JobSuspended"
    JOB_CHANGED = "JobChanged"
    PODS_BEYOND_ADMISSION = "PodsBeyondAdmission"
    PODS_READY_TIMEOUT = "PodsReadyTimeout"
    ADMISSION_CHECK = "AdmissionCheck"
    GANG_TIMEOUT = "GangTimeout"
    GANG_MEMBER_LOST = "GangMemberLost"


class UnderlyingCause(StrEnum):
    """Why an eviction with a more general reason happened, as in `status.schedulingStats`."""

    WAIT_FOR_START = "WaitForStart"
    WAIT_FOR_RECOVERY = "WaitForRecovery"
    REQUEUING_LIMIT_EXCEEDED = "RequeuingLimitExceeded"
    MAXIMUM_EXECUTION_TIME_EXCEEDED = "MaximumExecutionTimeExceeded"
    ADMISSION_CHECK = "AdmissionCheck"


class PreemptedReason(StrEnum):
    """Why Preempted is True."""

    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"


class FinishedReason(StrEnum):
    """Why Finished is True."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    FAILED_TO_START = "FailedToStart"


class RequeuedReason(StrEnum):
    """Why Requeued is True."""

    REACTIVATED = "Reactivated"
    CLUSTER_QUEUE_RESTARTED = "ClusterQueueRestarted"
    LOCAL_QUEUE_RESTARTED = "LocalQueueRestarted"
    BACKOFF_FINISHED = "BackoffFinished"


class PoolReason(StrEnum):
    """Reasons of a Pool's Synced condition."""

    IN_STEP = "InStep"
    NO_TOPOLOGY_KEYS = "NoTopologyKeys"
    WAITING_FOR_DELETION = "WaitingForDeletion"
    FOREIGN_TOPOLOGY = "ForeignTopology"
    TOPOLOGY_KIND_MISSING = "TopologyKindMissing"
    TOPOLOGY_REFUSED = "TopologyRefused"
    INVALID_POOL = "InvalidPool"


class QueueReason(StrEnum):
    """Reasons of a queue's Active condition."""

    READY = "Ready"
    TERMINATING = "Terminating"
    STOPPED = "Stopped"
    FLAVOR_NOT_FOUND = "FlavorNotFound"
    TOPOLOGY_NOT_FOUND = "TopologyNotFound"
    COHORT_CYCLE = "CohortCycle"
    ADMISSION_CHECK_NOT_FOUND = "AdmissionCheckNotFound"
    ADMISSION_CHECK_INACTIVE = "AdmissionCheckInactive"
    MULTIPLE_MULTIKUEUE_CHECKS = "MultipleMultiKueueAdmissionChecks"
    MULTIKUEUE_CHECK_PER_FLAVOR = "MultiKueueAdmissionCheckAppliedPerFlavor"
    MULTIKUEUE_WITH_PROVISIONING_REQUEST = "MultiKueueWithProvisioningRequest"
    NOT_SUPPORTED_WITH_TAS = "NotSupportedWithTopologyAwareScheduling"
    CLUSTER_QUEUE_MISSING = "ClusterQueueDoesNotExist"
    CLUSTER_QUEUE_INACTIVE = "ClusterQueueIsInactive"


MAX_NAME: Final = 253
_HASH_DIGITS: Final = 5
_ORDINAL_DIGITS: Final = 10  # an ordinal has fewer


def workload_name(kind: str, group: str, owner: str, uid: str, extra: str = "") -> str:
    """Name of the Workload of an owner: `<kind>-<owner>-<hash>`, at most 253 characters.

    The name depends only on the owner, so creating the Workload twice is harmless.

    Args:
        kind: the owner's kind, such as `Job`; lower-cased in the name.
        group: the owner's API group, such as `batch`; empty for core kinds.
        owner: the owner's name, truncated where needed.
        uid: the owner's UID, so that a recreated owner gets another Workload.
        extra: distinguishes Workloads of one owner, such as the generation of an elastic job.

    Source: Kueue's `GetWorkloadNameForOwnerWithGVK`; both name a job's Workload alike.
    """
    fields = [kind, group, owner, uid] + ([extra] if extra else [])
    # Truncation after a dot would leave an empty DNS label, which is not an object name.
    prefix = f"{kind.lower()}-{owner}"[: MAX_NAME - 1 - _HASH_DIGITS].rstrip(".")
    return f"{prefix}-{_hash_of(fields)}"


def slice_name(parent: str, podset: str, ordinal: int) -> str:
    """Name of a workload slice: `<parent>-<podset>-<ordinal>`, at most 253 characters.

    Too long a name is truncated and gets a hash before the ordinal. `slice_ordinal` reads the
    ordinal back.
    """
    whole, suffix = f"{parent}-{podset}", f"-{ordinal}"
    if len(whole) + len(suffix) > MAX_NAME:
        prefix = whole[: MAX_NAME - len(suffix) - 1 - _HASH_DIGITS].rstrip(".-")
        whole = f"{prefix}-{_hash_of([parent, podset])}"
    return whole + suffix


def slice_ordinal(name: str) -> int:
    """The ordinal in the name of a workload slice; 0 for a name of another form."""
    last = name.rpartition("-")[2]
    is_ordinal = last.isascii() and last.isdecimal() and len(last) < _ORDINAL_DIGITS
    return int(last) if is_ordinal else 0


def _hash_of(fields: list[str]) -> str:
    digest = hashlib.sha1("\n".join(fields).encode(), usedforsecurity=False).hexdigest()
    return digest[:_HASH_DIGITS]
