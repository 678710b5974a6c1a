"""Gangs of pods that no managed job owns, made by the controllers of a real control plane."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.features import (
    GANG_NESTED_PLACEMENT,
    GANG_SCHEDULING,
    POD_GROUPS,
    WORKLOAD_REV_N,
)
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.integration.test_scaling import watch_invariants
from tests.support.cluster import Cluster, exactly_bound, until
from tests.support.composite_jobs import leaderworkerset
from tests.support.composite_views import racks_of
from tests.support.identities import as_tenant
from tests.support.objects import BLOCK, RACK, Object
from tests.support.playground import Playground, start_playground
from tests.support.task_cluster import nodes_and_queue, runner
from tests.support.task_pages import FOLDER

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", True, "StatefulSet")
LEADER_WORKER_SETS: Final = Resource(
    "leaderworkerset.x-k8s.io", "v1", "leaderworkersets", True, "LeaderWorkerSet"
)
GROUP_KEY: Final = names.LWS_GROUP_KEY_LABEL


# Alone, and with the component for plain pods: both hold pods that have a queue label.
@pytest.fixture(
    scope="module", params=[(), (POD_GROUPS,)], ids=["gangs alone", "gangs and plain pods"]
)
def playground(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Playground]:
    """A control plane of its own."""
    state = tmp_path_factory.mktemp("gang-pods") / "state"
    gates = (GANG_SCHEDULING, WORKLOAD_REV_N, GANG_NESTED_PLACEMENT, *request.param)
    # The runner of pages deletes jobs of all kinds in the end.
    operators = ("lws",) if request.param else ("jobset", "kuberay", "lws")
    running = start_playground(state, operators=operators, gates=gates)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
async def cluster(playground: Playground) -> AsyncIterator[Cluster]:
    """A namespace and a node pool for one test, watched by the invariants."""
    pool = f"gp-{uuid.uuid4().hex[:10]}"
    async with playground.client() as client:
        cluster = Cluster(client, pool, pool)
        await cluster.create(
            kinds.NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": pool}}
        )
        done = asyncio.Event()
        watching = asyncio.create_task(watch_invariants(cluster, done))
        yield cluster
        done.set()
        assert await watching == []
        await cluster.leave()


async def describe(cluster: Cluster, name: str, spec: Object, **metadata: Any) -> Object:
    """Create a Workload of gangs."""
    head = {"apiVersion": kinds.GANG_WORKLOADS.api_version, "kind": "Workload"}
    body = {**head, "metadata": {"name": name, **metadata}, "spec": spec}
    return await cluster.create(kinds.GANG_WORKLOADS, body)


def template(app: str, link: str, *, queue: str = "queue", cpu: str = "4") -> Object:
    """A pod template that names a Workload of gangs."""
    labels = {"app": app, **({names.QUEUE_LABEL: queue} if queue else {})}
    container = {
        "name": "main",
        "image": "registry.example/any:1",
        "resources": {"requests": {"cpu": cpu}},
    }
    return {
        "metadata": {"labels": labels, "annotations": {names.GANG_LINK_ANNOTATION: link}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }


def stateful_set(name: str, replicas: int, link: str, **more: Any) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, link, **more),
        },
    }


def deployment(name: str, replicas: int, link: str, **more: Any) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, link, **more),
        },
    }


async def add_pods(
    cluster: Cluster, name: str, count: int, link: str, *, first: int = 0, **spec: Any
) -> None:
    for index in range(first, first + count):
        found = template(name, link)
        meta = {**found["metadata"], "name": f"{name}-{index}"}
        body = {"apiVersion": "v1", "kind": "Pod", **found, "metadata": meta}
        body["spec"] = {**body["spec"], "restartPolicy": "Never", **spec}
        await cluster.create(kinds.PODS, body)


async def pods_of(cluster: Cluster, app: str) -> list[Object]:
    """Pods that have not ended."""
    pods = await cluster.list_all(kinds.PODS, labelSelector=f"app={app}")
    return [pod for pod in pods if pod["status"]["phase"] not in ("Succeeded", "Failed")]


async def bound(cluster: Cluster, app: str, count: int) -> list[Object]:
    what = f"{count} pods of {app} are bound"
    return await exactly_bound(what, lambda: pods_of(cluster, app), count)


def gates_of(pod: Object) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]


async def workloads_of(cluster: Cluster, link: str) -> list[Object]:
    found = await cluster.list_all(kinds.WORKLOADS)
    return [one for one in found if one["metadata"]["name"].startswith(f"gang-{link}-")]


async def one_workload(
    cluster: Cluster, link: str, what: str, fits: Callable[[Object], object]
) -> Object:
    """The only Workload of Kueue's API of a gang, once it fits."""

    async def found() -> Object | None:
        own = await workloads_of(cluster, link)
        return own[0] if len(own) == 1 and fits(own[0]) else None

    obj = await until(f"the Workload of {link} {what}", found)
    assert obj is not None
    return obj


