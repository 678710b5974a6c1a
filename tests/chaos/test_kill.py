"""kill -9 of each service at random moments while Jobs come and go: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rackgate.kube import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate_cli.invariants import breaches, lasting
from rackgate_cli.reading import read_cluster
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, node
from tests.support.playground import Playground, start_playground

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

JOBS, PODS, ROUNDS = 40, 16, 5
SERVICES = ("webhook", "assigner", "ungater")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Playground, Cluster]]:
    running = start_playground(tmp_path / "state", nodes=0)
    try:
        async with running.client() as client:
            cluster = Cluster(client, "default", "chaos")
            await cluster.add_nodes(
                node("chaos", f"block-{i // 32}", f"rack-{i // 8}", f"n{i:02}") for i in range(64)
            )
            await cluster.add_queue()
            yield running, cluster
    finally:
        running.stop()


async def submit_all(cluster: Cluster, turn: int, dice: random.Random) -> list[str]:
    """Create the round's Jobs, again when the webhook's absence refuses one."""
    made = []
    for index in range(JOBS):
        name = f"r{turn}-{index:02}"

        async def accepted(name: str = name) -> bool:
            try:
                await cluster.submit(
                    name, PODS, required=RACK, cpu="1", run_seconds=2 + dice.random() * 4
                )
            except KubeError as error:
                # Refused in words (the webhook is down, the Job came unsuspended) or by a
                # connection that died with a replica; a create that did land says it exists.
                return error.status == 409
            return True

        await until(f"Job {name} is accepted", accepted, timeout_s=60)
        made.append(name)
    return made


async def kill_now_and_then(
    playground: Playground, dice: random.Random, done: asyncio.Event, killed: list[str]
) -> None:
    """Kill a service's replicas at random moments, start them again a moment later."""
    while not done.is_set():
        await asyncio.sleep(1 + dice.random() * 4)
        service = SERVICES[len(killed) % len(SERVICES)]
        for pid in playground.pids(service):
            os.kill(pid, signal.SIGKILL)
        killed.append(service)
        await asyncio.sleep(dice.random() * 1.5)
        await asyncio.to_thread(playground.run, "start", service)


async def watch_invariants(client: Client, done: asyncio.Event) -> list[str]:
    """Read the cluster again and again; breaches that two readings in a row show."""
    found: list[str] = []
    before = breaches(await read_cluster(client))
    while not done.is_set():
        await asyncio.sleep(0.5)
        now = breaches(await read_cluster(client))
        found += [str(breach) for breach in lasting(before, now)]
        before = now
    return found


@pytest.mark.requirement("OPS-12", "UNG-10", "UNG-13", "OPS-02", "OPS-03", "CAP-09")
async def test_every_job_runs_though_services_are_killed(
    cluster: tuple[Playground, Cluster],
) -> None:
    playground, view = cluster
    for turn in range(ROUNDS):
        dice = random.Random(f"kill-{turn}")
        done = asyncio.Event()
        killed: list[str] = []
        async with asyncio.TaskGroup() as group:
            killing = group.create_task(kill_now_and_then(playground, dice, done, killed))
            watching = group.create_task(watch_invariants(view.client, done))
            made = await submit_all(view, turn, dice)

            async def complete(made: list[str] = made) -> bool:
                ended = [
                    job["metadata"]["name"]
                    for job in await view.list_all(kinds.JOBS)
                    for entry in job["status"].get("conditions", [])
                    if entry["type"] == "Complete" and entry["status"] == "True"
                ]
                return set(made) <= set(ended)

            await until(f"round {turn}: all Jobs are complete", complete, timeout_s=150)
            done.set()
            await killing
        assert watching.result() == []
        assert set(killed) == set(SERVICES)
        for name in made:
            await view.delete(kinds.JOBS, name)
