"""A kind that is defined in tests alone, and registered by one line, is managed like any other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import names
from rackgate.jobframework import registry
from rackgate.jobframework.injection import StopPhase
from rackgate.jobframework.templates import gates_of, labels_of
from rackgate.wire.kueue import FlavorSpec, ResourceFlavor, Workload
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.jobs import plan
from rackgate_assigner.jobs.patches import start_patch, workload_body
from rackgate_assigner.jobs.state import Priority, is_managed, read_job_state, workload_name_of
from rackgate_assigner.uninstall.plan import PatchJob, RunningJobsPolicy, plan_restore
from rackgate_assigner.watches import Watches, decode_workload
from rackgate_cli.explain.cluster_reading import ClusterReading
from rackgate_cli.explain.manifest import load, preview_submission
from rackgate_ungater.state_machine.gated_objects import decode_workload as gated_workload
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.validate import validate
from tests.support.composite_jobs import pod_template
from tests.support.objects import RACK
from tests.unit.govern.patching import apply_patch
from tests.unit.jobframework.training_job import TrainingJob, TrainingJobKind
from tests.unit.webhook.reviews import review

KIND = TrainingJobKind()
REVIEWED = "training.example.com/TrainingJob"
FLAVORS = {"tas": ResourceFlavor(spec=FlavorSpec(node_labels={"pool": "tas"}))}
Object = dict[str, Any]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    registry.register(KIND)
    yield
    del registry.KINDS[KIND.name]
    del registry._BY_TYPE[TrainingJob]


def written(**roles: int) -> Object:
    """A TrainingJob as its user writes it, all pods of a role in one rack."""
    asks = {names.REQUIRED_TOPOLOGY: RACK}
    return {
        "apiVersion": "training.example.com/v1",
        "kind": "TrainingJob",
        "metadata": {
            "name": "train",
            "namespace": "team",
            "uid": "11111111-2222-3333-4444-555555555555",
            "labels": {names.QUEUE_LABEL: "queue"},
        },
        "spec": {
            "roles": [
                {"name": name, "pods": pods, "template": pod_template("1", asks)}
                for name, pods in (roles or {"Leader": 1, "worker": 4}).items()
            ]
        },
    }


def created(job: Object) -> Object:
    """As the mutating webhook leaves it."""
    answer: Object = apply_patch(job, mutate(review(REVIEWED, job)).operations)
    return answer


def decoded(job: Mapping[str, Any], **status: Any) -> TrainingJob:
    return KIND.decode(json.dumps({**job, "status": status}).encode())


def admitted_body(job: TrainingJob, **status: Any) -> bytes:
    """Its Workload, admitted with a topology assignment for each PodSet."""
    body = workload_body(job, workload_name_of(job), Priority())
    assignments = [
        {
            "name": podset["name"],
            "count": podset["count"],
            "flavors": {"cpu": "tas"},
            "topologyAssignment": {"levels": [], "slices": []},
        }
        for podset in body["spec"]["podSets"]
    ]
    body["status"] = {
        "admission": {"clusterQueue": "cq", "podSetAssignments": assignments},
        "conditions": [{"type": "Admitted", "status": "True", "reason": "Admitted"}],
        **status,
    }
    return json.dumps(body).encode()


def admitted_workload(job: TrainingJob, **status: Any) -> Workload:
    return decode_workload(admitted_body(job, **status))


def started() -> tuple[Object, Workload]:
    job = created(written())
    workload = admitted_workload(decoded(job))
    patch = start_patch(decoded(job), workload, FLAVORS)
    assert isinstance(patch, list)
    return apply_patch(job, patch), workload


def next_action(job: TrainingJob, *workloads: Workload) -> plan.Action:
    own = workloads[0] if workloads else None
    job_state = read_job_state(job, own, Priority(), flavors=FLAVORS)
    return plan.plan_job(job, workloads, job_state)


def test_the_webhook_suspends_and_injects_it() -> None:
    job = created(written())
    assert job["spec"]["suspend"] is True
    for role, podset in zip(job["spec"]["roles"], ("leader", "worker"), strict=True):
        assert gates_of(role["template"]) == [names.TOPOLOGY_GATE]
        assert labels_of(role["template"])[names.PODSET_LABEL] == podset
    assert mutate(review(REVIEWED, job)).operations == []
    assert validate(review(REVIEWED, job)).errors == []


def test_the_webhook_rejects_what_is_wrong_with_it() -> None:
    job = created(written(**{"no name": 1}))
    job["spec"]["roles"][0]["template"]["metadata"]["annotations"][names.SLICE_SIZE] = "2"
    template = "spec.roles[0].template.metadata.annotations"
    assert {error.path for error in validate(review(REVIEWED, job)).errors} == {
        "spec.roles[0].name",
        f"{template}[{names.SLICE_SIZE}]",
    }
    running, _ = started()
    moved = {**running, "metadata": {**running["metadata"], "labels": {names.QUEUE_LABEL: "b"}}}
    paths = [error.path for error in validate(review(REVIEWED, moved, running)).errors]
    assert paths == [f"metadata.labels[{names.QUEUE_LABEL}]"]


def test_gates_that_a_manifest_applied_again_drops_are_kept() -> None:
    running, _ = started()
    changed = {**written(), "metadata": running["metadata"]}
    changed["spec"]["suspend"] = False
    kept = apply_patch(changed, mutate(review(REVIEWED, changed, running)).operations)
    assert kept["spec"]["roles"] == running["spec"]["roles"]


def test_a_running_one_is_not_scaled_up_beyond_its_admission() -> None:
    running, _ = started()
    for role in running["spec"]["roles"]:
        del role["template"]["spec"]["schedulingGates"]
    grown = json.loads(json.dumps(running))
    grown["spec"]["roles"][1]["pods"] = 8
    answer = mutate(review(REVIEWED, grown, running))
    assert {"op": "add", "path": "/spec/suspend", "value": True} in answer.operations
    assert "podset worker of the running TrainingJob grows from 4 to 8 pods" in answer.warnings[0]


def test_it_gets_a_workload_of_its_podsets() -> None:
    job = decoded(created(written()))
    assert is_managed(job)
    assert next_action(job) == plan.CreateWorkload(workload_name_of(job))
    body = workload_body(job, workload_name_of(job), Priority())
    assert body["metadata"]["ownerReferences"][0]["kind"] == "TrainingJob"
    assert [(one["name"], one["count"]) for one in body["spec"]["podSets"]] == [
        ("leader", 1),
        ("worker", 4),
    ]
    request = {"required": RACK, "podIndexLabel": names.COMPLETION_INDEX_LABEL}
    assert all(one["topologyRequest"] == request for one in body["spec"]["podSets"])
    owner = registry.owner_of(admitted_workload(job))
    assert owner == (KIND, "team/train")


def test_it_is_started_stopped_and_restored() -> None:
    job, own = decoded(created(written())), admitted_workload(decoded(created(written())))
    assert next_action(job, own) == plan.StartJob(own)
    running, _ = started()
    assert running["spec"]["suspend"] is False
    worker = running["spec"]["roles"][1]["template"]
    assert worker["spec"]["nodeSelector"] == {"pool": "tas"}
    assert labels_of(worker)[names.TAS_LABEL] == "true"
    assert next_action(decoded(running, ready=5), own) == plan.UpdatePodsReady(own, True)
    evicted = admitted_workload(
        job, conditions=[{"type": "Evicted", "status": "True", "reason": "Preempted"}]
    )
    stop = next_action(decoded(running, active=5), evicted)
    assert isinstance(stop, plan.StopJob)
    suspended = apply_patch(running, stop.action.operations)
    assert isinstance(next_action(decoded(suspended, active=5), evicted), plan.NoAction)
    restore = next_action(decoded(suspended), evicted)
    assert isinstance(restore, plan.StopJob)
    assert restore.action.phase is StopPhase.RESTORE
    restored = apply_patch(suspended, restore.action.operations)
    assert restored["spec"]["roles"] == written()["spec"]["roles"]
    assert next_action(decoded(restored), evicted) == plan.ReleaseQuota(evicted)


def test_its_end_finishes_the_workload() -> None:
    running, own = started()
    action = next_action(decoded(running, phase="Failed"), own)
    assert isinstance(action, plan.FinishWorkload)
    assert (action.reason, action.message) == ("Failed", "Failed")


def test_explain_shows_it_before_it_is_submitted(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(written()))
    preview = preview_submission(load(str(path), None), None, ClusterReading(Cache()), "team")
    assert (preview.kind, preview.errors, preview.unmanaged_reason) == ("TrainingJob", (), "")
    assert preview.workload is not None
    assert [podset.count for podset in preview.workload.spec.pod_sets] == [1, 4]


def test_its_pods_and_jobs_belong_to_it() -> None:
    job = created(written())
    owner = {"apiVersion": "training.example.com/v1", "kind": "TrainingJob", "name": "train"}
    child = {
        "kind": "Job",
        "metadata": {
            "labels": {names.QUEUE_LABEL: "queue"},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"template": {"spec": {}}},
    }
    assert mutate(review("batch/Job", child)).operations == [], "its owner is queued"
    workload = gated_workload(admitted_body(decoded(job)))
    assert not workload.owned_by_jobset, "it controls its pods itself"


def test_it_is_watched_and_restored_by_an_uninstall() -> None:
    assert Watches(None).kinds["TrainingJob"].resource is KIND.resource  # type: ignore[arg-type]  # no client is used
    job = decoded(created(written()))
    job_state = read_job_state(job, None, Priority())
    action = plan_restore(job, job_state, RunningJobsPolicy.LEAVE)
    assert isinstance(action, PatchJob)
    assert (
        apply_patch(created(written()), action.operations)["spec"]["roles"]
        == (written()["spec"]["roles"])
    )
