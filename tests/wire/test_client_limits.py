"""What the client does when a server pushes back, and what it never holds."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from rackgate.api.resources import PODS
from rackgate.kube import client as client_module
from rackgate.kube import stream as stream_module
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import (
    RETRY_AFTER_CAP_S,
    KubeError,
    LineTooLongError,
    NotSentError,
    TooManyRequestsError,
    TransportError,
    error_for,
    retry_after,
)
from rackgate.kube.stream import MAX_LINE_BYTES, LineSplitter
from rackgate.kube.transport import SMALL_BODY_BYTES
from rackgate.runtime import clock
from rackgate.runtime.serving.connections import abort
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until

POD = PODS.path("ns", "p")
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        running.put(PODS, {"metadata": {"name": "p", "namespace": "ns"}, "spec": {}})
        yield running


@pytest_asyncio.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    running = server.client()
    yield running
    await running.close()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0.25", 0.25),
        ("-3", 0.0),
        ("86400", RETRY_AFTER_CAP_S),
        (format_datetime(NOW + timedelta(seconds=9), usegmt=True), 9.0),
        (format_datetime(NOW - timedelta(hours=1), usegmt=True), 0.0),
        ("Sun, 01 Mar 2026 12:00:05 -0000", None),
        ("soon", None),
        ("nan", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_read_as_seconds_and_as_a_date(
    header: str | None, seconds: float | None
) -> None:
    assert retry_after(header, NOW) == seconds


def test_a_status_may_say_how_long_to_wait_where_no_header_does() -> None:
    body = b'{"kind":"Status","reason":"ServerTimeout","details":{"retryAfterSeconds":3}}'
    assert error_for("GET", "/x", 504, body).retry_after_s == 3.0
    assert error_for("GET", "/x", 504, body, 1.0).retry_after_s == 1.0
    assert error_for("GET", "/x", 504, b"{}").retry_after_s is None


@pytest.mark.requirement("UNG-17")
@pytest.mark.steady_clock
async def test_a_write_is_not_sent_again_after_the_deadline_of_its_sender(
    server: FakeApiServer, client: Client
) -> None:
    wait = {"Retry-After": "0.6"}
    server.faults.append(Fault.status(429, "TooManyRequests", headers=wait, times=99))
    deadline = clock.monotonic() + 1.5
    with pytest.raises(NotSentError):
        await client.patch(POD, b"{}", PatchType.MERGE, deadline=lambda: deadline)
    assert clock.monotonic() < deadline + 2
    assert 2 <= len(server.requests) <= 3, "at 0, 0.6 and 1.2 s"


@pytest.mark.requirement("UNG-17", "OPS-08")
async def test_a_request_stops_waiting_when_its_deadline_is_restored_forward(
    server: FakeApiServer, client: Client
) -> None:
    wait = {"Retry-After": "30"}
    server.faults.append(Fault.status(429, "TooManyRequests", headers=wait, times=99))
    deadline = float("inf")
    reading = asyncio.create_task(client.get(POD, deadline=lambda: deadline))
    await until(lambda: server.requests)
    deadline = float("-inf")
    async with asyncio.timeout(15):
        with pytest.raises(NotSentError):
            await reading
    assert len(server.requests) == 1


@pytest.mark.requirement("UNG-17")
async def test_a_write_that_waited_too_long_for_its_turn_is_not_sent(server: FakeApiServer) -> None:
    root = server.client()
    narrow = root.budget(qps=0, burst=1, concurrency=1)
    server.faults.append(Fault.slow(0.3))
    deadline = clock.monotonic() + 0.1
    first = asyncio.create_task(narrow.patch(POD, b"{}", PatchType.MERGE))
    await until(lambda: server.requests)
    with pytest.raises(NotSentError):
        await narrow.patch(POD, b"{}", PatchType.MERGE, deadline=lambda: deadline)
    await first
    assert len(server.requests) == 1
    await root.close()


async def test_throttling_without_a_header_waits_a_second(
    server: FakeApiServer, client: Client
) -> None:
    server.faults.append(Fault.status(429, "TooManyRequests"))
    started = time.monotonic()
    await client.get(POD)
    assert time.monotonic() - started >= client_module.THROTTLE_WAIT_S


async def test_an_overloaded_server_is_read_again_when_it_said(
    server: FakeApiServer, client: Client
) -> None:
    busy = Fault.status(503, "ServiceUnavailable", headers={"Retry-After": "0.8"})
    server.faults.append(busy)
    started = time.monotonic()
    await client.get(POD)
    assert time.monotonic() - started >= 0.8


async def test_a_throttled_watch_tells_how_long_to_wait(
    server: FakeApiServer, client: Client
) -> None:
    server.faults.append(Fault.status(429, headers={"Retry-After": "4"}, watch=True))
    with pytest.raises(TooManyRequestsError) as throttled:
        async for _ in client.watch(PODS.path()):
            pass
    assert throttled.value.retry_after_s == 4.0


def page(count: int, size: int, token: str) -> bytes:
    items = [{"metadata": {"name": f"p{n}"}, "pad": "x" * size} for n in range(count)]
    meta = {"resourceVersion": "1", "continue": token}
    return json.dumps({"metadata": meta, "items": items}).encode()


@pytest.mark.requirement("OPS-07")
async def test_pages_grow_shorter_where_items_are_large(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "TARGET_PAGE_BYTES", 50_000)
    limits: list[int] = []

    async def answer(request: web.Request, _: Any) -> web.Response:
        limits.append(int(request.query["limit"]))
        token = "more" if len(limits) < 4 else ""
        return web.Response(body=page(min(limits[-1], 100), 2000, token))

    server.faults.append(Fault(answer, times=4))
    pages = [len(body) async for body in client.list_pages(PODS.path(), page_size=100)]
    assert limits[0] == 100
    assert limits[1] < 30
    assert pages[0] > 200_000
    assert max(pages[1:]) < 55_000, "one page is what a list costs"


@pytest.mark.parametrize(
    "body", [b"<html>sorry</html>", b'{"metadata":{"resourceVersion":"1"},"it']
)
async def test_a_page_that_is_no_list_is_an_error_of_the_family(
    server: FakeApiServer, client: Client, body: bytes
) -> None:
    server.faults.append(Fault.body(body))
    with pytest.raises(TransportError) as garbage:
        async for _ in client.list_pages(PODS.path()):
            pass
    assert garbage.value.reason == "Garbage"


async def test_an_answer_that_breaks_off_is_no_answer(
    server: FakeApiServer, client: Client
) -> None:
    async def half(request: web.Request, _: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"metadata":{"name":"p"')
        assert request.transport is not None
        abort(request.transport)
        return response

    server.faults.append(Fault(half, method="PATCH", times=9))
    with pytest.raises(TransportError):
        await client.patch(POD, b"{}", PatchType.MERGE)
    assert len(server.requests) == 1, "it may have been applied"
    server.faults[:] = [Fault(half, method="GET")]
    assert json.loads(await client.get(POD))["metadata"]["name"] == "p"


@pytest.mark.parametrize("size", [0, SMALL_BODY_BYTES, SMALL_BODY_BYTES + 1, 3 * 2**20])
async def test_bodies_of_any_size_arrive_whole(
    server: FakeApiServer, client: Client, size: int
) -> None:
    body = json.dumps({"metadata": {"annotations": {"pad": "x" * size}}}).encode()
    await client.patch(POD, body, PatchType.MERGE)
    assert server.requests[-1].body == body


async def test_a_server_below_a_path_is_reached(server: FakeApiServer) -> None:
    server.faults.append(Fault.body(b"{}", times=1))
    below = server.client(below="/k8s/clusters/one/")
    await below.get(POD, {"fieldManager": "a b&c"})
    assert server.requests[-1].path == "/k8s/clusters/one" + POD
    assert server.requests[-1].query == {"fieldManager": "a b&c"}
    await below.close()


async def compressed(request: web.Request, handle: Any) -> web.StreamResponse:
    """A proxy on the way compresses, whatever was asked for."""
    answer = await handle()
    response = web.Response(body=answer.body, headers={"Content-Type": "application/json"})
    response.enable_compression(web.ContentCoding.gzip)
    return response


async def test_answers_are_asked_for_plain_and_read_compressed_all_the_same(
    server: FakeApiServer, client: Client
) -> None:
    server.faults.append(Fault(compressed, times=2))
    pages = [json.loads(body) async for body in client.list_pages(PODS.path())]
    assert [item["metadata"]["name"] for item in pages[0]["items"]] == ["p"]
    assert server.requests[-1].headers["Accept-Encoding"] == "identity"


async def test_a_compressed_watch_gives_the_same_lines(
    server: FakeApiServer, client: Client
) -> None:
    async def stream(request: web.Request, _: Any) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_compression(web.ContentCoding.gzip)
        await response.prepare(request)
        for part in (b'"a"\n"b', b'c"\n', b'"' + b"d" * 2**20 + b'"\n'):
            await response.write(part)
        await response.write_eof()
        return response

    server.faults.append(Fault(stream, watch=True))
    lines = [line async for line in client.watch(PODS.path())]
    assert lines == [b'"a"', b'"bc"', b'"' + b"d" * 2**20 + b'"']


def test_a_line_without_end_is_never_held_beyond_the_limit() -> None:
    splitter = LineSplitter()

    def flood() -> None:
        for _ in range(1000):
            splitter.feed(bytes(2**16))

    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="line of more than"):
            flood()
        assert tracemalloc.get_traced_memory()[1] < MAX_LINE_BYTES + 2**20
    finally:
        tracemalloc.stop()


async def test_a_flood_without_lines_is_not_piled_up(server: FakeApiServer, client: Client) -> None:
    sent = 0

    async def flood(request: web.Request, _: Any) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for _ in range(1000):
                await response.write(b"x" * 2**18)
                sent += 2**18
        except ConnectionError:
            pass  # the client has had enough
        return response

    server.faults.append(Fault(flood, watch=True))
    with pytest.raises(LineTooLongError):
        async for _ in client.watch(PODS.path()):
            pass
    assert sent < 16 * 2**20, "the limit, and what sockets and streams buffer"


async def test_a_rejected_watch_is_an_error_of_the_family_and_renews_the_token(
    server: FakeApiServer, client: Client
) -> None:
    server.tokens = {"other"}
    with pytest.raises(KubeError) as refused:
        async for _ in client.watch(PODS.path()):
            pass
    assert refused.value.status == 401


@pytest.mark.requirement("OPS-07")
async def test_a_first_page_of_huge_items_is_given_up_and_asked_for_in_parts(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may fill a namespace with objects of a megabyte before a service starts."""
    monkeypatch.setattr(stream_module, "TARGET_PAGE_BYTES", 12_500)
    monkeypatch.setattr(client_module, "MAX_PAGE_BYTES", 50_000)
    limits: list[int] = []
    sent: list[int] = []

    async def answer(request: web.Request, _: Any) -> web.StreamResponse:
        limits.append(int(request.query["limit"]))
        start = int(request.query.get("continue", "0"))
        end = min(start + limits[-1], 100)
        body = page(end - start, 40_000, str(end) if end < 100 else "")
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        sent.append(0)
        try:
            for at in range(0, len(body), 2**16):
                await response.write(body[at : at + 2**16])
                sent[-1] += 2**16
        except ConnectionError:
            pass  # the client has had enough
        return response

    server.faults.append(Fault(answer, times=999))
    items = 0
    async for body in client.list_pages(PODS.path(), page_size=100):
        items += len(json.loads(body)["items"])
    assert items == 100
    assert limits[:4] == [100, 12, 1, 1]
    assert server.requests[-1].query["continue"] == "99"


