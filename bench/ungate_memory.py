"""What an ungater keeps of many pods: a real process, fed by a server that makes pods up."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from bench.measuring import samples
from bench.measuring.processes import pss_mib
from rackgate.api import names
from rackgate.api.resources import PODS, WORKLOADS
from rackgate.topology.assignment import TopologyAssignment, encode
from rackgate_cli.controlplane import ports
from tests.support.apiserver import FakeApiServer
from tests.support.apiserver_objects import Target
from tests.support.objects import HOST

Object = dict[str, Any]

PODS_PER_WORKLOAD: Final = 100
READY_LIMIT_S: Final = 600.0
# After the first sync: allocations of the list are given back, the first resync is over.
REST_S: Final = 3.0


class SyntheticServer(FakeApiServer):
    """Plays pods and Workloads that nobody stores, page by page; the rest is stored."""

    def __init__(self, pods: int) -> None:
        super().__init__()
        self.pods = pods

    def _list(self, target: Target, query: Mapping[str, str]) -> Object:
        made = {PODS.full_name: self._pod, WORKLOADS.full_name: self._workload}
        make = made.get(target.full_name)
        if make is None:
            return super()._list(target, query)
        each = 1 if target.full_name == PODS.full_name else PODS_PER_WORKLOAD
        count = self.pods // each
        start = int(query.get("continue", "0"))
        end = min(count, start + int(query.get("limit", count)))
        meta = {"resourceVersion": "100"}
        if end < count:
            meta["continue"] = str(end)
        items = [make(number) for number in range(start, end)]
        return {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items}

    def _pod(self, number: int) -> Object:
        made = samples.pod(number % PODS_PER_WORKLOAD)
        owner = number // PODS_PER_WORKLOAD
        meta = made["metadata"]
        meta["name"] = f"train-{owner}-{number % PODS_PER_WORKLOAD}-x7k2p"
        meta["uid"] = f"{number:08x}-1111-4222-8333-444455556666"
        meta["resourceVersion"] = str(1_000_000 + number)
        meta["annotations"][names.WORKLOAD_ANNOTATION] = f"job-train-{owner}"
        meta["ownerReferences"][0]["uid"] = _owner_uid(owner)
        return made

    def _workload(self, number: int) -> Object:
        hosts = [f"node-{(number * PODS_PER_WORKLOAD + n) % 40_000:05}" for n in range(100)]
        domains = tuple(((host,), 1) for host in sorted(hosts))
        assigned = encode(TopologyAssignment((HOST,), domains))
        status = {
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                for kind in ("QuotaReserved", "Admitted")
            ],
            "admission": {
                "clusterQueue": "research",
                "podSetAssignments": [
                    {"name": "main", "count": 100, "topologyAssignment": assigned}
                ],
            },
        }
        owner = {"kind": "Job", "name": "train", "uid": _owner_uid(number), "controller": True}
        return {
            "metadata": {
                "name": f"job-train-{number}",
                "namespace": samples.NAMESPACE,
                "uid": f"{number:08x}-2222-4222-8333-444455556666",
                "resourceVersion": str(2_000_000 + number),
                "ownerReferences": [owner],
            },
            "spec": {"podSets": [{"name": "main", "count": 100, "template": {"spec": {}}}]},
            "status": status,
        }


def _owner_uid(number: int) -> str:
    return f"{number:08x}-3333-4222-8333-444455556666"


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one process, MiB. `peak` is the resident size at its highest."""

    pods: int
    rss: float
    pss: float
    peak: float
    synced_s: float


async def memory(
    pods: int, *, server: type[SyntheticServer] = SyntheticServer, gates: Sequence[str] = ()
) -> Memory:
    """Let a new ungater see that many pods; what it takes then.

    Args:
        pods: how many.
        server: plays them.
        gates: feature gates of the ungater, as `NAME=true`.

    Raises:
        TimeoutError: it was not ready in time.
    """
    async with server(pods) as playing:
        with ports.reserved({"health": None}) as chosen:
            port = chosen["health"]
        began = time.perf_counter()
        with _ungater(playing.url, port, gates) as child:
            pid = child.pid
            async with asyncio.timeout(READY_LIMIT_S):
                while not await ready(port):
                    assert child.poll() is None, f"the ungater ended with {child.returncode}"
                    await asyncio.sleep(0.1)
            synced_s = time.perf_counter() - began
            await asyncio.sleep(REST_S)
            rss, peak = resident_mib(pid)
            pss = pss_mib({"ungater": pid})["ungater"]
            return Memory(pods, rss, pss, peak, synced_s)


def bytes_per_pod(few: Memory, many: Memory) -> float:
    """Resident bytes of a pod more, its share of a Workload included."""
    return (many.rss - few.rss) * 2**20 / (many.pods - few.pods)


def resident_mib(pid: int) -> tuple[float, float]:
    """Resident size now, and at its highest."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    now, peak = (int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak


@contextlib.contextmanager
def _ungater(url: str, port: int, gates: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    document = {
        "featureGates": {gate.partition("=")[0]: True for gate in gates},
        "apiVersion": "config.rackgate.dev/v1alpha1",
        "kind": "UngaterConfiguration",
        "connection": {"server": url},
        "health": {"host": "127.0.0.1", "port": port},
        "leaderElection": {"leaseDuration": 60, "namespace": names.SYSTEM_NAMESPACE},
    }
    with tempfile.TemporaryDirectory(prefix="rackgate-bench-") as folder:
        file = Path(folder, "ungater.yaml")
        file.write_text(yaml.safe_dump(document))
        with Path(folder, "log").open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "rackgate_ungater", "--config", str(file)],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield child
        finally:
            child.kill()
            child.wait()


async def ready(port: int) -> bool:
    """Whether the service with this health port is ready."""
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{port}/readyz") as answer,
        ):
            return answer.status == 200
    except aiohttp.ClientError:
        return False