def is_true(workload: Mapping[str, Any], type_: str, reason: str = "") -> bool:
    return any(
        (c["type"], c["status"]) == (type_, "True") and reason in ("", c["reason"])
        for c in workload.get("status", {}).get("conditions", [])
    )


def test_every_command_of_the_page_does_what_it_says(
    playground: Playground, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "gangs alone" not in request.node.name:
        pytest.skip("the page is about gangs without plain pods")
    page = FOLDER / "run-gangs-of-pods.md"
    with nodes_and_queue(playground), runner(playground, tmp_path, page) as run:
        run.run(page)


@pytest.mark.requirement("GNG-10")
async def test_pods_of_a_stateful_set_wait_for_the_last_one_and_start_in_one_rack(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    group = {"name": "gg", "minCount": 4, "topologyRequest": {"required": RACK}}
    await describe(cluster, "train", {"gangGroups": [group]})
    await cluster.create(STATEFUL_SETS, stateful_set("train", 3, "train"))

    async def three_held() -> bool:
        pods = await pods_of(cluster, "train")
        return len(pods) == 3 and all(names.GANG_GATE in gates_of(pod) for pod in pods)

    await until("three pods are held", three_held)
    await describe(cluster, "probe", {"replicaMode": "ReplicatedPods"})
    await add_pods(cluster, "probe", 1, "probe")
    await bound(cluster, "probe", 1)
    assert await three_held()
    assert await workloads_of(cluster, "train") == []

    await cluster.merge(STATEFUL_SETS, "train", {"spec": {"replicas": 4}})
    pods = await bound(cluster, "train", 4)
    nodes = {obj["metadata"]["name"]: obj for obj in await cluster.list_all(kinds.NODES)}
    racks = {nodes[pod["spec"]["nodeName"]]["metadata"]["labels"][RACK] for pod in pods}
    assert len(racks) == 1
    # A Workload of gangs that is gone frees nothing. With it, a replacement runs as well.
    before = await one_workload(cluster, "train", "is admitted", lambda w: is_true(w, "Admitted"))
    await cluster.delete(kinds.GANG_WORKLOADS, "train")
    await cluster.delete(kinds.PODS, "train-1", grace_s=0)
    await bound(cluster, "train", 3)
    await describe(cluster, "train", {"gangGroups": [group]})
    await bound(cluster, "train", 4)
    after = await one_workload(cluster, "train", "is admitted", lambda w: is_true(w, "Admitted"))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await cluster.delete(STATEFUL_SETS, "train")

    async def nothing_left() -> bool:
        return not await pods_of(cluster, "train") and not await workloads_of(cluster, "train")

    await until("nothing is left of train", nothing_left)


@pytest.mark.requirement("GNG-11")
async def test_a_gang_that_finds_no_room_gives_way_and_comes_back(cluster: Cluster) -> None:
    await cluster.add_node("b", "r", "n1")
    await cluster.add_queue(topology=False)
    group = {"name": "gg", "minCount": 3, "scheduleTimeoutSeconds": 20}
    await describe(cluster, "train", {"gangGroups": [group]})
    await cluster.create(STATEFUL_SETS, stateful_set("train", 3, "train"))
    first = await bound(cluster, "train", 2)
    await one_workload(
        cluster, "train", "is evicted", lambda w: is_true(w, "Evicted", "GangTimeout")
    )
    given_back = await one_workload(
        cluster, "train", "has no quota", lambda w: not w["status"].get("admission")
    )
    assert given_back["status"]["requeueState"]["count"] == 1

    async def all_replaced() -> bool:
        pods = await pods_of(cluster, "train")
        new = {pod["metadata"]["uid"] for pod in pods}
        old = {pod["metadata"]["uid"] for pod in first}
        return len(pods) == 3 and not new & old and all(map(gates_of, pods))

    await until("all pods are replaced, and held", all_replaced)
    await cluster.add_node("b", "r", "n2")
    soon = {"status": {"requeueState": {"requeueAt": "2026-01-01T00:00:00Z"}}}
    await cluster.merge(kinds.WORKLOADS, given_back["metadata"]["name"], soon, "status")
    await bound(cluster, "train", 3)


@pytest.mark.requirement("GNG-13")
async def test_of_two_gangs_of_bare_pods_with_room_for_one_one_runs(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "32"})
    for number in range(3):
        gangs = [f"one{number}", f"two{number}"]
        for name in gangs:
            await describe(cluster, name, {"gangGroups": [{"name": "gg", "minCount": 8}]})
        await asyncio.gather(*(add_pods(cluster, name, 8, name) for name in gangs))

        async def one_runs(gangs: list[str] = gangs) -> str:
            for name in gangs:
                pods = await pods_of(cluster, name)
                if len([pod for pod in pods if pod["spec"].get("nodeName")]) == 8:
                    return name
            return ""

        first = await until("one of the gangs runs", one_runs)
        (second,) = [name for name in gangs if name != first]
        held = await pods_of(cluster, second)
        assert len(held) == 8
        assert all(names.GANG_GATE in gates_of(pod) for pod in held)
        done = {"metadata": {"annotations": {"rackgate.dev/run-seconds": "0"}}}
        for pod in await pods_of(cluster, first):
            await cluster.merge(kinds.PODS, pod["metadata"]["name"], done)
        await bound(cluster, second, 8)
        for pod in await pods_of(cluster, second):
            await cluster.merge(kinds.PODS, pod["metadata"]["name"], done)
        for name in gangs:
            await one_workload(cluster, name, "has finished", lambda w: is_true(w, "Finished"))


@pytest.mark.requirement("GNG-06", "GNG-33")
async def test_pods_of_a_deployment_without_a_gang_start_one_by_one(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "8"})
    await describe(cluster, "web", {"replicaMode": "ReplicatedPods"})
    await cluster.create(kinds.DEPLOYMENTS, deployment("web", 3, "web"))
    await bound(cluster, "web", 2)

    async def three() -> bool:
        return len(await workloads_of(cluster, "web")) == 3

    await until("each pod has a Workload", three)
    # Without a queue, they are not held.
    await cluster.create(kinds.DEPLOYMENTS, deployment("free", 2, "later", queue=""))

    async def held() -> bool:
        return [gates_of(pod) for pod in await pods_of(cluster, "free")] == [[names.GANG_GATE]] * 2

    await until("they are held without their Workload of gangs", held)
    await describe(cluster, "later", {"replicaMode": "ReplicatedPods"})
    await bound(cluster, "free", 2)
    assert await workloads_of(cluster, "later") == []


