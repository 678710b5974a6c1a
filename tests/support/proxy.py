"""A loopback proxy in front of a real API server, one listener for each replica of a service.

    with Proxy(server, pki) as proxy:
        door = proxy.open("assigner-0", seed="7")
        ...                                       # the replica's connection.server = door.url
        door.faults.open(Kind.LOSE, start=time.monotonic(), seconds=5, rate=0.1)
        proxy.cut_watches(door)
        proxy.writes                              # every write of every replica

It runs in a thread with a loop of its own, so a busy test does not slow the services down. What
it does to a connection is what a network can do: a request goes on only while its sender is
there, and an answer that is lost ends the connection.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp
from aiohttp import web
from yarl import URL

from rackgate.kube.transport import send_once
from rackgate.runtime.serving.connections import abort
from tests.support.proxy_faults import Faults, Kind, Trap, error_event, status_answer
from tests.support.proxy_records import Write
from tests.support.proxy_streams import Stream
from tests.support.write_points import WritePoints

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
HOP_BY_HOP = frozenset(
    {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}
)
NO_LIMIT = aiohttp.ClientTimeout(total=None)
CALL_LIMIT_S = 30.0
LAG_EVERY_S = 0.05
MERGE_PATCH = "application/merge-patch+json"


class BrokenError(Exception):
    """The connection to the sender is to be broken now."""


class ProxyListener:
    """One listener.

    Attributes:
        name: of the replica that it is for.
        url: what the replica takes for the API server.
        pid: process id of the replica, set by whoever starts it.
        faults: what happens to its requests.
        streams: its open watches.
    """

    def __init__(self, name: str, seed: str, counts: Counter[str]) -> None:
        self.name = name
        self.url = ""
        self.pid = 0
        self.faults = Faults(f"{seed}/{name}", counts)
        self.streams: set[Stream] = set()
        self.runner: web.AppRunner | None = None

    @property
    def sender(self) -> str:
        """The process behind it now."""
        return f"{self.name}/{self.pid}"


class Proxy:
    """See the module.

    Attributes:
        writes: every write, in the order in which they came.
        counts: how many "requests" came, watches included, and how many each fault struck.
        errors: what went wrong in the proxy itself; nobody's fault but its own.
        lag_s: the longest time that the proxy's own loop was late.
        points: kills at each kind of write; None for none.
    """

    def __init__(self, server: str, pki: Path, points: WritePoints | None = None) -> None:
        """Prepare; `with` starts it.

        Args:
            server: URL of the API server.
            pki: folder with `ca.crt`, the API server's own certificate, which is what replicas
                see here, too, and the administrator's, for the other writer.
            points: kills at each kind of write.
        """
        self.points = points
        self.writes: list[Write] = []
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.lag_s = 0.0
        self._server = server
        self._pki = pki
        self._listeners: list[ProxyListener] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._session: aiohttp.ClientSession
        self._other: aiohttp.ClientSession
        self._lag: asyncio.Task[None]

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self, name: str, seed: str) -> ProxyListener:
        """Listen for one more replica."""
        listener = ProxyListener(name, seed, self.counts)
        self._call(self._open(listener))
        self._listeners.append(listener)
        return listener

    def close(self, listener: ProxyListener) -> None:
        """Stop listening for a replica."""
        self._listeners.remove(listener)
        self._call(self._close(listener))

    # Faults of streams, from the harness's thread; each returns how many watches it struck.

    def cut_watches(self, listener: ProxyListener) -> int:
        """Break the connections of all open watches."""
        return self._on_streams(listener, Stream.cut)

    def end_watches(self, listener: ProxyListener, code: int) -> int:
        """End all open watches with an ERROR event of that code."""
        line = error_event(code)
        return self._on_streams(listener, lambda stream: stream.end_with(line))

    def stall_watches(self, listener: ProxyListener, seconds: float) -> int:
        """No byte on any open watch for that time, then all of them; the connection stays."""
        return self._on_streams(listener, lambda stream: stream.stall(seconds))

    def resume_watches(self, listener: ProxyListener) -> int:
        """End every stall now."""
        return self._on_streams(listener, lambda stream: stream.stall(0))

    def _on_streams(self, listener: ProxyListener, action: Any) -> int:
        async def act() -> int:
            streams = tuple(listener.streams)
            for stream in streams:
                action(stream)
            return len(streams)

        return self._call(act())

    # The thread.

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_LIMIT_S)

    async def _start(self) -> None:
        trusted = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        admin = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        admin.load_cert_chain(self._pki / "admin-client.crt", self._pki / "admin-client.key")
        self._session, self._other = _session(trusted), _session(admin)
        self._lag = self._loop.create_task(self._watch_lag())

    async def _stop(self) -> None:
        self._lag.cancel()
        for listener in self._listeners:
            await self._close(listener)
        await self._session.close()
        await self._other.close()
        # Transports of TLS connections close in the next turns of the loop.
        await asyncio.sleep(0.1)

    async def _watch_lag(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_EVERY_S)
            self.lag_s = max(self.lag_s, time.monotonic() - before - LAG_EVERY_S)

    async def _open(self, listener: ProxyListener) -> None:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._handle(listener, request)

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._pki / "kube-apiserver.crt", self._pki / "kube-apiserver.key")
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{tail:.*}", handle)
        listener.runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await listener.runner.setup()
        await web.TCPSite(listener.runner, LOOPBACK, 0, ssl_context=context).start()
        listener.url = f"https://{LOOPBACK}:{listener.runner.addresses[0][1]}"

    async def _close(self, listener: ProxyListener) -> None:
        for stream in tuple(listener.streams):
            stream.cut()
        if listener.runner is not None:
            await listener.runner.cleanup()

    # Requests.

    async def _handle(self, listener: ProxyListener, request: web.Request) -> web.StreamResponse:
        self.counts["requests"] += 1
        try:
            if request.query.get("watch"):
                return await self._watch(listener, request)
            return await self._forward(listener, request)
        except (BrokenError, aiohttp.ClientError, OSError):
            # As TCP does when nobody listens behind it, or a line breaks.
            if request.transport is not None:
                abort(request.transport)
            return web.Response(status=502)
        except Exception as error:
            self.errors.append(f"{request.method} {request.path}: {error!r}")
            raise

    async def _forward(self, listener: ProxyListener, request: web.Request) -> web.StreamResponse:
        """One request and its answer, with all that can befall it."""
        body = await request.read()
        verb, faults = request.method, listener.faults
        write = Write(listener.sender, verb, request.path, time.monotonic())
        if verb != "GET":
            self.writes.append(write)
        trap = faults.reached() if verb != "GET" and write.counts else None
        if trap is None and verb != "GET" and self.points is not None:
            trap = self.points.trap(write, request.query, body)
        if trap is not None and trap.when == "before":
            write.fault = "trap before"
            _trigger_trap(trap)
        late = faults.drawn(Kind.LATENCY, time.monotonic(), verb)
        if late is not None:
            await asyncio.sleep(late.value)
        refusal = await self._before(write, request, faults)
        if refusal is not None:
            return refusal
        write.sent = time.monotonic()
        async with self._send(request, body) as upstream:
            answer = await upstream.read()
        write.answered, write.code = time.monotonic(), upstream.status
        if write.applied and verb != "GET":
            write.note(answer)
        if trap is not None and trap.when == "after":
            write.fault = "trap after"
            _trigger_trap(trap)
        await self._after(write, faults)
        headers = _kept(upstream.headers.items())
        return web.Response(status=upstream.status, headers=headers, body=answer)

    async def _before(
        self, write: Write, request: web.Request, faults: Faults
    ) -> web.Response | None:
        """What happens instead of passing the request on, or before."""
        now, verb = time.monotonic(), write.verb
        if faults.drawn(Kind.DROP, now, verb):
            write.fault = Kind.DROP.value
            raise BrokenError
        throttled = faults.drawn(Kind.THROTTLE, now, verb)
        if throttled is not None:
            write.fault = Kind.THROTTLE.value
            return _refuse(429, "TooManyRequests", {"Retry-After": f"{throttled.value:g}"})
        if faults.drawn(Kind.FAIL, now, verb):
            write.fault = Kind.FAIL.value
            return _refuse(500, "InternalError")
        if faults.drawn(Kind.CONFLICT, now, verb):
            write.fault = Kind.CONFLICT.value
            return _refuse(409, "Conflict")
        if faults.drawn(Kind.TOUCH, now, verb):
            write.fault = Kind.TOUCH.value
            await self._touch(request.path)
        return None

    async def _after(self, write: Write, faults: Faults) -> None:
        """What happens between the API server's answer and the sender."""
        now = time.monotonic()
        if faults.drawn(Kind.LOSE, now, write.verb):
            write.fault = Kind.LOSE.value
            raise BrokenError
        hung = faults.drawn(Kind.HANG, now, write.verb)
        if hung is not None:
            write.fault = Kind.HANG.value
            await asyncio.sleep(hung.value)
            raise BrokenError

    async def _touch(self, path: str) -> None:
        """Another writer changes the object, so that every version known of it is old."""
        for part in ("/status", "/scale"):
            path = path.removesuffix(part)
        body = b'{"metadata":{"annotations":{"chaos.test/touched":"%d"}}}' % time.monotonic_ns()
        headers = {"Content-Type": MERGE_PATCH}
        async with self._other.patch(self._server + path, data=body, headers=headers) as answer:
            await answer.read()

    async def _watch(self, listener: ProxyListener, request: web.Request) -> web.StreamResponse:
        async with self._send(request, b"") as upstream:
            response = web.StreamResponse(
                status=upstream.status, headers=_kept(upstream.headers.items())
            )
            await response.prepare(request)
            stream = Stream(response, request, listener.faults)
            listener.streams.add(stream)
            try:
                await stream.follow(upstream.content)
            finally:
                listener.streams.discard(stream)
        return response

    def _send(self, request: web.Request, body: bytes) -> Any:
        return self._session.request(
            request.method,
            URL(self._server + request.rel_url.raw_path_qs, encoded=True),
            headers=_kept(request.headers.items()),
            data=body or None,
            allow_redirects=False,
        )


def _session(context: ssl.SSLContext) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=context, keepalive_timeout=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=2**20,
        timeout=NO_LIMIT,
        middlewares=(send_once,),  # a proxy passes a request on once, or not at all
    )


def _trigger_trap(trap: Trap) -> None:
    trap.action()
    trap.triggered.set()
    if trap.breaks:
        raise BrokenError


def _refuse(code: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    body = status_answer(code, reason, "injected")
    return web.Response(
        status=code, body=body, headers={"Content-Type": "application/json", **(headers or {})}
    )


def _kept(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {key: value for key, value in headers if key.lower() not in HOP_BY_HOP}
