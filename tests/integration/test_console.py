"""The console with the rights of its Deployment, for users of a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from rackgate.api import resources as kinds
from rackgate.features import Features
from rackgate_console.console import Console
from rackgate_console.details import Details
from rackgate_console.server import ConsoleServer
from rackgate_console.viewers.token_viewers import TokenViewers
from tests.support.cluster import Cluster, until
from tests.support.console_page import Page, Stream
from tests.support.identities import TENANT, acting_as, add_tenant, authorization, wait_right
from tests.support.objects import RACK, Object
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

RBAC = Path(__file__).parents[2] / "deploy" / "console" / "rbac.yaml"
SYSTEM = "rackgate-system"
KINDS = {
    "ServiceAccount": kinds.SERVICE_ACCOUNTS,
    "ClusterRole": kinds.CLUSTER_ROLES,
    "ClusterRoleBinding": kinds.CLUSTER_ROLE_BINDINGS,
}


@pytest_asyncio.fixture
async def running(playground: Playground, cluster: Cluster) -> AsyncIterator[ConsoleServer]:
    """A console that may do what deploy/console allows, and nothing else."""
    entries = [entry for entry in yaml.safe_load_all(RBAC.read_text()) if entry]
    for entry in entries:
        where = SYSTEM if entry["kind"] == "ServiceAccount" else None
        await put(cluster, KINDS[entry["kind"]].path(where), entry)
    async with acting_as(playground, cluster, (SYSTEM, "rackgate-console")) as own:
        console = Console(own.client, Features.of(None))
        server = ConsoleServer(
            console, TokenViewers(own.client), Details(console, own.client), "test"
        )
        await server.start("127.0.0.1", 0)
        following = asyncio.create_task(console.follow())

        async def complete() -> bool:
            assert not following.done(), following.result()
            return bool(console.feed.number) and console.connection.reachable

        try:
            await until("the page is complete", complete, seen=console.missing)
            yield server
        finally:
            await server.stop()
            following.cancel()
            await asyncio.wait([following])


async def put(cluster: Cluster, path: str, entry: Object) -> None:
    """Create, or leave what another test created."""
    await cluster.client.apply(
        f"{path}/{entry['metadata']['name']}", yaml.safe_dump(entry).encode(), "test"
    )


@pytest_asyncio.fixture
async def page(running: ConsoleServer) -> AsyncIterator[Page]:
    async with aiohttp.ClientSession(read_bufsize=2**22) as http:
        yield Page(running.port, http)


async def token_of(cluster: Cluster, account: tuple[str, str]) -> str:
    return (await authorization(cluster, account)).removeprefix("Bearer ")


async def viewer(cluster: Cluster) -> str:
    """The token of somebody with the ClusterRole rackgate-viewer."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "viewer"}}
    await cluster.create(kinds.SERVICE_ACCOUNTS, account)
    group = "rbac.authorization.k8s.io"
    binding: Object = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{cluster.pool}-viewer"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "rackgate-viewer"},
        "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": cluster.namespace}],
    }
    await cluster.create(kinds.CLUSTER_ROLE_BINDINGS, binding)
    await wait_right(cluster, "viewer", "list", kinds.NODES)
    return await token_of(cluster, (cluster.namespace, "viewer"))


