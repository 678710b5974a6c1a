from __future__ import annotations

from typing import Any

import pytest

from rackgate.api.unsupported import (
    WITHOUT_A_WARNING,
    admission_fair_sharing_fields,
    unsupported_fields,
    unsupported_in_template,
)
from tests.support.good_manifests import FULL_QUEUE, FULL_WORKLOAD
from tests.support.manifests import cluster_queue, group, manifest, workload

ELASTIC = "kueue.x-k8s.io/elastic-job"


def paths(kind: str, obj: dict[str, Any], **more: Any) -> list[str]:
    return [one.path for one in unsupported_fields(kind, obj, **more)]


def test_everything_without_effect_in_a_cluster_queue_is_named() -> None:
    assert paths("ClusterQueue", FULL_QUEUE) == ["spec.concurrentAdmissionPolicy"]


def test_everything_without_effect_in_a_workload_is_named() -> None:
    assert paths("Workload", FULL_WORKLOAD) == ["spec.preemptionGates"]


@pytest.mark.parametrize(
    "found",
    [
        cluster_queue(
            resourceGroups=[group("tas")],
            flavorFungibility={
                "whenCanBorrow": "MayStopSearch",
                "whenCanPreempt": "MayStopSearch",
            },
            fairSharing=None,
        ),
        workload(queueName="lq", preemptionGates=[]),
        manifest("LocalQueue", "lq", spec={"clusterQueue": "cq"}),
        manifest("Topology", "dc", spec={"levels": []}),
        manifest("Cohort", "team"),
        manifest("AdmissionCheck", "budget", spec={"controllerName": "acme.example/budget"}),
        {"kind": "Job", "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "lq"}}},
        {"kind": "Job", "metadata": {"annotations": {"kueue.x-k8s.io/stopping": "true"}}},
        {"kind": "Job", "metadata": None},
        {"kind": "Workload", "spec": {"podSets": [None, "x"]}},
        {"kind": "ClusterQueue", "spec": ["x"]},
        {"kind": "Pod"},
    ],
)
def test_what_has_its_effect_or_is_not_set_is_not_named(found: dict[str, Any]) -> None:
    assert unsupported_fields(found["kind"], found) == []


def test_keys_of_a_job_without_effect_are_named() -> None:
    job = {
        "metadata": {
            "labels": {
                "kueue.x-k8s.io/prebuilt-workload-name": "w",
                "kueue.x-k8s.io/max-exec-time-seconds": "5",
                "team": "vision",
            },
            "annotations": {
                "kueue.x-k8s.io/job-min-parallelism": "2",
                "kueue.x-k8s.io/admission-gated-by": "x",
                "provreq.kueue.x-k8s.io/ValidUntilSeconds": "60",
            },
        }
    }
    label = "metadata.labels[kueue.x-k8s.io/prebuilt-workload-name]"
    gated = "metadata.annotations[kueue.x-k8s.io/admission-gated-by]"
    least = "metadata.annotations[kueue.x-k8s.io/job-min-parallelism]"
    provisioning = "metadata.annotations[provreq.kueue.x-k8s.io/ValidUntilSeconds]"
    assert paths("Job", job) == [label, gated, provisioning]
    assert paths("JobSet", job) == [label, gated, least, provisioning]


def test_the_annotation_of_elastic_jobs_has_its_effect_where_jobs_are_resized() -> None:
    found = {"metadata": {"annotations": {ELASTIC: "true"}}}
    named = [f"metadata.annotations[{ELASTIC}]"]
    assert paths("RayCluster", found) == []
    assert paths("JobSet", found) == named
    assert paths("Job", found) == named
    assert paths("Job", found, elastic_kinds=["Job"]) == []


def test_a_key_of_kueue_that_no_list_has_is_named_and_the_nearest_one_is_suggested() -> None:
    template = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-requird-topology": "rack"}}}
    (found,) = unsupported_in_template(template, "spec.template")
    assert found.path.startswith("spec.template.metadata.annotations[")
    assert found.instead == 'did you mean "kueue.x-k8s.io/podset-required-topology"?'
    job = {"metadata": {"labels": {"kueue.x-k8s.io/of-the-future": "x"}}}
    (unknown,) = unsupported_fields("Job", job)
    assert unknown.instead == "Rackgate does not know it in this place"


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("kueue.x-k8s.io/podset_required_topology", "kueue.x-k8s.io/podset-required-topology"),
        ("kueue.k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-required-topology"),
        ("rackgate.dev/podset-required-topology", ""),
    ],
)
def test_a_key_of_a_domain_like_kueues_and_of_rackgate_is_named(key: str, near: str) -> None:
    template = {"metadata": {"annotations": {key: "rack", "example.com/a": "b"}}}
    (found,) = unsupported_in_template(template, "spec.template")
    assert found.path == f"spec.template.metadata.annotations[{key}]"
    assert near in found.instead


@pytest.mark.parametrize("key", sorted(WITHOUT_A_WARNING))
def test_what_a_playground_and_the_assigner_write_is_not_named(key: str) -> None:
    template = {"metadata": {"annotations": {key: "5"}}}
    assert unsupported_in_template(template, "spec.template") == []
    assert unsupported_fields("Job", template) == []


def test_devices_of_claims_are_named_because_no_quota_counts_them() -> None:
    template = {"spec": {"resourceClaims": [{"name": "gpu"}]}}
    (found,) = unsupported_in_template(template, "spec.template")
    assert found.path == "spec.template.spec.resourceClaims"


def test_devices_of_claims_are_named_in_a_workload_that_a_user_wrote() -> None:
    found = workload()
    template = found["spec"]["podSets"][0]["template"]
    template["spec"]["resourceClaims"] = [{"name": "gpu"}]
    assert paths("Workload", found) == ["spec.podSets[0].template.spec.resourceClaims"]


@pytest.mark.parametrize("controller", ["multikueue", "provisioning-request"])
def test_a_check_of_kueues_own_controllers_is_named(controller: str) -> None:
    spec = {"controllerName": f"kueue.x-k8s.io/{controller}", "retryDelayMinutes": 5}
    found = paths("AdmissionCheck", manifest("AdmissionCheck", "c", spec=spec))
    assert found == [
        f"spec.controllerName {spec['controllerName']}",
        "spec.retryDelayMinutes",
    ]


@pytest.mark.parametrize(
    ("kind", "spec", "named"),
    [
        ("LocalQueue", {"fairSharing": {"weight": "2"}}, ["spec.fairSharing.weight"]),
        ("LocalQueue", {"fairSharing": {"weight": None}}, []),
        (
            "ClusterQueue",
            {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}},
            ["spec.admissionScope"],
        ),
        ("ClusterQueue", {"admissionScope": {"admissionMode": "NoAdmissionFairSharing"}}, []),
        ("ClusterQueue", {"fairSharing": {"weight": "2"}}, []),
        ("LocalQueue", {"fairSharing": ["x"]}, []),
    ],
)
def test_fields_that_only_admission_fair_sharing_reads_are_named(
    kind: str, spec: dict[str, Any], named: list[str]
) -> None:
    found = admission_fair_sharing_fields(kind, manifest(kind, "x", spec=spec))
    assert [one.path for one in found] == named
