"""Accepts connections of callers within a limit and passes each to aiohttp.

aiohttp limits neither the number of connections nor the time for TLS handshakes and headers, and
`TCPSite` does not expose the options of asyncio for this (ADR 33). So connections are accepted
here, and each has a protocol in front of aiohttp's protocol that records its state and time. Only
documented interfaces of asyncio and aiohttp are used.

A connection takes a slot when its caller has sent the first byte. While all slots are taken, they
are shared by source address (ADR 33): the address with the fewest slots gets the next one, and the
address with the most slots loses one.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import heapq
import logging
import select
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError
from prometheus_client import Counter, Gauge

from rackgate.runtime import metrics
from rackgate.runtime.serving.waiting_room import Arrival, WaitingRoom
from rackgate.runtime.tasks import start

BACKLOG: Final = 1024
HANDSHAKE_S: Final = 4.0
# Limit for the headers of a request, and for sending a response.
HEADERS_WITHIN_S: Final = 4.0
LINGER_S: Final = 2.0
CLOSE_S: Final = 2.0
# Longer than the API server keeps an idle connection (90 s): so the server never closes one
# while a request is being sent on it.
KEEPALIVE_S: Final = 120.0
READ_BYTES: Final = 2**14
# Of a response; a part that is not sent yet is kept twice.
PART_BYTES: Final = 2**17
UNSENT_BYTES: Final = 2**16
# A connection that waits for its caller is not closed for another one before this time, so that
# what is on its way can arrive.
FIRST_REQUEST_S: Final = 0.5
# A connection under way is not closed for one of an address with fewer slots before this time.
BUSY_S: Final = 1.0
EVICTION_CANDIDATES: Final = 4  # polling all sockets would take too long
ACCEPTED_AT_ONCE: Final = 16
# Connections that have no slot yet.
ROOM: Final = 256
EXHAUSTED_PAUSE_S: Final = 0.2
FULL_PAUSE_S: Final = 0.02
# A stopping server waits this long for requests under way.
SHUTDOWN_TIMEOUT_S: Final = 10.0
ABORT_TIMEOUT_S: Final = 0.1  # 0 means no limit in aiohttp
IDLE_BEFORE_CLOSE_S: Final = 0.5

log = structlog.get_logger()

_EXHAUSTED_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Without POLLRDHUP (not Linux) only a connection error is detected.
_HUNG_UP: Final[int] = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Whether to keep a log record of aiohttp: not if a caller does not speak HTTP."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def abort(transport: asyncio.BaseTransport) -> None:
    """Close a connection immediately, without sending what is left.

    Some releases of Python 3.11 raise AttributeError for a TLS connection that was closed twice.
    """
    if isinstance(transport, asyncio.Transport):
        with contextlib.suppress(AttributeError):
            transport.abort()


@dataclass(frozen=True, slots=True)
class ConnectionMetrics:
    """Metrics of one server.

    Attributes:
        open: number of open connections.
        closed: connections that the server closed, by reason.
    """

    open: Gauge
    closed: Counter


# silent, crowded: closed before it got a slot (`waiting_room`).
CLOSED_REASONS: Final = ("silent", "crowded", "handshake", "evicted", "slow", "garbage")


def connection_metrics(prefix: str, server: str) -> ConnectionMetrics:
    """Declare the metrics of a server: `<prefix>_connections` and the closed ones."""
    closed = metrics.counter(
        f"{prefix}_connections_closed_total",
        f"Connections that the {server} closed, by reason.",
        ("reason",),
    )
    return ConnectionMetrics(
        metrics.gauge(f"{prefix}_connections", "Open connections of callers."),
        metrics.initialize_series(closed, "reason", CLOSED_REASONS),
    )


_http_log: Final = logging.getLogger(__name__)
_http_log.addFilter(_is_our_fault)

# Of aiohttp's server.
HTTP_OPTIONS: Final[dict[str, Any]] = {
    "keepalive_timeout": KEEPALIVE_S,
    "lingering_time": LINGER_S,
    "access_log": None,
    "logger": _http_log,
    "auto_decompress": False,  # API servers do not compress, and a zip bomb stays small
    "read_bufsize": READ_BYTES,
}


class _ResponseInParts(web.StreamResponse):
    """A response whose body is written in parts.

    So writing waits for a caller that reads slowly. A TLS transport of asyncio passes on one large
    write at once, and does not report that it is not sent.
    """

    def __init__(self, response: web.Response, body: bytes) -> None:
        super().__init__(status=response.status, reason=response.reason, headers=response.headers)
        self._whole = body
        self.content_length = len(body)
        if response.keep_alive is False:
            self.force_close()

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the body; may be called again."""
        whole, self._whole = memoryview(self._whole), b""
        for offset in range(0, len(whole), PART_BYTES):
            await self.write(whole[offset : offset + PART_BYTES])
        await super().write_eof(data)


