"""100,000 pods admitted at once, on a real API server: 100 Jobs of 1,000, each within one rack.

All places and all of the quota are taken, and one Job more has to wait. What is admitted is
compared with the nodes: each Job within one rack, no host beyond its CPUs, and the status of the
queue exact.

By default the Jobs get no pods: kube-controller-manager is stopped as soon as the nodes are ready,
so that admission alone is measured: Workloads made, quota and 100,000 places granted, Jobs
started. `--pods` leaves it running and waits until every pod is bound, too; on two cores that
takes the better part of an hour.

Exit code 1 when anything is not admitted, or is out of its place.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measuring.processes import pss_mib
from bench.measuring.world import (
    CONCURRENCY,
    NAMESPACE,
    Size,
    create,
    playground,
    prepare,
    quiet,
    say,
)
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.topology.assignment import decode
from tests.support.objects import RACK, job
from tests.support.playground import Playground

NODE_CPU = 100
LIMIT_S = 900.0
PAGE = 200
TRIES = 10
PODS_LIMIT_S = 7200.0
EXTRA = "one-more"
STANDS_STILL = "kube-controller-manager"


@dataclass(frozen=True, slots=True)
class AdmittedPods:
    """What one Job was admitted with: pods by host."""

    job: str
    hosts: Mapping[str, int]


def faults(given: Iterable[AdmittedPods], racks: Mapping[str, str], size: Size) -> list[str]:
    """What is wrong with all admissions together, as lines. Pure.

    Args:
        given: of every admitted Workload.
        racks: by node.
        size: how many Jobs of how many pods there have to be.
    """
    found = list(given)
    lines = []
    if sorted({one.job for one in found}) != sorted(job_names(size)) or len(found) != size.jobs:
        lines.append(f"{len(found)} Workloads are admitted, not {size.jobs} of {size.jobs} Jobs")
    load: Counter[str] = Counter()
    for one in found:
        load.update(one.hosts)
        if sum(one.hosts.values()) != size.pods:
            lines.append(f"{one.job}: {sum(one.hosts.values())} pods have a place, not {size.pods}")
        within = sorted({racks[host] for host in one.hosts})
        if len(within) > 1:
            lines.append(f"{one.job}: split over racks {', '.join(within)}")
    over = sorted(host for host, pods in load.items() if pods > NODE_CPU)
    if over:
        lines.append(f"{len(over)} hosts have more pods than CPUs, {over[0]} first")
    return lines


def elsewhere(given: Iterable[AdmittedPods], bound: Mapping[tuple[str, str], int]) -> list[str]:
    """Which Jobs have other pods on other hosts than they were admitted with. Pure."""
    wanted = {(one.job, host): pods for one in given for host, pods in one.hosts.items()}
    differ = sorted({job for (job, _host), _pods in wanted.items() ^ bound.items()})
    return [f"{job}: its pods are not where it was admitted" for job in differ]


def job_names(size: Size) -> list[str]:
    """Names of the Jobs."""
    return [f"large-{index:04}" for index in range(size.jobs)]


async def _all(
    client: Client, kind: kinds.Resource, of: Callable[[Any], Any] = lambda item: item
) -> list[Any]:
    """Every object of a kind, or what is wanted `of` it; a full API server is asked again."""
    path = kind.path(NAMESPACE if kind.namespaced else None)
    for _ in range(TRIES):
        found: list[Any] = []
        try:
            async for page in client.list_pages(path, page_size=PAGE):
                found += [of(item) for item in json.loads(page)["items"]]
        except KubeError as error:
            say(f"           {error}")
            await asyncio.sleep(2)
        else:
            return found
    raise TimeoutError(f"no list of {kind.full_name}")


def _true(item: Mapping[str, Any], condition: str) -> bool:
    listed = item.get("status", {}).get("conditions", [])
    return any(one["type"] == condition and one["status"] == "True" for one in listed)


async def _submit(client: Client, size: Size) -> None:
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(name: str) -> None:
        async with gate:
            await create(
                client, kinds.JOBS, job(name, size.pods, queue="bench", cpu="1", required=RACK)
            )

    await asyncio.gather(*(one(name) for name in job_names(size)))


async def _started(client: Client, size: Size, limit_s: float) -> float:
    """Wait until all Jobs are unsuspended; the moment when all Workloads were admitted."""
    admitted = 0.0
    async with asyncio.timeout(limit_s):
        while True:
            if not admitted:
                workloads = await _all(client, kinds.WORKLOADS)
                if sum(_true(item, "Admitted") for item in workloads) >= size.jobs:
                    admitted = time.perf_counter()
            jobs = await _all(client, kinds.JOBS)
            if admitted and not any(item["spec"].get("suspend") for item in jobs):
                return admitted
            await asyncio.sleep(0.5)


async def _ready(client: Client, total: int) -> None:
    """Wait until all pods run, by the status of the Jobs: to list pods over and over costs more."""
    async with asyncio.timeout(PODS_LIMIT_S):
        while True:
            jobs = await _all(client, kinds.JOBS)
            pods = sum(item.get("status", {}).get("ready", 0) for item in jobs)
            if pods >= total:
                return
            say(f"           {pods:,} pods are ready")
            await asyncio.sleep(20)


async def _bound(client: Client) -> Counter[tuple[str, str]]:
    """How many pods of each Job are on each host."""

    def place(pod: Any) -> tuple[str, str]:
        return pod["metadata"]["ownerReferences"][0]["name"], pod["spec"].get("nodeName", "")

    return Counter(await _all(client, kinds.PODS, place))


async def _admitted_pods(client: Client) -> list[AdmittedPods]:
    found = []
    for item in await _all(client, kinds.WORKLOADS):
        if "admission" not in item.get("status", {}):
            continue
        (part,) = item["status"]["admission"]["podSetAssignments"]
        hosts = {domain[-1]: count for domain, count in decode(part["topologyAssignment"]).domains}
        found.append(AdmittedPods(item["metadata"]["ownerReferences"][0]["name"], hosts))
    return found


async def _admit_one_more(client: Client) -> list[str]:
    """Ask for one pod more; what is wrong with the answer."""
    await create(client, kinds.JOBS, job(EXTRA, 1, queue="bench", cpu="1", required=RACK))
    said: list[str] = []
    async with asyncio.timeout(LIMIT_S):
        while not said:
            await asyncio.sleep(0.5)
            for item in await _all(client, kinds.WORKLOADS):
                if item["metadata"]["ownerReferences"][0]["name"] == EXTRA:
                    listed = item.get("status", {}).get("conditions", [])
                    said = [one["reason"] for one in listed if one["type"] == "QuotaReserved"]
    return [] if said == ["WaitingForQuota"] else [f"one pod more is told {said[0]}"]


async def _usage(client: Client, size: Size) -> list[str]:
    """Wait for the queue's status; what is wrong with it."""
    total = ""
    for _ in range(60):
        body = await client.get(kinds.CLUSTER_QUEUES.path(None, "bench"))
        status = json.loads(body).get("status", {})
        usage = [r for f in status.get("flavorsUsage", []) for r in f["resources"]]
        total = usage[0]["total"] if usage else ""
        if total in (str(size.total), f"{size.total // 1000}k"):
            return []
        await asyncio.sleep(0.5)
    return [f"the queue says that {total or 'nothing'} is in use, not {size.total}"]


