"""Mutations of JobSets and RayClusters, of elastic Jobs, and of what belongs to an owner."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rackgate.api import names
from rackgate.features import Features
from rackgate.jobframework import registry
from rackgate.jobframework.registry import enabled_elastic_kinds
from rackgate.jobframework.templates import annotations_of, gates_of, labels_of
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import AdmissionResponse
from tests.support.composite_jobs import jobset, marks, raycluster, replicated_job, worker_group
from tests.support.objects import RACK, job
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review

JOB, JOBSET, RAYCLUSTER = "batch/Job", "jobset.x-k8s.io/JobSet", "ray.io/RayCluster"
ASKS = marks(required=RACK)
ELASTIC_KINDS = frozenset({"RayCluster", "Job"})
OWNERS = (
    {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "controller": True},
    {"apiVersion": "ray.io/v1", "kind": "RayCluster", "controller": True},
)
Object = dict[str, Any]


def ray(*groups: Object, **more: Any) -> Object:
    return raycluster("ray", groups or [worker_group("w", 2, annotations=ASKS)], **more)


def asked(kind: str) -> Object:
    if kind == JOBSET:
        return jobset("train", [replicated_job("w", 2, annotations=ASKS)])
    return ray(autoscaling=True)


def told(kind: str, found: Object, stored: Object | None = None) -> AdmissionResponse:
    return mutate(review(kind, found, stored), elastic_kinds=ELASTIC_KINDS)


def mutated(kind: str, found: Object, stored: Object | None = None) -> Object:
    result: Object = apply_patch(found, told(kind, found, stored).operations)
    return result


def unlabelled(found: Object) -> Object:
    plain = copy.deepcopy(found)
    plain["metadata"]["labels"] = {}
    return plain


def with_spec(found: Object, **spec: Any) -> Object:
    result = copy.deepcopy(found)
    result["spec"].update(spec)
    return result


def templates(found: Object) -> list[Object]:
    of = registry.JOBSET.templates if found["kind"] == "JobSet" else registry.RAYCLUSTER.templates
    return [dict(part.template) for part in of(found)]


@pytest.mark.requirement("HOOK-04", "HOOK-06", "HOOK-10")
@pytest.mark.parametrize("kind", [JOBSET, RAYCLUSTER])
def test_a_managed_job_of_either_kind_is_suspended_and_marked_once(kind: str) -> None:
    result = mutated(kind, asked(kind))
    assert result["spec"]["suspend"] is True
    assert names.TOPOLOGY_GATE in gates_of(templates(result)[-1])
    assert told(kind, result).operations == []


@pytest.mark.requirement("HOOK-05")
@pytest.mark.parametrize("kind", [JOB, JOBSET, RAYCLUSTER])
@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner["kind"])
def test_what_belongs_to_a_jobset_or_raycluster_is_never_managed_itself(
    kind: str, owner: Object
) -> None:
    found = job("part", 2, required=RACK) if kind == JOB else asked(kind)
    found["metadata"]["ownerReferences"] = [owner]
    assert told(kind, found) == AdmissionResponse()
    found["metadata"]["ownerReferences"] = [{**owner, "controller": False}]
    assert told(kind, found).operations, "an owner that does not control it is no owner"
    found["metadata"]["ownerReferences"] = [{**owner, "apiVersion": "example.com/v1"}]
    assert told(kind, found).operations


@pytest.mark.requirement("HOOK-05")
def test_the_raycluster_of_a_rayservice_is_managed_by_its_own_label_that_of_a_rayjob_is_not() -> (
    None
):
    found = ray()
    owner = {"apiVersion": "ray.io/v1", "kind": "RayService", "controller": True}
    found["metadata"]["ownerReferences"] = [owner]
    assert mutated(RAYCLUSTER, found)["spec"]["suspend"] is True
    found["metadata"]["ownerReferences"] = [{**owner, "kind": "RayJob"}]
    assert told(RAYCLUSTER, found) == AdmissionResponse()


@pytest.mark.requirement("SLC-01", "SLC-13")
def test_only_with_its_gate_a_kind_is_elastic() -> None:
    found = ray(autoscaling=True)
    plain = apply_patch(found, mutate(review(RAYCLUSTER, found)).operations)
    assert not [t for t in templates(plain) if names.ELASTIC_GATE in gates_of(t)]
    held = templates(mutated(RAYCLUSTER, found))
    assert all(names.ELASTIC_GATE in gates_of(template) for template in held)
    gates = {"ElasticJobsViaWorkloadSlices": True, "RackgateElasticIndexedJobs": True}
    assert enabled_elastic_kinds(Features.of(gates)) == ELASTIC_KINDS
    assert enabled_elastic_kinds(Features.of({"ElasticJobsViaWorkloadSlices": True})) == {
        "RayCluster"
    }
    assert enabled_elastic_kinds(Features.of({"RackgateElasticIndexedJobs": True})) == frozenset()


@pytest.mark.field_note("E16")
@pytest.mark.parametrize(
    ("indexed", "asks", "held"), [(True, "true", True), (False, "true", False), (True, "1", False)]
)
def test_a_job_is_elastic_if_it_is_indexed_and_says_so(
    indexed: bool, asks: str, held: bool
) -> None:
    found = job("train", 2, indexed=indexed)
    found["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: asks}
    admission_response = told(JOB, found)
    template = apply_patch(found, admission_response.operations)["spec"]["template"]
    assert gates_of(template) == ([names.ELASTIC_GATE] if held else [])
    assert bool(admission_response.warnings) != held


@pytest.mark.parametrize("kind", [JOBSET, RAYCLUSTER])
def test_a_suspended_job_of_either_kind_enters_and_leaves_its_queue(kind: str) -> None:
    resting = with_spec(asked(kind), suspend=True)
    entered = mutated(kind, resting, unlabelled(resting))
    assert entered == mutated(kind, resting)
    left = mutated(kind, unlabelled(entered), entered)
    for template, wished in zip(templates(left), templates(resting), strict=True):
        assert (template.get("metadata") or None) == (wished.get("metadata") or None)
        assert template["spec"] == wished["spec"]
    running = with_spec(resting, suspend=False)
    assert told(kind, running, unlabelled(running)).operations == []


@pytest.mark.requirement("HOOK-04")
@pytest.mark.parametrize("kind", [JOBSET, RAYCLUSTER])
def test_a_manifest_applied_again_keeps_the_marks_it_does_not_know(kind: str) -> None:
    waiting = mutated(kind, asked(kind))
    assert mutated(kind, with_spec(asked(kind), suspend=True), waiting) == waiting
    running = with_spec(waiting, suspend=False)
    for template in templates(running):
        template["metadata"]["annotations"][names.WORKLOAD_ANNOTATION] = "w"
        template["metadata"]["labels"][names.TAS_LABEL] = "true"
    again = with_spec(asked(kind), suspend=False)
    for template, kept in zip(
        templates(mutated(kind, again, running)), templates(running), strict=True
    ):
        assert annotations_of(template) == annotations_of(kept)
        assert labels_of(template) == labels_of(kept)
        assert gates_of(template) == gates_of(kept)


@pytest.mark.parametrize("kind", [JOBSET, RAYCLUSTER])
def test_what_no_one_may_change_in_a_running_job_is_kept_with_what_its_flavor_restored(
    kind: str,
) -> None:
    toleration = {"key": "gpu", "operator": "Exists"}
    running = with_spec(mutated(kind, asked(kind)), suspend=False)
    for template in templates(running):
        template["spec"] |= {"nodeSelector": {"pool": "a"}, "tolerations": [toleration]}
    again = mutated(kind, with_spec(asked(kind), suspend=False), running)
    for template in templates(again):
        frozen = kind == JOBSET  # a RayCluster's user may take them out
        assert template["spec"].get("nodeSelector") == ({"pool": "a"} if frozen else None)
        assert template["spec"].get("tolerations") == ([toleration] if frozen else None)
    # The write that suspends a JobSet may change its templates.
    left = mutated(kind, with_spec(asked(kind), suspend=True), running)
    assert all("nodeSelector" not in template["spec"] for template in templates(left))


def test_a_waiting_job_is_marked_by_what_it_asks_now() -> None:
    plain = jobset("train", [replicated_job("w", 2)])
    waiting, asks = mutated(JOBSET, plain), asked(JOBSET)
    assert mutated(JOBSET, with_spec(asks, suspend=True), waiting) == mutated(JOBSET, asks)
    # As an editor writes it back: the annotation is gone, our marks are still there.
    held = mutated(JOBSET, asks)
    edited = copy.deepcopy(held)
    del templates(edited)[0]["metadata"]["annotations"]
    (template,) = templates(mutated(JOBSET, edited, held))
    assert gates_of(template) == []
    assert not labels_of(template)


def test_a_mark_that_its_writer_adds_is_left_to_be_rejected() -> None:
    waiting = mutated(JOBSET, asked(JOBSET))
    edited = copy.deepcopy(waiting)
    templates(edited)[0]["metadata"]["labels"][names.PODSET_LABEL] = "mine"
    (template,) = templates(mutated(JOBSET, edited, waiting))
    assert labels_of(template) == {names.PODSET_LABEL: "mine"}


@pytest.mark.requirement("TAS-26")
def test_the_writes_that_start_and_restore_are_not_touched() -> None:
    waiting = mutated(JOBSET, asked(JOBSET))
    plain = asked(JOBSET)
    assert told(JOBSET, with_spec(plain, suspend=False), waiting).operations == []
    stopped = copy.deepcopy(waiting)
    stopped["metadata"]["annotations"] = {names.WORKLOAD_ANNOTATION: "w"}
    assert told(JOBSET, with_spec(plain, suspend=True), stopped).operations == []


@pytest.mark.field_note("E13")
@pytest.mark.parametrize("change", ["added", "removed", "renamed", "reordered"])
def test_a_running_cluster_whose_worker_groups_change_is_stopped(change: str) -> None:
    asked = ray(worker_group("w", 2), worker_group("x", 1), autoscaling=True)
    stored = with_spec(mutated(RAYCLUSTER, asked), suspend=False)
    found = copy.deepcopy(stored)
    groups = found["spec"]["workerGroupSpecs"]
    if change == "added":
        groups.append(worker_group("more", 1))
    elif change == "removed":
        groups.clear()
    elif change == "reordered":
        groups.reverse()
    else:
        groups[0]["groupName"] = "other"
    admission_response = told(RAYCLUSTER, found, stored)
    assert apply_patch(found, admission_response.operations)["spec"]["suspend"] is True
    assert "stopped and queued again" in admission_response.warnings[0]


@pytest.mark.requirement("SLC-33")
def test_a_running_cluster_that_is_scaled_is_not_touched() -> None:
    stored = with_spec(mutated(RAYCLUSTER, ray(autoscaling=True)), suspend=False)
    found = copy.deepcopy(stored)
    found["spec"]["workerGroupSpecs"][0] |= {"replicas": 9, "scaleStrategy": {}}
    assert told(RAYCLUSTER, found, stored) == AdmissionResponse()


@pytest.mark.parametrize(
    "change",
    [{"replicas": 9}, {"numOfHosts": 2}, {"minReplicas": 4}, {"maxReplicas": 9, "replicas": 9}],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("scales", [False, True])
def test_a_running_cluster_that_no_gate_holds_is_suspended_when_it_grows(
    change: Object, scales: bool
) -> None:
    """Whether it scales itself or not: without the feature gate nothing holds its pods."""
    group = worker_group("w", 2, most=4)
    stored = with_spec(ray(group, autoscaling=scales), suspend=False)
    found = copy.deepcopy(stored)
    found["spec"]["workerGroupSpecs"][0] |= change
    admission_response = mutate(review(RAYCLUSTER, found, stored))
    assert apply_patch(found, admission_response.operations)["spec"]["suspend"] is True
    assert "podset w of the running RayCluster grows from 2" in admission_response.warnings[0]


@pytest.mark.parametrize("change", [{"replicas": 1}, {"maxReplicas": 1}, {"suspend": True}])
def test_a_running_cluster_that_shrinks_is_not_touched(change: Object) -> None:
    stored = with_spec(ray(worker_group("w", 2)), suspend=False)
    found = copy.deepcopy(stored)
    found["spec"]["workerGroupSpecs"][0] |= change
    assert mutate(review(RAYCLUSTER, found, stored)) == AdmissionResponse()
    # A suspended group that comes back is growth.
    assert bool(mutate(review(RAYCLUSTER, stored, found)).operations)


@pytest.mark.requirement("TAS-08")
def test_what_is_asked_where_no_one_reads_it_is_warned_about() -> None:
    found = asked(JOBSET)
    found["metadata"]["annotations"] = {names.REQUIRED_TOPOLOGY: RACK}
    part = found["spec"]["replicatedJobs"][0]["template"]
    part["metadata"] = {
        "annotations": {names.PREFERRED_TOPOLOGY: RACK},
        "labels": {names.QUEUE_LABEL: "other"},
    }
    part["spec"]["template"]["metadata"]["labels"] = {names.QUEUE_LABEL: "other"}
    template = "spec.replicatedJobs[0].template"
    begins = (
        f"metadata.annotations[{names.REQUIRED_TOPOLOGY}] is ignored on a JobSet",
        f"{template}.metadata.annotations[{names.PREFERRED_TOPOLOGY}] is ignored on a Job",
        f"{template}.metadata.labels[{names.QUEUE_LABEL}] is ignored",
        f"{template}.spec.template.metadata.labels[{names.QUEUE_LABEL}] is ignored",
    )
    warnings = told(JOBSET, found).warnings
    assert [warning.startswith(begin) for warning, begin in zip(warnings, begins, strict=True)]
    found = ray()
    found["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
    (warning,) = told(RAYCLUSTER, found).warnings
    assert warning.endswith("is ignored: set spec.enableInTreeAutoscaling")
    assert told(RAYCLUSTER, ray(autoscaling=True)).warnings == []


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("of", ["headGroupSpec", "workerGroupSpecs"])
def test_a_running_cluster_whose_pods_would_ask_for_more_is_suspended(
    of: str, scales: bool
) -> None:
    stored = with_spec(ray(worker_group("w", 2, most=4), autoscaling=scales), suspend=False)
    found = copy.deepcopy(stored)
    group = found["spec"][of] if of == "headGroupSpec" else found["spec"][of][0]
    group["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "64"}}
    admission_response = mutate(review(RAYCLUSTER, found, stored))
    assert apply_patch(found, admission_response.operations)["spec"]["suspend"] is True
    assert "of the running RayCluster changes" in admission_response.warnings[0]


def test_a_running_cluster_whose_template_gets_a_selector_runs_on() -> None:
    """What a flavor added comes and goes as manifests are applied: the assigner judges that."""
    stored = with_spec(ray(worker_group("w", 2)), suspend=False)
    found = copy.deepcopy(stored)
    found["spec"]["workerGroupSpecs"][0]["template"]["spec"]["nodeSelector"] = {"a": "b"}
    assert mutate(review(RAYCLUSTER, found, stored)).operations == []
