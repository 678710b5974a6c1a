"""Gangs on a control plane with native PodGroups: kube-scheduler itself binds all pods, or none.

GANG_ROUNDS=n for more rounds of two gangs with room for one.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import GANG_WORKLOADS
from rackgate.features import GANG_SCHEDULING, NATIVE_POD_GROUPS
from rackgate.gang.native.model import RUN_LABEL
from rackgate.gang.native.v1alpha2 import POD_GROUPS
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from tests.support.cluster import Cluster, exactly_bound, until
from tests.support.composite_jobs import jobset, replicated_job
from tests.support.objects import Object, job
from tests.support.playground import Playground, start_playground

ROUNDS = int(os.environ.get("GANG_ROUNDS") or 4)
# A round takes some seconds; a full machine has taken many times as long.
ROUND_LIMIT_S = 60

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900 + ROUND_LIMIT_S * ROUNDS)]

PARTS = {"driver": 2, "workers": 4}
POLICY = "rackgate-native-gangs.rackgate-system"
FOREIGN_GATE = "example.com/data"
LINK, GROUP = names.GANG_LINK_ANNOTATION, names.NATIVE_GROUP_ANNOTATION
REPLICA = names.NATIVE_REPLICA_ANNOTATION


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """A control plane of its own, with its alpha gates."""
    folder = tmp_path_factory.mktemp("native-gangs") / "state"
    running = start_playground(folder, operators=("jobset", "gang-scheduling"))
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
async def room(cluster: Cluster) -> Cluster:
    """Eight nodes, each for one pod, and quota for more. Nobody but kube-scheduler counts nodes."""
    await cluster.add_fx_a()
    await cluster.add_queue(topology=False)
    return cluster


async def add_gang(cluster: Cluster, name: str, least: int = 8, timeout_s: int = 600) -> Object:
    """A Workload of gangs; returns the annotations of pod templates that name it."""
    group = {"name": "gg", "minCount": least, "scheduleTimeoutSeconds": timeout_s}
    head = {"apiVersion": GANG_WORKLOADS.api_version, "kind": "Workload"}
    spec = {"gangGroups": [group]}
    await cluster.create(GANG_WORKLOADS, {**head, "metadata": {"name": name}, "spec": spec})
    return {LINK: name}


async def submit(cluster: Cluster, name: str, least: int = 8, **more: Any) -> None:
    link = await add_gang(cluster, name, least)
    await cluster.create(kinds.JOBS, job(name, 8, cpu="8", annotations=link, **more))


def bound(pods: list[Object]) -> int:
    return sum(bool(pod["spec"].get("nodeName")) for pod in pods)


async def ungated(cluster: Cluster, name: str, count: int = 8) -> list[Object]:
    async def found() -> list[Object] | None:
        pods = await cluster.pods_of(name)
        free = [pod for pod in pods if not pod["spec"].get("schedulingGates")]
        return free if len(free) == count else None

    pods = await until(f"{count} pods of {name} have no gates", found)
    assert pods is not None
    return pods


async def pod_group(cluster: Cluster, name: str) -> Object:
    async def found() -> Object | None:
        return await cluster.find(POD_GROUPS, name)

    group = await until(f"PodGroup {name} exists", found)
    assert group is not None
    return group


async def native_gang(cluster: Cluster, name: str, reason: str) -> Object:
    """The condition NativeGang of a Workload of gangs, once it has this reason."""

    async def found() -> Object | None:
        stored = await cluster.get(GANG_WORKLOADS, name)
        for one in stored.get("status", {}).get("conditions", []):
            if one["type"] == "NativeGang" and one["reason"] == reason:
                return dict(one)
        return None

    condition = await until(f"NativeGang of {name} is {reason}", found)
    assert condition is not None
    return condition


@pytest.mark.requirement("GNG-12")
async def test_with_one_node_taken_no_pod_of_the_gang_is_bound(room: Cluster) -> None:
    await room.submit("blocker", 1, cpu="8")
    await room.bound("blocker", 1)
    await submit(room, "train")

    pods = await ungated(room, "train")
    assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods} == {"train-gg"}
    workload = await room.workload_of("train")
    group = await pod_group(room, "train-gg")
    (owner,) = group["metadata"]["ownerReferences"]
    assert owner["uid"] == workload["metadata"]["uid"]
    runs = {pod["metadata"]["annotations"][names.GANG_RUN_ANNOTATION] for pod in pods}
    assert {group["metadata"]["labels"][RUN_LABEL]} == runs
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 8}}

    async def tried() -> bool:
        found = await room.get(POD_GROUPS, "train-gg")
        conditions = found.get("status", {}).get("conditions", [])
        return any(
            (one["type"], one["status"]) == ("PodGroupScheduled", "False") for one in conditions
        )

    await until("kube-scheduler has tried", tried)
    assert bound(await room.pods_of("train")) == 0, "seven nodes are free"
    await room.finish("blocker")
    await room.bound("train", 8)
    condition = await native_gang(room, "train", "InUse")
    assert condition["status"] == "True"


@pytest.mark.requirement("GNG-29", "GNG-12")
async def test_each_job_of_an_ordered_jobset_has_a_pod_group_of_its_own(room: Cluster) -> None:
    workers = replicated_job("workers", 2, replicas=2, cpu="1")
    spec = {"gangGroups": [{"name": "gg", "minCount": 2, "scheduleTimeoutSeconds": 600}]}
    annotations = {names.GANG_TEMPLATE_ANNOTATION: json.dumps(spec)}
    workers["template"]["metadata"] = {"annotations": annotations}
    order = {"startupPolicyOrder": "InOrder"}
    leader = replicated_job("leader", 1, cpu="1")
    await room.create(kinds.JOBSETS, jobset("train", [leader, workers], startupPolicy=order))
    for child in ("train-workers-0", "train-workers-1"):
        pods = await room.bound(child, 2)
        (link,) = {pod["metadata"]["annotations"][LINK] for pod in pods}
        assert link.startswith(f"job-{child}-")
        groups = {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods}
        assert groups == {f"{link}-gg"}
        found = await pod_group(room, f"{link}-gg")
        assert found["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
        await native_gang(room, link, "InUse")


@pytest.mark.requirement("GNG-12")
async def test_the_second_run_of_a_job_has_a_pod_group_of_its_own(room: Cluster) -> None:
    await submit(room, "train")
    await room.bound("train", 8)
    first = await pod_group(room, "train-gg")
    workload = (await room.workload_of("train"))["metadata"]["name"]
    await room.merge(kinds.WORKLOADS, workload, {"spec": {"active": False}})

    async def gone() -> bool:
        return await room.find(POD_GROUPS, "train-gg") is None and not await room.pods_of("train")

    await until("pods and PodGroup of the first run are gone", gone)
    await room.merge(kinds.WORKLOADS, workload, {"spec": {"active": True}})
    await room.bound("train", 8)
    second = await pod_group(room, "train-gg")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["metadata"]["labels"][RUN_LABEL] != first["metadata"]["labels"][RUN_LABEL]
    await room.finish("train")
    await room.condition("train", "Finished")

    async def deleted() -> bool:
        return await room.find(POD_GROUPS, "train-gg") is None

    await until("the PodGroup is deleted when its job has ended", deleted)


@pytest.mark.requirement("GNG-12")
async def test_each_gang_of_a_jobset_has_a_pod_group_of_its_own(room: Cluster) -> None:
    parts = [replicated_job("driver", 2), replicated_job("workers", 2, replicas=2)]
    train = jobset("train", parts)
    train["metadata"]["annotations"] = {names.GANG_PER_ANNOTATION: "ReplicatedJob"}
    await room.create(kinds.JOBSETS, train)

    async def pods() -> list[Object]:
        selector = f"{names.JOBSET_NAME_LABEL}=train"
        return await room.list_all(kinds.PODS, labelSelector=selector)

    found = await exactly_bound("6 pods are bound", pods, 6)
    (gang,) = await room.list_all(GANG_WORKLOADS)
    expected = {f"{gang['metadata']['name']}-{part}": count for part, count in PARTS.items()}
    groups = await room.list_all(POD_GROUPS)
    assert {
        one["metadata"]["name"]: one["spec"]["schedulingPolicy"]["gang"]["minCount"]
        for one in groups
    } == expected
    assert Counter(pod["spec"]["schedulingGroup"]["podGroupName"] for pod in found) == expected
    await native_gang(room, gang["metadata"]["name"], "InUse")


@pytest.mark.requirement("GNG-13")
async def test_of_two_gangs_with_room_for_one_kube_scheduler_binds_one(room: Cluster) -> None:
    """Quota is enough for both, so the pods of both are released at the same time."""
    for number in range(ROUNDS):
        jobs = [f"one-{number}", f"two-{number}"]
        await asyncio.gather(*(submit(room, name) for name in jobs))
        await asyncio.gather(*(ungated(room, name) for name in jobs))
        looks = 0

        async def winner(jobs: list[str] = jobs) -> str | None:
            nonlocal looks
            counts = {name: bound(await room.pods_of(name)) for name in jobs}
            assert min(counts.values()) == 0, counts
            looks += 1
            return next((name for name, count in counts.items() if count == 8), None)

        first = await until("one gang is bound", winner)
        assert first is not None
        (second,) = [name for name in jobs if name != first]
        assert bound(await room.pods_of(second)) == 0
        await room.finish(first)
        await room.bound(second, 8)
        await room.finish(second)
        for name in jobs:
            await room.condition(name, "Finished")
            # Pods that have ended would be read again and again in all later rounds.
            await room.delete(kinds.JOBS, name)


async def name_given(
    cluster: Cluster, annotations: dict[str, str], labels: dict[str, str]
) -> str | None:
    """The PodGroup of a new pod."""
    container = {"name": "c", "image": "i"}
    meta = {"name": "probe", "annotations": annotations, "labels": labels}
    pod = {"metadata": meta, "spec": {"containers": [container]}}
    path = kinds.PODS.path(cluster.namespace)
    answer = await cluster.client.create(path, json.dumps(pod).encode(), {"dryRun": "All"})
    group: Object = json.loads(answer)["spec"].get("schedulingGroup", {})
    return group.get("podGroupName")


@pytest.fixture
async def policy_away(cluster: Cluster) -> AsyncIterator[Any]:
    """A function that removes the policy; it comes back afterwards."""
    binding = kinds.MUTATING_POLICY_BINDINGS

    async def names_group() -> bool:
        return await name_given(cluster, {LINK: "w", GROUP: "w-gg"}, {}) is not None

    async def remove() -> None:
        await cluster.delete(binding, POLICY)

        async def off() -> bool:
            return not await names_group()

        await until("the policy is off", off)

    yield remove
    documents = install.documents(deploy_dir() / "native-gangs" / "policies.yaml")
    await install.apply_all(cluster.client, documents)
    await until("the policy is on", names_group)


@pytest.mark.requirement("GNG-14")
@pytest.mark.parametrize(
    ("annotations", "labels", "expected"),
    [
        ({LINK: "w", GROUP: "w-gg"}, {}, "w-gg"),
        ({LINK: "w", GROUP: "w-gg", REPLICA: "key"}, {"key": "5f2a"}, "w-gg-5f2a"),
        ({LINK: "w", GROUP: "w-gg", REPLICA: "key"}, {"key": "Not_A_Name"}, None),
        ({LINK: "w", GROUP: "w-gg", REPLICA: "key"}, {}, None),
        ({LINK: "w", GROUP: "g" * 250, REPLICA: "key"}, {"key": "12345"}, None),
        ({GROUP: "w-gg"}, {}, None),
        ({LINK: "w"}, {}, None),
        ({}, {}, None),
    ],
    ids=["job", "replica", "bad", "missing", "long", "not-linked", "not-named", "plain"],
)
async def test_which_name_the_policy_gives_a_pod(
    cluster: Cluster, annotations: dict[str, str], labels: dict[str, str], expected: str | None
) -> None:
    """Others are as before: a pod whose PodGroup nobody makes would wait forever."""
    assert await name_given(cluster, annotations, labels) == expected


async def remove_foreign_gates(cluster: Cluster, name: str) -> None:
    def edit(stored: Object) -> None:
        gates = stored["spec"].get("schedulingGates", [])
        stored["spec"]["schedulingGates"] = [g for g in gates if g["name"] != FOREIGN_GATE]

    for pod in await cluster.pods_of(name):
        await cluster.replace(kinds.PODS, pod["metadata"]["name"], edit)


async def test_a_pod_that_was_made_without_the_policy_makes_the_group_basic(
    room: Cluster, policy_away: Any
) -> None:
    """A gang of the other seven would wait for an eighth forever."""
    gates: dict[str, Any] = {"schedulingGates": [{"name": FOREIGN_GATE}]}
    await submit(room, "train", pod=gates)

    async def all_exist() -> list[Object] | None:
        pods = await room.pods_of("train")
        return pods if len(pods) == 8 else None

    pods = await until("all pods exist", all_exist)
    assert pods is not None
    await policy_away()
    await room.delete(kinds.PODS, pods[0]["metadata"]["name"], grace_s=0)

    async def made_again() -> bool:
        found = await room.pods_of("train")
        named = [pod for pod in found if pod["spec"].get("schedulingGroup")]
        return (len(found), len(named)) == (8, 7)

    await until("the pod was made again, without a group", made_again)
    await remove_foreign_gates(room, "train")
    await room.bound("train", 8)
    group = await pod_group(room, "train-gg")
    assert group["spec"]["schedulingPolicy"] == {"basic": {}}
    condition = await native_gang(room, "train", "Basic")
    assert condition["status"] == "False"


async def test_pods_that_are_in_a_group_already_keep_it(room: Cluster) -> None:
    """As of a controller that makes PodGroups itself."""
    head = {"apiVersion": POD_GROUPS.api_version, "kind": "PodGroup"}
    spec = {"schedulingPolicy": {"gang": {"minCount": 8}}}
    await room.create(POD_GROUPS, {**head, "metadata": {"name": "theirs"}, "spec": spec})
    await submit(room, "train", pod={"schedulingGroup": {"podGroupName": "theirs"}})
    pods = await room.bound("train", 8)
    assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods} == {"theirs"}
    groups = await room.list_all(POD_GROUPS)
    assert [one["metadata"]["name"] for one in groups] == ["theirs"]
    workload = (await room.workload_of("train"))["metadata"]["name"]
    event = await room.event("NativeGroupForeign", workload)
    assert "theirs" in event["note"]
    await native_gang(room, "train", "Absent")


@pytest.mark.requirement("GNG-49")
async def test_on_a_cluster_without_the_api_gangs_start_as_ever(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Also if the component was installed there: its policy sets a field that does not exist."""
    folder = tmp_path_factory.mktemp("without-native-gangs") / "state"
    gates = (GANG_SCHEDULING, NATIVE_POD_GROUPS)
    running = await asyncio.to_thread(start_playground, folder, gates=gates)
    try:
        async with running.client() as client:
            policies = install.documents(deploy_dir() / "native-gangs" / "policies.yaml")
            await install.apply_all(client, policies)
            await client.create(
                kinds.NAMESPACES.path(), json.dumps({"metadata": {"name": "team"}}).encode()
            )
            cluster = Cluster(client, "team", "team")
            await cluster.add_fx_a()
            await cluster.add_queue(topology=False)
            await submit(cluster, "train")
            pods = await cluster.bound("train", 8)
            assert not [pod for pod in pods if "schedulingGroup" in pod["spec"]]
            condition = await native_gang(cluster, "train", "Absent")
            assert "serves no PodGroups" in condition["message"]
    finally:
        await asyncio.to_thread(running.stop)
