"""Callers that are slow, too many, gone, or waiting too long: each has a limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import threading

import pytest
from structlog.testing import capture_logs

from rackgate.runtime.serving.connections import Connections, State
from rackgate_webhook.serving.bodies import MAX_LARGE_BODIES
from rackgate_webhook.serving.server import CONNECTIONS, REJECTED_REQUESTS, WebhookServer
from tests.support.steadytime import monotonic
from tests.support.waiting import until
from tests.wire.webhook_server import (
    TRUSTING,
    answer_of,
    connected,
    connections,
    count,
    request,
    reviewed,
    serves,
    serving,
)
from tests.wire.webhook_world import REVIEW


def public(server: WebhookServer) -> Connections:
    return server._connections[0]


def answering(server: WebhookServer) -> int:
    """How many requests the server has in its hands."""
    return sum(found.state is State.ANSWERING for found in public(server).open.values())


pytestmark = [pytest.mark.requirement("HOOK-01"), pytest.mark.steady_clock]


async def test_a_body_that_comes_too_slowly_is_answered_within_the_callers_patience() -> None:
    async with serving() as server, connected(server) as (reader, writer):
        begun = monotonic()
        writer.write(request(REVIEW[:-1], "?timeout=1s", len(REVIEW)))
        status, words = await answer_of(reader)
        assert status == 408
        assert words.startswith("the request's body was not there within 0.")
        assert monotonic() - begun >= 0.7


async def test_headers_that_do_not_come_end_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rackgate.runtime.serving.connections.HEADERS_WITHIN_S", 1.5)
    async with serving() as server, connected(server) as (reader, writer):
        before = count(CONNECTIONS.closed, reason="slow")
        writer.write(b"POST /mutate HTTP/1.1\r\nHost: ")
        await asyncio.wait_for(reader.read(), 60)
        assert count(CONNECTIONS.closed, reason="slow") == before + 1
        assert await serves(server)


@pytest.mark.parametrize(("sent", "reason"), [(b"", "silent"), (b"\x16\x03\x01", "handshake")])
async def test_a_handshake_that_does_not_come_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, reason: str
) -> None:
    monkeypatch.setattr("rackgate.runtime.serving.connections.HANDSHAKE_S", 0.3)
    async with serving() as server:
        before = count(CONNECTIONS.closed, reason=reason)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        try:
            assert await asyncio.wait_for(reader.read(), 60) == b""
        finally:
            writer.close()
        # Whoever was served at this port before may still be calling.
        assert count(CONNECTIONS.closed, reason=reason) >= before + 1


async def test_slow_large_bodies_keep_no_one_with_a_small_one_waiting() -> None:
    async with serving() as server, connections(server, MAX_LARGE_BODIES + 2) as slow:
        for _, writer in slow:
            writer.write(request(b" " * 2**17, "?timeout=30s", 2**20))
        assert await serves(server)


async def test_connections_beyond_the_limit_make_the_longest_idle_go_first() -> None:
    async with serving(max_connections=16) as server:
        before = count(CONNECTIONS.closed, reason="evicted")
        async with connections(server, 40) as idle:
            assert await serves(server)
            assert len(public(server).open) <= 16
            assert count(CONNECTIONS.closed, reason="evicted") - before >= 24
            # Those that came first went first.
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(idle[0][0].read(), 30) == b""
            assert not idle[-1][0].at_eof()


async def test_a_connection_waits_while_all_others_are_busy() -> None:
    async with serving(max_connections=16) as server, connections(server, 16) as busy:
        for _, writer in busy:
            writer.write(request(REVIEW[:-1], "?timeout=30s", len(REVIEW)))
        await until(lambda: answering(server) == 16, 30)
        waiting = asyncio.create_task(serves(server))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert len(public(server).open) == 16
        for reader, writer in busy:  # they are not disturbed
            writer.write(REVIEW[-1:])
            assert b"200 OK" in await reader.readline()
        assert await waiting


async def test_a_caller_that_has_just_connected_makes_no_room_before_it_has_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its request is on its way: in a rush of callers each would close the one before it."""
    monkeypatch.setattr("rackgate.runtime.serving.connections.FIRST_REQUEST_S", 3600.0)
    async with serving(max_connections=16) as server, connections(server, 16) as opened:
        *busy, (reader, writer) = opened
        for _, other in busy:
            other.write(request(REVIEW[:-1], "?timeout=30s", len(REVIEW)))
        await until(lambda: answering(server) == 15, 30)
        waiting = asyncio.create_task(serves(server))
        await asyncio.sleep(0.1)
        writer.write(request(REVIEW))
        assert b"200 OK" in await reader.readline()
        assert await waiting, "one that has been answered makes room"


