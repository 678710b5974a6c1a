"""The HTTPS server for `/mutate`, `/validate`, `/convert` and other routes of the service."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import msgspec
import structlog
from aiohttp import web

from rackgate.api.conversion import ConversionError
from rackgate.api.names import CONVERT_PATH
from rackgate.jobframework.kai import RenderOptions
from rackgate.runtime import clock, metrics
from rackgate.runtime.serving.connections import Connection, Connections, connection_metrics
from rackgate.runtime.tasks import cancel, start
from rackgate_webhook.admission.conversion_review import (
    MAX_CONVERSION_BYTES,
    Conversion,
    conversion_answer,
    conversions,
    decode_conversion,
)
from rackgate_webhook.admission.deadline import start_deadline
from rackgate_webhook.admission.gangs import GangRules
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import (
    Answer,
    AsyncDecide,
    Decide,
    ReviewError,
    answer_review,
    answer_review_async,
    bad_request,
)
from rackgate_webhook.admission.validate import validate
from rackgate_webhook.serving.bodies import SMALL_BYTES, BodyReader, RequestRejectedError
from rackgate_webhook.serving.unsent import UnsentAnswers

MAX_CONNECTIONS: Final = 256
PRIVATE_CONNECTIONS: Final = 8
SWEEP_S: Final = 0.5
# Large reviews that read objects: decoded, each uses ten times its size.
MAX_LARGE_ASYNC_REVIEWS: Final = 4
# One that is sent slowly must not keep out the others. Only one at a time is converted, as its
# answer may take 32 MiB more than its body.
MAX_LARGE_CONVERSIONS: Final = 3
# Other reviews wait no longer for the conversion of a list.
CONVERSION_STEP_S: Final = 0.005
# Larger objects are converted in a thread. One of this size takes up to 10 ms.
LARGE_OBJECT_BYTES: Final = 2**16

CONNECTIONS: Final = connection_metrics("webhook", "webhook")
REVIEW_DURATION: Final = metrics.histogram(
    "review_duration_seconds", "Time to answer one review.", ("operation", "allowed")
)
REJECTED_REQUESTS: Final = metrics.initialize_series(
    metrics.counter(
        "webhook_requests_refused_total",
        "Requests that were not answered with a review, by reason.",
        ("reason",),
    ),
    "reason",
    ("path", "method", "type", "large", "slow", "broken", "late", "abandoned", "unread"),
)

log = structlog.get_logger()


class WebhookServer:
    """Answers reviews over TLS.

    It also listens on a private port of the loopback interface, with the same TLS context and
    routes. Several replicas may share the public port, and another replica must not answer a call
    to itself.

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
        gangs: GangRules | None = None,
        pod_groups: bool = False,
        async_routes: Mapping[str, AsyncDecide] | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.port = port
        self.private_port = 0
        self._host = host
        self._context = context
        self._max_connections = max_connections
        self._draining = False
        rules = gangs or GangRules()
        self._routes: dict[str, Decide] = {
            "/mutate": partial(
                mutate, elastic_kinds=elastic_kinds, kai=kai, gangs=rules, pod_groups=pod_groups
            ),
            "/validate": partial(
                validate, both_levels=both_levels, elastic_kinds=elastic_kinds, gangs=rules
            ),
        }
        self._async_routes = dict(async_routes or {})
        self._bodies = BodyReader()
        self._async_bodies = BodyReader(MAX_LARGE_ASYNC_REVIEWS)
        self._conversion_bodies = BodyReader(MAX_LARGE_CONVERSIONS, MAX_CONVERSION_BYTES)
        self._large_conversion = asyncio.Lock()
        self._unsent = UnsentAnswers(CONNECTIONS)
        # One thread: a conversion whose review was late goes on, and must not run beside the next.
        self._large_objects = ThreadPoolExecutor(1, "convert")
        self._connections: list[Connections] = []
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. The context must have a certificate.

        Raises:
            OSError: the address is in use by another program.
        """
        public = await Connections.listen(
            self._host,
            self.port,
            self._context,
            self._handle,
            limit=self._max_connections,
            measured=CONNECTIONS,
            shared=True,
        )
        self._connections.append(public)
        private = await Connections.listen(
            "127.0.0.1",
            0,
            self._context,
            self._handle,
            limit=PRIVATE_CONNECTIONS,
            measured=CONNECTIONS,
        )
        self._connections.append(private)
        self.port, self.private_port = public.port, private.port
        self._sweeping = start(self._sweep(public), "sweep connections")

    def drain(self) -> None:
        """Close each connection with its next response, so that callers move to other replicas."""
        self._draining = True

    async def stop(self) -> None:
        """Stop listening, answer requests under way, then close. May be called again."""
        self.drain()
        connections, self._connections = self._connections, []
        sweeping, self._sweeping = self._sweeping, None
        try:
            # Concurrently: a Pod has 30 s to terminate.
            await asyncio.gather(*(found.close() for found in connections))
        finally:
            self._large_objects.shutdown(wait=False, cancel_futures=True)
            if sweeping is not None:
                await cancel(sweeping)

    async def _sweep(self, public: Connections) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            public.close_slow()

    async def _handle(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        try:
            response = await self._answer(request, connection)
        except RequestRejectedError as rejected:
            REJECTED_REQUESTS.labels(reason=rejected.reason).inc()
            log.debug("request_rejected", reason=rejected.reason, message=rejected.message)
            response = web.Response(status=rejected.status, text=f"{rejected.message}\n")
            response.force_close()  # the rest of the body is not read
        if self._draining:
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest, connection: Connection) -> web.Response:
        self._check_route(request)
        timeout = request.query.get("timeout") if request.query_string else None
        limit = start_deadline(connection.since, timeout)
        loop = asyncio.get_running_loop()
        async with self._bodies_of(request.path).read_body(request, limit - loop.time()) as body:
            if connection.caller_hung_up:
                raise RequestRejectedError(503, "abandoned", "the caller has hung up")
            if (late_s := loop.time() - limit) > 0:
                raise RequestRejectedError(
                    503, "late", f"{late_s:.3g} s too late to be answered in time"
                )
            started = clock.monotonic()
            answer = await self._decide(request.path, body, limit, connection)
            _observe(answer, clock.monotonic() - started)
        content_type = "application/json" if answer.status == 200 else "text/plain"
        return web.Response(status=answer.status, body=answer.body, content_type=content_type)

    def _bodies_of(self, path: str) -> BodyReader:
        if path == CONVERT_PATH:
            return self._conversion_bodies
        return self._bodies if path in self._routes else self._async_bodies

    async def _decide(self, path: str, body: bytes, limit: float, connection: Connection) -> Answer:
        if path in self._routes:
            return answer_review(body, self._routes[path])
        try:
            async with asyncio.timeout_at(limit):
                if path == CONVERT_PATH:
                    return await self._convert(body, connection)
                return await answer_review_async(body, self._async_routes[path])
        except TimeoutError:
            message = "what the review needs could not be read in time"
            if path == CONVERT_PATH:
                message = "the objects could not be converted in time"
            raise RequestRejectedError(503, "late", message) from None

    async def _convert(self, body: bytes, connection: Connection | None = None) -> Answer:
        """Convert the objects of one review, in steps: the API server sends whole lists.

        Args:
            body: the review.
            connection: on which the answer is sent.
        """
        async with AsyncExitStack() as slot:
            size, large = 0, len(body) > SMALL_BYTES
            if large:
                await slot.enter_async_context(self._only_large_conversion())
            try:
                request = decode_conversion(body)
            except ReviewError as error:
                return bad_request(str(error), "none", "")
            found, failure, step_ends = [], "", clock.monotonic() + CONVERSION_STEP_S
            try:
                for conversion in conversions(request):
                    size += conversion.size
                    if size > SMALL_BYTES and not large:
                        # A few bytes of slices can stand for many of domains.
                        large = True
                        await slot.enter_async_context(self._only_large_conversion())
                    found.append(await self._converted(conversion))
                    if clock.monotonic() > step_ends:
                        await asyncio.sleep(0)
                        step_ends = clock.monotonic() + CONVERSION_STEP_S
            except ConversionError as error:
                failure = str(error)
            answer = conversion_answer(request, found, failure)
            if large and connection is not None:
                await self._unsent.add(connection, len(answer.body))
            return answer

    @asynccontextmanager
    async def _only_large_conversion(self) -> AsyncIterator[None]:
        async with self._large_conversion:
            # A collection visits all domains and holds up the event loop, in a thread as well.
            gc.disable()
            try:
                yield
            finally:
                gc.enable()

    async def _converted(self, conversion: Conversion) -> msgspec.Raw:
        if conversion.size <= LARGE_OBJECT_BYTES:
            return conversion.run()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._large_objects, conversion.run)

    def _check_route(self, request: web.BaseRequest) -> None:
        paths = (*self._routes, CONVERT_PATH, *self._async_routes)
        if request.path not in paths:
            known = ", ".join(paths)
            raise RequestRejectedError(404, "path", f"no such path; there are {known}")
        if request.method != "POST":
            raise RequestRejectedError(405, "method", "expected POST")


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
