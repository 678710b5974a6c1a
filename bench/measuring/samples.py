"""Objects as the API server sends them: a training pod of about 5.6 KB, a Job, a review of it."""

from __future__ import annotations

import json
from typing import Any

from rackgate.api import names
from tests.support.objects import BLOCK, HOST, LEVELS, RACK

NAMESPACE = "team-a"
_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")


def container(name: str) -> dict[str, Any]:
    """A trainer with the environment of a distributed run."""
    mounts = {"data": "/data", "checkpoints": "/checkpoints", "scratch": "/scratch"}
    return {
        "name": name,
        "image": "registry.example/research/train:2026.11.1",
        "command": ["torchrun", "--nnodes=64", "--nproc-per-node=8", "train.py"],
        "args": ["--config=/etc/train/config.yaml", "--resume=latest"],
        "env": [
            *(
                {"name": f"TRAIN_SETTING_{index:02}", "value": f"value-of-setting-{index:02}"}
                for index in range(24)
            ),
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "resources": {
            "requests": {"cpu": "96", "memory": "900Gi", "nvidia.com/gpu": "8"},
            "limits": {"memory": "900Gi", "nvidia.com/gpu": "8"},
        },
        "volumeMounts": [{"name": key, "mountPath": path} for key, path in mounts.items()],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _managed(manager: str, subresource: str = "") -> dict[str, Any]:
    """What the API server notes about one writer's fields."""
    own: dict[str, Any] = {f"f:{key}": {} for key in (names.PODSET_LABEL, names.TAS_LABEL, *LEVELS)}
    entry = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}, **own}}, "f:spec": {"f:containers": {}}},
    }
    return {**entry, "subresource": subresource} if subresource else entry


def _metadata(job: str, index: int) -> dict[str, Any]:
    uid = f"{index:08x}-1111-4222-8333-444455556666"
    return {
        "name": f"{job}-{index}-x7k2p",
        "generateName": f"{job}-{index}-",
        "namespace": NAMESPACE,
        "uid": uid,
        "resourceVersion": str(1_000_000 + index),
        "generation": 2,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {
            "batch.kubernetes.io/controller-uid": "aaaabbbb-cccc-4ddd-8eee-ffff00001111",
            names.COMPLETION_INDEX_LABEL: str(index),
            "batch.kubernetes.io/job-name": job,
            "controller-uid": "aaaabbbb-cccc-4ddd-8eee-ffff00001111",
            "job-name": job,
            names.PODSET_LABEL: "main",
            names.TAS_LABEL: "true",
        },
        "annotations": {
            names.COMPLETION_INDEX_LABEL: str(index),
            names.REQUIRED_TOPOLOGY: RACK,
            names.WORKLOAD_ANNOTATION: f"job-{job}-1a2b3",
        },
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": job,
                "uid": "aaaabbbb-cccc-4ddd-8eee-ffff00001111",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
        "finalizers": ["batch.kubernetes.io/job-tracking"],
        "managedFields": [
            _managed("kube-controller-manager"),
            _managed("rackgate-ungater"),
            _managed("kubelet", "status"),
        ],
    }


def pod(index: int, *, bound: bool = True) -> dict[str, Any]:
    """A pod of a governed Job: on its node, or still gated."""
    node = f"node-{index % 640:04}"
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [container("main")],
        "nodeSelector": {BLOCK: "block-1", RACK: f"rack-{index % 20:02}", HOST: node},
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "training-data"}},
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}},
            {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
        ],
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "serviceAccountName": "default",
        "priority": 0,
        "terminationGracePeriodSeconds": 30,
    }
    if bound:
        spec["nodeName"] = node
    else:
        spec["schedulingGates"] = [{"name": names.TOPOLOGY_GATE}]
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}
        for kind in (*_CONDITIONS, "PodScheduled")
    ]
    status = {"phase": "Running" if bound else "Pending", "qosClass": "Burstable"}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": _metadata("train", index),
        "spec": spec,
        "status": {**status, "conditions": conditions, "podIP": "10.1.2.3"},
    }


def pod_event(index: int, *, bound: bool = True) -> bytes:
    """One line of a watch."""
    event = {"type": "MODIFIED", "object": pod(index, bound=bound)}
    return json.dumps(event, separators=(",", ":")).encode()


def training_job() -> dict[str, Any]:
    """A Job as a user creates it, with the fields that the API server fills in."""
    template = {
        "metadata": {"annotations": {names.REQUIRED_TOPOLOGY: RACK}},
        "spec": {
            key: value
            for key, value in pod(0)["spec"].items()
            if key not in ("nodeName", "nodeSelector", "priority")
        },
    }
    return {
        "kind": "Job",
        "apiVersion": "batch/v1",
        "metadata": {
            "name": "train",
            "namespace": NAMESPACE,
            "uid": "aaaabbbb-cccc-4ddd-8eee-ffff00001111",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {names.QUEUE_LABEL: "research"},
        },
        "spec": {
            "parallelism": 64,
            "completions": 64,
            "completionMode": "Indexed",
            "backoffLimit": 6,
            "suspend": False,
            "template": template,
        },
    }


def review(job: dict[str, Any]) -> bytes:
    """The AdmissionReview of a Job's creation."""
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "batch", "version": "v1", "kind": "Job"},
        "resource": {"group": "batch", "version": "v1", "resource": "jobs"},
        "name": "train",
        "namespace": NAMESPACE,
        "operation": "CREATE",
        "userInfo": {"username": "user", "groups": ["system:authenticated"]},
        "object": job,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    document = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(document, separators=(",", ":")).encode()
