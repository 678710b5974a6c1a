"""Every group, label, annotation, gate, condition and reason, spelled once.

Sources: KEP-2724 (topology), KEP-77 (elastic jobs) and the `kueue.x-k8s.io` v1beta2 API.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

GROUP: Final = "kueue.x-k8s.io"
VERSION: Final = "v1beta2"
API_VERSION: Final = f"{GROUP}/{VERSION}"
SYSTEM_NAMESPACE: Final = "rackgate-system"
# Nothing is governed here: a cluster must be able to mend itself whatever state Rackgate is in.
# The webhook configurations and policies of deploy/webhook leave out the same namespaces.
UNMANAGED_NAMESPACES: Final = ("kube-system", SYSTEM_NAMESPACE)

# Labels of a job.
QUEUE_LABEL: Final = f"{GROUP}/queue-name"
PRIORITY_CLASS_LABEL: Final = f"{GROUP}/priority-class"

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

# Reserved: written by Rackgate alone, on pod templates and pods.
WORKLOAD_ANNOTATION: Final = f"{GROUP}/workload"
PODSET_LABEL: Final = f"{GROUP}/podset"
TAS_LABEL: Final = f"{GROUP}/tas"
TAS_LABEL_VALUE: Final = "true"
TOPOLOGY_GATE: Final = f"{GROUP}/topology"
ELASTIC_GATE: Final = f"{GROUP}/elastic-job"

# Condition of a pod that waited for a broken node and was set Failed.
TERMINATED_CONDITION: Final = "TerminatedByKueue"
TERMINATED_REASON: Final = "UnschedulableOnAssignedNode"

# Of Workloads.
JOB_UID_LABEL: Final = f"{GROUP}/job-uid"
IN_USE_FINALIZER: Final = f"{GROUP}/resource-in-use"

# Of a RayCluster: the generation at which its operator was asked to look for missing pods.
RECONCILE_REQUESTED_ANNOTATION: Final = "rackgate.dev/reminded-at-generation"

# Of Workloads and jobs that may be resized while they run.
ELASTIC_ANNOTATION: Final = f"{GROUP}/elastic-job"

# Index labels written by Kubernetes.
COMPLETION_INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"

# Labels that JobSet puts on its child Jobs and their pods.
JOBSET_GROUP: Final = "jobset.x-k8s.io"
JOBSET_NAME_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB_LABEL: Final = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX_LABEL: Final = "jobset.sigs.k8s.io/job-index"
JOB_REPLICAS_LABEL: Final = "jobset.sigs.k8s.io/replicatedjob-replicas"
RESTART_ATTEMPT_LABEL: Final = "jobset.sigs.k8s.io/restart-attempt"

# Labels that KubeRay puts on its pods. The two indices are there from 1.5 on, or behind its gate
# RayMultiHostIndexing.
RAY_GROUP: Final = "ray.io"
RAY_CLUSTER_LABEL: Final = "ray.io/cluster"
RAY_NODE_TYPE_LABEL: Final = "ray.io/node-type"
RAY_GROUP_LABEL: Final = "ray.io/group"
RAY_CLEANUP_TYPE: Final = "redis-cleanup"
RAY_REPLICA_INDEX_LABEL: Final = "ray.io/worker-group-replica-index"
RAY_HOST_INDEX_LABEL: Final = "ray.io/replica-host-index"

# Admission checks controllers that a topology queue cannot use yet (VAL-07, VAL-08).
MULTIKUEUE_CONTROLLER: Final = f"{GROUP}/multikueue"
PROVISIONING_CONTROLLER: Final = f"{GROUP}/provisioning-request"

# Of OSMO's pools and workflows. The label says of which Pool a Topology of KAI's is.
OSMO_GROUP: Final = "osmo.rackgate.dev"
OSMO_VERSION: Final = "v1alpha1"
OSMO_POOL_LABEL: Final = f"{OSMO_GROUP}/pool"

MAX_LEVELS: Final = 16
MAX_LEVEL_KEY: Final = 316


class FieldManager(StrEnum):
    """Field managers of server-side apply: one per concern."""

    ADMISSION = "rackgate-admission"
    JOB = "rackgate-job-controller"
    QUEUES = "rackgate-queues"
    SLICES = "rackgate-slices"
    RECLAIMABLE = "rackgate-reclaimable-pods"
    OSMO = "rackgate-osmo"


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


class ResizeReason(StrEnum):
    """Reason of ResizeRequested: of True, but for the last."""

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
    INTERNAL_ERROR = "InternalError"  # ours: a decision could not be made
    NO_RESERVATION = "NoReservation"


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


class PreemptedReason(StrEnum):
    """Why Preempted is True."""

    IN_CLUSTER_QUEUE = "InClusterQueue"


class FinishedReason(StrEnum):
    """Why Finished is True."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    OUT_OF_SYNC = "OutOfSync"
    OWNER_NOT_FOUND = "OwnerNotFound"
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
    ADMISSION_CHECK_NOT_FOUND = "AdmissionCheckNotFound"
    NOT_SUPPORTED_WITH_TAS = "NotSupportedWithTopologyAwareScheduling"
    CLUSTER_QUEUE_MISSING = "ClusterQueueDoesNotExist"
    CLUSTER_QUEUE_INACTIVE = "ClusterQueueIsInactive"
