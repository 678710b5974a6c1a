"""The connections of callers: how many, in what state, and which may go first.

A connection is idle between two requests (and before its first), reading from the first byte of
a request on, and answering from then until its answer is sent. aiohttp limits neither their
number nor the time that headers may take.
"""

from __future__ import annotations

import asyncio
import heapq
import select
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import structlog
from aiohttp import web

from rackgate.runtime import metrics

# For a request's headers, and for the way of an answer to its caller.
HEADERS_WITHIN_S: Final = 4.0
LINGER_S: Final = 2.0
# Most that waits unread on a connection; asyncio and aiohttp would keep half a megabyte each.
READ_BYTES: Final = 2**14
# A caller that has just connected sends its first request by then, and is not closed before.
FIRST_REQUEST_S: Final = 0.5
EVICTION_CANDIDATES: Final = 4  # for making room; looking closely at all would take too long
# Longer than the API server keeps an idle connection (90 s): then it is never we who close one
# that a request is just being sent on.
KEEPALIVE_S: Final = 120.0

OPEN: Final = metrics.gauge("webhook_connections", "Open connections of callers.")
CLOSED: Final = metrics.initialize_series(
    metrics.counter(
        "webhook_connections_closed_total",
        "Connections that were closed on a caller, by why.",
        ("reason",),
    ),
    "reason",
    ("handshake", "evicted", "slow", "garbage"),
)

log = structlog.get_logger()
Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    """One caller's connection.

    Attributes:
        idle: nothing of a request has arrived yet.
        answering: its request is in the hands of the server.
        has_answered: it has had an answer before.
        since: when it became idle, or the first byte of its request arrived; loop time.
    """

    __slots__ = ("answering", "has_answered", "idle", "since")

    def __init__(self, server: Connections, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own runners pass None, too
            auto_decompress=False,  # API servers compress nothing, and a bomb stays small
            read_bufsize=READ_BYTES,
        )
        self.idle, self.answering, self.has_answered = True, False, False
        self.since = loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done."""
        self.since = self._loop.time()
        # TLS transports have it, though no class of asyncio's documentation does.
        limit = getattr(transport, "set_read_buffer_limits", None)
        if limit is not None:
            limit(high=READ_BYTES)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Something arrived; the first byte of a request starts its time."""
        if self.idle:
            self.idle, self.since = False, self._loop.time()
        super().data_received(data)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer; then the connection is idle again."""
        # A caller that does not take its answer is as slow as one that does not ask.
        self.answering, self.since = False, self._loop.time()
        finished = await super().finish_response(request, resp, start_time)
        self.idle, self.answering, self.has_answered = True, False, True
        self.since = self._loop.time()
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP; only our own faults are logged as such."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        CLOSED.labels(reason="garbage").inc()
        log.debug("request_unreadable", status=status, cause=type(exc).__name__)
        response = web.Response(status=status, text=f"{message or HTTPStatus(status).phrase}\n")
        response.force_close()
        return response

    @property
    def is_too_slow(self) -> bool:
        """Whether a request's headers, or its answer's way to the caller, take too long."""
        waited = self._loop.time() - self.since
        return not self.idle and not self.answering and waited > HEADERS_WITHIN_S

    def is_idle_for(self, at_least_s: float) -> bool:
        """Whether it has been idle for so long, and nothing waits to be read."""
        return (
            self.idle
            and self._loop.time() - self.since >= at_least_s
            and not self._poll(select.POLLIN)
        )

    @property
    def is_evictable(self) -> bool:
        """Whether it is idle, and not so new that its first request may be on its way."""
        waited = self._loop.time() - self.since
        return self.idle and (self.has_answered or waited >= FIRST_REQUEST_S)

    @property
    def caller_hung_up(self) -> bool:
        """Whether the caller has hung up and waits for no answer any more."""
        return self.transport is None or self._poll(_HUNG_UP)

    def abort(self) -> None:
        """Close at once, whatever is under way; it counts as idle no more."""
        self.idle = False
        if self.transport is not None:
            self.transport.abort()

    def _poll(self, events: int) -> bool:
        """Whether any of the events waits at the socket, behind what the loop has read."""
        sock = None if self.transport is None else self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(sock, events)
        return any(found & events for _, found in poll.poll(0))


# Without POLLRDHUP (not Linux) only a broken connection is known as one.
_HUNG_UP: Final[int] = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Connections(web.Server):
    """All connections of a server: makes them, and keeps their number within a limit.

    Attributes:
        handshaking: connections whose handshake is not done.
    """

    def __init__(self, handle: Handle, limit: int) -> None:
        super().__init__(handle)
        self.handshaking: set[Connection] = set()
        self._limit = limit

    def __call__(self) -> Connection:
        """A connection that has been accepted; its handshake comes first."""
        accepted = Connection(self, self._loop)
        self.handshaking.add(accepted)
        return accepted

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Its handshake is done."""
        if isinstance(handler, Connection):
            self.handshaking.discard(handler)
        super().connection_made(handler, transport)

    @property
    def open(self) -> list[Connection]:
        """Connections whose handshake is done."""
        return [found for found in self.connections if isinstance(found, Connection)]

    @property
    def is_full(self) -> bool:
        """Whether there are as many connections as there may be."""
        return len(self._connections) + len(self.handshaking) >= self._limit

    def make_room(self) -> bool:
        """Whether one more may come; it may take the place of one that has long been idle."""
        if not self.is_full:
            return True
        spare = (found for found in self.open if found.is_evictable)
        for found in heapq.nsmallest(EVICTION_CANDIDATES, spare, key=lambda spare: spare.since):
            if found.is_idle_for(0):
                found.abort()
                CLOSED.labels(reason="evicted").inc()
                return True
        return False

    def close_slow(self) -> None:
        """Close connections whose headers do not come; count the others."""
        for found in self.open:
            if found.is_too_slow:
                CLOSED.labels(reason="slow").inc()
                found.abort()
        OPEN.set(len(self._connections))
