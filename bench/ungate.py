"""Pods ungated per second, against bare patches; what the ungater takes with very many pods.

5,000 gated pods of 50 Workloads wait on a real control plane with a scheduler; then all Workloads
are admitted at once. Beside it, in the same run, as many pods of the same form are released by one
process that patches their last gate away, as many at a time as the ungater. Both are timed on one
watch, from the first pod seen without its gate to the last. Afterwards every pod of ours must be
bound where its rank belongs.

Exit code 1: the share of the bare rate lost a third of its record, or a pod is not where its rank
belongs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.measuring import floors
from bench.measuring.processes import component_of, cpu_seconds
from bench.measuring.rounds import SeenPod
from bench.measuring.scrape import Samples, health_port, quantile, scrape
from bench.measuring.world import NAMESPACE, Size, leases_lost, playground, prepare, quiet, say
from bench.ungate_memory import Memory, bytes_per_pod, memory
from bench.ungate_world import BARE, OURS, Shape, admit, bare_patch, make, pod_name, remove
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.informer import Informer
from rackgate.runtime.tasks import start
from rackgate_ungater.settings import UngatingSettings
from rackgate_ungater.shards.handover import SHARDS
from tests.support.playground import Playground

AIM: Final = 0.8
LAG_AIM_S: Final = 0.05
SECTION: Final = "ungate"
RATIO: Final = "ungated/s, ungater / bare patches"
LAG: Final = "rackgate_event_loop_lag_seconds"
ROUND_LIMIT_S: Final = 900.0
FEW_PODS: Final = 1_000
RACK_NODES: Final = 32


@dataclass
class Release:
    """One release of all pods.

    Attributes:
        took_s: from the first pod seen without its gate to the last.
        bound_s: from the first pod seen without its gate to the last one bound.
        cpu_s: used meanwhile, by component; `releaser` is the ungater or the bare process.
        lag_s: event loop lag of the ungater, 99th percentile; NaN for bare patches.
        misplaced: pods on another node than their rank's.
    """

    kind: str
    pods: int
    took_s: float = 0.0
    bound_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    lag_s: float = float("nan")
    misplaced: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.pods / self.took_s


class Observer:
    """Notes when pods lose their last gate and where they are bound."""

    def __init__(self, client: Client, total: int) -> None:
        self.ungated: dict[str, float] = {}
        self.bound: dict[str, str] = {}
        self.bound_at = 0.0
        self.done = asyncio.Event()
        self.pods: Informer[SeenPod] = Informer(
            client,
            kinds.PODS,
            msgspec.json.Decoder(SeenPod).decode,
            on_upsert=self._seen,
            on_delete=lambda _: None,
            namespace=NAMESPACE,
            key_of=lambda pod: pod.metadata.name,
            version_of=lambda pod: pod.metadata.resource_version,
            uid_of=lambda pod: pod.metadata.uid,
        )
        self._total = total

    def _seen(self, _before: SeenPod | None, pod: SeenPod) -> None:
        name = pod.metadata.name
        if name not in self.ungated and not pod.spec.scheduling_gates:
            self.ungated[name] = time.perf_counter()
        if pod.spec.node_name and name not in self.bound:
            self.bound[name] = pod.spec.node_name
            self.bound_at = time.perf_counter()
            if len(self.bound) == self._total:
                self.done.set()


class Bench:
    """Releases pods in turns on one control plane."""

    def __init__(self, started: Playground, client: Client, shape: Shape) -> None:
        self._started, self._client, self._shape = started, client, shape
        self._port = health_port(started.state, "ungater-0")
        self._pids = {name: found["pid"] for name, found in started.components().items()}

    async def ready(self) -> None:
        """Wait until the ungater acts on every Workload."""
        async with asyncio.timeout(ROUND_LIMIT_S):
            while (await scrape(self._port)).get("rackgate_shards_held") != SHARDS:
                await asyncio.sleep(0.2)

    async def release(self, kind: str) -> Release:
        """Make pods, then release all of them; returns when they are bound and removed.

        Raises:
            TimeoutError: not all of them were bound in time.
        """
        shape, client = self._shape, self._client
        found = Release(kind, shape.total)
        observer = Observer(client, shape.total)
        async with asyncio.timeout(ROUND_LIMIT_S):
            await make(client, kind, shape)
            watching = start(observer.pods.run(), "pods")
            try:
                await observer.pods.synced.wait()
                await asyncio.sleep(2.0)  # creating is over everywhere
                await self._measure(kind, observer, found)
            finally:
                watching.cancel()
            await remove(client)
        return found

    async def _measure(self, kind: str, observer: Observer, found: Release) -> None:
        before = await scrape(self._port)
        cpu = cpu_seconds(self._pids)
        releaser_s = await (self._ours() if kind == OURS else self._bare(observer))
        await observer.done.wait()
        spent = cpu_seconds(self._pids)
        found.cpu_s = {name: spent[name] - cpu[name] for name in spent}
        found.cpu_s["releaser"] = releaser_s or found.cpu_s.pop("ungater")
        first = min(observer.ungated.values())
        found.took_s = max(observer.ungated.values()) - first
        found.bound_s = observer.bound_at - first
        if kind == OURS:
            found.lag_s = await self._lag(before)
        shape = self._shape
        found.misplaced = [
            name
            for number in range(shape.total)
            if observer.bound[name := pod_name(kind, number)] != shape.host(number)
        ]

    async def _lag(self, before: Samples) -> float:
        return quantile(before, await scrape(self._port), LAG, 0.99)

    async def _ours(self) -> float:
        await admit(self._client, self._shape)
        return 0.0

    async def _bare(self, observer: Observer) -> float:
        """Release by another process; returns its CPU seconds."""
        patches = []
        for number in range(self._shape.total):
            name = pod_name(BARE, number)
            uid = observer.pods.store[name].metadata.uid
            patches.append(
                (kinds.PODS.path(NAMESPACE, name), bare_patch(uid, self._shape.host(number)))
            )
        order = {
            "state": str(self._started.state),
            "concurrency": UngatingSettings().concurrency,
            "patches": patches,
        }
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.bare_patches",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            said, _ = await child.communicate(json.dumps(order).encode())
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        return float(json.loads(said)["cpu_s"])


async def measure(arguments: argparse.Namespace, started: Playground) -> list[Release]:
    """Both ways in turns, each first in every other round."""
    shape = Shape(arguments.nodes, arguments.workloads, arguments.pods)
    released: list[Release] = []
    async with started.client() as client:
        await prepare(client, Size(shape.nodes, RACK_NODES, 0, 0))
        bench = Bench(started, client, shape)
        await bench.ready()
        say(f"{shape.total} gated pods of {shape.workloads} Workloads, {shape.nodes} nodes")
        for turn in range(arguments.rounds):
            for kind in (BARE, OURS) if turn % 2 == 0 else (OURS, BARE):
                one = await bench.release(kind)
                released.append(one)
                say(describe(turn + 1, one))
    return released


def describe(turn: int, one: Release) -> str:
    """A line about one release."""
    cpu = "  ".join(
        f"{component_of(name)} {seconds / one.pods * 1e3:.2f}"
        for name, seconds in one.cpu_s.items()
        if seconds / one.pods > 5e-5
    )
    return f"  round {turn}  {one.kind:5}{one.rate:8.1f} pods/s   CPU ms/pod: {cpu}"


def ratios(released: list[Release]) -> list[float]:
    """Our rate against the bare one, round by round."""
    ours = [one.rate for one in released if one.kind == OURS]
    bare = [one.rate for one in released if one.kind == BARE]
    return [a / b for a, b in zip(ours, bare, strict=True)]


def memory_lines(found: list[Memory]) -> list[str]:
    """What the ungater keeps, as lines for people."""
    lines = [
        f"ungater with {one.pods:,} pods seen: RSS {one.rss:.0f} MiB, PSS {one.pss:.0f},"
        f" peak {one.peak:.0f}, ready after {one.synced_s:.0f} s"
        for one in found
    ]
    return [*lines, f"  {bytes_per_pod(*found):.0f} bytes a pod"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--workloads", type=int, default=50)
    parser.add_argument("--pods", type=int, default=5_000, help="of all Workloads together")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--seen", type=int, default=100_000, help="pods for memory; 0 leaves that out"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    floors.add_options(parser)
    return parser.parse_args()


def evaluate_targets(released: list[Release]) -> tuple[float, bool]:
    """Print how the aims fared; returns the ratio, and whether every pod is in its place."""
    found = ratios(released)
    ratio = statistics.median(found)
    lag = max(one.lag_s for one in released if one.kind == OURS)
    misplaced = [name for one in released for name in one.misplaced]
    say(f"ungater / bare patches {ratio:.2f}: aim {AIM} {'met' if ratio >= AIM else 'MISSED'}")
    say(
        f"event loop lag p99 <= {lag * 1e3:g} ms: aim < {LAG_AIM_S * 1e3:g} ms"
        f" {'met' if lag <= LAG_AIM_S else 'MISSED'}"
    )
    if misplaced:
        say(f"{len(misplaced)} pods are not where their rank belongs: {', '.join(misplaced[:5])}")
    return ratio, not misplaced


def main() -> int:
    arguments = parse()
    quiet()
    document: dict[str, Any] = {}
    with playground(("ungater",)) as started:
        released = asyncio.run(measure(arguments, started))
        lost = leases_lost(started)
    ratio, placed = evaluate_targets(released)
    if lost:
        say(f"the ungater lost a Lease {lost} times: it began again then")
    document["released"] = [asdict(one) for one in released]
    if arguments.seen:
        seen = [asyncio.run(memory(count)) for count in (FEW_PODS, arguments.seen)]
        say("\n".join(memory_lines(seen)))
        document["memory"] = [asdict(one) for one in seen]
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1))
    said, kept = floors.judge({RATIO: ratio}, SECTION, arguments)
    say("\n".join(said)) if said else None
    return int(not (placed and kept))


if __name__ == "__main__":
    sys.exit(main())