def _in_parts(response: web.Response, body: bytes) -> web.StreamResponse:
    return response if len(body) <= PART_BYTES else _ResponseInParts(response, body)


class State(Enum):
    """State of a connection."""

    HANDSHAKE = auto()
    IDLE = auto()  # between two requests, or before the first
    READING = auto()  # the first byte of a request has arrived
    ANSWERING = auto()  # the server has the request's headers
    SENDING = auto()  # the response is being sent, or the connection closes after it
    CLOSED = auto()


class Connection(asyncio.Protocol):
    """One connection: passes all calls to aiohttp and records its state.

    Attributes:
        state: current state.
        since: when the state began; loop time. While READING and ANSWERING, when the first byte of
            the request arrived.
        transport: None before the TLS handshake is done.
        address: source address, without the port.
        handshake: the task that does the TLS handshake, if it has begun.
        has_answered: a request was answered.
        on_answered: called once, when the answer to the present request was sent or dropped.
    """

    def __init__(
        self, connections: Connections, handler: asyncio.Protocol, sock: socket.socket, address: str
    ) -> None:
        self.address = address
        self.handshake: asyncio.Task[None] | None = None
        self._sock = sock
        self._connections = connections
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self.has_answered = False
        self.on_answered: Callable[[], None] | None = None
        self.transport: asyncio.BaseTransport | None = None
        self.state = State.HANDSHAKE
        self.since = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done."""
        self.transport = transport
        self._enter(State.IDLE)
        self._connections.open[transport] = self
        # Only TLS transports have this method, and asyncio does not document it. Without it, a
        # body that is not read yet fills another 256 KiB.
        set_limits = getattr(transport, "set_read_buffer_limits", None)
        if set_limits is not None:
            set_limits(high=READ_BYTES)
        if isinstance(transport, asyncio.Transport):
            transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Data arrived. The first byte of a request starts its time."""
        if self.state is State.IDLE:
            self._enter(State.READING)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """The caller sends no more."""
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        """The caller reads slower than the response is written."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The caller has caught up."""
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Either side closed the connection."""
        if self.state is State.READING:  # no complete request arrived
            self._connections.metrics.closed.labels(reason="garbage").inc()
        self._enter(State.CLOSED)
        if self.transport is not None:
            del self._connections.open[self.transport]
        self._handler.connection_lost(exc)
        self._connections.release(self)

    async def answer(self, request: web.BaseRequest, handle: Handle) -> web.StreamResponse:
        """Answer a request. Then the connection is idle, unless it closes."""
        self.state = State.ANSWERING  # `since` does not change
        try:
            return await self._send(request, await handle(request, self))
        finally:
            on_answered, self.on_answered = self.on_answered, None
            if on_answered is not None:
                on_answered()

    async def _send(
        self, request: web.BaseRequest, response: web.StreamResponse
    ) -> web.StreamResponse:
        if (
            isinstance(response, web.Response)
            and isinstance(response.body, bytes)
            and request.method != "HEAD"  # its answer has no body
        ):
            response = _in_parts(response, response.body)
        # A caller that does not read its response has the same time limit as one that sends slowly.
        self._enter(State.SENDING)
        with contextlib.suppress(ConnectionError):  # aiohttp handles it
            await response.prepare(request)
            await response.write_eof()
            self.has_answered = True
            if self.state is State.SENDING and response.keep_alive:
                self._enter(State.IDLE)
        return response

    def _enter(self, state: State) -> None:
        self.state, self.since = state, self._loop.time()

    def is_slower_than(self, within_s: float) -> bool:
        """Whether receiving the headers or sending the response takes longer."""
        waiting = self.state in (State.READING, State.SENDING)
        return waiting and self._loop.time() - self.since > within_s

    def is_idle_for(self, at_least_s: float) -> bool:
        """Whether it has been idle for so long and has no unread data."""
        return (
            self.state is State.IDLE
            and self._loop.time() - self.since >= at_least_s
            and not self.has_unread
        )

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its caller, long enough to be closed for another connection."""
        if self.state not in (State.HANDSHAKE, State.IDLE, State.READING):
            return False
        answered = self.state is State.IDLE and self.has_answered
        return answered or self._loop.time() - self.since >= FIRST_REQUEST_S

    @property
    def is_busy_for_long(self) -> bool:
        """Whether a request, or its answer, has been under way for long."""
        return self._loop.time() - self.since >= BUSY_S

    @property
    def has_unread(self) -> bool:
        """Whether its caller has sent something that the loop has not read yet."""
        return self._poll(select.POLLIN)

    @property
    def caller_hung_up(self) -> bool:
        """Whether the caller has hung up."""
        return self.state is State.CLOSED or self._poll(_HUNG_UP)

    def close(self) -> None:
        """Close an idle connection."""
        self._enter(State.CLOSED)
        if isinstance(self.transport, asyncio.Transport):
            self.transport.close()

    def abort(self) -> None:
        """Close immediately, also during the handshake or a request."""
        self._enter(State.CLOSED)
        if self.transport is None and self.handshake is not None:
            self.handshake.cancel()
        if self.transport is not None:
            abort(self.transport)

    def _poll(self, events: int) -> bool:
        """Whether the socket has one of the events that the loop has not read yet."""
        if self._sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._sock, events)
        return any(found & events for _, found in poll.poll(0))


