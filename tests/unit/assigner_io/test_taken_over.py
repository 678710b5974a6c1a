"""Jobs and Workloads that Kueue wrote: they go on as they are (ADR 69)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.jobframework.injection import PodTemplate, restored_template
from rackgate.jobframework.podsets import JOB_TEMPLATE_LABELS
from rackgate.jobframework.raycluster.wire import RayCluster
from rackgate.jobframework.registry import JOB, RAYCLUSTER
from rackgate.wire.kueue import PodSetTopologyRequest, Workload
from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.patches import workload_body
from rackgate_assigner.jobs.plan import plan_job
from rackgate_assigner.jobs.state import Priority, own_workload, workload_name_of
from rackgate_assigner.watches import decode_workload
from tests.support import composite_jobs as composite
from tests.support.objects import RACK
from tests.unit.assigner_io.builders import TEMPLATE, facts, job, workload
from tests.unit.assigner_io.kind_builders import cluster, ray_status
from tests.unit.assigner_io.kind_builders import facts as kind_facts
from tests.unit.assigner_io.kind_builders import own_workload as own_workload_of

pytestmark = pytest.mark.requirement("OPS-14")

READY = {"PodsReady": ("True", "Started")}
REPLACED = {"Finished": ("True", "WorkloadSliceReplaced")}
GROUP = names.GROUP


def names_of(*workloads: Workload) -> list[str]:
    return [one.metadata.name for one in workloads]


def test_a_running_job_keeps_a_workload_of_another_name() -> None:
    running = job(suspend=False, started=True, ready=4)
    other = workload(running, name="made-by-hand", admitted=True, conditions=READY)
    assert own_workload(running, [other]) is other
    assert isinstance(plan_job(running, [other], facts(running, other)), actions.NoAction)


def test_a_pending_job_keeps_a_workload_of_another_name_and_its_place_in_the_queue() -> None:
    waiting = job()
    other = workload(waiting, name="made-by-hand")
    assert own_workload(waiting, [other]) is other
    assert isinstance(plan_job(waiting, [other], facts(waiting, other)), actions.NoAction)


def test_the_workload_with_the_name_of_the_job_wins_and_the_other_one_is_deleted() -> None:
    waiting = job()
    own, other = workload(waiting), workload(waiting, name="made-by-hand")
    for listed in ([own, other], [other, own]):
        assert own_workload(waiting, listed) is own
    found = plan_job(waiting, [own, other], facts(waiting, own))
    assert isinstance(found, actions.DeleteWorkload)
    assert found.workload is other


def test_a_running_job_keeps_the_workload_with_quota_whatever_its_name() -> None:
    running = job(suspend=False, started=True, ready=4)
    own = workload(running)
    other = workload(running, name="made-by-hand", admitted=True, conditions=READY)
    for listed in ([own, other], [other, own]):
        assert own_workload(running, listed) is other
    found = plan_job(running, [own, other], facts(running, other))
    assert isinstance(found, actions.DeleteWorkload)
    assert found.workload is own


def test_of_two_slices_of_kueue_the_admitted_one_is_kept() -> None:
    running = job(suspend=False, started=True, ready=4)
    old = workload(running, name="job-train-11111", admitted=True, conditions=READY)
    new = workload(running, name="job-train-00000")
    assert own_workload(running, [new, old]) is old
    found = plan_job(running, [new, old], facts(running, old))
    assert isinstance(found, actions.DeleteWorkload)
    assert found.workload is new


@pytest.mark.parametrize("finalizer", [True, False])
def test_a_slice_that_kueue_replaced_stays_and_holds_nothing(finalizer: bool) -> None:
    running = job(suspend=False, started=True, ready=4)
    own = workload(running, name="job-train-22222", admitted=True, conditions=READY)
    old = workload(
        running,
        name="job-train-11111",
        admitted=True,
        conditions=REPLACED,
        finalizer=finalizer,
    )
    assert own_workload(running, [old, own]) is own
    found = plan_job(running, [old, own], facts(running, own))
    if finalizer:
        assert found == actions.ReleaseFinalizer(old)
    else:
        assert isinstance(found, actions.NoAction)


def test_when_a_job_ends_its_workload_is_the_one_it_ran_under() -> None:
    """Not the older slice that Kueue replaced, which was admitted as well: it would be deleted."""
    ended = job(suspend=False, started=True, finished="Complete")
    own = workload(ended, name="job-train-22222", admitted=True, conditions=READY)
    old = workload(ended, name="job-train-11111", admitted=True, conditions=REPLACED)
    assert own_workload(ended, [old, own]) is own
    found = plan_job(ended, [old, own], facts(ended, own))
    assert not isinstance(found, actions.DeleteWorkload)


def test_a_job_that_kueue_admitted_and_did_not_start_is_started() -> None:
    """Its Workload lacks the labels of the API server, and names an index without a topology."""
    plain = {**TEMPLATE, "metadata": {"labels": {"app": "train"}}}
    labels = {"app": "train", **dict.fromkeys(JOB_TEMPLATE_LABELS, "x")}
    waiting = job(pod={**TEMPLATE, "metadata": {"labels": labels}})
    own = workload(waiting, pod=plain, admitted=True)
    index = PodSetTopologyRequest(pod_index_label=names.COMPLETION_INDEX_LABEL)
    podset = msgspec.structs.replace(own.spec.pod_sets[0], topology_request=index)
    spec = msgspec.structs.replace(own.spec, pod_sets=(podset,))
    own = msgspec.structs.replace(own, spec=spec)
    assert isinstance(plan_job(waiting, [own], facts(waiting, own)), actions.StartJob)
    topology = {"annotations": {names.REQUIRED_TOPOLOGY: RACK}, "labels": labels}
    for metadata in (topology, {"labels": {**labels, "app": "other"}}):
        edited = job(pod={**TEMPLATE, "metadata": metadata})
        assert isinstance(plan_job(edited, [own], facts(edited, own)), actions.EvictWorkload)


@pytest.mark.parametrize(
    ("chain", "kept"), [("job-train-11111", True), ("another", False), ("", False)]
)
def test_an_elastic_job_that_kueue_started_without_topology_runs_on(chain: str, kept: bool) -> None:
    """Its template names the first slice and no Workload. Only what the Workload has too counts."""
    key = names.KUEUE_SLICE_CHAIN_ANNOTATION
    template = {**TEMPLATE, "metadata": {"annotations": {key: chain} if chain else {}}}
    own_annotations = {names.ELASTIC_ANNOTATION: "true", key: "job-train-11111"}
    running = job(suspend=False, pod=template, ready=4)
    own = workload(
        running,
        name="job-train-22222",
        admitted=True,
        conditions=READY,
        meta={"annotations": own_annotations},
    )
    found = plan_job(running, [own], facts(running, own))
    assert isinstance(found, actions.NoAction if kept else actions.StopJob)
    waiting = job(pod=template)
    found = plan_job(waiting, [own], facts(waiting, own))
    assert not isinstance(found, actions.EvictWorkload) or "suspended" not in found.message


def test_a_finished_workload_is_that_of_an_ended_job_only() -> None:
    old = workload(job(), name="made-by-hand", conditions={"Finished": ("True", "Succeeded")})
    ended = job(finished="Complete")
    assert own_workload(ended, [old]) is old
    assert own_workload(job(), [old]) is None
    found = plan_job(job(), [old], facts(job()))
    assert found in (
        actions.ReleaseFinalizer(old),
        actions.CreateWorkload(workload_name_of(job())),
    )


def test_a_workload_that_is_being_deleted_is_not_taken() -> None:
    waiting = job()
    assert own_workload(waiting, [workload(waiting, name="made-by-hand", deleted=True)]) is None


def test_a_job_is_restored_with_the_labels_that_its_selector_needs() -> None:
    """Kueue leaves them out of its Workload; without them the API server rejects the template."""
    own = {"controller-uid": "u", "job-name": "train", "batch.kubernetes.io/job-name": "train"}
    original = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}
    started = injected(original, "main")
    started["metadata"]["labels"] |= {"a": "b", **own}
    found = PodTemplate("main", "spec.template", "/spec/template", started)
    paths = [str(one["path"]) for one in JOB.restore_ops([found], {"main": original}, {})]
    labels = [one.rpartition("/")[2] for one in paths if "/labels/" in one]
    assert len(labels) == 3
    assert all(one.startswith("kueue.x-k8s.io~1") for one in labels)
    assert "/spec/template/metadata/labels" not in paths


# RayClusters, whose templates can be changed while they run.

TOPOLOGIES = [{}, {names.REQUIRED_TOPOLOGY: RACK}, {names.UNCONSTRAINED_TOPOLOGY: "true"}]


def injected(template: dict[str, Any], podset: str) -> dict[str, Any]:
    """A template as Kueue starts it."""
    meta = template.get("metadata", {})
    annotations = {**meta.get("annotations", {}), names.WORKLOAD_ANNOTATION: "raycluster-train"}
    if not set(meta.get("annotations", {})) & set(names.TOPOLOGY_ANNOTATIONS):
        annotations[names.UNCONSTRAINED_TOPOLOGY] = "true"
    labels = {
        names.PODSET_LABEL: podset,
        f"{GROUP}/local-queue-name": "queue",
        f"{GROUP}/cluster-queue-name": "cq",
    }
    spec = {
        **template["spec"],
        "nodeSelector": {"pool": "a"},
        "schedulingGates": [{"name": names.TOPOLOGY_GATE}],
    }
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def of_kueue(
    annotations: Mapping[str, str], *, autoscaling: bool, sidecar: bool, started: bool = True
) -> tuple[RayCluster, Workload]:
    """A RayCluster that Kueue admitted, and runs if it `started` it, and its Workload."""
    groups = [composite.worker_group("small", 2, annotations=annotations)]
    body = composite.raycluster(
        "train", groups, head_annotations=annotations, autoscaling=autoscaling, suspend=not started
    )
    body["metadata"] |= {"namespace": "ns", "uid": "u", "resourceVersion": "7"}
    if started:
        body["status"] = ray_status(2, HeadPodReady=True)
    stored = workload_body(RAYCLUSTER.decode(json.dumps(body).encode()), "w", Priority())
    request: dict[str, Any] | None = (
        {"required": RACK} if names.REQUIRED_TOPOLOGY in annotations else None
    )
    if names.UNCONSTRAINED_TOPOLOGY in annotations:
        request = {"unconstrained": True}
    for podset in stored["spec"]["podSets"]:
        spec = podset["template"]["spec"]
        spec.pop("initContainers", None)
        if not sidecar:
            spec["containers"] = spec["containers"][:1]
        podset.pop("topologyRequest", None)
        if request:
            podset["topologyRequest"] = request
    spec = body["spec"]
    head, (group,) = spec["headGroupSpec"], spec["workerGroupSpecs"]
    if started:
        head["template"] = injected(head["template"], "head")
        group["template"] = injected(group["template"], "small")
    assignments = [
        {"name": one["name"], "count": one["count"], "flavors": {"cpu": "tas"}}
        for one in stored["spec"]["podSets"]
    ]
    stored["status"] = {
        "admission": {"clusterQueue": "cq", "podSetAssignments": assignments},
        "conditions": [
            {"type": type_, "status": "True", "reason": "x", "message": ""}
            for type_ in ("QuotaReserved", "Admitted")
        ]
        + [{"type": "PodsReady", "status": "True", "reason": "Started", "message": ""}],
    }
    stored["metadata"]["uid"] = "w"
    found = RAYCLUSTER.decode(json.dumps(body).encode())
    return found, decode_workload(json.dumps(stored).encode())


@pytest.mark.parametrize("annotations", TOPOLOGIES, ids=["implicit", "required", "unconstrained"])
@pytest.mark.parametrize("autoscaling", [True, False])
@pytest.mark.parametrize("sidecar", [True, False])
def test_a_raycluster_that_kueue_started_is_not_changed(
    annotations: dict[str, str], autoscaling: bool, sidecar: bool
) -> None:
    running, own = of_kueue(annotations, autoscaling=autoscaling, sidecar=sidecar)
    found = kind_facts(running, own)
    assert found.change is None
    assert not isinstance(plan_job(running, [own], found), actions.EvictWorkload)


@pytest.mark.parametrize("annotations", TOPOLOGIES, ids=["implicit", "required", "unconstrained"])
@pytest.mark.parametrize("sidecar", [True, False])
def test_a_raycluster_that_kueue_admitted_and_did_not_start_is_started(
    annotations: dict[str, str], sidecar: bool
) -> None:
    waiting, own = of_kueue(annotations, autoscaling=True, sidecar=sidecar, started=False)
    found = plan_job(waiting, [own], kind_facts(waiting, own))
    assert not isinstance(found, actions.EvictWorkload | actions.DeactivateWorkload), found


@pytest.mark.parametrize("workers", [True, False])
@pytest.mark.parametrize("waiting", [True, False])
def test_an_autoscaler_that_was_not_admitted_is_a_change(waiting: bool, workers: bool) -> None:
    """Its user says what it requests. Only a Workload of Kueue lacks it although it is admitted."""
    small: dict[str, Any] = {} if workers else {"workerGroupSpecs": []}
    own = own_workload_of(cluster(**small))
    changed = cluster(
        suspend=waiting,
        started=not waiting,
        autoscaling=True,
        autoscalerOptions={"resources": {"requests": {"cpu": "64"}}},
        **small,
        status={} if waiting else ray_status(2, HeadPodReady=True),
    )
    found = plan_job(changed, [own], kind_facts(changed, own))
    assert isinstance(found, actions.EvictWorkload)
    assert found.reason == names.EvictionReason.JOB_CHANGED


@pytest.mark.parametrize("annotations", TOPOLOGIES, ids=["implicit", "required", "unconstrained"])
def test_a_real_change_of_it_is_still_one(annotations: dict[str, str]) -> None:
    running, own = of_kueue(annotations, autoscaling=False, sidecar=True)
    for text, other in (("ray:2.46.0", "ray:2.47.0"), ('"cpu":"1"', '"cpu":"2"')):
        raw = json.dumps(RAYCLUSTER.manifest(running), separators=(",", ":"))
        assert text in raw
        body = json.loads(raw.replace(text, other, 1))
        podsets = RAYCLUSTER.podsets(body)
        assert RAYCLUSTER.find_change(podsets, own, elastic=False) is not None


def test_what_kueue_injected_is_removed_when_the_job_stops_and_what_the_user_wrote_stays() -> None:
    original = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}
    started = injected(original, "head")
    started["metadata"]["labels"]["a"] = "b"
    assert f"{GROUP}/" not in json.dumps(restored_template(started, original))
    users = {
        "metadata": {
            "labels": {f"{GROUP}/local-queue-name": "mine"},
            "annotations": {names.UNCONSTRAINED_TOPOLOGY: "true"},
        },
        "spec": {"containers": []},
    }
    kept = restored_template(injected(users, "head"), users)["metadata"]
    assert names.UNCONSTRAINED_TOPOLOGY in kept["annotations"]
    assert f"{GROUP}/local-queue-name" in kept["labels"]
