"""Nodes break under running Jobs: their pods come up elsewhere in the rack, the others stay.

A Job waits 10 seconds and more before it replaces a pod, so all stories are told at the same time,
each in a namespace and on nodes of its own; every test is the end of one of them.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support import evidence
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, Object, node
from tests.support.playground import Playground

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

HERE, THERE = ("block-1", "rack-1"), ("block-1", "rack-2")
BROKEN = {"metadata": {"annotations": {"rackgate.dev/broken": "true"}}}
MENDED = {"metadata": {"annotations": {"rackgate.dev/broken": None}}}
NEVER = {"labelSelector": {"matchLabels": {"never": "there"}}, "topologyKey": names.HOSTNAME_LABEL}
LONELY = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [NEVER]}}}

# A Job waits twice as long after each pod that failed. One that is sent to a node before that is
# known to be gone fails there as well: with two nodes it comes to 20 + 80 s and more.
LIMIT_S = 240.0

Story: TypeAlias = Callable[[Cluster], Awaitable[None]]


async def stage(cluster: Cluster, hosts: int) -> None:
    """Two racks of `hosts` nodes each, and a queue."""
    nodes = [
        node(cluster.pool, *rack, f"{rack[1]}-{i}") for rack in (HERE, THERE) for i in range(hosts)
    ]
    await cluster.add_nodes(nodes)
    await cluster.add_queue()


async def running(cluster: Cluster, count: int, hosts: int) -> dict[str, Object]:
    """A Job with one pod on each of `count` hosts of one rack; pods by host."""
    await stage(cluster, hosts)
    await cluster.submit("train", count, cpu="8", required=RACK)
    pods = {pod["spec"]["nodeName"]: pod for pod in await cluster.bound("train", count)}
    assert len(pods) == count
    return pods


async def state(cluster: Cluster, host: str, ready: str) -> None:
    """Wait until a node is ready and without a taint, or not ready."""

    async def reached() -> bool:
        found = await cluster.get(kinds.NODES, host)
        # Taints follow the condition a little later.
        tainted = ready == "True" and found["spec"].get("taints")
        says = any(c["type"] == "Ready" and c["status"] == ready for c in _conditions(found))
        return says and not tainted

    await until(f"node {host} has Ready={ready}", reached)


def _conditions(found: Object) -> list[Object]:
    return list(found.get("status", {}).get("conditions", []))


async def settled(cluster: Cluster, without: set[str], count: int) -> dict[str, Object]:
    """Wait until all pods run on other hosts and no broken one is named; pods by host."""

    async def moved() -> dict[str, Object]:
        status = (await cluster.workload_of("train"))["status"]
        pods = {p["spec"].get("nodeName", ""): p for p in await cluster.pods_of("train")}
        whole = len(pods) == count and "" not in pods and not without & set(pods)
        return pods if whole and not status.get("unhealthyNodes") else {}

    return await until(f"{count} pods run, none on {sorted(without)}", moved, LIMIT_S)


async def racks_of(cluster: Cluster) -> set[tuple[str, str]]:
    return {place[:2] for place in await cluster.places("train", 3)}


def uids(pods: dict[str, Object], hosts: set[str]) -> dict[str, str]:
    return {host: pods[host]["metadata"]["uid"] for host in hosts}


async def one_node(cluster: Cluster) -> None:
    pods = await running(cluster, 3, 4)
    before = (await cluster.workload_of("train"))["status"]["admission"]
    racks = await racks_of(cluster)
    broken, *others = sorted(pods)
    await cluster.merge(kinds.NODES, broken, BROKEN)
    await state(cluster, broken, "False")
    workload = await cluster.workload_of("train")
    assert "unhealthyNodes" not in workload["status"], "its pod still runs"
    await cluster.delete(kinds.PODS, pods[broken]["metadata"]["name"])
    after = await settled(cluster, {broken}, 3)
    assert uids(after, set(others)) == uids(pods, set(others))
    assert await racks_of(cluster) == racks
    workload = await cluster.workload_of("train")
    await cluster.event("NodesReplaced", workload["metadata"]["name"])
    now = workload["status"]["admission"]
    for admission in (before, now):
        admission["podSetAssignments"][0].pop("topologyAssignment")
    assert now == before


async def two_nodes(cluster: Cluster) -> None:
    pods = await running(cluster, 3, 5)
    first, second, third = sorted(pods)
    for host in (first, second):
        await cluster.delete(kinds.NODES, host)
    for host in (first, second):
        await cluster.delete(kinds.PODS, pods[host]["metadata"]["name"], grace_s=0)
    after = await settled(cluster, {first, second}, 3)
    assert uids(after, {third}) == uids(pods, {third})
    assert len(await racks_of(cluster)) == 1
    conditions = _conditions(await cluster.workload_of("train"))
    assert not any(c["type"] == "Evicted" for c in conditions)


async def recovery(cluster: Cluster) -> None:
    pods = await running(cluster, 2, 3)
    shaky = min(pods)
    before = (await cluster.workload_of("train"))["status"]["admission"]
    for change, ready in ((BROKEN, "False"), (MENDED, "True")):
        await cluster.merge(kinds.NODES, shaky, change)
        await state(cluster, shaky, ready)
    # Whoever hears that the pod is gone before it hears that the node is back swaps it, rightly.
    await cluster.wait_nodes_seen()
    await cluster.delete(kinds.PODS, pods[shaky]["metadata"]["name"])

    async def back() -> bool:
        found = {p["spec"].get("nodeName"): p for p in await cluster.pods_of("train")}
        new = found.get(shaky, pods[shaky])
        return _uid(new) != _uid(pods[shaky])

    await until("another pod runs on the node that is back", back, LIMIT_S)
    status = (await cluster.workload_of("train"))["status"]
    assert (status["admission"], status.get("unhealthyNodes", [])) == (before, [])


async def stuck_pod(cluster: Cluster) -> None:
    await stage(cluster, 3)
    await cluster.submit("train", 2, cpu="8", required=RACK, pod=LONELY)

    async def refused() -> list[Object]:
        pods = await cluster.pods_of("train")
        told = [p for p in pods if any(c.get("reason") == "Unschedulable" for c in _conditions(p))]
        return told if len(told) == 2 else []

    stuck, other = await until("the scheduler refuses both pods", refused)
    host = stuck["spec"]["nodeSelector"][names.HOSTNAME_LABEL]
    await cluster.merge(kinds.NODES, host, BROKEN)

    async def followed() -> Object | None:
        for pod in await cluster.pods_of("train"):
            selector = pod["spec"].get("nodeSelector", {})
            fresh = pod["metadata"]["uid"] not in (stuck["metadata"]["uid"], _uid(other))
            if fresh and selector.get(names.HOSTNAME_LABEL):
                return pod
        return None

    new = await until("another pod was released in its place", followed, LIMIT_S)
    assert new is not None
    taken = {host, other["spec"]["nodeSelector"][names.HOSTNAME_LABEL]}
    assert new["spec"]["nodeSelector"][names.HOSTNAME_LABEL] not in taken
    ended = await cluster.get(kinds.PODS, stuck["metadata"]["name"])
    assert ended["status"]["phase"] == "Failed"
    (condition,) = (c for c in _conditions(ended) if c["type"] == names.TERMINATED_CONDITION)
    assert (condition["status"], condition["reason"]) == ("True", names.TERMINATED_REASON)
    await cluster.event("PodTerminatedByKueue", stuck["metadata"]["name"])


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


async def no_place(cluster: Cluster) -> None:
    pods = await running(cluster, 2, 2)
    broken = min(pods)
    for rack in (HERE, THERE):
        for i in range(2):
            host = f"{cluster.pool}-{rack[1]}-{i}"
            if host not in pods:
                await cluster.merge(kinds.NODES, host, {"spec": {"unschedulable": True}})
    await cluster.merge(kinds.NODES, broken, BROKEN)
    await state(cluster, broken, "False")
    await cluster.delete(kinds.PODS, pods[broken]["metadata"]["name"])
    workload = await cluster.condition("train", "Evicted", "True", "NodeFailures")
    evicted = next(c for c in _conditions(workload) if c["type"] == "Evicted")
    assert f"no replacement for a failed node: {broken}" in evicted["message"]
    await cluster.condition("train", "QuotaReserved", "False", "TopologyPlacementFailed")
    await cluster.merge(kinds.NODES, broken, MENDED)
    assert set(await settled(cluster, set(), 2)) == set(pods)


async def named_by_hand(cluster: Cluster) -> None:
    pods = await running(cluster, 2, 3)
    chosen, other = sorted(pods)
    name = (await cluster.workload_of("train"))["metadata"]["name"]
    marks = {"status": {"unhealthyNodes": [{"name": chosen}]}}
    await cluster.merge(kinds.WORKLOADS, name, marks, sub="status")

    async def handled() -> bool:
        status = (await cluster.workload_of("train"))["status"]
        return not status.get("unhealthyNodes") and chosen not in str(status["admission"])

    await until("the named node has no part in the assignment", handled)
    await cluster.delete(kinds.PODS, pods[chosen]["metadata"]["name"])
    after = await settled(cluster, {chosen}, 2)
    assert uids(after, {other}) == uids(pods, {other})


async def told(playground: Playground, story: Story) -> None:
    """One story in a namespace and on nodes of its own."""
    pool = f"swap-{story.__name__.replace('_', '-')}-{uuid.uuid4().hex[:5]}"
    async with playground.client() as client:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": pool}}
        await client.create(kinds.NAMESPACES.path(), json.dumps(namespace).encode())
        cluster = Cluster(client, pool, pool)
        try:
            await story(cluster)
        except Exception as error:
            # Its test may come later, when the namespace is gone.
            error.add_note(await asyncio.to_thread(evidence.text, playground, pool))
            raise
        finally:
            await cluster.clean()
            await client.delete(kinds.NAMESPACES.path(None, pool))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stories(playground: Playground) -> AsyncIterator[dict[Story, asyncio.Task[None]]]:
    """All stories, under way."""
    all_of_them: tuple[Story, ...] = (
        one_node,
        two_nodes,
        recovery,
        stuck_pod,
        no_place,
        named_by_hand,
    )
    tasks = {story: asyncio.ensure_future(told(playground, story)) for story in all_of_them}
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


Told: TypeAlias = dict[Any, asyncio.Task[None]]


@pytest.mark.requirement("STR-05")
@pytest.mark.field_note("N1", "N8", "C20")
async def test_one_broken_node_is_replaced_within_the_rack(stories: Told) -> None:
    await stories[one_node]


@pytest.mark.field_note("N7")
async def test_two_nodes_that_go_at_once_are_both_replaced(stories: Told) -> None:
    await stories[two_nodes]


@pytest.mark.field_note("N3")
async def test_a_node_that_recovers_in_time_keeps_its_place(stories: Told) -> None:
    await stories[recovery]


@pytest.mark.field_note("N6")
async def test_a_pod_that_waits_for_a_broken_node_makes_way(stories: Told) -> None:
    await stories[stuck_pod]


async def test_without_another_place_the_job_is_evicted_and_queued_again(stories: Told) -> None:
    await stories[no_place]


async def test_a_node_that_a_user_names_is_emptied_without_stopping_the_job(
    stories: Told,
) -> None:
    await stories[named_by_hand]