Handle = Callable[[web.BaseRequest, Connection], Awaitable[web.StreamResponse]]


class Connections:
    """Listens on an address and limits the number of connections.

    Attributes:
        port: that it listens on.
        accepted: all connections with a slot, including those whose TLS handshake is not done.
        open: those whose TLS handshake is done, by transport.
        metrics: of this server.
    """

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext | None,
        handle: Handle | web.Server,
        *,
        limit: int,
        measured: ConnectionMetrics,
        room: int,
    ) -> None:
        self.port: int = listening.getsockname()[1]
        self.metrics = measured
        self.accepted: set[Connection] = set()
        self.open: dict[asyncio.BaseTransport, Connection] = {}
        self._listening = listening
        self._context = context
        self._limit = limit
        self._http: web.Server = (
            handle
            if isinstance(handle, web.Server)
            else web.Server(partial(self.answer, handle=handle), **HTTP_OPTIONS)
        )
        self._handshakes: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        self._room = WaitingRoom(self._fill, self._dropped, room)
        self._slots: collections.Counter[str] = collections.Counter()
        self._evicting: asyncio.TimerHandle | None = None
        self._closing = False
        self._resume()

    @classmethod
    async def listen(
        cls,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        handle: Handle | web.Server,
        *,
        limit: int,
        measured: ConnectionMetrics,
        room: int = ROOM,
        shared: bool = False,
    ) -> Connections:
        """Listen and accept.

        Args:
            host: name or address.
            port: 0 if the kernel chooses.
            context: with a certificate; None for plain HTTP.
            handle: answers a request of a connection; or an application's server, made with
                `HTTP_OPTIONS`, whose outermost middleware calls `answer`.
            limit: maximum number of connections.
            measured: metrics of the server.
            room: maximum number of connections that wait for their first byte, or for a slot.
            shared: other processes may listen on the same port (`SO_REUSEPORT`).

        Raises:
            OSError: the address is in use or does not belong to this machine.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listening = socket.create_server(
            address[:2], family=family, backlog=BACKLOG, reuse_port=shared
        )
        listening.setblocking(False)
        return cls(listening, context, handle, limit=limit, measured=measured, room=room)

    async def close(self) -> None:
        """Stop listening. Close each connection when it is idle, and the rest after a timeout.

        Closing a listening socket resets the connections in its queue, so the queue is emptied
        first.
        """
        self._closing = True
        self._pause()
        for arrival in self._room.clear():
            self._begin(arrival)
        while self._accept():
            pass
        self._pause()  # cancels a pause after file descriptors ran out
        # No await between the last accept and the close.
        self._listening.close()
        while self._handshakes:
            await asyncio.wait(self._handshakes)
        loop = asyncio.get_running_loop()
        end = loop.time() + SHUTDOWN_TIMEOUT_S
        while self.open and loop.time() < end:
            for found in list(self.open.values()):
                if found.is_idle_for(IDLE_BEFORE_CLOSE_S):
                    found.close()
            await asyncio.sleep(0.01)
        for found in list(self.open.values()):
            found.abort()
        await self._http.shutdown(ABORT_TIMEOUT_S)

    def close_slow(self, within_s: float | None = None) -> None:
        """Close connections that send headers or read responses for longer than this.

        Args:
            within_s: seconds; None for `HEADERS_WITHIN_S`.
        """
        within_s = HEADERS_WITHIN_S if within_s is None else within_s
        for found in list(self.open.values()):
            if found.is_slower_than(within_s):
                self.metrics.closed.labels(reason="slow").inc()
                found.abort()
        self.metrics.open.set(len(self.open))

    async def answer(self, request: web.BaseRequest, handle: Handle) -> web.StreamResponse:
        """Answer a request of one of these connections."""
        transport = request.transport
        connection = None if transport is None else self.open.get(transport)
        if connection is None:
            return web.Response(status=503)  # the caller has hung up: this is never sent
        return await connection.answer(request, handle)

    def release(self, connection: Connection) -> None:
        """The connection has ended, and gives its slot away. May be called again."""
        if connection in self.accepted:
            self.accepted.discard(connection)
            self._slots[connection.address] -= 1
            if not self._slots[connection.address]:
                del self._slots[connection.address]
            self._fill()

    def _fill(self) -> None:
        """Give slots to connections that wait for one."""
        while not self._closing and (arrival := self._room.next(self._slots)) is not None:
            if len(self.accepted) >= self._limit:
                self._evict_for(arrival.address)
                if len(self.accepted) >= self._limit:
                    return
            else:
                self._room.remove(arrival)
                self._begin(arrival)

    def _evict_for(self, address: str) -> None:
        """Close a connection for one of this address. If none may be closed, try again soon."""
        if self._evicting is not None:
            return
        found = self._evictable(address)
        if found is None:
            loop = asyncio.get_running_loop()
            self._evicting = loop.call_later(FULL_PAUSE_S, self._evict_again)
            return
        self.metrics.closed.labels(reason="evicted").inc()
        found.abort()
        self.release(found)

    def _evict_again(self) -> None:
        self._evicting = None
        self._fill()

    def _evictable(self, address: str) -> Connection | None:
        """The connection that is closed for one of this address; None if none may be.

        The address with the most slots comes first, and an address with fewer slots than this one
        loses none.
        """
        own = self._slots[address]
        waiting = [
            found
            for found in self.accepted
            if (found.address == address or self._slots[found.address] > own) and found.is_waiting
        ]
        key = self._by_slots
        for found in heapq.nsmallest(EVICTION_CANDIDATES, waiting, key=key):
            if not found.has_unread:
                return found
        busy = [
            found
            for found in self.accepted
            if self._slots[found.address] > own + 1 and found.is_busy_for_long
        ]
        return min(busy, key=key, default=None)

    def _by_slots(self, found: Connection) -> tuple[int, bool, float]:
        return -self._slots[found.address], found.has_answered, found.since

    def _dropped(self, reason: str) -> None:
        self.metrics.closed.labels(reason=reason).inc()

    def _resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._listening, self._accept_some)

    def _pause(self, resume_after_s: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        if self._resuming is not None:
            self._resuming.cancel()
        loop.remove_reader(self._listening)
        if resume_after_s is not None:
            self._resuming = loop.call_later(resume_after_s, self._resume)

    def _accept_some(self) -> None:
        """Accept connections from the queue. No more: the loop has other work."""
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._accept():
                return

    def _accept(self) -> bool:
        """Accept one connection; whether there was one."""
        try:
            accepted, peer = self._listening.accept()
        except ConnectionAbortedError:
            return True  # it hung up; the queue may have another
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno not in _EXHAUSTED_ERRNOS:
                raise
            log.warning("connection_not_accepted", error=str(error))
            self._pause(resume_after_s=EXHAUSTED_PAUSE_S)
            return False
        accepted.setblocking(False)
        if self._closing:
            self._begin(Arrival(accepted, peer[0]))
        else:
            self._room.add(accepted, peer[0], HANDSHAKE_S)
        return True

    def _begin(self, arrival: Arrival) -> None:
        """Give it a slot, and begin the TLS handshake."""
        connection = Connection(self, self._http(), arrival.sock, arrival.address)
        self.accepted.add(connection)
        self._slots[arrival.address] += 1
        task = start(self._handshake(arrival.sock, connection), "handshake")
        connection.handshake = task
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, accepted: socket.socket, connection: Connection) -> None:
        limits = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": CLOSE_S}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._context,
                **(limits if self._context is not None else {}),
            )
        except OSError as error:  # includes ssl.SSLError and time-outs
            self.release(connection)
            self.metrics.closed.labels(reason="handshake").inc()
            log.debug("handshake_failed", error=str(error))
