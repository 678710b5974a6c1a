"""Gangs of StatefulSets, LeaderWorkerSets, TrainJobs and others, on their real controllers."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.features import GANG_SCHEDULING, WORKLOAD_REV_N
from rackgate.gang.linked import linked_name
from rackgate.jobframework.registry import LINKED_KINDS
from rackgate.kube.errors import UnprocessableError
from tests.support import training_operators
from tests.support.cluster import Cluster, exactly_bound, until
from tests.support.composite_jobs import leaderworkerset
from tests.support.gang_cases import Case, lifecycles, pairs
from tests.support.objects import Object
from tests.support.playground import Playground, start_playground
from tests.support.task_cluster import nodes_and_queue, runner
from tests.support.task_pages import FOLDER

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

LINK, QUEUE, GATE = names.GANG_LINK_ANNOTATION, names.QUEUE_LABEL, names.GANG_GATE
TRAINING_RUNTIMES: Final = Resource(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", False, "ClusterTrainingRuntime"
)
CRON_JOBS: Final = Resource("batch", "v1", "cronjobs", True, "CronJob")
LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """A control plane of its own, with the gates."""
    folder = tmp_path_factory.mktemp("linked")
    running = start_playground(
        folder / "state", operators=("jobset", "lws"), gates=(GANG_SCHEDULING, WORKLOAD_REV_N)
    )
    try:
        asyncio.run(training_operators.install_crds(running))
        with running.webhooks_port(), training_operators.running(running, folder):
            yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def cluster_of_the_pages(playground: Playground) -> Iterator[Playground]:
    with nodes_and_queue(playground):
        yield playground


@pytest.mark.parametrize("kind", ["statefulset", "leaderworkerset", "cronjob", "trainjob"])
def test_every_command_of_a_page_does_what_it_says(
    kind: str, cluster_of_the_pages: Playground, tmp_path: Path
) -> None:
    page, jobs = FOLDER / f"run-a-{kind}.md", "jobs,jobsets,statefulsets,deployments"
    with runner(cluster_of_the_pages, tmp_path, page, jobs=jobs) as run:
        run.run(page)


def pods(cpu: str = "1") -> Object:
    container = {"name": "c", "image": "registry.example/c:1"}
    return {"containers": [{**container, "resources": {"requests": {"cpu": cpu}}}]}


def workload(kind: str, name: str, replicas: int, **spec: Any) -> Object:
    """A StatefulSet or Deployment of the queue."""
    template = {"metadata": {"labels": {"app": name}}, "spec": pods()}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": {QUEUE: "queue"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
            **spec,
        },
    }


def own(kind: str, name: str) -> str:
    return linked_name(LINKED_KINDS[kind], name)


async def gang(cluster: Cluster, name: str) -> Object:
    """A Workload of gangs, once it exists."""
    found = await until(
        f"the Workload of gangs {name} exists", lambda: cluster.find(kinds.GANG_WORKLOADS, name)
    )
    assert found is not None
    return found


async def gone(cluster: Cluster, name: str) -> None:
    async def is_gone() -> bool:
        return await cluster.find(kinds.GANG_WORKLOADS, name) is None

    await until(f"the Workload of gangs {name} is collected", is_gone)


async def linked_pods(cluster: Cluster, selector: str, count: int) -> list[Object]:
    """The pods of an object, once so many exist."""

    async def exist() -> list[Object]:
        found = await cluster.list_all(kinds.PODS, labelSelector=selector)
        return found if len(found) >= count else []

    return await until(f"{count} pods of {selector} exist", exist)


async def bound(cluster: Cluster, selector: str, count: int) -> list[Object]:
    """The bound pods of an object, once there are exactly so many."""

    async def found() -> list[Object]:
        pods = await cluster.list_all(kinds.PODS, labelSelector=selector)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    return await exactly_bound(f"{count} pods of {selector} are bound", found, count)


def links(found: list[Object]) -> set[str]:
    return {pod["metadata"].get("annotations", {}).get(LINK, "") for pod in found}


def written(body: Object) -> Callable[[Object], None]:
    """An edit that leaves nothing of an object but what its user writes, as `kubectl replace`."""

    def edit(stored: Object) -> None:
        version = stored["metadata"]["resourceVersion"]
        stored.clear()
        stored.update(body, metadata={**body["metadata"], "resourceVersion": version})

    return edit


async def born_gated(cluster: Cluster, name: str) -> bool:
    """Whether the first version of a pod had the gate: the audit would show it, managers do too."""
    pod = await cluster.get(kinds.PODS, name)
    managers = {entry["manager"] for entry in pod["metadata"].get("managedFields", [])}
    gated = any(one["name"] == GATE for one in pod["spec"].get("schedulingGates", []))
    return gated or any("ungater" in manager for manager in managers)


@pytest.mark.requirement("GNG-23", "GNG-24", "GNG-27")
async def test_a_parallel_stateful_set_is_linked_gated_followed_and_collected(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    name = own("StatefulSet", "train")
    body = workload("StatefulSet", "train", 4, serviceName="s", podManagementPolicy="Parallel")
    made = await cluster.create(kinds.STATEFUL_SETS, body)
    assert made["spec"]["template"]["metadata"]["annotations"] == {LINK: name}
    found = await gang(cluster, name)
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == (
        "StatefulSet",
        made["metadata"]["uid"],
        True,
    )
    assert found["metadata"]["labels"] == {QUEUE: "queue"}
    (group,) = found["spec"]["gangGroups"]
    assert (group["minCount"], group["maxCount"]) == (4, 4)
    members = await linked_pods(cluster, "app=train", 4)
    assert links(members) == {name}
    assert {pod["metadata"]["labels"][QUEUE] for pod in members} == {"queue"}
    for pod in members:
        assert await born_gated(cluster, pod["metadata"]["name"])
    await bound(cluster, "app=train", 4)
    revision = made["metadata"]["generation"]

    with pytest.raises(UnprocessableError, match="while the StatefulSet has pods"):
        await cluster.merge(
            kinds.STATEFUL_SETS, "train", {"metadata": {"labels": {QUEUE: "other"}}}
        )
    with pytest.raises(UnprocessableError, match="cannot be removed"):
        await cluster.merge(kinds.STATEFUL_SETS, "train", {"metadata": {"labels": {QUEUE: None}}})
    # A client that writes the whole object drops the link, and the webhook sets it again.
    await cluster.replace(kinds.STATEFUL_SETS, "train", written(body))
    stored = await cluster.get(kinds.STATEFUL_SETS, "train")
    assert stored["metadata"]["generation"] == revision, "the template is the same"

    await cluster.merge(kinds.STATEFUL_SETS, "train", {"spec": {"replicas": 6}})

    async def follows() -> bool:
        (group,) = (await gang(cluster, name))["spec"]["gangGroups"]
        return (group["minCount"], group["maxCount"]) == (6, 6)

    await until("the counts follow the replicas", follows)
    await bound(cluster, "app=train", 6)
    await cluster.delete(kinds.GANG_WORKLOADS, name)

    async def again() -> bool:
        found = await cluster.find(kinds.GANG_WORKLOADS, name)
        return found is not None and found["metadata"]["uid"] != owner["uid"]

    await until("it is made again", again)
    await cluster.delete(kinds.STATEFUL_SETS, "train")
    await gone(cluster, name)


@pytest.mark.requirement("GNG-18", "GNG-23", "GNG-28")
async def test_each_group_of_a_leaderworkerset_is_a_gang_and_its_stateful_sets_are_left_alone(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    body = leaderworkerset("serve", replicas=2, size=3)
    body["metadata"]["labels"] = {QUEUE: "queue"}
    await cluster.create(kinds.LEADER_WORKER_SETS, body)
    name = own("LeaderWorkerSet", "serve")
    found = await gang(cluster, name)
    assert found["spec"]["replicaMode"] == "ReplicatedGangs"
    assert found["spec"]["gangGroups"][0]["minCount"] == 3
    members = await linked_pods(cluster, f"{LWS_NAME}=serve", 6)
    assert links(members) == {name}
    key = found["spec"]["replicaKey"]
    assert len({pod["metadata"]["labels"][key] for pod in members}) == 2
    made = {one["metadata"]["name"] for one in await cluster.list_all(kinds.GANG_WORKLOADS)}
    assert made == {name}
    await bound(cluster, f"{LWS_NAME}=serve", 6)
    await cluster.delete(kinds.LEADER_WORKER_SETS, "serve")
    await gone(cluster, name)


@pytest.mark.requirement("GNG-13", "GNG-48")
async def test_of_two_stateful_sets_with_quota_for_one_all_pods_run_or_none(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "6"})
    both = ("one", "two")
    for name in both:
        body = workload("StatefulSet", name, 4, serviceName="s", podManagementPolicy="Parallel")
        await cluster.create(kinds.STATEFUL_SETS, body)

    async def runs() -> str | None:
        for name in both:
            pods = await cluster.list_all(kinds.PODS, labelSelector=f"app={name}")
            if sum("nodeName" in pod["spec"] for pod in pods) == 4:
                return name
        return None

    first = await until("one of them runs", runs)
    (second,) = {*both} - {first}
    held = await linked_pods(cluster, f"app={second}", 4)
    assert all(GATE in {one["name"] for one in pod["spec"]["schedulingGates"]} for pod in held)
    await cluster.delete(kinds.STATEFUL_SETS, str(first))
    await bound(cluster, f"app={second}", 4)


@pytest.mark.requirement("GNG-18", "GNG-48")
async def test_of_two_groups_with_quota_for_one_one_runs_whole(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "5"})
    await cluster.create(
        kinds.LEADER_WORKER_SETS, queued(leaderworkerset("serve", replicas=2, size=3))
    )
    await linked_pods(cluster, f"{LWS_NAME}=serve", 6)
    started = await bound(cluster, f"{LWS_NAME}=serve", 3)
    key = "leaderworkerset.sigs.k8s.io/group-key"
    assert len({pod["metadata"]["labels"][key] for pod in started}) == 1


@pytest.mark.requirement("STR-20")
async def test_a_rolling_update_replaces_group_by_group_within_the_quota(cluster: Cluster) -> None:
    """The worked example of docs/tasks/run-a-leaderworkerset.md."""
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "6"})
    body = queued(leaderworkerset("serve", replicas=2, size=3))
    await cluster.create(kinds.LEADER_WORKER_SETS, body)
    selector, revision = f"{LWS_NAME}=serve", "leaderworkerset.sigs.k8s.io/template-revision-hash"
    key = "leaderworkerset.sigs.k8s.io/group-key"
    (old,) = {pod["metadata"]["labels"][revision] for pod in await bound(cluster, selector, 6)}
    await until("the set is available", lambda: updated(cluster))
    new = copy.deepcopy(body)
    worker = new["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    worker["spec"]["containers"][0]["image"] = "registry.example/train:2"
    await cluster.replace(kinds.LEADER_WORKER_SETS, "serve", written(new))
    left: list[int] = []

    async def replaced() -> bool:
        pods = await cluster.list_all(kinds.PODS, labelSelector=selector)
        started = [pod for pod in pods if "nodeName" in pod["spec"]]
        groups: dict[str, int] = {}
        for pod in started:
            if pod["metadata"]["labels"][revision] == old:
                found = pod["metadata"]["labels"][key]
                groups[found] = groups.get(found, 0) + 1
        left.append(len(groups))
        assert len(started) <= 6, "the quota of six pods"
        new = [pod for pod in started if pod["metadata"]["labels"][revision] != old]
        return len(new) == len(pods) == 6

    await until("both groups are replaced", replaced, 180.0)
    assert 1 in left, "one group served while the other was replaced"
    await until("the update is over", lambda: updated(cluster))


async def updated(cluster: Cluster) -> bool:
    status = (await cluster.get(kinds.LEADER_WORKER_SETS, "serve")).get("status", {})
    return [status.get(one) for one in ("readyReplicas", "updatedReplicas")] == [2, 2]


@pytest.mark.requirement("GNG-27", "GNG-47")
@pytest.mark.parametrize(
    ("kind", "resource", "spec"),
    [
        ("StatefulSet", kinds.STATEFUL_SETS, {"serviceName": "s"}),
        ("Deployment", kinds.DEPLOYMENTS, {}),
    ],
)
async def test_what_is_no_gang_is_queued_pod_by_pod(
    cluster: Cluster, kind: str, resource: Resource, spec: Mapping[str, Any]
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "2"})
    await cluster.create(resource, workload(kind, "serve", 3, **spec))
    found = await gang(cluster, own(kind, "serve"))
    assert found["spec"].get("gangGroups") is None, "autoscalers and rollouts change nothing here"
    assert found["spec"]["replicaMode"] == "ReplicatedPods"
    assert links(await linked_pods(cluster, "app=serve", 1)) == {own(kind, "serve")}
    await bound(cluster, "app=serve", 2)
    # The quota is used up. With one replica less, all fit.
    await cluster.merge(resource, "serve", {"spec": {"replicas": 2}})
    await bound(cluster, "app=serve", 2)
    await cluster.delete(resource, "serve")
    await gone(cluster, own(kind, "serve"))


@pytest.mark.requirement("GNG-22", "GNG-23")
async def test_overlapping_runs_of_a_cron_job_have_a_workload_each(cluster: Cluster) -> None:
    """Two runs of the real controller, a minute apart."""
    await cluster.add_fx_a()
    await cluster.add_queue()
    case = lifecycles()["templated"]
    (cron,) = case["given"]
    cron = {**cron, "spec": {**cron["spec"], "schedule": "* * * * *"}}
    template = cron["spec"]["jobTemplate"]
    template["metadata"]["labels"][QUEUE] = "queue"
    template["metadata"]["annotations"][names.GANG_TEMPLATE_ANNOTATION] = (
        '{"gangGroups":[{"name":"gg","minCount":2,"scheduleTimeoutSeconds":300}]}'
    )
    template["spec"] |= {"parallelism": 2, "completions": 2}
    template["spec"]["template"]["spec"] |= pods()
    await cluster.create(CRON_JOBS, cron)

    async def two_runs() -> list[Object]:
        found = await cluster.list_all(kinds.GANG_WORKLOADS)
        return found if len(found) >= 2 else []

    found = await until("two runs have a Workload of gangs each", two_runs, 180.0)
    await cluster.merge(CRON_JOBS, "lc-cron", {"spec": {"suspend": True}})
    owners = {one["metadata"]["name"]: one["metadata"]["ownerReferences"][0] for one in found}
    runs = {owner["name"] for owner in owners.values()}
    assert len(runs) == len(found)
    for one in found:
        owner = owners[one["metadata"]["name"]]
        assert (owner["kind"], owner["controller"]) == ("Job", True)
        assert one["spec"]["controllerRef"]["name"] == owner["name"]
        members = await linked_pods(cluster, f"batch.kubernetes.io/job-name={owner['name']}", 2)
        assert links(members) == {one["metadata"]["name"]}
        await bound(cluster, f"batch.kubernetes.io/job-name={owner['name']}", 2)
    first, *others = sorted(owners)
    await cluster.delete(kinds.JOBS, owners[first]["name"])
    await gone(cluster, first)
    assert {one["metadata"]["name"] for one in await cluster.list_all(kinds.GANG_WORKLOADS)} >= {
        *others
    }
    await cluster.delete(CRON_JOBS, "lc-cron")
    for name in others:
        await gone(cluster, name)


def training(name: str, nodes: int) -> tuple[Object, Object]:
    """A runtime of its own and its TrainJob of the queue, as in the example pair."""
    runtime, job = copy.deepcopy(pairs()["trainjob-torch"]["trueWorkload"])
    runtime["metadata"]["name"] = name
    (part,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    part["template"]["spec"]["template"]["spec"] = pods()
    part["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "node"
    job["metadata"] = {"name": "train", "labels": {QUEUE: "queue"}}
    job["spec"]["runtimeRef"]["name"] = name
    job["spec"]["trainer"] = {"numNodes": nodes}
    return runtime, job


@pytest.mark.requirement("GNG-23", "GNG-24", "GNG-28")
async def test_the_pods_of_a_trainjob_get_its_link_by_way_of_its_jobset(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    runtime, job = training(cluster.pool, 3)
    await cluster.create(TRAINING_RUNTIMES, runtime)
    await cluster.create(kinds.TRAIN_JOBS, job)
    name = own("TrainJob", "train")
    found = await gang(cluster, name)
    assert found["spec"]["gangGroups"][0]["minCount"] == 3
    members = await linked_pods(cluster, "jobset.sigs.k8s.io/jobset-name=train", 3)
    assert links(members) == {name}
    made = {one["metadata"]["name"] for one in await cluster.list_all(kinds.GANG_WORKLOADS)}
    assert made == {name}, "neither its JobSet nor its Jobs have one"
    await bound(cluster, "jobset.sigs.k8s.io/jobset-name=train", 3)
    await cluster.delete(kinds.TRAIN_JOBS, "train")
    await gone(cluster, name)


def mpi_job() -> Object:
    template = {"spec": {**pods(), "restartPolicy": "Never"}}
    roles = {
        "Launcher": {"replicas": 1, "template": template},
        "Worker": {"replicas": 2, "template": template},
    }
    return {
        "apiVersion": kinds.MPI_JOBS.api_version,
        "kind": "MPIJob",
        "metadata": {"name": "mpi", "labels": {QUEUE: "queue"}},
        "spec": {"slotsPerWorker": 1, "mpiReplicaSpecs": roles},
    }


@pytest.mark.requirement("GNG-21", "GNG-23", "GNG-24")
async def test_launcher_and_workers_of_an_mpijob_are_one_gang(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.create(kinds.MPI_JOBS, mpi_job())
    name = own("MPIJob", "mpi")
    found = await gang(cluster, name)
    assert found["spec"]["gangGroups"][0]["minCount"] == 3
    members = await linked_pods(cluster, "training.kubeflow.org/job-name=mpi", 3)
    assert links(members) == {name}
    await bound(cluster, "training.kubeflow.org/job-name=mpi", 3)
    await cluster.delete(kinds.MPI_JOBS, "mpi")
    await gone(cluster, name)


@pytest.mark.requirement("GNG-19", "GNG-25")
async def test_the_manifest_story(cluster: Cluster) -> None:
    case = lifecycles()["manifest"]
    written, body = case["given"]
    await cluster.create(kinds.GANG_WORKLOADS, written)
    await cluster.create(kinds.STATEFUL_SETS, body)
    assert links(await linked_pods(cluster, "app=lc-manifest", 4)) == {"w-manifest"}
    await cluster.delete(kinds.STATEFUL_SETS, "lc-manifest")

    async def no_pods() -> bool:
        return not await cluster.list_all(kinds.PODS, labelSelector="app=lc-manifest")

    await until("its pods are gone", no_pods)
    (left,) = await cluster.list_all(kinds.GANG_WORKLOADS)
    assert left["metadata"]["name"] == "w-manifest"
    assert "ownerReferences" not in left["metadata"]


@pytest.mark.usefixtures("webhook_down")
async def test_without_a_webhook_nothing_gets_past_its_queue(
    playground: Playground, cluster: Cluster
) -> None:
    await cluster.add_queue()
    for resource, body in (
        (kinds.STATEFUL_SETS, workload("StatefulSet", "s", 1, serviceName="s")),
        (kinds.DEPLOYMENTS, workload("Deployment", "d", 1)),
        (kinds.LEADER_WORKER_SETS, queued(leaderworkerset("l", replicas=1, size=2))),
    ):
        with pytest.raises(UnprocessableError, match="do not have the annotation"):
            await cluster.create(resource, body)
        unqueued = {**body, "metadata": {"name": body["metadata"]["name"]}}
        await cluster.create(resource, {**unqueued, "spec": {**body["spec"], "replicas": 0}})
        with pytest.raises(UnprocessableError, match="do not have the annotation"):
            await cluster.merge(
                resource, body["metadata"]["name"], {"metadata": {"labels": {QUEUE: "queue"}}}
            )
    _, train = training(cluster.pool, 3)
    for resource, body in ((kinds.TRAIN_JOBS, train), (kinds.MPI_JOBS, mpi_job())):
        with pytest.raises(UnprocessableError, match="do not have the annotation"):
            await cluster.create(resource, body)


def queued(body: Object) -> Object:
    body["metadata"]["labels"] = {QUEUE: "queue"}
    return body


SERVED: Final = {
    (kind.api_version, kind.kind): kind
    for kind in (
        *(kinds.JOBS, kinds.JOBSETS, kinds.STATEFUL_SETS, kinds.DEPLOYMENTS, kinds.SERVICES),
        *(kinds.LEADER_WORKER_SETS, kinds.TRAIN_JOBS, TRAINING_RUNTIMES),
        Resource("autoscaling", "v2", "horizontalpodautoscalers", True, "HorizontalPodAutoscaler"),
    )
}


@pytest.mark.requirement("GNG-45")
@pytest.mark.parametrize("name", sorted(pairs()))
async def test_an_example_pair_is_applied_unchanged(cluster: Cluster, name: str) -> None:
    pair = pairs()[name]
    objects: list[Case] = pair["trueWorkload"]
    for one in objects:
        await cluster.create(SERVED[one["apiVersion"], one["kind"]], one)
    for form in ("revN", "correctedRevN"):
        if form in pair:
            made = await cluster.create(kinds.GANG_WORKLOADS, pair[form])
            assert made["spec"] == pair[form]["spec"]
            await cluster.delete(kinds.GANG_WORKLOADS, pair[form]["metadata"]["name"])
