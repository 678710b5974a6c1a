"""Gangs released one after the other, against bare patches; what the ungater keeps of 1,000 gangs.

On a real control plane, gangs of gated pods are created whose Workloads are admitted already. So
each is released when its last pod is seen. Every few gangs, as many pods are released by this
process, which patches their last gate away as soon as it has seen the last of them, as many at a
time as the ungater. Both are timed on one watch, from the last pod seen to the last gate seen off.
kube-scheduler stands still, and all pods stay.

Exit code 1: the 99th percentile of ours is over its aim, or a gang was not released as a whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.measuring.processes import cpu_seconds
from bench.measuring.rounds import SeenPod
from bench.measuring.world import (
    NAMESPACE,
    Size,
    create,
    leases_lost,
    playground,
    prepare,
    quiet,
    say,
)
from bench.ungate_memory import PODS_PER_WORKLOAD, Memory, SyntheticServer, memory
from bench.ungate_world import (
    BARE,
    OURS,
    Shape,
    admission,
    bare_patch,
    pod,
    pod_name,
    workload_name,
)
from bench.ungate_world import workload as kueue_workload
from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import Client, PatchType
from rackgate.kube.informer import Informer
from rackgate.kube.transport import RefreshableToken, Transport
from rackgate.runtime.tasks import start
from rackgate_ungater.settings import UngatingSettings
from tests.support.apiserver_objects import Target
from tests.support.identities import JOB_CONTROLLER, server_context
from tests.support.playground import Playground

Object = dict[str, Any]

AIM_S: Final = 1.0
GATES: Final = ("GangScheduling=true",)
RACK_NODES: Final = 32
GANG_LIMIT_S: Final = 120.0
RUN: Final = "0123456789"


@dataclass(frozen=True)
class Released:
    """One gang.

    Attributes:
        kind: whose gates its pods had.
        took_s: from its last pod seen to its last gate seen off.
        spread_s: from its first gate seen off to its last.
    """

    kind: str
    took_s: float
    spread_s: float


class Watcher:
    """Notes when pods are seen, and when their last gate is."""

    def __init__(self, client: Client) -> None:
        self.seen: dict[str, float] = {}
        self.ungated: dict[str, float] = {}
        self.changed = asyncio.Event()
        self.pods: Informer[SeenPod] = Informer(
            client,
            kinds.PODS,
            msgspec.json.Decoder(SeenPod).decode,
            on_upsert=self._upsert,
            on_delete=lambda _: None,
            namespace=NAMESPACE,
            key_of=lambda found: found.metadata.name,
            version_of=lambda found: found.metadata.resource_version,
            uid_of=lambda found: found.metadata.uid,
        )

    def _upsert(self, _before: SeenPod | None, found: SeenPod) -> None:
        name, now = found.metadata.name, time.perf_counter()
        self.seen.setdefault(name, now)
        if not found.spec.scheduling_gates:
            self.ungated.setdefault(name, now)
        self.changed.set()

    async def all_in(self, where: Mapping[str, float], wanted: list[str]) -> None:
        """Wait until all of these pods are there.

        Raises:
            TimeoutError: some are not in time.
        """
        async with asyncio.timeout(GANG_LIMIT_S):
            while not all(name in where for name in wanted):
                self.changed.clear()
                await self.changed.wait()


def gang_workload(number: int, pods: int) -> Object:
    """The Workload of gangs of one gang."""
    return {
        "apiVersion": kinds.GANG_WORKLOADS.api_version,
        "kind": kinds.GANG_WORKLOADS.kind,
        "metadata": {"name": workload_name(OURS, number)},
        "spec": {"gangGroups": [{"name": "gg", "minCount": pods}]},
    }


def gang_pod(kind: str, number: int, shape: Shape, owner: Object) -> Object:
    """A pod as of `bench.ungate`; ours is linked, and has the gate of gangs, too."""
    found = pod(kind, number, shape, owner)
    if kind == OURS:
        link = workload_name(OURS, number // shape.each)
        found["metadata"]["annotations"][names.GANG_LINK_ANNOTATION] = link
        found["spec"]["schedulingGates"].append({"name": names.GANG_GATE})
    return found


@asynccontextmanager
async def job_controller(started: Playground, client: Client) -> AsyncIterator[Client]:
    """A client with the rights of the Job controller: no one else may create such pods."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 7200},
    }
    path = kinds.SERVICE_ACCOUNTS.path(*JOB_CONTROLLER, "token")
    token = json.loads(await client.create(path, json.dumps(request).encode()))["status"]["token"]
    found = Client(
        Transport(
            started.server,
            ssl_context=server_context(started),
            credentials=RefreshableToken(f"Bearer {token}"),
            user_agent="bench",
        )
    )
    try:
        yield found
    finally:
        await found.close()


