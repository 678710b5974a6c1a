"""The visibility API behind the aggregation layer of a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, NotFoundError, ServerError
from tests.support.cluster import Cluster, until
from tests.support.identities import as_tenant
from tests.support.objects import RACK
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

GROUP = "visibility.kueue.x-k8s.io"
LIMIT_S = 120.0


def path_of(cluster: Cluster, queue: str = "", version: str = "v1beta2") -> str:
    """Of the test's ClusterQueue, or of a LocalQueue."""
    where = f"namespaces/{cluster.namespace}/localqueues/{queue}" if queue else None
    return (
        f"/apis/{GROUP}/{version}/{where or f'clusterqueues/{cluster.pool}-queue'}/pendingworkloads"
    )


def named(found: bytes | str) -> list[tuple[str, int, int]]:
    """Job and positions of each item."""
    return [
        (
            item["metadata"]["ownerReferences"][0]["name"],
            item["positionInClusterQueue"],
            item["positionInLocalQueue"],
        )
        for item in json.loads(found)["items"]
    ]


async def available(cluster: Cluster) -> None:
    """Wait until the API server finds the assigner behind both versions."""
    found: list[dict[str, Any]] = []

    async def holds() -> bool:
        found[:] = [
            await cluster.get(kinds.API_SERVICES, f"{version}.{GROUP}")
            for version in ("v1beta1", "v1beta2")
        ]
        return all(
            any(
                entry["type"] == "Available" and entry["status"] == "True"
                for entry in one.get("status", {}).get("conditions", ())
            )
            for one in found
        )

    await until("the APIServices are available", holds, timeout_s=LIMIT_S, seen=lambda: found)


async def waiting(cluster: Cluster) -> None:
    """A queue that is full, and two Jobs that wait for it."""
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"})
    await cluster.submit("first", 4, required=RACK)
    await cluster.bound("first", 4)
    for name in ("second", "third"):
        await cluster.submit(name, 4, required=RACK)
        await cluster.condition(name, "QuotaReserved", "False")


async def test_kubectl_shows_positions_through_the_api_server(
    playground: Playground, cluster: Cluster
) -> None:
    await available(cluster)
    await waiting(cluster)

    async def both() -> bool:
        found = playground.run("kubectl", "get", "--raw", path_of(cluster))
        return named(found) == [("second", 0, 0), ("third", 1, 1)]

    await until("both are shown in order", both)
    for version in ("v1beta1", "v1beta2"):
        raw = playground.run("kubectl", "get", "--raw", path_of(cluster, "queue", version))
        assert json.loads(raw)["apiVersion"] == f"{GROUP}/{version}"
        assert named(raw) == [("second", 0, 0), ("third", 1, 1)]
    page = playground.run("kubectl", "get", "--raw", f"{path_of(cluster)}?limit=1&offset=1")
    assert named(page) == [("third", 1, 1)]
    shown = playground.run("workloads", "-n", cluster.namespace, "-o", "json")
    report = json.loads(shown)
    assert (report["positionsFrom"], report["notes"]) == ("visibility", [])
    assert [(row["job"], row.get("positionInClusterQueue")) for row in report["items"]] == [
        ("Job/second", 0),
        ("Job/third", 1),
        ("Job/first", None),
    ]
    queue = playground.run("queues", f"{cluster.pool}-queue", "-n", cluster.namespace)
    assert "100%" in queue
    listed = playground.run("kubectl", "api-resources", "--api-group", GROUP, "-o", "name")
    assert "error" not in listed.lower()
    with pytest.raises(NotFoundError):
        await cluster.client.get(path_of(cluster).replace(f"{cluster.pool}-queue", "no-such-queue"))


@pytest.mark.requirement("OPS-05")
async def test_a_user_sees_the_queues_of_the_own_namespace_only(
    playground: Playground, cluster: Cluster
) -> None:
    await available(cluster)
    await waiting(cluster)
    async with as_tenant(playground, cluster) as tenant:

        async def seen() -> bool:
            try:
                return len(named(await tenant.client.get(path_of(cluster, "queue")))) == 2
            except (ForbiddenError, ServerError):
                return False

        # The role is aggregated into `edit` by a controller.
        await until("the own LocalQueue is shown", seen, timeout_s=LIMIT_S)
        foreign = path_of(cluster, "queue").replace(cluster.namespace, "default")
        for path in (path_of(cluster), foreign):
            with pytest.raises(ForbiddenError):
                await tenant.client.get(path)
