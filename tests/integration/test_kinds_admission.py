"""JobSets, RayClusters, RayJobs and their parts: webhook up, down, and never called."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.integration.test_webhook_down import reviews
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import (
    jobset,
    marks,
    raycluster,
    rayjob,
    replicated_job,
    worker_group,
)
from tests.support.composite_views import bound_pods, ray_selector, ray_state, state
from tests.support.identities import as_operator
from tests.support.objects import RACK, Object, job
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

# A queue that does not exist: what is governed by it is never admitted.
NOWHERE = "nowhere"
ASKS = marks(required=RACK)
OWNER: Object = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "name": "owner",
    "uid": "00000000-0000-0000-0000-000000000001",
    "controller": True,
}


def a_jobset(name: str = "train", queue: str | None = NOWHERE, **spec: Any) -> Object:
    parts = [replicated_job("leader", 1), replicated_job("workers", 2, annotations=ASKS)]
    return jobset(name, parts, queue=queue, **spec)


def a_raycluster(name: str = "ray", queue: str | None = NOWHERE, **spec: Any) -> Object:
    groups = [worker_group("w", 1), worker_group("racked", 1, annotations=ASKS)]
    return raycluster(name, groups, queue=queue, **spec)


def a_rayjob(name: str = "ray-job", **spec: Any) -> Object:
    groups = [worker_group("w", 1), worker_group("racked", 1, annotations=ASKS)]
    return rayjob(name, groups, queue=NOWHERE, **spec)


def template_of(found: Object) -> Object:
    """The last pod template of either kind; it asks for a rack."""
    spec = found["spec"].get("rayClusterSpec", found["spec"])
    if found["kind"] == "JobSet":
        return dict(spec["replicatedJobs"][-1]["template"]["spec"]["template"])
    return dict(spec["workerGroupSpecs"][-1]["template"])


def put(found: Object, part: str, field: str, value: Any) -> Object:
    """A copy with `value` put into its last pod template."""
    result = copy.deepcopy(found)
    template_of(result).setdefault(part, {})
    template_of(result)[part][field] = value
    return result


def elastic(found: Object) -> Object:
    found["spec"]["enableInTreeAutoscaling"] = True
    return found


KINDS: list[tuple[Resource, Object]] = [
    (kinds.JOBSETS, a_jobset()),
    (kinds.RAY_CLUSTERS, elastic(a_raycluster())),
    (kinds.RAY_JOBS, a_rayjob()),
]
each_kind = pytest.mark.parametrize(("kind", "asked"), KINDS, ids=[kind.kind for kind, _ in KINDS])


async def refused(writing: Any, *words: str) -> None:
    with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
        await writing
    assert all(word in caught.value.message for word in words), caught.value.message


@each_kind
@pytest.mark.requirement("HOOK-02", "HOOK-04", "HOOK-10", "SLC-13", "TAS-29")
async def test_all_kinds_are_stored_suspended_marked_and_never_started_by_others(
    cluster: Cluster, kind: Resource, asked: Object
) -> None:
    stored = await cluster.create(kind, asked)
    name = stored["metadata"]["name"]
    assert stored["spec"]["suspend"] is True
    template = template_of(stored)
    assert template["metadata"]["labels"][names.PODSET_LABEL] in ("workers", "racked")
    gates = [gate["name"] for gate in template["spec"]["schedulingGates"]]
    held = [names.ELASTIC_GATE] if kind is kinds.RAY_CLUSTERS else []
    assert gates == [names.TOPOLOGY_GATE, *held]
    start: Object = {"spec": {"suspend": False}}
    await refused(cluster.merge(kind, name, start), "unsuspended by Rackgate")
    start["metadata"] = {"labels": {names.QUEUE_LABEL: None}}
    await refused(cluster.merge(kind, name, start), "unsuspended by Rackgate")
    # Whoever writes the templates anew does not take our marks away.
    fields = {kinds.JOBSETS: "replicatedJobs", kinds.RAY_JOBS: "rayClusterSpec"}
    field = fields.get(kind, "workerGroupSpecs")
    again = await cluster.merge(kind, name, {"spec": {field: asked["spec"][field]}})
    assert template_of(again) == template
    leave: Object = {"metadata": {"labels": {names.QUEUE_LABEL: None}}}
    left = template_of(await cluster.merge(kind, name, leave))
    assert left["metadata"] == {"annotations": ASKS}
    assert not left["spec"].get("schedulingGates")


@each_kind
@pytest.mark.requirement("HOOK-09")
async def test_reserved_marks_are_rejected_in_every_template(
    cluster: Cluster, kind: Resource, asked: Object
) -> None:
    marked: list[tuple[str, str, Any]] = [
        ("metadata", "labels", {names.TAS_LABEL: "true"}),
        ("metadata", "labels", {names.PODSET_LABEL: "x"}),
        ("metadata", "annotations", {**ASKS, names.WORKLOAD_ANNOTATION: "w"}),
        ("metadata", "annotations", {**ASKS, names.ELASTIC_ANNOTATION: "1"}),
        ("spec", "schedulingGates", [{"name": names.ELASTIC_GATE}]),
    ]
    for queue in (NOWHERE, None):
        for part, field, value in marked:
            wish = put(asked, part, field, value)
            wish["metadata"]["labels"] = {names.QUEUE_LABEL: queue} if queue else {}
            if queue and kind is kinds.RAY_CLUSTERS and part == "spec":
                continue  # the webhook would have set it, too
            await refused(cluster.create(kind, wish), f"template.{part}.{field}", "reserved")
    label = put(asked, "metadata", "labels", {"ray.io/node-type": "redis-cleanup"})
    await refused(cluster.create(kind, label), "ray.io/node-type")


@each_kind
@pytest.mark.requirement("VAL-12")
async def test_a_bad_request_is_rejected_with_the_path_of_its_template(
    cluster: Cluster, kind: Resource, asked: Object
) -> None:
    wish = put(asked, "metadata", "annotations", marks(required=RACK, preferred=RACK))
    await refused(cluster.create(kind, wish), "template.metadata.annotations: more than one")


@pytest.mark.requirement("HOOK-15", "HOOK-10", "HOOK-09")
@pytest.mark.usefixtures("webhook_down")
async def test_with_the_webhook_down_the_policies_keep_the_same_promises(
    cluster: Cluster, job_controller: Cluster
) -> None:
    for kind, asked in KINDS:
        await refused(cluster.create(kind, asked), "spec.suspend", "did not answer")
        resting = copy.deepcopy(asked)
        resting["spec"]["suspend"] = True
        for part, field, value in (
            ("metadata", "labels", {names.TAS_LABEL: "true"}),
            ("metadata", "labels", {names.PODSET_LABEL: "x"}),
            ("metadata", "annotations", {names.WORKLOAD_ANNOTATION: "w"}),
        ):
            wish = put(resting, part, field, value)
            await refused(cluster.create(kind, wish), f"template.{part}.{field}[", "reserved")
        name = (await cluster.create(kind, resting))["metadata"]["name"]
        start: Object = {"spec": {"suspend": False}}
        await refused(cluster.merge(kind, name, start), "unsuspended by Rackgate")
        # One that runs ungoverned stays what it is.
        plain = copy.deepcopy(asked) | {"metadata": {"name": f"{name}-plain"}}
        await cluster.create(kind, plain)
        enter: Object = {"metadata": {"labels": {names.QUEUE_LABEL: NOWHERE}}}
        words = ("the queue of a", "that is not suspended cannot change")
        await refused(cluster.merge(kind, f"{name}-plain", enter), *words)
        forged = put(plain, "metadata", "labels", {names.TAS_LABEL: "true"})["spec"]
        await refused(cluster.merge(kind, f"{name}-plain", {"spec": forged}), "reserved")
    many = raycluster("many", [worker_group(f"w{i}", 1) for i in range(18)], suspend=True)
    await refused(cluster.create(kinds.RAY_CLUSTERS, many), "1 to 18 pod templates")
    # The fullest job stays within the cost that the API server allows its policies.
    many["spec"]["workerGroupSpecs"].pop()
    await cluster.create(kinds.RAY_CLUSTERS, elastic(many))
    await cluster.merge(kinds.RAY_CLUSTERS, "many", {"spec": {"rayVersion": "2.47.0"}})
    groups = [worker_group(f"w{i}", 1, annotations=ASKS) for i in range(16)]
    submitter = groups[0]["template"]
    full = rayjob("full", groups, queue=NOWHERE, suspend=True, submitterPodTemplate=submitter)
    await cluster.create(kinds.RAY_JOBS, full)
    await cluster.merge(kinds.RAY_JOBS, "full", {"spec": {"entrypoint": "another"}})
    for change, path in BAD_RAYJOBS:
        wish = a_rayjob("bad", suspend=True, **change)
        await refused(cluster.create(kinds.RAY_JOBS, wish), path)
    for found, word in ((an_elastic_pod(), "elastic-job"), (a_cleanup_pod(), "cleans up")):
        await refused(job_controller.create(kinds.PODS, found), "did not answer", word)


BAD_RAYJOBS: list[tuple[Object, str]] = [
    ({"shutdownAfterJobFinishes": False}, "spec.shutdownAfterJobFinishes: "),
    ({"submissionMode": "InteractiveMode"}, "spec.submissionMode: "),
    ({"submissionMode": "SidecarMode"}, "spec.submissionMode: "),
    ({"clusterSelector": {"ray.io/cluster": "mine"}}, "spec.clusterSelector: "),
    (
        {"rayClusterSpec": elastic(a_raycluster())["spec"]},
        "spec.rayClusterSpec.enableInTreeAutoscaling: ",
    ),
]


@pytest.mark.requirement("VAL-12")
@pytest.mark.parametrize(("change", "path"), BAD_RAYJOBS, ids=[path for _, path in BAD_RAYJOBS])
async def test_a_rayjob_that_kuberay_cannot_suspend_is_rejected(
    cluster: Cluster, change: Object, path: str
) -> None:
    await refused(cluster.create(kinds.RAY_JOBS, a_rayjob("bad", **change)), path)


@pytest.mark.requirement("HOOK-10", "HOOK-15", "TAS-28")
@pytest.mark.usefixtures("webhook_down")
async def test_with_the_webhook_down_no_rayjob_has_a_submitter_that_was_not_admitted(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "100", "memory": "100Gi"})
    groups = [worker_group("w", 1)]

    async def running(name: str, **spec: Any) -> Object:
        asked = rayjob(name, groups, suspend=True, **spec)
        await cluster.create(kinds.RAY_JOBS, asked)
        return await state(
            cluster, kinds.RAY_JOBS, name, "is started", lambda it: not it["spec"]["suspend"]
        )

    template = groups[0]["template"]
    await running("http", submissionMode="HTTPMode", submitterPodTemplate=template)
    change: Object = {"spec": {"submissionMode": "K8sJobMode"}}
    words = ("spec.submissionMode: ", '"HTTPMode" to "K8sJobMode"', "did not answer")
    await refused(cluster.merge(kinds.RAY_JOBS, "http", change), *words)
    change["spec"]["submitterPodTemplate"] = None
    await refused(cluster.merge(kinds.RAY_JOBS, "http", change), *words)
    # No pod is made from this template now.
    change = {"spec": {"submitterPodTemplate": None}}
    await cluster.merge(kinds.RAY_JOBS, "http", change)
    change = {"spec": {"submissionMode": "K8sJobMode", "suspend": True}}
    await cluster.merge(kinds.RAY_JOBS, "http", change)

    started = await running("job")
    submitter = started["spec"]["submitterPodTemplate"]
    assert submitter["metadata"]["annotations"][names.WORKLOAD_ANNOTATION]
    head = started["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    assert submitter["spec"]["nodeSelector"] == head["spec"]["nodeSelector"]


def a_pod(name: str, gates: tuple[str, ...] = (), **labels: str) -> Object:
    container = {"name": "main", "image": "registry.example/any:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {names.PODSET_LABEL: "head", **labels},
            "annotations": {names.WORKLOAD_ANNOTATION: "w"},
            "ownerReferences": [dict(OWNER)],
        },
        "spec": {
            "containers": [container],
            "schedulingGates": [{"name": gate} for gate in (*gates, "example.com/other")],
        },
    }


def an_elastic_pod() -> Object:
    found = a_pod("elastic")
    found["metadata"]["annotations"][names.ELASTIC_ANNOTATION] = "true"
    return found


def a_cleanup_pod() -> Object:
    gates = (names.TOPOLOGY_GATE, names.ELASTIC_GATE)
    found = a_pod("cleanup", gates, **{"ray.io/node-type": "redis-cleanup"})
    found["metadata"]["ownerReferences"][0] |= {"apiVersion": "batch/v1", "kind": "Job"}
    return found


@pytest.mark.requirement("SLC-13", "HOOK-04")
async def test_the_net_below_holds_elastic_pods_and_lets_clean_up_pods_go(
    job_controller: Cluster,
) -> None:
    stored = await job_controller.create(kinds.PODS, an_elastic_pod())
    gates = [gate["name"] for gate in stored["spec"]["schedulingGates"]]
    assert gates == ["example.com/other", names.ELASTIC_GATE]
    assert names.TAS_LABEL not in stored["metadata"]["labels"]
    stored = await job_controller.create(kinds.PODS, a_cleanup_pod())
    assert stored["spec"]["schedulingGates"] == [{"name": "example.com/other"}]
    assert names.PODSET_LABEL not in stored["metadata"]["labels"]


@pytest.mark.requirement("HOOK-02", "HOOK-05")
@pytest.mark.field_note("W1")
async def test_what_is_not_managed_never_reaches_the_webhook(
    cluster: Cluster, playground: Playground
) -> None:
    begun = await reviews(playground)
    await cluster.create(kinds.RAY_CLUSTERS, a_raycluster(enableInTreeAutoscaling=True))
    before = await reviews(playground)
    assert before >= begun + 2, "a governed one does"
    # No controller of JobSets may meddle with a child that it never made.
    wish = a_jobset("plain", queue=None, suspend=True, managedBy="example.com/nobody")
    uid = (await cluster.create(kinds.JOBSETS, wish))["metadata"]["uid"]
    owner = {**OWNER, "name": "plain", "uid": uid}
    await cluster.create(kinds.RAY_CLUSTERS, a_raycluster("plain", queue=None, suspend=True))
    part = job("part", 1, queue=NOWHERE, required=RACK, spec={"suspend": True})
    part["metadata"]["ownerReferences"] = [owner]
    part["spec"]["template"]["metadata"]["labels"] = {names.TAS_LABEL: "true"}
    async with as_operator(playground, cluster, "jobset") as operator:
        stored = await operator.create(kinds.JOBS, part)
        assert "schedulingGates" not in stored["spec"]["template"]["spec"]
        # Its controller may start it and write its template, as JobSet does.
        mark = {"metadata": {"annotations": {names.WORKLOAD_ANNOTATION: "w"}}}
        change: Object = {"spec": {"suspend": False, "template": mark}}
        await operator.merge(kinds.JOBS, "part", change)
    groups = (await cluster.get(kinds.RAY_CLUSTERS, "ray"))["spec"]["workerGroupSpecs"]
    groups[0] |= {"replicas": 3, "scaleStrategy": {"workersToDelete": []}}
    await cluster.merge(kinds.RAY_CLUSTERS, "ray", {"spec": {"workerGroupSpecs": groups}})
    assert await reviews(playground) == before


async def test_a_jobset_goes_when_its_labelled_jobs_are_left_behind(cluster: Cluster) -> None:
    part = replicated_job("w", 1, replicas=1)
    part["template"]["metadata"] = {"labels": {names.QUEUE_LABEL: NOWHERE}}
    await cluster.create(kinds.JOBSETS, jobset("plain", [part], queue=None))

    async def runs() -> bool:
        found = await cluster.list_all(kinds.JOBS)
        return len(found) == 1 and not found[0]["spec"].get("suspend")

    await until("the JobSet has its Job", runs)
    options = json.dumps({"propagationPolicy": "Orphan"}).encode()
    await cluster.client.delete(kinds.JOBSETS.path(cluster.namespace, "plain"), options)

    async def queued() -> bool:
        (left,) = await cluster.list_all(kinds.JOBS)
        return bool(left["spec"].get("suspend")) and not await cluster.list_all(kinds.JOBSETS)

    await until("the JobSet is gone and its Job waits like any other", queued)


@pytest.mark.requirement("SLC-02", "HOOK-04")
@pytest.mark.field_note("E13")
async def test_a_running_raycluster_keeps_queue_and_marks_and_is_stopped_for_a_new_group(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    # The sidecar that scales the cluster asks for memory, too.
    await cluster.add_queue(quota={"cpu": "100", "memory": "100Gi"})
    asked = elastic(a_raycluster(queue="queue"))
    await cluster.create(kinds.RAY_CLUSTERS, asked)
    running = await ray_state(cluster, "ray", "ready")
    for value in ("other", None):
        label: Object = {"metadata": {"labels": {names.QUEUE_LABEL: value}}}
        await refused(cluster.merge(kinds.RAY_CLUSTERS, "ray", label), "cannot change")
    change: Object = {"spec": {"enableInTreeAutoscaling": False}}
    await refused(cluster.merge(kinds.RAY_CLUSTERS, "ray", change), "cannot become elastic")
    groups = asked["spec"]["workerGroupSpecs"]
    again = await cluster.merge(kinds.RAY_CLUSTERS, "ray", {"spec": {"workerGroupSpecs": groups}})
    for part in ("labels", "annotations"):
        kept = template_of(running)["metadata"][part]
        assert template_of(again)["metadata"][part] == kept
    assert names.WORKLOAD_ANNOTATION in template_of(again)["metadata"]["annotations"]
    more = [*groups, worker_group("more", 1)]
    stopped = await cluster.merge(kinds.RAY_CLUSTERS, "ray", {"spec": {"workerGroupSpecs": more}})
    assert stopped["spec"]["suspend"] is True
    pods = await bound_pods(cluster, ray_selector("ray"), 4)
    assert all(pod["metadata"]["annotations"][names.WORKLOAD_ANNOTATION] for pod in pods)