class Bench:
    """Creates and times gangs on one control plane."""

    def __init__(self, client: Client, maker: Client, shape: Shape, watcher: Watcher) -> None:
        self._client, self._maker, self._shape, self._watcher = client, maker, shape, watcher
        self._at_once = asyncio.Semaphore(UngatingSettings().concurrency)

    async def release(self, kind: str, number: int) -> Released:
        """Create one gang; returns when it is released."""
        shape, watcher = self._shape, self._watcher
        owner = await self._owner(kind, number)
        if kind == OURS:
            await self._admitted(number, owner)
        ranks = range(number * shape.each, (number + 1) * shape.each)
        wanted = [pod_name(kind, rank) for rank in ranks]
        async with asyncio.TaskGroup() as group:
            for rank in ranks:
                made = gang_pod(kind, rank, shape, owner)
                group.create_task(self._slowly(create(self._maker, kinds.PODS, made)))
        await watcher.all_in(watcher.seen, wanted)
        if kind == BARE:
            async with asyncio.TaskGroup() as group:
                for rank in ranks:
                    group.create_task(self._slowly(self._bare(rank)))
        await watcher.all_in(watcher.ungated, wanted)
        off = [watcher.ungated[name] for name in wanted]
        last_seen = max(watcher.seen[name] for name in wanted)
        return Released(kind, max(off) - last_seen, max(off) - min(off))

    async def _slowly(self, call: Any) -> None:
        async with self._at_once:
            await call

    async def _owner(self, kind: str, number: int) -> Object:
        name = workload_name(kind, number)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        answer = await self._client.create(
            kinds.CONFIG_MAPS.path(NAMESPACE), json.dumps(body).encode()
        )
        uid = json.loads(answer)["metadata"]["uid"]
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": name,
            "uid": uid,
            "controller": True,
        }

    async def _admitted(self, number: int, owner: Object) -> None:
        client, shape = self._client, self._shape
        await create(client, kinds.GANG_WORKLOADS, gang_workload(number, shape.each))
        await create(client, kinds.WORKLOADS, kueue_workload(number, shape, owner))
        path = kinds.WORKLOADS.path(NAMESPACE, workload_name(OURS, number), "status")
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "Workload",
            "status": admission(number, shape),
        }
        await client.apply(path, json.dumps(body).encode(), "bench")

    async def _bare(self, rank: int) -> None:
        name = pod_name(BARE, rank)
        uid = self._watcher.pods.store[name].metadata.uid
        patch = bare_patch(uid, self._shape.host(rank)).encode()
        await self._client.patch(kinds.PODS.path(NAMESPACE, name), patch, PatchType.STRATEGIC)


async def measure(
    arguments: argparse.Namespace, started: Playground
) -> tuple[list[Released], dict[str, float]]:
    """All gangs in turns, and CPU seconds by component."""
    shape = Shape(arguments.nodes, arguments.gangs, arguments.gangs * arguments.pods)
    found: list[Released] = []
    async with started.client() as client, job_controller(started, client) as maker:
        await prepare(client, Size(shape.nodes, RACK_NODES, 0, 0), cpu="64")
        await asyncio.to_thread(started.run, "stop", "kube-scheduler")
        watcher = Watcher(client)
        watching = start(watcher.pods.run(), "pods")
        try:
            await watcher.pods.synced.wait()
            bench = Bench(client, maker, shape, watcher)
            await bench.release(OURS, 0)  # the ungater acts, and everything is warm
            say(f"{arguments.gangs} gangs of {arguments.pods} pods, {shape.nodes} nodes")
            parts = started.components().items()
            pids = {name: part["pid"] for name, part in parts if part["pid"]}
            before = cpu_seconds(pids)
            for number in range(1, arguments.gangs):
                found.append(await bench.release(OURS, number))
                if number % arguments.bare_every == 0:
                    found.append(await bench.release(BARE, number))
                if number % 100 == 0:
                    say(f"  {number} gangs: {line(found)}")
            spent = cpu_seconds(pids)
        finally:
            watching.cancel()
    return found, {name: spent[name] - before[name] for name in spent if name in before}