@pytest.mark.requirement("UNG-18")
async def test_an_answer_that_no_one_waits_for_any_more_is_never_taken_for_the_next_one(
    server: FakeApiServer,
) -> None:
    """Neither the rest of a body nor a late answer: the connection is not used again."""
    server.put(PODS, {"metadata": {"name": "q", "namespace": "ns"}, "spec": {}})
    client = server.client()
    go_on = asyncio.Event()

    async def halting(request: web.Request, handle: Any) -> web.StreamResponse:
        whole = (await handle()).body
        response = web.StreamResponse(headers={"Content-Length": str(len(whole))})
        await response.prepare(request)
        await response.write(whole[:20])
        await go_on.wait()
        await response.write(whole[20:])
        return response

    async def late(_: web.Request, handle: Any) -> web.StreamResponse:
        await go_on.wait()
        return await handle()  # type: ignore[no-any-return]  # as the fake server made it

    await client.get(POD)
    for fault in (halting, late):
        go_on.clear()
        server.faults[:] = [Fault(fault)]
        asked = len(server.requests)
        reading = asyncio.create_task(client.get(POD))
        await until(lambda asked=asked: len(server.requests) > asked)  # type: ignore[misc]  # bound now
        reading.cancel()
        await asyncio.wait((reading,))
        go_on.set()
        for _ in range(5):
            answer = json.loads(await client.get(PODS.path("ns", "q")))
            assert answer["metadata"]["name"] == "q"
    await client.close()


async def test_a_redirect_is_a_rejection_and_takes_no_credentials_along(
    server: FakeApiServer, client: Client
) -> None:
    server.faults.append(Fault.status(307, headers={"Location": f"{server.url}/elsewhere"}))
    with pytest.raises(KubeError) as refused:
        await client.get(POD)
    assert refused.value.status == 307
    assert [request.path for request in server.requests] == [POD]
