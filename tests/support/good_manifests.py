"""Manifests with every field, which the API server must accept and store whole."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.manifests import (
    ASSIGNMENT,
    BLOCK,
    GROUP,
    HOSTNAME,
    NOW,
    RACK,
    Manifest,
    assigned,
    cluster_queue,
    condition,
    flavor,
    group,
    manifest,
    podset,
    topology,
    workload,
)

FULL_QUEUE = cluster_queue(
    cohortName="team",
    namespaceSelector={
        "matchLabels": {"a": "b"},
        "matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}],
    },
    queueingStrategy="StrictFIFO",
    stopPolicy="Hold",
    flavorFungibility={
        "whenCanBorrow": "TryNextFlavor",
        "whenCanPreempt": "TryNextFlavor",
        "preference": "PreemptionOverBorrowing",
    },
    preemption={
        "reclaimWithinCohort": "Any",
        "withinClusterQueue": "LowerOrNewerEqualPriority",
        "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": -5},
    },
    resourceGroups=[
        group(
            "tas",
            "spot",
            resources=("cpu", "memory"),
            nominalQuota=10,
            borrowingLimit="1e3",
            lendingLimit="100m",
        ),
        group("gpus", resources=("nvidia.com/gpu",), nominalQuota="1.5Ki"),
    ],
    admissionChecksStrategy={"admissionChecks": [{"name": "pr", "onFlavors": ["tas"]}]},
    fairSharing={"weight": "750m"},
    admissionScope={"admissionMode": "UsageBasedAdmissionFairSharing"},
    concurrentAdmissionPolicy={
        "migration": {
            "mode": "TryPreferredFlavors",
            "constraints": {"lastAcceptableFlavorName": "spot"},
        }
    },
)
FULL_WORKLOAD = workload(
    podset(
        minCount=2,
        topologyRequest={
            "required": RACK,
            "podIndexLabel": "batch.kubernetes.io/job-completion-index",
            "subGroupIndexLabel": "jobset.sigs.k8s.io/job-index",
            "subGroupCount": 3,
            "podSetGroupName": "g",
            "podSetSliceRequiredTopology": HOSTNAME,
            "podSetSliceSize": 2,
        },
    ),
    podset(
        "workers",
        8,
        topologyRequest={
            "preferred": BLOCK,
            "podsetSliceRequiredTopologyConstraints": [
                {"topology": BLOCK, "size": 8},
                {"topology": RACK, "size": 4},
                {"topology": HOSTNAME, "size": 2},
            ],
        },
    ),
    podset("loose", 0, topologyRequest={"unconstrained": True}),
    queueName="lq",
    priorityClassRef={"group": GROUP, "kind": "WorkloadPriorityClass", "name": "high"},
    priority=-2147483648,
    active=False,
    maximumExecutionTimeSeconds=60,
    preemptionGates=[{"name": "kueue.x-k8s.io/multikueue"}],
)
FULL_WORKLOAD["metadata"]["finalizers"] = [f"{GROUP}/resource-in-use"]
FULL_WORKLOAD_STATUS: Manifest = {
    "conditions": [condition("QuotaReserved", "False", "WaitingForQuota")],
    "requeueState": {"count": 1, "requeueAt": NOW},
    "reclaimablePods": [{"name": "main", "count": 1}],
    "resourceRequests": [{"name": "main", "resources": {"cpu": "2"}}],
    "admissionChecks": [
        {
            "name": "pr",
            "state": "Retry",
            "message": "later",
            "lastTransitionTime": NOW,
            "requeueAfterSeconds": 5,
            "retryCount": 2,
            "podSetUpdates": [
                {
                    "name": "main",
                    "labels": {"a": "b"},
                    "annotations": {"c": "d"},
                    "nodeSelector": {"e": "f"},
                    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
                }
            ],
        }
    ],
    "unhealthyNodes": [{"name": "node-1.example"}],
    "schedulingStats": {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": 2}]},
    "accumulatedPastExecutionTimeSeconds": 7,
    "nominatedClusterNames": ["a", "b"],
    "preemptionGates": [{"name": "g", "position": "Open", "lastTransitionTime": NOW}],
}
QUEUE_STATUS: Manifest = {
    "conditions": [condition("Active")],
    "flavorsReservation": [{"name": "tas", "resources": [{"name": "cpu", "total": "4"}]}],
    "flavorsUsage": [{"name": "tas", "resources": [{"name": "cpu", "total": 0}]}],
    "pendingWorkloads": 0,
    "reservingWorkloads": 1,
    "admittedWorkloads": 1,
    "fairSharing": {
        "weightedShare": 9223372036854775807,
        "admissionFairSharingStatus": {"consumedResources": {"cpu": "1"}, "lastUpdate": NOW},
    },
}


@dataclass(frozen=True)
class Good:
    """A manifest (and status) that must be accepted and stored whole."""

    name: str
    manifest: Manifest
    status: Manifest | None = None


GOOD = [
    Good("topology", topology(BLOCK, RACK, HOSTNAME)),
    Good("topology of sixteen levels", topology(*(f"level-{i}" for i in range(16)), name="deep")),
    Good("topology with the longest key", topology(f"{'a' * 252}/{'b' * 63}", name="long")),
    Good("topology of v1beta1", topology(BLOCK, RACK, version="v1beta1", name="old")),
    Good(
        "flavor",
        flavor(
            nodeLabels={"cloud.provider.com/node-group": "tas", "empty": ""},
            nodeTaints=[{"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": NOW}],
            tolerations=[
                {"operator": "Exists"},
                {"key": "k", "effect": "NoExecute", "tolerationSeconds": 5, "value": "v"},
            ],
            topologyName="dc",
        ),
    ),
    Good("flavor without spec", manifest("ResourceFlavor", "plain")),
    Good("cluster queue with every field", FULL_QUEUE, QUEUE_STATUS),
    Good("cluster queue with least", cluster_queue("least", namespaceSelector={})),
    Good(
        "local queue",
        manifest(
            "LocalQueue",
            "lq",
            spec={"clusterQueue": "cq", "stopPolicy": "HoldAndDrain", "fairSharing": {"weight": 2}},
        ),
        QUEUE_STATUS,
    ),
    Good(
        "cohort",
        manifest(
            "Cohort",
            "team",
            spec={
                "parentName": "org",
                "resourceGroups": [group("tas", borrowingLimit="1")],
                "fairSharing": {"weight": "1"},
            },
        ),
        {"fairSharing": {"weightedShare": 5}},
    ),
    Good(
        "priority class",
        manifest("WorkloadPriorityClass", "high", value=-7, description="a word"),
    ),
    Good(
        "admission check",
        manifest(
            "AdmissionCheck",
            "pr",
            spec={
                "controllerName": f"{GROUP}/provisioning-request",
                "parameters": {"apiGroup": GROUP, "kind": "ProvisioningRequestConfig", "name": "p"},
            },
        ),
        {"conditions": [condition("Active")]},
    ),
    Good("workload with every field", FULL_WORKLOAD, FULL_WORKLOAD_STATUS),
    Good("workload with an assignment", workload(name="placed"), assigned(ASSIGNMENT)),
]
