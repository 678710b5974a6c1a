"""Replicas as processes that are stopped beyond their Leases, and the times of what they wrote."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from tests.support.apiserver import FakeApiServer, Fault
from tests.support.apiserver_faults import Handler

# Long enough for replicas that nobody stops to live through stalls of the machine.
DURATION_S = 8
REQUEST_S = 1
LIMIT_S = 150.0
# What was on its way when the signal was sent is read by the server until then. Nobody is continued
# sooner: first another one has its Leases.
STILL_S = DURATION_S - REQUEST_S


@dataclass(frozen=True)
class Write:
    """A write as it came in, in monotonic seconds."""

    at: float
    replica: str
    method: str
    path: str


class Writes:
    """Notes every write that comes in at a server, of whom and when."""

    def __init__(self, server: FakeApiServer) -> None:
        self.seen: list[Write] = []
        server.faults.append(Fault(self._note, times=10**9))

    async def _note(self, request: web.Request, handle: Handler) -> web.StreamResponse:
        if request.method != "GET":
            replica = request.headers["Authorization"].removeprefix("Bearer ")
            self.seen.append(Write(time.monotonic(), replica, request.method, request.path))
        return await handle()

    def of(self, replica: str, part: str = "", since: float = 0.0) -> list[Write]:
        """What a replica wrote to paths that hold `part`."""
        return [w for w in self.seen if w.replica == replica and part in w.path and w.at > since]


@dataclass
class Replica:
    """One process."""

    name: str
    process: asyncio.subprocess.Process
    stopped_at: float = 0.0

    def stop(self) -> None:
        """SIGSTOP: from now on it does nothing and hears nothing."""
        self.process.send_signal(signal.SIGSTOP)
        self.stopped_at = time.monotonic()

    async def dies_when_continued(self) -> None:
        """SIGCONT: its dead-man timer has rung meanwhile."""
        self.process.send_signal(signal.SIGCONT)
        assert await asyncio.wait_for(self.process.wait(), LIMIT_S) == -signal.SIGALRM

    def wrote_nothing_late(self, writes: Writes) -> None:
        """Nothing came in once its Leases could have run out, nor any other time after."""
        assert writes.of(self.name, since=self.stopped_at + STILL_S) == []
        assert writes.of(self.name), "it did act before"


@contextlib.asynccontextmanager
async def replicas(
    service: str, server: FakeApiServer, folder: Path, names: Sequence[str], **settings: Any
) -> AsyncIterator[dict[str, Replica]]:
    """Replicas of a service, each with a token that is its name."""
    running: dict[str, Replica] = {}
    try:
        for name in names:
            token, config = folder / f"{name}.token", folder / f"{name}.yaml"
            token.write_text(name)
            document = {
                "apiVersion": "config.rackgate.dev/v1alpha1",
                "kind": f"{service.capitalize()}Configuration",
                "connection": {
                    "server": server.url,
                    "tokenFile": str(token),
                    "requestTimeout": REQUEST_S,
                },
                "health": {"host": "127.0.0.1", "port": 0},
                "leaderElection": {"leaseDuration": DURATION_S},
                "identity": name,
                **settings,
            }
            config.write_text(yaml.safe_dump(document))
            with (folder / f"{name}.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", f"rackgate_{service}", "--config", str(config)),
                    stdout=log,
                    stderr=log,
                )
            running[name] = Replica(name, process)
        yield running
    finally:
        for replica in running.values():
            if replica.process.returncode is None:
                replica.process.kill()
                await replica.process.wait()


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for a condition, asking seldom: the replicas need the processor."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.05)
