"""What never reaches the webhook, and what happens while no replica of it is there."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import yaml

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, Object, fx_a_nodes, job
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

SYSTEM = "kube-system"
# Without conversions: controllers of the control plane read v1beta1 now and then.
COUNT = re.compile(
    r"rackgate_review_duration_seconds_count\{(?![^}]*CONVERT)[^}]*\} (\S+)",
)


def lease(cluster: Cluster) -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": f"{cluster.pool}-lease", "namespace": SYSTEM},
        "spec": {"holderIdentity": "somebody"},
    }


def bare_pod(name: str, **metadata: Any) -> Object:
    container = {"name": "main", "image": "registry.example/any:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [container], "tolerations": [{"operator": "Exists"}]},
    }


async def create_what_is_not_ours(cluster: Cluster) -> None:
    """Nodes, Leases, plain pods, and Jobs: without the label, and in kube-system with it."""
    pool = cluster.pool
    # Not by `add_nodes`, which then asks the assigner by way of a Workload.
    for node in fx_a_nodes(pool):
        await cluster.create(kinds.NODES, node)
    await cluster.create(kinds.LEASES, lease(cluster))
    path = kinds.LEASES.path(SYSTEM, f"{pool}-lease")
    held = json.loads(await cluster.client.get(path))
    held["spec"]["holderIdentity"] = "another"
    await cluster.client.replace(path, json.dumps(held).encode())
    await cluster.create(kinds.PODS, bare_pod("plain"))
    await cluster.create(kinds.PODS, bare_pod(f"{pool}-system", namespace=SYSTEM))
    await cluster.create(kinds.JOBS, job("plain", 2, queue=None, required=RACK))
    await cluster.merge(kinds.JOBS, "plain", {"spec": {"parallelism": 1}})
    theirs = job(f"{pool}-job", 1, required=RACK)
    theirs["metadata"]["namespace"] = SYSTEM
    await cluster.create(kinds.JOBS, theirs)


async def they_run(cluster: Cluster) -> None:
    """Wait until the pods of `create_what_is_not_ours` are bound, ungated."""
    await cluster.bound("plain", 1)
    selector = f"batch.kubernetes.io/job-name={cluster.pool}-job"

    async def system_pods() -> bool:
        listed = await cluster.client.get(kinds.PODS.path(SYSTEM), {"labelSelector": selector})
        alone = await cluster.client.get(kinds.PODS.path(SYSTEM, f"{cluster.pool}-system"))
        found = [*json.loads(listed)["items"], json.loads(alone)]
        return len(found) == 2 and all(pod["spec"].get("nodeName") for pod in found)

    await until("the pods in kube-system are bound", system_pods)


async def reviews(playground: Playground) -> float:
    """How many reviews of admission all replicas of the webhook have answered."""
    total = 0.0
    async with aiohttp.ClientSession() as http:
        # Files of replicas that were scaled away stay behind.
        for replica in (name for name in playground.components() if name.startswith("webhook-")):
            config = playground.state / "services" / f"{replica}.yaml"
            port = yaml.safe_load(config.read_text())["health"]["port"]
            async with http.get(f"http://127.0.0.1:{port}/metrics") as answer:
                total += sum(float(value) for value in COUNT.findall(await answer.text()))
    return total


async def clean_system(cluster: Cluster) -> None:
    options = json.dumps({"propagationPolicy": "Background"}).encode()
    await cluster.client.delete(kinds.JOBS.path(SYSTEM, f"{cluster.pool}-job"), options)


@pytest.mark.requirement("HOOK-02", "HOOK-05")
@pytest.mark.field_note("W1", "W2")
async def test_what_is_not_ours_never_reaches_the_webhook(
    cluster: Cluster, playground: Playground
) -> None:
    # It does count: a governed Job is reviewed, by both webhooks.
    begun = await reviews(playground)
    await cluster.create(kinds.JOBS, job("ours", 1, queue="nowhere"))
    before = await reviews(playground)
    assert before >= begun + 2
    await create_what_is_not_ours(cluster)
    await they_run(cluster)
    assert await reviews(playground) == before
    await clean_system(cluster)


class PodWatch:
    """Every state that the pods of a namespace go through."""

    def __init__(self) -> None:
        self.states: dict[str, list[Object]] = {}

    async def follow(self, cluster: Cluster, ready: asyncio.Event) -> None:
        listed = json.loads(await cluster.client.get(kinds.PODS.path(cluster.namespace)))
        since = {"resourceVersion": listed["metadata"]["resourceVersion"]}
        ready.set()
        async for line in cluster.client.watch(kinds.PODS.path(cluster.namespace), since):
            event = json.loads(line)
            assert event["type"] in ("ADDED", "MODIFIED", "DELETED")
            pod = event["object"]
            self.states.setdefault(pod["metadata"]["name"], []).append(pod)

    def governed(self) -> dict[str, list[Object]]:
        """The states of those pods that carry a podset's label."""
        return {
            name: states
            for name, states in self.states.items()
            if names.PODSET_LABEL in states[0]["metadata"].get("labels", {})
        }


@asynccontextmanager
async def watching(cluster: Cluster) -> AsyncIterator[PodWatch]:
    seen, ready = PodWatch(), asyncio.Event()
    task = asyncio.create_task(seen.follow(cluster, ready))
    await ready.wait()
    try:
        yield seen
    finally:
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError), outcome


def gated(pod: Object) -> bool:
    return {"name": names.TOPOLOGY_GATE} in pod["spec"].get("schedulingGates", [])


@pytest.mark.requirement("HOOK-05", "HOOK-15", "TAS-27")
@pytest.mark.field_note("W1")
@pytest.mark.usefixtures("webhook_down")
async def test_with_all_replicas_down_others_work_and_managed_pods_are_born_gated(
    cluster: Cluster,
) -> None:
    async with watching(cluster) as seen:
        await create_what_is_not_ours(cluster)
        await cluster.add_queue()
        with pytest.raises((ForbiddenError, UnprocessableError)) as caught:
            await cluster.submit("unsuspended", 2, required=RACK)
        words = caught.value.message
        assert "must be created suspended, and the webhook that suspends it did not answer" in words
        await cluster.submit("train", 4, required=RACK, spec={"suspend": True})
        places = await cluster.places("train", 4)
        assert len({(block, rack) for block, rack, _ in places}) == 1
        await they_run(cluster)

        async def all_seen() -> bool:
            bound = [
                states for states in seen.governed().values() if "nodeName" in states[-1]["spec"]
            ]
            return len(bound) == 4

        await until("the watch has shown the pods bound", all_seen)
    for states in seen.governed().values():
        assert gated(states[0]), "born without the gate"
        for state in states:
            assert gated(state) or names.HOSTNAME_LABEL in state["spec"]["nodeSelector"]
            assert not (gated(state) and state["spec"].get("nodeName"))
    await clean_system(cluster)
