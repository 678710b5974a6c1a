"""Mutations: Jobs that enter and leave, the net below for pods, defaults of Workloads."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rackgate.api import names
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import AdmissionResponse
from tests.support.objects import RACK, job
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review

JOB, POD, WORKLOAD = "batch/Job", "/Pod", f"{names.GROUP}/Workload"


def without_label(found: dict[str, Any]) -> dict[str, Any]:
    plain = copy.deepcopy(found)
    plain["metadata"]["labels"] = {}
    return plain


def governed(**changes: Any) -> dict[str, Any]:
    found = job("train", 2, required=RACK, **changes)
    result: dict[str, Any] = apply_patch(found, mutate(review(JOB, found)).operations)
    return result


@pytest.mark.requirement("HOOK-06")
def test_mutating_its_own_output_changes_nothing() -> None:
    assert mutate(review(JOB, governed())).operations == []


@pytest.mark.requirement("HOOK-05")
def test_an_ungoverned_job_passes_without_a_word() -> None:
    found = job("plain", 2, queue=None, required=RACK, annotations={"a": "b"})
    admission_response = mutate(review(JOB, found))
    assert (
        admission_response.operations,
        admission_response.warnings,
        admission_response.allowed,
    ) == ([], [], True)


@pytest.mark.requirement("TAS-08")
def test_topology_annotations_on_the_job_itself_are_warned_about() -> None:
    found = job("train", 2)
    found["metadata"]["annotations"] = {names.REQUIRED_TOPOLOGY: RACK, "other": "x"}
    (warning,) = mutate(review(JOB, found)).warnings
    assert warning.startswith(f"metadata.annotations[{names.REQUIRED_TOPOLOGY}] is ignored")
    assert "spec.template.metadata.annotations" in warning


@pytest.mark.requirement("HOOK-04")
def test_a_suspended_job_that_gets_the_label_is_marked_like_a_new_one() -> None:
    found = job("train", 2, required=RACK, spec={"suspend": True})
    operations = mutate(review(JOB, found, without_label(found))).operations
    assert apply_patch(found, operations) == governed(spec={"suspend": True})


def test_a_running_job_that_gets_the_label_is_not_touched() -> None:
    found = job("train", 2, required=RACK, spec={"suspend": False})
    assert mutate(review(JOB, found, without_label(found))).operations == []


def test_a_suspended_job_that_loses_the_label_loses_our_marks() -> None:
    stored = governed()
    operations = mutate(review(JOB, without_label(stored), stored)).operations
    user = without_label(job("train", 2, required=RACK, spec={"suspend": True}))
    assert apply_patch(without_label(stored), operations) == user


def test_a_template_whose_pods_still_run_is_not_touched_when_the_label_goes() -> None:
    stored = governed()
    stored["status"] = {"active": 2, "startTime": "T"}
    assert mutate(review(JOB, without_label(stored), stored)).operations == []


def test_other_updates_of_a_managed_job_are_not_touched() -> None:
    stored = governed()
    started = copy.deepcopy(stored)
    started["spec"]["suspend"] = False
    del started["spec"]["template"]["spec"]["schedulingGates"]
    assert mutate(review(JOB, started, stored)).operations == []
    assert mutate(review(JOB, started, stored, sub_resource="status")).operations == []


def running(count: int, **changes: Any) -> dict[str, Any]:
    return job("train", count, spec={"suspend": False, "completions": None}, **changes)


@pytest.mark.requirement("HOOK-10")
def test_a_running_job_that_grows_is_suspended_in_the_same_write() -> None:
    admission_response = mutate(review(JOB, running(400), running(4)))
    assert apply_patch(running(400), admission_response.operations)["spec"]["suspend"] is True
    (warning,) = admission_response.warnings
    assert "grows from 4 to 400 pods" in warning


def test_a_running_job_that_shrinks_or_is_bounded_by_its_completions_is_not_touched() -> None:
    for now, before in ((running(4), running(400)), (running(4), running(4))):
        assert mutate(review(JOB, now, before)) == AdmissionResponse()
    more, less = running(400), running(4)
    more["spec"]["completions"] = less["spec"]["completions"] = 4
    assert mutate(review(JOB, more, less)) == AdmissionResponse()


@pytest.mark.parametrize("gate", [names.TOPOLOGY_GATE, names.ELASTIC_GATE])
def test_a_running_job_whose_pods_a_gate_holds_grows_as_it_likes(gate: str) -> None:
    more, less = running(400), running(4)
    for found in (more, less):
        found["spec"]["template"]["spec"]["schedulingGates"] = [{"name": gate}]
    assert mutate(review(JOB, more, less)) == AdmissionResponse()
    # The annotation alone holds nothing: its feature gate may be off.
    for found in (more, less):
        found["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
        found["spec"]["completionMode"] = "Indexed"
        found["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/other"}]
    assert mutate(review(JOB, more, less)).operations


def test_a_job_that_waits_or_goes_grows_as_it_likes() -> None:
    for change in ({"suspend": True}, {}):
        more, less = running(400), running(4)
        less["spec"] |= change
        more["metadata"]["deletionTimestamp"] = None if change else "T"
        more["spec"] |= change
        assert mutate(review(JOB, more, less)) == AdmissionResponse()


@pytest.mark.requirement("HOOK-12")
def test_a_write_of_the_status_alone_changes_no_form() -> None:
    found = job("train", 2, required=RACK, spec={"suspend": True})
    assert mutate(review(JOB, found, without_label(found), sub_resource="status")).operations == []
    assert mutate(review(POD, pod(), sub_resource="binding")).operations == []


def pod(**spec: Any) -> dict[str, Any]:
    metadata = {
        "labels": {names.PODSET_LABEL: "main"},
        "annotations": {names.WORKLOAD_ANNOTATION: "w"},
    }
    return {"metadata": metadata, "spec": {"containers": [], **spec}}


@pytest.mark.requirement("HOOK-04")
@pytest.mark.parametrize("gates", [None, [], [{"name": "other"}]])
def test_a_started_pod_without_the_gate_gets_it(gates: list[dict[str, str]] | None) -> None:
    found = pod() if gates is None else pod(schedulingGates=gates)
    result = apply_patch(found, mutate(review(POD, found)).operations)
    expected = [*(gates or []), {"name": names.TOPOLOGY_GATE}]
    assert result["spec"]["schedulingGates"] == expected
    assert mutate(review(POD, result)).operations == []


@pytest.mark.requirement("HOOK-04")
@pytest.mark.field_note("U8")
@pytest.mark.parametrize("label", [None, "false"])
def test_a_gated_pod_without_the_label_the_ungater_follows_gets_it(label: str | None) -> None:
    found = pod(schedulingGates=[{"name": names.TOPOLOGY_GATE}])
    if label is not None:
        found["metadata"]["labels"][names.TAS_LABEL] = label
    result = apply_patch(found, mutate(review(POD, found)).operations)
    assert result["metadata"]["labels"][names.TAS_LABEL] == names.TAS_LABEL_VALUE
    assert result["spec"] == found["spec"]
    assert mutate(review(POD, result)).operations == []


@pytest.mark.requirement("HOOK-08")
def test_a_pod_with_a_node_name_is_passed_with_a_warning() -> None:
    admission_response = mutate(review(POD, pod(nodeName="n1")))
    assert admission_response.operations == []
    assert admission_response.allowed
    assert admission_response.warnings[0].startswith("spec.nodeName is set")


@pytest.mark.parametrize("gates", [[], [names.TOPOLOGY_GATE], [names.ELASTIC_GATE, "other"]])
def test_the_clean_up_pod_of_a_ray_cluster_is_never_gated(gates: list[str]) -> None:
    found = pod(schedulingGates=[{"name": gate} for gate in gates])
    found["metadata"]["labels"]["ray.io/node-type"] = "redis-cleanup"
    by = "system:serviceaccount:kube-system:job-controller"
    result = apply_patch(found, mutate(review(POD, found, username=by)).operations)
    kept = [gate for gate in gates if gate == "other"]
    assert [gate["name"] for gate in result["spec"].get("schedulingGates", [])] == kept
    assert result["metadata"] == {"labels": {"ray.io/node-type": "redis-cleanup"}}
    assert mutate(review(POD, result, username=by)).operations == []
    # Others only claim to clean up; the policy sees their marks, and refuses them.
    assert mutate(review(POD, found, username="user")) == AdmissionResponse()


def elastic_pod(*gates: str, **labels: str) -> dict[str, Any]:
    found = pod(schedulingGates=[{"name": gate} for gate in gates])
    found["metadata"]["annotations"][names.ELASTIC_ANNOTATION] = "true"
    found["metadata"]["labels"] |= labels
    return found


@pytest.mark.requirement("SLC-13", "HOOK-04")
@pytest.mark.parametrize(
    ("found", "gates"),
    [
        (elastic_pod(), [names.ELASTIC_GATE]),
        (elastic_pod(names.ELASTIC_GATE), [names.ELASTIC_GATE]),
        (
            elastic_pod(**{names.TAS_LABEL: "true"}),
            [names.TOPOLOGY_GATE, names.ELASTIC_GATE],
        ),
        (elastic_pod(names.TOPOLOGY_GATE), [names.TOPOLOGY_GATE, names.ELASTIC_GATE]),
        (
            elastic_pod(names.TOPOLOGY_GATE, names.ELASTIC_GATE),
            [names.TOPOLOGY_GATE, names.ELASTIC_GATE],
        ),
    ],
)
def test_a_pod_of_an_elastic_job_gets_the_gates_its_marks_tell_of(
    found: dict[str, Any], gates: list[str]
) -> None:
    result = apply_patch(found, mutate(review(POD, found)).operations)
    assert [gate["name"] for gate in result["spec"]["schedulingGates"]] == gates
    placed = names.TOPOLOGY_GATE in gates
    assert (result["metadata"]["labels"].get(names.TAS_LABEL) == "true") == placed
    assert mutate(review(POD, result)).operations == []


@pytest.mark.field_note("E16")
def test_a_pod_of_another_job_never_gets_the_elastic_gate() -> None:
    for value in (None, "false"):
        found = pod()
        if value is not None:
            found["metadata"]["annotations"][names.ELASTIC_ANNOTATION] = value
        result = apply_patch(found, mutate(review(POD, found)).operations)
        assert result["spec"]["schedulingGates"] == [{"name": names.TOPOLOGY_GATE}]


@pytest.mark.requirement("HOOK-05")
@pytest.mark.parametrize("missing", ["labels", "annotations"])
def test_a_pod_without_both_marks_is_left_alone(missing: str) -> None:
    found = pod()
    del found["metadata"][missing]
    assert mutate(review(POD, found)).operations == []


@pytest.mark.requirement("HOOK-03", "TAS-10")
def test_a_workload_gets_the_request_its_template_asks_for() -> None:
    template = {"metadata": {"annotations": {names.REQUIRED_TOPOLOGY: RACK}}, "spec": {}}
    found = {"spec": {"podSets": [{"count": 2, "template": template}]}}
    result = apply_patch(found, mutate(review(WORKLOAD, found)).operations)
    assert result["spec"]["podSets"][0]["topologyRequest"] == {"required": RACK}
    assert result["spec"]["podSets"][0]["name"] == "main"
    assert result["spec"]["active"] is True
    assert mutate(review(WORKLOAD, result)).operations == []


def test_a_request_that_is_there_is_kept() -> None:
    template = {"metadata": {"annotations": {names.REQUIRED_TOPOLOGY: RACK}}, "spec": {}}
    podset = {"name": "a", "template": template, "topologyRequest": {"preferred": RACK}}
    found = {"spec": {"active": False, "podSets": [podset, {"name": "b", "template": {}}]}}
    assert mutate(review(WORKLOAD, found)).operations == []
