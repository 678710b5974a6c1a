"""Refusals: each with its path, what was found, and what would help."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rackgate.api import names
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.validate import validate
from tests.support.bad_requests import BAD_REQUESTS, GOOD_REQUESTS, BadRequest
from tests.support.objects import (
    BLOCK,
    HOST,
    RACK,
    cluster_queue,
    flavor,
    job,
    local_queue,
    topology_object,
)
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review

JOB, POD = "batch/Job", "/Pod"
TOPOLOGY, FLAVOR, WORKLOAD, CLUSTER_QUEUE, LOCAL_QUEUE = (
    f"{names.GROUP}/{kind}"
    for kind in ("Topology", "ResourceFlavor", "Workload", "ClusterQueue", "LocalQueue")
)
Object = dict[str, Any]


def refusals(kind: str, found: Object, stored: Object | None = None) -> list[str]:
    return [str(error) for error in validate(review(kind, found, stored)).errors]


def governed(found: Object) -> Object:
    result: Object = apply_patch(found, mutate(review(JOB, found)).operations)
    return result


def edited(found: Object, **spec: Any) -> Object:
    result = copy.deepcopy(found)
    result["spec"].update(spec)
    return result


@pytest.mark.parametrize("asked", [{}, {"required": RACK}, {"preferred": BLOCK}])
def test_what_the_webhook_itself_made_is_accepted(asked: Object) -> None:
    assert refusals(JOB, governed(job("train", 2, **asked))) == []


@pytest.mark.requirement("VAL-12")
def test_both_annotations_on_one_template_are_rejected() -> None:
    (error,) = refusals(JOB, governed(job("train", 2, required=RACK, preferred=RACK)))
    assert error.startswith("spec.template.metadata.annotations: more than one topology request")


@pytest.mark.requirement("VAL-12")
def test_a_malformed_level_key_is_rejected() -> None:
    (error,) = refusals(JOB, governed(job("train", 2, required="Block/x")))
    assert error.startswith(f"spec.template.metadata.annotations[{names.REQUIRED_TOPOLOGY}]: ")


@pytest.mark.field_note("P5", "P6")
def test_a_slice_size_that_does_not_divide_the_pods_is_rejected() -> None:
    marks = {names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "3"}
    (error,) = refusals(JOB, governed(job("train", 4, annotations=marks)))
    assert "slices of 3 pods do not divide the podset's 4 pods" in error


@pytest.mark.parametrize("text", ["0", "-1", "5", "two", "", "1.5", "9" * 40])
def test_a_smallest_parallelism_that_is_no_number_of_pods_is_rejected(text: str) -> None:
    found = governed(job("train", 4))
    found["metadata"]["annotations"] = {names.MIN_PARALLELISM_ANNOTATION: text}
    (error,) = refusals(JOB, found)
    assert error.startswith(f"metadata.annotations[{names.MIN_PARALLELISM_ANNOTATION}]: ")
    assert "is not a number of pods from 1 to 4" in error


def test_a_smallest_parallelism_is_accepted_also_once_the_job_was_started_with_it() -> None:
    found = governed(job("train", 4))
    found["metadata"]["annotations"] = {names.MIN_PARALLELISM_ANNOTATION: "2"}
    assert refusals(JOB, found) == []
    assert refusals(JOB, edited(found, suspend=False, parallelism=2), found) == []


def test_a_job_that_is_resized_has_no_smallest_parallelism() -> None:
    marks = {names.MIN_PARALLELISM_ANNOTATION: "2", names.ELASTIC_ANNOTATION: "true"}
    found = governed(job("train", 4, indexed=True))
    found["metadata"]["annotations"] = marks
    (error,) = refusals(JOB, found)
    assert "an elastic Job is resized instead of started with 2 pods" in error


@pytest.mark.requirement("HOOK-09")
@pytest.mark.parametrize("asked", [{}, {"required": RACK}])
def test_a_template_that_names_a_node_is_rejected_but_where_it_is_stored_already(
    asked: Object,
) -> None:
    found = governed(job("train", 2, pod={"nodeName": "n1"}, **asked))
    (error,) = refusals(JOB, found)
    assert error.startswith('spec.template.spec.nodeName: "n1" would bind the pods without')
    assert refusals(JOB, edited(found, parallelism=1), found) == []
    plain = {**found, "metadata": {"name": "train"}}
    assert len(refusals(JOB, found, plain)) == 1


@pytest.mark.requirement("HOOK-05")
def test_an_ungoverned_job_is_never_rejected() -> None:
    asked = job("plain", 2, queue=None, required="a//b", preferred="c")
    assert refusals(JOB, asked) == []
    assert refusals(JOB, edited(asked, suspend=True), asked) == []


@pytest.mark.parametrize("queue", ["", "Upper", "a_b"])
def test_a_queue_label_that_can_name_no_queue_is_rejected(queue: str) -> None:
    found = job("train", 2)
    found["metadata"]["labels"][names.QUEUE_LABEL] = queue
    (error,) = refusals(JOB, governed(found))
    assert error.startswith(f'metadata.labels[{names.QUEUE_LABEL}]: "{queue}" is not a name')


@pytest.mark.requirement("HOOK-09")
@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("metadata", "labels", {names.TAS_LABEL: "true"}),
        ("metadata", "labels", {names.PODSET_LABEL: "worker"}),
        ("metadata", "annotations", {names.WORKLOAD_ANNOTATION: "w"}),
        ("spec", "schedulingGates", [{"name": names.TOPOLOGY_GATE}]),
        ("spec", "schedulingGates", [{"name": names.ELASTIC_GATE}]),
    ],
)
def test_reserved_keys_in_a_users_template_are_rejected(part: str, field: str, value: Any) -> None:
    found = job("train", 2, spec={"suspend": True})
    found["spec"]["template"][part][field] = value
    (error,) = refusals(JOB, found)
    assert error.startswith(f"spec.template.{part}.{field}[")
    assert "reserved" in error


@pytest.mark.requirement("HOOK-11")
@pytest.mark.parametrize(
    "key",
    [
        names.REQUIRED_TOPOLOGY,
        names.PREFERRED_TOPOLOGY,
        names.UNCONSTRAINED_TOPOLOGY,
        names.SLICE_SIZE,
        names.PODSET_GROUP,
    ],
)
def test_topology_annotations_of_a_running_job_cannot_change(key: str) -> None:
    stored = edited(governed(job("train", 2, required=RACK)), suspend=False)
    found = copy.deepcopy(stored)
    found["spec"]["template"]["metadata"]["annotations"][key] = "other"
    errors = refusals(JOB, found, stored)
    assert f"spec.template.metadata.annotations[{key}]: the topology request of a job" in errors[0]


@pytest.mark.requirement("HOOK-11")
def test_topology_annotations_of_a_suspended_job_may_change() -> None:
    stored = governed(job("train", 2, required=RACK))
    found = copy.deepcopy(stored)
    found["spec"]["template"]["metadata"]["annotations"][names.REQUIRED_TOPOLOGY] = BLOCK
    assert refusals(JOB, found, stored) == []


@pytest.mark.requirement("HOOK-11")
def test_an_annotation_cannot_change_in_the_write_that_starts_the_job() -> None:
    stored = governed(job("train", 2, required=RACK))
    found = edited(stored, suspend=False)
    found["spec"]["template"]["metadata"]["annotations"][names.REQUIRED_TOPOLOGY] = BLOCK
    assert len(refusals(JOB, found, stored)) == 1


def test_the_queue_of_a_running_job_cannot_change() -> None:
    stored = edited(governed(job("train", 2)), suspend=False)
    for queue in ("other", None):
        found = copy.deepcopy(stored)
        labels = {names.QUEUE_LABEL: queue} if queue else {}
        found["metadata"]["labels"] = labels
        (error,) = refusals(JOB, found, stored)
        assert 'from queue "queue" to' in error
        assert "suspend the job first" in error


def test_a_running_job_cannot_come_under_a_queue() -> None:
    found = job("train", 2, spec={"suspend": False})
    stored = copy.deepcopy(found)
    stored["metadata"]["labels"] = {}
    assert "from no queue to" in refusals(JOB, found, stored)[0]


def test_a_suspended_job_may_change_its_queue() -> None:
    stored = governed(job("train", 2))
    found = copy.deepcopy(stored)
    found["metadata"]["labels"][names.QUEUE_LABEL] = "other"
    assert refusals(JOB, found, stored) == []


@pytest.mark.field_note("W9")
def test_an_invalid_job_may_be_written_to_unless_its_spec_changes() -> None:
    stored = job("train", 2, required="a//b")
    found = copy.deepcopy(stored)
    found["metadata"]["finalizers"] = []
    assert refusals(JOB, found, stored) == []
    assert len(refusals(JOB, edited(found, suspend=True, parallelism=1), stored)) == 1


@pytest.mark.field_note("W9")
@pytest.mark.parametrize("kind", [JOB, POD, TOPOLOGY, FLAVOR, WORKLOAD, CLUSTER_QUEUE])
def test_an_object_on_its_way_out_is_never_held_up(kind: str) -> None:
    stored = job("train", 2, required="a//b", spec={"suspend": False})
    found = edited(stored, suspend=True)
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert refusals(kind, found, stored) == []


def pod(owned: bool) -> Object:
    metadata: Object = {"labels": {names.PODSET_LABEL: "main"}}
    if owned:
        metadata["ownerReferences"] = [{"uid": "u", "controller": True}]
    return {"metadata": metadata, "spec": {"schedulingGates": [{"name": names.TOPOLOGY_GATE}]}}


@pytest.mark.requirement("HOOK-09")
def test_our_marks_are_rejected_on_a_pod_that_no_one_controls() -> None:
    assert [error.partition(":")[0] for error in refusals(POD, pod(owned=False))] == [
        f"metadata.labels[{names.PODSET_LABEL}]",
        "spec.schedulingGates[0].name",
    ]
    assert refusals(POD, pod(owned=True)) == []
    assert refusals(POD, {"metadata": {}, "spec": {}}) == []


@pytest.mark.requirement("HOOK-09")
def test_our_marks_on_a_pod_never_change() -> None:
    stored = pod(owned=True)
    found = copy.deepcopy(stored)
    found["metadata"]["labels"] = {}
    (error,) = refusals(POD, found, stored)
    assert error.startswith(f"metadata.labels[{names.PODSET_LABEL}]: reserved by Rackgate")


@pytest.mark.requirement("VAL-11")
@pytest.mark.parametrize("levels", [(RACK, RACK), (HOST, RACK)])
def test_repeated_or_misplaced_levels_are_rejected(levels: tuple[str, ...]) -> None:
    (error,) = refusals(TOPOLOGY, topology_object("t", levels))
    assert error.startswith("spec.levels: ")


@pytest.mark.requirement("TAS-01", "TAS-02")
@pytest.mark.parametrize(
    "levels",
    [(), tuple(f"l{i}" for i in range(17)), ("Block/x",), ("a//b",), ("",), ("a" * 317,)],
)
def test_malformed_levels_are_rejected_with_their_path(levels: tuple[str, ...]) -> None:
    found = topology_object("t")
    found["spec"]["levels"] = [{"nodeLabel": level} for level in levels]
    (error,) = refusals(TOPOLOGY, found)
    assert error.startswith("spec.levels")


@pytest.mark.requirement("TAS-01")
def test_sixteen_levels_are_accepted() -> None:
    assert refusals(TOPOLOGY, topology_object("t", tuple(f"l{i}" for i in range(16)))) == []


@pytest.mark.requirement("VAL-01")
def test_a_topology_flavor_without_node_labels_is_rejected() -> None:
    found = flavor("f", "pool", "t")
    del found["spec"]["nodeLabels"]
    (error,) = refusals(FLAVOR, found)
    assert error.startswith("spec.nodeLabels: at least one node label is required")
    assert refusals(FLAVOR, flavor("f", "pool", "t")) == []
    assert refusals(FLAVOR, {"spec": {}}) == []


def test_a_flavors_topology_stays_once_set() -> None:
    stored, found = flavor("f", "pool", "t"), flavor("f", "pool", "other")
    assert (
        'spec.topologyName: is immutable: the value is "t", found "other"'
        in refusals(FLAVOR, found, stored)[0]
    )
    assert refusals(FLAVOR, found, flavor("f", "pool", None)) == []


@pytest.mark.field_note("W8")
@pytest.mark.parametrize("amount", ["-1", "x", -3, 1.5, True])
def test_quota_that_is_no_amount_is_rejected_with_its_path(amount: Any) -> None:
    found = cluster_queue("q", "f", {"cpu": amount})
    errors = refusals(CLUSTER_QUEUE, found)
    path = "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"
    assert any(error.startswith(path) for error in errors)


def test_a_flavor_in_two_groups_is_rejected() -> None:
    found = cluster_queue("q", "f", {"cpu": "1"})
    second = cluster_queue("q", "f", {"memory": "1Gi"})["spec"]["resourceGroups"][0]
    found["spec"]["resourceGroups"].append(second)
    (error,) = refusals(CLUSTER_QUEUE, found)
    assert 'flavor "f" is in two groups' in error


def test_a_local_queue_keeps_its_cluster_queue() -> None:
    found, stored = local_queue("q", "b"), local_queue("q", "a")
    assert (
        'spec.clusterQueue: is immutable: the value is "a", found "b"'
        in refusals(LOCAL_QUEUE, found, stored)[0]
    )
    assert refusals(LOCAL_QUEUE, stored) == []
    assert refusals(LOCAL_QUEUE, local_queue("q", "Not A Name")) != []


def workload(count: int = 4, reserved: bool = False, **podset: Any) -> Object:
    found: Object = {
        "metadata": {"name": "w"},
        "spec": {
            "queueName": "q",
            "podSets": [{"name": "main", "count": count, "template": {"spec": {}}, **podset}],
        },
    }
    if reserved:
        found["status"] = {"conditions": [condition("QuotaReserved")]}
    return found


def condition(type_: str) -> Object:
    return {
        "type": type_,
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


@pytest.mark.field_note("P5", "P6")
@pytest.mark.parametrize(
    ("request_", "path"),
    [
        ({"required": "a", "preferred": "b"}, "topologyRequest"),
        ({"required": "a//b"}, "topologyRequest.required"),
        (
            {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 3},
            "topologyRequest.podSetSliceSize",
        ),
        ({"podSetSliceSize": 2}, "topologyRequest.podSetSliceSize"),
        (
            {"podsetSliceRequiredTopologyConstraints": [{"topology": "rack", "size": 3}]},
            "topologyRequest.podsetSliceRequiredTopologyConstraints[0].size",
        ),
        ({"required": 3}, "topologyRequest.required"),
    ],
)
def test_prebuilt_workloads_are_held_to_the_same_rules(request_: Object, path: str) -> None:
    errors = refusals(WORKLOAD, workload(topologyRequest=request_))
    assert any(error.startswith(f"spec.podSets[0].{path}: ") for error in errors), errors


@pytest.mark.requirement("VAL-12")
@pytest.mark.field_note("P5", "P6", "W8")
@pytest.mark.parametrize("bad", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_nonsense_request_of_a_workload_is_rejected_with_its_path(bad: BadRequest) -> None:
    errors = refusals(WORKLOAD, workload(8, topologyRequest=bad.request))
    path = f"spec.podSets[0].topologyRequest{bad.field}"
    assert any(error.startswith(f"{path}: ") for error in errors), errors


@pytest.mark.parametrize("good", GOOD_REQUESTS.values(), ids=GOOD_REQUESTS)
def test_a_request_that_makes_sense_is_accepted(good: Object) -> None:
    assert refusals(WORKLOAD, workload(8, topologyRequest=good)) == []


def test_a_sound_workload_is_accepted() -> None:
    asked = {"required": RACK, "podIndexLabel": names.COMPLETION_INDEX_LABEL}
    assert refusals(WORKLOAD, workload(topologyRequest=asked)) == []


def test_podsets_are_frozen_while_quota_is_reserved_but_for_smaller_counts() -> None:
    stored = workload(4, reserved=True)
    assert refusals(WORKLOAD, workload(3, reserved=True), stored) == []
    assert "more than the 4 pods" in refusals(WORKLOAD, workload(5, reserved=True), stored)[0]
    other = workload(4, reserved=True, template={"spec": {"nodeName": "n"}})
    assert "podsets cannot change while quota is reserved" in refusals(WORKLOAD, other, stored)[0]
    moved = edited(stored, queueName="other")
    assert refusals(WORKLOAD, moved, stored)[0].startswith("spec.queueName: ")
    assert refusals(WORKLOAD, edited(workload(4), queueName="other"), workload(4)) == []


@pytest.mark.requirement("SLC-23")
def test_the_count_of_a_resized_job_may_follow_what_was_admitted() -> None:
    stored = workload(4, reserved=True)
    granted = {"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "count": 6}]}
    stored["status"]["admission"] = granted
    assert refusals(WORKLOAD, workload(6, reserved=True), stored) == []
    assert "more than the 6 pods" in refusals(WORKLOAD, workload(7, reserved=True), stored)[0]


LIMIT = names.MAX_EXECUTION_TIME_LABEL


def limited(found: Object, value: str | None) -> Object:
    result = copy.deepcopy(found)
    result["metadata"]["labels"].pop(LIMIT, None)
    if value is not None:
        result["metadata"]["labels"][LIMIT] = value
    return result


@pytest.mark.parametrize("value", ["0", "-5", "1h", "", "1.5", "2147483648"])
def test_a_maximum_execution_time_is_a_positive_number_of_seconds(value: str) -> None:
    found = governed(job("train", 2))
    (error,) = refusals(JOB, limited(found, value))
    path = f'metadata.labels[{LIMIT}]: "{value}" is not a whole number of seconds'
    assert error.startswith(path)
    assert refusals(JOB, limited(found, value), found) == [error]
    # One that is stored already blocks no other change.
    assert refusals(JOB, edited(limited(found, value), suspend=True), limited(found, value)) == []


def test_the_maximum_execution_time_changes_only_while_the_job_is_suspended() -> None:
    suspended = governed(job("train", 2))
    for before, after in ((None, "60"), ("60", "3600"), ("60", None)):
        found, stored = limited(suspended, after), limited(suspended, before)
        assert refusals(JOB, found, stored) == []
        running = edited(stored, suspend=False)
        (error,) = refusals(JOB, edited(found, suspend=False), running)
        assert error.startswith(f"metadata.labels[{LIMIT}]: the maximum execution time of a job")
        assert "suspend the job first" in error
        assert len(refusals(JOB, edited(found, suspend=False), stored)) == 1
        assert len(refusals(JOB, found, running)) == 1


def test_a_job_that_is_not_managed_may_have_any_maximum() -> None:
    found = job("train", 2, queue=None)
    found["metadata"].setdefault("labels", {})[LIMIT] = "soon"
    assert refusals(JOB, found) == []
