"""Operators scale and restart services while Jobs keep coming."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate_cli.controlplane.ports import LOOPBACK
from rackgate_cli.controlplane.state import StateFolder
from rackgate_invariants.judge import breaches, lasting
from rackgate_invariants.reading import read_cluster
from rackgate_ungater.shards.handover import SHARDS, lease_name
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, node
from tests.support.playground import Playground, start_playground

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

JOBS, MOST_JOBS, PODS = 24, 200, 4


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """A playground of its own: other tests must not see their services restarted."""
    playground = start_playground(tmp_path_factory.mktemp("scaling") / "state", nodes=0)
    try:
        yield playground
    finally:
        playground.stop()


async def steady_stream(cluster: Cluster, operated: asyncio.Event) -> int:
    """Submit Jobs until the operators are done; returns how many."""
    for index in range(MOST_JOBS):
        await cluster.submit(f"job-{index:03}", PODS, required=RACK, cpu="2", run_seconds=1)
        await asyncio.sleep(0.5)
        if index + 1 >= JOBS and operated.is_set():
            return index + 1
    return MOST_JOBS


async def operate(cluster: Cluster, playground: Playground) -> None:
    """Webhook 1→3, ungater 1→3→1, assigner restarted, each while Jobs are under way."""
    await asyncio.to_thread(playground.run, "scale", "webhook", "3")
    (first,) = await shard_holders(cluster)
    await asyncio.to_thread(playground.run, "scale", "ungater", "3")
    await shards_are_shared(cluster)
    await several_act(playground)
    for verb in (("stop", "assigner"), ("start", "assigner"), ("scale", "ungater", "1")):
        await asyncio.to_thread(playground.run, *verb)
    await all_are_held_by(cluster, first)
    assert len(playground.pids("webhook")) == 3
    assert len(playground.pids("ungater")) == 1


async def shard_holders(cluster: Cluster) -> Counter[str]:
    """How many shards each replica holds, once each shard has a holder."""
    found: Counter[str] = Counter()

    async def complete() -> bool:
        leases = await Cluster(cluster.client, names.SYSTEM_NAMESPACE, "").list_all(kinds.LEASES)
        specs = {lease["metadata"]["name"]: lease["spec"] for lease in leases}
        found.clear()
        found.update(specs.get(lease_name(n), {}).get("holderIdentity", "") for n in range(SHARDS))
        return "" not in found

    await until("every shard has a holder", complete, timeout_s=180)
    return found


async def shards_are_shared(cluster: Cluster) -> None:
    async def shared() -> bool:
        return len(await shard_holders(cluster)) > 1

    await until("replicas share the shards", shared, timeout_s=180)


async def all_are_held_by(cluster: Cluster, replica: str) -> None:
    async def held() -> bool:
        return await shard_holders(cluster) == {replica: SHARDS}

    await until("one replica holds all shards", held, timeout_s=180)


async def several_act(playground: Playground) -> None:
    """More than one replica releases pods."""

    async def acted() -> bool:
        logs = [playground.log(f"ungater-{number}") for number in range(3)]
        return sum("pods_ungated" in log for log in logs) > 1

    await until("two replicas have released pods", acted, timeout_s=180)


async def watch_invariants(cluster: Cluster, done: asyncio.Event) -> list[str]:
    found: list[str] = []
    before = breaches(await read_cluster(cluster.client))
    while not done.is_set():
        await asyncio.sleep(0.5)
        now = breaches(await read_cluster(cluster.client))
        found += [str(breach) for breach in lasting(before, now)]
        before = now
    return found


@pytest.mark.requirement("USR-16", "OPS-02", "HOOK-14", "UNG-15")
async def test_services_are_scaled_and_restarted_while_jobs_run(running: Playground) -> None:
    async with running.client() as client:
        cluster = Cluster(client, "default", "stream")
        await cluster.add_nodes(
            node("stream", "block-1", f"rack-{i // 4}", f"n{i:02}") for i in range(16)
        )
        await cluster.add_queue()
        done, operated = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch_invariants(cluster, done))
            streaming = group.create_task(steady_stream(cluster, operated))
            await operate(cluster, running)
            operated.set()
            count = await streaming

            async def complete() -> bool:
                ended = [
                    job
                    for job in await cluster.list_all(kinds.JOBS)
                    for entry in job["status"].get("conditions", [])
                    if entry["type"] == "Complete" and entry["status"] == "True"
                ]
                return len(ended) == count

            await until("all Jobs are complete", complete, timeout_s=240)
            done.set()
        assert watching.result() == []


async def test_a_webhook_whose_port_was_taken_is_called_at_its_new_one(running: Playground) -> None:
    before = webhook_port(running)
    await asyncio.to_thread(running.run, "stop", "webhook")
    with socket.socket() as somebody:
        somebody.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        somebody.bind((LOOPBACK, before))
        somebody.listen(1)
        await asyncio.to_thread(running.run, "start", "webhook")
        assert webhook_port(running) != before
        async with running.client() as client:
            # Were it not called, our policy would refuse a governed Job that is not suspended.
            stored = await Cluster(client, "default", "moved").submit("moved", 1, required=RACK)
            assert stored["spec"]["suspend"] is True


def webhook_port(playground: Playground) -> int:
    known = StateFolder(playground.state).load()
    assert known is not None
    return known.ports["webhook"]
