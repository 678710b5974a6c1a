"""Whether memory of assigner and ungater stays level while many Jobs come and go.

Both run as processes of their own, as they are, against a played cluster: 20,000 Jobs are created,
admitted, released, finished and deleted, a few dozen at a time. Resident memory is sampled all the
while. It may rise at first, until everything that keeps a bounded number of things is full. The
second half is judged: the slope of a line through its samples, in bytes for each Job.

At the beginning of the second half and at the end each service counts its objects. A type of which
there is one more for every ten Jobs is one that stays. `--trace` tells the lines of code that made
what stays, and makes all of it slow and large.

Exit code 1 when a slope is above its bound, or objects of a type grew with the Jobs; with fewer
than 20,000 Jobs only classes of ours count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from bench.measuring.world import end, quiet, say
from bench.soak_world import SoakWorld
from bench.ungate_memory import READY_LIMIT_S, ready, resident_mib
from rackgate.api import names
from rackgate_cli.controlplane import ports
from tests.wire.assigner_world import furnish

SERVICES: Final = ("assigner", "ungater")
BOUND: Final = 512.0
# Fewer Jobs say less: pages come and go by the dozen.
NOISE: Final = 3 * 2**20
EVERY_S: Final = 1.0
# Timers of requests that were answered stay until they would have run out.
REST_S: Final = 15.0
# As many objects more for each Job stay.
STAYS: Final = 0.1
# From so many Jobs on everything that remembers a bounded number is full in the second half.
# Before, only objects of our own classes count.
FULL: Final = 20_000
OURS: Final = "rackgate"
SHOWN: Final = 12


@dataclass
class Samples:
    """Resident MiB of one service, by how many Jobs were over."""

    jobs: list[int] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)

    def at(self, share: float) -> float:
        """What was resident when that share of all Jobs was over."""
        end = self.jobs[-1] * share
        return next(mib for jobs, mib in zip(self.jobs, self.mib, strict=True) if jobs >= end)

    def half(self) -> tuple[Sequence[int], Sequence[float]]:
        """Samples of the second half."""
        first = next(n for n, jobs in enumerate(self.jobs) if jobs >= self.jobs[-1] / 2)
        return self.jobs[first:], self.mib[first:]


def slope(jobs: Sequence[float], mib: Sequence[float]) -> float:
    """Bytes for each Job: the line that fits best, by least squares; 0 for a single point."""
    count = len(jobs)
    mean_x, mean_y = sum(jobs) / count, sum(mib) / count
    spread = sum((x - mean_x) ** 2 for x in jobs)
    if not spread:
        return 0.0
    pairs = zip(jobs, mib, strict=True)
    return 2**20 * sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread


def bound(jobs: int) -> float:
    """Bytes for each Job that a second half of so many Jobs may show."""
    return max(BOUND, NOISE / jobs)


def grown(before: Mapping[str, int], after: Mapping[str, int], jobs: int) -> dict[str, float]:
    """What there is more of, for each Job, most first."""
    found = {name: (count - before.get(name, 0)) / jobs for name, count in after.items()}
    return dict(sorted(((k, v) for k, v in found.items() if v > 0), key=lambda kv: -kv[1]))


class Child:
    """One service."""

    def __init__(
        self, service: str, process: subprocess.Popen[bytes], port: int, heap: Path
    ) -> None:
        self.service, self.process, self.port, self._heap = service, process, port, heap
        self.samples = Samples()

    def sample(self, jobs: int) -> None:
        self.samples.jobs.append(jobs)
        self.samples.mib.append(resident_mib(self.process.pid)[0])

    async def heap(self) -> dict[str, Any]:
        """Let the service count its objects."""
        before = self._lines()
        self.process.send_signal(signal.SIGUSR2)
        async with asyncio.timeout(READY_LIMIT_S):
            while len(lines := self._lines()) == len(before):
                await asyncio.sleep(0.1)
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def _lines(self) -> list[str]:
        text = self._heap.read_text() if self._heap.exists() else ""
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


@contextlib.contextmanager
def children(url: str, folder: Path, *, trace: bool) -> Iterator[list[Child]]:
    """Both services, ended at the end of the block, SIGTERM included."""
    signal.signal(signal.SIGTERM, end)
    found: list[Child] = []
    try:
        for service in SERVICES:
            with ports.reserved({"health": None}) as chosen:
                port = chosen["health"]
            found.append(_start(service, url, port, folder, trace=trace))
        yield found
    finally:
        for child in found:
            child.process.kill()
            child.process.wait()


def _start(service: str, url: str, port: int, folder: Path, *, trace: bool) -> Child:
    document = {
        "apiVersion": "config.rackgate.dev/v1alpha1",
        "kind": f"{service.capitalize()}Configuration",
        "connection": {"server": url},
        "health": {"host": "127.0.0.1", "port": port},
        "leaderElection": {"leaseDuration": 60, "namespace": names.SYSTEM_NAMESPACE},
    }
    file, heap = folder / f"{service}.yaml", folder / f"{service}.heap"
    file.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "bench.soak_service", f"rackgate_{service}", str(heap)]
    command += ["--trace"] if trace else []
    with (folder / f"{service}.log").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--config", str(file)], stdout=output, stderr=subprocess.STDOUT
        )
    return Child(service, process, port, heap)


@dataclass
class SoakResult:
    """What one service shows.

    Attributes:
        types: objects by type at the beginning of the second half and at the end.
        lines: traced bytes by line, likewise.
    """

    samples: Samples
    types: list[dict[str, int]]
    lines: list[dict[str, int]]


async def soak(arguments: argparse.Namespace, folder: Path) -> dict[str, SoakResult]:
    """Let all Jobs pass."""
    async with SoakWorld() as world:
        furnish(world)
        with children(world.url, folder, trace=arguments.trace) as started:
            async with asyncio.timeout(READY_LIMIT_S):
                for child in started:
                    while not await ready(child.port):
                        assert child.process.poll() is None, f"{child.service} ended: {folder}"
                        await asyncio.sleep(0.1)
            heaps: dict[str, list[dict[str, Any]]] = {child.service: [] for child in started}
            for child in started:
                await child.heap()  # the first one leaves traces of its own
            over, limit = 0, asyncio.Semaphore(arguments.at_once)

            async def life(number: int) -> None:
                nonlocal over
                async with asyncio.timeout(arguments.limit):
                    await world.one(f"soak-{number:06}", arguments.pods)
                over += 1
                limit.release()

            async def watch() -> None:
                told = 0
                while True:
                    for child in started:
                        child.sample(over)
                    if over - told >= arguments.jobs / 10:
                        told = over
                        say(f"  {over:6} Jobs" + _now(started))
                    await asyncio.sleep(EVERY_S)

            async def pass_through(first: int, end: int) -> None:
                watching = asyncio.create_task(watch())
                async with asyncio.TaskGroup() as group:
                    for number in range(first, end):
                        await limit.acquire()
                        group.create_task(life(number))
                watching.cancel()
                await asyncio.sleep(REST_S)
                for child in started:
                    child.sample(over)
                    heaps[child.service].append(await child.heap())

            half = arguments.jobs // 2
            await pass_through(0, half)
            await pass_through(half, arguments.jobs)
            assert world.broken_rules == [], world.broken_rules
            assert not world.workloads()
            say("  requests per Job: " + _requests(world, arguments.jobs))
        return {
            child.service: SoakResult(
                child.samples,
                [found["types"] for found in heaps[child.service]],
                [found.get("bytes", {}) for found in heaps[child.service]],
            )
            for child in started
        }


def _now(started: Sequence[Child]) -> str:
    return "".join(f"   {child.service} {child.samples.mib[-1]:.1f} MiB" for child in started)


def _requests(world: SoakWorld, jobs: int) -> str:
    parts = (f"{what} {count / jobs:.2f}" for what, count in world.counted.most_common(10))
    return ", ".join(parts)


def report(found: Mapping[str, SoakResult], jobs: int) -> tuple[list[str], bool]:
    """What is told, and whether memory stays level."""
    lines, holds = [], True
    half = jobs - jobs // 2
    for service, one in found.items():
        rise, limit = slope(*one.samples.half()), bound(half)
        marks = "  ".join(f"{one.samples.at(share):.1f}" for share in (0.0, 0.25, 0.5, 0.75, 1.0))
        kept = rise <= limit
        lines.append(f"{service}: MiB at 0, 25, 50, 75, 100 % of the Jobs: {marks}")
        lines.append(
            f"  second half {rise:+.0f} bytes a Job, bound {limit:.0f}"
            f" {'kept' if kept else 'BROKEN'}"
        )
        more = grown(one.types[0], one.types[1], half)
        staying = {name: count for name, count in more.items() if count >= STAYS}
        for name, count in staying.items():
            counts = jobs >= FULL or name.startswith(OURS)
            holds &= not counts
            lines.append(f"  {count:.2f} {name} a Job {'STAY' if counts else 'more, so far'}")
        holds &= kept
        bytes_more = grown(one.lines[0], one.lines[1], half)
        lines += [
            f"  {count:8.1f} bytes a Job: {where}"
            for where, count in list(bytes_more.items())[:SHOWN]
        ]
    return lines, holds


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--pods", type=int, default=2, help="pods of a Job")
    parser.add_argument("--at-once", type=int, default=64, help="Jobs that are there together")
    parser.add_argument("--limit", type=float, default=600, help="seconds one Job may take")
    parser.add_argument("--trace", action="store_true", help="tell lines of code that keep memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    return parser.parse_args()


def main() -> int:
    """Run the bench and print what it found; exit 1 as the module says."""
    arguments = parse()
    quiet()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rackgate-soak-") as folder:
        found = asyncio.run(soak(arguments, Path(folder)))
    say(f"  {arguments.jobs} Jobs in {time.monotonic() - began:.0f} s")
    if arguments.json:
        listed = {name: [one.samples.jobs, one.samples.mib] for name, one in found.items()}
        arguments.json.write_text(json.dumps(listed))
    lines, holds = report(found, arguments.jobs)
    say("\n".join(lines))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
