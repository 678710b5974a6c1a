"""Creating Jobs through the API server: with the webhook, past it, and with none registered."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

from bench.measuring.figures import percentile
from bench.measuring.processes import cpu_seconds
from bench.measuring.world import NAMESPACE, create
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from tests.support.objects import RACK, job
from tests.support.playground import Playground

WITH: Final = "label, webhook called"
PAST: Final = "no label, never called"
NONE: Final = "label, none registered"
ROUNDS: Final = 4
AT_ONCE: Final = 16
# The API server follows registrations by a watch.
SETTLE_S: Final = 2.0
# What the block before left to do is done by then.
PAUSE_S: Final = 0.5


@dataclass
class Creates:
    """What was found, by kind: creates per second, milliseconds, CPU of the API server."""

    took_ms: dict[str, list[float]] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    server_s: dict[str, float] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        return {
            kind: {
                "per_second": len(took) / self.took_s[kind],
                "p50_ms": percentile(took, 0.5),
                "p99_ms": percentile(took, 0.99),
                "server_ms": self.server_s[kind] / len(took) * 1e3,
            }
            for kind, took in self.took_ms.items()
        }

    def ratios(self) -> dict[str, float]:
        """Creates per second with the webhook against those without."""
        found = self.figures
        return {
            f"creates/s, {WITH} / {base}": found[WITH]["per_second"] / found[base]["per_second"]
            for base in (PAST, NONE)
        }

    def lines(self) -> list[str]:
        head = f"  {'':30}{'/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'API server CPU ms':>19}"
        lines = [f"Jobs created through the API server, {AT_ONCE} at a time", head]
        for kind, found in self.figures.items():
            lines.append(
                f"  {kind:30}{found['per_second']:9.0f}{found['p50_ms']:9.1f}"
                f"{found['p99_ms']:9.1f}{found['server_ms']:19.2f}"
            )
        return [*lines, *(f"  {name}: {ratio:.2f}" for name, ratio in self.ratios().items())]


async def creates(started: Playground, jobs: int) -> Creates:
    """Create suspended Jobs of each kind, in turns; `jobs` of each over all rounds."""
    found = Creates()
    pid = started.pids("kube-apiserver")[0]
    async with started.client() as client:
        registered = [
            (kind, json.loads(await client.get(kind.path(None, name))))
            for kind, name in (
                (kinds.MUTATING_CONFIGS, "rackgate-mutating.rackgate-system"),
                (kinds.VALIDATING_CONFIGS, "rackgate-validating.rackgate-system"),
            )
        ]
        number = 0
        for _ in range(ROUNDS):
            # Registered last: the webhook's next round of upkeep finds all as it was.
            for kind in (WITH, PAST, NONE):
                if kind == NONE:
                    await _silence(client, registered, silent=True)
                await _block(client, found, kind, pid, range(number, number + jobs // ROUNDS))
                number += jobs // ROUNDS
                if kind == NONE:
                    await _silence(client, registered, silent=False)
            await client.delete(kinds.JOBS.path(NAMESPACE))
    return found


async def _silence(
    client: Client, registered: list[tuple[kinds.Resource, dict[str, Any]]], *, silent: bool
) -> None:
    """Take the rules away, or give them back; the webhook itself would put back a deleted one."""
    for kind, config in registered:
        path = kind.path(None, config["metadata"]["name"])
        stored = json.loads(await client.get(path))
        for hook, original in zip(stored["webhooks"], config["webhooks"], strict=True):
            hook["rules"] = [] if silent else original["rules"]
        await client.replace(path, json.dumps(stored).encode())
    await asyncio.sleep(SETTLE_S)


async def _block(client: Client, found: Creates, kind: str, pid: int, numbers: range) -> None:
    queue = None if kind == PAST else "bench"
    left = iter(numbers)
    took = found.took_ms.setdefault(kind, [])

    async def work() -> None:
        for number in left:
            wish = job(f"made-{number:05}", 64, queue=queue, required=RACK, spec={"suspend": True})
            began = time.perf_counter()
            await create(client, kinds.JOBS, wish)
            took.append((time.perf_counter() - began) * 1e3)

    await asyncio.sleep(PAUSE_S)
    cpu = cpu_seconds({"server": pid})["server"]
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    found.took_s[kind] = found.took_s.get(kind, 0.0) + time.perf_counter() - began
    spent = cpu_seconds({"server": pid})["server"] - cpu
    found.server_s[kind] = found.server_s.get(kind, 0.0) + spent
