from __future__ import annotations

from typing import Any

import pytest

from rackgate.api.unsupported import unsupported_fields
from tests.support.good_manifests import FULL_QUEUE, FULL_WORKLOAD
from tests.support.manifests import cluster_queue, group, manifest, workload


def test_everything_without_effect_in_a_cluster_queue_is_named() -> None:
    assert unsupported_fields("ClusterQueue", FULL_QUEUE) == [
        "spec.admissionScope",
        "spec.concurrentAdmissionPolicy",
        "spec.fairSharing",
        "spec.flavorFungibility.whenCanBorrow",
        "spec.flavorFungibility.preference",
    ]


def test_everything_without_effect_in_a_workload_is_named() -> None:
    assert unsupported_fields("Workload", FULL_WORKLOAD) == [
        "spec.maximumExecutionTimeSeconds",
        "spec.podSets[0].minCount",
        "spec.preemptionGates",
    ]


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
        {"kind": "Job", "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "lq"}}},
        {"kind": "Job", "metadata": None},
        {"kind": "Workload", "spec": {"podSets": [None, "x"]}},
        {"kind": "ClusterQueue", "spec": ["x"]},
        {"kind": "Pod"},
    ],
)
def test_what_has_its_effect_or_is_not_set_is_not_named(found: dict[str, Any]) -> None:
    assert unsupported_fields(found["kind"], found) == []


def test_marks_of_a_job_without_effect_are_named() -> None:
    job = {
        "metadata": {
            "labels": {"kueue.x-k8s.io/max-exec-time-seconds": "5"},
            "annotations": {"kueue.x-k8s.io/job-min-parallelism": "2"},
        }
    }
    assert unsupported_fields("Job", job) == [
        'metadata.labels["kueue.x-k8s.io/max-exec-time-seconds"]',
        'metadata.annotations["kueue.x-k8s.io/job-min-parallelism"]',
    ]


def test_a_mark_of_elasticity_has_its_effect_on_a_raycluster_alone() -> None:
    key = "kueue.x-k8s.io/elastic-job"
    found = {"metadata": {"annotations": {key: "true"}}}
    assert unsupported_fields("RayCluster", found) == []
    assert unsupported_fields("JobSet", found) == [f'metadata.annotations["{key}"]']


def test_a_cohort_is_named_by_what_it_sets() -> None:
    cohort = manifest("Cohort", "team", spec={"parentName": "org", "resourceGroups": []})
    assert unsupported_fields("Cohort", cohort) == ["spec.parentName"]


def test_a_share_of_a_local_queue_is_named() -> None:
    queue = manifest("LocalQueue", "lq", spec={"fairSharing": {"weight": "2"}})
    assert unsupported_fields("LocalQueue", queue) == ["spec.fairSharing"]
