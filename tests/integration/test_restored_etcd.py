"""etcd is restored from an older copy while the services run."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackgate.api import resources as kinds
from rackgate.kube.client import Client, PatchType
from rackgate_cli.controlplane.state import StateFolder
from tests.support.cluster import Cluster, until
from tests.support.objects import Object
from tests.support.playground import Playground, start_playground

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SPACE, JOB, PODS = "restored", "later", 4
# As many as a cluster makes in minutes: the store that comes back must not pass them at once.
REVISIONS = 3000
STORE = ("kube-apiserver", "etcd")
# A watch that is silent counts as dead after 150 s: that would be too late.
NOTICED_S = 60.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    playground = start_playground(tmp_path_factory.mktemp("restored") / "state", nodes=0)
    try:
        yield playground
    finally:
        playground.stop()


def away(playground: Playground) -> None:
    for name in STORE:
        playground.run("stop", name)


def back(playground: Playground) -> None:
    for name in reversed(STORE):
        playground.run("start", name)


def others_anew(playground: Playground) -> None:
    """Kubernetes' own controllers do not notice by themselves."""
    for verb in ("stop", "start"):
        for name in ("kube-controller-manager", "kube-scheduler", "kwok"):
            playground.run(verb, name)


def data(playground: Playground) -> Path:
    return StateFolder(playground.state).data


async def admits(client: Client, stop_policy: str) -> None:
    body = json.dumps({"spec": {"stopPolicy": stop_policy}}).encode()
    path = kinds.CLUSTER_QUEUES.path(name=f"{SPACE}-queue")
    await client.patch(path, body, PatchType.MERGE)


async def many_writes(client: Client) -> None:
    path = kinds.NAMESPACES.path(name=SPACE)
    numbers = iter(range(REVISIONS))

    async def work() -> None:
        for number in numbers:
            body = {"metadata": {"annotations": {"example.com/written": str(number)}}}
            await client.patch(path, json.dumps(body).encode(), PatchType.MERGE)

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(work())


@pytest.mark.requirement("UNG-18", "OPS-07", "CAP-09")
async def test_services_notice_at_once_and_go_on_with_what_the_older_store_says(
    running: Playground, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    async with running.client() as client:
        body = json.dumps({"metadata": {"name": SPACE}}).encode()
        await client.create(kinds.NAMESPACES.path(), body)
        cluster = Cluster(client, SPACE, SPACE)
        await cluster.add_fx_a()
        await cluster.add_queue(stopPolicy="Hold")
        await cluster.submit(JOB, PODS)
        await cluster.condition(JOB, "QuotaReserved", "False")
        await asyncio.to_thread(away, running)
        await asyncio.to_thread(shutil.copytree, data(running), copy)
        await asyncio.to_thread(back, running)
        assert running.pids("assigner"), "an API server that was away is no older one"
        assert running.pids("ungater")
        await admits(client, "None")
        await cluster.bound(JOB, PODS)
        await many_writes(client)
        await asyncio.to_thread(away, running)
    shutil.rmtree(data(running))
    shutil.copytree(copy, data(running))
    await asyncio.to_thread(back, running)

    async def ended() -> bool:
        pids = await asyncio.to_thread(running.components)
        names = ("assigner-0", "ungater-0")
        return all(pids[name]["pid"] is None for name in names)

    await until("assigner and ungater have ended", ended, timeout_s=NOTICED_S)
    for name in ("assigner-0", "ungater-0"):
        last = running.log(name).splitlines()[-1]
        assert "restored from a backup" in last
    async with running.client() as client:  # this one remembers nothing
        cluster = Cluster(client, SPACE, SPACE)
        found: list[Object] = await cluster.list_all(kinds.PODS)
        assert found == []
        workload = await cluster.workload_of(JOB)
        assert "admission" not in workload.get("status", {}), "as in the copy"
        assert await asyncio.to_thread(running.restart_ended)
        await asyncio.to_thread(others_anew, running)
        await admits(client, "None")
        await cluster.bound(JOB, PODS)
        await cluster.clean()
