"""Operators scale and restart services while Jobs keep coming."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackgate.kube import resources as kinds
from rackgate_cli.invariants import breaches, lasting
from rackgate_cli.reading import read_cluster
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, node
from tests.support.playground import Playground, start_playground

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

JOBS, PODS = 24, 4


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Playground]:
    """A playground of its own: other tests must not see their services restarted."""
    playground = start_playground(tmp_path / "state", nodes=0)
    yield playground
    playground.stop()


async def steady_stream(cluster: Cluster) -> None:
    for index in range(JOBS):
        await cluster.submit(f"job-{index:02}", PODS, required=RACK, cpu="2", run_seconds=1)
        await asyncio.sleep(0.5)


async def operate(playground: Playground) -> None:
    """Webhook 1→3, ungater 1→3→1, assigner restarted, each while Jobs are under way."""
    for verb in (
        ("scale", "webhook", "3"),
        ("scale", "ungater", "3"),
        ("stop", "assigner"),
        ("start", "assigner"),
        ("scale", "ungater", "1"),
    ):
        await asyncio.to_thread(playground.run, *verb)
    assert len(playground.pids("webhook")) == 3
    assert len(playground.pids("ungater")) == 1


async def watch_invariants(cluster: Cluster, done: asyncio.Event) -> list[str]:
    found: list[str] = []
    before = breaches(await read_cluster(cluster.client))
    while not done.is_set():
        await asyncio.sleep(0.5)
        now = breaches(await read_cluster(cluster.client))
        found += [str(breach) for breach in lasting(before, now)]
        before = now
    return found


@pytest.mark.requirement("USR-16", "OPS-02", "HOOK-14")
async def test_services_are_scaled_and_restarted_while_jobs_run(running: Playground) -> None:
    async with running.client() as client:
        cluster = Cluster(client, "default", "stream")
        await cluster.add_nodes(
            node("stream", "block-1", f"rack-{i // 4}", f"n{i:02}") for i in range(16)
        )
        await cluster.add_queue()
        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch_invariants(cluster, done))
            streaming = group.create_task(steady_stream(cluster))
            await operate(running)
            await streaming

            async def complete() -> bool:
                ended = [
                    job
                    for job in await cluster.list_all(kinds.JOBS)
                    for entry in job["status"].get("conditions", [])
                    if entry["type"] == "Complete" and entry["status"] == "True"
                ]
                return len(ended) == JOBS

            await until("all Jobs are complete", complete, timeout_s=120)
            done.set()
        assert watching.result() == []
