"""Seconds from the creation of a Job to the start of its last pod, on a cluster with nothing to do.

Jobs come one after the other, plain ones and queued ones in turns, each deleted before the next. A
plain Job shows what the Job controller, kube-scheduler and KWOK take alone.

Exit code 1: a queued Job took longer than a plain one by a batch window, in the median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from bench.measuring.world import (
    NAMESPACE,
    Size,
    bench_job,
    create,
    playground,
    prepare,
    quiet,
    say,
)
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import NotFoundError
from rackgate.kube.informer import Informer
from rackgate.runtime.tasks import start
from rackgate.wire.core import Pod
from rackgate_ungater.settings import UngaterConfiguration

MODES: Final = ("plain", "rackgate")
SIZES: Final = (1, 8, 64)
JOB_LIMIT_S: Final = 120.0


class Seen:
    """The pods there are, as one watch shows them."""

    def __init__(self, client: Client) -> None:
        self._changed = asyncio.Event()
        self.informer: Informer[Pod] = Informer(
            client,
            kinds.PODS,
            msgspec.json.Decoder(Pod).decode,
            on_upsert=lambda _before, _now: self._changed.set(),
            on_delete=lambda _gone: self._changed.set(),
            namespace=NAMESPACE,
        )

    async def running(self, count: int) -> None:
        """Return when exactly `count` pods are there, and all of them run."""
        async with asyncio.timeout(JOB_LIMIT_S):
            while True:
                self._changed.clear()
                phases = [pod.status.phase for pod in self.informer.store.values()]
                if phases == ["Running"] * count:
                    return
                await self._changed.wait()


async def measure(client: Client, seen: Seen, mode: str, index: int, pods: int) -> float:
    """Seconds that one Job takes; returns when nothing of it is left."""
    job = bench_job(mode, index, pods)
    started = time.monotonic()
    await create(client, kinds.JOBS, job)
    await seen.running(pods)
    took_s = time.monotonic() - started
    options = json.dumps({"propagationPolicy": "Background"}).encode()
    with suppress(NotFoundError):
        await client.delete(kinds.JOBS.path(NAMESPACE, job["metadata"]["name"]), options)
    await seen.running(0)
    return took_s


async def run(client: Client, rounds: int) -> dict[str, dict[int, list[float]]]:
    """All durations, by mode and size."""
    await prepare(client, Size(nodes=64, rack=16, jobs=1, pods=1))
    seen = Seen(client)
    following = start(seen.informer.run(), "pods")
    found: dict[str, dict[int, list[float]]] = {mode: {n: [] for n in SIZES} for mode in MODES}
    try:
        await seen.informer.synced.wait()
        for mode in MODES:  # the first of each is not counted
            await measure(client, seen, mode, 999, 1)
        for index in range(rounds):
            for pods in SIZES:
                for mode in MODES:
                    took_s = await measure(client, seen, mode, index, pods)
                    found[mode][pods].append(took_s)
    finally:
        following.cancel()
    return found


def _table(found: dict[str, dict[int, list[float]]]) -> None:
    say("pods  " + "  ".join(f"{mode:>26}" for mode in MODES) + "   added")
    for pods in SIZES:
        cells, medians = [], []
        for mode in MODES:
            taken = sorted(found[mode][pods])
            medians.append(statistics.median(taken))
            cells.append(f"{medians[-1]:6.2f} s ({taken[0]:.2f} to {taken[-1]:.2f})")
        added = medians[1] - medians[0]
        say(f"{pods:4}  " + "  ".join(f"{cell:>26}" for cell in cells) + f"  {added:5.2f} s")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench; returns its exit code."""
    parser = argparse.ArgumentParser(prog="bench.running", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write all durations there")
    options = parser.parse_args(argv)
    quiet()

    async def measured() -> dict[str, dict[int, list[float]]]:
        with playground() as started:
            async with started.client() as client:
                return await run(client, options.rounds)

    found = asyncio.run(measured())
    _table(found)
    if options.json:
        options.json.write_text(json.dumps(found))
    window_s = UngaterConfiguration().batch_window
    medians = {mode: [statistics.median(found[mode][n]) for n in SIZES] for mode in MODES}
    added = [ours - plain for plain, ours in zip(*medians.values(), strict=True)]
    return int(max(added) >= window_s)


if __name__ == "__main__":
    sys.exit(main())
