"""Whose pod is it: a claim counts only if the pod's owner is the admitted job itself."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.jobframework.errors import MalformedError
from rackgate.jobframework.injection import PodTemplate, injection_errors
from rackgate.jobframework.managed import is_managed, is_pod_of, is_tas_pod, podset_of_pod, queue_of
from rackgate.jobframework.templates import reserved_errors, strip_reserved
from tests.support.objects import RACK


@pytest.mark.field_note("U8", "W9")
@pytest.mark.requirement("HOOK-09")
def test_a_pod_is_placed_by_topology_if_the_job_with_the_assignment_controls_it() -> None:
    assert is_tas_pod("job-uid", "job-uid", assignment={})
    assert not is_tas_pod("another-job", "job-uid", assignment={})
    assert not is_tas_pod("job-uid", "job-uid", assignment=None)
    assert not is_tas_pod("", "", assignment={}), "no owner is nobody's owner"


def test_a_claim_needs_both_marks() -> None:
    annotations, labels = {names.WORKLOAD_ANNOTATION: "w"}, {names.PODSET_LABEL: "main"}
    assert podset_of_pod(annotations, labels) == ("w", "main")
    assert podset_of_pod(annotations, {}) is None
    assert podset_of_pod({}, labels) is None


@pytest.mark.requirement("OPS-14")
def test_a_pod_of_kueue_that_names_only_the_first_slice_claims_that_one() -> None:
    """Kueue writes the name of the Workload only with its gate TopologyAwareScheduling."""
    first, labels = {names.KUEUE_SLICE_CHAIN_ANNOTATION: "first"}, {names.PODSET_LABEL: "main"}
    assert podset_of_pod(first, labels) == ("first", "main")
    assert podset_of_pod(first, {}) is None
    both = {**first, names.WORKLOAD_ANNOTATION: "second"}
    assert podset_of_pod(both, labels) == ("second", "main")


@pytest.mark.requirement("OPS-14")
def test_a_pod_of_kueue_belongs_to_the_slices_after_the_one_that_it_names() -> None:
    chain = names.KUEUE_SLICE_CHAIN_ANNOTATION
    pod = {names.WORKLOAD_ANNOTATION: "second", chain: "first"}
    assert is_pod_of(pod, "second", {})
    assert is_pod_of(pod, "third", {chain: "first"})
    assert not is_pod_of(pod, "third", {chain: "another"})
    assert not is_pod_of(pod, "third", {})
    assert is_pod_of({chain: "first"}, "first", {})
    assert not is_pod_of({names.WORKLOAD_ANNOTATION: "second"}, "third", {})


def test_the_queue_label_governs_even_when_empty() -> None:
    found: dict[str, Any] = {"metadata": {"labels": {names.QUEUE_LABEL: ""}}}
    assert is_managed(found)
    assert queue_of(found) == ""
    assert queue_of({"metadata": {}}) is None


def test_labels_that_are_no_map_are_malformed() -> None:
    with pytest.raises(MalformedError, match=r"metadata\.labels: expected an object, found list"):
        is_managed({"metadata": {"labels": []}})


@pytest.mark.requirement("HOOK-09")
def test_each_reserved_key_is_rejected_with_its_path() -> None:
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
    marks: dict[str, Any] = {
        "metadata": {
            "labels": {names.PODSET_LABEL: "main"},
            "annotations": {names.REQUIRED_TOPOLOGY: RACK},
        },
        "spec": {"schedulingGates": [{"name": names.TOPOLOGY_GATE}]},
    }
    assert injection_errors(PodTemplate("main", "", "", marks)) == []
    assert len(injection_errors(PodTemplate("other", "", "", marks))) == 1
    assert len(reserved_errors(marks, "")) == 2
    del marks["metadata"]["annotations"]
    assert len(injection_errors(PodTemplate("main", "", "", marks))) == 2


def test_the_elastic_marks_are_right_on_an_elastic_template_alone() -> None:
    marks: dict[str, Any] = {
        "metadata": {
            "labels": {names.PODSET_LABEL: "head"},
            "annotations": {names.ELASTIC_ANNOTATION: "true"},
        },
        "spec": {"schedulingGates": [{"name": names.ELASTIC_GATE}]},
    }
    assert injection_errors(PodTemplate("head", "", "", marks, elastic=True)) == []
    assert len(injection_errors(PodTemplate("head", "", "", marks))) == 3
    marks["metadata"]["annotations"][names.ELASTIC_ANNOTATION] = "false"
    (error,) = injection_errors(PodTemplate("head", "", "", marks, elastic=True))
    assert error.path == f"metadata.annotations[{names.ELASTIC_ANNOTATION}]"
