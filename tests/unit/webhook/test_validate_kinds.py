"""Refusals of JobSets and RayClusters: the path leads to the template that is wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rackgate.api import names
from rackgate_webhook.admission.validate import validate
from tests.support.composite_jobs import jobset, marks, raycluster, replicated_job, worker_group
from tests.support.objects import BLOCK, RACK, job
from tests.unit.webhook.reviews import review
from tests.unit.webhook.test_mutate_kinds import (
    ASKS,
    ELASTIC_KINDS,
    JOB,
    JOBSET,
    OWNERS,
    RAYCLUSTER,
    Object,
    asked,
    mutated,
    ray,
    templates,
    with_spec,
)

JOBS = "spec.replicatedJobs"
GROUPS = "spec.workerGroupSpecs"


def refusals(kind: str, found: Object, stored: Object | None = None) -> list[str]:
    admission_response = validate(review(kind, found, stored), elastic_kinds=ELASTIC_KINDS)
    return [str(error) for error in admission_response.errors]


@pytest.mark.parametrize("kind", [JOBSET, RAYCLUSTER])
def test_what_the_webhook_itself_made_is_accepted(kind: str) -> None:
    assert refusals(kind, mutated(kind, asked(kind))) == []


@pytest.mark.requirement("HOOK-09")
@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("metadata", "labels", {names.TAS_LABEL: "true"}),
        ("metadata", "labels", {names.PODSET_LABEL: "other"}),
        ("metadata", "annotations", {names.WORKLOAD_ANNOTATION: "w"}),
        ("metadata", "annotations", {names.ELASTIC_ANNOTATION: "true"}),
        ("spec", "schedulingGates", [{"name": names.TOPOLOGY_GATE}]),
        ("spec", "schedulingGates", [{"name": names.ELASTIC_GATE}]),
    ],
)
def test_reserved_keys_in_any_template_are_rejected(part: str, field: str, value: Any) -> None:
    found = jobset("train", [replicated_job("a", 1), replicated_job("b", 1)], suspend=True)
    templates(found)[1].setdefault(part, {})
    inner = found["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
    inner.setdefault(part, {})[field] = value
    (error,) = refusals(JOBSET, found)
    assert error.startswith(f"{JOBS}[1].template.spec.template.{part}.{field}[")
    cluster = ray(worker_group("a", 1), worker_group("b", 1), suspend=True)
    cluster["spec"]["headGroupSpec"]["template"].setdefault(part, {})[field] = value
    (error,) = refusals(RAYCLUSTER, cluster)
    assert error.startswith(f"spec.headGroupSpec.template.{part}.{field}[")


@pytest.mark.requirement("VAL-12")
def test_a_bad_request_is_rejected_at_its_template() -> None:
    found = jobset(
        "train", [replicated_job("w", 2, annotations=marks(required=RACK, preferred=RACK))]
    )
    (error,) = refusals(JOBSET, mutated(JOBSET, found))
    where = f"{JOBS}[0].template.spec.template.metadata.annotations: "
    assert error.startswith(f"{where}more than one topology request")
    cluster = ray(worker_group("w", 1, annotations=marks(required="a//b")))
    (error,) = refusals(RAYCLUSTER, mutated(RAYCLUSTER, cluster))
    path = f"{GROUPS}[0].template.metadata.annotations[{names.REQUIRED_TOPOLOGY}]: "
    assert error.startswith(path)


@pytest.mark.field_note("P5")
def test_slices_divide_all_pods_of_a_podset_but_only_one_replica_of_an_elastic_one() -> None:
    slices = {names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "4"}
    parts = [replicated_job("w", 4, replicas=3, annotations=slices)]
    assert refusals(JOBSET, mutated(JOBSET, jobset("train", parts))) == []
    parts = [replicated_job("w", 3, replicas=2, annotations=slices)]
    (error,) = refusals(JOBSET, mutated(JOBSET, jobset("train", parts)))
    assert "slices of 4 pods do not divide the podset's 6 pods" in error
    eight = worker_group("w", 8, annotations=slices)
    assert refusals(RAYCLUSTER, mutated(RAYCLUSTER, ray(eight))) == []
    (error,) = refusals(RAYCLUSTER, mutated(RAYCLUSTER, ray(eight, autoscaling=True)))
    assert "do not divide the podset's 1 pods" in error
    hosts = worker_group("w", 2, hosts=8, annotations=slices)
    assert refusals(RAYCLUSTER, mutated(RAYCLUSTER, ray(hosts, autoscaling=True))) == []


def test_what_no_workload_can_carry_is_rejected() -> None:
    many = [worker_group(f"w{i}", 1) for i in range(18)]
    (error,) = refusals(RAYCLUSTER, mutated(RAYCLUSTER, ray(*many)))
    assert error.startswith(f"{GROUPS}: 18 worker groups")


@pytest.mark.requirement("HOOK-11")
def test_the_request_of_a_running_cluster_cannot_change() -> None:
    stored = with_spec(mutated(RAYCLUSTER, ray()), suspend=False)
    found = copy.deepcopy(stored)
    annotations = found["spec"]["workerGroupSpecs"][0]["template"]["metadata"]["annotations"]
    annotations[names.REQUIRED_TOPOLOGY] = BLOCK
    (error,) = refusals(RAYCLUSTER, found, stored)
    path = f"{GROUPS}[0].template.metadata.annotations[{names.REQUIRED_TOPOLOGY}]: "
    assert error.startswith(path)
    assert refusals(RAYCLUSTER, with_spec(found, suspend=True), stored), "in no write of both"
    assert (
        refusals(RAYCLUSTER, with_spec(found, suspend=True), with_spec(stored, suspend=True)) == []
    )


@pytest.mark.requirement("SLC-02")
def test_a_running_job_stays_elastic_or_not() -> None:
    stored = with_spec(mutated(RAYCLUSTER, ray()), suspend=False)
    found = with_spec(stored, enableInTreeAutoscaling=True)
    (error,) = refusals(RAYCLUSTER, found, stored)
    assert error.startswith("spec.enableInTreeAutoscaling: a RayCluster that is not suspended")
    running = job("train", 2, spec={"suspend": False})
    elastic = copy.deepcopy(running)
    elastic["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
    (error,) = refusals(JOB, elastic, running)
    assert error.startswith(f"metadata.annotations[{names.ELASTIC_ANNOTATION}]: ")


@pytest.mark.requirement("SLC-33")
def test_a_fault_that_is_stored_never_hinders_ray_from_scaling() -> None:
    bad = worker_group("w", 2, annotations=marks(required="a//b"))
    stored = ray(bad, autoscaling=True, suspend=False)
    found = copy.deepcopy(stored)
    found["spec"]["workerGroupSpecs"][0]["replicas"] = 3
    assert refusals(RAYCLUSTER, found, stored) == []
    found["spec"]["workerGroupSpecs"].append(worker_group("a_b", 1))
    (error,) = refusals(RAYCLUSTER, found, stored)
    assert error.startswith(f"{GROUPS}[1].groupName: "), "what is new is refused"


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner["kind"])
@pytest.mark.requirement("HOOK-05")
def test_what_belongs_to_an_owner_is_never_rejected(owner: Object) -> None:
    found = job("part", 2, required="a//b")
    found["spec"]["template"]["metadata"]["labels"] = {names.TAS_LABEL: "true"}
    assert refusals(JOB, found)
    found["metadata"]["ownerReferences"] = [owner]
    assert refusals(JOB, found) == []


def test_a_running_job_cannot_become_part_of_an_owner() -> None:
    stored = job("train", 2, spec={"suspend": False})
    found = copy.deepcopy(stored)
    found["metadata"]["ownerReferences"] = [OWNERS[0]]
    (error,) = refusals(JOB, found, stored)
    assert error.startswith(f"metadata.labels[{names.QUEUE_LABEL}]: ")


@pytest.mark.requirement("HOOK-05")
@pytest.mark.parametrize("suspended", [True, False])
def test_a_part_may_lose_its_owner_as_the_garbage_collector_takes_it_away(suspended: bool) -> None:
    stored = job("part", 2, required=RACK, spec={"suspend": suspended})
    stored["metadata"]["ownerReferences"] = [OWNERS[0]]
    template = stored["spec"]["template"]["metadata"]
    template["labels"] = {names.PODSET_LABEL: "w", names.TAS_LABEL: "true"}
    template["annotations"][names.WORKLOAD_ANNOTATION] = "jobset-train"
    found = copy.deepcopy(stored)
    del found["metadata"]["ownerReferences"]
    assert refusals(JOB, found, stored) == []
    found["metadata"]["labels"][names.QUEUE_LABEL] = "other"
    assert refusals(JOB, found, stored), "what else changes with it is looked at"


@pytest.mark.parametrize("kind", [JOB, JOBSET, RAYCLUSTER])
def test_the_label_of_a_clean_up_pod_is_kuberays_own(kind: str) -> None:
    found = job("train", 2, required=RACK) if kind == JOB else asked(kind)
    found = mutated(kind, found)
    template = found["spec"]["template"] if kind == JOB else templates(found)[-1]
    template["metadata"]["labels"]["ray.io/node-type"] = "redis-cleanup"
    (error,) = refusals(kind, found)
    assert "metadata.labels[ray.io/node-type]: " in error


def test_ungoverned_jobs_of_any_kind_are_never_rejected() -> None:
    parts = [
        replicated_job("W", 2, annotations=marks(required=RACK, preferred=RACK)),
        replicated_job("w", 1),
    ]
    assert refusals(JOBSET, jobset("train", parts, queue=None)) == []
    groups = [worker_group("head", 1, annotations=ASKS)]
    assert refusals(RAYCLUSTER, raycluster("ray", groups, queue=None)) == []


@pytest.mark.parametrize("name", ["n" * 54, "n" * 253, "1st", "with.dot", "ends-"])
def test_a_raycluster_that_kuberay_makes_no_pods_of_is_rejected_by_its_name(name: str) -> None:
    wish = mutated(RAYCLUSTER, ray(worker_group("w", 1)))
    wish["metadata"]["name"] = name
    (refusal,) = refusals(RAYCLUSTER, wish)
    assert refusal.startswith("metadata.name: ")
    assert "is not a name for which KubeRay creates pods" in refusal
    wish["metadata"]["name"] = "n" * 53
    assert refusals(RAYCLUSTER, wish) == []