@pytest.mark.requirement("GNG-18", "GNG-33", "GNG-46")
async def test_each_group_of_a_leaderworkerset_is_a_gang(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "4"})
    spec = {
        "controllerRef": {"apiGroup": names.LWS_GROUP, "kind": "LeaderWorkerSet", "name": "serve"},
        "replicaMode": "ReplicatedGangs",
        "gangGroups": [{"name": "gg", "minCount": 3, "topologyRequest": {"required": RACK}}],
    }
    await describe(cluster, "serve", spec)
    lws = leaderworkerset("serve", replicas=2, size=3)
    pods = lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    meta = pods.setdefault("metadata", {})
    meta["labels"] = {**meta.get("labels", {}), "app": "serve", names.QUEUE_LABEL: "queue"}
    meta["annotations"] = {names.GANG_LINK_ANNOTATION: "serve"}
    await cluster.create(LEADER_WORKER_SETS, lws)
    running = await bound(cluster, "serve", 3)
    assert len({pod["metadata"]["labels"][GROUP_KEY] for pod in running}) == 1

    async def all_exist() -> bool:
        return len(await pods_of(cluster, "serve")) == 6

    await until("all pods exist", all_exist)
    held = [pod for pod in await pods_of(cluster, "serve") if gates_of(pod)]
    assert len(held) == 3
    name = f"{cluster.pool}-queue"
    await cluster.replace(
        kinds.CLUSTER_QUEUES,
        name,
        lambda o: o["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0].update(
            nominalQuota="8"
        ),
    )
    await bound(cluster, "serve", 6)
    assert len(await workloads_of(cluster, "serve")) == 2