def percentile(times: list[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def line(found: list[Released]) -> str:
    """Both kinds, as text for people."""
    parts = []
    for kind in (OURS, BARE):
        times = [one.took_s for one in found if one.kind == kind]
        if times:
            middle, most = statistics.median(times), percentile(times, 0.99)
            parts.append(f"{kind} p50 {middle * 1e3:.0f} ms, p99 {most * 1e3:.0f} ms")
    return "; ".join(parts)


class GangServer(SyntheticServer):
    """Its pods were released as gangs, one of each Workload."""

    def _list(self, target: Target, query: Mapping[str, str]) -> Object:
        if target.full_name != kinds.GANG_WORKLOADS.full_name:
            return super()._list(target, query)
        meta = {"resourceVersion": "100"}
        items = [self._gang(number) for number in range(self.pods // PODS_PER_WORKLOAD)]
        return {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items}

    def _pod(self, number: int) -> Object:
        found = super()._pod(number)
        link = f"job-train-{number // PODS_PER_WORKLOAD}"
        annotations = found["metadata"]["annotations"]
        annotations.update({names.GANG_LINK_ANNOTATION: link, names.GANG_RUN_ANNOTATION: RUN})
        return found

    @staticmethod
    def _gang(number: int) -> Object:
        found = gang_workload(number, PODS_PER_WORKLOAD)
        uid = f"{number:08x}-4444-4222-8333-444455556666"
        meta = {"name": f"job-train-{number}", "namespace": "team-a", "uid": uid}
        found["metadata"] = {**meta, "resourceVersion": str(3_000_000 + number)}
        return found


async def memories(gangs: int) -> list[Memory]:
    """An ungater with as many pods, not of gangs and of gangs."""
    pods = gangs * PODS_PER_WORKLOAD
    return [await memory(pods), await memory(pods, server=GangServer, gates=GATES)]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=5_120)
    parser.add_argument("--gangs", type=int, default=1_000)
    parser.add_argument("--pods", type=int, default=64, help="of each gang")
    parser.add_argument("--bare-every", type=int, default=4, help="gangs for one of bare patches")
    parser.add_argument("--kept", type=int, default=1_000, help="gangs for memory; 0 for none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def main() -> int:
    """Run the bench and print what it found; exit 1 as the module says."""
    arguments = parse()
    quiet()
    with playground(("ungater",), gates=GATES) as started:
        released, cpu_s = asyncio.run(measure(arguments, started))
        lost = leases_lost(started)
    ours = [one.took_s for one in released if one.kind == OURS]
    most = percentile(ours, 0.99)
    say(line(released))
    pods = len(ours) * arguments.pods
    say(f"CPU ms/pod of the ungater: {cpu_s['ungater'] / pods * 1e3:.2f}")
    holds = most < AIM_S
    say(f"p99 {most:.2f} s: aim < {AIM_S:g} s {'met' if holds else 'MISSED'}")
    if lost:
        say(f"the ungater lost a Lease {lost} times: it began again then")
    document: Object = {"released": [asdict(one) for one in released], "cpu_s": cpu_s}
    if arguments.kept:
        without, kept = asyncio.run(memories(arguments.kept))
        say(
            f"{arguments.kept:,} gangs of {PODS_PER_WORKLOAD} pods: RSS {kept.rss:.0f} MiB,"
            f" {kept.rss - without.rss:.1f} more than as many pods that are in no gang"
        )
        document["memory"] = [asdict(without), asdict(kept)]
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