async def test_a_viewer_sees_where_a_job_runs_and_why_another_waits(
    cluster: Cluster, page: Page
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 2, required=RACK)
    pods = await cluster.bound("train", 2)
    await cluster.submit("waits", 400, required=RACK)
    await cluster.condition("waits", "QuotaReserved", "False")
    token = await viewer(cluster)
    keys = {
        name: f"{cluster.namespace}/{(await cluster.workload_of(name))['metadata']['name']}"
        for name in ("train", "waits")
    }
    async with page.stream(token) as stream:
        await stream.until(
            lambda: (
                stream.tables.get("workloads", {}).get(keys["train"], {}).get("status")
                == "Admitted"
            )
        )
        await stream.until(lambda: stream.tables["workloads"].get(keys["waits"]))
        (podset,) = stream.tables["workloads"][keys["train"]]["podsets"]
        drawn = {values[-1] for values, _ in podset["domains"]}
        assert drawn == {pod["spec"]["nodeName"] for pod in pods}
        hosts = {row["h"]: row for row in stream.tables["hosts"].values()}
        assert drawn <= hosts.keys()
        assert stream.tables["workloads"][keys["waits"]]["position"] == [0, 0]
        assert f"ClusterQueue/{cluster.pool}-queue" in stream.tables["queues"]
    status, found = await page.get(f"/api/workloads/{keys['train']}", token)
    assert status == 200
    rows = {(row["rank"], row["host"]) for row in found["pods"]}
    assert {host for _, host in rows} == drawn
    assert [row["assigned"] == [row["host"]] for row in found["pods"]] == [True, True]
    assert not any(row["misplaced"] for row in found["pods"])
    # The Job's own come from its controller, which may say before this that it is suspended.
    events = [entry["event"] for entry in found["timeline"] if entry["from"] != "Job"]
    assert events[0] == "Created"
    assert {"QuotaReserved", "Admitted"} <= set(events)
    status, found = await page.get(f"/api/workloads/{keys['waits']}", token)
    assert status == 200
    assert found["explanation"]["state"] == "waiting"
    assert found["explanation"]["summary"]


async def test_a_tenant_of_a_real_cluster_sees_their_namespace_alone(
    cluster: Cluster, page: Page
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 2, required=RACK)
    await cluster.bound("train", 2)
    account = await add_tenant(cluster, "rackgate-batch-user")
    assert account == (cluster.namespace, TENANT)
    token = await token_of(cluster, account)
    query = f"?namespaces={cluster.namespace},kube-system"
    sees: dict[str, Any] = {}

    async def granted() -> bool:
        sees.update((await page.get("/api/session" + query, token))[1])
        return bool(sees["access"]["namespaces"] == [cluster.namespace])

    await until("the tenant has their rights", granted, seen=lambda: sees)
    assert not sees["access"]["nodes"]
    async with page.stream(token, query) as stream:
        await stream.until(lambda: stream.tables.get("workloads"))
        assert "hosts" not in stream.tables
        (row,) = stream.tables["workloads"].values()
        assert row["ns"] == cluster.namespace
    assert (await page.get("/api/session", "not-a-token"))[0] == 401


async def test_the_page_goes_on_when_the_api_server_is_away_and_follows_it_again(
    cluster: Cluster, page: Page, playground: Playground
) -> None:
    """Rows of before stay; after the restart they are what the API server has."""
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("before", 2, required=RACK)
    await cluster.bound("before", 2)
    token = await viewer(cluster)

    def status(stream: Stream, job: str) -> str:
        return next(
            (
                str(row["status"])
                for row in stream.tables.get("workloads", {}).values()
                if (row["ns"], row["job"]) == (cluster.namespace, f"Job/{job}")
            ),
            "",
        )

    async with page.stream(token) as stream:
        await stream.until(lambda: status(stream, "before") == "Admitted")
        await asyncio.to_thread(playground.run, "stop", "kube-apiserver")
        try:
            await stream.until(lambda: not stream.cluster["reachable"])
            assert stream.cluster["since"]
            assert status(stream, "before") == "Admitted", "what was seen last stays"
        finally:
            await asyncio.to_thread(playground.run, "start", "kube-apiserver")
        await stream.until(lambda: stream.cluster["reachable"])
        await cluster.delete(kinds.JOBS, "before")
        await cluster.submit("after", 2, required=RACK)
        pods = await cluster.bound("after", 2)
        await stream.until(
            lambda: status(stream, "after") == "Admitted" and not status(stream, "before")
        )
        own = await cluster.workload_of("after")
        row = stream.tables["workloads"][f"{cluster.namespace}/{own['metadata']['name']}"]
        drawn = {values[-1] for part in row["podsets"] for values, _ in part["domains"]}
        assert drawn == {pod["spec"]["nodeName"] for pod in pods}
