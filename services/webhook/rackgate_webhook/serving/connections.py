"""The connections of callers: accepted within a limit, each handed to aiohttp.

aiohttp limits neither the number of connections nor the time that TLS handshakes and headers may
take, and `TCPSite` passes none of asyncio's options for that (ADR 33). So connections are accepted
here, and each has a protocol in front of aiohttp's that keeps its state and time. Only documented
interfaces of asyncio and aiohttp are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import heapq
import logging
import select
import socket
import ssl
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError

from rackgate.runtime import metrics
from rackgate.runtime.tasks import start

BACKLOG: Final = 1024
HANDSHAKE_S: Final = 4.0
# For a request's headers, and for the way of an answer to its caller.
HEADERS_WITHIN_S: Final = 4.0
LINGER_S: Final = 2.0
CLOSE_S: Final = 2.0
# Longer than the API server keeps an idle connection (90 s): then it is never we who close one
# that a request is just being sent on.
KEEPALIVE_S: Final = 120.0
READ_BYTES: Final = 2**14
# A caller that has just connected sends its first request by then, and is not closed before.
FIRST_REQUEST_S: Final = 0.5
EVICTION_CANDIDATES: Final = 4  # polling the sockets of all connections would take too long
EXHAUSTED_PAUSE_S: Final = 0.2
FULL_PAUSE_S: Final = 0.02
# A stopping server waits so long for requests under way.
SHUTDOWN_TIMEOUT_S: Final = 10.0
ABORT_TIMEOUT_S: Final = 0.1  # aiohttp takes 0 for no limit at all
IDLE_BEFORE_CLOSE_S: Final = 0.5

OPEN: Final = metrics.gauge("webhook_connections", "Open connections of callers.")
CLOSED: Final = metrics.initialize_series(
    metrics.counter(
        "webhook_connections_closed_total",
        "Connections that the webhook closed, by reason.",
        ("reason",),
    ),
    "reason",
    ("handshake", "evicted", "slow", "garbage"),
)

log = structlog.get_logger()

_EXHAUSTED_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Without POLLRDHUP (not Linux) only a broken connection is known as one.
_HUNG_UP: Final[int] = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Whether a log record of aiohttp is about more than a caller that does not speak HTTP."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_http_log: Final = logging.getLogger(__name__)
_http_log.addFilter(_is_our_fault)


class State(Enum):
    """What a connection is doing."""

    HANDSHAKE = auto()
    IDLE = auto()  # between two requests, or before the first
    READING = auto()  # the first byte of a request has arrived
    ANSWERING = auto()  # the server has the request's headers
    SENDING = auto()  # the answer is on its way, or was the last of its connection
    CLOSED = auto()


class Connection(asyncio.Protocol):
    """One caller's connection: passes everything on to aiohttp, and keeps its state.

    Attributes:
        state: what it is doing.
        since: when the state began; loop time. While it reads and answers, when the first byte of
            the request arrived.
        transport: None before the handshake is done.
    """

    def __init__(self, connections: Connections, handler: asyncio.Protocol) -> None:
        self._connections = connections
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._has_answered = False
        self.transport: asyncio.BaseTransport | None = None
        self.state = State.HANDSHAKE
        self.since = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done."""
        self.transport = transport
        self._enter(State.IDLE)
        self._connections.open[transport] = self
        # A method of TLS transports that asyncio does not document: without it a caller whose body
        # is not read yet fills another quarter of a megabyte.
        set_limits = getattr(transport, "set_read_buffer_limits", None)
        if set_limits is not None:
            set_limits(high=READ_BYTES)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Something arrived; the first byte of a request starts its time."""
        if self.state is State.IDLE:
            self._enter(State.READING)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """The caller sends no more."""
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        """The caller takes answers slower than they are written."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The caller has caught up."""
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by whichever side."""
        if self.state is State.READING:  # what arrived has not become a request
            CLOSED.labels(reason="garbage").inc()
        self._enter(State.CLOSED)
        if self.transport is not None:
            del self._connections.open[self.transport]
        self._connections.accepted.discard(self)
        self._handler.connection_lost(exc)

    async def answer(self, request: web.BaseRequest, handle: Handle) -> web.StreamResponse:
        """Answer a request; then the connection is idle again, unless that was its last one."""
        self.state = State.ANSWERING  # `since` stays
        response = await handle(request, self)
        # A caller that does not take its answer is as slow as one that does not ask.
        self._enter(State.SENDING)
        with contextlib.suppress(ConnectionError):  # aiohttp finds out for itself
            await response.prepare(request)
            await response.write_eof()
            self._has_answered = True
            if self.state is State.SENDING and response.keep_alive:
                self._enter(State.IDLE)
        return response

    def _enter(self, state: State) -> None:
        self.state, self.since = state, self._loop.time()

    @property
    def is_too_slow(self) -> bool:
        """Whether a request's headers, or its answer's way to the caller, take too long."""
        waiting = self.state in (State.READING, State.SENDING)
        return waiting and self._loop.time() - self.since > HEADERS_WITHIN_S

    def is_idle_for(self, at_least_s: float) -> bool:
        """Whether it has been idle for so long, and nothing waits to be read."""
        return (
            self.state is State.IDLE
            and self._loop.time() - self.since >= at_least_s
            and not self._poll(select.POLLIN)
        )

    @property
    def is_evictable(self) -> bool:
        """Whether it is idle, and not so new that its first request may be on its way."""
        waited = self._loop.time() - self.since
        return self.state is State.IDLE and (self._has_answered or waited >= FIRST_REQUEST_S)

    @property
    def caller_hung_up(self) -> bool:
        """Whether the caller has hung up and waits for no answer any more."""
        return self.state is State.CLOSED or self._poll(_HUNG_UP)

    def close(self) -> None:
        """Close an idle connection."""
        self._enter(State.CLOSED)
        if isinstance(self.transport, asyncio.Transport):
            self.transport.close()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._enter(State.CLOSED)
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()

    def _poll(self, events: int) -> bool:
        """Whether any of the events waits at the socket, behind what the loop has read."""
        sock = None if self.transport is None else self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(sock, events)
        return any(found & events for _, found in poll.poll(0))


Handle = Callable[[web.BaseRequest, Connection], Awaitable[web.StreamResponse]]


class Connections:
    """Listens on an address, and keeps the number of its connections within a limit.

    Attributes:
        port: that it listens on.
        accepted: all connections, those included whose handshake is not done.
        open: those whose handshake is done, by transport.
    """

    def __init__(
        self, listening: socket.socket, context: ssl.SSLContext, handle: Handle, limit: int
    ) -> None:
        self.port: int = listening.getsockname()[1]
        self.accepted: set[Connection] = set()
        self.open: dict[asyncio.BaseTransport, Connection] = {}
        self._listening = listening
        self._context = context
        self._limit = limit
        self._handle = handle
        self._http = web.Server(
            self._answer,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
            access_log=None,
            logger=_http_log,
            auto_decompress=False,  # API servers compress nothing, and a bomb stays small
            read_bufsize=READ_BYTES,
        )
        self._handshakes: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        self._resume()

    @classmethod
    async def listen(
        cls,
        host: str,
        port: int,
        context: ssl.SSLContext,
        handle: Handle,
        *,
        limit: int,
        shared: bool = False,
    ) -> Connections:
        """Listen and accept.

        Args:
            host: name or address.
            port: 0 for the kernel's choice.
            context: holds a certificate.
            handle: answers a request that came on a connection.
            limit: most connections at a time.
            shared: other processes may listen on the same port (`SO_REUSEPORT`).

        Raises:
            OSError: the address is in use, or is not of this machine.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listening = socket.create_server(
            address[:2], family=family, backlog=BACKLOG, reuse_port=shared
        )
        listening.setblocking(False)
        return cls(listening, context, handle, limit)

    async def close(self) -> None:
        """Stop listening; close each connection once its caller is silent, the rest after a while.

        What waits in the queue of a listening socket is reset when it is closed, so the queue is
        emptied first.
        """
        self._pause()
        while self._accept():
            pass
        self._pause()  # out of file handles, it was to resume
        # No await between the last accept and this.
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

    def close_slow(self) -> None:
        """Close connections whose headers do not come or whose answers are not taken."""
        for found in list(self.open.values()):
            if found.is_too_slow:
                CLOSED.labels(reason="slow").inc()
                found.abort()
        OPEN.set(len(self.open))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        connection = None if transport is None else self.open.get(transport)
        if connection is None:
            return web.Response(status=503)  # the caller has gone: nobody reads this
        return await connection.answer(request, self._handle)

    def _has_room(self) -> bool:
        """Whether one more may come; it may take the place of one that has long been idle."""
        if len(self.accepted) < self._limit:
            return True
        spare = (found for found in self.open.values() if found.is_evictable)
        for found in heapq.nsmallest(EVICTION_CANDIDATES, spare, key=lambda spare: spare.since):
            if found.is_idle_for(0):
                found.abort()
                self.accepted.discard(found)
                CLOSED.labels(reason="evicted").inc()
                return True
        return False

    def _resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._listening, self._accept_if_room)

    def _pause(self, resume_after_s: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        if self._resuming is not None:
            self._resuming.cancel()
        loop.remove_reader(self._listening)
        if resume_after_s is not None:
            self._resuming = loop.call_later(resume_after_s, self._resume)

    def _accept_if_room(self) -> None:
        """Accept one of those that wait in the queue."""
        if self._has_room():
            self._accept()
        else:
            self._pause(resume_after_s=FULL_PAUSE_S)  # answers take milliseconds

    def _accept(self) -> bool:
        """Accept one connection; whether there was one."""
        try:
            accepted, _ = self._listening.accept()
        except ConnectionAbortedError:
            return True  # it gave up; another may wait behind it
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno not in _EXHAUSTED_ERRNOS:
                raise
            log.warning("connection_not_accepted", error=str(error))
            self._pause(resume_after_s=EXHAUSTED_PAUSE_S)
            return False
        accepted.setblocking(False)
        connection = Connection(self, self._http())
        self.accepted.add(connection)
        task = start(self._handshake(accepted, connection), "handshake")
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)
        return True

    async def _handshake(self, accepted: socket.socket, connection: Connection) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=CLOSE_S,
            )
        except OSError as error:  # ssl.SSLError and time-outs are of them
            self.accepted.discard(connection)
            CLOSED.labels(reason="handshake").inc()
            log.debug("handshake_failed", error=str(error))