@pytest.mark.requirement("HOOK-14")
@pytest.mark.field_note("W3")
async def test_a_review_whose_caller_has_hung_up_is_not_computed() -> None:
    """The server was busy, or asleep, for longer than the caller waits."""
    async with serving() as server:
        connected_to = threading.Event()
        busy = threading.Event()

        def ask_and_hang_up() -> None:
            plain = socket.create_connection(("127.0.0.1", server.port))
            with TRUSTING.wrap_socket(plain, server_hostname="localhost") as caller:
                connected_to.set()
                busy.wait(30)
                caller.sendall(request(REVIEW))

        caller = threading.Thread(target=ask_and_hang_up)
        caller.start()
        await asyncio.to_thread(connected_to.wait, 30)
        await until(lambda: public(server).open)
        before, computed = count(REJECTED_REQUESTS, reason="abandoned"), reviewed()
        busy.set()
        caller.join(30)  # on purpose: the event loop stands still meanwhile
        await until(lambda: count(REJECTED_REQUESTS, reason="abandoned") == before + 1)
        assert reviewed() == computed
        assert await serves(server)


@pytest.mark.requirement("HOOK-14")
@pytest.mark.field_note("W3")
async def test_a_review_that_would_be_answered_too_late_is_not_computed() -> None:
    async with serving() as server, connected(server) as (reader, writer):
        await until(lambda: public(server).open)
        before, computed = count(REJECTED_REQUESTS, reason="late"), reviewed()
        (caller,) = public(server).open.values()
        writer.write(request(REVIEW, "?timeout=1s"))
        while caller.state is State.IDLE:
            await asyncio.sleep(0)
        busy_until = monotonic() + 0.9
        while monotonic() < busy_until:
            pass  # it has arrived, and the event loop is busy
        status, words = await answer_of(reader)
        assert (status, words.endswith("too late to be answered in time\n")) == (503, True)
        assert count(REJECTED_REQUESTS, reason="late") == before + 1
        assert reviewed() == computed
        assert await serves(server)


async def test_a_caller_that_never_reads_its_answers_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each of a few hundred such callers would hold a connection for ever."""
    monkeypatch.setattr("rackgate.runtime.serving.connections.HEADERS_WITHIN_S", 1.0)
    async with serving() as server, connected(server) as (_, writer):
        before = count(CONNECTIONS.closed, reason="slow")
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # its class has it
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(180):
                while count(CONNECTIONS.closed, reason="slow") == before:
                    writer.write(request(REVIEW) * 100)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(writer.drain(), 0.5)
        assert count(CONNECTIONS.closed, reason="slow") == before + 1
        assert await serves(server)


async def test_callers_wait_while_the_process_is_out_of_file_handles() -> None:
    """Nothing is lost, and the event loop is not kept busy by what it cannot accept."""
    troubles: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, trouble: troubles.append(trouble))
    callers = [socket.socket() for _ in range(3)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving() as server:
        try:
            with capture_logs() as told:
                spare = os.dup(0)
                os.close(spare)
                resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
                for caller in callers:
                    caller.connect(("127.0.0.1", server.port))
                await until(lambda: len(told) >= 2 or troubles)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert troubles[:1] == []
        assert {entry["event"] for entry in told} == {"connection_not_accepted"}
        for caller in callers:
            reader, writer = await asyncio.open_connection(
                sock=caller, ssl=TRUSTING, server_hostname="localhost"
            )
            writer.write(request(REVIEW))
            assert b"200 OK" in await asyncio.wait_for(reader.readline(), 30)
            writer.transport.abort()
    assert troubles[:1] == []


@pytest.mark.requirement("HOOK-14", "OPS-08")
async def test_what_has_begun_is_answered_while_a_replica_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request under way, and one of a caller that had connected just before."""
    monkeypatch.setattr("rackgate.runtime.serving.connections.IDLE_BEFORE_CLOSE_S", 60.0)
    monkeypatch.setattr("rackgate.runtime.serving.connections.SHUTDOWN_TIMEOUT_S", 60.0)
    async with serving() as server, connections(server, 2) as (begun, connected_only):
        begun[1].write(request(REVIEW[:-1], "?timeout=30s", len(REVIEW)))
        await until(lambda: answering(server), 30)
        stopping = asyncio.create_task(server.stop())
        await until(lambda: not server._connections, 30)
        for _ in range(10):  # rounds of looking for silent callers
            await asyncio.sleep(0.01)
        connected_only[1].write(request(REVIEW))
        assert (await answer_of(connected_only[0]))[0] == 200
        begun[1].write(REVIEW[-1:])
        assert (await answer_of(begun[0]))[0] == 200
        await asyncio.wait_for(stopping, 30)


@pytest.mark.requirement("OPS-08")
async def test_a_body_that_does_not_come_keeps_no_replica_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rackgate.runtime.serving.connections.SHUTDOWN_TIMEOUT_S", 0.2)
    async with serving() as server, connected(server) as (_, writer):
        writer.write(request(REVIEW[:-1], "?timeout=30s", len(REVIEW)))
        await until(lambda: answering(server), 30)
        async with asyncio.timeout(15):  # the body has 24
            await server.stop()
