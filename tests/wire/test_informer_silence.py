"""Silence between an informer and the API server: looked into, not mistaken, not asked hotly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from rackgate.api.resources import PODS
from rackgate.kube.errors import RewoundError
from rackgate.kube.informer import SHORT_STREAM_S, Informer
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate.wire.core import Pod
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until

pytestmark = pytest.mark.steady_clock

decode_pod = msgspec.json.Decoder(Pod).decode
IDLE_S = 0.6


def pod(name: str, **labels: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "labels": labels}, "spec": {}}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        running.put(PODS, pod("a"))
        yield running


@asynccontextmanager
async def informing(
    server: FakeApiServer, idle_s: float = IDLE_S, backoff: Backoff | None = None
) -> AsyncIterator[tuple[Informer[Pod], asyncio.Task[None]]]:
    client = server.client()
    informer: Informer[Pod] = Informer(
        client,
        PODS,
        decode_pod,
        on_upsert=lambda _, new: None,
        on_delete=lambda old: None,
        idle_s=idle_s,
        backoff=backoff or Backoff(base_s=0.01, cap_s=0.05),
    )
    task = asyncio.create_task(informer.run())
    try:
        await until(informer.synced.is_set)
        yield informer, task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, RewoundError):
            await task
        await client.close()


def lists(server: FakeApiServer) -> int:
    whole = (request for request in server.requests if request.query.get("limit") != "1")
    return sum(not request.watch for request in whole)


def middlebox(after_s: float, cut: bool) -> Fault:
    """What ends every stream that was idle for a while, as `cut` says."""

    async def end(request: web.Request, _: Any) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(after_s)
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    return Fault(end, watch=True, times=999)


def when(answer: asyncio.Event) -> Fault:
    """A list that is answered as soon as it may."""

    async def held(_: web.Request, handle: Any) -> web.StreamResponse:
        await answer.wait()
        answer.clear()
        return await handle()  # type: ignore[no-any-return]  # as the fake server made it

    return Fault(held, watch=False)


async def test_a_watch_that_is_accepted_leaves_no_problem_although_nothing_changes(
    server: FakeApiServer,
) -> None:
    """After a restart the API server rejects watches for a moment; then it may be silent long."""
    async with informing(server, idle_s=60) as (informer, _):
        await until(lambda: server.streams)
        server.faults.append(Fault.status(429, headers={"Retry-After": "0.2"}, watch=True, times=2))
        server.streams[0].cut()
        await until(lambda: "429" in informer.problem)
        await until(lambda: not informer.problem)
        assert lists(server) == 1


@pytest.mark.requirement("UNG-18")
@pytest.mark.parametrize("cut", [True, False], ids=["reset", "ended"])
async def test_a_restored_store_is_noticed_behind_a_middlebox_that_ends_idle_streams(
    server: FakeApiServer, cut: bool
) -> None:
    """No stream is ever silent for as long as a dead one."""
    backup = server.backup()
    server.put(PODS, pod("b"))
    async with informing(server) as (_, task):
        await until(lambda: server.streams)
        server.faults.append(middlebox(IDLE_S / 4, cut))
        await server.stop()
        server.restore(backup)
        await server.start()
        async with asyncio.timeout(20):
            with pytest.raises(RewoundError):
                await task


@pytest.mark.requirement("OPS-07")
async def test_a_quiet_collection_is_listed_once_in_a_while_however_often_its_streams_end(
    server: FakeApiServer,
) -> None:
    server.faults.append(middlebox(IDLE_S / 20, cut=False))
    started = clock.monotonic()
    async with informing(server):
        await until(lambda: lists(server) == 4)
        assert clock.monotonic() - started >= 3 * IDLE_S


@pytest.mark.requirement("UNG-18")
async def test_writes_hardly_wait_behind_a_middlebox_that_cuts_idle_streams(
    server: FakeApiServer,
) -> None:
    """The pauses after failures are for streams that break in haste."""
    server.faults.append(middlebox(SHORT_STREAM_S + 0.1, cut=True))
    spans = []
    async with informing(server, idle_s=60, backoff=Backoff(base_s=20)) as (informer, _):
        for _number in range(2):
            await until(lambda: not informer.is_confirmed)
            since = clock.monotonic()
            await informer.wait_confirmed()
            spans.append(clock.monotonic() - since)
    assert max(spans) < 0.5
    assert lists(server) == 1


@pytest.mark.requirement("OPS-07")
async def test_streams_that_break_in_haste_are_opened_ever_later(server: FakeApiServer) -> None:
    server.faults.append(middlebox(SHORT_STREAM_S / 100, cut=True))
    async with informing(server, idle_s=60, backoff=Backoff(base_s=0.1, cap_s=20)):
        since = clock.monotonic()
        await until(lambda: sum(request.watch for request in server.requests) == 5)
        assert clock.monotonic() - since >= (0.1 + 0.2 + 0.4 + 0.8) / 2


@pytest.mark.requirement("OPS-07")
async def test_what_is_heard_of_is_not_listed_again_when_its_streams_end(
    server: FakeApiServer,
) -> None:
    async with informing(server) as (informer, _):
        for number in range(12):
            await until(lambda: server.streams)
            server.put(PODS, pod(f"p{number}"))
            await until(lambda number=number: f"ns/p{number}" in informer.store)  # type: ignore[misc]  # bound now
            await asyncio.sleep(IDLE_S / 8)
            server.streams[0].end()
        assert lists(server) == 1


@pytest.mark.requirement("OPS-12")
async def test_a_list_that_only_follows_silence_does_not_show_until_it_fails(
    server: FakeApiServer,
) -> None:
    """What is quiet is not behind; who judges by it would begin anew every few minutes."""
    answer = asyncio.Event()
    held = when(answer)
    first = Fault(lambda _, handle: handle(), watch=False)
    server.faults += [first, held, Fault.status(403, watch=False), when(answer)]
    async with informing(server) as (informer, _):
        await until(lambda: lists(server) == 2)
        assert not informer.listing
        answer.set()
        await until(lambda: not held.times and not answer.is_set())
        await until(lambda: lists(server) == 4)
        assert informer.listing
        answer.set()
        await until(lambda: not informer.listing)


async def test_a_list_that_went_well_leaves_no_problem(server: FakeApiServer) -> None:
    async with informing(server, idle_s=60) as (informer, _):
        await until(lambda: server.streams)
        answer = asyncio.Event()
        server.faults.append(when(answer))
        server.streams[0].feed(b"<html>\n")
        await until(lambda: lists(server) == 2)
        assert "Garbage" in informer.problem
        answer.set()
        await until(lambda: not informer.problem)


@pytest.mark.requirement("UNG-18")
@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ADDED\xff","object":{}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}',
        b'{"type":"DELETED","object":{"metadata":{"name":"\xff"}}}',
        b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"\xff"}}}',
        b'{"type":"ERROR","object":{"message":"\xff"}}',
        b"\xff",
    ],
)
async def test_text_that_is_not_utf_8_ends_nothing(server: FakeApiServer, line: bytes) -> None:
    async with informing(server, idle_s=60) as (informer, task):
        await until(lambda: server.streams)
        with capture_logs():
            server.streams[0].feed(line + b"\n")
            server.put(PODS, pod("b"))
            await until(lambda: task.done() or "ns/b" in informer.store)
        assert set(informer.store) == {"ns/a", "ns/b"}
        assert not task.done()


@pytest.mark.requirement("UNG-18")
async def test_versions_that_cannot_be_compared_are_none_of_an_older_store(
    server: FakeApiServer,
) -> None:
    body = {"metadata": {"resourceVersion": "opaque-1"}, "items": [pod("c")]}
    async with informing(server, idle_s=60) as (informer, task):
        await until(lambda: server.streams)
        server.faults.append(Fault.body(json.dumps(body).encode(), watch=False))
        server.compact()
        server.streams[0].expire()
        await until(lambda: task.done() or "ns/c" in informer.store)
        assert not task.done()
