"""Replicas of the webhook as processes on one port, and callers that count what fails."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from rackgate.api.resources import MUTATING_CONFIGS, SECRETS, VALIDATING_CONFIGS
from rackgate.certificates.tls import client_context
from rackgate.runtime.serving.connections import IDLE_BEFORE_CLOSE_S
from rackgate_cli.controlplane import ports
from tests.support.apiserver import FakeApiServer
from tests.support.objects import RACK, job
from tests.support.standstills import EVERY_S, Standstills, standstills
from tests.support.waiting import until
from tests.unit.webhook.reviews import body

NAMESPACE, SECRET = "rackgate-system", "rackgate-webhook-tls"
MUTATING, VALIDATING = "rackgate-mutating.rackgate-system", "rackgate-validating.rackgate-system"
REVIEW = json.dumps(body("batch/Job", job("train", 2, required=RACK))).encode()
JSON = {"Content-Type": "application/json"}
LIMIT_S = 90.0  # a slow machine
PATIENCE_S = 20  # of callers
HUSH_S = IDLE_BEFORE_CLOSE_S * 0.8
CLOSED = {aiohttp.ServerDisconnectedError, aiohttp.ClientOSError}


def register(api: FakeApiServer, **client_config: Any) -> None:
    """Both registrations with two webhooks each."""
    for resource, name in ((MUTATING_CONFIGS, MUTATING), (VALIDATING_CONFIGS, VALIDATING)):
        webhooks = [
            {"name": f"{i}", "clientConfig": {"url": "https://x", **client_config}} for i in (0, 1)
        ]
        api.put(resource, {"metadata": {"name": name}, "webhooks": webhooks})


def secret(api: FakeApiServer) -> dict[str, bytes]:
    """Fields of the Secret."""
    found = api.get(SECRETS, SECRET, NAMESPACE)
    assert found is not None
    return {name: base64.b64decode(value) for name, value in found["data"].items()}


def registered(api: FakeApiServer) -> list[bytes]:
    """The CA bundle of every webhook of both registrations."""
    found = [api.get(MUTATING_CONFIGS, MUTATING), api.get(VALIDATING_CONFIGS, VALIDATING)]
    webhooks = [webhook for entry in found if entry for webhook in entry["webhooks"]]
    return [base64.b64decode(webhook["clientConfig"].get("caBundle", "")) for webhook in webhooks]


@dataclass
class Replica:
    """One process; its log is a file."""

    process: asyncio.subprocess.Process
    health: int
    log: Path

    async def missing(self) -> str:
        """What /readyz says; empty when ready."""
        url = f"http://127.0.0.1:{self.health}/readyz"
        try:
            async with aiohttp.ClientSession() as http, http.get(url) as answer:
                return "" if answer.status == 200 else await answer.text()
        except aiohttp.ClientError as error:
            assert self.process.returncode is None, self.log.read_text()
            return str(error)

    async def ready(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while await self.missing():
                await asyncio.sleep(0.05)

    def said(self, event: str) -> int:
        """How often a line of its log had this event."""
        return self.log.read_text().count(f'"event":"{event}"')

    async def rotated(self, times: int) -> None:
        """Wait until it has loaded so many certificates since its start."""
        await until(lambda: self.said("certificate_rotated") >= times, LIMIT_S)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def stop(self) -> None:
        """SIGTERM; the process must end well."""
        self.signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT_S):
            assert await self.process.wait() == 0, self.log.read_text()


@dataclass
class Replicas:
    """Processes of the webhook on one port, of one fake API server."""

    api: FakeApiServer
    folder: Path
    port: int = 0
    all: list[Replica] = field(default_factory=list)
    connection: dict[str, Any] = field(default_factory=dict)
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        self.port = self.new_port()

    def new_port(self) -> int:
        """A port that nobody else gets before the replicas are killed."""
        return self._held.enter_context(ports.reserved({"": None}))[""]

    async def start(self, **certificates: Any) -> Replica:
        """One more replica; not ready yet."""
        health, number = self.new_port(), len(self.all)
        config, log = (self.folder / f"{number}.{end}" for end in ("yaml", "log"))
        document = {
            "apiVersion": "config.rackgate.dev/v1alpha1",
            "kind": "WebhookConfiguration",
            "connection": {"server": self.api.url, "requestTimeout": 5, **self.connection},
            "health": {"host": "127.0.0.1", "port": health},
            "serving": {"host": "127.0.0.1", "drainDelay": 0.2, "port": self.port},
            "certificates": {
                "dnsNames": ["localhost"],
                "settle": 1,
                "checkInterval": 0.2,
                **certificates,
            },
            "log": {"level": "debug"},
        }
        config.write_text(yaml.safe_dump(document))
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "rackgate_webhook",
                "--config",
                str(config),
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.all.append(Replica(process, health, log))
        return self.all[-1]

    async def kill(self) -> None:
        for replica in self.all:
            if replica.process.returncode is None:
                replica.process.kill()
                await replica.process.wait()
        self._held.close()


@contextlib.asynccontextmanager
async def replicas(folder: Path, count: int, **certificates: Any) -> AsyncIterator[Replicas]:
    """`count` ready replicas, registered."""
    async with FakeApiServer() as api:
        register(api)
        world = Replicas(api, folder)
        try:
            started = [await world.start(**certificates) for _ in range(count)]
            for replica in started:
                await replica.ready()
            yield world
        finally:
            await world.kill()


@dataclass
class Callers:
    """Callers that post reviews one after another, and what became of their calls.

    They trust what the registrations carry at that moment, as API servers do.
    """

    world: Replicas
    kept: bool
    answered: int = 0
    slowest_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    _contexts: dict[bytes, ssl.SSLContext] = field(default_factory=dict)
    _stood_still: Standstills = field(default_factory=Standstills)

    @contextlib.asynccontextmanager
    async def calling(self, count: int) -> AsyncIterator[Callers]:
        async with standstills() as self._stood_still:
            tasks = [asyncio.create_task(self._call_for_ever()) for _ in range(count)]
            try:
                await self.more(count)
                yield self
                await self.more(count)
            finally:
                for task in tasks:
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    assert isinstance(outcome, asyncio.CancelledError), outcome

    async def more(self, count: int) -> None:
        """Wait until so many more calls have been answered."""
        wanted = self.answered + count
        async with asyncio.timeout(LIMIT_S):
            while self.answered < wanted:
                await asyncio.sleep(0.01)

    async def _call_for_ever(self) -> None:
        while True:
            bundle = registered(self.world.api)[0]
            if bundle not in self._contexts:
                self._contexts[bundle] = client_context(bundle)
            trusting = self._contexts[bundle]
            connector = aiohttp.TCPConnector(ssl=trusting, force_close=not self.kept)
            async with aiohttp.ClientSession(connector=connector) as session:
                last = asyncio.get_running_loop().time()
                while bundle == registered(self.world.api)[0]:
                    last = await self._call(session, last)

    async def _call(self, session: aiohttp.ClientSession, last: float) -> float:
        """Post one review, the call before which began at `last`; returns when this one did."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        url = f"https://localhost:{self.world.port}/mutate?timeout={PATIENCE_S}s"
        limit = aiohttp.ClientTimeout(total=PATIENCE_S)
        try:
            async with session.post(url, data=REVIEW, headers=JSON, timeout=limit) as answer:
                response = json.loads(await answer.read())["response"]
                assert response["allowed"]
                assert response["patch"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            await asyncio.sleep(2 * EVERY_S)  # until a standstill is noted
            # After one the replica may rightly have closed a silent connection, or a slow one.
            hushed = self.kept and begun - last > HUSH_S and type(error) in CLOSED
            if not (hushed or self._stood_still.excuse(begun)):
                self.failures.append(f"{type(error).__name__} {error}")
            return begun
        self.answered += 1
        self.slowest_s = max(self.slowest_s, loop.time() - begun)
        return begun
