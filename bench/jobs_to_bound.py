"""Jobs to bound pods, against two baselines on the same control plane in the same run.

- plain: the same Jobs without a queue and without gates: what kube-scheduler and KWOK alone do.
- limit: Jobs whose pods carry a foreign gate, released by bare patches as fast as they appear:
  what any gate-based way can reach at best.
- rackgate: queued Jobs with a required rack.

The three take turns over several rounds; the ratio is taken per round and its median quoted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rackgate.kube import resources as kinds
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import KubeError
from rackgate.kube.informer import Informer
from rackgate.wire.core import Pod
from tests.support.objects import (
    HOST,
    POOL_LABEL,
    RACK,
    cluster_queue,
    flavor,
    job,
    local_queue,
    topology_object,
)
from tests.support.objects import node as node_of
from tests.support.playground import start_playground

GATE = "bench.rackgate.dev/hold"
FLOOR = 0.6
MODES = ("plain", "limit", "rackgate")


@dataclass(frozen=True, slots=True)
class Size:
    """How large a run is."""

    nodes: int
    rack: int
    jobs: int
    pods: int


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def create(client: Client, kind: kinds.Resource, obj: dict[str, Any]) -> None:
    """Create an object of the default namespace."""
    path = kind.path("default" if kind.namespaced else None)
    await client.create(path, json.dumps(obj).encode())


async def prepare(client: Client, size: Size) -> None:
    """Nodes in racks, one topology, flavor and queue."""
    gate = asyncio.Semaphore(32)

    async def make(index: int) -> None:
        rack = index // size.rack
        obj = node_of("bench", f"block-{rack // 8}", f"rack-{rack:03}", f"n{index:05}")
        async with gate:
            await create(client, kinds.NODES, obj)

    async with asyncio.TaskGroup() as group:
        for index in range(size.nodes):
            group.create_task(make(index))
    await create(client, kinds.TOPOLOGIES, topology_object("bench"))
    await create(client, kinds.FLAVORS, flavor("bench", "bench", "bench"))
    await create(client, kinds.CLUSTER_QUEUES, cluster_queue("bench", "bench", {"cpu": "100000"}))
    await create(client, kinds.LOCAL_QUEUES, local_queue("bench", "bench"))
    while True:
        ready = 0
        async for page in client.list_pages(kinds.NODES.path()):
            for obj in json.loads(page)["items"]:
                ready += not obj["spec"].get("taints")
        if ready == size.nodes:
            return
        await asyncio.sleep(0.5)


def bench_job(mode: str, index: int, pods: int) -> dict[str, Any]:
    """One Job of a mode; all ask for the same, only the way they are released differs."""
    name = f"{mode}-{index:03}"
    if mode == "rackgate":
        return job(name, pods, queue="bench", cpu="1", required=RACK)
    pod: dict[str, Any] = {"nodeSelector": {POOL_LABEL: "bench"}}
    if mode == "limit":
        pod["schedulingGates"] = [{"name": GATE}]
    return job(name, pods, queue=None, cpu="1", pod=pod)


def pods_informer(client: Client, seen: asyncio.Queue[Pod]) -> Informer[Pod]:
    """Pod events of the default namespace, fed into a queue; survives a closed stream."""
    return Informer(
        client,
        kinds.PODS,
        msgspec.json.Decoder(Pod).decode,
        on_upsert=lambda _, pod: seen.put_nowait(pod),
        on_delete=lambda _: None,
        namespace="default",
    )


async def release(client: Client, pod: Pod, gate: asyncio.Semaphore) -> None:
    """Take the foreign gate off one pod: the bare patch of the limit."""
    body = {
        "metadata": {"uid": pod.metadata.uid},
        "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]},
    }
    async with gate:
        with contextlib.suppress(KubeError):
            await client.patch(
                kinds.PODS.path("default", pod.metadata.name),
                json.dumps(body).encode(),
                PatchType.STRATEGIC,
            )


async def run(client: Client, mode: str, size: Size, limit_s: float) -> float:
    """Pods per second from the first create to the last bound pod.

    Raises:
        TimeoutError: not all pods were bound within `limit_s` seconds.
    """
    seen: asyncio.Queue[Pod] = asyncio.Queue()
    pods = pods_informer(client, seen)
    gate = asyncio.Semaphore(32)
    bound: set[str] = set()
    released: set[str] = set()
    total = size.jobs * size.pods
    async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
        watching = group.create_task(pods.run())
        await pods.synced.wait()
        begin = time.perf_counter()

        async def submit(index: int) -> None:
            async with gate:
                await create(client, kinds.JOBS, bench_job(mode, index, size.pods))

        for index in range(size.jobs):
            group.create_task(submit(index))
        while len(bound) < total:
            pod = await seen.get()
            uid = pod.metadata.uid
            if pod.spec.node_name:
                bound.add(uid)
            elif mode == "limit" and uid not in released and pod.has_gate(GATE):
                released.add(uid)
                group.create_task(release(client, pod, gate))
        took = time.perf_counter() - begin
        watching.cancel()
    return total / took


async def sweep(client: Client, mode: str, size: Size) -> None:
    """Delete a mode's Jobs and wait until their pods are gone."""
    options = json.dumps({"propagationPolicy": "Background"}).encode()
    for index in range(size.jobs):
        await client.delete(kinds.JOBS.path("default", f"{mode}-{index:03}"), options)
    while json.loads(await client.get(kinds.PODS.path("default"), {"limit": "1"}))["items"]:
        await asyncio.sleep(0.5)


async def measure(
    client: Client, size: Size, rounds: int, limit_s: float
) -> dict[str, list[float]]:
    """Pods per second by mode, a figure per round."""
    figures: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(rounds):
        for mode in MODES if turn % 2 == 0 else tuple(reversed(MODES)):
            rate = await run(client, mode, size, limit_s)
            figures[mode].append(rate)
            say(f"  round {turn + 1}  {mode:9} {rate:7.1f} pods/s")
            await sweep(client, mode, size)
    return figures


async def bench(arguments: argparse.Namespace, state: Path) -> dict[str, list[float]]:
    """One playground, all modes."""
    size = Size(arguments.nodes, arguments.rack, arguments.jobs, arguments.pods)
    playground = start_playground(state, nodes=0, audit=False)
    try:
        async with playground.client() as client:
            await prepare(client, size)
            say(f"{size.nodes} nodes ({HOST} lowest), {size.jobs} Jobs x {size.pods} pods")
            return await measure(client, size, arguments.rounds, arguments.limit)
    finally:
        playground.stop()


def main() -> int:
    """Run the bench and print ratios; exit 1 below the floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=640)
    parser.add_argument("--rack", type=int, default=32, help="nodes of a rack")
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--pods", type=int, default=32, help="pods of a Job")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=180, help="seconds a run may take")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rackgate-bench-") as folder:
        figures = asyncio.run(bench(arguments, Path(folder) / "state"))
    against = {
        base: statistics.median(
            ours / theirs for ours, theirs in zip(figures["rackgate"], figures[base], strict=True)
        )
        for base in ("plain", "limit")
    }
    for mode in MODES:
        low, middle, high = (f(figures[mode]) for f in (min, statistics.median, max))
        say(f"{mode:9} {low:7.1f} / {middle:7.1f} / {high:7.1f} pods/s (min / median / max)")
    say(f"rackgate / plain = {against['plain']:.2f}   rackgate / limit = {against['limit']:.2f}")
    if against["limit"] < FLOOR:
        say(f"below the floor of {FLOOR} of the limit")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
