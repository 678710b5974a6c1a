"""The cluster a bench runs on: nodes in racks, one queue, Jobs of three kinds, a clean sweep."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog

from bench.measuring.processes import cpu_seconds
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import ServerError
from tests.support.objects import (
    POOL_LABEL,
    RACK,
    cluster_queue,
    flavor,
    job,
    local_queue,
    topology_object,
)
from tests.support.objects import node as node_of
from tests.support.playground import SERVICES, Playground, start_playground

GATE: Final = "bench.rackgate.dev/hold"
MODES: Final = ("plain", "limit", "rackgate")
NAMESPACE: Final = "default"
CONCURRENCY: Final = 32
GATEWAY_TIMEOUT: Final = 504

SWEEP_LIMIT_S: Final = 600.0
SETTLE_LIMIT_S: Final = 20.0
IDLE_CORES: Final = 0.25

# What is measured is what is deployed: these are the services' own defaults. A playground waits
# less for a request, and tests have longer Leases.
SERVICE_DEFAULTS: Final = {
    f"RACKGATE_{service.upper()}_{key}": value
    for service in SERVICES
    for key, value in (
        ("LEADER_ELECTION__LEASE_DURATION", "15"),
        ("CONNECTION__REQUEST_TIMEOUT", "10"),
    )
}
# Of the control plane: its heaps grow to five times what is in use. With Kueue's load, the API
# server takes an eighth less CPU than with 200, the playground's default, and 10 GB of memory.
GARBAGE_COLLECTION: Final = "400"


@dataclass(frozen=True, slots=True)
class Size:
    """How large a run is."""

    nodes: int
    rack: int
    jobs: int
    pods: int

    @property
    def total(self) -> int:
        return self.jobs * self.pods


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def quiet() -> None:
    """Only errors of this process reach the terminal; the services log into the playground."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )


def end(number: int, _frame: types.FrameType | None) -> NoReturn:
    """A signal handler: leave through all `finally` blocks."""
    raise SystemExit(128 + number)


@contextlib.contextmanager
def playground(
    services: tuple[str, ...] = SERVICES,
    *,
    operators: tuple[str, ...] = (),
    gates: tuple[str, ...] = (),
    audit: bool = False,
) -> Iterator[Playground]:
    """A playground of its own, ended and removed however the block is left, SIGTERM included."""
    signal.signal(signal.SIGTERM, end)
    os.environ.update(SERVICE_DEFAULTS)
    os.environ.setdefault("GOGC", GARBAGE_COLLECTION)
    with tempfile.TemporaryDirectory(prefix="rackgate-bench-") as folder:
        started = start_playground(
            Path(folder) / "state",
            nodes=0,
            services=services,
            operators=operators,
            gates=gates,
            audit=audit,
        )
        try:
            yield started
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            started.stop()


def leases_lost(started: Playground) -> int:
    """How often a service lost its lease so far; a round in which that happens is no figure."""
    return sum(
        started.log(name).count('"lease_lost"')
        for name in started.components()
        if name.rpartition("-")[0] in SERVICES
    )


async def create(client: Client, kind: kinds.Resource, obj: dict[str, Any]) -> None:
    """Create an object, of the default namespace if it is of one."""
    path = kind.path(NAMESPACE if kind.namespaced else None)
    await client.create(path, json.dumps(obj).encode())


def node_name(index: int) -> str:
    """The name of a node of `prepare`."""
    return f"bench-n{index:05}"


async def prepare(client: Client, size: Size, *, cpu: str = "8", quota: str = "100000") -> None:
    """Nodes in racks, one topology, flavor and queue; returns when all nodes are ready.

    Args:
        client: with cluster-admin rights.
        size: how many nodes, and how many to a rack.
        cpu: of each node.
        quota: CPUs of the queue.
    """

    def node(index: int) -> dict[str, Any]:
        rack = index // size.rack
        name = node_name(index).removeprefix("bench-")
        return node_of("bench", f"block-{rack // 8}", f"rack-{rack:03}", name, cpu=cpu)

    await make_nodes(client, map(node, range(size.nodes)))
    await create(client, kinds.TOPOLOGIES, topology_object("bench"))
    await create(client, kinds.FLAVORS, flavor("bench", "bench", "bench"))
    await create(client, kinds.CLUSTER_QUEUES, cluster_queue("bench", "bench", {"cpu": quota}))
    await create(client, kinds.LOCAL_QUEUES, local_queue("bench", "bench"))


async def make_nodes(client: Client, nodes: Iterable[dict[str, Any]]) -> None:
    """Create all nodes there are to be; returns when they are ready.

    Raises:
        TimeoutError: some stay tainted.
    """
    gate = asyncio.Semaphore(CONCURRENCY)

    async def make(node: dict[str, Any]) -> None:
        async with gate:
            await create(client, kinds.NODES, node)

    async with asyncio.TaskGroup() as group:
        made = [group.create_task(make(node)) for node in nodes]
    async with asyncio.timeout(SWEEP_LIMIT_S):
        while await _untainted(client) < len(made):
            await asyncio.sleep(0.5)


async def _untainted(client: Client) -> int:
    count = 0
    async for page in client.list_pages(kinds.NODES.path()):
        count += sum(not item["spec"].get("taints") for item in json.loads(page)["items"])
    return count


def job_name(mode: str, index: int) -> str:
    return f"{mode}-{index:03}"


def bench_job(mode: str, index: int, pods: int) -> dict[str, Any]:
    """One Job of a mode: same pods, same request; only how they are released differs.

    Pods of the limit get their nodeSelector with the patch that releases them, as ours do. The
    annotation stands in for the request that only the queued Job carries.
    """
    name = job_name(mode, index)
    if mode == "rackgate":
        return job(name, pods, queue="bench", cpu="1", required=RACK)
    marks = {"bench.rackgate.dev/required-topology": RACK}
    pod: dict[str, Any]
    if mode == "limit":
        pod = {"schedulingGates": [{"name": GATE}]}
    else:
        pod = {"nodeSelector": {POOL_LABEL: "bench"}}
    return job(name, pods, queue=None, cpu="1", pod=pod, annotations=marks)


async def sweep(client: Client, pids: dict[str, int]) -> None:
    """Delete all Jobs; wait until nothing of them is left and the control plane is at rest.

    Raises:
        TimeoutError: objects stay.
    """
    async with asyncio.timeout(SWEEP_LIMIT_S):
        await _delete_jobs(client)
        for kind in (kinds.JOBS, kinds.PODS, kinds.WORKLOADS):
            while await _any(client, kind):
                await asyncio.sleep(0.25)
    await settle(pids)


async def _delete_jobs(client: Client) -> None:
    """Delete all Jobs; a thousand may take longer than the API server gives one request."""
    options = json.dumps({"propagationPolicy": "Background"}).encode()
    while True:
        try:
            await client.delete(kinds.JOBS.path(NAMESPACE), options)
        except ServerError as error:
            if error.status != GATEWAY_TIMEOUT:
                raise
        else:
            return


async def _any(client: Client, kind: kinds.Resource) -> bool:
    return bool(json.loads(await client.get(kind.path(NAMESPACE), {"limit": "1"}))["items"])


async def settle(pids: dict[str, int]) -> None:
    """Wait until all processes together use little; for a bounded time."""
    for _ in range(int(SETTLE_LIMIT_S)):
        before = sum(cpu_seconds(pids).values())
        await asyncio.sleep(1.0)
        if sum(cpu_seconds(pids).values()) - before < IDLE_CORES:
            return
