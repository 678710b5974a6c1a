"""Manifests in the shapes that Kueue's documentation teaches, applied unchanged (tests/compat)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import yaml

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from tests.support.cluster import Cluster, until
from tests.support.objects import Object, node
from tests.support.playground import Playground
from tests.support.whole_answers import Server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

MANIFESTS: Final = Path(__file__).parents[1] / "compat" / "v1beta2"
EXPECTED: Final[list[Object]] = yaml.safe_load((MANIFESTS / "expected.yaml").read_text())
KINDS: Final = {
    (kind.api_version, kind.kind): kind
    for kind in vars(kinds).values()
    if isinstance(kind, Resource)
}
NODE_GROUP: Final = {"cloud.provider.com/node-group": "tas-node-group"}
RUNNING: Final = ("Pending", "Running")


def manifests(name: str) -> list[Object]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


class User:
    """Applies manifests as kubectl does, and deletes what they made."""

    def __init__(self, cluster: Cluster, server: Server) -> None:
        self.cluster, self._server = cluster, server
        self._made: list[tuple[Resource, str]] = []

    async def create(self, obj: Object) -> str:
        """Create an object; the Warnings of the API server."""
        kind = KINDS[obj["apiVersion"], obj["kind"]]
        path = kind.path(self.cluster.namespace if kind.namespaced else None)
        status, stored, warnings = await self._server.send("POST", path, obj)
        assert status == 201, stored
        self._made.append((kind, stored["metadata"]["name"]))
        return warnings

    async def clean(self) -> None:
        """Delete everything, the newest first."""
        for kind, name in reversed(self._made):
            await self.cluster.delete(kind, name)
        self._made.clear()


@pytest_asyncio.fixture
async def user(playground: Playground, cluster: Cluster) -> AsyncIterator[User]:
    """A cluster as an administrator sets it up by the documentation."""
    admin = User(cluster, Server(playground))
    nodes = [
        node(cluster.pool, block, f"{block}-{rack}", f"{block}-{rack}-{host}", labels=NODE_GROUP)
        for block in ("b1", "b2")
        for rack in ("r1", "r2")
        for host in ("h1", "h2")
    ]
    await cluster.add_nodes(nodes)
    for obj in manifests("setup.yaml"):
        await admin.create(obj)
    await cluster.wait_queues_seen()
    yield User(cluster, Server(playground))
    await admin.clean()


def test_the_table_names_every_manifest() -> None:
    files = {path.name for path in MANIFESTS.glob("*.yaml")}
    assert {row["file"] for row in EXPECTED} == files - {"expected.yaml", "setup.yaml"}


@pytest.mark.requirement("USR-01")
async def test_manifests_of_kueues_documentation_do_what_they_say(user: User) -> None:
    for row in EXPECTED:
        (manifest,) = manifests(row["file"])
        warnings = await user.create(manifest)
        assert row.get("warning", "") in warnings, (row["file"], warnings)
        if "warning" not in row:
            assert warnings == "", row["file"]
        await check(user.cluster, row)
        await user.clean()
        await until(f"{row['file']} is gone", lambda: is_empty(user.cluster))


async def check(cluster: Cluster, row: Object) -> None:
    """Wait until what the table says is true."""
    what = row["file"]
    if row.get("none"):
        assert await cluster.list_all(kinds.WORKLOADS) == [], what
        return
    if "condition" in row:
        await until(f"{what}: {row['condition']}", lambda: has_condition(cluster, row["condition"]))
        return
    bound = await until(f"{what}: {row['bound']} pods are bound", lambda: bound_pods(cluster, row))
    assert bound is not None
    nodes = {one["metadata"]["name"]: one for one in await cluster.list_all(kinds.NODES)}
    if "within" in row:
        labels = [nodes[pod["spec"]["nodeName"]]["metadata"]["labels"] for pod in bound]
        assert len({found[row["within"]] for found in labels}) == 1, what
    (workload,) = await cluster.list_all(kinds.WORKLOADS)
    assert workload["spec"].get("priority", 0) == row.get("priority", 0), what


async def bound_pods(cluster: Cluster, row: Object) -> list[Object] | None:
    pods = [
        pod
        for pod in await cluster.list_all(kinds.PODS)
        if pod["spec"].get("nodeName") and pod["status"]["phase"] in RUNNING
    ]
    return pods if len(pods) == row["bound"] else None


async def has_condition(cluster: Cluster, wanted: list[Any]) -> bool:
    type_, status, reason, words = wanted
    (workload,) = await cluster.list_all(kinds.WORKLOADS)
    return any(
        (one["type"], one["status"], one["reason"]) == (type_, status, reason)
        and words in one["message"]
        for one in workload["status"]["conditions"]
    )


async def is_empty(cluster: Cluster) -> bool:
    found = [await cluster.list_all(kind) for kind in (kinds.WORKLOADS, kinds.JOBS, kinds.PODS)]
    return not any(found)
