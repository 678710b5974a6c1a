"""Plain pods with a queue label, alone and in groups, on a control plane with deploy/pods."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import yaml

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.features import POD_GROUPS
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.integration.test_scaling import watch_invariants
from tests.support.cluster import Cluster, exactly_bound, until
from tests.support.objects import BLOCK, RACK, Object
from tests.support.playground import Playground, start_playground
from tests.support.task_pages import blocks, pages

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

DONE = {"metadata": {"annotations": {"rackgate.dev/run-seconds": "0"}}}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """A playground of its own: in the shared one, the queue label of a plain pod is ignored."""
    state = tmp_path_factory.mktemp("pods") / "state"
    playground = start_playground(state, nodes=0, gates=(POD_GROUPS,))
    try:
        yield playground
    finally:
        playground.stop()


@pytest.fixture
async def cluster(own: Playground) -> AsyncIterator[Cluster]:
    """A namespace and a node pool for one test."""
    pool = f"pods-{uuid.uuid4().hex[:10]}"
    async with own.client() as client:
        cluster = Cluster(client, pool, pool)
        await cluster.create(
            kinds.NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": pool}}
        )
        done = asyncio.Event()
        watching = asyncio.create_task(watch_invariants(cluster, done))
        yield cluster
        done.set()
        assert await watching == []
        ended = own.restart_ended()
        await cluster.leave()
        assert not ended, "\n".join(ended)


def plain_pod(
    name: str,
    *,
    group: str = "",
    total: int = 0,
    required: str = "",
    labels: dict[str, str] | None = None,
    cpu: str = "4",
    **spec: Any,
) -> Object:
    """A pod as a user writes it."""
    annotations = {names.POD_GROUP_TOTAL_ANNOTATION: str(total)} if total else {}
    if required:
        annotations[names.REQUIRED_TOPOLOGY] = required
    membership = {names.POD_GROUP_LABEL: group} if group else {}
    container = {
        "name": "main",
        "image": "registry.example/any:1",
        "resources": {"requests": {"cpu": cpu}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {names.QUEUE_LABEL: "queue", "test": group or name, **membership}
            | (labels or {}),
            "annotations": annotations,
        },
        "spec": {"containers": [container], "restartPolicy": "Never", **spec},
    }


async def submit_group(cluster: Cluster, group: str, count: int, **more: Any) -> None:
    for index in range(count):
        await cluster.create(
            kinds.PODS, plain_pod(f"{group}-{index}", group=group, total=count, **more)
        )


async def pods_of(cluster: Cluster, group: str) -> list[Object]:
    return await cluster.list_all(kinds.PODS, labelSelector=f"test={group}")


async def bound(cluster: Cluster, group: str, count: int) -> list[Object]:
    async def live() -> list[Object]:
        pods = await pods_of(cluster, group)
        return [pod for pod in pods if pod["status"]["phase"] not in ("Succeeded", "Failed")]

    return await exactly_bound(f"{count} pods of {group} are bound", live, count)


async def none_left(cluster: Cluster, group: str) -> None:
    async def none() -> bool:
        return not await pods_of(cluster, group)

    await until(f"no pod of {group} is left", none)


async def workload(cluster: Cluster, name: str) -> Object:
    async def found() -> Object | None:
        return await cluster.find(kinds.WORKLOADS, name)

    obj = await until(f"Workload {name} exists", found)
    assert obj is not None
    return obj


async def condition(cluster: Cluster, name: str, type_: str, status: str = "True") -> Object:
    async def holds() -> Object | None:
        obj = await cluster.find(kinds.WORKLOADS, name) or {}
        entries = obj.get("status", {}).get("conditions", [])
        fits = [e for e in entries if (e["type"], e["status"]) == (type_, status)]
        return obj if fits else None

    obj = await until(f"Workload {name} is {type_}={status}", holds)
    assert obj is not None
    return obj


async def test_a_pod_alone_waits_for_quota_runs_on_its_flavor_and_ends(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(topology=False, quota={"cpu": "4"})
    await cluster.create(kinds.PODS, plain_pod("one"))
    (pod,) = await bound(cluster, "one", 1)
    assert pod["spec"]["nodeName"].startswith(cluster.pool)
    await cluster.create(kinds.PODS, plain_pod("two"))
    second = await cluster.workload_of("two")
    await cluster.condition("two", "QuotaReserved", "False", "WaitingForQuota")
    assert second["metadata"]["name"].startswith("pod-two-")
    (gated,) = await pods_of(cluster, "two")
    assert gated["spec"]["schedulingGates"] == [{"name": names.ADMISSION_GATE}]

    await cluster.merge(kinds.PODS, "one", DONE)
    await cluster.condition("one", "Finished", "True", "Succeeded")
    await bound(cluster, "two", 1)
    await cluster.delete(kinds.PODS, "one")
    await none_left(cluster, "one")

    async def gone() -> bool:
        return len(await cluster.list_all(kinds.WORKLOADS)) == 1

    await until("the Workload is gone with its pod", gone)


async def test_a_group_of_four_runs_in_one_rack_and_finishes(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    for index in range(3):
        await cluster.create(kinds.PODS, plain_pod(f"g-{index}", group="g", total=4, required=RACK))
    await cluster.create(kinds.PODS, plain_pod("probe"))
    await bound(cluster, "probe", 1)
    assert await cluster.find(kinds.WORKLOADS, "g") is None, "it is not complete"
    await cluster.create(kinds.PODS, plain_pod("g-3", group="g", total=4, required=RACK))
    pods = await bound(cluster, "g", 4)
    nodes = {
        obj["metadata"]["name"]: obj["metadata"]["labels"]
        for obj in await cluster.list_all(kinds.NODES)
    }
    racks = {
        (nodes[pod["spec"]["nodeName"]][BLOCK], nodes[pod["spec"]["nodeName"]][RACK])
        for pod in pods
    }
    assert len(racks) == 1
    await condition(cluster, "g", "PodsReady")

    for index in range(4):
        await cluster.merge(kinds.PODS, f"g-{index}", DONE)
    await condition(cluster, "g", "Finished")
    for index in range(4):
        await cluster.delete(kinds.PODS, f"g-{index}")
    await none_left(cluster, "g")


async def test_two_groups_with_quota_for_one_run_one_after_the_other(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(topology=False, quota={"cpu": "12"})
    await submit_group(cluster, "a", 3)
    await bound(cluster, "a", 3)
    await submit_group(cluster, "b", 3)
    await condition(cluster, "b", "QuotaReserved", "False")
    assert all(pod["spec"].get("schedulingGates") for pod in await pods_of(cluster, "b"))
    for index in range(3):
        await cluster.merge(kinds.PODS, f"a-{index}", DONE)
    await bound(cluster, "b", 3)


async def test_a_failed_pod_is_replaced_and_a_surplus_pod_is_deleted(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await submit_group(cluster, "g", 2, required=RACK)
    await bound(cluster, "g", 2)
    fail = {"metadata": {"annotations": {"rackgate.dev/fail-after-seconds": "0"}}}
    await cluster.merge(kinds.PODS, "g-1", fail)

    async def failed() -> bool:
        return bool((await cluster.get(kinds.PODS, "g-1"))["status"]["phase"] == "Failed")

    await until("a pod failed", failed)
    again = plain_pod("g-again", group="g", total=2, required=RACK)
    await cluster.create(kinds.PODS, again)
    await bound(cluster, "g", 2)
    await cluster.create(kinds.PODS, plain_pod("g-surplus", group="g", total=2, required=RACK))

    async def surplus_gone() -> bool:
        return await cluster.find(kinds.PODS, "g-surplus") is None

    await until("the surplus pod is deleted", surplus_gone)
    await cluster.merge(kinds.PODS, "g-0", DONE)

    async def one_done() -> bool:
        found = await cluster.get(kinds.WORKLOADS, "g")
        return bool(sum(p["count"] for p in found["status"].get("reclaimablePods", [])) == 1)

    await until("the quota of one pod is released", one_done)
    await cluster.delete(kinds.PODS, "g-0")  # it still counts
    await cluster.merge(kinds.PODS, "g-again", DONE)
    await condition(cluster, "g", "Finished")


async def test_a_preempted_group_is_deleted_and_its_replacements_run_later(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    preemption = {"withinClusterQueue": "LowerPriority"}
    await cluster.add_queue(quota={"cpu": "16"}, preemption=preemption)
    urgent = await cluster.add_priority(1000)
    await submit_group(cluster, "low", 4, required=RACK)
    before = {pod["metadata"]["uid"] for pod in await bound(cluster, "low", 4)}
    await submit_group(cluster, "urgent", 2, required=RACK, labels=urgent)
    await bound(cluster, "urgent", 2)
    await none_left(cluster, "low")

    async def gone() -> bool:
        return await cluster.find(kinds.WORKLOADS, "low") is None

    await until("its Workload is gone with its pods", gone)
    await submit_group(cluster, "low", 4, required=RACK)
    await condition(cluster, "low", "QuotaReserved", "False")
    for index in range(2):
        await cluster.delete(kinds.PODS, f"urgent-{index}")
    after = {pod["metadata"]["uid"] for pod in await bound(cluster, "low", 4)}
    assert not before & after


async def test_what_decides_about_a_pod_does_not_change(cluster: Cluster) -> None:
    await cluster.add_queue(topology=False, quota={"cpu": "0"})
    await submit_group(cluster, "g", 2)
    await condition(cluster, "g", "QuotaReserved", "False")
    changes: list[Object] = [
        {"metadata": {"labels": {names.QUEUE_LABEL: "other"}}},
        {"metadata": {"labels": {names.MANAGED_LABEL: None}}},
        {"metadata": {"labels": {names.POD_GROUP_LABEL: "other"}}},
        {"metadata": {"annotations": {names.POD_GROUP_TOTAL_ANNOTATION: "1"}}},
        {"metadata": {"annotations": {names.WORKLOAD_ANNOTATION: "g"}}},
        {"spec": {"schedulingGates": []}},
    ]
    for change in changes:
        with pytest.raises((ForbiddenError, UnprocessableError)):
            await cluster.merge(kinds.PODS, "g-0", change)
    for bad in (
        plain_pod("bad", group="g"),
        plain_pod("bad", total=3),
        plain_pod("bad", nodeName="any"),
    ):
        with pytest.raises((ForbiddenError, UnprocessableError)):
            await cluster.create(kinds.PODS, bad)


async def test_with_the_webhook_down_no_labelled_pod_runs(
    own: Playground, cluster: Cluster
) -> None:
    own.run("stop", "webhook")
    try:
        with pytest.raises((ForbiddenError, UnprocessableError), match="did not answer"):
            await cluster.create(kinds.PODS, plain_pod("late"))
        unlabelled = plain_pod("free")
        del unlabelled["metadata"]["labels"][names.QUEUE_LABEL]
        await cluster.create(kinds.PODS, unlabelled)
    finally:
        own.run("start", "webhook")


async def test_the_pods_of_a_controller_wait_for_quota_and_are_replaced(cluster: Cluster) -> None:
    """A Deployment that knows nothing of queues; one of its two pods has quota."""
    await cluster.add_fx_a()
    await cluster.add_queue(topology=False, quota={"cpu": "4"})
    template = plain_pod("unused")
    meta, spec = template["metadata"], template["spec"]
    labels = {**meta["labels"], "test": "web"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"test": "web"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {**spec, "restartPolicy": "Always"},
            },
        },
    }
    await cluster.create(kinds.DEPLOYMENTS, deployment)

    async def placed() -> list[str]:
        pods = await pods_of(cluster, "web")
        return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]

    async def one_of_two() -> bool:
        return len(await pods_of(cluster, "web")) == 2 and len(await placed()) == 1

    await until("one pod runs, and one waits", one_of_two)
    (first,) = await placed()
    await cluster.delete(kinds.PODS, first)

    async def another() -> bool:
        return await placed() not in ([], [first]) and await one_of_two()

    await until("the other one has its quota, and its replacement waits", another)


async def test_the_manifests_of_the_page_run(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue("default", quota={"cpu": "8"})
    page = next(found for found in pages() if found.stem == "run-plain-pods")
    written = [
        block for block in blocks(page.read_text()) if block.name in ("pod.yaml", "group.yaml")
    ]
    pods = [pod for block in written for pod in yaml.safe_load_all(block.text)]
    for pod in pods:
        await cluster.create(kinds.PODS, pod)

    async def all_bound() -> bool:
        found = await cluster.list_all(kinds.PODS)
        return len(found) == len(pods) and all(pod["spec"].get("nodeName") for pod in found)

    await until("all pods of the page are bound", all_bound)
    for pod in pods:
        await cluster.delete(kinds.PODS, pod["metadata"]["name"])

    async def nothing_left() -> bool:
        left = (await cluster.list_all(kinds.PODS), await cluster.list_all(kinds.WORKLOADS))
        return left == ([], [])

    await until("nothing is left of them", nothing_left)
