"""The proxy of the chaos suite does what it says, and nothing else."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rackgate.api.resources import LEASES, NODES, PODS
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import (
    ConflictError,
    KubeError,
    TooManyRequestsError,
    TransportError,
)
from rackgate.kube.transport import Transport
from rackgate_cli.controlplane.pki import ensure_pki
from tests.support.apiserver import FakeApiServer
from tests.support.cluster import until
from tests.support.proxy import Proxy, ProxyListener
from tests.support.proxy_faults import Kind, Trap
from tests.support.proxy_records import Write, late_writes

LONG_S = 300.0


class Setup:
    """A fake API server with TLS, a proxy, and a client on the other side."""

    def __init__(
        self, server: FakeApiServer, proxy: Proxy, door: ProxyListener, client: Client
    ) -> None:
        self.server, self.proxy, self.listener, self.client = server, proxy, door, client

    def open(self, kind: Kind, rate: float = 1.0, value: float = 0.0) -> None:
        self.listener.faults.open(
            kind, start=time.monotonic(), seconds=LONG_S, rate=rate, value=value
        )

    def put(self, name: str) -> dict[str, Any]:
        return self.server.put(NODES, {"metadata": {"name": name}})

    async def label(self, name: str, value: str, version: str = "") -> bytes:
        meta: dict[str, Any] = {"labels": {"x": value}}
        if version:
            meta["resourceVersion"] = version
        body = json.dumps({"metadata": meta}).encode()
        return await self.client.patch(NODES.path(None, name), body, PatchType.MERGE)

    def stored(self, name: str) -> str:
        found = self.server.get(NODES, name)
        assert found is not None
        return str(found["metadata"].get("labels", {}).get("x", ""))


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    ensure_pki(folder, ("127.0.0.1", "localhost"))
    return folder


@pytest.fixture
async def setup(pki: Path) -> AsyncIterator[Setup]:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pki / "kube-apiserver.crt", pki / "kube-apiserver.key")
    async with FakeApiServer(serving) as server:
        proxy = await asyncio.to_thread(Proxy(server.url, pki).__enter__)
        door = await asyncio.to_thread(proxy.open, "assigner-0", "1")
        trusting = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        client = Client(Transport(door.url, ssl_context=trusting), request_timeout_s=5.0)
        try:
            yield Setup(server, proxy, door, client)
        finally:
            await client.close()
            await asyncio.to_thread(proxy.__exit__)


class Watching:
    """Events of a watch through the proxy, as they come."""

    def __init__(self, client: Client) -> None:
        self.types: list[str] = []
        self.error: KubeError | None = None
        self._client = client

    async def run(self) -> None:
        try:
            async for line in self._client.watch(NODES.path()):
                event = json.loads(line)
                self.types.append(event["type"])
        except KubeError as error:
            self.error = error

    async def saw(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.types) >= count

        await until(f"{count} events", enough)


async def test_requests_and_watches_pass_unchanged(setup: Setup) -> None:
    setup.put("a")
    assert json.loads(await setup.client.get(NODES.path(None, "a")))["metadata"]["name"] == "a"
    watching = Watching(setup.client)
    task = asyncio.create_task(watching.run())

    async def open_watch() -> bool:
        return len(setup.server.streams) == 1

    await until("the watch is open", open_watch)
    await setup.label("a", "1")
    await watching.saw(1)
    setup.server.streams[0].end()
    await task
    assert watching.types == ["MODIFIED"]
    assert watching.error is None
    (write,) = setup.proxy.writes
    assert (write.verb, write.path, write.code) == ("PATCH", "/api/v1/nodes/a", 200)
    assert setup.proxy.counts["requests"] == 3


async def test_a_lost_answer_belongs_to_an_applied_write(setup: Setup) -> None:
    setup.put("a")
    setup.open(Kind.LOSE)
    with pytest.raises(TransportError):
        await setup.label("a", "1")
    assert setup.stored("a") == "1"
    assert setup.proxy.writes[0].applied
    assert setup.proxy.writes[0].fault == "lose"


async def test_a_dropped_request_was_not_applied(setup: Setup) -> None:
    setup.put("a")
    setup.open(Kind.DROP)
    with pytest.raises(TransportError):
        await setup.label("a", "1")
    assert setup.stored("a") == ""
    assert setup.proxy.writes[0].code == 0


@pytest.mark.parametrize(("kind", "status"), [(Kind.CONFLICT, 409), (Kind.FAIL, 500)])
async def test_a_rejection_was_not_applied(setup: Setup, kind: Kind, status: int) -> None:
    setup.put("a")
    setup.open(kind)
    with pytest.raises(KubeError) as refused:
        await setup.label("a", "1")
    assert refused.value.status == status
    assert setup.stored("a") == ""


async def test_a_throttled_request_says_when_to_come_again(setup: Setup) -> None:
    setup.put("a")
    setup.open(Kind.THROTTLE, value=0.0)
    with pytest.raises(TooManyRequestsError):
        await setup.label("a", "1")
    assert len(setup.proxy.writes) == 5, "the client comes again"


async def test_another_writer_makes_the_conflict_real(setup: Setup) -> None:
    version = setup.put("a")["metadata"]["resourceVersion"]
    setup.open(Kind.TOUCH)
    with pytest.raises(ConflictError):
        await setup.label("a", "1", version)
    await setup.label("a", "2")
    assert setup.stored("a") == "2"


async def test_latency_holds_a_request_back(setup: Setup) -> None:
    setup.put("a")
    setup.open(Kind.LATENCY, value=0.3)
    begun = time.monotonic()
    await setup.label("a", "1")
    assert time.monotonic() - begun >= 0.3


async def test_rates_are_drawn_from_the_seed(setup: Setup) -> None:
    setup.put("a")
    setup.open(Kind.FAIL, rate=0.5)
    codes = []
    for number in range(40):
        try:
            await setup.label("a", str(number))
        except KubeError as error:
            codes.append(error.status)
    assert 10 < len(codes) < 30
    assert setup.proxy.counts["fail"] == len(codes)
    setup.listener.faults.clear()
    await setup.label("a", "at last")


@pytest.mark.parametrize(("when", "applied"), [("before", False), ("after", True)])
async def test_a_trap_springs_at_exactly_its_write(setup: Setup, when: Any, applied: bool) -> None:
    setup.put("a")
    sprung: list[str] = []
    setup.listener.faults.set_trap(Trap(3, when, lambda: sprung.append(setup.stored("a"))))
    await setup.label("a", "1")
    await setup.client.create(
        LEASES.path("x"), b'{"metadata":{"name":"lease"}}'
    )  # Leases and Events are not counted
    await setup.label("a", "2")
    with pytest.raises(TransportError):
        await setup.label("a", "3")
    assert sprung == ["3" if applied else "2"]
    assert setup.stored("a") == ("3" if applied else "2")
    await setup.label("a", "4")


async def test_watches_are_cut_ended_with_an_error_and_stalled(setup: Setup) -> None:
    setup.put("a")
    door, proxy = setup.listener, setup.proxy

    async def open_watch() -> bool:
        return len(door.streams) == 1

    async def no_watch() -> bool:
        return not door.streams

    for kind in ("stall", "410", "cut"):
        watching = Watching(setup.client)
        task = asyncio.create_task(watching.run())
        await until("the watch is open", open_watch)
        if kind == "stall":
            await asyncio.to_thread(proxy.stall_watches, door, LONG_S)
            setup.put("b")
            await asyncio.sleep(0.2)
            assert watching.types == []
            await asyncio.to_thread(proxy.resume_watches, door)
            await watching.saw(1)
        if kind == "410":
            assert await asyncio.to_thread(proxy.end_watches, door, 410) == 1
            await task
            assert watching.types == ["ERROR"]
        else:
            assert await asyncio.to_thread(proxy.cut_watches, door) == 1
            await task
            assert isinstance(watching.error, TransportError)
        # The client hears of the end before the proxy forgets the stream.
        await until("the proxy has closed the watch", no_watch)


async def test_a_server_that_is_gone_is_a_broken_connection(setup: Setup) -> None:
    setup.put("a")
    await setup.label("a", "1")
    await setup.server.stop()
    with pytest.raises(TransportError):
        await setup.label("a", "2")
    await setup.server.start()
    await setup.label("a", "3")
    assert setup.stored("a") == "3"


def pod_write(sender: str, at: float, **more: Any) -> Write:
    path = PODS.path("x", "p")
    return Write(sender, "PATCH", path, at, sent=at, answered=at + 0.1, code=200, **more)


def lease_write(sender: str, at: float, holder: str, answered: float | None = None) -> Write:
    done = at + 0.1 if answered is None else answered
    path = LEASES.path("x", "lease")
    return Write(sender, "PUT", path, at, at, done, 200, lease="lease", holder=holder, lasts_s=4.0)


@pytest.mark.parametrize(
    ("writes", "reason"),
    [
        ([lease_write("a/1", 0, "a"), pod_write("a/1", 3)], ""),
        ([lease_write("a/1", 0, "a"), lease_write("a/1", 3, "a"), pod_write("a/1", 6)], ""),
        ([lease_write("a/1", 0, "a"), pod_write("a/1", 6)], "was renewed last at 0.000"),
        (
            [lease_write("a/1", 0, "a"), lease_write("b/2", 2, "b"), pod_write("a/1", 3)],
            "b/2 had Lease lease since 2.100",
        ),
        # Taken while the write was on its way already: nobody could know.
        (
            [lease_write("a/1", 0, "a"), lease_write("b/2", 2, "b", 3.5), pod_write("a/1", 3)],
            "",
        ),
        ([lease_write("a/1", 0, "a"), lease_write("a/1", 2, ""), pod_write("a/1", 3)], ""),
        ([lease_write("b/2", 0, ""), pod_write("a/1", 3)], "never held"),
        # The same replica, started again, is another process.
        ([lease_write("a/1", 0, "a"), lease_write("a/2", 9, "a2"), pod_write("a/1", 9.5)], "had"),
    ],
)
def test_late_writes_are_reported_from_those_in_time(writes: list[Write], reason: str) -> None:
    found = late_writes(writes, lambda write: "lease")
    assert [reason in str(late) for late in found] == ([True] if reason else [])