async def measure(running: Playground, size: Size, *, pods: bool) -> dict[str, Any]:
    """Play it once; figures, and under `wrong` what is not as it has to be."""
    async with running.client() as client:
        begin = time.perf_counter()
        await prepare(client, size, cpu=str(NODE_CPU), quota=str(size.total))
        say(f"  {size.nodes:,} nodes are ready after {time.perf_counter() - begin:.0f} s")
        if not pods:
            await asyncio.to_thread(running.run, "stop", STANDS_STILL)
        begin = time.perf_counter()
        await _submit(client, size)
        created = time.perf_counter()
        admitted = await _started(client, size, LIMIT_S)
        started = time.perf_counter()
        figures: dict[str, Any] = {
            "pods": size.total,
            "created_s": round(created - begin, 1),
            "admitted_s": round(admitted - begin, 1),
            "started_s": round(started - begin, 1),
        }
        if pods:
            await _ready(client, size.total)
            figures["ready_s"] = round(time.perf_counter() - begin, 1)
        racks = {
            item["metadata"]["name"]: item["metadata"]["labels"][RACK]
            for item in await _all(client, kinds.NODES)
        }
        given = await _admitted_pods(client)
        figures["wrong"] = [
            *faults(given, racks, size),
            *(elsewhere(given, await _bound(client)) if pods else ()),
            *await _usage(client, size),
            *await _admit_one_more(client),
        ]
        (pid,) = running.pids("assigner")
        figures["assigner_mib"] = round(pss_mib({"assigner-0": pid})["assigner"])
        return figures


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.hundred_thousand",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--size", type=int, default=1000, help="pods of one Job (default: 1000)")
    parser.add_argument("--pods", action="store_true", help="pods are made, released and bound")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    options = parser.parse_args()
    quiet()
    # As many nodes as the pods fill; a rack has room for two Jobs.
    rack = max(1, -(-2 * options.size // NODE_CPU))
    nodes = -(-options.jobs * options.size // NODE_CPU)
    size = Size(nodes=nodes, rack=rack, jobs=options.jobs, pods=options.size)
    say(f"{size.jobs} Jobs x {size.pods} pods = {size.total:,} on {nodes:,} nodes of {NODE_CPU}")
    with playground() as running:
        figures = asyncio.run(measure(running, size, pods=options.pods))
    for name, value in figures.items():
        say(f"  {name:14} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
