"""The replicas of the three services in a playground, each behind a listener of a proxy.

The harness runs them itself, with the playground's own configuration, so that each has its own
way to the API server and its own clock, and its exit code is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rackgate_cli.controlplane import ports, processes
from tests.support.cluster import until
from tests.support.playground import SERVICES, Playground
from tests.support.proxy import Proxy, ProxyListener

# A full machine started three replicas of each service in more than two minutes once.
READY_LIMIT_S = 300.0
TERM_LIMIT_S = 30.0


@dataclass(eq=False)
class Replica:
    """One replica, running or not.

    Attributes:
        ending: it was asked to end, so it is not started again.
        restart_at: monotonic second at which it is, None while it lives.
    """

    service: str
    name: str
    listener: ProxyListener
    config: Path
    log: Path
    health_url: str
    process: subprocess.Popen[bytes] | None = None
    ending: bool = False
    restart_at: float | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def ready(self) -> bool:
        """Whether it says so of itself."""
        return await asyncio.to_thread(processes.answer, self.health_url, None) is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it is there."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


@dataclass(frozen=True)
class Exit:
    """How a process ended: its code, negative for a signal, and whether it was asked to."""

    name: str
    code: int
    asked: bool


@dataclass
class Fleet:
    """All replicas.

    Attributes:
        offsets: of each replica's wall clock, in seconds.
        gates: feature gates that differ from those of the playground.
        restarts: seconds until what died is started again, as a kubelet would, one after another.
        replicas: by name, `assigner-0` for instance.
        exits: every process that ended.
    """

    playground: Playground
    proxy: Proxy
    seed: str
    offsets: Mapping[str, float]
    restarts: Iterable[float]
    gates: Mapping[str, bool] = field(default_factory=dict)
    replicas: dict[str, Replica] = field(default_factory=dict)
    exits: list[Exit] = field(default_factory=list)
    _ports: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        # Replicas of a service share these ports, which are free to be given away while none lives.
        shared = {
            "webhook": self._document("webhook")["serving"]["port"],
            "visibility": self._document("assigner")["visibility"]["port"],
        }
        self._ports.enter_context(ports.reserved(shared))

    def of(self, service: str) -> list[Replica]:
        """The replicas of a service that should run, by number."""
        return [
            replica
            for _, replica in sorted(self.replicas.items())
            if replica.service == service and not replica.ending
        ]

    async def scale(self, service: str, count: int) -> None:
        """Start or end replicas; returns when they are ready or gone."""
        present = self.of(service)
        ended = [self.end(replica) for replica in present[count:]]
        for number in range(len(present), count):
            self._start(self._new(service, f"{service}-{number}"))
        await asyncio.gather(*ended)

    async def ready(self) -> None:
        """Wait until every replica that should run has been ready.

        Not all at once: on a full machine a fence may end one while another one starts.
        """
        seen: set[str] = set()

        async def all_seen() -> bool:
            waiting = [r for service in SERVICES for r in self.of(service) if r.name not in seen]
            answers = await asyncio.gather(*(replica.ready() for replica in waiting))
            seen.update(r.name for r, ready in zip(waiting, answers, strict=True) if ready)
            return all(answers)

        await until("all replicas are ready", all_seen, timeout_s=READY_LIMIT_S)

    async def end(self, replica: Replica) -> None:
        """Ask one replica to end, and wait until it has."""
        replica.ending = True
        replica.signal(signal.SIGCONT)
        replica.signal(signal.SIGTERM)
        deadline = time.monotonic() + TERM_LIMIT_S
        while replica.alive and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if replica.alive:
            replica.signal(signal.SIGKILL)
            self.exits.append(Exit(replica.name, 1, asked=True))
        await self._gone(replica)
        self.proxy.close(replica.listener)
        self.replicas.pop(replica.name, None)

    async def end_all(self) -> None:
        """End every replica cleanly."""
        await asyncio.gather(*(self.end(r) for r in tuple(self.replicas.values())))

    def kill_all(self) -> None:
        """Leave no process behind, whatever happened."""
        for replica in self.replicas.values():
            replica.signal(signal.SIGKILL)
            if replica.process is not None:
                replica.process.wait()
        self._ports.close()

    async def supervise(self) -> None:
        """Start what died again, a moment later, until cancelled."""
        delays = iter(self.restarts)
        while True:
            for replica in tuple(self.replicas.values()):
                if replica.alive or replica.ending:
                    continue
                if replica.restart_at is None:
                    self._note_exit(replica)
                    replica.restart_at = time.monotonic() + next(delays)
                elif time.monotonic() >= replica.restart_at:
                    self._start(replica)
            await asyncio.sleep(0.05)

    def _new(self, service: str, name: str) -> Replica:
        folder, document = self.playground.state, self._document(service)
        listener = self.proxy.open(name, self.seed)
        document["connection"]["server"] = listener.url
        document["featureGates"] = {**document.get("featureGates", {}), **self.gates}
        if service != "webhook":
            document["leaderElection"]["stateDir"] = str(folder / "services" / f"{name}.chaos")
        document["clockOffset"] = self.offsets.get(name, 0.0)
        # Held as long as the replicas live, so that a restarted one finds its port free.
        held = self._ports.enter_context(ports.reserved({name: None}))
        document["health"]["port"] = held[name]
        config = folder / "services" / f"{name}.chaos.yaml"
        config.write_text(yaml.safe_dump(document, sort_keys=False))
        url = f"http://{ports.LOOPBACK}:{document['health']['port']}/readyz"
        log = folder / "logs" / f"{name}.chaos.log"
        replica = Replica(service, name, listener, config, log, url)
        self.replicas[name] = replica
        return replica

    def _document(self, service: str) -> dict[str, Any]:
        """The configuration of a service as the playground wrote it."""
        path = self.playground.state / "services" / f"{service}-0.yaml"
        document: dict[str, Any] = yaml.safe_load(path.read_text())
        return document

    def _start(self, replica: Replica) -> None:
        with replica.log.open("ab") as output:
            replica.process = subprocess.Popen(
                [sys.executable, "-m", f"rackgate_{replica.service}", "--config", replica.config],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        replica.listener.pid = replica.process.pid
        replica.restart_at = None

    def _note_exit(self, replica: Replica) -> None:
        if replica.process is not None and replica.process.returncode is not None:
            self.exits.append(Exit(replica.name, replica.process.returncode, replica.ending))

    async def _gone(self, replica: Replica) -> None:
        if replica.process is not None:
            await asyncio.to_thread(replica.process.wait)
            self._note_exit(replica)
