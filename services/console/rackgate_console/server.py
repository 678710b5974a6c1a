"""Serves the page and its data over HTTP: files, one stream for each viewer, and answers.

A stream holds no data of its own: it waits for a batch of the feed, and writes what the feed has
encoded for the rights of its viewer, in pieces, each when the one before is sent. So slow viewers
use no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from rackgate.kube.errors import KubeError
from rackgate.runtime import clock, metrics
from rackgate.runtime.serving.connections import (
    HTTP_OPTIONS,
    Connections,
    connection_metrics,
)
from rackgate.runtime.tasks import cancel, start
from rackgate_cli.errors import first_error
from rackgate_console.console import Console
from rackgate_console.details import Details
from rackgate_console.responses import SECURITY_HEADERS, PageFile, RejectedError, read_page
from rackgate_console.time_budget import TimeBudget
from rackgate_console.viewers.viewer import Credentials, LocalViewers, Viewer, Viewers
from rackgate_console.what_if import document_of, namespace_of, question_of

MAX_STREAMS: Final = 1100
MAX_STREAMS_OF_USER: Final = 64
MAX_BODY: Final = 512 * 1024
HEARTBEAT_S: Final = 15.0
# A viewer that takes longer for a piece of a stream, or for an answer, has lost the connection.
WRITE_S: Final = 30.0
PIECE: Final = 64 * 1024
# Rights are checked again after this time.
RIGHTS_S: Final = 60.0
# A request that arrives more slowly is not answered.
BODY_S: Final = 10.0
# Answers that are computed at the same time, of all viewers, and of one.
MAX_ANSWERS: Final = 8
MAX_ANSWERS_OF_USER: Final = 4
# A stream of each viewer, and some requests.
MAX_CONNECTIONS: Final = 2048
SWEEP_S: Final = 1.0

STREAMS: Final = metrics.gauge("console_streams", "Open pages of the console.")
REQUESTS: Final = metrics.counter(
    "console_requests_total", "Requests to the console, by HTTP status.", ("code",)
)
CONNECTIONS: Final = connection_metrics("console", "console")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.get_logger()
_encode: Final = msgspec.json.Encoder().encode


class ConsoleServer:
    """The service behind the page.

    Attributes:
        port: that it listens on, once started.
    """

    def __init__(self, console: Console, viewers: Viewers, details: Details, cluster: str) -> None:
        """Prepare.

        Args:
            console: has the data.
            viewers: knows who asks.
            details: answers about one Workload.
            cluster: name that the page shows.
        """
        self.port = 0
        self._console, self._viewers, self._details = console, viewers, details
        self._cluster = cluster
        self._files = read_page()
        self._streams: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._budget = TimeBudget()
        self._stopping = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._connections: Connections | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext | None = None,
        *,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """Listen.

        Args:
            host: address.
            port: 0 if the kernel chooses.
            context: with a certificate; None for plain HTTP.
            max_connections: maximum number of connections.

        Raises:
            OSError: the address is in use.
        """
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._connected, self._guard])
        app.router.add_get("/", self._index)
        app.router.add_get("/page/{path:.+}", self._page)
        app.router.add_get("/api/session", self._session)
        app.router.add_post("/api/session", self._open_session)
        app.router.add_get("/api/stream", self._stream)
        app.router.add_get("/api/workloads/{namespace}/{name}", self._workload)
        app.router.add_post("/api/what-if", self._what_if)
        app.router.add_get("/api/history/ClusterQueue/{name}", self._history)
        app.router.add_get("/api/hosts/{flavor}", self._hosts)
        # A viewer who goes away ends the question.
        self._runner = web.AppRunner(app, handler_cancellation=True, **HTTP_OPTIONS)
        await self._runner.setup()
        http = self._runner.server
        if http is None:
            raise RuntimeError("a runner that is set up has a server")
        # All pages connect again at the same time when a replica was started again.
        self._connections = await Connections.listen(
            host,
            port,
            context,
            http,
            limit=max_connections,
            measured=CONNECTIONS,
            room=max_connections,
        )
        self.port = self._connections.port
        self._sweeping = start(self._sweep(self._connections), "sweep connections")

    async def stop(self) -> None:
        """End all streams, and stop listening. May be called again."""
        self._stopping.set()
        sweeping, self._sweeping = self._sweeping, None
        runner, self._runner = self._runner, None
        try:
            if self._connections is not None:
                await self._connections.close()
        finally:
            self._connections = None
            if sweeping is not None:
                await cancel(sweeping)
            if runner is not None:
                await runner.cleanup()

    async def _sweep(self, connections: Connections) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            connections.close_slow(WRITE_S)

    # Every request.

    @web.middleware
    async def _connected(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Passes a request on with its connection, which knows how long it takes."""
        if self._connections is None:
            return web.Response(status=503)  # the service has stopped
        return await self._connections.answer(
            request, lambda _request, _: self._last(request, handler)
        )

    async def _last(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The answer; the connection ends with it if the console stops, or a body was not read."""
        response = await handler(request)
        if self._stopping.is_set() or not request.content.is_eof():
            response.force_close()
        return response

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Checks where a request comes from, and turns errors into answers."""
        try:
            self._viewers.check_host(request.headers.get("Host", ""))
            _check_origin(request)
            response = await handler(request)
        except RejectedError as error:
            response = web.Response(
                status=error.status,
                body=error.encoded(mode=self._viewers.mode),
                content_type="application/json",
            )
            if error.retry_after_s:
                response.headers["Retry-After"] = str(error.retry_after_s)
        except web.HTTPException as error:
            rejected = RejectedError(error.status, error.reason)
            response = web.Response(
                status=error.status, body=rejected.encoded(), content_type="application/json"
            )
        except KubeError as error:
            response = _unanswered(request, error)
        except BaseExceptionGroup as errors:
            response = _unanswered(request, first_error(errors))
        REQUESTS.labels(code=str(response.status)).inc()
        if not response.prepared:
            response.headers.update(SECURITY_HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
        return response

    # Files.

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._file(request, self._files["index.html"])

    async def _page(self, request: web.Request) -> web.StreamResponse:
        found = self._files.get(request.match_info["path"])
        if found is None:
            raise RejectedError(404, "there is no such file")
        return self._file(request, found)

    def _file(self, request: web.Request, file: PageFile) -> web.Response:
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == file.etag:
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = file.content_type
        return web.Response(body=file.body, headers=headers)

    # Sessions.

    async def _session(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewers.viewer(_credentials(request))
        access = viewer.access
        return _json(
            {
                "mode": self._viewers.mode,
                "user": viewer.user,
                "cluster": self._cluster,
                "version": version("rackgate"),
                "access": {
                    "nodes": access.nodes,
                    "queues": access.queues,
                    "allNamespaces": access.namespaces is None,
                    "namespaces": sorted(access.namespaces or ()),
                },
            }
        )

    async def _open_session(self, request: web.Request) -> web.StreamResponse:
        viewers = self._viewers
        if not isinstance(viewers, LocalViewers):
            raise RejectedError(405, "send a token with each request")
        found = await _body(request)
        code = found.get("code")
        cookie = viewers.sessions.open(code, clock.monotonic()) if isinstance(code, str) else None
        if cookie is None:
            raise RejectedError(401, "the access code is not valid, or it was used before")
        response = web.Response(status=204)
        response.set_cookie(
            viewers.cookie_name, cookie, httponly=True, samesite="Strict", path="/", max_age=None
        )
        return response

    # The stream.

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewers.viewer(_credentials(request))
        with self._counted_stream(viewer):
            response = web.StreamResponse(
                headers={
                    **SECURITY_HEADERS,
                    "Content-Type": "text/event-stream; charset=utf-8",
                    "Cache-Control": "no-store",
                    "X-Accel-Buffering": "no",
                }
            )
            with contextlib.suppress(ConnectionError, TimeoutError):
                await response.prepare(request)
                reason = await self._send_news(request, response, viewer)
                await _send(response, b"end", _encode({"reason": reason}))
        return response

    @contextlib.contextmanager
    def _counted_stream(self, viewer: Viewer) -> Iterator[None]:
        streams, identity = self._streams, viewer.identity
        if streams.total() >= MAX_STREAMS or streams[identity] >= MAX_STREAMS_OF_USER:
            raise RejectedError(
                429, "too many pages of this console are open; close some", retry_after_s=15
            )
        streams[identity] += 1
        STREAMS.set(streams.total())
        try:
            yield
        finally:
            streams[identity] -= 1
            STREAMS.set(streams.total())
            if not streams[identity]:
                del streams[identity]

    async def _send_news(
        self, request: web.Request, response: web.StreamResponse, viewer: Viewer
    ) -> str:
        """Send until the service stops or the rights change; returns why it ends."""
        console, feed = self._console, self._console.feed
        number, connection = 0, None
        checked_at = clock.monotonic()
        while not self._stopping.is_set():
            if clock.monotonic() - checked_at > RIGHTS_S:
                checked_at = clock.monotonic()
                try:
                    if await self._viewers.viewer(_credentials(request)) != viewer:
                        return "your rights changed"
                except RejectedError as error:
                    return str(error)
            if connection != console.connection:
                connection = console.connection
                await _send(response, b"cluster", connection.encoded())
            if number != feed.number:
                sent = number
                number = feed.number
                changes = feed.changes(sent, viewer.access) if sent else None
                if changes is None:
                    await _send(response, b"tables", feed.everything(viewer.access))
                else:
                    await _send(response, b"changes", changes)
                continue
            await self._wait(number, connection, response)
        return "the console stops"

    async def _wait(self, number: int, connection: Any, response: web.StreamResponse) -> None:
        """Wait for news, for a heartbeat at most; a stop is news as well."""
        news = start(self._console.news(number, connection), "news")
        stop = start(self._stopping.wait(), "stop")
        try:
            done, _ = await asyncio.wait(
                (news, stop), timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            news.cancel()
            stop.cancel()
        if not done:
            async with asyncio.timeout(WRITE_S):
                await response.write(b": \n\n")

    # Answers.

    async def _workload(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewers.viewer(_credentials(request))
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        if not viewer.access.may_see(namespace):
            raise RejectedError(403, f'you may not list Workloads of namespace "{namespace[:63]}"')
        with self._counted_answer(viewer):
            timed = partial(self._timed, viewer)
            found = await self._details.workload(namespace, name, viewer.access, timed)
        if found is None:
            raise RejectedError(404, f'there is no Workload "{namespace[:63]}/{name[:253]}"')
        return web.Response(body=found, content_type="application/json")

    async def _what_if(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewers.viewer(_credentials(request))
        question = question_of(await _body(request))
        with self._counted_answer(viewer):
            with self._timed(viewer):
                document = document_of(question)
            namespace = namespace_of(document, question)
            if not viewer.access.may_see(namespace):
                raise RejectedError(
                    403, f'you may not list Workloads of namespace "{namespace[:63]}"'
                )
            timed = partial(self._timed, viewer)
            found = await self._details.what_if(question, document, viewer.access, timed)
        return web.Response(body=found, content_type="application/json")

    async def _history(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewers.viewer(_credentials(request))
        name = request.match_info["name"]
        found = self._console.history.of_queue(name) if viewer.access.queues else None
        if found is None:
            raise RejectedError(404, f'there is no ClusterQueue "{name[:253]}" that you may see')
        return _json(found)

    async def _hosts(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewers.viewer(_credentials(request))
        if not viewer.access.nodes:
            raise RejectedError(403, "you may not list nodes")
        flavor, domain = request.match_info["flavor"], request.query.get("domain", "")
        with self._counted_answer(viewer), self._timed(viewer):
            found = self._console.hosts(flavor, tuple(domain.split("/")))
            if found is None:
                raise RejectedError(404, f'flavor "{flavor[:63]}" has no domain "{domain[:253]}"')
            rows, total = found
            return _json({"hosts": [msgspec.Raw(row.body) for row in rows], "total": total})

    @contextlib.contextmanager
    def _timed(self, viewer: Viewer) -> Iterator[None]:
        """The block, which waits for nothing but a thread, is at the expense of a viewer."""
        started = clock.monotonic()
        try:
            yield
        finally:
            ended = clock.monotonic()
            self._budget.spend(viewer.identity, ended - started, ended)

    @contextlib.contextmanager
    def _counted_answer(self, viewer: Viewer) -> Iterator[None]:
        answers, identity = self._answers, viewer.identity
        if answers.total() >= MAX_ANSWERS or answers[identity] >= MAX_ANSWERS_OF_USER:
            raise RejectedError(429, "too many requests; try again in a second", retry_after_s=1)
        self._budget.check(identity, clock.monotonic())
        answers[identity] += 1
        try:
            yield
        finally:
            answers[identity] -= 1
            if not answers[identity]:
                del answers[identity]


def _unanswered(request: web.Request, error: BaseException) -> web.Response:
    """The answer if the API server gave none.

    Raises:
        BaseException: it is another error.
    """
    if not isinstance(error, KubeError):
        raise error
    log.warning("answer_failed", path=request.path, error=str(error)[:500])
    rejected = RejectedError(503, f"the API server did not answer: {error.message}")
    return web.Response(status=503, body=rejected.encoded(), content_type="application/json")


def _credentials(request: web.Request) -> Credentials:
    named = request.query.get("namespaces", "")
    return Credentials(
        host=request.headers.get("Host", ""),
        authorization=request.headers.get("Authorization", ""),
        cookies=request.cookies,
        namespaces=tuple(part for part in named.split(",") if part),
    )


def _check_origin(request: web.Request) -> None:
    """Other sites may neither read nor send anything; a link from elsewhere may open the page."""
    if request.path == "/" and request.method == "GET":
        return
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if site not in ("same-origin", "none"):
        raise RejectedError(403, "requests of other sites are not answered")
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
        raise RejectedError(403, "requests of other sites are not answered")


async def _body(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        RejectedError: it is none (400), too large (413), or did not arrive in time (408).
    """
    if request.content_type != "application/json":
        raise RejectedError(415, "expected Content-Type: application/json")
    try:
        async with asyncio.timeout(BODY_S):
            body = await request.read()
    except TimeoutError as error:
        raise RejectedError(408, f"the request did not arrive within {BODY_S:g} s") from error
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise RejectedError(400, f"the body is no JSON object: {error}") from error


async def _send(response: web.StreamResponse, event: bytes, data: bytes) -> None:
    """One event, in pieces: all viewers share `data`, and a slow one keeps a piece alone.

    Raises:
        TimeoutError: the viewer does not take it.
    """
    head, end = b"event: " + event + b"\ndata: ", b"\n\n"
    pieces: Iterable[bytes] = (head + data + end,)
    if len(data) > PIECE:
        shared = memoryview(data)
        several = (bytes(shared[at : at + PIECE]) for at in range(0, len(shared), PIECE))
        pieces = chain((head,), several, (end,))
    for piece in pieces:
        async with asyncio.timeout(WRITE_S):
            await response.write(piece)


def _json(value: Any) -> web.Response:
    return web.Response(body=_encode(value), content_type="application/json")
