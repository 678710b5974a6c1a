"""RayJobs: podsets of the cluster and the submitter, marks at creation, what is rejected, ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.jobframework.managed import inject
from rackgate.jobframework.rayjob.wire import RayJob
from rackgate.jobframework.registry import RAYJOB
from rackgate.jobframework.templates import annotations_of, gates_of, labels_of
from rackgate.wire.kueue import FlavorSpec, ResourceFlavor, Workload
from rackgate_assigner.jobs.patches import start_patch, workload_body
from rackgate_assigner.jobs.state import Priority, read_job_state
from rackgate_assigner.watches import decode_workload
from rackgate_webhook.admission.validate import validate
from tests.support.composite_jobs import marks, rayjob, worker_group
from tests.support.objects import RACK
from tests.unit.govern.patching import apply_patch
from tests.unit.webhook.reviews import review

ASKS = marks(required=RACK)
FLAVORS = {"a": ResourceFlavor(spec=FlavorSpec(node_labels={"pool": "a"}))}


def governed(asked: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = apply_patch(asked, inject(RAYJOB, asked))
    return result


def decoded(asked: dict[str, Any], **status: Any) -> RayJob:
    return RAYJOB.decode(msgspec.json.encode({**asked, "status": status}))


@pytest.mark.requirement("TAS-28", "HOOK-03")
def test_the_cluster_and_the_submitter_are_podsets() -> None:
    asked = rayjob("train", [worker_group("Small", 2, annotations=ASKS)])
    found = {podset["name"]: podset for podset in RAYJOB.podsets(asked)}
    assert {name: it["count"] for name, it in found.items()} == {
        "head": 1,
        "small": 2,
        "submitter": 1,
    }
    assert found["small"]["topologyRequest"]["required"] == RACK
    assert RAYJOB.counts(asked) == {"head": 1, "small": 2, "submitter": 1}
    assert RAYJOB.requested_counts(asked).keys() == found.keys()


@pytest.mark.parametrize("mode", ["HTTPMode", "InteractiveMode"])
def test_without_a_job_that_submits_there_is_no_such_podset(mode: str) -> None:
    asked = rayjob("train", [], submissionMode=mode)
    assert RAYJOB.counts(asked) == {"head": 1}
    assert [podset["name"] for podset in RAYJOB.podsets(asked)] == ["head"]
    assert "submitterPodTemplate" not in governed(asked)["spec"]


@pytest.mark.requirement("HOOK-03", "HOOK-10", "TAS-25")
def test_the_webhook_suspends_it_and_injects_into_every_template() -> None:
    asked = rayjob("train", [worker_group("w", 2, annotations=ASKS)], head_annotations=ASKS)
    made = governed(asked)
    assert made["spec"]["suspend"] is True
    templates = {one.podset: one.template for one in RAYJOB.templates(made)}
    assert templates.keys() == {"head", "w", "submitter"}
    for podset in ("head", "w"):
        assert names.TOPOLOGY_GATE in gates_of(templates[podset])
        assert labels_of(templates[podset])[names.PODSET_LABEL] == podset
    (container,) = templates["submitter"]["spec"]["containers"]
    head = asked["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert container["image"] == head["image"]
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "200Mi"}
    assert inject(RAYJOB, made) == []


def test_the_submitter_that_its_user_wrote_is_kept() -> None:
    written = {"spec": {"containers": [{"name": "mine"}], "restartPolicy": "OnFailure"}}
    asked = rayjob("train", [], submitterPodTemplate=written)
    assert governed(asked)["spec"]["submitterPodTemplate"] == written


@pytest.mark.requirement("HOOK-03", "TAS-26", "TAS-28")
@pytest.mark.parametrize("written", [{}, {"submitterPodTemplate": {}}])
def test_a_start_writes_the_submitter_that_no_webhook_wrote(written: dict[str, Any]) -> None:
    asked = rayjob("train", [worker_group("w", 2)], suspend=True, **written)
    job, workload, flavors = decoded(asked), admitted_workload(asked), FLAVORS
    patch = start_patch(job, workload, flavors)
    assert isinstance(patch, list)
    started = apply_patch(asked, patch)
    for one in RAYJOB.templates(started):
        assert one.template["spec"]["nodeSelector"] == {"pool": "a"}
        assert annotations_of(one.template)[names.WORKLOAD_ANNOTATION] == "w"
    assert RAYJOB.templates(started)[-1].podset == "submitter"
    running = read_job_state(decoded(started), workload, Priority(), flavors=flavors)
    assert (running.started, running.change, running.injection_lost) == (True, None, False)
    # A stop leaves what the webhook would have written.
    started["spec"]["suspend"] = True
    stopped = decoded(started, jobDeploymentStatus="Suspended")
    stop = read_job_state(stopped, workload, Priority(), flavors=flavors).stop
    restored = apply_patch(started, stop.operations)
    default = governed(rayjob("train", [worker_group("w", 2)]))["spec"]["submitterPodTemplate"]
    assert restored["spec"]["submitterPodTemplate"] == default
    after = read_job_state(
        decoded(restored, jobDeploymentStatus="Suspended"), workload, Priority(), flavors=flavors
    )
    assert after.stopped
    assert not after.started


def admitted_workload(asked: dict[str, Any]) -> Workload:
    """Admitted in flavor `a`."""
    body = workload_body(decoded(asked), "w", Priority())
    assignments = [
        {"name": one["name"], "count": one["count"], "flavors": {"cpu": "a"}}
        for one in body["spec"]["podSets"]
    ]
    body["status"] = {"admission": {"clusterQueue": "cq", "podSetAssignments": assignments}}
    return decode_workload(msgspec.json.encode(body))


@pytest.mark.requirement("HOOK-03", "TAS-26")
@pytest.mark.parametrize("annotations", [None, ASKS])
def test_a_stop_restores_a_submitter_that_is_not_used_any_more(
    annotations: dict[str, str] | None,
) -> None:
    """Its user suspends it and changes the mode in one write, with the webhook or without."""
    own: dict[str, Any] = {"spec": {"containers": [{"name": "mine"}], "restartPolicy": "Never"}}
    if annotations:
        own["metadata"] = {"annotations": annotations}
    asked = governed(rayjob("train", [worker_group("w", 2)], submitterPodTemplate=own))
    workload, flavors = admitted_workload(asked), FLAVORS
    patch = start_patch(decoded(asked), workload, flavors)
    assert isinstance(patch, list)
    started = apply_patch(asked, patch)
    started["spec"].update(suspend=True, submissionMode="HTTPMode")
    stopped = decoded(started, jobDeploymentStatus="Suspended")
    stop = read_job_state(stopped, workload, Priority(), flavors=flavors).stop
    restored = apply_patch(started, stop.operations)
    assert restored["spec"]["submitterPodTemplate"] == own
    after = decoded(restored, jobDeploymentStatus="Suspended")
    state = read_job_state(after, workload, Priority(), flavors=flavors)
    assert (state.stopped, state.started) == (True, False)
    assert [podset["name"] for podset in state.podsets] == ["head", "w"]


@pytest.mark.requirement("HOOK-10")
def test_the_mode_of_one_that_runs_cannot_change() -> None:
    template = {"spec": {"containers": [{"name": "mine"}]}}
    before = rayjob("train", [], submissionMode="HTTPMode", submitterPodTemplate=template)

    def errors(mode: str, *, suspend: bool = False) -> list[str]:
        found = {**before, "spec": {**before["spec"], "submissionMode": mode, "suspend": suspend}}
        return [one.path for one in validate(review("ray.io/RayJob", found, before)).errors]

    assert errors("K8sJobMode") == ["spec.submissionMode"]
    assert errors("K8sJobMode", suspend=True) == []
    assert errors("HTTPMode") == []
    before["spec"]["submissionMode"] = "K8sJobMode"
    assert errors("HTTPMode") == ["spec.submissionMode"]
    assert errors("") == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"shutdownAfterJobFinishes": False}, "spec.shutdownAfterJobFinishes"),
        ({"submissionMode": "InteractiveMode"}, "spec.submissionMode"),
        ({"submissionMode": "SidecarMode"}, "spec.submissionMode"),
        ({"clusterSelector": {"ray.io/cluster": "mine"}}, "spec.clusterSelector"),
        ({"rayClusterSpec": None}, "spec.rayClusterSpec"),
        (
            {"rayClusterSpec": {"headGroupSpec": {}, "enableInTreeAutoscaling": True}},
            "spec.rayClusterSpec.enableInTreeAutoscaling",
        ),
    ],
)
def test_what_kuberay_cannot_suspend_is_rejected(change: dict[str, Any], path: str) -> None:
    asked = rayjob("train", [worker_group("w", 1)])
    assert RAYJOB.shape_errors(asked) == []
    asked["spec"] |= change
    if asked["spec"]["rayClusterSpec"] is None:
        del asked["spec"]["rayClusterSpec"]
    (error,) = RAYJOB.shape_errors(asked)
    assert error.path == path
    assert error.help


def test_errors_of_its_cluster_have_its_paths() -> None:
    groups = [worker_group("submitter", 1), worker_group("w", 1, hosts=0)]
    found = [error.path for error in RAYJOB.shape_errors(rayjob("a" * 48, groups))]
    assert found == [
        "metadata.name",
        "spec.rayClusterSpec.workerGroupSpecs[0].groupName",
        "spec.rayClusterSpec.workerGroupSpecs[1].numOfHosts",
    ]
    many = [worker_group(f"w{index}", 1) for index in range(17)]
    (error,) = RAYJOB.shape_errors(rayjob("train", many))
    assert "the head and the submitter" in error.problem
    assert RAYJOB.shape_errors(rayjob("train", many, submissionMode="HTTPMode")) == []


@pytest.mark.requirement("TAS-26")
def test_it_is_inactive_when_its_cluster_and_its_submitter_are_deleted() -> None:
    asked = rayjob("train", [], suspend=True)
    assert RAYJOB.is_inactive(decoded(asked), ())
    for status in ("Initializing", "Running", "Suspending", "Retrying", "Waiting"):
        assert not RAYJOB.is_inactive(decoded(asked, jobDeploymentStatus=status), ())
    assert RAYJOB.is_inactive(decoded(asked, jobDeploymentStatus="Suspended"), ())
    # On its way to another cluster, which KubeRay may create from what it read before.
    asked["metadata"]["annotations"] = {names.WORKLOAD_ANNOTATION: "rayjob-train"}
    assert not RAYJOB.is_inactive(decoded(asked), ())


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ({}, None),
        ({"jobDeploymentStatus": "Running", "jobStatus": "SUCCEEDED"}, None),
        ({"jobDeploymentStatus": "Retrying", "jobStatus": "FAILED"}, None),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED", "message": "m"}, False),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, True),
        ({"jobDeploymentStatus": "Failed", "jobStatus": "FAILED"}, True),
    ],
)
def test_it_ends_by_its_deployment_status(status: dict[str, str], ended: bool | None) -> None:
    outcome = RAYJOB.finished(decoded(rayjob("train", []), **status))
    assert (None if outcome is None else outcome.failed) is ended
    if outcome is not None:
        assert outcome.message == status.get("message", outcome.message) != ""


def test_its_pods_count_as_ready_when_its_cluster_was() -> None:
    asked = rayjob("train", [])
    ready = {
        status: RAYJOB.pods_ready(decoded(asked, jobDeploymentStatus=status), {})
        for status in ("", "Initializing", "Running", "Retrying", "Suspending")
    }
    assert [status for status, is_ready in ready.items() if is_ready] == ["Running"]


@pytest.mark.requirement("HOOK-06")
def test_the_manifest_of_a_stored_job_gives_the_same_podsets() -> None:
    for mode in ("K8sJobMode", "HTTPMode"):
        asked = rayjob("train", [worker_group("w", 2, annotations=ASKS)], submissionMode=mode)
        for one in (asked, governed(asked)):
            assert RAYJOB.podsets(RAYJOB.manifest(decoded(one))) == RAYJOB.podsets(one)
    gone = {**rayjob("train", []), "spec": {"entrypoint": "x", "clusterSelector": {"a": "b"}}}
    assert RAYJOB.counts(RAYJOB.manifest(decoded(gone))) == {"head": 1, "submitter": 1}
    assert inject(RAYJOB, gone)[0]["path"] == "/spec/suspend"
