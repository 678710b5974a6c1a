"""What can go wrong between an informer and the API server, and that nothing is lost by it."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from rackgate.api.resources import PODS
from rackgate.kube.client import Client
from rackgate.kube.transport import TokenFile
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until
from tests.wire.informer_world import following, lists, pod, watches

Handle = Callable[[], Any]
PAGE = 500


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        yield running


@pytest_asyncio.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    running = server.client()
    yield running
    await running.close()


@pytest.mark.requirement("UNG-18")
async def test_a_server_that_restarts_in_the_middle_of_a_list_is_listed_from_the_start(
    server: FakeApiServer, client: Client
) -> None:
    for number in range(PAGE + 1):
        server.put(PODS, pod(f"p{number:04}"))
    tasks: list[asyncio.Task[None]] = []

    async def die(request: web.Request, handle: Handle) -> web.StreamResponse:
        tasks.append(asyncio.create_task(server.restart(down_s=0.2)))
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    server.faults += [Fault(lambda _, handle: handle()), Fault(die)]
    async with following(client) as followed:
        assert len(followed.names) == len(followed.diary) == PAGE + 1
        await until(lambda: server.streams)
        server.put(PODS, pod("after"))
        await until(lambda: "after" in followed.names)
    await asyncio.gather(*tasks)


@pytest.mark.requirement("UNG-18")
@pytest.mark.field_note("W11")
async def test_a_server_that_stays_away_is_followed_on_when_it_is_back_with_every_version_gone(
    server: FakeApiServer, client: Client
) -> None:
    server.put(PODS, pod("a"))
    server.put(PODS, pod("b"))
    async with following(client) as followed:
        await until(lambda: server.streams)
        await server.stop()
        await until(lambda: followed.informer.problem)
        server.remove(PODS, "a", "ns")
        server.put(PODS, pod("b", x="1"))
        server.compact()
        await server.start()
        await until(lambda: followed.names == {"b"})
        assert followed.diary == ["+a", "+b", "-a", "~b"]
        assert lists(server) == 2, "410 and one list; not one for each refused connection"


async def test_an_expired_token_is_read_again_by_list_and_watch(
    server: FakeApiServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    server.tokens = {"one"}
    client = server.client(credentials=TokenFile(token))
    server.put(PODS, pod("a"))
    async with following(client) as followed:
        await until(lambda: server.streams)
        server.tokens = {"two"}
        server.streams[0].cut()
        refused = watches(server) + 1
        await until(lambda: watches(server) > refused)
        token.write_text("two!")
        server.tokens = {"two!"}
        server.put(PODS, pod("b"))
        await until(lambda: "b" in followed.names)
        assert lists(server) == 1, "the watch goes on where it was"
        server.tokens = {"three"}
        server.compact()
        token.write_text("three")
        server.streams[0].cut()
        server.remove(PODS, "a", "ns")
        await until(lambda: followed.names == {"b"})
    await client.close()


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize(("watch", "code"), [(True, 429), (True, 503), (False, 503)])
async def test_a_server_that_asks_for_time_is_left_alone_so_long(
    server: FakeApiServer, client: Client, watch: bool, code: int
) -> None:
    server.put(PODS, pod("a"))
    headers = {"Retry-After": "0.7"}
    asked: list[float] = []

    async def busy(request: web.Request, handle: Handle) -> web.StreamResponse:
        asked.append(time.monotonic())
        return await Fault.status(code, headers=headers).answer(request, handle)

    server.faults.append(Fault(busy, watch=watch))
    async with following(client):
        await until(lambda: server.streams)
        again = time.monotonic()
    assert again - asked[0] >= 0.7, "far beyond its own pauses"


async def test_a_list_cut_in_half_is_read_again(server: FakeApiServer, client: Client) -> None:
    for number in range(20):
        server.put(PODS, pod(f"p{number}"))

    async def half(request: web.Request, handle: Handle) -> web.StreamResponse:
        whole = (await handle()).body
        response = web.StreamResponse(headers={"Content-Length": str(len(whole))})
        await response.prepare(request)
        await response.write(whole[: len(whole) // 2])
        assert request.transport is not None
        request.transport.abort()
        return response

    server.faults.append(Fault(half, watch=False, times=2))
    async with following(client) as followed:
        assert len(followed.diary) == 20


@pytest.mark.parametrize("body", [b"<html>sorry</html>", b'{"items":[{"metadata":{"na'])
async def test_a_list_that_is_none_is_asked_for_again_and_ends_nothing(
    server: FakeApiServer, client: Client, body: bytes
) -> None:
    server.put(PODS, pod("a"))
    server.faults.append(Fault.body(body, watch=False, times=2))
    async with following(client) as followed:
        assert followed.names == {"a"}


async def test_a_list_of_null_is_an_empty_one(server: FakeApiServer, client: Client) -> None:
    body = b'{"metadata":{"resourceVersion":"100"},"items":null}'
    server.faults.append(Fault.body(body, watch=False))
    async with following(client) as followed:
        assert followed.names == set()


@pytest.mark.requirement("UNG-18")
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "ended"])
async def test_an_event_that_came_by_half_comes_again_whole(
    server: FakeApiServer, client: Client, cut: bool
) -> None:
    async with following(client) as followed:
        await until(lambda: server.streams)
        stream = server.streams.pop()
        server.put(PODS, pod("late"))
        stored = server.get(PODS, "late", "ns")
        line = json.dumps({"type": "ADDED", "object": stored}).encode()
        stream.feed(line[: len(line) // 2])
        await until(stream.queue.empty)
        if cut:
            stream.cut()
        stream.end()
        await until(lambda: "late" in followed.names)
        assert followed.diary == ["+late"]
        assert lists(server) == 1


@pytest.mark.parametrize("seed", range(5))
async def test_events_are_whole_wherever_the_chunks_end(
    server: FakeApiServer, client: Client, seed: int
) -> None:
    rng = random.Random(seed)
    async with following(client) as followed:
        await until(lambda: server.streams)
        stream = server.streams.pop()
        wanted = [f"p{number}-é\u2028" for number in range(40)]
        events = []
        for version, name in enumerate(wanted, 101):
            item = pod(name)
            item["metadata"] |= {"uid": name, "resourceVersion": str(version)}
            events.append(
                json.dumps({"type": "ADDED", "object": item}, ensure_ascii=False).encode()
            )
        raw = b"\n".join(events) + b"\n"
        while raw:
            size = rng.choice((1, 2, 7, 100, 1000))
            stream.feed(raw[:size])
            raw = raw[size:]
        await until(lambda: len(followed.diary) == len(wanted))
        assert followed.diary == [f"+{name}" for name in wanted]
        assert (lists(server), watches(server)) == (1, 1)


async def test_a_stream_of_which_only_the_connection_lives_is_given_up(
    server: FakeApiServer, client: Client
) -> None:
    """The peer's kernel acknowledges and keeps alive; the server behind it says nothing."""

    async def mute(request: web.Request, _: Handle) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await response.write_eof()
        return response

    server.faults.append(Fault(mute, watch=True, times=2))
    async with following(client, idle_s=0.2) as followed:
        await until(lambda: watches(server) >= 3)
        server.put(PODS, pod("late"))
        await until(lambda: "late" in followed.names)


@pytest.mark.requirement("UNG-18")
async def test_watches_cut_and_expired_at_random_in_a_burst_lose_and_double_nothing(
    server: FakeApiServer, client: Client
) -> None:
    rng = random.Random(7)
    alive: set[str] = set()
    async with following(client) as followed:
        for number in range(300):
            server.put(PODS, pod(f"p{number}"))
            alive.add(f"p{number}")
            if rng.random() < 0.3:
                gone = rng.choice(sorted(alive))
                alive.remove(gone)
                server.remove(PODS, gone, "ns")
            if rng.random() < 0.1:
                for stream in tuple(server.streams):
                    rng.choice((stream.cut, stream.end))()
            if rng.random() < 0.05:
                server.gone_as_status = not server.gone_as_status
                server.compact()
            if rng.random() < 0.2:
                await asyncio.sleep(0.002)
        await until(lambda: followed.names == alive)
        told: set[str] = set()
        for sign, name in ((line[0], line[1:]) for line in followed.diary):
            assert (name in told) == (sign != "+"), f"{sign}{name}"
            (told.discard if sign == "-" else told.add)(name)
        assert told == alive