@pytest.mark.requirement("GNG-38")
async def test_all_replicas_of_a_leaderworkerset_are_in_one_block(cluster: Cluster) -> None:
    """Each of three fills a rack. A block has two, so the third waits, and the other is free."""
    await cluster.add_fx_a()
    await cluster.add_queue()
    spec = {
        "controllerRef": {"apiGroup": names.LWS_GROUP, "kind": "LeaderWorkerSet", "name": "serve"},
        "replicaMode": "ReplicatedGangs",
        "topologyRequest": {"required": BLOCK},
        "gangGroups": [{"name": "gg", "minCount": 2, "topologyRequest": {"required": RACK}}],
    }
    await describe(cluster, "serve", spec)
    lws = leaderworkerset("serve", replicas=3, size=2, cpu="8")
    pods = lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    meta = pods.setdefault("metadata", {})
    meta["labels"] = {**meta.get("labels", {}), "app": "serve", names.QUEUE_LABEL: "queue"}
    meta["annotations"] = {names.GANG_LINK_ANNOTATION: "serve"}
    await cluster.create(LEADER_WORKER_SETS, lws)
    running = [pod for pod in await bound(cluster, "serve", 4) if pod["spec"].get("nodeName")]
    places = set(await racks_of(cluster, running))
    assert len(places) == 2
    assert len({block for block, _ in places}) == 1

    async def waits() -> bool:
        found = await workloads_of(cluster, "serve")
        texts = [c["message"] for one in found for c in one.get("status", {}).get("conditions", [])]
        return any("in which other gangs of Workload" in text for text in texts)

    await until("the third one says where the others are", waits)


@pytest.mark.requirement("GNG-49")
async def test_a_scheduler_that_binds_one_pod_after_the_other_is_enough(cluster: Cluster) -> None:
    """Another one than kube-scheduler, which knows no gangs: here the test."""
    await cluster.add_fx_a()
    await cluster.add_queue()
    await describe(cluster, "train", {"gangGroups": [{"name": "gg", "minCount": 3}]})
    await add_pods(cluster, "train", 2, "train", schedulerName="mine")
    await describe(cluster, "probe", {"replicaMode": "ReplicatedPods"})
    await add_pods(cluster, "probe", 1, "probe")
    await bound(cluster, "probe", 1)
    assert all(map(gates_of, await pods_of(cluster, "train")))
    await add_pods(cluster, "train", 1, "train", first=2, schedulerName="mine")

    async def none_held() -> bool:
        return not any(map(gates_of, await pods_of(cluster, "train")))

    await until("all of them are released", none_held)
    for pod in await pods_of(cluster, "train"):
        name = pod["metadata"]["name"]
        host = pod["spec"]["nodeSelector"][names.HOSTNAME_LABEL]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": host},
        }
        path = kinds.PODS.path(cluster.namespace, name, "binding")
        await cluster.client.create(path, json.dumps(binding).encode())
    await bound(cluster, "train", 3)
    await one_workload(cluster, "train", "is ready", lambda w: is_true(w, "PodsReady"))


async def test_no_tenant_can_say_which_gang_a_pod_was_started_with(
    cluster: Cluster, playground: Playground
) -> None:
    await cluster.add_queue(quota={"cpu": "0"})
    async with as_tenant(playground, cluster) as tenant:
        forged = template("forged", "train")
        forged["metadata"]["labels"][names.GANG_ID_LABEL] = "gang-of-others"
        body = {"apiVersion": "v1", "kind": "Pod", **forged}
        body["metadata"] = {**body["metadata"], "name": "forged"}
        with pytest.raises(UnprocessableError, match="gang-id"):
            await tenant.create(kinds.PODS, body)
        await add_pods(tenant, "held", 1, "train")
        for change, what in (
            ({"labels": {names.GANG_ID_LABEL: "gang-of-others"}}, "gang-id"),
            ({"labels": {names.MANAGED_LABEL: None}}, "managed"),
            ({"annotations": {names.GANG_WORKLOAD_UID_ANNOTATION: "x"}}, "workload-uid"),
            ({"annotations": {names.WORKLOAD_ANNOTATION: "other"}}, "workload"),
        ):
            with pytest.raises((ForbiddenError, UnprocessableError), match=what):
                await tenant.merge(kinds.PODS, "held-0", {"metadata": change})
        with pytest.raises((ForbiddenError, UnprocessableError)):
            await tenant.merge(kinds.PODS, "held-0", {"spec": {"schedulingGates": None}})
        pod = await tenant.get(kinds.PODS, "held-0")
        assert pod["metadata"]["labels"][names.MANAGED_LABEL] == "true"
