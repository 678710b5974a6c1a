"""Whose pod is it: a claim counts only if the pod's owner is the admitted job itself."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.govern.errors import MalformedError
from rackgate.govern.predicates import is_governed, is_tas_pod, podset_of_pod, queue_of
from rackgate.govern.templates import reserved_errors, strip_reserved
from rackgate.wire.core import Meta, OwnerReference, Pod
from rackgate.wire.kueue import Admission, PodSetAssignment, Workload, WorkloadStatus

ASSIGNMENT: dict[str, Any] = {"levels": ["kubernetes.io/hostname"], "slices": []}


def workload(assignment: dict[str, Any] | None = ASSIGNMENT, owner: str = "job-uid") -> Workload:
    owners = (OwnerReference(uid=owner, kind="Job", controller=True),) if owner else ()
    admission = Admission("cq", (PodSetAssignment("main", topology_assignment=assignment),))
    return Workload(
        Meta(name="w", namespace="ns", owner_references=owners),
        status=WorkloadStatus(admission=admission),
    )


def pod(name: str = "w", podset: str = "main", owner: str = "job-uid", ns: str = "ns") -> Pod:
    return Pod(
        Meta(
            name="p",
            namespace=ns,
            labels={names.PODSET_LABEL: podset},
            annotations={names.WORKLOAD_ANNOTATION: name},
            owner_references=(OwnerReference(uid=owner, controller=True),),
        )
    )


def test_a_pod_of_the_admitted_job_is_placed_by_topology() -> None:
    assert is_tas_pod(pod(), workload())


@pytest.mark.field_note("W9")
@pytest.mark.requirement("HOOK-09")
@pytest.mark.parametrize(
    "claimed",
    [pod(name="other"), pod(podset="other"), pod(owner="another-job"), pod(ns="other"), Pod()],
)
def test_a_claim_that_does_not_hold_makes_no_tas_pod(claimed: Pod) -> None:
    assert not is_tas_pod(claimed, workload())


@pytest.mark.field_note("W9")
def test_a_workload_without_owner_or_assignment_has_no_tas_pods() -> None:
    assert not is_tas_pod(pod(owner=""), workload(owner=""))
    assert not is_tas_pod(pod(), workload(assignment=None))
    assert not is_tas_pod(pod(), Workload(workload().metadata))
    assert not is_tas_pod(pod(), None)


def test_a_claim_needs_both_marks() -> None:
    annotations, labels = {names.WORKLOAD_ANNOTATION: "w"}, {names.PODSET_LABEL: "main"}
    assert podset_of_pod(annotations, labels) == ("w", "main")
    assert podset_of_pod(annotations, {}) is None
    assert podset_of_pod({}, labels) is None


def test_the_queue_label_governs_even_when_empty() -> None:
    found: dict[str, Any] = {"metadata": {"labels": {names.QUEUE_LABEL: ""}}}
    assert is_governed(found)
    assert queue_of(found) == ""
    assert queue_of({"metadata": {}}) is None


def test_labels_that_are_no_map_are_malformed() -> None:
    with pytest.raises(MalformedError, match=r"metadata\.labels: expected an object, found list"):
        is_governed({"metadata": {"labels": []}})


@pytest.mark.requirement("HOOK-09")
def test_each_reserved_key_is_refused_with_its_path() -> None:
    template = {
        "metadata": {
            "labels": {names.PODSET_LABEL: "x", names.TAS_LABEL: "true", "app": "a"},
            "annotations": {names.WORKLOAD_ANNOTATION: "w"},
        },
        "spec": {"schedulingGates": [{"name": "other"}, {"name": names.TOPOLOGY_GATE}]},
    }
    assert [error.path for error in reserved_errors(template, "spec.template")] == [
        f"spec.template.metadata.labels[{names.PODSET_LABEL}]",
        f"spec.template.metadata.labels[{names.TAS_LABEL}]",
        f"spec.template.metadata.annotations[{names.WORKLOAD_ANNOTATION}]",
        "spec.template.spec.schedulingGates[1].name",
    ]
    assert reserved_errors(strip_reserved(template), "spec.template") == []


def test_marks_of_creation_are_right_where_the_template_asks() -> None:
    marks = {
        "metadata": {"labels": {names.PODSET_LABEL: "main"}},
        "spec": {"schedulingGates": [{"name": names.TOPOLOGY_GATE}]},
    }
    assert reserved_errors(marks, "", podset="main") == []
    assert len(reserved_errors(marks, "", podset="other")) == 1
    assert len(reserved_errors(marks, "")) == 2
