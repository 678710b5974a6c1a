"""Plain pods at their creation: which are prepared, rejected, and left alone."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.jobframework.pod_group.pods import POD_GATES
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.plain_pods import is_plain_pod, plain_pod_created
from rackgate_webhook.admission.review import Review
from tests.unit.govern.patching import apply_patch

GROUP = {names.POD_GROUP_LABEL: "train"}
TOTAL = {names.POD_GROUP_TOTAL_ANNOTATION: "2"}


def pod(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    owner: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "a",
            "labels": {names.QUEUE_LABEL: "queue", **(labels or {})},
            "annotations": annotations or {},
            "ownerReferences": [] if owner is None else [{**owner, "controller": True}],
        },
        "spec": {"containers": [{"name": "main"}], **spec},
    }


def test_a_pod_gets_label_gate_and_finalizer() -> None:
    written = pod(GROUP, TOTAL)
    answer = plain_pod_created(written)
    prepared = apply_patch(written, answer.operations)
    assert prepared["metadata"]["labels"][names.MANAGED_LABEL] == "true"
    assert prepared["metadata"]["finalizers"] == [names.MANAGED_FINALIZER]
    assert prepared["spec"]["schedulingGates"] == [{"name": names.ADMISSION_GATE}]
    assert (answer.errors, answer.warnings) == ([], [])
    assert plain_pod_created(prepared).operations == [], "it may be called again"


@pytest.mark.parametrize(
    ("written", "path"),
    [
        (pod(GROUP), f"metadata.annotations[{names.POD_GROUP_TOTAL_ANNOTATION}]"),
        (
            pod(GROUP, {names.POD_GROUP_TOTAL_ANNOTATION: "0"}),
            f"metadata.annotations[{names.POD_GROUP_TOTAL_ANNOTATION}]",
        ),
        (pod({}, TOTAL), f"metadata.labels[{names.POD_GROUP_LABEL}]"),
        (
            pod({names.POD_GROUP_LABEL: "Bad_Name"}, TOTAL),
            f"metadata.labels[{names.POD_GROUP_LABEL}]",
        ),
        (pod({names.QUEUE_LABEL: ""}), f"metadata.labels[{names.QUEUE_LABEL}]"),
        (pod(nodeName="n1"), "spec.nodeName"),
        (pod(schedulingGates=[{"name": names.TOPOLOGY_GATE}]), "spec.schedulingGates"),
        (
            pod({}, {names.REQUIRED_TOPOLOGY: "a b"}),
            f"metadata.annotations[{names.REQUIRED_TOPOLOGY}]",
        ),
    ],
)
def test_what_could_not_be_queued_is_rejected_by_its_path(
    written: dict[str, Any], path: str
) -> None:
    answer = plain_pod_created(written)
    assert [error.path for error in answer.errors] == [path]
    assert answer.operations == []


def test_what_has_no_effect_is_warned_about() -> None:
    (warning,) = plain_pod_created(pod({}, {names.POD_GROUP_SERVING: "true"})).warnings
    assert names.POD_GROUP_SERVING in warning


@pytest.mark.parametrize(
    "other",
    [
        {"metadata": {"name": "a"}, "spec": {}},
        pod(owner={"apiVersion": "batch/v1", "kind": "Job", "name": "j"}),
        pod({}, {names.WORKLOAD_ANNOTATION: "w"}),
    ],
    ids=["no queue", "of a Job", "of a Workload"],
)
def test_other_pods_are_left_alone(other: dict[str, Any]) -> None:
    assert not is_plain_pod(other)


def test_pods_of_other_controllers_are_plain_pods() -> None:
    assert is_plain_pod(pod(owner={"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r"}))


@pytest.mark.parametrize("enabled", [True, False])
def test_without_the_gate_nothing_is_written(enabled: bool) -> None:
    review = Review("uid", "/Pod", "CREATE", pod(), {})
    assert bool(mutate(review, pod_groups=enabled).operations) is enabled


def test_one_gate_is_enough() -> None:
    assert names.ADMISSION_GATE in POD_GATES
