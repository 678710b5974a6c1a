"""Projections of watched objects: what is kept, and what is kept only once."""

from __future__ import annotations

import json
from typing import Any

from rackgate.api import names
from rackgate.wire.core import Pod
from rackgate_assigner.watches import decode_pod
from rackgate_assigner.workload.info import pod_info


def pod(index: int, cpu: str = "1") -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu}, "limits": {"memory": "1Gi"}}
    return {
        "metadata": {
            "name": f"train-{index}",
            "namespace": "team",
            "uid": f"uid-{index}",
            "resourceVersion": str(index),
            "labels": {names.PODSET_LABEL: "main", "app": f"app-{index}"},
            "annotations": {names.WORKLOAD_ANNOTATION: "job-train"},
            "finalizers": ["batch.kubernetes.io/job-tracking"],
            "ownerReferences": [
                {"kind": "Job", "name": "train", "uid": "owner", "controller": True}
            ],
        },
        "spec": {
            "nodeName": f"node-{index}",
            "containers": [{"name": "main", "resources": resources}],
            "nodeSelector": {"rack": "r1"},
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def decoded(found: dict[str, Any]) -> Pod:
    return decode_pod(json.dumps(found).encode())


def test_a_bound_pod_keeps_what_charging_it_needs() -> None:
    row = pod_info(decoded(pod(3)))
    assert row is not None
    assert (row.key, row.node, row.owner_uid) == ("team/train-3", "node-3", "owner")
    assert (row.workload, row.podset) == ("team/job-train", "main")
    assert dict(row.requests) == {"cpu": 1000, "memory": 2**30}


def test_labels_conditions_and_selectors_of_a_pod_are_not_kept() -> None:
    found = decoded(pod(3))
    assert found.metadata.labels == {names.PODSET_LABEL: "main"}
    assert found.metadata.finalizers == ()
    assert found.spec.node_selector == {}
    assert found.status.conditions == ()


def test_pods_of_one_job_share_their_containers_owner_and_marks() -> None:
    one, two = decoded(pod(1)), decoded(pod(2))
    assert one.spec.containers is two.spec.containers
    assert one.metadata.owner_references is two.metadata.owner_references
    assert one.metadata.labels is two.metadata.labels
    assert (one.metadata.uid, one.spec.node_name) != (two.metadata.uid, two.spec.node_name)


def test_pods_that_ask_for_different_amounts_share_no_containers() -> None:
    one, two = decoded(pod(1)), decoded(pod(1, cpu="2"))
    assert one.spec.containers[0].resources.requests == {"cpu": "1"}
    assert two.spec.containers[0].resources.requests == {"cpu": "2"}
