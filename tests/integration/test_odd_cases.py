"""Odd but lawful: drained nodes under gangs, Jobs that vanish by TTL, kinds with long names."""

from __future__ import annotations

import asyncio
import json

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.errors import ForbiddenError, TooManyRequestsError, UnprocessableError
from tests.integration.test_bad_names import long
from tests.integration.test_deletions import nothing_left
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import jobset, marks, raycluster, replicated_job, worker_group
from tests.support.composite_views import used
from tests.support.objects import RACK, Object, node

pytestmark = pytest.mark.integration

RACK_1 = ("block-1", "rack-1")


async def evict(cluster: Cluster, pod: str) -> None:
    """Evict a pod as `kubectl drain` does, again while the API server asks to wait."""
    body = json.dumps(
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    ).encode()
    while True:
        try:
            await cluster.client.create(kinds.PODS.path(cluster.namespace, pod, "eviction"), body)
        except TooManyRequestsError:
            await asyncio.sleep(0.2)
        else:
            return


async def live(cluster: Cluster) -> list[Object]:
    """Bound pods that have not ended."""
    pods = await cluster.list_all(kinds.PODS)
    ended = ("Succeeded", "Failed")
    return [p for p in pods if p["spec"].get("nodeName") and p["status"]["phase"] not in ended]


async def most_live(cluster: Cluster, done: asyncio.Event) -> int:
    """The most pods that were bound at once, until `done`."""
    most = 0
    while not done.is_set():
        most = max(most, len(await live(cluster)))
        await asyncio.sleep(0.02)
    return most


@pytest.mark.timeout(300)
async def test_a_drained_node_under_a_gang_is_left_within_its_rack_and_its_quota(
    cluster: Cluster,
) -> None:
    """One pod leaves a cordoned node, one a node that stays: each comes back to a place of its own.

    Nobody else gets the quota meanwhile, and never are more pods bound than it has room for.
    """
    await cluster.add_nodes(node(cluster.pool, *RACK_1, f"n{i}") for i in range(4))
    await cluster.add_queue(quota={"cpu": "24"})
    await cluster.submit("train", 3, cpu="8", required=RACK)
    pods = {pod["spec"]["nodeName"]: pod for pod in await cluster.bound("train", 3)}
    await cluster.submit("next", 1, cpu="8", required=RACK)
    await cluster.condition("next", "QuotaReserved", "False", "WaitingForQuota")
    cordoned, leaves, stays = sorted(pods)
    await cluster.merge(kinds.NODES, cordoned, {"spec": {"unschedulable": True}})
    await cluster.wait_nodes_seen()
    done = asyncio.Event()
    counting = asyncio.create_task(most_live(cluster, done))
    await asyncio.gather(
        *(evict(cluster, pods[host]["metadata"]["name"]) for host in (cordoned, leaves))
    )

    async def replaced() -> bool:
        now = {pod["spec"]["nodeName"]: pod for pod in await live(cluster)}
        fresh = {host for host in now if now[host]["metadata"]["uid"] not in uids}
        return len(now) == 3 and len(fresh) == 2

    uids = {pod["metadata"]["uid"] for pod in pods.values()}
    try:
        await until("two pods are replaced", replaced, timeout_s=180)
    finally:
        done.set()
        most = await counting
    now = {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in await live(cluster)}
    (free,) = {f"{cluster.pool}-n{i}" for i in range(4)} - set(pods)
    assert set(now) == {leaves, stays, free}
    assert now[stays] == pods[stays]["metadata"]["uid"]
    assert most == 3
    await cluster.condition("next", "QuotaReserved", "False", "WaitingForQuota")
    await used(cluster, "24")


async def test_a_job_that_its_ttl_deletes_leaves_nothing(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"})
    gone = {"ttlSecondsAfterFinished": 0}
    await cluster.submit("first", 4, required=RACK, run_seconds=0, spec=gone)
    await cluster.submit("second", 4, required=RACK, run_seconds=0, spec=gone)
    await nothing_left(cluster)


@pytest.mark.parametrize(
    ("kind", "length", "pods"),
    [(kinds.JOBSETS, 51, 2), (kinds.RAY_CLUSTERS, 53, 2)],
    ids=lambda value: getattr(value, "kind", None),
)
async def test_a_kind_has_the_longest_name_of_which_its_operator_makes_pods(
    cluster: Cluster, kind: Resource, length: int, pods: int
) -> None:
    """A longer one is refused when it is created: else it would hold quota without a pod."""
    await cluster.add_fx_a()
    await cluster.add_queue()
    in_rack = marks(required=RACK)

    def made(name: str) -> Object:
        if kind is kinds.JOBSETS:
            return jobset(name, [replicated_job("w", 2, annotations=in_rack)])
        return raycluster(name, [worker_group("w", 1)], head_annotations=in_rack)

    for too_long in (253, 63, length + 1):
        with pytest.raises((UnprocessableError, ForbiddenError), match="name"):
            await cluster.create(kind, made(long("n", too_long)))
    name = long("n", length)
    await cluster.create(kind, made(name))
    found = await cluster.condition(name, "Admitted")
    meta = found["metadata"]
    (owner,) = meta["ownerReferences"]
    assert (owner["kind"], owner["name"]) == (kind.kind, name)
    assert meta["labels"][names.JOB_UID_LABEL] == owner["uid"]
    await cluster.event("Admitted", meta["name"])

    async def bound() -> bool:
        return len(await live(cluster)) == pods

    await until("its pods are bound", bound)
