"""The server: `/mutate` and `/validate`. HTTP is known here, in connections and in bodies."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final, cast

import structlog
from aiohttp import web

from rackgate.jobframework.kai import RenderOptions
from rackgate.runtime import clock, metrics
from rackgate.runtime.tasks import start
from rackgate_webhook.admission.deadline import start_deadline
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import (
    Answer,
    AsyncDecide,
    Decide,
    answer_review,
    answer_review_async,
)
from rackgate_webhook.admission.validate import validate
from rackgate_webhook.certificates.tls import limit_tls_buffers
from rackgate_webhook.serving.bodies import BodyReader, RequestRejectedError
from rackgate_webhook.serving.connections import Connection, Connections
from rackgate_webhook.serving.listener import Listener

MAX_CONNECTIONS: Final = 512
PRIVATE_CONNECTIONS: Final = 8
SHUTDOWN_TIMEOUT_S: Final = 10.0
ABORT_TIMEOUT_S: Final = 0.1  # aiohttp takes 0 for no limit at all
# A caller that has just connected sends its request by then.
IDLE_BEFORE_CLOSE_S: Final = 0.5
SWEEP_S: Final = 0.5
# Large reviews that wait for something to be read: decoded, each takes ten times its size.
MAX_LARGE_ASYNC_REVIEWS: Final = 4

REVIEW_DURATION: Final = metrics.histogram(
    "review_duration_seconds", "Time to answer one review.", ("operation", "allowed")
)
REJECTED_REQUESTS: Final = metrics.initialize_series(
    metrics.counter(
        "webhook_requests_refused_total",
        "Requests without a review as answer, by why.",
        ("reason",),
    ),
    "reason",
    ("path", "method", "type", "large", "slow", "broken", "late", "abandoned", "unread"),
)

log = structlog.get_logger()


class WebhookServer:
    """Answers reviews over TLS.

    Besides its public port it listens on a private port of the loopback interface, with the same
    TLS context and routes: several replicas may share the public port, and a call to oneself must
    not be answered by another.

    Attributes:
        port: the public port, once started.
        private_port: the private one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        *,
        both_levels: bool = False,
        elastic_kinds: Collection[str] = (),
        kai: RenderOptions | None = None,
        async_routes: Mapping[str, AsyncDecide] | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.port = port
        self.private_port = 0
        self._host = host
        self._context = context
        self._max_connections = max_connections
        self._draining = False
        self._routes: dict[str, Decide] = {
            "/mutate": partial(mutate, elastic_kinds=elastic_kinds, kai=kai),
            "/validate": partial(validate, both_levels=both_levels, elastic_kinds=elastic_kinds),
        }
        self._async_routes = dict(async_routes or {})
        self._bodies = BodyReader()
        self._async_bodies = BodyReader(MAX_LARGE_ASYNC_REVIEWS)
        self._listeners: list[Listener] = []
        self._callers: list[Connections] = []
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. The context must hold a certificate by then.

        Raises:
            OSError: the address is in use by another program.
        """
        limit_tls_buffers()
        callers = Connections(self._handle, self._max_connections)
        public = await Listener.open(self._host, self.port, callers, self._context, shared=True)
        self._listeners.append(public)
        own = Connections(self._handle, PRIVATE_CONNECTIONS)
        private = await Listener.open("127.0.0.1", 0, own, self._context, shared=False)
        self._listeners.append(private)
        self._callers = [callers, own]
        self.port, self.private_port = public.port, private.port
        self._sweeping = start(self._sweep(), "sweep connections")

    def drain(self) -> None:
        """From now on every answer closes its connection, so that callers move elsewhere."""
        self._draining = True

    async def stop(self) -> None:
        """Stop listening, answer what is under way, then close. Repeating it is harmless."""
        self.drain()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.close()
        callers, self._callers = self._callers, []
        # Side by side: a Pod has 30 s to end, and the port's handshakes may have taken 4.
        await asyncio.gather(*map(_close_gracefully, callers))
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweeping

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for connections in self._callers[:1]:
                connections.close_slow()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await self._answer(request)
        except RequestRejectedError as rejected:
            REJECTED_REQUESTS.labels(reason=rejected.reason).inc()
            log.debug("request_rejected", reason=rejected.reason, message=rejected.message)
            response = web.Response(status=rejected.status, text=f"{rejected.message}\n")
            response.force_close()  # what is left of it is not worth reading
        if self._draining:
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        connection = cast(Connection, request.protocol)  # Connections makes no others
        connection.answering = True
        self._check_route(request)
        timeout = request.query.get("timeout") if request.query_string else None
        limit = start_deadline(connection.since, timeout)
        loop = asyncio.get_running_loop()
        bodies = self._bodies if request.path in self._routes else self._async_bodies
        async with bodies.read_body(request, limit - loop.time()) as body:
            if connection.caller_hung_up:
                raise RequestRejectedError(503, "abandoned", "the caller has hung up")
            if (late_s := loop.time() - limit) > 0:
                raise RequestRejectedError(
                    503, "late", f"{late_s:.3g} s too late to be answered in time"
                )
            started = clock.monotonic()
            answer = await self._decide(request.path, body, limit)
            _observe(answer, clock.monotonic() - started)
        content_type = "application/json" if answer.status == 200 else "text/plain"
        return web.Response(status=answer.status, body=answer.body, content_type=content_type)

    async def _decide(self, path: str, body: bytes, limit: float) -> Answer:
        if path in self._routes:
            return answer_review(body, self._routes[path])
        try:
            async with asyncio.timeout_at(limit):
                return await answer_review_async(body, self._async_routes[path])
        except TimeoutError:
            message = "what the review needs could not be read in time"
            raise RequestRejectedError(503, "late", message) from None

    def _check_route(self, request: web.BaseRequest) -> None:
        if request.path not in self._routes and request.path not in self._async_routes:
            known = ", ".join((*self._routes, *self._async_routes))
            raise RequestRejectedError(404, "path", f"no such path; there are {known}")
        if request.method != "POST":
            raise RequestRejectedError(405, "method", "expected POST")


async def _close_gracefully(connections: Connections) -> None:
    """Close each connection once its caller is silent; the rest after a while."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SHUTDOWN_TIMEOUT_S
    while loop.time() < end:
        alive = [found for found in connections.open if found.transport is not None]
        for found in alive:
            if found.is_idle_for(IDLE_BEFORE_CLOSE_S):
                found.force_close()
        if not alive:
            break
        await asyncio.sleep(0.01)
    for found in connections.open:
        found.abort()
    await connections.shutdown(ABORT_TIMEOUT_S)


def _observe(answer: Answer, duration_s: float) -> None:
    allowed = "true" if answer.allowed else "false"
    REVIEW_DURATION.labels(operation=answer.operation, allowed=allowed).observe(duration_s)
    level = log.debug if answer.allowed else log.info
    level(
        "review_answered",
        operation=answer.operation,
        kind=answer.kind,
        allowed=answer.allowed,
        reason=answer.reason,
        duration_s=round(duration_s, 6),
    )
