"""What has no effect is named to whoever writes it; nothing is rejected for it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rackgate.api import names
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.validate import validate
from tests.support.composite_jobs import jobset, raycluster, replicated_job, worker_group
from tests.support.good_manifests import FULL_QUEUE
from tests.support.manifests import manifest
from tests.support.objects import job
from tests.unit.webhook.reviews import review

Object = dict[str, Any]
JOB, JOBSET, RAYCLUSTER = "batch/Job", "jobset.x-k8s.io/JobSet", "ray.io/RayCluster"
CLUSTER_QUEUE = f"{names.GROUP}/ClusterQueue"
BOOST = f"{names.GROUP}/priority-boost"
POLICY = {"migration": {"mode": "TryPreferredFlavors"}}


def warnings(kind: str, found: Object, stored: Object | None = None) -> list[str]:
    answer = validate(review(kind, found, stored))
    assert answer.errors == []
    return answer.warnings


def boosted(found: Object) -> Object:
    found.setdefault("metadata", {}).setdefault("annotations", {})[BOOST] = "5"
    return found


def test_a_field_of_a_queue_without_effect_is_named_with_what_happens_instead() -> None:
    (warning,) = warnings(CLUSTER_QUEUE, FULL_QUEUE)
    assert warning.startswith(
        "spec.concurrentAdmissionPolicy has no effect: a Workload is admitted"
    )


def test_a_check_of_a_controller_that_rackgate_lacks_is_named() -> None:
    spec = {"controllerName": names.MULTIKUEUE_CONTROLLER}
    (warning,) = warnings(
        f"{names.GROUP}/AdmissionCheck", manifest("AdmissionCheck", "mk", spec=spec)
    )
    assert names.MULTIKUEUE_CONTROLLER in warning
    assert "Rackgate has no controller for MultiKueue" in warning


def test_an_update_names_only_what_it_adds() -> None:
    with_policy = manifest("ClusterQueue", "cq", spec={"concurrentAdmissionPolicy": POLICY})
    without = manifest("ClusterQueue", "cq", spec={"queueingStrategy": "StrictFIFO"})
    assert warnings(CLUSTER_QUEUE, with_policy, with_policy) == []
    assert len(warnings(CLUSTER_QUEUE, with_policy, without)) == 1


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (JOB, job("train", 2)),
        (JOBSET, jobset("train", [replicated_job("a", 1)], suspend=True)),
        (RAYCLUSTER, raycluster("train", [worker_group("a", 1)], suspend=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_annotation_without_effect_is_named_on_every_kind(kind: str, found: Object) -> None:
    (warning,) = warnings(kind, boosted(copy.deepcopy(found)))
    assert warning.startswith(f"metadata.annotations[{BOOST}] has no effect: ")


def test_keys_without_effect_in_the_templates_of_a_jobset_are_named_with_their_path() -> None:
    found = jobset("train", [replicated_job("a", 1)], suspend=True)
    child = found["spec"]["replicatedJobs"][0]["template"]
    boosted(child)
    boosted(child["spec"]["template"])
    template = "spec.replicatedJobs[0].template"
    assert [warning.partition(" ")[0] for warning in warnings(JOBSET, found)] == [
        f"{template}.metadata.annotations[{BOOST}]",
        f"{template}.spec.template.metadata.annotations[{BOOST}]",
    ]


def test_a_job_that_is_not_managed_is_not_commented() -> None:
    found = boosted(job("train", 2))
    del found["metadata"]["labels"][names.QUEUE_LABEL]
    assert warnings(JOB, found) == []


def test_an_elastic_job_that_cannot_be_resized_is_named_once() -> None:
    found = job("train", 2)
    found["metadata"].setdefault("annotations", {})[names.ELASTIC_ANNOTATION] = "true"
    found["spec"].pop("completionMode", None)
    named = [*mutate(review(JOB, found)).warnings, *warnings(JOB, found)]
    assert len(named) == 1
