"""Serves the API `visibility.kueue.x-k8s.io` over TLS, only to the front proxy."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import structlog
from aiohttp import web

from rackgate.runtime import clock, metrics
from rackgate.runtime.serving.connections import Connection, Connections, connection_metrics
from rackgate.runtime.tasks import cancel, start
from rackgate.wire.kueue import Workload
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain.explanation import Explanation
from rackgate_assigner.explain.tenant import for_namespace
from rackgate_assigner.visibility.answer_cache import AnswerCache
from rackgate_assigner.visibility.answer_limit import AnswerLimit
from rackgate_assigner.visibility.answers import (
    LOCAL_QUEUES,
    WORKLOADS,
    PageRange,
    PendingRequest,
    RejectedError,
    discovery,
    encoded_items,
    not_found,
    parse_path,
    parse_range,
    positions_of,
    status_of,
    summary,
    within,
)
from rackgate_assigner.visibility.authorizer import Authorizer
from rackgate_assigner.visibility.front_proxy import FrontProxy, is_front_proxy, user_of
from rackgate_assigner.visibility.order_cache import OrderCache
from rackgate_assigner.visibility.pending_order import Position

SWEEP_S: Final = 0.5
CONNECTIONS: Final = connection_metrics("visibility", "visibility API")
REQUESTS: Final = metrics.counter(
    "visibility_requests_total", "Requests to the visibility API, by HTTP status.", ("code",)
)

encode: Final = msgspec.json.Encoder().encode
log = structlog.get_logger()


class VisibilityServer:
    """Answers from the cache of the assigner, on every replica.

    Attributes:
        port: that it listens on, once started.
    """

    def __init__(
        self,
        proxy: FrontProxy,
        authorizer: Authorizer,
        cache: Cache,
        workloads: Mapping[str, Workload],
        *,
        is_synced: Callable[[], bool],
        explain: Callable[[str], Explanation | None],
    ) -> None:
        """Prepare.

        Args:
            proxy: who may call.
            authorizer: knows the rights of users.
            cache: queues and pending Workloads.
            workloads: the store of Workloads, by key.
            is_synced: whether the cache is complete.
            explain: why a Workload is pending, by its key; None if it does not exist.
        """
        self._explain = explain
        self.port = 0
        self._proxy, self._authorizer = proxy, authorizer
        self._cache, self._workloads, self._is_synced = cache, workloads, is_synced
        self._order_cache, self._answer_cache = OrderCache(cache), AnswerCache()
        self._limit = AnswerLimit()
        self._computing = asyncio.Lock()
        self._connections: Connections | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(
        self, host: str, port: int, context: ssl.SSLContext, max_connections: int
    ) -> None:
        """Listen.

        Args:
            host: address.
            port: replicas on one machine may share it; 0 if the kernel chooses.
            context: with a certificate, and with the authorities of the front proxy.
            max_connections: maximum number of connections.

        Raises:
            OSError: the address is in use by another program.
        """
        self._connections = await Connections.listen(
            host,
            port,
            context,
            self._handle,
            limit=max_connections,
            measured=CONNECTIONS,
            shared=True,
        )
        self.port = self._connections.port
        self._sweeping = start(self._sweep(self._connections), "sweep visibility connections")

    async def stop(self) -> None:
        """Stop listening and close. May be called again."""
        connections, self._connections = self._connections, None
        sweeping, self._sweeping = self._sweeping, None
        try:
            if connections is not None:
                await connections.close()
        finally:
            if sweeping is not None:
                await cancel(sweeping)

    async def _sweep(self, connections: Connections) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            connections.close_slow()

    async def _handle(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        headers = {}
        try:
            with self._limit.in_progress():
                status, body = 200, await self._answer(request, connection)
        except RejectedError as rejected:
            status, body = rejected.status, status_of(rejected)
            if rejected.retry_after_s:
                headers["Retry-After"] = str(rejected.retry_after_s)
        REQUESTS.labels(code=str(status)).inc()
        log.debug("visibility_answered", path=request.path, status=status)
        return web.Response(
            status=status, body=body, content_type="application/json", headers=headers
        )

    async def _answer(self, request: web.BaseRequest, connection: Connection) -> bytes:
        transport = connection.transport
        certificate = None if transport is None else transport.get_extra_info("peercert")
        headers = list(request.headers.items())
        user = user_of(self._proxy, headers) if is_front_proxy(self._proxy, certificate) else None
        if user is None:
            raise RejectedError(401, "only the front proxy of the API server may call")
        if request.method != "GET":
            raise RejectedError(405, f"expected GET, found {request.method}")
        document = discovery(request.path)
        if document is not None:
            return document
        asked = parse_path(request.path)
        if asked is None:
            raise RejectedError(404, "the server could not find the requested resource")
        # Rights come first: to others, nothing shows whether a queue exists.
        await self._authorizer.check(user, asked)
        part = parse_range(request.query)
        if not self._is_synced():
            raise RejectedError(503, "the cache is not complete yet; try again in some seconds")
        if asked.resource == WORKLOADS:
            return await self._explanation(asked)
        if not self._exists(asked):
            raise not_found(asked)
        return await self._summary(asked, part)

    async def _explanation(self, asked: PendingRequest) -> bytes:
        """Why a Workload is pending, without the names of Workloads of other namespaces."""
        async with self._computing:
            started = clock.monotonic()
            self._limit.check_time(started)
            found = self._explain(f"{asked.namespace}/{asked.name}")
            answer = None if found is None else encode(for_namespace(found, asked.namespace))
            self._limit.spend(clock.monotonic() - started)
        if answer is None:
            raise not_found(asked)
        return answer

    async def _summary(self, asked: PendingRequest, part: PageRange) -> bytes:
        order = await self._order_cache.order()
        found = positions_of(order, asked)
        part = within(part, len(found))
        async with self._computing:
            answer = self._answer_cache.get(order, asked, part)
            if answer is None:
                self._limit.check_time(clock.monotonic())
                answer = await self._encode(asked.version, found[part.offset :][: part.limit])
                self._answer_cache.put(order, asked, part, answer)
        return answer

    async def _encode(self, version: str, positions: Sequence[Position]) -> bytes:
        """The answer; computed in steps, with other work between them."""
        started = clock.monotonic()
        metadata = {
            found.key: workload.metadata
            for found in positions
            if (workload := self._workloads.get(found.key)) is not None
        }
        steps = encoded_items(positions, metadata)
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                answer = summary(version, finished.value)
                self._limit.spend(clock.monotonic() - started)
                return answer
            self._limit.spend(clock.monotonic() - started)
            await asyncio.sleep(0)
            started = clock.monotonic()

    def _exists(self, asked: PendingRequest) -> bool:
        if asked.resource == LOCAL_QUEUES:
            return f"{asked.namespace}/{asked.name}" in self._cache.local_queues
        return asked.name in self._cache.cluster_queues
